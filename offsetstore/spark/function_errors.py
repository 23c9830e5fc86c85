"""Errors of a job's functions, and of Spark, that a record can cause."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from pyspark.errors import AnalysisException, PySparkException, PythonException

from offsetstore.errors import FunctionFailed, RowsRefused
from offsetstore.processing.isolate import is_of_records
from offsetstore.protocol.retries import BLAMELESS

if TYPE_CHECKING:
    from collections.abc import Iterator

# The class in the lines of a Python traceback that tell an error, as in "builtins.ValueError: too long".
_RAISED: Final = re.compile(r"^([A-Za-z_][\w.]*)(?::.*)?$", re.MULTILINE)

_OF_VALUES: Final = ("22", "P0")
"""SQLSTATEs: a value that can't be cast, a division by zero; and ``raise_error``."""


def function_failed(error: Exception) -> FunctionFailed | None:
    """Our error for one that a record can cause; ``None`` for another, like a lost executor or a missing package."""
    if isinstance(error, PythonException):
        names = [name.rpartition(".")[2] for name in _RAISED.findall(str(error))]
        if not names or not _BLAMELESS.isdisjoint(names):
            return None
        what, name, state = f"a function raised {names[-1]}", names[-1], None
    elif isinstance(error, PySparkException) and not isinstance(error, AnalysisException):
        state = error.getSqlState()
        if state is None or not state.startswith(_OF_VALUES):
            return None
        name = error.getCondition() or type(error).__name__
        what = f"Spark can't compute a row: {name} (SQLSTATE {state})"
    else:
        return None
    failed = FunctionFailed(what, error_class=name, text=str(error), sqlstate=state)
    failed.__cause__ = error
    return failed


def may_be_of_records(error: Exception) -> bool:
    """Whether it takes a look at the single records to tell."""
    if isinstance(error, RowsRefused):
        return is_of_records(error)
    return function_failed(error) is not None


def _with_subclasses(kind: type[BaseException]) -> Iterator[type[BaseException]]:
    yield kind
    for one in kind.__subclasses__():
        yield from _with_subclasses(one)


_BLAMELESS: Final = {one.__name__ for kind in BLAMELESS for one in _with_subclasses(kind)}
"""By name: a traceback has no more, and other packages have their own ``ConnectionError``."""

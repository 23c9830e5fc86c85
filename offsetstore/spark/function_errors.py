"""Errors of a job's functions, and of Spark, that a record can cause."""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, Final

from py4j.protocol import Py4JJavaError  # pyright: ignore[reportMissingTypeStubs] - it has none
from pyspark.errors import AnalysisException, PySparkException, PythonException
from pyspark.errors.exceptions.captured import unwrap_spark_exception

from offsetstore.errors import FunctionFailed, RowsRefused
from offsetstore.processing.isolate import is_of_records
from offsetstore.protocol.outages import is_outage

if TYPE_CHECKING:
    from collections.abc import Iterator

_OF_VALUES: Final = ("22", "P0")
"""SQLSTATEs: a value that can't be cast, a division by zero; and ``raise_error``."""

_TRACEBACK: Final = "Traceback (most recent call last):"
_AND_THEN: Final = (
    "The above exception was the direct cause of the following exception:",
    "During handling of the above exception, another exception occurred:",
)
_CLASS: Final = re.compile(r"(?:[\w<>]+\.)*([A-Za-z_]\w*)(?::.*)?")

_log = logging.getLogger(__name__)


def may_be_of_records(error: Exception) -> bool:
    """Whether it takes a look at the single records to tell."""
    if isinstance(error, RowsRefused):
        return is_of_records(error)
    failed = function_failed(error)
    if failed is not None:
        _log.warning("looking for the records that can't be computed: %s", failed.what)
    return failed is not None


def function_failed(error: Exception) -> FunctionFailed | None:
    """Our error for one that a record can cause; ``None`` for another, like a lost executor or a missing package."""
    error = _unwrapped(error)
    if isinstance(error, PythonException):
        names = [*_raised(str(error))]
        if any(map(is_outage, names)):
            return None
        name, state = names[-1] if names else "PythonException", None
        what = f"a function raised {name}"
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


def _unwrapped(error: Exception) -> Exception:
    """The error that ended a job's task, as a DataFrame's own methods raise it; jobs of an RDD raise Java's."""
    if not isinstance(error, Py4JJavaError):
        return error
    try:
        with unwrap_spark_exception():
            raise error  # noqa: TRY301 - to be converted
    except Exception as inner:  # noqa: BLE001 - that is what it is for
        return inner


def _raised(text: str) -> Iterator[str]:
    """The classes of the errors in a worker's traceback, the last one last; not what their texts look like.

    An error's text may be anything, also a line with the name of another error.
    """
    lines = iter(text.splitlines())
    for line in lines:  # what Spark says first
        if line == _TRACEBACK:
            break
    while (told := next((line for line in lines if not line.startswith(" ")), None)) is not None:
        if (found := _CLASS.fullmatch(told)) is not None:
            yield found[1]
        for line in lines:
            if line in _AND_THEN and next(lines, None) == "" and next(lines, None) == _TRACEBACK:
                break
        else:
            return

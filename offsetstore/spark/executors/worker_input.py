"""Check whether a Python worker has received all of its task's rows.

If a connection ends between two record batches, because an executor is killed or a query is stopped, Arrow's reader
takes that for the end of the rows. A function under ``mapInArrow`` then sees its iterator end as if all rows were
there, and a commit would lose the rest. The worker itself notices, but only after the function has returned. So this
module checks before a commit: after the rows, Spark sends a mark.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Final

from pyspark.serializers import SpecialLengths

from offsetstore.errors import UnsupportedQuery

if TYPE_CHECKING:
    from types import FrameType

_MARK: Final = SpecialLengths.END_OF_STREAM.to_bytes(4, "big", signed=True)


class InputCutOff(Exception):
    """The task or its executor ended before all rows were sent. No process is left to report this to."""


def check_whole() -> None:
    """Check, after the last row, that all rows were received; call it in the thread of the task's function.

    :raises InputCutOff: rows are missing.
    :raises UnsupportedQuery: the worker of this PySpark version is built differently.
    """
    stream = _stream(inspect.currentframe())
    if stream is None:
        raise UnsupportedQuery(
            "can't tell whether the Python worker has received all rows",
            expected="pyspark.worker as in Spark 4.0 to 4.2, reading from a buffered stream",
            next_step='Use atomicity="batch".',
        )
    # This may wait for the mark, but never for rows: all were read.
    if not _MARK.startswith(stream.peek(len(_MARK))[: len(_MARK)] or b"cut off"):
        raise InputCutOff


def _stream(frame: FrameType | None) -> Any:
    """The stream that the worker reads from: a variable of its main function, below ours on the stack."""
    while frame is not None:
        if frame.f_globals.get("__name__") in {"pyspark.worker", "__main__"} and frame.f_code.co_name == "main":
            stream = frame.f_locals.get("infile")
            return stream if hasattr(stream, "peek") else None
        frame = frame.f_back
    return None

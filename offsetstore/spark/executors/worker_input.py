"""Whether a Python worker has got all of its task's rows, or its executor died while it sent them.

Arrow's reader takes the end of a connection for the end of the rows, where it comes between two record batches: as it
does when an executor is killed, or a query is stopped. A function under ``mapInArrow`` then sees its iterator end as if
all was there, and whoever commits has lost the rest. The worker itself finds out, but only when the function is done.
So it is looked up here before a commit: behind the rows, Spark sends a mark.
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
    """The task's executor, or the task, has ended before all rows were sent. Nobody is there to hear of it."""


def check_whole() -> None:
    """Check, after the last row, that it was the last one; to be called in the thread of the task's function.

    :raises InputCutOff: there were more.
    :raises UnsupportedQuery: this PySpark's worker is built in another way.
    """
    stream = _stream(inspect.currentframe())
    if stream is None:
        raise UnsupportedQuery(
            "the Python worker does not show whether it has got all rows",
            expected="pyspark.worker as in Spark 4.0 to 4.2, reading from a buffered stream",
            next_step='Use atomicity="batch".',
        )
    # It may wait for the mark, never for rows: they were all read.
    if not _MARK.startswith(stream.peek(len(_MARK))[: len(_MARK)] or b"cut off"):
        raise InputCutOff


def _stream(frame: FrameType | None) -> Any:
    """What the worker reads from: a variable of its main function, below ours on the stack."""
    while frame is not None:
        if frame.f_globals.get("__name__") in {"pyspark.worker", "__main__"} and frame.f_code.co_name == "main":
            stream = frame.f_locals.get("infile")
            return stream if hasattr(stream, "peek") else None
        frame = frame.f_back
    return None

"""All that an error can put into a log: its text, its repr, its traceback with what led to it, and its pickled form."""

from __future__ import annotations

import pickle
import traceback


def printed(error: BaseException) -> str:
    """What `logging`, py4j and an interpreter print of it."""
    return "\n".join(["".join(traceback.format_exception(error)), str(error), repr(error)])


def shown(error: BaseException) -> str:
    """The same, and what crosses from a task to the driver."""
    return "\n".join([printed(error), pickle.dumps(error).decode("latin-1")])

"""All that an error can put into a log: its text, its repr, its traceback with what led to it, and its pickled form."""

from __future__ import annotations

import pickle
import traceback


def shown(error: BaseException) -> str:
    """What `logging`, py4j and an interpreter print of it, and what crosses from a task to the driver."""
    told = "".join(traceback.format_exception(error))
    return "\n".join([told, str(error), repr(error), pickle.dumps(error).decode("latin-1")])

"""Jobs that fork, of which one process ends as the test, and the other one tells how it ended."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from typing import Final

BEFORE_A_FORK: Final = "ConfigurationError: this store was made before a fork"


def run_forked(job: Callable[[], object]) -> str:
    """Run a job that forks; return with what it ended in the child, which then ends."""
    gc.collect()  # what earlier tests have left may be librdkafka's, which a child cannot destroy
    parent = os.getpid()
    reading, writing = os.pipe()
    told = "returned"
    try:
        job()
    except BaseException as error:
        told = f"{type(error).__name__}: {error}"
        if os.getpid() == parent:
            raise
    finally:
        if os.getpid() != parent:
            gc.collect()
            os.write(writing, told.encode())
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        return pipe.read()

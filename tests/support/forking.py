"""Jobs that fork. One process goes on as the test; the other tells how it ended."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

BEFORE_A_FORK: Final = "ConfigurationError: this store was made before a fork"
_ROOT: Final = Path(__file__).parents[2]


def in_new_process(job: Callable[..., object], *arguments: str) -> str:
    """Run a module's function in a new interpreter, and return what it printed.

    A test run's own process has clients of Kafka and Spark by then, whose locks and destructors may hang in a child.
    """
    code = f"import sys\nfrom {job.__module__} import {job.__qualname__}\n{job.__qualname__}(*sys.argv[1:])"
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", code, *arguments]
    done = subprocess.run(
        command, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=_ROOT, timeout=300
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def run_forked(job: Callable[[], object]) -> str:
    """Run a job that forks; return with what it ended in the child, which then ends."""
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

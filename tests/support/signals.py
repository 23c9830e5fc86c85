"""Stop a process as a debugger or a busy machine would."""

from __future__ import annotations

import os
import signal
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.support.waiting import wait_until


@contextmanager
def stopped(pid: int) -> Generator[None]:
    """Send it SIGSTOP, wait until all of its threads stand, and send SIGCONT where the block is left."""
    os.kill(pid, signal.SIGSTOP)
    try:
        wait_until_it_stands(pid)
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def wait_until_it_stands(pid: int) -> None:
    """Return once all of its threads are stopped."""
    wait_until(lambda: _states(pid) == {"T"})


def _states(pid: int) -> set[str]:
    found: set[str] = set()
    for stat in Path(f"/proc/{pid}/task").glob("*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):  # a thread that has ended
            found.add(stat.read_text().rpartition(")")[2].split()[0])
    return found

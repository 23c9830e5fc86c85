"""Stop a process as a debugger or a busy machine would."""

from __future__ import annotations

import os
import signal
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Generator


@contextmanager
def stopped(pid: int) -> Generator[None]:
    """Send it SIGSTOP, and SIGCONT where the block is left.

    Threads that run on another processor go on until they are interrupted, on a busy machine for a while.
    """
    os.kill(pid, signal.SIGSTOP)
    try:
        wait_until(lambda: _are_stopped(pid))
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def _are_stopped(pid: int) -> bool:
    threads = Path(f"/proc/{pid}/task").glob("*/stat")  # none where there is no /proc
    return all(stat.read_text(encoding="utf-8").rpartition(")")[2].split()[0] == "T" for stat in threads)

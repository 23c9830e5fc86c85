"""Stop a process as a debugger or a busy machine would."""

from __future__ import annotations

import os
import signal
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def stopped(pid: int) -> Generator[None]:
    """Send it SIGSTOP, and SIGCONT where the block is left."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)

"""Stop a process as a debugger or a busy machine would."""

from __future__ import annotations

import os
import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Generator


@contextmanager
def stopped(pid: int) -> Generator[None]:
    """Send it SIGSTOP, and SIGCONT where the block is left."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)

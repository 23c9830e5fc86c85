"""Processes that outlive the one that started them: recognize them, and end them."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

_LOOK_SECONDS = 0.05


def is_process_of(pid: int, directory: Path) -> bool:
    """Whether the process runs and is the server that keeps its files there.

    A process id alone says little: after a reboot it may be another process's.
    """
    _reap(pid)
    return str(directory) in _command_line(pid)


def end_process(pid: int, *, seconds: float) -> None:
    """Ask a process to stop and wait for it; kill it after that time."""
    deadline = time.monotonic() + seconds
    how = signal.SIGTERM
    while True:
        try:
            os.kill(pid, how)
        except ProcessLookupError:
            return
        while _runs(pid) and (how is signal.SIGKILL or time.monotonic() < deadline):
            time.sleep(_LOOK_SECONDS)
        if not _runs(pid):
            return
        how = signal.SIGKILL


def _runs(pid: int) -> bool:
    _reap(pid)
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _reap(pid: int) -> None:
    """Reap a child of ours that has ended; otherwise it would seem to run."""
    with suppress(ChildProcessError):  # not a child of ours
        os.waitpid(pid, os.WNOHANG)


def _command_line(pid: int) -> str:
    if Path("/proc/self").exists():
        try:
            return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            return ""
    done = subprocess.run(  # noqa: S603 - only a number varies
        ["/bin/ps", "-p", str(pid), "-o", "command="], capture_output=True, text=True, check=False
    )
    return done.stdout

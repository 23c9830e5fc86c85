"""What a job tells its supervisor: that it is live, to systemd, and by its exit code that it was not."""

from __future__ import annotations

import faulthandler
import os
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Literal, NoReturn

from offsetstore.errors import ExitCode
from offsetstore.monitoring.health import Code, Verdict
from offsetstore.protocol.background import Background

OnDead = Literal["exit"]

INTERVAL: Final = 1.0
"""Seconds between two judgements."""

_STDERR: Final = 2
_DUMP_SECONDS: Final = 5.0


class Supervision:
    """Judges the job once a second, in a daemon thread.

    While it is live it tells systemd so, if systemd has started it with ``Type=notify``. Once it is not, and if that is
    wanted, it ends the process.

    :param judge: returns the verdict.
    :param clock: its clock.
    :param exit_after: seconds from when liveness fails to the end of the process, ``None`` for none.
    """

    def __init__(self, judge: Callable[[], Verdict], clock: Callable[[], float], exit_after: float | None) -> None:
        self._judge = judge
        self._clock = clock
        self._exit_after = exit_after
        self._dead_since: float | None = None
        self._was_ready = False
        self._told = ""
        self._turns = Background("offsetstore-health", self._turn, lambda: INTERVAL)
        self._turns.start()

    def close(self) -> None:
        """Judge no more."""
        self._turns.stop()

    def _turn(self) -> bool:
        verdict = self._judge()
        self._tell_systemd(verdict)
        if verdict.is_live:
            self._dead_since = None
            return True
        if self._dead_since is None:
            self._dead_since = self._clock()
        if self._exit_after is not None and self._clock() - self._dead_since >= self._exit_after:
            end_process(verdict)
        return True

    def _tell_systemd(self, verdict: Verdict) -> None:
        status = f"STATUS={', '.join(verdict.codes) or 'ok'}"
        lines = [status] if status != self._told else []
        if verdict.is_live:
            lines.append("WATCHDOG=1")
            if verdict.is_ready and not self._was_ready:
                self._was_ready = True
                lines.append("READY=1")
        if lines:
            self._told = status
            notify("\n".join(lines))


def notify(state: str) -> None:
    """Send it to systemd as sd_notify(3) does; does nothing without ``NOTIFY_SOCKET``, or if systemd is not there."""
    path = os.environ.get("NOTIFY_SOCKET")
    if not path:
        return
    address = f"\0{path[1:]}" if path.startswith("@") else path
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
        channel.sendto(state.encode(), socket.MSG_DONTWAIT, address)


def end_process(verdict: Verdict) -> NoReturn:
    """Write the reasons and the stacks of all threads to standard error, and end the process at once.

    Nothing is closed: what hangs would hang here too. The exit code is that of a fenced job, or of a dead one.
    """
    code = ExitCode.FENCED if verdict.codes[0] is Code.CLAIM_LOST else ExitCode.DEAD
    late = threading.Timer(_DUMP_SECONDS, os._exit, (code,))  # a full pipe, or a lock that a hung thread holds
    late.daemon = True
    late.start()
    with suppress(Exception):
        reasons = "\n".join(f"  {one.code}: {one.text}" for one in verdict.findings)
        sys.stderr.flush()
        os.write(_STDERR, f"offsetstore: the job is not live, and ends with exit code {code}\n{reasons}\n".encode())
        faulthandler.dump_traceback(_STDERR, all_threads=True)
    os._exit(code)

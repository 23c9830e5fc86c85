"""Named places at which a test or the demo can break the job: ``OFFSETSTORE_FAILPOINT=name[:nth][:action]``.

Off unless the variable is set. ``nth`` counts from 1 within the process and is 1 by default. ``kill`` (the default)
sends SIGKILL to this Python process only, ``raise`` raises `FailpointReached`, ``hang`` sleeps forever, so that a test
can send a signal, and ``stop`` sends SIGSTOP to this process, which SIGCONT continues. The process first prints a line
on standard error, as evidence that the fault happened.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
import time
from collections import Counter

from offsetstore.errors import ConfigurationError

VARIABLE = "OFFSETSTORE_FAILPOINT"

POINTS = {
    "after_lock": "P1: after SELECT ... FOR UPDATE",
    "in_copy": "P2: in the middle of COPY",
    "before_advance": "P3: the results are written, the offset has not moved",
    "before_commit": "P4: all is written, COMMIT has not been sent",
    "commit_sent": "P5: COMMIT has been sent, its answer has not been read",
    "after_commit": "P6: directly after COMMIT",
    "before_mirror": "between P6 and the mirror: its copy is read, Kafka does not have it",
    "after_mirror": "Kafka has the mirror's copy, the pins are still on",
    "after_sink": "P7: the sink is done, Spark has not committed the batch",
    "in_claim": "P8: in a claim, before its COMMIT",
    "before_lock": "P10: the crop is planned and computed, nothing is locked",
    "in_discovery": "P11: in discovery, a part was accepted and kept",
    "letters_written": "P12: rows and dead letters are written, the offset has not moved",
    "failures_written": "P13: failed attempts are committed, the batch has not been tried again",
    "letters_replayed": "P14: the rows of dead letters are written and these are marked, COMMIT has not been sent",
    "outbox_taken": "P15: a relay has the token, and the earlier one may have begun anew in Kafka",
    "outbox_fenced": "P16: it has fenced the earlier one in Kafka too",
    "outbox_recorded": "P17: a batch is recorded, and nothing of it is committed in Kafka",
    "outbox_produced": "P18: its records are produced, Kafka's number is not in the transaction",
    "outbox_in_transaction": "P19: the number is in the transaction, Kafka has not been told to commit",
    "outbox_sent": "P20: Kafka has committed, the rows are still there",
    "outbox_aborted": "P21: Kafka has refused rows and aborted their batch, and none of them is set aside",
}
"""The names, with the numbers of the fault list."""

_ACTIONS = ("kill", "raise", "hang", "stop")
_STOPPING = 0.2  # seconds
_reached: Counter[str] = Counter()
_guard = threading.Lock()


class FailpointReached(Exception):
    """Raised by a failpoint whose action is ``raise``."""


def reach(name: str) -> None:
    """Trigger the failpoint if the environment variable selects it; otherwise do nothing."""
    wanted = os.environ.get(VARIABLE)
    if not wanted:
        return
    point, nth, action = _parse(wanted)
    if point != name:
        return
    with _guard:
        _reached[name] += 1
        count = _reached[name]
    if count == nth:
        _fire(name, action)


def armed(name: str) -> bool:
    """Whether the next `reach` of this name will trigger, for code that has to prepare for it."""
    wanted = os.environ.get(VARIABLE)
    if not wanted:
        return False
    point, nth, _ = _parse(wanted)
    return point == name and _reached[name] == nth - 1


def setting() -> str | None:
    """The variable's value, to send to the process that does the work."""
    return os.environ.get(VARIABLE)


def follow(sent: str | None) -> None:
    """Set the variable to another process's `setting`, or unset it for ``None``."""
    if sent is None:
        os.environ.pop(VARIABLE, None)
    else:
        os.environ[VARIABLE] = sent


def _parse(wanted: str) -> tuple[str, int, str]:
    point, *rest = wanted.split(":")
    action = rest.pop() if rest and rest[-1] in _ACTIONS else "kill"
    number = rest.pop() if rest else "1"
    if point not in POINTS or rest or re.fullmatch("[1-9][0-9]*", number) is None:
        raise ConfigurationError(
            f"{VARIABLE} is not a valid failpoint",
            found=wanted,
            expected=f"name[:nth][:{'|'.join(_ACTIONS)}] with a name of {', '.join(POINTS)}",
        )
    return point, int(number), action


def _fire(name: str, action: str) -> None:
    line = f"offsetstore failpoint {name}: {action} (pid {os.getpid()})\n"
    # One write, since others write to it too.
    print(line, end="", file=sys.stderr, flush=True)  # noqa: T201 - for tests that watch the process
    if action == "raise":
        raise FailpointReached(name)
    if action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if action == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
        # Another thread may take the signal: don't continue before the process stops.
        time.sleep(_STOPPING)
        return
    while True:
        time.sleep(3600)

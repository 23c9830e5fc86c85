"""Named places at which a test or the demo can break the job: ``OFFSETSTORE_FAILPOINT=name[:nth][:action]``.

Off unless the variable is set. ``nth`` counts from 1 within the process and is 1 by default; ``kill`` (the default)
sends SIGKILL to this Python process alone, ``raise`` raises `FailpointReached`, ``hang`` sleeps for ever, so that
somebody else can send the signal, ``stop`` sends SIGSTOP to this process, which SIGCONT lets go on. Whoever fires says
so in one line on standard error first: the evidence that the fault really happened.
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
    "after_sink": "P7: the sink is done, Spark's commit log does not know",
    "in_claim": "P8: in a claim, before its COMMIT",
    "staged": "P9: executors have staged the rows, nothing is moved",
    "before_lock": "P10: the crop is planned and computed, nothing is locked",
}
"""The names, with the numbers of the fault list."""

_ACTIONS = ("kill", "raise", "hang", "stop")
_STOPPING = 0.2
_reached: Counter[str] = Counter()
_guard = threading.Lock()


class FailpointReached(Exception):
    """Raised by a failpoint whose action is ``raise``."""


def reach(name: str) -> None:
    """Break here if the environment asks for it; otherwise nothing, at the price of one look-up."""
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
    """Whether the next `reach` of this name will break; for a point that needs to prepare itself."""
    wanted = os.environ.get(VARIABLE)
    if not wanted:
        return False
    point, nth, _ = _parse(wanted)
    return point == name and _reached[name] == nth - 1


def setting() -> str | None:
    """What the environment asks for, to be sent to where the work is done."""
    return os.environ.get(VARIABLE)


def follow(sent: str | None) -> None:
    """Ask for what somebody else's `setting` was, and for nothing otherwise."""
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
            f"{VARIABLE} is not understood",
            found=wanted,
            expected=f"name[:nth][:{'|'.join(_ACTIONS)}] with a name of {', '.join(POINTS)}",
        )
    return point, int(number), action


def _fire(name: str, action: str) -> None:
    print(f"offsetstore failpoint {name}: {action} (pid {os.getpid()})", file=sys.stderr, flush=True)  # noqa: T201 - to whoever watches the process
    if action == "raise":
        raise FailpointReached(name)
    if action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if action == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(_STOPPING)  # another thread may take the signal: this one must not run on meanwhile
        return
    while True:
        time.sleep(3600)

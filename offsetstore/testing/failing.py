"""Fail at a named point of a transaction, to test what a job does about it."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from typing import Literal

from offsetstore.runtime import failpoints
from offsetstore.runtime.failpoints import POINTS, VARIABLE, FailpointReached

__all__ = ["POINTS", "FailpointReached", "failpoint"]


@contextmanager
def failpoint(
    name: str, *, nth: int = 1, action: Literal["raise", "kill", "hang", "stop"] = "raise"
) -> Generator[None]:
    """Fail in this block, at the point of that name; `POINTS` describes each point.

    ::

        with failpoint("before_commit"), pytest.raises(FailpointReached):
            store.run(claim, work)

    It sets the environment variable ``OFFSETSTORE_FAILPOINT``, so a process that the block starts fails there too, by
    its own count. To break only such a process, give the variable to it instead: ``before_commit:2:kill``.

    :param nth: fail when the point is reached for the nth time in the block.
    :param action: ``"raise"`` raises `FailpointReached`. ``"kill"`` sends SIGKILL to the process, ``"stop"`` sends
        SIGSTOP, and ``"hang"`` sleeps forever.
    :raises AssertionError: the block has ended well, but this process has not reached the point so often.
    :raises ConfigurationError: there is no such point or action, or ``nth`` is below 1.
    """
    reached = failpoints._reached  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - counts in the whole process
    setting, count = failpoints.setting(), reached[name]
    os.environ[VARIABLE] = f"{name}:{nth}:{action}"
    try:
        failpoints.armed(name)  # checks the arguments
        reached[name] = 0
        yield
    finally:
        times, reached[name] = reached[name], count
        failpoints.follow(setting)
    assert times >= nth, f"failpoint {name} was reached {times} times, not {nth}"

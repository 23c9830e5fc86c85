"""The executors of a job, by process id."""

from __future__ import annotations

from contextlib import suppress

import psutil

from tests.faults.chaos.harness.scene import Job
from tests.support.cluster import executors_below
from tests.support.waiting import wait_until


def executors(job: Job) -> list[int]:
    """Those that run now, of a job whose executors are children of its Java."""
    with suppress(psutil.NoSuchProcess):
        return executors_below(psutil.Process(job.jvm))
    return []


def wait_for_executors(job: Job, count: int = 2) -> list[int]:
    """Wait until so many run."""
    return wait_until(lambda: found if len(found := executors(job)) == count else [], timeout=90)


def wait_until_gone(pid: int) -> None:
    """Wait until a process has ended, whether or not somebody has taken notice."""

    def is_gone() -> bool:
        with suppress(psutil.NoSuchProcess):
            return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
        return True

    wait_until(is_gone)

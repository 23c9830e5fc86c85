"""The executors of a job, and their Python workers, by process id."""

from __future__ import annotations

from contextlib import suppress

import psutil

from tests.faults.chaos.harness.scene import Job
from tests.support.waiting import wait_until

_EXECUTOR = "CoarseGrainedExecutorBackend"
_DAEMON = "pyspark.daemon"


def executors(job: Job) -> list[int]:
    """Those that run now, of a job whose executors are children of its Java."""
    with suppress(psutil.NoSuchProcess):
        return [one.pid for one in psutil.Process(job.jvm).children(recursive=True) if _EXECUTOR in _command(one)]
    return []


def wait_for_executors(job: Job, count: int = 2) -> list[int]:
    """Wait until so many run."""
    return wait_until(lambda: found if len(found := executors(job)) == count else [], timeout=90)


def workers(executor: int) -> list[int]:
    """The Python workers of one, which its daemons have forked."""
    with suppress(psutil.NoSuchProcess):
        daemons = [one for one in psutil.Process(executor).children() if _DAEMON in _command(one)]
        return [worker.pid for daemon in daemons for worker in daemon.children()]
    return []


def wait_until_gone(pid: int) -> None:
    """Wait until a process has ended, whether or not somebody has taken notice."""

    def is_gone() -> bool:
        with suppress(psutil.NoSuchProcess):
            return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
        return True

    wait_until(is_gone)


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return ""

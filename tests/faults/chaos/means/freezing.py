"""A whole job standing still: the driver's Python and Java, and Spark's Python workers."""

from __future__ import annotations

import os
import signal
from contextlib import suppress

import psutil

from tests.faults.chaos.harness.scene import Job
from tests.support.waiting import wait_until


def family(job: Job) -> list[psutil.Process]:
    """All processes of a job but the driver's Python and Java: the daemon that forks workers, and these."""
    found: list[psutil.Process] = []
    with suppress(psutil.NoSuchProcess):
        found = [one for one in psutil.Process(job.jvm).children(recursive=True) if one.pid != job.pid]
    return found


def freeze_all(job: Job) -> str:
    """Stop them as they stand, and see that they do; return which."""
    job.freeze()
    others = family(job)
    for one in others:
        with suppress(ProcessLookupError):
            os.kill(one.pid, signal.SIGSTOP)
    pids = [job.pid, job.jvm, *(one.pid for one in others)]
    wait_until(lambda: all(stands(pid) for pid in pids))
    return f"SIGSTOP to {pids}"


def thaw_all(job: Job) -> None:
    """Let them go on."""
    for one in family(job):
        with suppress(ProcessLookupError):
            os.kill(one.pid, signal.SIGCONT)
    job.thaw()


def stands(pid: int) -> bool:
    """Whether the process is stopped, or gone."""
    try:
        return psutil.Process(pid).status() in {psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE}
    except psutil.NoSuchProcess:
        return True

"""A job that stands still at a named point, and is let go on afterwards."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from threading import Thread

import psutil

from tests.faults.chaos.harness.scene import Job
from tests.support.waiting import wait_until


@contextmanager
def held(job: Job) -> Generator[str]:
    """Wait until the job has stopped itself (a failpoint with ``:stop``); it goes on where the block ends.

    Yields where that is, for the evidence. It may be a Python worker of Spark's, while the driver waits for it. Each
    worker counts for itself: others that come to their stop are let go on, too.
    """
    reached = job.wait_for("reached", timeout=90)
    process = psutil.Process(reached.what["pid"])
    wait_until(lambda: process.status() == psutil.STATUS_STOPPED)
    try:
        yield f"process {process.pid} at {reached.what['point']}"
    finally:
        Thread(target=_let_go_on, args=(job,), daemon=True).start()


def _let_go_on(job: Job) -> None:
    released: set[int] = set()
    while not job.has_ended:
        for event in job.told("reached"):
            pid = event.what["pid"]
            with suppress(psutil.NoSuchProcess, ProcessLookupError):
                if pid not in released and psutil.Process(pid).status() == psutil.STATUS_STOPPED:
                    os.kill(pid, signal.SIGCONT)
                    released.add(pid)
        time.sleep(0.05)

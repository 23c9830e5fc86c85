"""A Python worker, or a whole executor, dies under a job with two executors."""

from __future__ import annotations

import os
import signal
import time
from typing import Final

from tests.faults.chaos.harness.gate import PLACES, Gate, Waiting
from tests.faults.chaos.harness.registry import fault
from tests.faults.chaos.harness.scene import Scene
from tests.faults.chaos.means.executors import executors, wait_for_executors, wait_until_gone
from tests.support.cluster import python_workers
from tests.support.waiting import wait_until

ROW: Final = "Python worker, executor killed"
MUST: Final = "task repeated or batch repeated, no twin"


@fault(row=ROW, must=MUST, variants=("worker", "executor"), seeds=12)
def killed_in_a_task(scene: Scene) -> None:
    """SIGKILL of a Python worker, or of its executor, while a task reads its records, has its transaction open, or
    has written all rows."""
    gate = Gate(scene.directory / "gate")
    places = PLACES[scene.way]
    place = places[(scene.seed // len(scene.fault.ways)) % len(places)]
    scene.produce(300)
    with scene.supervise(kind="cluster", gate=str(gate.directory)) as supervisor:
        job = supervisor.job
        job.wait_for("done", scene.random.randint(1, 3), timeout=120)
        wait_for_executors(job)
        gate.shut(place)
        scene.produce(120)
        victim = scene.random.choice(wait_until(gate.waiting, timeout=90))
        pid = victim.pid if scene.variant == "worker" else victim.executor
        os.kill(pid, signal.SIGKILL)
        wait_until_gone(pid)
        scene.fired(f"{scene.variant} {pid} got SIGKILL: {victim}")
        if scene.random.random() < 0.5:
            scene.fired(f"repeated as {wait_until(lambda: _repeated(gate, victim), timeout=90)}")
        gate.open()
        scene.caught_up()
        assert supervisor.jobs == [job], "the job was to live on"
        wait_for_executors(job)


@fault(row=ROW, must=MUST, seeds=12)
def killed_at_random_in_tasks(scene: Scene) -> None:
    """SIGKILL of Python workers and of executors at random moments, while records keep coming."""
    with scene.producing(60), scene.supervise(kind="cluster") as supervisor:
        job = supervisor.job
        job.wait_for("done", timeout=120)
        for _ in range(3):
            wait_for_executors(job)
            time.sleep(scene.random.uniform(0, 1))
            pids = [*executors(job), *(pid for one in executors(job) for pid in python_workers(one))]
            pid = scene.random.choice(pids)
            os.kill(pid, signal.SIGKILL)
            wait_until_gone(pid)
            scene.fired(f"{pid} of {pids} got SIGKILL, {len(job.told('begun')) - job.batches_done} batches under way")
        job.wait_for("done", job.batches_done + 2, timeout=120)
    scene.produce(50)
    with scene.supervise(kind="cluster", records_per_trigger=5_000):
        scene.caught_up()


def _repeated(gate: Gate, victim: Waiting) -> Waiting | None:
    """Look for the task again; let all others through, whose locks it may need."""
    for one in gate.waiting():
        is_victim = one.pid == victim.pid or (one.stage, one.attempt) == (victim.stage, victim.attempt)
        if one.task == victim.task and not is_victim:
            return one
        gate.let(one)
    return None

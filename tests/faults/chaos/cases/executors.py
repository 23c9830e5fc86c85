"""A Python worker, or a whole executor, dies under a job with two executors."""

from __future__ import annotations

import time
from typing import Final

import psutil

from offsetstore.store.identity import name_prefix
from tests.faults.chaos.harness.gate import PLACES, Gate, Waiting
from tests.faults.chaos.harness.registry import fault
from tests.faults.chaos.harness.scene import Scene
from tests.faults.chaos.means.breaking import executors, freeze, kill_process, repeated_for, thaw, wait_for_executors
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
    with scene.living(kind="cluster", gate=str(gate.directory)) as job:
        job.wait_for("done", scene.random.randint(1, 3), timeout=120)
        wait_for_executors(job)
        gate.shut(place)
        scene.produce(120)
        victim = scene.random.choice(wait_until(gate.waiting, timeout=90))
        pid = victim.pid if scene.variant == "worker" else victim.executor
        kill_process(pid)
        scene.fired(f"{scene.variant} {pid} got SIGKILL: {victim}")
        if scene.random.random() < 0.5:
            scene.fired(f"repeated as {wait_until(lambda: _repeated(gate, victim), timeout=90)}")
        gate.open()
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
            kill_process(pid)
            scene.fired(f"{pid} of {pids} got SIGKILL, {job.under_way} batches under way")
        job.wait_for("done", job.batches_done + 2, timeout=120)
    scene.catch_up(50, kind="cluster", records_per_trigger=5_000)


def _repeated(gate: Gate, victim: Waiting) -> Waiting | None:
    """Look for the task again; let all others through, whose locks it may need."""
    for one in gate.waiting():
        is_victim = one.pid == victim.pid or (one.stage, one.attempt) == (victim.stage, victim.attempt)
        if one.task == victim.task and not is_victim:
            return one
        gate.let(one)
    return None


# -- a task that stands still is overtaken by a twin on another executor

TWIN_ROW: Final = "speculative twin"
TWIN_MUST: Final = "one of the two attempts commits, the other writes nothing"
_BLOCKED: Final = """
SELECT pid, pg_blocking_pids(pid) FROM pg_stat_activity
WHERE application_name LIKE '{prefix}%' AND wait_event_type = 'Lock' AND wait_event IN ('transactionid', 'tuple')
"""
LATER: Final = ("at-once", "after-the-next-batch")


@fault(row=TWIN_ROW, must=TWIN_MUST, ways=("partition",), variants=LATER, seeds=8)
def overtaken(scene: Scene) -> None:
    """An executor gets SIGSTOP in the middle of a task; its twin runs on another host and reports; the executor gets
    SIGCONT at once, or after the next batch."""
    gate = Gate(scene.directory / "gate")
    scene.produce(200)
    with scene.living(kind="speculation", gate=str(gate.directory)) as job:
        job.wait_for("done", scene.random.randint(1, 2), timeout=180)
        gate.shut("reading")
        scene.produce(60)
        original = wait_until(gate.waiting, timeout=120)[0]
        frozen = _freeze(original.executor)
        twin = wait_until(lambda: _twin(gate, original), timeout=120)
        assert twin is not None
        scene.fired(f"executor {original.executor} got SIGSTOP: {original}; its twin is {twin}")
        done = job.batches_done
        gate.open()
        if scene.variant == "after-the-next-batch":
            scene.produce(60)
            job.wait_for("done", done + 2, timeout=180)
        else:
            job.wait_for("done", done + 1, timeout=180)
        thaw(frozen)
        scene.produce(60)


@fault(row=TWIN_ROW, must=TWIN_MUST, ways=("partition",), variants=LATER, seeds=4)
def overtaken_under_the_lock(scene: Scene) -> None:
    """An executor gets SIGSTOP when its task has locked its partition; the twin waits for the lock, and gives up. The
    executor gets SIGCONT then; or when another job has claimed the group, and written the next batches."""
    place = ("begun", "written")[scene.seed % 2]
    gate = Gate(scene.directory / "gate")
    scene.produce(200)
    first = scene.start(kind="speculation", gate=str(gate.directory), timeouts={"lock": 2.0})
    first.wait_for("done", scene.random.randint(1, 2), timeout=180)
    gate.shut(place)
    scene.produce(60)
    original = wait_until(gate.waiting, timeout=120)[0]
    frozen = _freeze(original.executor)
    blocked = wait_until(lambda: _blocked_twin(scene, gate, original), timeout=120)
    scene.fired(f"executor {original.executor} got SIGSTOP: {original}; its twin waits for it: {blocked}")
    if scene.variant == "at-once":
        if scene.random.random() < 0.5:
            wait_until(lambda: "LockTimeout" in repeated_for(first), timeout=60)
        gate.open()
        thaw(frozen)
        scene.caught_up()
        first.stop()
        return
    gate.open()
    scene.expect("StaleClaim")
    second = scene.start(takeover_timeout=1.0)
    second.wait_for("done", 2, timeout=120)
    scene.produce(60)
    thaw(frozen)
    scene.produce(60)
    scene.expect_error(first, "StaleClaim", timeout=180)
    scene.caught_up()


def _freeze(executor: int) -> list[psutil.Process]:
    process = psutil.Process(executor)
    return freeze([process, *process.children(recursive=True)])


def _twin(gate: Gate, original: Waiting) -> Waiting | None:
    """Look for it at the gate; let all others through, which are other tasks."""
    for one in gate.waiting():
        if (one.stage, one.task) == (original.stage, original.task):
            if one.attempt != original.attempt and one.executor != original.executor:
                return one
        else:
            gate.let(one)
    return None


def _blocked_twin(scene: Scene, gate: Gate, original: Waiting) -> str:
    """Look for a backend that waits for a partition's row, which nobody but the frozen original has locked."""
    _twin(gate, original)
    found = scene.database.rows(_BLOCKED.format(prefix=name_prefix(scene.group)))
    return ", ".join(f"backend {pid} waits for {blockers}" for pid, blockers in found)

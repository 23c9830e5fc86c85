"""A task that stands still is overtaken by a twin on another executor, and goes on when all is over."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from typing import Final

import psutil

from offsetstore.store.identity import name_prefix
from tests.faults.chaos.harness.gate import Gate, Waiting
from tests.faults.chaos.harness.registry import fault
from tests.faults.chaos.harness.scene import Scene
from tests.faults.chaos.means.logs import repeated_for
from tests.support.waiting import wait_until

ROW: Final = "speculative twin"
MUST: Final = "one of the two attempts commits, the other writes nothing"
_BLOCKED: Final = """
SELECT pid, pg_blocking_pids(pid) FROM pg_stat_activity
WHERE application_name LIKE '{prefix}%' AND wait_event_type = 'Lock' AND wait_event IN ('transactionid', 'tuple')
"""
LATER: Final = ("at-once", "after-the-next-batch")


@fault(row=ROW, must=MUST, ways=("partition",), variants=LATER, seeds=8)
def overtaken(scene: Scene) -> None:
    """An executor gets SIGSTOP in the middle of a task; its twin runs on another host and reports; the executor gets
    SIGCONT at once, or after the next batch."""
    gate = Gate(scene.directory / "gate")
    scene.produce(200)
    with scene.supervise(kind="speculation", gate=str(gate.directory)) as supervisor:
        job = supervisor.job
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
        _thaw(frozen)
        scene.produce(60)
        scene.caught_up()
        assert supervisor.jobs == [job], "the job was to live on"


@fault(row=ROW, must=MUST, ways=("partition",), variants=LATER, seeds=4)
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
        _thaw(frozen)
        scene.caught_up()
        first.stop()
        return
    gate.open()
    scene.expect("StaleClaim")
    second = scene.start(takeover_timeout=1.0)
    second.wait_for("done", 2, timeout=120)
    scene.produce(60)
    _thaw(frozen)
    scene.produce(60)
    scene.expect_error(first, "StaleClaim", timeout=180)
    scene.caught_up()


def _freeze(executor: int) -> list[psutil.Process]:
    """Stop an executor, the daemon that forks its workers, and these."""
    process = psutil.Process(executor)
    frozen = [process, *process.children(recursive=True)]
    for one in frozen:
        os.kill(one.pid, signal.SIGSTOP)
    wait_until(lambda: all(one.status() == psutil.STATUS_STOPPED for one in frozen))
    return frozen


def _thaw(frozen: list[psutil.Process]) -> None:
    for one in frozen:
        with suppress(psutil.NoSuchProcess):
            one.resume()


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

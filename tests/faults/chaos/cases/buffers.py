"""The driver dies while batches are kept in memory, or are being flushed."""

from __future__ import annotations

import time

from tests.faults.chaos.cases.drivers import EVERYWHERE, TARGETS
from tests.faults.chaos.harness.registry import fault
from tests.faults.chaos.harness.scene import Scene

ROW = "driver killed with batches in memory"
MUST = "read again from the stored offset"
FLUSH = {"rows": 150, "seconds": 0.5}
POINTS = {name: point for name, point in EVERYWHERE.items() if point != "in_claim"}


@fault(row=ROW, must=MUST, ways=("batch",), variants=tuple(POINTS), seeds=3)
def killed_at_a_flush(scene: Scene) -> None:
    """With flush= and metadata=: Python, Java or both get SIGKILL while the job stands still at a named point."""
    target = TARGETS[scene.seed % len(TARGETS)]
    point = POINTS[scene.variant]
    scene.produce(300)
    with scene.supervise(failpoint=f"{point}:{scene.random.randint(1, 2)}:hang", flush=FLUSH) as supervisor:
        victim = supervisor.job
        victim.wait_for("reached")
        at = scene.stored()
        kept = len(victim.told("begun")) - victim.batches_done
        victim.kill(target)
        scene.fired(f"{target} of job {victim.pid} got SIGKILL at {point}, {kept} batches begun since a flush, at {at}")
        supervisor.next_job(victim)
        scene.produce(100)
        scene.caught_up()


@fault(row=ROW, must=MUST, ways=("batch",), seeds=50)
def killed_with_batches_in_memory(scene: Scene) -> None:
    """With flush= and metadata=: SIGKILL to Python, Java or both, twice at random moments, while records come in."""
    with scene.producing(), scene.supervise(flush=FLUSH, records_per_trigger=20) as supervisor:
        for _ in range(2):
            victim = supervisor.job
            victim.wait_for("begun", scene.random.randint(1, 8))
            time.sleep(scene.random.uniform(0, 0.6))
            target = scene.random.choice(TARGETS)
            kept = len(victim.told("begun")) - victim.batches_done
            victim.kill(target)
            scene.fired(f"{target} of job {victim.pid} got SIGKILL, {kept} batches begun since a flush")
            supervisor.next_job(victim)
    scene.produce(50)
    with scene.supervise(records_per_trigger=300):
        scene.caught_up()

"""The driver dies: at each point of its way, and at random moments."""

from __future__ import annotations

import time
from typing import Final

from tests.faults.chaos.harness.process import Target
from tests.faults.chaos.harness.registry import fault
from tests.faults.chaos.harness.scene import Scene

ROW: Final = "driver killed"
MUST: Final = "replay cropped or skipped"
TARGETS: Final[tuple[Target, ...]] = ("python", "jvm", "both")

# Failpoints that one way has and another has not: a task's COPY is in a worker of Spark's, where SIGKILL ends the
# worker and not the driver.
EVERYWHERE: Final = {
    "P1": "after_lock",
    "P2": "in_copy",
    "P3": "before_advance",
    "P4": "before_commit",
    "P5": "commit_sent",
    "P6": "after_commit",
    "before-mirror": "before_mirror",
    "after-mirror": "after_mirror",
    "P7": "after_sink",
    "P8": "in_claim",
    "P10": "before_lock",
}


@fault(row=ROW, must=MUST, variants=tuple(EVERYWHERE), seeds=6)
def killed_at(scene: Scene) -> None:
    """Python, Java or both get SIGKILL while the job stands still at a named point (OFFSETSTORE_FAILPOINT=...:hang)."""
    _killed_at(scene, EVERYWHERE[scene.variant])


def _killed_at(scene: Scene, point: str) -> None:
    # The ways and the targets take turns, in all combinations over the seeds.
    target = TARGETS[(scene.seed // len(scene.fault.ways) + scene.seed) % len(TARGETS)]
    nth = 1 if point == "in_claim" else scene.random.randint(1, 4)
    scene.produce(300)
    with scene.supervise(failpoint=f"{point}:{nth}:hang") as supervisor:
        victim = supervisor.job
        reached = victim.wait_for("reached")
        at = scene.stored()
        supervisor.settings["records_per_trigger"] = 150
        victim.kill(target)
        scene.fired(
            f"{target} of job {victim.pid} got SIGKILL at {point}:{nth} (process {reached.what['pid']}), stored {at}"
        )
        supervisor.next_job(victim)
        scene.produce(100)
        scene.caught_up()


@fault(row=ROW, must=MUST, seeds=50)
def killed_at_random(scene: Scene) -> None:
    """Python, Java or both get SIGKILL twice, each time at a random moment, while records keep coming."""
    with scene.producing(), scene.supervise() as supervisor:
        for _ in range(2):
            victim = supervisor.job
            victim.wait_for("begun", scene.random.randint(1, 4))
            time.sleep(scene.random.uniform(0, 0.6))
            target = scene.random.choice(TARGETS)
            under_way = len(victim.told("begun")) - victim.batches_done
            assert not victim.has_ended
            victim.kill(target)
            scene.fired(f"{target} of job {victim.pid} got SIGKILL, {under_way} batches under way")
            supervisor.next_job(victim)
    scene.produce(50)
    with scene.supervise(records_per_trigger=300):
        scene.caught_up()

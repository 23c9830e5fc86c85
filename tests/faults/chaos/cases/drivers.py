"""The driver dies: at each point of its way, and at random moments; also while batches are kept in memory."""

from __future__ import annotations

from typing import Final

from tests.faults.chaos.harness.registry import fault
from tests.faults.chaos.harness.scene import Scene
from tests.faults.chaos.means.breaking import kill_at, kill_at_random

ROW: Final = "driver killed"
MUST: Final = "replay cropped or skipped"
FLUSHED_ROW: Final = "driver killed with batches in memory"
FLUSHED_MUST: Final = "read again from the stored offset"
FLUSH: Final = {"rows": 150, "seconds": 0.5}

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
AT_A_FLUSH: Final = tuple(name for name in EVERYWHERE if name != "P8")


@fault(row=ROW, must=MUST, variants=tuple(EVERYWHERE), seeds=6)
def killed_at(scene: Scene) -> None:
    """Python, Java or both get SIGKILL while the job stands still at a named point (OFFSETSTORE_FAILPOINT=...:hang)."""
    nth = 1 if scene.variant == "P8" else scene.random.randint(1, 4)
    scene.produce(300)
    kill_at(scene, EVERYWHERE[scene.variant], nth, lambda: scene.produce(100))


@fault(row=ROW, must=MUST, seeds=50)
def killed_at_random(scene: Scene) -> None:
    """Python, Java or both get SIGKILL twice, each time at a random moment, while records keep coming."""
    with scene.producing(), scene.supervise() as supervisor:
        kill_at_random(scene, supervisor, batches=4, within=0.6)
    scene.catch_up(50, records_per_trigger=300)


@fault(row=FLUSHED_ROW, must=FLUSHED_MUST, ways=("batch",), variants=AT_A_FLUSH, seeds=3)
def killed_at_a_flush(scene: Scene) -> None:
    """With flush= and metadata=: Python, Java or both get SIGKILL while the job stands still at a named point."""
    scene.produce(300)
    kill_at(scene, EVERYWHERE[scene.variant], scene.random.randint(1, 2), lambda: scene.produce(100), flush=FLUSH)


@fault(row=FLUSHED_ROW, must=FLUSHED_MUST, ways=("batch",), seeds=50)
def killed_with_batches_in_memory(scene: Scene) -> None:
    """With flush= and metadata=: SIGKILL to Python, Java or both, twice at random moments, while records come in."""
    with scene.producing(), scene.supervise(flush=FLUSH, records_per_trigger=20) as supervisor:
        kill_at_random(scene, supervisor, batches=8, within=0.6)
    scene.catch_up(50, records_per_trigger=300)

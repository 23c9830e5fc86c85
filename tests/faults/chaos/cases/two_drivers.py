"""A job that stands still in the middle of a batch is taken over, and goes on when nobody expects it any more."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from tests.faults.chaos.harness.process import Target
from tests.faults.chaos.harness.registry import fault
from tests.faults.chaos.harness.scene import Job, Scene, Supervisor
from tests.faults.chaos.means.breaking import in_transaction, take_over, wait_until_stopped
from tests.support.waiting import wait_until

ROW: Final = "two drivers"
MUST: Final = (
    "the second isn't blocked for ever; the first ends with StaleClaim, or with CommitUnknown where it was about to "
    "commit, and wrote nothing"
)
POINTS: Final = {
    "P1": "after_lock",
    "P2": "in_copy",
    "P3": "before_advance",
    "P4": "before_commit",
    "P6": "after_commit",
    "P7": "after_sink",
    "P10": "before_lock",
}


@fault(row=ROW, must=MUST, variants=tuple(POINTS), seeds=6)
def frozen_at(scene: Scene) -> None:
    """The first driver gets SIGSTOP at a named point of a batch, with Java and all workers; a second one claims and
    runs; the first gets SIGCONT."""
    point = POINTS[scene.variant]
    scene.produce(400)
    first = scene.start(failpoint=f"{point}:{scene.random.randint(1, 3)}:stop")
    take_over(scene, first, wait_until_stopped(first), may_commit=point == "before_commit")


@fault(row=ROW, must=MUST, seeds=12)
def frozen_in_transaction(scene: Scene) -> None:
    """The same at whatever moment at which the database shows the driver, or one of its tasks, in a transaction."""
    scene.produce(600)
    first = scene.start(records_per_trigger=30)
    first.wait_for("done", scene.random.randint(1, 4))
    seen = wait_until(lambda: in_transaction(scene), timeout=60)
    take_over(scene, first, ", ".join(map(str, seen)), may_commit=True)


# -- two supervisors, each of which keeps the same job running

SUPERVISOR_ROW: Final = "two supervisors restarting one job"
_TARGETS: Final[tuple[Target, ...]] = ("python", "both")
QUIET: Final = 4.0
"""Seconds without a new owner, after which they have settled."""
ALL: Final = 5_000
"""What has piled up in the meantime, in one batch."""


@fault(
    row=SUPERVISOR_ROW,
    must="they settle on one owner, also after that one's death; exactly-once throughout",
    variants=("wait", "refuse"),
    seeds=6,
)
def two_supervisors(scene: Scene) -> None:
    """Two loops start the same job whenever theirs has ended, with takeover="wait" or "refuse"; the owner is killed."""
    scene.expect("GroupBusy")
    settings = {"takeover": scene.variant, "takeover_timeout": scene.random.choice([2.0, 20.0])}
    with scene.producing(30), scene.supervise(**settings) as one, scene.supervise(**settings) as other:
        both = (one, other)
        first = _settled(both)
        target = scene.random.choice(_TARGETS)
        first.kill(target)
        # A dead owner counts as live until its heartbeat is 15 s old.
        wait_until(lambda: _owners(both)[-1].epoch > first.epoch, timeout=90)
        second = _settled(both)
        refused = sum(job.error is not None for loop in both for job in loop.jobs)
        scene.fired(
            f"epoch {first.epoch} owned the group until {target} got SIGKILL, then epoch {second.epoch} did; "
            f"{len(one.jobs)} and {len(other.jobs)} jobs were started, {refused} found the group busy"
        )
    scene.catch_up(20, records_per_trigger=ALL)


@fault(
    row=SUPERVISOR_ROW,
    must="each new owner fences the last one, until one supervisor is left; exactly-once throughout",
    seeds=6,
)
def two_supervisors_that_fence(scene: Scene) -> None:
    """The same with takeover="fence", so that the two fence each other again and again; then one supervisor leaves."""
    scene.expect("StaleClaim")
    with scene.producing(30), scene.supervise() as one:
        with scene.supervise() as other:
            wait_until(
                lambda: sum(job.error is not None for loop in (one, other) for job in loop.jobs) >= 4, timeout=90
            )
        fenced = [job.epoch for loop in (one, other) for job in loop.jobs if job.error is not None]
        scene.fired(f"{len(one.jobs)} and {len(other.jobs)} jobs were started; fenced were the epochs {sorted(fenced)}")
        owner = _settled([one])
        owner.wait_for("done", owner.batches_done + 1)
    scene.catch_up(20, records_per_trigger=ALL)


def _owners(loops: Sequence[Supervisor]) -> list[Job]:
    jobs = [job for loop in loops for job in loop.jobs if job.told("claimed")]
    return sorted(jobs, key=lambda job: job.epoch)


def _settled(loops: Sequence[Supervisor]) -> Job:
    """Wait until one job owns the group, writes, and is left alone."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        owner = wait_until(lambda: (_owners(loops) or [None])[-1], timeout=90)
        assert owner is not None
        owner.wait_for("done")
        time.sleep(QUIET)  # that nothing happens is what is to be seen
        if _owners(loops)[-1] is owner and not owner.has_ended:
            return owner
    raise AssertionError("the two supervisors do not settle")

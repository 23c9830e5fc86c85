"""Two supervisors, each of which keeps the same job running, and neither knows of the other."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final, cast

from tests.faults.chaos.harness.process import Target
from tests.faults.chaos.harness.registry import fault
from tests.faults.chaos.harness.scene import Job, Scene, Supervisor
from tests.support.waiting import wait_until

ROW: Final = "two supervisors restarting one job"
QUIET: Final = 4.0
"""Seconds without a new owner, after which they have settled."""
ALL: Final = 5_000
"""What has piled up in the meantime, in one batch."""


@fault(
    row=ROW,
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
        target = cast("Target", scene.random.choice(["python", "both"]))
        first.kill(target)
        _next_owner(both, first)
        second = _settled(both)
        refused = sum(job.error is not None for loop in both for job in loop.jobs)
        scene.fired(
            f"epoch {first.epoch} owned the group until {target} got SIGKILL, then epoch {second.epoch} did; "
            f"{len(one.jobs)} and {len(other.jobs)} jobs were started, {refused} found the group busy"
        )
    scene.produce(20)
    with scene.supervise(records_per_trigger=ALL):
        scene.caught_up()


@fault(
    row=ROW,
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
    scene.produce(20)
    with scene.supervise(records_per_trigger=ALL):
        scene.caught_up()


def _owners(loops: Sequence[Supervisor]) -> list[Job]:
    jobs = [job for loop in loops for job in loop.jobs if job.told("claimed")]
    return sorted(jobs, key=lambda job: job.epoch)


def _next_owner(loops: Sequence[Supervisor], last: Job) -> None:
    """A dead owner counts as live until its heartbeat is 15 s old."""
    wait_until(lambda: _owners(loops)[-1].epoch > last.epoch, timeout=90)


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

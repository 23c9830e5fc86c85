"""A job that stands still in the middle of a batch is taken over, and goes on when nobody expects it any more."""

from __future__ import annotations

import time
from typing import Any, Final

from tests.faults.chaos.harness.registry import fault
from tests.faults.chaos.harness.scene import Job, Scene
from tests.faults.chaos.means.backends import in_transaction
from tests.faults.chaos.means.freezing import freeze_all, stands, thaw_all
from tests.support.waiting import PATIENCE, wait_until

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

_SECONDS = 30.0
"""So long a claim may take beyond its takeover_timeout."""

_AFTER = """
SELECT topic || '-' || partition, from_offset, to_offset FROM offset_moves
WHERE advanced AND claim_id = '{old}' AND id > (SELECT min(id) FROM offset_moves WHERE claim_id = '{new}')
"""


@fault(row=ROW, must=MUST, variants=tuple(POINTS), seeds=6)
def frozen_at(scene: Scene) -> None:
    """The first driver gets SIGSTOP at a named point of a batch, with Java and all workers; a second one claims and
    runs; the first gets SIGCONT."""
    point = POINTS[scene.variant]
    scene.produce(400)
    first = scene.start(failpoint=f"{point}:{scene.random.randint(1, 3)}:stop")
    reached = first.wait_for("reached", timeout=90)
    # It says so before it stops itself: a SIGSTOP of ours in between would leave its own for after the SIGCONT.
    wait_until(lambda: stands(reached.what["pid"]))
    take_over(scene, first, f"process {reached.what['pid']} at {point}", may_commit=point == "before_commit")


@fault(row=ROW, must=MUST, seeds=12)
def frozen_in_transaction(scene: Scene) -> None:
    """The same at whatever moment at which the database shows the driver, or one of its tasks, in a transaction."""
    scene.produce(600)
    first = scene.start(records_per_trigger=30)
    first.wait_for("done", scene.random.randint(1, 4))
    seen = wait_until(lambda: in_transaction(scene), timeout=60)
    take_over(scene, first, ", ".join(map(str, seen)), may_commit=True)


def take_over(scene: Scene, first: Job, seen: str, *, may_commit: bool, batches: int = 3, **settings: Any) -> Job:
    """Freeze the job, let another claim, and thaw it; return the other one.

    :param may_commit: its next words to the database may be COMMIT, to a connection that the claim has ended.
    :param batches: the other one writes at most so many before the thaw, by chance.
    :param settings: of the other one.
    """
    stopped = freeze_all(first)
    timeout = scene.random.choice([0.5, 2.0])
    begin = time.monotonic()
    second = scene.start(takeover_timeout=timeout, **settings)
    second.wait_for("claimed", timeout=90)
    waited = time.monotonic() - begin
    assert waited < (timeout + _SECONDS) * PATIENCE, f"the claim took {waited:.1f} s"
    scene.fired(f"{stopped}, {seen}; claimed anew in {waited:.1f} s")
    scene.produce(60)
    second.wait_for("done", scene.random.randint(0, batches) or 1)
    thaw_all(first)
    scene.produce(60)
    report = scene.expect_error(first, "StaleClaim", *(["CommitUnknown"] if may_commit else []), timeout=120)
    if report.class_name == "StaleClaim":
        assert second.claim_id in report.text, f"it does not name the owner: {report.text}"
    late = scene.database.rows(_AFTER.format(old=first.claim_id, new=second.claim_id))
    assert not late, f"the first job has written after the second one's claim: {late}"
    scene.caught_up()
    return second

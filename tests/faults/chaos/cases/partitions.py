"""The topic gets more partitions."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from tests.faults.chaos.cases.topics import RESTART
from tests.faults.chaos.harness.registry import fault
from tests.faults.chaos.harness.scene import Job, Scene
from tests.faults.chaos.means.group_offsets import wait_for_the_mirror
from tests.faults.chaos.means.kafka_topics import add_partitions, recreate
from tests.support.waiting import wait_until

ROW: Final = "partitions added"
MUST: Final = "read from their beginning"
STALE_ROW: Final = "stale job meets a new partition"
STALE_MUST: Final = "fenced there too"

QUICK: Final = {"kafka.metadata.max.age.ms": "200"}
# A partition that is new in a topic that the group knows is read from its beginning, whatever a new group would do.
LATEST: Final = {"auto_offset_reset": "latest"}


@fault(row=ROW, must=MUST)
def added_while_running(scene: Scene) -> None:
    """Twice more partitions while the job runs and records keep coming, into the new ones too; then SIGKILL."""
    settings = {"extra": QUICK, "policy": _policy(scene), "records_per_trigger": 200}
    with scene.producing(rate=100), scene.supervise(**settings) as supervisor:
        job = supervisor.job
        for _ in range(2):
            job.wait_for("done", job.batches_done + 1)
            added = add_partitions(scene, scene.random.randint(1, 2))
            scene.produce(20, partition=added[0])
            wait_until(lambda: scene.stored().keys() >= {*added}, timeout=60)  # noqa: B023 - it is over by then
            scene.fired(f"partitions {added} were added under batch {job.batches_done}")
        job.kill("both")
        supervisor.next_job(job)
    scene.produce(60)
    with scene.supervise(**settings):
        scene.caught_up()
    _new_ones_begin_at_0(scene)


@fault(row=ROW, must=MUST)
def added_while_stopped(scene: Scene) -> None:
    """The job is stopped; partitions are added, and filled or left empty; it starts."""
    scene.produce(150)
    job = scene.start(policy=_policy(scene, first=True))
    scene.caught_up()
    job.stop()
    added = add_partitions(scene, scene.random.randint(2, 4))
    scene.produce(150)
    for partition in added[:-1]:
        scene.produce(20, partition=partition)
    scene.fired(f"partitions {added} were added to a stopped job, and end at {scene.ends()}")
    with scene.supervise(policy=_policy(scene)):
        scene.caught_up()
        scene.produce(60)
        scene.caught_up()
    _new_ones_begin_at_0(scene)


@fault(row=ROW, must=MUST, name="added-with-a-stale-row", variants=("running", "stopped"), partitions=5)
def added_with_a_stale_row(scene: Scene) -> None:
    """The topic was recreated with fewer partitions, so that rows of the old ones are left; then they come back."""
    scene.produce(200)
    job = scene.start()
    scene.caught_up()
    job.stop()
    before = scene.stored()
    scene.mirror_watch.is_exempt = True
    recreate(scene, partitions=2)
    scene.produce(100)
    scene.allow("restart")
    vanished = dict.fromkeys(range(2, 5), 0)
    job = scene.start(policy=RESTART, extra=QUICK)
    scene.caught_up(to={**scene.ends(), **vanished})
    wait_for_the_mirror(scene)
    if scene.variant == "stopped":
        job.stop()
    added = add_partitions(scene, scene.random.randint(1, 4))
    stale = {partition: before[partition] for partition in added if partition in before}
    assert all(stale.values()), f"nothing was stored of {added} before: {before}"
    scene.fired(f"partitions {added} came (back), with rows of {stale} before the restart")
    scene.produce(150)
    rest = {partition: 0 for partition in vanished if partition not in added}
    if scene.variant == "running":
        scene.caught_up(to={**scene.ends(), **rest})
        job.stop()
    with scene.supervise():
        scene.produce(50)
        scene.caught_up(to={**scene.ends(), **rest})


@fault(row=STALE_ROW, must=STALE_MUST, seeds=6)
def stale_job_is_the_first_to_see_it(scene: Scene) -> None:
    """A is frozen (SIGSTOP), B claims, and is frozen too; a partition is added; A goes on alone, and meets it."""
    stale, owner = _two_jobs(scene)
    owner.freeze()
    [added] = add_partitions(scene, 1)
    scene.produce(40, partition=added)
    stale.thaw()
    _is_fenced(scene, stale, owner)
    assert added not in scene.stored(), "the stale job has made a row"
    owner.thaw()
    scene.produce(60)
    scene.caught_up()
    _new_ones_begin_at_0(scene)


@fault(row=STALE_ROW, must=STALE_MUST)
def stale_job_comes_to_it_late(scene: Scene) -> None:
    """A is frozen (SIGSTOP) and B claims; a partition is added, and B reads it; A goes on, and meets it."""
    stale, owner = _two_jobs(scene)
    [added] = add_partitions(scene, 1)
    scene.produce(40, partition=added)
    if scene.random.random() < 0.5:
        scene.caught_up()
    stale.thaw()
    _is_fenced(scene, stale, owner)
    scene.produce(60)
    scene.caught_up()
    _new_ones_begin_at_0(scene)


def _two_jobs(scene: Scene) -> tuple[Job, Job]:
    """One that has read all, and was frozen; and one that has claimed the group since."""
    scene.produce(100)
    stale = scene.start(extra=QUICK)
    scene.caught_up()
    stale.freeze()
    owner = scene.start(extra=QUICK, takeover_timeout=1.0)
    # From then on Spark knows where it begins; before, a partition that the claim has not named is refused.
    began = f"*/{owner.epoch}-{owner.claim_id}/sources/0/0"
    wait_until(lambda: [*Path(scene.checkpoints).glob(began)], timeout=60)
    return stale, owner


def _is_fenced(scene: Scene, stale: Job, owner: Job) -> None:
    report = scene.expect_error(stale, "StaleClaim")
    assert owner.claim_id in report.text, report.text
    since = owner.wait_for("claimed").at
    met = [ranges for event in stale.told("begun") if (ranges := event.what["ranges"]) and event.at > since]
    new = f"{scene.topic}-{scene.partitions - 1}"
    assert any(new in ranges for ranges in met), f"the stale job did not come to {new}: {met}"
    scene.fired(f"job {stale.pid} met {new} at {met[-1]}, and ended: {report.class_name}, found {report.found}")


def _policy(scene: Scene, *, first: bool = False) -> dict[str, Any]:
    return LATEST if scene.seed % 2 and not first else {}


def _new_ones_begin_at_0(scene: Scene) -> None:
    begun = scene.database.rows(
        "SELECT DISTINCT ON (partition) partition, to_offset FROM offset_history "
        "WHERE partition > 2 ORDER BY partition, id"
    )
    assert begun, "no partition was added"
    assert all(offset == 0 for _, offset in begun), f"not read from the beginning: {begun}"

"""The topic is deleted, and another one of its name is created."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Final

from tests.faults.chaos.cases.logs import SPARK_ERRORS
from tests.faults.chaos.harness.registry import fault
from tests.faults.chaos.harness.scene import Job, Scene
from tests.faults.chaos.means.kafka import add_partitions, recreate, wait_for_the_mirror
from tests.support.waiting import wait_until

ROW: Final = "topic recreated, shorter and longer, between runs and in mid run"
MUST: Final = "TopicRecreated, nothing of the new log lost"
LENGTHS: Final = {"shorter": 40, "longer": 700}
OLD: Final = 300
RESTART: Final = {"on_recreated": "restart"}


@fault(row=ROW, must=MUST, variants=tuple(LENGTHS))
def recreated_between_runs(scene: Scene) -> None:
    """The job is stopped; the topic is deleted, created, and filled with fewer or more records; it starts."""
    scene.run_once(OLD)
    _recreate(scene)
    _refused_then_restarted(scene)


@fault(row=ROW, must=MUST, variants=tuple(LENGTHS))
def recreated_under_an_idle_job(scene: Scene) -> None:
    """The job has read all and waits for more (SIGSTOP); the topic is deleted, created and filled; it goes on."""
    scene.produce(OLD)
    job = scene.start(extra={"kafka.metadata.max.age.ms": "200"})
    scene.caught_up()
    before = scene.stored()
    job.freeze()
    _recreate(scene)
    job.thaw()
    _ends_by_itself(scene, job)
    assert scene.stored() == before, "a batch of the new log was written"
    _refused_then_restarted(scene)


# Where each partition has a transaction of its own, tasks write while they read (docs/decisions/0017).
@fault(row=ROW, must=MUST, variants=tuple(LENGTHS), ways=("batch",))
def recreated_in_mid_batch(scene: Scene) -> None:
    """The job is stopped (SIGSTOP) at a random moment of a backlog; the topic is recreated under it; it goes on."""
    scene.produce(OLD)
    job = scene.start(records_per_trigger=30)
    job.wait_for("begun", scene.random.randint(2, 5))
    time.sleep(scene.random.uniform(0, 0.3))
    job.freeze()
    assert scene.stored() != scene.ends(), "the job was too quick"
    _recreate(scene)
    job.thaw()
    _ends_by_itself(scene, job)
    _refused_then_restarted(scene)


@fault(row=ROW, must=MUST, ways=("batch",), seeds=6)
def recreated_while_all_goes_on(scene: Scene) -> None:
    """Under a supervised job with a backlog the topic is deleted, and later created, with more or fewer partitions."""
    scene.produce(OLD)
    scene.expect("TopicMissing", "TopicRecreated", *SPARK_ERRORS)
    # A partition that is gone is not waited for.
    with scene.supervise(records_per_trigger=30, extra={"kafkaConsumer.pollTimeoutMs": "5000"}) as supervisor:
        supervisor.job.wait_for("done", scene.random.randint(1, 3))
        scene.mirror_watch.is_exempt = True
        stored = scene.stored()
        assert stored != scene.ends()
        recreate(scene, partitions=scene.random.randint(2, 5), pause=scene.random.uniform(0, 3))
        scene.produce(scene.random.choice([*LENGTHS.values()]))
        wait_until(lambda: any(job.error and job.error.class_name == "TopicRecreated" for job in supervisor.jobs),
                   timeout=90)  # fmt: skip
        scene.fired(f"stored {stored}; recreated with the ends {scene.ends()}")
        scene.allow("restart")
        supervisor.settings["policy"] = RESTART
        scene.caught_up(to=_with_vanished(scene))
        wait_for_the_mirror(scene)


def _recreate(scene: Scene) -> None:
    scene.mirror_watch.is_exempt = True
    before = scene.stored()
    recreate(scene)
    scene.produce(LENGTHS[scene.variant])
    ends = scene.ends()
    if scene.variant == "longer":
        assert all(ends[partition] > before[partition] for partition in ends), f"{before}, {ends}"
    scene.fired(f"stored {before}; the topic was deleted and created, and ends at {ends}")


def _ends_by_itself(scene: Scene, job: Job) -> None:
    """By our error or by Spark's, according to who is the first to see it."""
    scene.expect("TopicRecreated", *SPARK_ERRORS)
    job.wait_for("failed")
    job.wait_for("ended")


def _refused_then_restarted(scene: Scene) -> None:
    before = scene.stored()
    report = scene.refused("TopicRecreated")
    assert "on_recreated" in report.next_step
    assert scene.stored() == before
    scene.allow("restart")
    with scene.supervise(policy=RESTART) as supervisor:
        scene.produce(60)
        supervisor.job.wait_for("claimed")
        supervisor.settings["policy"] = {}
        scene.caught_up(to=_with_vanished(scene))
        wait_for_the_mirror(scene)
    # From then on the log is known: no further word is needed.
    scene.catch_up(30, to=lambda: _with_vanished(scene))


def _with_vanished(scene: Scene) -> dict[int, int]:
    """The logs' ends, and 0 for the rows of partitions that are gone."""
    return {**dict.fromkeys(scene.stored(), 0), **scene.ends()}


# -- the topic gets more partitions

ADDED_ROW: Final = "partitions added"
ADDED_MUST: Final = "read from their beginning"
STALE_ROW: Final = "stale job meets a new partition"
STALE_MUST: Final = "fenced there too"

QUICK: Final = {"kafka.metadata.max.age.ms": "200"}
# A partition that is new in a topic that the group knows is read from its beginning, whatever a new group would do.
LATEST: Final = {"auto_offset_reset": "latest"}


@fault(row=ADDED_ROW, must=ADDED_MUST)
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
        supervisor.kill("both")
    scene.catch_up(60, **settings)
    _new_ones_begin_at_0(scene)


@fault(row=ADDED_ROW, must=ADDED_MUST)
def added_while_stopped(scene: Scene) -> None:
    """The job is stopped; partitions are added, and filled or left empty; it starts."""
    scene.run_once(150)
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


@fault(row=ADDED_ROW, must=ADDED_MUST, variants=("running", "stopped"), partitions=5)
def added_with_a_stale_row(scene: Scene) -> None:
    """The topic was recreated with fewer partitions, so that rows of the old ones are left; then they come back."""
    before = scene.run_once(200)
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
    scene.catch_up(50, to=lambda: {**scene.ends(), **rest})


@fault(row=STALE_ROW, must=STALE_MUST, seeds=6)
def stale_job_is_the_first_to_see_it(scene: Scene) -> None:
    """A is frozen (SIGSTOP), B claims, and is frozen too; a partition is added; A goes on alone, and meets it."""
    _meet_a_new_partition(scene, is_first=True)


@fault(row=STALE_ROW, must=STALE_MUST)
def stale_job_comes_to_it_late(scene: Scene) -> None:
    """A is frozen (SIGSTOP) and B claims; a partition is added, and B reads it; A goes on, and meets it."""
    _meet_a_new_partition(scene, is_first=False)


def _meet_a_new_partition(scene: Scene, *, is_first: bool) -> None:
    stale, owner = _two_jobs(scene)
    if is_first:
        owner.freeze()
    [added] = add_partitions(scene, 1)
    scene.produce(40, partition=added)
    if not is_first and scene.random.random() < 0.5:
        scene.caught_up()
    stale.thaw()
    _is_fenced(scene, stale, owner)
    if is_first:
        assert added not in scene.stored(), "the stale job has made a row"
        owner.thaw()
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


def _policy(scene: Scene) -> dict[str, Any]:
    return LATEST if scene.seed % 2 else {}


def _new_ones_begin_at_0(scene: Scene) -> None:
    begun = scene.database.rows(
        "SELECT DISTINCT ON (partition) partition, to_offset FROM offset_history "
        "WHERE partition > 2 ORDER BY partition, id"
    )
    assert begun, "no partition was added"
    assert all(offset == 0 for _, offset in begun), f"not read from the beginning: {begun}"

"""The topic is deleted, and another one of its name is created."""

from __future__ import annotations

import time
from typing import Final

from tests.faults.chaos.cases.logs import SPARK_ERRORS
from tests.faults.chaos.harness.registry import fault
from tests.faults.chaos.harness.scene import Job, Scene
from tests.faults.chaos.means.group_offsets import wait_for_the_mirror
from tests.faults.chaos.means.kafka_topics import recreate
from tests.support.waiting import wait_until

ROW: Final = "topic recreated, shorter and longer, between runs and in mid run"
MUST: Final = "TopicRecreated, nothing of the new log lost"
LENGTHS: Final = {"shorter": 40, "longer": 700}
OLD: Final = 300
RESTART: Final = {"on_recreated": "restart"}


@fault(row=ROW, must=MUST, variants=tuple(LENGTHS))
def recreated_between_runs(scene: Scene) -> None:
    """The job is stopped; the topic is deleted, created, and filled with fewer or more records; it starts."""
    scene.produce(OLD)
    job = scene.start()
    scene.caught_up()
    job.stop()
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
    report = scene.expect_error(scene.start(), "TopicRecreated")
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
    with scene.supervise():
        scene.produce(30)
        scene.caught_up(to=_with_vanished(scene))


def _with_vanished(scene: Scene) -> dict[int, int]:
    """The logs' ends, and 0 for the rows of partitions that are gone."""
    return {**dict.fromkeys(scene.stored(), 0), **scene.ends()}

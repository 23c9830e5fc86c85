"""Kafka dies: the only broker, or the leader of a partition."""

from __future__ import annotations

import time
from typing import Final

from tests.faults.chaos.harness.registry import fault
from tests.faults.chaos.harness.scene import Scene
from tests.faults.chaos.means.kafka_cluster import KafkaCluster
from tests.support.waiting import wait_until

ROW: Final = "broker killed, three brokers and a leader killed"
MUST: Final = "batch retried, nothing skipped"
# A job gives up within some seconds.
IMPATIENT: Final = {
    "kafkaConsumer.pollTimeoutMs": "5000",
    "kafka.request.timeout.ms": "4000",
    "kafka.default.api.timeout.ms": "5000",
}
# What a job that does not get through may end with; and Spark's own.
ERRORS: Final = ("BrokerUnavailable", "StreamingQueryException", "SparkException", "SinkError")


@fault(row=ROW, must=MUST)
def broker_killed(scene: Scene) -> None:
    """The broker gets SIGKILL while batches are written and records produced, and starts at once; twice."""
    scene.expect(*ERRORS)
    with scene.producing(rate=100), scene.supervise(records_per_trigger=200) as supervisor:
        for _ in range(2):
            _wait_for_progress(scene)
            time.sleep(scene.random.uniform(0, 0.7))
            _kill(scene, f"under batch {supervisor.job.batches_done}")
            time.sleep(scene.random.uniform(0, 2))
            scene.kafka.start()
            _wait_for_progress(scene)
    scene.produce(60)
    with scene.supervise(records_per_trigger=400):
        scene.caught_up()


@fault(row=ROW, must=MUST)
def broker_away(scene: Scene) -> None:
    """The broker gets SIGKILL in the middle of a backlog, and starts when the job and its successor have given up."""
    scene.expect(*ERRORS)
    scene.produce(300)
    with scene.supervise(extra=IMPATIENT, records_per_trigger=30) as supervisor:
        job = supervisor.job
        job.wait_for("begun", scene.random.randint(1, 4))
        assert scene.stored() != scene.ends(), "the job was too quick"
        _kill(scene, f"under batch {job.batches_done}")
        wait_until(lambda: job.has_ended, timeout=90)
        successor = supervisor.next_job(job)
        wait_until(lambda: successor.has_ended, timeout=90)
        assert not successor.told("claimed"), "a group was claimed without Kafka"
        scene.kafka.start()
        scene.produce(60)
        scene.caught_up()


@fault(row=ROW, must=MUST, seeds=6)
def leader_killed(scene: Scene) -> None:
    """Three brokers, three replicas; the leader of a partition gets SIGKILL while batches are written, and the job goes
    on without it; then it comes back, and another one dies."""  # fmt: skip
    cluster = scene.at_end.enter_context(KafkaCluster())
    cluster.create_topic(scene.topic, partitions=scene.partitions)
    scene.use_kafka(cluster.servers)
    scene.expect(*ERRORS)
    scene.produce(200)
    with scene.producing(rate=100), scene.supervise(records_per_trigger=200):
        for _ in range(2):
            _wait_for_progress(scene)
            time.sleep(scene.random.uniform(0, 0.7))
            partition = scene.random.randrange(scene.partitions)
            leader = cluster.leaders(scene.topic)[partition]
            victim = cluster.brokers[leader]
            pid, stored = victim.pid, scene.stored()
            victim.kill()
            wait_until(lambda: cluster.leaders(scene.topic)[partition] not in {leader, -1}, timeout=60)  # noqa: B023
            now = cluster.leaders(scene.topic)
            scene.fired(
                f"broker {leader} (process {pid}), leader of partition {partition}, got SIGKILL; stored {stored}, "
                f"leaders {now}"
            )
            _wait_for_progress(scene)
            victim.start()
            cluster.wait_until_in_sync(scene.topic)
    scene.produce(60)
    with scene.supervise(records_per_trigger=400):
        scene.caught_up()


def _wait_for_progress(scene: Scene) -> None:
    """Wait until a stored offset has moved, by whichever job."""
    at = scene.stored()
    wait_until(lambda: any(offset > at.get(number, 0) for number, offset in scene.stored().items()), timeout=150)


def _kill(scene: Scene, when: str) -> None:
    pid, stored = scene.kafka.pid, scene.stored()
    assert pid is not None
    scene.kafka.kill()
    scene.fired(f"broker {pid} got SIGKILL {when}, stored {stored}")

"""Kafka dies: the only broker, or the leader of a partition."""

from __future__ import annotations

import random
import shutil
import tempfile
import time
from base64 import urlsafe_b64encode
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Self
from uuid import uuid4

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from offsetstore.kafka import admin
from offsetstore.local.kafka import KafkaBroker
from offsetstore.local.kafka_properties import KafkaPorts, SaslUser, server_properties
from offsetstore.local.servers import LOOPBACK, free_port
from tests.faults.chaos.harness.registry import fault
from tests.faults.chaos.harness.scene import Scene
from tests.support.slow_proxy import FINE, SlowProxy, Weather
from tests.support.tcp import server_of, url_at
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

_NODES = (1, 2, 3)
_HEAP = "320m"
_START_SECONDS = 180
_SECONDS = 30


class KafkaCluster:
    """Every topic is on all three, and a record counts as written when two have it; a context manager."""

    def __init__(self) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="offsetstore-cluster-"))
        ports = _ports()
        voters = ",".join(f"{node}@{LOOPBACK}:{ports[node].controller}" for node in _NODES)
        self.brokers = {node: _broker(node, self._directory / str(node), ports[node], voters) for node in _NODES}
        _format(self._directory)

    def __enter__(self) -> Self:
        try:
            # Together: none of them is ready before two are there to choose a controller.
            with ThreadPoolExecutor(len(_NODES)) as threads:
                list(threads.map(KafkaBroker.start, self.brokers.values()))
            wait_until(lambda: len(self._admin.list_topics(timeout=_SECONDS).brokers) == len(_NODES), timeout=60)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, kind: object = None, *_: object) -> None:
        for broker in self.brokers.values():
            broker.kill()  # nobody reads its data again
            broker.close()
        shutil.rmtree(self._directory, ignore_errors=True)

    @property
    def servers(self) -> str:
        return ",".join(broker.bootstrap_servers for broker in self.brokers.values())

    def create_topic(self, topic: str, *, partitions: int) -> None:
        new = NewTopic(topic, partitions, len(_NODES), config={"min.insync.replicas": "2"})
        self._admin.create_topics([new])[topic].result(_SECONDS)
        wait_until(lambda: self._in_sync(topic) == [len(_NODES)] * partitions, timeout=60)

    def leaders(self, topic: str) -> dict[int, int]:
        found = self._admin.list_topics(topic, timeout=_SECONDS).topics[topic].partitions
        return {number: partition.leader for number, partition in sorted(found.items())}

    def wait_until_in_sync(self, topic: str) -> None:
        wait_until(lambda: {*self._in_sync(topic)} == {len(_NODES)}, timeout=90)

    def _in_sync(self, topic: str) -> list[int]:
        found = self._admin.list_topics(topic, timeout=_SECONDS).topics
        return [len(partition.isrs) for partition in found[topic].partitions.values()] if topic in found else []

    @cached_property
    def _admin(self) -> Any:
        return AdminClient({"bootstrap.servers": self.servers, "log_level": 0})


def _ports() -> dict[int, KafkaPorts]:
    while True:
        chosen = {node: KafkaPorts.free() for node in _NODES}
        if len({port for ports in chosen.values() for port in ports[:3]}) == len(_NODES) * 3:
            return chosen


def _broker(node: int, directory: Path, ports: KafkaPorts, voters: str) -> KafkaBroker:
    settings = {
        "node.id": str(node),
        "controller.quorum.voters": voters,
        "default.replication.factor": "3",
        "min.insync.replicas": "2",
        "offsets.topic.replication.factor": "3",
        "transaction.state.log.replication.factor": "3",
        "transaction.state.log.min.isr": "2",
        # A dead broker is noticed soon, and a dead controller replaced.
        "replica.lag.time.max.ms": "3000",
        "controller.quorum.election.timeout.ms": "1000",
        "controller.quorum.fetch.timeout.ms": "3000",
    }
    return KafkaBroker(directory=directory, ports=ports, heap=_HEAP, settings=settings, start_seconds=_START_SECONDS)


def _format(directory: Path) -> None:
    """What ``StorageTool format`` writes, for all three of them with the same cluster id."""
    cluster = _id()
    for node in _NODES:
        data = directory / str(node) / "data"
        data.mkdir(parents=True)
        written = {"version": "1", "cluster.id": cluster, "node.id": str(node), "directory.id": _id()}
        (data / "meta.properties").write_text("".join(f"{name}={value}\n" for name, value in written.items()))


def _id() -> str:
    return urlsafe_b64encode(uuid4().bytes).decode().rstrip("=").replace("-", "A")


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
    scene.catch_up(60, records_per_trigger=400)


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
    scene.catch_up(60, records_per_trigger=400)


def _wait_for_progress(scene: Scene) -> None:
    at = scene.stored()
    wait_until(lambda: any(offset > at.get(number, 0) for number, offset in scene.stored().items()), timeout=150)


def _kill(scene: Scene, when: str) -> None:
    pid, stored = scene.kafka.pid, scene.stored()
    assert pid is not None
    scene.kafka.kill()
    scene.fired(f"broker {pid} got SIGKILL {when}, stored {stored}")


# -- the network is bad

NETWORK_ROW: Final = "slow, lossy network"
NETWORK_MUST: Final = "I8: the job catches up"


def _slow(dice: random.Random) -> Weather:
    return Weather(dice.uniform(0.005, 0.02), piece=dice.randint(20, 400), pause=0.01, pause_seconds=0.5)


def _lossy(dice: random.Random) -> Weather:
    return Weather(0.002, dice.randint(100, 1400), pause=0.02, pause_seconds=dice.uniform(0.5, 2), reset=0.02)


@contextmanager
def slow_kafka(dice: random.Random) -> Generator[tuple[KafkaBroker, SlowProxy]]:
    """Start a broker of its own that has one listener more. Whoever asks the proxy is always sent to the proxy."""
    ports = KafkaPorts.free()
    behind = free_port()
    with SlowProxy((LOOPBACK, behind), dice) as proxy:
        own = server_properties(ports, SaslUser(), Path())
        settings = {
            "listeners": f"{own['listeners']},SLOW://{LOOPBACK}:{behind}",
            "advertised.listeners": f"{own['advertised.listeners']},SLOW://{LOOPBACK}:{proxy.port}",
            "listener.security.protocol.map": f"{own['listener.security.protocol.map']},SLOW:PLAINTEXT",
        }
        with KafkaBroker(ports=ports, settings=settings, heap="384m") as broker:
            yield broker, proxy


@fault(row=NETWORK_ROW, must=NETWORK_MUST, variants=("slow", "lossy"), seeds=6)
def network_to_the_database(scene: Scene) -> None:
    """A proxy before PostgreSQL delivers late, in small packets and with pauses; when lossy, it resets connections as
    well, until the weather is fine again."""
    scene.expect("TransactionLost", "StoreUnavailable")
    with SlowProxy(server_of(scene.url), scene.random) as proxy:
        _run_in_bad_weather(scene, proxy, url=url_at(scene.url, proxy.port), timeouts={"commit": 10.0})


@fault(row=NETWORK_ROW, must=NETWORK_MUST, variants=("slow", "lossy"), seeds=3)
def network_to_kafka(scene: Scene) -> None:
    """A proxy before Kafka (whose listener advertises it) delivers late, in small packets and with pauses; when lossy,
    it resets connections as well, until the weather is fine again."""
    broker, proxy = scene.at_end.enter_context(slow_kafka(scene.random))
    admin.create_topic(broker.bootstrap_servers, scene.topic, partitions=scene.partitions)
    scene.use_kafka(broker.bootstrap_servers)
    scene.expect("BrokerUnavailable")
    _run_in_bad_weather(scene, proxy, servers=f"127.0.0.1:{proxy.port}")


def _run_in_bad_weather(scene: Scene, proxy: SlowProxy, **settings: object) -> None:
    scene.produce(100)
    with scene.supervise(**settings) as supervisor:
        supervisor.job.wait_for("done")
        proxy.weather = _slow(scene.random) if scene.variant == "slow" else _lossy(scene.random)
        proxy.happened.clear()
        with scene.producing(rate=100):
            time.sleep(scene.random.uniform(4, 8))
            if scene.variant == "lossy":
                proxy.happened["resets"] += proxy.reset_all()
        scene.fired(f"{proxy.weather}: {dict(proxy.happened)}; {len(supervisor.jobs)} jobs so far")
        assert proxy.happened["pieces"]
        if scene.variant == "lossy":
            assert proxy.happened["resets"]
            proxy.weather = FINE
        scene.caught_up()

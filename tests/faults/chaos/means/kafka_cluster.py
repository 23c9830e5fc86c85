"""Three brokers of one cluster, each of them also a controller: any one may die."""

from __future__ import annotations

import shutil
import tempfile
from base64 import urlsafe_b64encode
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from uuid import uuid4

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from offsetstore.local.free_ports import LOOPBACK
from offsetstore.local.kafka.properties import KafkaPorts
from offsetstore.local.kafka.server import KafkaBroker
from tests.support.waiting import wait_until

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
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for broker in self.brokers.values():
            broker.kill()  # nobody reads its data again
            broker.close()
        shutil.rmtree(self._directory, ignore_errors=True)

    @property
    def servers(self) -> str:
        """All three."""
        return ",".join(broker.bootstrap_servers for broker in self.brokers.values())

    def create_topic(self, topic: str, *, partitions: int) -> None:
        """Create a topic, and wait until each partition is on all three."""
        new = NewTopic(topic, partitions, len(_NODES), config={"min.insync.replicas": "2"})
        self._admin.create_topics([new])[topic].result(_SECONDS)
        wait_until(lambda: self._in_sync(topic) == [len(_NODES)] * partitions, timeout=60)

    def leaders(self, topic: str) -> dict[int, int]:
        """Which broker leads each partition; -1 for none."""
        found = self._admin.list_topics(topic, timeout=_SECONDS).topics[topic].partitions
        return {number: partition.leader for number, partition in sorted(found.items())}

    def wait_until_in_sync(self, topic: str) -> None:
        """Wait until all three have all of it."""
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

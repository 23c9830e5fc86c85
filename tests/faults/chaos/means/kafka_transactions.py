"""A producer's transactions: committed, aborted, left open."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from tests.faults.chaos.harness.ledger import flush, producer
from tests.faults.chaos.harness.scene import Scene
from tests.faults.chaos.means.kafka_topics import high_watermarks
from tests.support.waiting import wait_until

_SECONDS = 30


class Transactions:
    """One transactional producer, whose records are entered into the run's ledger if readers will see them.

    :param sees_all: whether the job reads uncommitted records too.
    :param timeout: seconds after which Kafka ends a transaction by itself.
    """

    def __init__(self, scene: Scene, *, sees_all: bool, timeout: float = 300) -> None:
        self._scene = scene
        self._sees_all = sees_all
        self._client: Any = producer(
            scene.servers,
            transactional_id=f"fault-{uuid4()}",
            transaction_timeout_ms=int(timeout * 1000),
            message_timeout_ms=int(min(timeout, 60) * 1000),
        )
        self._client.init_transactions(_SECONDS)
        self._touched: set[int] = set()

    def write(self, count: int, *, commits: bool) -> None:
        """Write records to random partitions, in one transaction, and end it."""
        self.begin(count, commits=commits)
        self.end(commits=commits)

    def begin(self, count: int, *, commits: bool) -> None:
        """Write records in a transaction, all of which Kafka has acknowledged, and leave it open.

        :param commits: how it is going to end.
        """
        scene = self._scene
        self._client.begin_transaction()
        self._touched.clear()
        for number in range(count):
            partition = number if number < scene.partitions else scene.random.randrange(scene.partitions)
            self._touched.add(partition)
            scene.ledger.send(self._client, scene.topic, partition, kept=commits or self._sees_all)
        flush(self._client)

    def end(self, *, commits: bool) -> None:
        """Commit or abort; return when the logs have the markers, which Kafka writes after it has answered."""
        scene = self._scene
        before = high_watermarks(scene.servers, scene.topic)
        if commits:
            self._client.commit_transaction(_SECONDS)
        else:
            self._client.abort_transaction(_SECONDS)

        def marked() -> bool:
            ends = high_watermarks(scene.servers, scene.topic)
            return all(ends[partition] > before[partition] for partition in self._touched)

        wait_until(marked)

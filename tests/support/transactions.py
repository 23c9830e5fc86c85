"""Kafka's own transactions and compaction, which leave holes among a log's offsets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any
from uuid import uuid4

from confluent_kafka import Consumer, IsolationLevel, Producer, TopicPartition
from confluent_kafka import admin as kafka_admin

from tests.support.waiting import wait_until

_SECONDS = 30


class TransactionalProducer:
    """Writes to one partition, each batch in a transaction. A transaction's marker takes up an offset too.

    Kafka answers before it writes the marker, without which the transaction is still open for readers: it is waited
    for.
    """

    def __init__(self, servers: str, topic: str, *, partition: int = 0) -> None:
        self._producer = Producer({"bootstrap.servers": servers, "transactional.id": f"test-{uuid4()}", "log_level": 0})
        self._producer.init_transactions(_SECONDS)
        self._api: Any = kafka_admin
        self._admin = self._api.AdminClient({"bootstrap.servers": servers, "log_level": 0})
        self._topic = topic
        self._partition = partition

    def commit(self, values: Iterable[str]) -> None:
        """Write the values so that everybody reads them."""
        self._write(values)
        self._producer.commit_transaction(_SECONDS)
        self._wait_for_marker()

    def abort(self, values: Iterable[str]) -> None:
        """Write the values so that who reads committed records alone does not read them."""
        self._write(values)
        self._producer.abort_transaction(_SECONDS)
        self._wait_for_marker()

    def _write(self, values: Iterable[str]) -> None:
        self._producer.begin_transaction()
        for value in values:
            self._producer.produce(self._topic, value.encode(), partition=self._partition)
        self._producer.flush(_SECONDS)

    def _wait_for_marker(self) -> None:
        wait_until(lambda: self._end(IsolationLevel.READ_COMMITTED) == self._end(IsolationLevel.READ_UNCOMMITTED))

    def _end(self, level: IsolationLevel) -> int:
        asked = {TopicPartition(self._topic, self._partition): self._api.OffsetSpec.latest()}
        [found] = self._admin.list_offsets(asked, isolation_level=level).values()
        return found.result(_SECONDS).offset


def hurry_the_log_cleaner(servers: str) -> None:
    """Let the broker look every 100 ms, instead of every 15 s, for a log to compact."""
    api: Any = kafka_admin
    admin = api.AdminClient({"bootstrap.servers": servers})
    [node] = admin.list_topics(timeout=_SECONDS).brokers
    setting = api.ConfigEntry("log.cleaner.backoff.ms", "100", incremental_operation=api.AlterConfigOpType.SET)
    resource = api.ConfigResource(api.ConfigResource.Type.BROKER, str(node), incremental_configs=[setting])
    admin.incremental_alter_configs([resource])[resource].result(_SECONDS)


def wait_until_compacted(servers: str, topic: str, *, records: int) -> list[int]:
    """Wait until at most so many records are left in partition 0, and return their offsets."""

    def left() -> list[int]:
        found = list(_offsets(servers, topic))
        return found if len(found) <= records else []

    return wait_until(left, timeout=60)


def _offsets(servers: str, topic: str) -> Iterator[int]:
    consumer = Consumer({
        "bootstrap.servers": servers, "group.id": f"test-{uuid4()}", "enable.auto.commit": False, "log_level": 0
    })  # fmt: skip
    try:
        start = TopicPartition(topic, 0, 0)
        _, end = consumer.get_watermark_offsets(start, timeout=_SECONDS)
        consumer.assign([start])
        offset = -1
        while offset < end - 1:  # the newest record is never compacted away
            message = consumer.poll(_SECONDS)
            assert message is not None, "Kafka is silent"
            assert message.error() is None, message.error()
            offset = message.offset() or 0
            yield offset
    finally:
        consumer.close()

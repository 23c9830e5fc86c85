"""Kafka's own transactions, which leave holes among a log's offsets."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from uuid import uuid4

from confluent_kafka import IsolationLevel, Producer, TopicPartition
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

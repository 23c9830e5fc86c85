"""Rows of the outbox, what readers of Kafka see of them, and a relay as a process of its own.

``python -m tests.support.outbox URL SERVERS ANCHOR MOST``, from the top of the checkout, brings out what is there.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

import confluent_kafka as ck

from offsetstore import Broker, OffsetStore, Relay
from offsetstore.protocol.outbox import OutboxRecord


def put(store: OffsetStore, records: Sequence[OutboxRecord]) -> None:
    """Write them in one transaction of a job."""
    claim = store.claim("billing", topics=["payments"])
    with store.transaction(claim) as tx:
        tx.lock({})
        tx.produce_all(records)
    claim.close()


def numbered(topic: str, numbers: Sequence[int], *, keys: int = 3) -> list[OutboxRecord]:
    """Records with these numbers as values, each for one of some keys."""
    return [OutboxRecord(topic, f"key {number % keys}".encode(), str(number).encode()) for number in numbers]


def read(servers: str, topic: str) -> list[ck.Message]:
    """All that a ``read_committed`` reader gets, partition by partition.

    :raises AssertionError: an open transaction hides the end of a log.
    """
    consumer = ck.Consumer({
        "bootstrap.servers": servers,
        "group.id": "readers",
        "isolation.level": "read_committed",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "earliest",
        "log_level": 0,
    })  # fmt: skip
    try:
        partitions = consumer.list_topics(topic, timeout=30).topics[topic].partitions
        consumer.assign([ck.TopicPartition(topic, number, 0) for number in partitions])
        found: list[ck.Message] = []
        at_end: set[int | None] = set()
        while len(at_end) < len(partitions):
            message = consumer.poll(30)
            assert message is not None, "no end of the log: a transaction is open"
            error = message.error()
            if error is None:
                found.append(message)
            else:
                assert error.code() == ck.KafkaError._PARTITION_EOF, error
                at_end.add(message.partition())
        for number in partitions:
            high = _high_watermark(consumer, topic, number)
            [position] = consumer.position([ck.TopicPartition(topic, number)])
            assert position.offset in {high, -1001}, f"partition {number}: {position.offset} of {high}"
    finally:
        consumer.close()
    return found


def _high_watermark(consumer: ck.Consumer, topic: str, number: int) -> int:
    """Where the log ends; of a new topic, the leader may not know yet that it leads."""
    end = time.monotonic() + 30
    while True:
        try:
            return consumer.get_watermark_offsets(ck.TopicPartition(topic, number), timeout=30)[1]
        except ck.KafkaException as error:
            if error.args[0].code() != ck.KafkaError.NOT_LEADER_FOR_PARTITION or time.monotonic() > end:
                raise
        time.sleep(0.1)


def values(servers: str, topic: str) -> list[int]:
    """The numbers that `numbered` has written, partition by partition."""
    return [int(message.value() or b"") for message in read(servers, topic)]


def by_key(servers: str, topic: str) -> dict[bytes, list[int]]:
    """The same, by key, in order."""
    found: dict[bytes, list[int]] = {}
    for message in read(servers, topic):
        key = message.key()
        assert isinstance(key, bytes)
        found.setdefault(key, []).append(int(message.value() or b""))
    return found


def _main(url: str, servers: str, anchor: str, most: str) -> None:
    broker = Broker({"bootstrap.servers": servers})
    with OffsetStore.connect(url) as store:
        Relay(store, broker, anchor=anchor, most=int(most)).drain()


if __name__ == "__main__":
    _main(*sys.argv[1:])

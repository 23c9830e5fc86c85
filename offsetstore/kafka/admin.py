"""Create topics, produce records and read them back: for first steps, tests and the demo, not for an application."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions, NewTopic

from offsetstore.errors import BrokerUnavailable
from offsetstore.kafka.errors import Doing, broker_error

__all__ = [
    "NewRecord",
    "create_partitions",
    "create_topic",
    "delete_records",
    "delete_topic",
    "produce",
    "read_committed",
]

_SECONDS = 30.0
_LOOK_SECONDS = 0.02
_QUIET = {"log_level": 0}  # what matters is raised; librdkafka would also write it to stderr
_ANY_PARTITION = -1
_NOW = 0


@dataclass(frozen=True, slots=True)
class NewRecord:
    """One record to produce. By default the key chooses the partition, and the timestamp is now."""

    value: bytes | None
    _: KW_ONLY
    key: bytes | None = None
    partition: int = _ANY_PARTITION
    timestamp_ms: int = _NOW
    headers: tuple[tuple[str, bytes], ...] = ()


def create_topic(
    bootstrap_servers: str, topic: str, *, partitions: int = 1, config: Mapping[str, str] | None = None
) -> None:
    """Create a topic, and wait until each of its partitions has a leader.

    :param config: the topic's own settings, such as ``{"cleanup.policy": "compact"}``.
    :raises BrokerRefused: it exists, or the name or a setting is invalid.
    :raises BrokerUnavailable: no answer.
    """
    admin = _admin(bootstrap_servers)
    new = NewTopic(topic, num_partitions=partitions, replication_factor=1, config=dict(config or {}))
    _wait(admin.create_topics([new])[topic], f"creating topic {topic}")
    _wait_for_leaders(admin, topic, partitions)


def delete_topic(bootstrap_servers: str, topic: str) -> None:
    """Delete a topic, and wait until it is gone, so that one of the same name can be created.

    :raises BrokerRefused: there is no such topic.
    :raises BrokerUnavailable: no answer.
    """
    admin = _admin(bootstrap_servers)
    _wait(admin.delete_topics([topic])[topic], f"deleting topic {topic}")
    deadline = time.monotonic() + _SECONDS
    while topic in admin.list_topics(timeout=_SECONDS).topics:
        _look_again(deadline, f"topic {topic} is still there")


def create_partitions(bootstrap_servers: str, topic: str, *, total: int) -> None:
    """Give a topic more partitions, up to ``total``, and wait until each has a leader.

    :raises BrokerRefused: there is no such topic, or it already has that many.
    :raises BrokerUnavailable: no answer.
    """
    admin = _admin(bootstrap_servers)
    _wait(admin.create_partitions([NewPartitions(topic, total)])[topic], f"adding partitions to topic {topic}")
    _wait_for_leaders(admin, topic, total)


def delete_records(bootstrap_servers: str, topic: str, before: Mapping[int, int]) -> None:
    """Remove the records below an offset from each partition, as retention would.

    :param before: partition to the first offset that stays.
    :raises BrokerRefused: there is no such partition or offset.
    :raises BrokerUnavailable: no answer.
    """
    asked = [TopicPartition(topic, partition, offset) for partition, offset in before.items()]
    admin = _admin(bootstrap_servers)
    for partition, future in admin.delete_records(asked).items():
        _wait(future, f"deleting records of {partition.topic}-{partition.partition}")


def produce(
    bootstrap_servers: str, topic: str, records: Iterable[NewRecord], *, settings: Mapping[str, Any] | None = None
) -> int:
    """Produce the records in order, wait until Kafka has them all, and return how many.

    :param settings: of librdkafka's producer, on top of ours.
    :raises BrokerRefused: Kafka refuses one of them.
    :raises BrokerUnavailable: no answer; some may have been written.
    """
    failed: list[KafkaError] = []

    def delivered(error: KafkaError | None, _message: object) -> None:
        if error is not None:
            failed.append(error)

    producer = Producer({
        "bootstrap.servers": bootstrap_servers,
        "enable.idempotence": True,
        "linger.ms": 5,
        "message.timeout.ms": int(_SECONDS * 1000),
        **_QUIET,
        **(settings or {}),
    })  # fmt: skip
    with suppress(KafkaException):  # without a connection, librdkafka waits for half a second to begin
        producer.list_topics(topic, 1.0)
    count = 0
    for record in records:
        arguments: dict[str, Any] = {
            "key": record.key,
            "partition": record.partition,
            "timestamp": record.timestamp_ms,
            "headers": list(record.headers),
            "on_delivery": delivered,
        }
        while True:
            try:
                producer.produce(topic, record.value, **arguments)
                break
            except BufferError:  # librdkafka's queue is full: let it deliver some
                producer.poll(0.1)
        producer.poll(0)
        count += 1
        if failed:
            break
    left = producer.flush(_SECONDS)
    doing = Doing(f"producing to topic {topic}", permission="WRITE", harmless="some may have been written")
    if failed:
        raise broker_error(failed[0], doing)
    if left:
        raise BrokerUnavailable(
            f"no answer from Kafka while {doing}",
            found=f"{left} of {count} records not acknowledged",
            next_step=f"Check bootstrap.servers and that the brokers run; {doing.harmless}.",
        )
    return count


def read_committed(bootstrap_servers: str, topic: str) -> list[Message]:
    """Return all records that a reader with ``isolation.level=read_committed`` gets, each partition in order.

    :raises BrokerUnavailable: no answer, or an open transaction hides the end of a log.
    """
    doing = f"reading topic {topic}"
    settings = {"bootstrap.servers": bootstrap_servers, "group.id": "readers", "enable.auto.commit": False, **_QUIET}
    consumer = Consumer({
        **settings,
        "isolation.level": "read_committed",
        "enable.partition.eof": True,
        "auto.offset.reset": "earliest",
    })  # fmt: skip
    uncommitted = Consumer({**settings, "isolation.level": "read_uncommitted"})
    try:
        known = consumer.list_topics(topic, timeout=_SECONDS).topics[topic].partitions
        partitions = [TopicPartition(topic, number, 0) for number in known]
        # Where each log really ends: a read_committed reader reports its end in front of an open transaction, too.
        left: dict[int | None, int] = {tp.partition: _high_watermark(uncommitted, tp) for tp in partitions}
        consumer.assign(partitions)
        messages: list[Message] = []
        while left:
            message = consumer.poll(_SECONDS)
            if message is None:
                raise BrokerUnavailable(
                    f"no answer from Kafka within {_SECONDS:.0f} s while {doing}, or a transaction is open",
                    found=f"{len(messages)} committed records",
                    expected=", ".join(f"{topic}-{partition} up to offset {end}" for partition, end in left.items()),
                )
            error = message.error()
            if error is None:
                messages.append(message)
            elif error.code() != KafkaError._PARTITION_EOF:  # noqa: SLF001 - no public name
                raise broker_error(error, doing)
            elif (message.offset() or 0) >= left.get(message.partition(), 0):
                left.pop(message.partition(), None)
    finally:
        consumer.close()
        uncommitted.close()
    return messages


def _high_watermark(consumer: Any, partition: TopicPartition) -> int:
    deadline = time.monotonic() + _SECONDS
    while True:
        try:
            return consumer.get_watermark_offsets(partition, timeout=_SECONDS)[1]
        except KafkaException as error:
            # The leader of a new topic may not know yet that it leads.
            if error.args[0].code() != KafkaError.NOT_LEADER_FOR_PARTITION:
                raise
        _look_again(deadline, f"{partition.topic}-{partition.partition} has no leader")


def _admin(bootstrap_servers: str) -> Any:
    """Return an `AdminClient`. It must live until its futures are done; they are untyped."""
    return AdminClient({"bootstrap.servers": bootstrap_servers, **_QUIET})


def _wait(future: Future[Any], doing: str) -> None:
    try:
        future.result(_SECONDS)
    except KafkaException as error:
        raise broker_error(error.args[0], doing) from error
    except TimeoutError as error:
        raise BrokerUnavailable(f"no answer from Kafka within {_SECONDS:.0f} s while {doing}") from error


def _wait_for_leaders(admin: Any, topic: str, partitions: int) -> None:
    deadline = time.monotonic() + _SECONDS
    while True:
        metadata = admin.list_topics(topic, timeout=_SECONDS).topics[topic].partitions.values()
        if sum(partition.leader >= 0 for partition in metadata) >= partitions:
            return
        _look_again(deadline, f"topic {topic} has fewer than {partitions} partitions with a leader")


def _look_again(deadline: float, what: str) -> None:
    if time.monotonic() > deadline:
        raise BrokerUnavailable(f"{what} after {_SECONDS:.0f} s")
    time.sleep(_LOOK_SECONDS)

"""Kafka's records as Arrow, with the columns of Spark's Kafka source, and ``_kafka`` with each record's coordinates."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final, NamedTuple, Protocol, cast

import pyarrow as pa

from offsetstore.offsets import TopicPartition
from offsetstore.processing import handling
from offsetstore.processing.unit import Coordinates
from offsetstore.protocol.context import propagated
from offsetstore.protocol.letters import Payload
from offsetstore.writers.arrow.batches import KAFKA

_HEADERS: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))

COLUMNS: Final = pa.schema([
    ("key", pa.binary()),
    ("value", pa.binary()),
    ("topic", pa.string()),
    ("partition", pa.int32()),
    ("offset", pa.int64()),
    ("timestamp", pa.timestamp("ms", tz="UTC")),
    ("timestampType", pa.int32()),
    ("headers", _HEADERS),
])  # fmt: skip
"""Kafka's own columns. Missing headers and a missing timestamp are NULL."""


_undecodable: set[TopicPartition] = set()  # told once

_log = logging.getLogger("offsetstore")


class Message(Protocol):
    """What confluent-kafka's ``Message`` has."""

    def topic(self) -> str | None: ...
    def partition(self) -> int | None: ...
    def offset(self) -> int | None: ...
    def key(self) -> Any: ...
    def value(self) -> Any: ...
    def headers(self) -> Any: ...
    def timestamp(self) -> tuple[int, int]: ...
    def leader_epoch(self) -> int | None: ...


class ConsumedRecord(NamedTuple):
    """One record."""

    topic_partition: TopicPartition
    offset: int
    payload: Payload

    @property
    def coordinates(self) -> Coordinates:
        return self.topic_partition, self.offset


def size_of(record: ConsumedRecord) -> int:
    """Bytes of the key, value and headers."""
    payload = record.payload
    size = len(payload.key or b"") + len(payload.value or b"")
    return size + sum(len(name) + len(value or b"") for name, value in payload.headers) if payload.headers else size


def read_messages(tp: TopicPartition, messages: Iterable[Message]) -> list[ConsumedRecord]:
    """Read what Kafka's client has returned of a partition."""
    new = cast("Any", tuple).__new__  # takes half the time of the constructors, which are written in Python
    records: list[ConsumedRecord] = []
    for message in messages:
        kind, timestamp = message.timestamp()  # 0 for none, then as Kafka counts, from 1
        offset: Any = message.offset()
        try:
            headers = message.headers()
        except (SystemError, UnicodeError):  # Kafka accepts any bytes as a header's name, confluent-kafka only UTF-8
            headers = None
            _tell_undecodable(tp, offset)
        contents = (message.key(), message.value(), tuple(headers) if headers else ())
        payload = new(Payload, (*contents, timestamp if kind else None, kind - 1))
        records.append(new(ConsumedRecord, (tp, offset, payload)))
    return records


def _tell_undecodable(tp: TopicPartition, offset: int) -> None:
    if tp not in _undecodable:
        _undecodable.add(tp)
        _log.warning(
            "the names of headers in %s are no UTF-8, first at offset %d: such records come without headers", tp, offset
        )


def batch_of(records: Sequence[ConsumedRecord], names: Collection[str] = ()) -> pa.RecordBatch:
    """Make the batch that ``transform`` gets.

    :param names: of the headers that are also in ``_kafka``.
    """
    payloads = [record.payload for record in records]
    columns: tuple[list[Any], ...] = (
        [payload.key for payload in payloads],
        [payload.value for payload in payloads],
        [record.topic_partition.topic for record in records],
        [record.topic_partition.partition for record in records],
        [record.offset for record in records],
        [payload.timestamp_ms for payload in payloads],
        [payload.timestamp_type for payload in payloads],
        [[*payload.headers] if payload.headers else None for payload in payloads],
    )
    arrays: list[Any] = [pa.array(values, kind) for values, kind in zip(columns, COLUMNS.types, strict=True)]
    arrow: Any = pa
    coordinates = slice(2, 6)
    in_kafka = dict(zip(COLUMNS.names[coordinates], arrays[coordinates], strict=True))
    if names:
        following = [propagated(payload.headers, names) for payload in payloads]
        in_kafka["headers"] = pa.array([[*headers] or None for headers in following], _HEADERS)
    kafka = arrow.StructArray.from_arrays([*in_kafka.values()], [*in_kafka])
    return arrow.RecordBatch.from_arrays([*arrays, kafka], [*COLUMNS.names, KAFKA])


def as_given(record: ConsumedRecord, topic_id: str) -> handling.Record:
    """Return the record in the form that handlers and filters get."""
    tp, offset, payload = record
    return handling.Record(
        tp.topic,
        tp.partition,
        offset,
        payload.key,
        payload.value,
        payload.headers or (),
        payload.timestamp_ms,
        topic_id,
    )

"""Records that a test gives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from offsetstore.offsets import TopicPartition
from offsetstore.processing.handling import Record
from offsetstore.protocol.letters import Payload

if TYPE_CHECKING:
    from offsetstore.consumer.records import ConsumedRecord


def as_consumed(records: Sequence[Record]) -> list[ConsumedRecord]:
    """The records as the consumer polls them, in their order."""
    from offsetstore.consumer.records import ConsumedRecord  # noqa: PLC0415 - an extra

    return [
        ConsumedRecord(
            TopicPartition(record.topic, record.partition),
            record.offset,
            Payload(
                record.key,
                record.value,
                record.headers,
                record.timestamp_ms,
                -1 if record.timestamp_ms is None else 0,
            ),
        )
        for record in records
    ]


def coordinates(record: Record) -> tuple[str, int, int]:
    """Where the record is."""
    return record.topic, record.partition, record.offset

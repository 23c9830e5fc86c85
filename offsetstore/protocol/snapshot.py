"""What an overview reads of Kafka: for each topic and group, its data or the error that prevented reading it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from offsetstore.errors import BrokerError
from offsetstore.offsets import CommittedOffset, TopicPartition, Watermarks


@dataclass(frozen=True, slots=True)
class LogEnds(Watermarks):
    """A log's first offset, its high watermark, and its last stable offset.

    The last stable offset is where the oldest open transaction begins, else the high watermark.
    """

    last_stable: int


@dataclass(frozen=True, slots=True)
class TopicSnapshot:
    """One topic.

    ``topic_id`` is ``None`` if the broker is too old to have ids. ``partitions`` holds those whose ends Kafka returned,
    of ``partition_count``. ``error`` is the first error: of the topic, or of one of its partitions.
    """

    topic_id: str | None = None
    partition_count: int = 0
    partitions: Mapping[int, LogEnds] = field(default_factory=dict[int, LogEnds])
    error: BrokerError | None = None


@dataclass(frozen=True, slots=True)
class GroupSnapshot:
    """One group in Kafka.

    ``committed`` leaves out partitions without an offset; it is ``None`` if it could not be read. ``has_members``:
    whether a consumer has joined the group, ``None`` if that is unknown. ``error`` is the first error.
    """

    committed: Mapping[TopicPartition, CommittedOffset] | None = None
    has_members: bool | None = None
    error: BrokerError | None = None


@dataclass(frozen=True, slots=True)
class KafkaSnapshot:
    """The cluster, and each topic and group that was asked for."""

    cluster_id: str | None
    topics: Mapping[str, TopicSnapshot]
    groups: Mapping[str, GroupSnapshot]


class FoundRecord(NamedTuple):
    """A record's offset and its timestamp, in milliseconds since 1970."""

    offset: int
    timestamp_ms: int

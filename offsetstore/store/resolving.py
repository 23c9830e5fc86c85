"""The resolver on its own: what a job would start from, without claiming anything."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from offsetstore.errors import ConfigurationError, StoreRewound
from offsetstore.protocol.resolver import resolve

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from offsetstore.offsets import BrokerView, StoredOffset, TopicPartition
    from offsetstore.protocol.policy import StartPolicy
    from offsetstore.protocol.ports import BrokerOffsets
    from offsetstore.protocol.starting import StartingOffsets
    from offsetstore.store.store import OffsetStore


def resolve_unlocked(
    store: OffsetStore,
    group: str,
    stored: Mapping[TopicPartition, StoredOffset],
    view: BrokerView,
    policy: StartPolicy | None,
    *,
    adopted: Mapping[TopicPartition, int] | None = None,
) -> StartingOffsets:
    """Resolve while a job may be running, from rows that were read before Kafka was asked.

    A live job advances its row, and then copies it to Kafka: where both came in between, the copy is above the row that
    we have, as after a restore. The rows as they are by now tell the two apart.
    """
    store_id = store.database.store_id()
    try:
        return resolve(stored, view, policy, store_id=store_id, group=group, adopted=adopted)
    except StoreRewound:
        caught_up = _caught_up(stored, store.offsets(group), view)
        if caught_up == stored:
            raise
        return resolve(caught_up, view, policy, store_id=store_id, group=group, adopted=adopted)


def _caught_up(
    stored: Mapping[TopicPartition, StoredOffset], now: Mapping[TopicPartition, StoredOffset], view: BrokerView
) -> dict[TopicPartition, StoredOffset]:
    """The rows at the moment at which Kafka answered: those that have reached the copy since they were read, at it."""
    rows = dict(stored)
    for tp, row in now.items():
        committed = view.committed.get(tp)
        before = stored[tp].next_offset if tp in stored else 0
        if committed is not None and before < committed.next_offset <= row.next_offset:
            rows[tp] = replace(row, next_offset=committed.next_offset)
    return rows


def resolve_starting_offsets(
    broker: BrokerOffsets,
    *,
    group: str,
    topics: Collection[str] | None = None,
    store: OffsetStore | None = None,
    policy: StartPolicy | None = None,
    kafka_group: str | None = None,
) -> StartingOffsets:
    """Resolve where ``group`` would start now. Read-only: nobody is fenced, nothing is written.

    One round trip to the database and a constant number of requests to Kafka, however many partitions there are.

    :param store: ``None`` to go by what Kafka has committed alone.
    :raises BrokerError, StartError: as `OffsetStore.claim` does.
    """
    names = [topics] if isinstance(topics, str) else topics if topics is not None else broker.topics
    if not names:
        raise ConfigurationError(
            "no topics to resolve", expected='topics=["..."], or a broker made from Spark\'s options'
        )
    stored = store.offsets(group) if store else {}
    timestamp_ms = policy.timestamp_ms if policy else None
    view = broker.view(kafka_group or group, tuple(names), timestamp_ms=timestamp_ms)
    if store is None:
        return resolve(stored, view, policy)
    return resolve_unlocked(store, group, stored, view, policy)

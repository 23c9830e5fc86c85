"""The resolver on its own: what a job would start from, without claiming anything."""

from __future__ import annotations

from collections.abc import Collection

from offsetstore.errors import ConfigurationError
from offsetstore.offset_store import OffsetStore
from offsetstore.protocol.policy import StartPolicy
from offsetstore.protocol.ports import BrokerOffsets
from offsetstore.protocol.resolver import resolve
from offsetstore.protocol.starting import StartingOffsets
from offsetstore.store.acquire import resolve_unlocked


def resolve_starting_offsets(
    broker: BrokerOffsets,
    *,
    group: str,
    topics: Collection[str] | None = None,
    store: OffsetStore | None = None,
    policy: StartPolicy | None = None,
    kafka_group: str | None = None,
) -> StartingOffsets:
    """Resolve where ``group`` would start now. Read-only: this fences no job and writes nothing.

    It takes one round trip to the database and a constant number to Kafka, however many partitions there are.

    :param store: ``None`` to use only the offsets committed in Kafka.
    :raises BrokerError, StartError: as `OffsetStore.claim` does.
    """
    names = [topics] if isinstance(topics, str) else topics if topics is not None else broker.topics
    if not names:
        raise ConfigurationError(
            "no topics to resolve", expected='topics=["..."], or a broker made from Spark\'s options'
        )
    stored = store.offsets(group) if store else {}
    identity = store.database.identity() if store else None
    if store is not None and identity is not None:
        identity.expect_home(store.database.schema)
    timestamp_ms = policy.timestamp_ms if policy else None
    view = broker.view(kafka_group or group, tuple(names), timestamp_ms=timestamp_ms)
    if store is None or identity is None:
        return resolve(stored, view, policy)
    return resolve_unlocked(store.database, group, stored, view, policy, store_id=identity.store_id)

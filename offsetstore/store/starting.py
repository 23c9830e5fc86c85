"""The resolver on its own: what a job would start from, without claiming anything."""

from __future__ import annotations

from typing import TYPE_CHECKING

from offsetstore.errors import ConfigurationError
from offsetstore.resolver import resolve

if TYPE_CHECKING:
    from collections.abc import Collection

    from offsetstore.policy import StartPolicy
    from offsetstore.ports import BrokerOffsets
    from offsetstore.starting import StartingOffsets
    from offsetstore.store.store import OffsetStore


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
        what = "no topics to resolve"
        raise ConfigurationError(what, expected='topics=["..."], or a broker made from Spark\'s options')
    stored = store.offsets(group) if store else {}
    timestamp_ms = policy.timestamp_ms if policy else None
    view = broker.view(kafka_group or group, tuple(names), timestamp_ms=timestamp_ms)
    return resolve(stored, view, policy, store_id=store.database.store_id() if store else None)

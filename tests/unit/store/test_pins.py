"""A decision about a rewound database sticks through as many starts as it takes; of a reset, the contract says so."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from offsetstore import OffsetRange, StartPolicy, TopicPartition
from offsetstore.offsets import CommittedOffset
from offsetstore.protocol.store_facts import Stamp
from offsetstore.testing import InMemoryOffsetStore, StaticBroker

GROUP = "billing"
P0 = TopicPartition("payments", 0)


@pytest.fixture
def broker() -> StaticBroker:
    return StaticBroker.with_topics({"payments": 1}, end=100)


def start(store: InMemoryOffsetStore, broker: StaticBroker, policy: StartPolicy | None = None) -> int:
    """Where a job starts that dies before its mirror has copied anything."""
    claim = store.claim(GROUP, broker, policy=policy, mirror_every=None)
    assert claim.starting is not None
    return claim.starting.offsets[P0]


@pytest.mark.behaviour("START-6", "START-21")
@pytest.mark.parametrize(("override", "offset"), [("stored", 20), ("kafka", 60)])
def test_a_decision_about_a_rewound_database_is_made_once(
    store: InMemoryOffsetStore, broker: StaticBroker, override: Any, offset: int
) -> None:
    claim = store.claim(GROUP, broker, mirror_every=None)
    with store.transaction(claim) as tx:
        tx.advance({tp: one.remaining for tp, one in tx.lock({P0: OffsetRange(0, 20)}).items()})
    copy = CommittedOffset(60, Stamp(store.database.store_id(), 9).text())
    broker.current = replace(broker.current, committed={P0: copy})

    assert start(store, broker, StartPolicy(on_rewound=override)) == offset
    assert store.offsets(GROUP)[P0].pinned
    # Nor does what a job of the lost database copies later count.
    broker.current = replace(broker.current, committed={P0: replace(copy, next_offset=70)})
    assert [start(store, broker) for _ in range(2)] == [offset, offset]

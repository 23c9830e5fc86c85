"""The failpoint between COMMIT and its answer, by which crash tests tell one COMMIT from another."""

from __future__ import annotations

import pytest

from offsetstore import OffsetRange, OffsetStore, TopicPartition
from offsetstore.protocol import failpoints
from offsetstore.protocol.failpoints import VARIABLE, FailpointReached
from offsetstore.store import heartbeat
from offsetstore.store.claim import Claim
from offsetstore.testing import StaticBroker
from tests.support.waiting import wait_until

P0 = TopicPartition("payments", 0)


def advance(store: OffsetStore, claim: Claim, from_: int, until: int) -> None:
    with store.transaction(claim) as tx:
        tx.lock({P0: OffsetRange(from_, until)})
        tx.advance({P0: OffsetRange(from_, until)})


def test_it_counts_each_commit_and_fires_when_the_server_has_been_told(
    store: OffsetStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeat, "INTERVAL", 3600)  # its COMMIT would count, too
    claim = store.claim("billing", StaticBroker.with_topics({"payments": 1}, end=100), mirror_every=None)
    monkeypatch.setattr(failpoints, "_reached", type(failpoints._reached)())
    monkeypatch.setenv(VARIABLE, "commit_sent:2:raise")

    advance(store, claim, 0, 40)
    with pytest.raises(FailpointReached):
        advance(store, claim, 40, 80)

    wait_until(lambda: store.offsets("billing")[P0].next_offset == 80)

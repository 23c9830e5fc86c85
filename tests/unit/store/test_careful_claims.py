"""A claim believes the bad news last: a restart reads a whole topic again, so it needs more than one bad look."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from offsetstore import OffsetRange, StartPolicy, TopicPartition, resolve_starting_offsets
from offsetstore.errors import OffsetOutOfRange, TopicRecreated
from offsetstore.offsets import BrokerView, CommittedOffset, TopicLog, Watermarks
from offsetstore.protocol.retries import Retries
from offsetstore.protocol.stamp import Stamp
from offsetstore.protocol.starting import Reason
from offsetstore.store import acquire
from offsetstore.testing import InMemoryOffsetStore, StaticBroker
from tests.support.brokers import ScriptedBroker

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

P0 = TopicPartition("payments", 0)
RESTART = StartPolicy(on_recreated="restart")


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemoryOffsetStore]:
    """A store whose group has read 40 of the 50 records of one partition."""
    monkeypatch.setattr(acquire, "_RETRIES", Retries(attempts=3, shortest=0.0, longest=0.0))
    with InMemoryOffsetStore() as made:
        with made.transaction(made.claim("billing", ScriptedBroker({"payments": {0: (0, 50)}}))) as tx:
            tx.advance({P0: tx.lock({P0: OffsetRange(0, 40)})[P0].remaining})
        yield made


@pytest.mark.behaviour("START-10")
def test_a_log_end_that_is_wrong_for_a_moment_restarts_nothing(store: InMemoryOffsetStore) -> None:
    broker = ScriptedBroker({"payments": {0: (0, 50)}})
    broker.has_ids = False
    broker.script = [{"payments": {0: (0, 30)}}]
    claim = store.claim("billing", broker, policy=RESTART)
    assert claim.starting is not None
    assert claim.starting.starts[P0].reason is Reason.ONLY_STORED
    assert store.offsets("billing")[P0].next_offset == 40


@pytest.mark.behaviour("START-8")
def test_a_log_end_that_stays_below_the_stored_offset_restarts_as_asked(store: InMemoryOffsetStore) -> None:
    broker = ScriptedBroker({"payments": {0: (0, 30)}})
    broker.has_ids = False
    with pytest.raises(TopicRecreated):
        store.claim("billing", broker)
    claim = store.claim("billing", broker, policy=RESTART)
    assert claim.starting is not None
    assert claim.starting.starts[P0].reason is Reason.RECREATED_RESTART


@pytest.mark.behaviour("START-6")
@pytest.mark.parametrize("alone", [False, True], ids=["claim", "resolver"])
def test_a_live_job_that_advances_and_mirrors_meanwhile_is_no_rewound_database(
    store: InMemoryOffsetStore, *, alone: bool
) -> None:
    live = store.claim("billing", ScriptedBroker({"payments": {0: (0, 50)}}), mirror_every=None)
    broker = StaticBroker.with_topics({"payments": 1}, end=50)
    kafka = replace(broker.current, topics={"payments": TopicLog("id of payments", {0: Watermarks(0, 50)})})
    stamp = Stamp(store.database.store_id(), live.token.epoch)

    class Slow(StaticBroker):
        """Between our reading of the rows and its answer, the live job advances and copies."""

        def view(self, group: str, topics: Collection[str], *, timestamp_ms: int | None = None) -> BrokerView:
            if not self.asked:
                with store.transaction(live) as tx:
                    tx.advance({P0: tx.lock({P0: OffsetRange(40, 45)})[P0].remaining})
            return super().view(group, topics, timestamp_ms=timestamp_ms)

    copied = {P0: CommittedOffset(45, stamp.text())}
    slow = Slow(replace(kafka, cluster_id="cluster-1", committed=copied))
    if alone:
        start = resolve_starting_offsets(slow, group="billing", store=store)
    else:
        start = store.claim("billing", slow, mirror_every=None).starting
    assert start is not None
    assert start.offsets == {P0: 45}


@pytest.mark.behaviour("START-18")
@pytest.mark.parametrize("policy", [StartPolicy(), RESTART])
def test_a_foreign_commit_beyond_the_end_reads_nothing_again(store: InMemoryOffsetStore, policy: StartPolicy) -> None:
    broker = ScriptedBroker({"payments": {0: (0, 50)}}, committed={P0: 10_000})
    with pytest.raises(OffsetOutOfRange, match="another tool committed") as caught:
        store.claim("billing", broker, policy=policy)
    assert 'prefer="stored"' in caught.value.next_step
    assert store.offsets("billing")[P0].next_offset == 40
    store.claim("billing", broker, policy=replace(policy, prefer="stored"))


@pytest.mark.behaviour("START-8")
def test_an_id_that_a_broker_does_not_tell_is_not_forgotten(store: InMemoryOffsetStore) -> None:
    silent = StaticBroker.with_topics({"payments": 1}, end=50)
    silent.current = replace(
        silent.current, cluster_id=None, topics={"payments": TopicLog(None, {0: Watermarks(0, 50)})}
    )
    store.claim("billing", silent)
    row = store.offsets("billing")[P0]
    assert (row.topic_id, row.cluster_id) == ("id of payments", "cluster-1")


def test_a_job_that_advances_while_kafka_is_asked_is_not_beyond_the_end(store: InMemoryOffsetStore) -> None:
    owner = store.claim("billing", ScriptedBroker({"payments": {0: (0, 60)}}))
    broker = ScriptedBroker({"payments": {0: (0, 60)}})

    def advance() -> None:
        with store.transaction(owner) as tx:
            tx.advance({P0: tx.lock({P0: OffsetRange(40, 60)})[P0].remaining})

    def show_what_was() -> None:
        advance()
        broker.logs["payments"][0] = (0, 50)
        broker.script = [lambda: broker.logs["payments"].update({0: (0, 60)})]

    broker.script = [show_what_was]
    claim = store.claim("billing", broker)
    assert broker.views == 2
    assert claim.starting is not None
    assert claim.starting.offsets[P0] == 60

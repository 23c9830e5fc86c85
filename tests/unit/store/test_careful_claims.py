"""A claim believes the bad news last: a restart reads a whole topic again, so it needs more than one bad look."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NoReturn

import pytest

from offsetstore import OffsetRange, StartPolicy, TopicPartition, resolve_starting_offsets
from offsetstore.errors import FunctionEnded, OffsetOutOfRange, TopicRecreated
from offsetstore.offsets import CommittedOffset
from offsetstore.processing.plan import check_topics
from offsetstore.protocol.retries import Retries
from offsetstore.protocol.starting import Reason
from offsetstore.protocol.store_facts import Stamp
from offsetstore.store import acquire
from offsetstore.store.claim import ClaimRequest
from offsetstore.testing import InMemoryOffsetStore, StaticBroker

P0 = TopicPartition("payments", 0)
RESTART = StartPolicy(on_recreated="restart")


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemoryOffsetStore]:
    """A store whose group has read 40 of the 50 records of one partition."""
    monkeypatch.setattr(acquire, "_RETRIES", Retries(attempts=3, shortest=0.0, longest=0.0))
    with InMemoryOffsetStore() as made:
        with made.transaction(made.claim("billing", StaticBroker.with_topics({"payments": 1}, end=50))) as tx:
            tx.advance({P0: tx.lock({P0: OffsetRange(0, 40)})[P0].remaining})
        yield made


@pytest.mark.behaviour("START-8")
def test_a_log_end_that_stays_below_the_stored_offset_restarts_as_asked(store: InMemoryOffsetStore) -> None:
    broker = StaticBroker.with_topics({"payments": 1}, end=30)
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
    live = store.claim("billing", StaticBroker.with_topics({"payments": 1}, end=50), mirror_every=None)
    broker = StaticBroker.with_topics({"payments": 1}, end=50)
    stamp = Stamp(store.database.store_id(), live.token.epoch)

    def advance_and_copy() -> None:
        """Between our reading of the rows and Kafka's answer."""
        with store.transaction(live) as tx:
            tx.advance({P0: tx.lock({P0: OffsetRange(40, 45)})[P0].remaining})
        broker.commit("billing", {P0: CommittedOffset(45, stamp.text())})

    broker.script = [advance_and_copy]
    if alone:
        start = resolve_starting_offsets(broker, group="billing", store=store)
    else:
        start = store.claim("billing", broker, mirror_every=None).starting
    assert start is not None
    assert start.offsets == {P0: 45}


@pytest.mark.behaviour("START-18")
@pytest.mark.parametrize("policy", [StartPolicy(), RESTART])
def test_a_foreign_commit_beyond_the_end_reads_nothing_again(store: InMemoryOffsetStore, policy: StartPolicy) -> None:
    broker = StaticBroker.with_topics({"payments": 1}, end=50)
    broker.set_committed({P0: 10_000})
    with pytest.raises(OffsetOutOfRange, match="another tool committed") as caught:
        store.claim("billing", broker, policy=policy)
    assert 'prefer="stored"' in caught.value.next_step
    assert store.offsets("billing")[P0].next_offset == 40
    store.claim("billing", broker, policy=replace(policy, prefer="stored"))


@pytest.mark.behaviour("START-8")
def test_an_id_that_a_broker_does_not_tell_is_not_forgotten(store: InMemoryOffsetStore) -> None:
    silent = StaticBroker.with_topics({"payments": 1}, end=50)
    silent.current = replace(silent.current, cluster_id=None)
    silent.has_ids = False
    store.claim("billing", silent)
    row = store.offsets("billing")[P0]
    assert (row.topic_id, row.cluster_id) == ("payments-id", "cluster")


@pytest.mark.behaviour("CONS-15")
@pytest.mark.parametrize("error", [SystemExit, asyncio.CancelledError])
@pytest.mark.parametrize("method", ["view", "has_members", "find_truncated", "topic_ids", "close"])
def test_a_users_broker_that_leaves_ends_its_call_alone(
    store: InMemoryOffsetStore, method: str, error: type[BaseException]
) -> None:
    def leave(*_: object, **__: object) -> NoReturn:
        raise error

    broker: Any = StaticBroker.with_topics({"payments": 1}, end=50)
    setattr(broker, method, leave)
    request = ClaimRequest("billing", broker, ("payments",), StartPolicy(), "refuse", 30.0, "billing")

    def use() -> None:
        claim = store.claim("billing", broker)
        check_topics(claim, store.offsets("billing"), [P0])
        claim.close()
        assert request.find_truncated is not None
        request.find_truncated({})

    with pytest.raises((FunctionEnded, SystemExit, asyncio.CancelledError)) as ended:
        use()
    delattr(broker, method)  # the store closes the claim once more
    assert isinstance(ended.value, FunctionEnded)


@pytest.mark.behaviour("START-10")
def test_a_log_end_that_is_wrong_for_a_moment_restarts_nothing(store: InMemoryOffsetStore) -> None:
    broker = StaticBroker.with_topics({"payments": 1}, end=50)
    broker.has_ids = False
    broker.script = [StaticBroker.with_topics({"payments": 1}, end=30).current]
    claim = store.claim("billing", broker, policy=RESTART)
    assert claim.starting is not None
    assert claim.starting.starts[P0].reason is Reason.ONLY_STORED
    assert store.offsets("billing")[P0].next_offset == 40

"""What a claim does to the tables when nobody is in its way."""

from __future__ import annotations

import gc
import json
import time
import weakref

import pytest
from sqlalchemy import Engine

from offsetstore import Claim, OffsetRange, OffsetStore, TopicPartition
from offsetstore.errors import ClaimInUse, ConfigurationError, StoreUnavailable
from offsetstore.testing import StaticBroker
from tests.support.trips import sent_statements

P0 = TopicPartition("payments", 0)
P1 = TopicPartition("payments", 1)


def advance(store: OffsetStore, claim: Claim, tp: TopicPartition, until: int, metadata: object = None) -> None:
    """Move a partition from where it is."""
    stored = store.offsets(claim.group)[tp].next_offset
    with store.transaction(claim) as tx:
        plan = tx.lock({tp: OffsetRange(stored, until)})
        tx.advance({tp: plan[tp].remaining}, metadata=metadata)


@pytest.mark.behaviour("START-11")
def test_a_new_claim_names_the_partition_that_was_created_in_between(store: OffsetStore) -> None:
    broker = StaticBroker.with_topics({"payments": 1}, end=100)
    first = store.claim("billing", broker)
    advance(store, first, P0, 40)
    broker.set_log(P1, 0, 5)

    second = store.claim("billing", broker)

    assert json.loads(first.starting_offsets) == {"payments": {"0": 0}}
    assert json.loads(second.starting_offsets) == {"payments": {"0": 40, "1": 0}}


def test_a_partition_created_while_the_claim_waits_is_seen_by_its_second_look(store: OffsetStore) -> None:
    broker = StaticBroker.with_topics({"payments": 1}, end=100)
    broker.script = [None, lambda: broker.set_log(P1, 0, 0)]

    assert json.loads(store.claim("billing", broker).starting_offsets) == {"payments": {"0": 0, "1": 0}}


@pytest.mark.behaviour("START-18")
def test_a_foreign_commit_is_adopted_and_recorded_with_the_skipped_range(store: OffsetStore) -> None:
    broker = StaticBroker.with_topics({"payments": 2}, end=100)
    advance(store, store.claim("billing", broker), P0, 40)
    broker.set_committed({P0: 70, P1: 0})

    claim = store.claim("billing", broker)

    assert json.loads(claim.starting_offsets) == {"payments": {"0": 70, "1": 0}}
    assert store.offsets("billing")[P0].next_offset == 70
    (line,) = [line for line in store.history("billing") if line.token == claim.token and line.event == "adopt"]
    assert (line.topic_partition, line.from_offset, line.to_offset) == (P0, 40, 70)
    assert line.reason == "committed in Kafka by another tool, larger than stored; skips [40, 70)"
    assert line.actor == claim.owner
    assert line.at is not None


@pytest.mark.behaviour("START-22")
def test_a_second_query_on_one_claim_is_refused(store: OffsetStore) -> None:
    claim = store.claim("billing", StaticBroker.with_topics({"payments": 1}, end=100))
    claim.bind("one")
    claim.bind("one")

    with pytest.raises(ClaimInUse, match=r"found query two; expected query one"):
        claim.bind("two")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"group": ""}, "group must be a name"),
        ({"group": "a\0b"}, "group can't be stored; found a NUL, character 2 of 3"),
        ({"kafka_group": "a\0b"}, "kafka_group can't be stored"),
        ({"topics": []}, "names no topics"),
        ({"takeover": "ask"}, "takeover has an unknown value"),
        ({"takeover_timeout": -1}, "takeover_timeout must be 0 or more seconds"),
        ({"takeover_timeout": float("nan")}, "takeover_timeout must be 0 or more seconds"),
        ({"mirror_every": 0}, "mirror_every"),
        ({"mirror_every": float("nan")}, "mirror_every"),
    ],
)
def test_arguments_that_cant_be_right_are_named(store: OffsetStore, arguments: dict[str, object], words: str) -> None:
    call = {"group": "billing", "topics": ["payments"], **arguments}

    with pytest.raises(ConfigurationError, match=words):
        store.claim(**call)  # pyright: ignore[reportArgumentType]

    assert store.owner("billing") is None


def test_each_claim_has_a_checkpoint_of_its_own_below_the_encoded_group(store: OffsetStore) -> None:
    first, second = (store.claim("a/../b c", topics=["payments"]) for _ in range(2))

    assert first.checkpoint("/checkpoints/") == f"/checkpoints/a%2F%2E%2E%2Fb%20c/1-{first.token.claim_id}"
    assert second.checkpoint("/checkpoints") == f"/checkpoints/a%2F%2E%2E%2Fb%20c/2-{second.token.claim_id}"


@pytest.mark.behaviour("START-19")
def test_a_claim_of_ten_thousand_partitions_takes_as_many_statements_as_one_of_one(offsetstore_database: str) -> None:
    counted: list[int] = []
    seconds: list[float] = []
    with OffsetStore.connect(offsetstore_database) as store:
        for group, partitions in (("small", 1), ("large", 10_000)):
            broker = StaticBroker.with_topics({"payments": partitions}, end=100)
            for _ in range(2):  # the first inserts all rows, the second finds them
                broker.asked.clear()
                began = time.monotonic()
                with sent_statements() as sent:
                    store.claim(group, broker, mirror_every=None)
                seconds.append(time.monotonic() - began)
                counted.append(len(sent))
                assert len(broker.asked) == 2
        assert len(store.offsets("large")) == 10_000

    assert counted[:2] == counted[2:]
    assert max(seconds) < 10, seconds


def test_the_users_own_engine_stays_open_when_the_store_is_closed(engine: Engine) -> None:
    with OffsetStore.connect(engine) as store:
        store.claim("billing", topics=["payments"])

    with engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM consumer_groups").scalar_one() == 1


def test_a_store_lets_go_of_a_closed_claim_unless_its_close_has_failed(store: OffsetStore) -> None:
    broker = StaticBroker.with_topics({"payments": 1}, end=100)
    closed, failed = (store.claim(group, broker, mirror_every=None) for group in ("billing", "refunds"))
    tried: list[str] = []

    def last() -> None:
        tried.append("last")
        raise StoreUnavailable("no")

    failed.at_close(last)
    closed.close()
    with pytest.raises(StoreUnavailable):
        failed.close()
    let_go = weakref.ref(closed)
    del closed, failed

    store.claim("other", broker)
    gc.collect()
    store.close()

    assert let_go() is None
    assert len(tried) == 2

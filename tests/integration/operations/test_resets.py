"""Resets by a target that Kafka knows, and what Kafka's view, which is older than the locks, is good for."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from offsetstore import OffsetRange, OffsetStore
from offsetstore.errors import (
    BrokerUnavailable,
    ConfigurationError,
    OffsetMoved,
    OffsetOutOfRange,
    UnknownGroup,
    WrongCluster,
)
from offsetstore.operations.names import NewName
from offsetstore.operations.resets import Reset, ShiftBy
from offsetstore.testing import StaticBroker
from tests.integration.conftest import Contents, Query
from tests.integration.transacting import GROUP, P0, lock, process
from tests.support.background import in_background
from tests.support.waiting import wait_until

WAITING = """
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND wait_event_type = 'Lock' AND application_name LIKE 'offsetstore:%:admin'
"""

ALL = {"payments": None}


@pytest.fixture
def broker() -> StaticBroker:
    return StaticBroker.with_logs({"payments": {0: (20, 100), 1: (0, 100)}})


@pytest.mark.behaviour("OPS-10")
@pytest.mark.parametrize(
    ("target", "expected"),
    [("latest", 120), (ShiftBy(-5), 115), (datetime(2050, 1, 1, tzinfo=UTC), 120)],
    ids=["latest", "shift", "a time after all records"],
)
def test_offsets_that_a_job_has_advanced_over_since_kafka_was_asked_are_in_the_log(
    store: OffsetStore, results: str, broker: StaticBroker, target: Any, expected: int
) -> None:
    claim = store.claim(GROUP, topics=["payments"])
    process(store, claim, P0, range_=OffsetRange(20, 100))
    broker.script = [lambda: process(store, claim, P0, range_=OffsetRange(100, 120))]

    done = store.reset(GROUP, target, partitions=ALL, broker=broker, reason="ticket 17")

    assert [(one.from_offset, one.to_offset) for one in done.moves] == [(120, expected)]
    assert store.offsets(GROUP)[P0].next_offset == expected
    assert [(line.from_offset, line.to_offset) for line in done.history] == [(120, expected)]


@pytest.mark.behaviour("OPS-10")
def test_a_target_that_cant_be_reached_is_refused_before_any_job_is_fenced(
    store: OffsetStore, results: str, query: Query, contents: Contents, broker: StaticBroker
) -> None:
    with store.claim(GROUP, broker, mirror_every=None) as claim:
        process(store, claim, P0, range_=OffsetRange(20, 50))
    no_zone, known = datetime(2026, 1, 1), datetime(2026, 1, 1, tzinfo=UTC)  # noqa: DTZ001 - that is the point
    refused: list[tuple[Any, Any, type[Exception], str]] = [
        (101, ALL, OffsetOutOfRange, "payments-0: the log does not hold offset 101; expected from 20 to 100"),
        ("earliest", {"payments": [0, 7]}, ConfigurationError, "payments-7"),
        ("earliest", {"refunds": None}, ConfigurationError, "refunds"),
        (ShiftBy(-51), ALL, OffsetOutOfRange, "payments-0: the shift goes below offset 0; found -1"),
        (no_zone, ALL, ConfigurationError, "without a zone"),
        ("newest", ALL, ConfigurationError, "unknown reset target"),
        ("earliest", None, ConfigurationError, "names no partitions"),
        ({P0: 30}, ALL, ConfigurationError, "twice"),
    ]
    before = contents()
    for target, partitions, error, words in refused:
        with pytest.raises(error) as caught:
            store.reset(GROUP, target, partitions=partitions, broker=broker, reason="ticket 17")
        assert words in str(caught.value)
    with pytest.raises(ConfigurationError, match="only Kafka knows"):
        store.reset(GROUP, known, partitions=ALL, reason="ticket 17")
    with pytest.raises(UnknownGroup, match="no offsets of group 'nobody'"):
        store.reset("nobody", "latest", partitions=ALL, broker=broker, reason="ticket 17")
    broker.script = [BrokerUnavailable("no answer")]
    with pytest.raises(BrokerUnavailable):
        store.reset(GROUP, "latest", partitions=ALL, broker=broker, reason="ticket 17")
    assert contents() == before
    query("UPDATE kafka_partitions SET cluster_id = 'another'")
    before = contents()
    with pytest.raises(WrongCluster, match="payments-0: the stored offset belongs to another Kafka cluster"):
        store.reset(GROUP, "latest", partitions=ALL, broker=broker, reason="ticket 17")
    assert contents() == before


@pytest.mark.behaviour("OPS-10", "TX-17")
def test_a_reset_for_one_stored_offset_does_nothing_at_another(
    store: OffsetStore, results: str, broker: StaticBroker
) -> None:
    """A command that an error gave is run late: the job has gone on since, or a failover has taken offsets back."""
    one = {"payments": [0]}
    claim = store.claim(GROUP, topics=["payments"])
    process(store, claim, P0, range_=OffsetRange(20, 100))

    for stored in (41, 101):
        with pytest.raises(OffsetMoved, match=rf"payments-0: .*; found 100; expected {stored}\."):
            store.reset(GROUP, 42, partitions=one, from_offset=stored, reason="ticket 17")
    broker.script = [lambda: process(store, claim, P0, range_=OffsetRange(100, 105))]  # before the fence
    with pytest.raises(OffsetMoved):
        store.reset(GROUP, 42, partitions=one, from_offset=100, broker=broker, reason="ticket 17")
    process(store, claim, P0, range_=OffsetRange(105, 120))  # it is not fenced

    done = store.reset(GROUP, 121, partitions=one, from_offset=120, reason="ticket 17")
    assert [(one.from_offset, one.to_offset) for one in done.moves] == [(120, 121)]


@pytest.mark.behaviour("MIRROR-7")
def test_a_repair_of_one_offset_does_not_decide_about_another_application(
    store: OffsetStore, results: str, query: Query
) -> None:
    claim = store.claim(GROUP, topics=["payments"])
    process(store, claim, P0, range_=OffsetRange(20, 100))
    query("UPDATE kafka_partitions SET contested = true")

    store.reset(GROUP, 101, partitions={"payments": [0]}, from_offset=100, reason="ticket 17")
    assert store.offsets(GROUP)[P0].contested
    store.reset(GROUP, 90, partitions={"payments": [0]}, reason="ticket 18")
    assert not store.offsets(GROUP)[P0].contested


@pytest.mark.behaviour("OPS-21")
@pytest.mark.parametrize("decide", ["reset", "rename"])
def test_a_job_that_ends_while_its_transaction_is_waited_for_is_still_the_one_that_was_shown(
    store: OffsetStore, query: Query, decide: str
) -> None:
    claim = store.claim(GROUP, topics=["payments"])
    with store.transaction(claim) as tx:
        tx.advance(lock(tx, P0, range_=OffsetRange(0, 2)))

    def decided(**how: Any) -> Reset | NewName:
        if decide == "reset":
            return store.reset(GROUP, {P0: 1}, reason="again", **how)
        return store.rename_group(GROUP, "other", reason="again", **how)

    shown = decided(dry_run=True)
    with store.transaction(claim) as tx:
        tx.advance(lock(tx, P0, range_=OffsetRange(2, 4)))
        deciding = in_background(lambda: decided(if_plan=shown.digest))
        wait_until(lambda: query(WAITING) == [(1,)])
        query("DELETE FROM heartbeats RETURNING 1")  # its process ends
    done = deciding.result(60)

    assert done.executed
    assert done.met_live_owner

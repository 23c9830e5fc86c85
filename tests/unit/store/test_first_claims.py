"""The first claim of a group that the store does not know: what it warns of, and the ways out."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from offsetstore import OffsetRange, OffsetStore, StartPolicy, TopicPartition, resolve_starting_offsets
from offsetstore.offsets import CommittedOffset
from offsetstore.protocol.starting import similar_names
from offsetstore.store.claim import ClaimRequest
from offsetstore.store.fleet import join
from offsetstore.testing import StaticBroker

pytestmark = pytest.mark.behaviour("START-29")

P0, P1 = TopicPartition("payments", 0), TopicPartition("payments", 1)


@pytest.fixture
def broker() -> StaticBroker:
    """Records 10 to 99 in the first of two logs, 0 to 49 in the second."""
    return StaticBroker.with_logs({"payments": {0: (10, 100), 1: (0, 50)}})


@pytest.fixture
def store(offsetstore_database: str, broker: StaticBroker, caplog: pytest.LogCaptureFixture) -> Iterator[OffsetStore]:
    """With a group ``billing`` that has read all of this, and two others."""
    with OffsetStore.connect(offsetstore_database) as store:
        claim = store.claim("billing", broker, mirror_every=None)
        ranges = {P0: OffsetRange(10, 100), P1: OffsetRange(0, 50)}
        with store.transaction(claim) as tx:
            tx.lock(ranges)
            tx.advance(ranges)
        claim.close()
        store.claim("refunds", broker, mirror_every=None).close()
        store.claim("shipping", topics=["payments"]).close()
        caplog.clear()
        yield store


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]


def test_a_misspelt_group_is_told_what_it_reads_again_and_whom_it_resembles(
    store: OffsetStore, broker: StaticBroker, caplog: pytest.LogCaptureFixture
) -> None:
    beforehand = resolve_starting_offsets(broker, group="biling", store=store)
    claim = store.claim("biling", broker, mirror_every=None)

    assert len(warnings(caplog)) == 1
    [warning] = warnings(caplog)
    assert warning.startswith(
        "the store has no offsets of group 'biling', which is right for a new job: "
        "it reads at most 140 records of payments. "
    )
    assert "Groups with similar names: 'billing'. " in warning
    assert warning.endswith(
        "If the job is not new, don't let it run: correct the name, or take over the earlier offsets, and remove what "
        "it has written already. See the page 'A refused start' of the documentation."
    )
    assert len(warning) <= 3 * 120
    assert claim.starting is not None
    assert claim.starting.explain().splitlines()[-1] == beforehand.explain().splitlines()[-1] == warning

    store.claim("biling", broker, mirror_every=None)
    assert [one for one in warnings(caplog) if "has fenced" not in one] == [warning], "the group is known now"


@pytest.mark.parametrize("name", ["biling\nE", "biling\x1b[31m", "biling\u202e"])
def test_no_name_breaks_the_line_of_the_log(
    store: OffsetStore, broker: StaticBroker, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    store.claim(name, broker, mirror_every=None)

    [warning] = warnings(caplog)
    assert warning.isprintable()


@pytest.mark.behaviour("DX-9")
@pytest.mark.parametrize("name", ["inventory", "inventory\nERROR forged"])
def test_a_new_group_that_resembles_none_is_told_in_one_line(
    store: OffsetStore, broker: StaticBroker, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    store.claim(name, broker, mirror_every=None)

    [warning] = warnings(caplog)
    assert warning == (
        f"group {name!r} is new: it reads at most 140 records of payments. If its job ran before under another name, "
        "or without offsetstore, don't let it run, and see the page 'A refused start' of the documentation."
    )


def test_a_group_with_committed_offsets_is_no_misspelt_one(
    store: OffsetStore, broker: StaticBroker, caplog: pytest.LogCaptureFixture
) -> None:
    broker.set_committed({P0: 60})
    store.claim("biling", broker, mirror_every=None)

    [warning] = warnings(caplog)
    assert warning == (
        "group 'biling' is taken over at its committed offsets in Kafka, but there are none for payments 1: it reads "
        "at most 50 records of them. Where these start is decided by StartPolicy(auto_offset_reset=...)."
    )


def test_a_start_at_the_end_says_what_it_leaves_out(
    store: OffsetStore, broker: StaticBroker, caplog: pytest.LogCaptureFixture
) -> None:
    store.claim("biling", broker, policy=StartPolicy(auto_offset_reset="latest"), mirror_every=None)

    [warning] = warnings(caplog)
    assert "it leaves out at most 140 records of payments. " in warning
    # whether an earlier job has written them or not
    assert "or take over the earlier offsets, and remove what it has written already. " in warning


def test_nothing_is_told_without_records_or_where_kafka_has_the_group(
    store: OffsetStore, broker: StaticBroker, caplog: pytest.LogCaptureFixture
) -> None:
    store.claim("new", StaticBroker.with_topics({"refunds": 2}), mirror_every=None)
    store.claim("billing", StaticBroker.with_topics({"refunds": 2}, end=9), mirror_every=None)
    broker.current.committed.update({P0: CommittedOffset(40), P1: CommittedOffset(0)})
    store.claim("of another tool", broker, mirror_every=None)

    assert warnings(caplog) == []


@pytest.mark.parametrize(
    ("name", "similar"),
    [("Billing-V2", ("billing",)), ("payments-prod", ("payments-production",)), ("x", ()), ("billings", ("billing",))],
)
def test_names_are_similar_as_a_person_sees_it(name: str, similar: tuple[str, ...]) -> None:
    assert similar_names(name, ["billing", "payments-production", "refunds"]) == similar


def test_of_the_processes_of_a_consumer_the_first_is_told(
    store: OffsetStore, broker: StaticBroker, caplog: pytest.LogCaptureFixture
) -> None:
    def request(group: str) -> ClaimRequest:
        return ClaimRequest(group, broker, ("payments",), StartPolicy(), "refuse", 5.0, group)

    with join(store, request("biling")) as first, join(store, request("biling")) as second:
        [warning] = warnings(caplog)
        assert warning.startswith("the store has no offsets of group 'biling'")
        assert "it reads at most 140 records of payments. Groups with similar names: 'billing'." in warning
        assert first.starting is not None
        assert second.starting is None
        second.assign([P0, P1])
    with join(store, request("billing")) as knows:
        knows.assign([P0])
    assert warnings(caplog) == [warning]

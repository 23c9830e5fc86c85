from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from offsetstore.errors import (
    ConfigurationError,
    ForeignStore,
    KafkaGroupShared,
    LogTruncated,
    OffsetOutOfRange,
    StartError,
    StoreRewound,
)
from offsetstore.offsets import (
    BrokerView,
    CommittedOffset,
    StoredOffset,
    Suspect,
    Token,
    TopicLog,
    TopicPartition,
    Watermarks,
)
from offsetstore.protocol.resolver import resolve
from offsetstore.protocol.starting import Reason, StartPolicy
from offsetstore.protocol.store_facts import Stamp, digest

P0, P1, P2 = (TopicPartition("payments", number) for number in range(3))
US, THEM = UUID(int=7), UUID(int=8)
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def row(offset: int, *, topic_id: str | None = "this", cluster_id: str | None = "here") -> StoredOffset:
    return StoredOffset(offset, Token(1, UUID(int=1)), topic_id=topic_id, cluster_id=cluster_id)


def kafka(
    logs: dict[int, tuple[int, int]], committed: dict[int, int] | None = None, *, topic_id: str | None = "this"
) -> BrokerView:
    return BrokerView(
        "here",
        {"payments": TopicLog(topic_id, {number: Watermarks(*log) for number, log in logs.items()})},
        {TopicPartition("payments", number): CommittedOffset(offset) for number, offset in (committed or {}).items()},
    )


def copy(view: BrokerView, offset: int, epoch: int = 1, *, store_id: UUID = US, group: str | None = None) -> BrokerView:
    """The view, with a copy of a store's for the first partition."""
    stamped = CommittedOffset(offset, Stamp(store_id, epoch, group and digest(group)).text('{"trace": 1}'))
    return replace(view, committed={**view.committed, P0: stamped})


# -- which offset counts, and whether it is of this log

LOG, TWO = kafka({0: (0, 100)}), kafka({0: (0, 100), 1: (5, 100)})
TIMED: dict[str, Any] = {"timestamps": {P0: 70, P1: 30}}
BY_TIME, LATEST = StartPolicy(auto_offset_reset=NOON), StartPolicy(auto_offset_reset="latest")
RESTART = StartPolicy(on_recreated="restart")
CONTESTED = replace(row(40), contested=True, pinned_epoch=1)
BESIDE = replace(CONTESTED, pinned_epoch=3)
OTHER_TOOL = kafka({0: (0, 100), 1: (5, 100)}, {1: 60})
REFUND0, REFUND1 = (TopicPartition("refunds", number) for number in range(2))
AT_40, NEW_AT_5, ADOPTED = (40, Reason.ONLY_STORED), (5, Reason.NEW_PARTITION), (40, Reason.CHECKPOINT)
TOLD, REWOUND = StartPolicy(prefer="stored"), StartPolicy(on_rewound="stored")
ELSEWHERE = {TopicPartition("orders", 0): row(5, topic_id="gone", cluster_id="there")}
ONLY_IN_COPY = copy(kafka({0: (5, 100), 1: (0, 100)}), 60, 2)
ONE_OF_TWO = BrokerView("here", {"payments": TopicLog("this", {0: Watermarks(0, 50)}, partition_count=2)}, {})

STARTS: dict[str, tuple[dict[TopicPartition, StoredOffset], BrokerView, dict[str, Any], list[tuple[int, Reason]]]] = {
    "nothing stored, the latest": ({}, LOG, {"policy": LATEST}, [(100, Reason.LATEST)]),
    "nothing stored, by time": ({}, replace(LOG, **TIMED), {"policy": BY_TIME}, [(70, Reason.TIMESTAMP)]),
    "a new partition of a known topic": ({P0: row(40)}, TWO, {"policy": LATEST}, [AT_40, NEW_AT_5]),
    "the same, by time": ({P0: row(40)}, replace(TWO, **TIMED), {"policy": BY_TIME}, [AT_40, NEW_AT_5]),
    "a checkpoint of the topic": ({}, TWO, {"policy": LATEST, "adopted": {P0: 40}}, [ADOPTED, NEW_AT_5]),
    "a checkpoint of another": ({}, TWO, {"policy": LATEST, "adopted": {REFUND0: 40}}, [(100, Reason.LATEST)] * 2),
    "a lost store, by time": (
        {},
        replace(copy(LOG, 60), **TIMED),
        {"policy": replace(BY_TIME, on_rewound="stored")},
        [(70, Reason.REWOUND_STORED)],
    ),
    "a rewound row": ({P0: row(40)}, copy(LOG, 60), {"policy": REWOUND}, [(40, Reason.REWOUND_STORED)]),
    "both alike": ({P0: row(40)}, kafka({0: (0, 100)}, {0: 40}), {}, [(40, Reason.STORED)]),
    "committed at the end": ({}, kafka({0: (0, 100)}, {0: 100}), {}, [(100, Reason.ONLY_COMMITTED)]),
    "contested": ({P0: CONTESTED}, kafka({0: (5, 100)}, {0: 60}), {"policy": TOLD}, [(40, Reason.CONTEST_STORED)]),
    # Without a store, a copy is a committed offset like any other.
    "no store": ({}, copy(LOG, 60), {"store_id": None}, [(60, Reason.ONLY_COMMITTED)]),
    "rows of other topics": ({P0: row(40), **ELSEWHERE}, LOG, {}, [AT_40]),
    # Spark's ``assign`` names some of a topic's partitions; rows of the others stay.
    "a partition that the job does not read any more": ({P0: row(40), P1: row(7)}, ONE_OF_TWO, {}, [AT_40]),
    "a vanished partition of which nothing was read": ({P0: row(40), P1: row(0)}, LOG, {}, [AT_40]),
    "nothing to adopt of a vanished partition": ({}, LOG, {"adopted": {P0: 40, P1: 0}}, [ADOPTED]),
    # What is decided follows other tools again, whatever is contested beside it.
    "decided beside a contested one": (
        {P0: CONTESTED, P1: row(40)},
        OTHER_TOOL,
        {},
        [AT_40, (60, Reason.COMMITTED_IS_LARGER)],
    ),
    "new beside a contested one": ({P0: CONTESTED}, OTHER_TOOL, {"policy": TOLD}, [AT_40, (5, Reason.CONTEST_STORED)]),
    "new and adopted": ({P0: CONTESTED}, OTHER_TOOL, {"adopted": {P1: 50}}, [AT_40, (50, Reason.CHECKPOINT)]),
    # Each is compared with the epoch in which it was seen itself.
    "a copy of the database": ({P0: CONTESTED, P1: BESIDE}, copy(TWO, 60, 2), {}, [(40, Reason.COPY_STORED), AT_40]),
    "an older copy": ({P0: BESIDE, P1: CONTESTED}, copy(TWO, 60, 2), {}, [(40, Reason.STORED), AT_40]),
    "only the copy of the database knows it": ({P1: CONTESTED}, ONLY_IN_COPY, {}, [(5, Reason.COPY_STORED), AT_40]),
    **{
        f"below the row, topic id {was} and then {shown}": (
            {P0: row(40, topic_id=was)},
            kafka({0: (0, 30)}, topic_id=shown),
            {"policy": RESTART},
            [(0, Reason.RECREATED_RESTART)],
        )
        for was, shown in ((None, None), (None, "this"), ("this", None))
    },
}


@pytest.mark.behaviour("START-5", "START-6", "START-8", "START-18", "START-20", "START-24", "START-27", "MIRROR-7")
@pytest.mark.parametrize("case", STARTS)
def test_where_it_starts_and_why(case: str) -> None:
    stored, view, given, expected = STARTS[case]
    how: dict[str, Any] = {"store_id": US, **given}
    found = resolve(stored, view, **how)
    assert [(one.offset, one.reason) for one in found.starts.values()] == expected
    assert [one.is_new for one in found.starts.values()] == [tp not in stored for tp in found.starts]


def test_the_group_is_unknown_where_nothing_is_stored_alone() -> None:
    assert resolve({}, LOG, group="billing").unknown == "billing"
    assert resolve({P0: row(40)}, LOG, group="billing").unknown is None


@pytest.mark.behaviour("CONS-2")
def test_what_cant_start_for_a_reason_of_its_own_is_passed_over_with_its_error() -> None:
    passed_over: dict[TopicPartition, StartError] = {}
    start = resolve({P0: row(40), P1: row(40)}, kafka({0: (50, 100), 1: (0, 100)}), passed_over=passed_over)
    assert start.offsets == {P1: 40}
    assert {tp: (type(error), error.topic_partition) for tp, error in passed_over.items()} == {
        P0: (OffsetOutOfRange, P0)
    }


@pytest.mark.behaviour("OPS-3")
@pytest.mark.parametrize("group", ["billing", None], ids=["this version", "the version before"])
@pytest.mark.parametrize("on_rewound", ["fail", "stored", "kafka"])
@pytest.mark.parametrize("deleted", [{None: 5}, {None: 1, P0.topic: 5}], ids=["the group", "its topic"])
def test_a_copy_of_before_a_delete_is_as_if_it_were_not_there(
    group: str | None, on_rewound: str, deleted: dict[str | None, int]
) -> None:
    young = replace(row(10), token=Token(6, UUID(int=1)))
    for stored, expected in (({}, (100, Reason.LATEST)), ({P0: young}, (10, Reason.ONLY_STORED))):
        policy, view = replace(LATEST, on_rewound=on_rewound), copy(LOG, 60, 5, group=group)
        [start] = resolve(stored, view, policy, store_id=US, group="billing", deleted=deleted).starts.values()
        assert ((start.offset, start.reason), start.committed) == (expected, None)


@pytest.mark.behaviour("OPS-3", "START-6")
def test_other_offsets_of_a_deleted_group_count_as_they_did() -> None:
    """A copy of after the delete, one of another group or store, and what another application has committed."""
    log = kafka({0: (0, 100), 1: (0, 100)}, {0: 60, 1: 70})
    for view, error in (
        (copy(log, 60, 6, group="billing"), StoreRewound),
        (copy(log, 60, 5, group="invoicing"), KafkaGroupShared),
        (copy(log, 60, 5, store_id=THEM, group="billing"), ForeignStore),
    ):
        with pytest.raises(error):
            resolve({}, view, store_id=US, group="billing", deleted={None: 5, "another": 9})
    # Neither the group nor this topic was ever deleted: the first claim's copy counts, too.
    with pytest.raises(StoreRewound):
        resolve({}, copy(log, 60, 1, group="billing"), store_id=US, group="billing", deleted={"another": 9})
    assert resolve({}, log, store_id=US, group="billing", deleted={None: 5, "another": 9}).offsets == {P0: 60, P1: 70}


@pytest.mark.behaviour("START-26")
def test_a_log_with_recorded_evidence_against_it_stops_the_start() -> None:
    suspect = Suspect("record 30 of epoch 1 is gone", NOON)
    with pytest.raises(LogTruncated) as caught:
        resolve({P0: replace(row(40), suspect=suspect)}, LOG)
    assert (caught.value.topic_partition, caught.value.found) == (
        P0,
        f"{suspect.what} (recorded on {NOON.isoformat()})",
    )


@pytest.mark.behaviour("START-8")
@pytest.mark.parametrize(
    ("stored", "view"),
    [
        pytest.param({P0: row(40, topic_id=None)}, kafka({0: (0, 30), 2: (3, 9)}), id="shorter"),
        pytest.param({P0: row(40)}, kafka({0: (0, 100), 2: (3, 9)}, {0: 77}, topic_id="another"), id="longer"),
        pytest.param({P0: row(9), P1: row(7)}, kafka({0: (0, 100), 2: (3, 9)}), id="vanished partition"),
    ],
)
def test_a_restart_begins_the_whole_topic_anew(stored: dict[TopicPartition, StoredOffset], view: BrokerView) -> None:
    start = resolve(stored, view, RESTART)

    assert start.offsets == {P0: 0, P2: 3}
    assert {one.reason for one in start.starts.values()} == {Reason.RECREATED_RESTART}
    assert start.vanished == tuple(tp for tp in stored if tp == P1)


@pytest.mark.behaviour("START-8")
def test_topics_that_are_restarted_each_name_their_vanished_partitions_and_others_stay() -> None:
    other = TopicPartition("orders", 0)
    view = kafka({0: (0, 100)}, topic_id="another")
    view.topics.update({name: TopicLog("another", {0: Watermarks(0, 50)}) for name in ("orders", "refunds")})
    rows = {tp: row(20) for tp in (P0, P1, REFUND0, REFUND1)} | {other: row(20, topic_id="another")}

    start = resolve(rows, view, RESTART)

    assert start.vanished == (P1, REFUND1)
    assert start.offsets == {P0: 0, REFUND0: 0, other: 20}


@pytest.mark.behaviour("START-8")
def test_a_restart_remembers_what_was_stored_and_what_is_committed() -> None:
    stored, committed = row(40), CommittedOffset(77)
    view = replace(kafka({0: (0, 100)}, topic_id="another"), committed={P0: committed})

    start = resolve({P0: stored}, view, RESTART).starts[P0]

    assert (start.stored, start.committed, start.log) == (stored, committed, Watermarks(0, 100))


# -- what it looks like


@pytest.mark.behaviour("START-23")
def test_the_json_is_spark_s_with_numbers_as_names() -> None:
    view = kafka({10: (0, 5), 2: (0, 5), 0: (0, 100)})
    view.topics['a "quoted" topic'] = TopicLog(None, {0: Watermarks(0, 2**62)})

    found = json.loads(resolve({P0: row(40)}, view).json())

    assert found == {'a "quoted" topic': {"0": 0}, "payments": {"0": 40, "2": 0, "10": 0}}
    assert list(found["payments"]) == ["0", "2", "10"]


@pytest.mark.behaviour("START-5", "START-23")
def test_a_start_by_time_can_be_given_to_spark_as_such_if_it_is_one_everywhere() -> None:
    start = resolve({}, replace(TWO, **TIMED), BY_TIME)
    assert json.loads(start.timestamps_json()) == {"payments": {"0": 1767268800000, "1": 1767268800000}}
    with pytest.raises(ConfigurationError, match="not every partition starts by timestamp") as caught:
        resolve({}, replace(OTHER_TOOL, **TIMED), BY_TIME).timestamps_json()
    assert caught.value.found == "1 of 2 partitions start for another reason"


@pytest.mark.behaviour("START-8", "START-18", "START-23")
def test_the_explanation_says_where_why_what_was_known_and_what_has_vanished() -> None:
    stored = {P0: row(40), P1: row(7)}
    assert resolve(stored, kafka({0: (0, 100), 1: (0, 9)}, {0: 60})).explain() == (
        "payments-0  starts at 60: committed in Kafka by another tool, larger than stored"
        " (stored 40, committed 60, log [0, 100)); skips [40, 60)\n"
        "payments-1  starts at 7: stored; nothing is committed in Kafka (stored 7, committed -, log [0, 9))"
    )
    gone = resolve(stored, LOG, RESTART).explain().splitlines()[-1]
    assert gone == "payments-1  vanished from Kafka: its stored offset goes to 0"
    nothing = resolve(stored, BrokerView("here", {}, {}))
    assert (nothing.json(), nothing.explain()) == ("{}", "")


def test_what_only_a_copy_of_the_database_knows_is_refused_where_a_checkpoint_is_adopted() -> None:
    """From the log's beginning, the job would write again what the plain query has written."""
    with pytest.raises(StoreRewound) as caught:
        resolve({P1: CONTESTED}, ONLY_IN_COPY, adopted={P0: 30}, store_id=US)
    assert caught.value.topic_partition == P0

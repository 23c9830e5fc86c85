from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from uuid import UUID

import pytest

from offsetstore.errors import (
    ConfigurationError,
    ForeignStore,
    KafkaGroupContested,
    KafkaGroupShared,
    LogTruncated,
    OffsetOutOfRange,
    StartError,
    StoreRewound,
    TopicRecreated,
)
from offsetstore.offsets import (
    BrokerView,
    CommittedOffset,
    OffsetRange,
    StoredOffset,
    Suspect,
    Token,
    TopicLog,
    TopicPartition,
    Watermarks,
)
from offsetstore.protocol.policy import StartPolicy
from offsetstore.protocol.resolver import resolve
from offsetstore.protocol.stamp import Stamp, digest
from offsetstore.protocol.starting import Reason, StartingOffsets

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


def only(start: StartingOffsets) -> tuple[int, Reason]:
    [one] = start.starts.values()
    return one.offset, one.reason


# -- which offset counts


@pytest.mark.behaviour("START-1", "START-18")
def test_the_larger_one_counts_and_what_it_skips_is_known() -> None:
    start = resolve({P0: row(40)}, kafka({0: (0, 100)}, {0: 60}))

    assert only(start) == (60, Reason.COMMITTED_IS_LARGER)
    assert start.starts[P0].skipped == OffsetRange(40, 60)


def test_the_group_is_unknown_where_nothing_is_stored_alone() -> None:
    view = kafka({0: (0, 100)})
    assert resolve({}, view, group="billing").unknown == "billing"
    assert resolve({P0: row(40)}, view, group="billing").unknown is None


@pytest.mark.behaviour("START-5")
@pytest.mark.parametrize(
    ("policy", "offset", "reason"),
    [
        (StartPolicy(), 10, Reason.EARLIEST),
        (StartPolicy(auto_offset_reset="latest"), 100, Reason.LATEST),
        (StartPolicy(auto_offset_reset=NOON), 70, Reason.TIMESTAMP),
    ],
    ids=["earliest", "latest", "timestamp"],
)
def test_neither_is_there(policy: StartPolicy, offset: int, reason: Reason) -> None:
    view = replace(kafka({0: (10, 100)}), timestamps={P0: 70} if policy.timestamp_ms else None)

    assert only(resolve({}, view, policy)) == (offset, reason)


@pytest.mark.behaviour("START-5")
@pytest.mark.parametrize("reset", ["earliest", "latest", NOON], ids=str)
def test_a_new_partition_of_a_known_topic_starts_at_its_beginning(reset: str | datetime) -> None:
    policy = replace(StartPolicy(), auto_offset_reset=reset)
    view = replace(kafka({0: (0, 100), 1: (5, 50)}), timestamps={P0: 70, P1: 30})

    start = resolve({P0: row(40)}, view, policy)

    assert (start.starts[P1].offset, start.starts[P1].reason) == (5, Reason.NEW_PARTITION)
    assert start.starts[P1].is_new


# -- copies of ours


def copy(view: BrokerView, offset: int, epoch: int = 1, *, store_id: UUID = US, group: str | None = None) -> BrokerView:
    """The view, with a copy of a store's for the first partition."""
    stamped = CommittedOffset(offset, Stamp(store_id, epoch, group and digest(group)).text('{"trace": 1}'))
    return replace(view, committed={**view.committed, P0: stamped})


@pytest.mark.behaviour("CONS-2")
def test_what_cant_start_for_a_reason_of_its_own_is_passed_over_with_its_error() -> None:
    passed_over: dict[TopicPartition, StartError] = {}
    start = resolve({P0: row(40), P1: row(40)}, kafka({0: (50, 100), 1: (0, 100)}), passed_over=passed_over)
    assert start.offsets == {P1: 40}
    assert {tp: (type(error), error.topic_partition) for tp, error in passed_over.items()} == {
        P0: (OffsetOutOfRange, P0)
    }


@pytest.mark.behaviour("START-6")
def test_a_lost_store_can_start_by_time_and_what_a_rewound_one_skips_is_known() -> None:
    view = replace(copy(kafka({0: (10, 100)}), 60), timestamps={P0: 70})
    by_time = resolve({}, view, StartPolicy(on_rewound="stored", auto_offset_reset=NOON), store_id=US)
    assert only(by_time) == (70, Reason.REWOUND_STORED)
    skips = resolve({P0: row(40)}, view, StartPolicy(on_rewound="kafka"), store_id=US)
    assert skips.starts[P0].skipped == OffsetRange(40, 60)


@pytest.mark.behaviour("OPS-3")
@pytest.mark.parametrize("group", ["billing", None], ids=["this version", "the version before"])
@pytest.mark.parametrize("on_rewound", ["fail", "stored", "kafka"])
@pytest.mark.parametrize("deleted", [{None: 5}, {None: 1, P0.topic: 5}], ids=["the group", "its topic"])
def test_a_copy_of_before_a_delete_is_as_if_it_were_not_there(
    group: str | None, on_rewound: str, deleted: dict[str | None, int]
) -> None:
    policy = replace(StartPolicy(auto_offset_reset="latest"), on_rewound=on_rewound)
    young = replace(row(10), token=Token(6, UUID(int=1)))
    for stored, expected in (({}, (100, Reason.LATEST)), ({P0: young}, (10, Reason.ONLY_STORED))):
        view = copy(kafka({0: (0, 100)}), 60, 5, group=group)
        start = resolve(stored, view, policy, store_id=US, group="billing", deleted=deleted)
        assert only(start) == expected
        assert start.starts[P0].committed is None


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
    assert resolve({}, log, store_id=US, group="billing", deleted={None: 5, "another": 9}).offsets == {P0: 60, P1: 70}


@pytest.mark.behaviour("START-26")
def test_a_log_with_recorded_evidence_against_it_stops_the_start() -> None:
    suspect = Suspect("record 30 of epoch 1 is gone", NOON)
    with pytest.raises(LogTruncated) as caught:
        resolve({P0: replace(row(40), suspect=suspect)}, kafka({0: (0, 100)}))
    assert (caught.value.topic_partition, caught.value.found) == (
        P0,
        f"{suspect.what} (recorded on {NOON.isoformat()})",
    )


# -- another application in the group

CONTESTED = replace(row(40), contested=True, pinned_epoch=1)


@pytest.mark.behaviour("MIRROR-7", "START-18")
def test_a_partition_that_is_decided_follows_other_tools_again_whatever_is_contested_beside_it() -> None:
    start = resolve({P0: row(40), P1: CONTESTED}, kafka({0: (0, 100), 1: (0, 100)}, {0: 60}), store_id=US)

    assert (start.starts[P0].offset, start.starts[P0].reason) == (60, Reason.COMMITTED_IS_LARGER)
    assert (start.starts[P1].offset, start.starts[P1].reason) == (40, Reason.ONLY_STORED)


@pytest.mark.behaviour("MIRROR-7", "START-20")
def test_a_partition_without_a_row_is_not_adopted_where_the_topic_s_others_are_contested() -> None:
    view = kafka({0: (0, 100), 1: (5, 100)}, {1: 60})

    with pytest.raises(KafkaGroupContested) as caught:
        resolve({P0: CONTESTED}, view, store_id=US)
    assert (caught.value.topic_partition, caught.value.found) == (P1, "60 committed, no stored offset")
    decided = resolve({P0: CONTESTED}, view, StartPolicy(prefer="stored"), store_id=US)
    assert (decided.starts[P1].offset, decided.starts[P1].reason) == (5, Reason.CONTEST_STORED)
    adopted = resolve({P0: CONTESTED}, view, store_id=US, adopted={P1: 50})
    assert (adopted.starts[P1].offset, adopted.starts[P1].reason) == (50, Reason.CHECKPOINT)


@pytest.mark.behaviour("START-27")
def test_each_partition_is_compared_with_the_epoch_in_which_it_was_seen_itself() -> None:
    view = copy(kafka({0: (0, 100), 1: (0, 100)}), 60, 2)
    stored = {P0: CONTESTED, P1: replace(CONTESTED, pinned_epoch=3)}
    assert resolve(stored, view, store_id=US).starts[P0].reason is Reason.COPY_STORED
    stored = {P0: replace(CONTESTED, pinned_epoch=3), P1: CONTESTED}
    assert resolve(stored, view, store_id=US).starts[P0].reason is Reason.STORED


@pytest.mark.behaviour("START-27")
def test_a_partition_that_only_the_copy_of_the_database_knows_begins_at_its_beginning() -> None:
    view = copy(kafka({0: (5, 100), 1: (0, 100)}), 60, 2)
    start = resolve({P1: CONTESTED}, view, store_id=US)
    assert (start.starts[P0].offset, start.starts[P0].reason) == (5, Reason.COPY_STORED)
    with pytest.raises(StoreRewound):
        resolve({P1: row(40)}, view, store_id=US)


def test_without_a_store_a_copy_is_a_committed_offset_like_any_other() -> None:
    assert only(resolve({}, copy(kafka({0: (0, 100)}), 60))) == (60, Reason.ONLY_COMMITTED)


# -- is it inside the log


@pytest.mark.behaviour("START-7")
def test_their_loss_can_be_accepted() -> None:
    start = resolve({P0: row(40)}, kafka({0: (50, 100)}), StartPolicy(on_data_loss="earliest"))

    assert only(start) == (50, Reason.DATA_LOSS_ACCEPTED)
    assert start.starts[P0].skipped == OffsetRange(40, 50)


# -- is it the same log


@pytest.mark.behaviour("START-24")
def test_a_row_without_an_id_is_of_the_topic_that_the_others_are_of() -> None:
    """A partition was added while a job ran."""
    with pytest.raises(OffsetOutOfRange, match="and the topic is the same") as caught:
        resolve({P0: row(10), P1: row(40, topic_id=None)}, kafka({0: (0, 100), 1: (0, 30)}))

    assert caught.value.topic_partition == P1


@pytest.mark.behaviour("START-8", "START-24")
@pytest.mark.parametrize(
    ("stored", "shown"), [(None, None), (None, "this"), ("this", None)], ids=["neither", "not stored", "not shown"]
)
def test_a_log_that_ends_below_the_row_and_may_be_another_one_can_be_restarted(
    stored: str | None, shown: str | None
) -> None:
    start = resolve(
        {P0: row(40, topic_id=stored)}, kafka({0: (0, 30)}, topic_id=shown), StartPolicy(on_recreated="restart")
    )

    assert only(start) == (0, Reason.RECREATED_RESTART)


@pytest.mark.behaviour("START-8")
def test_a_vanished_partition_of_which_nothing_was_read_is_waited_for() -> None:
    start = resolve({P0: row(40), P1: row(0)}, kafka({0: (0, 100)}))

    assert start.offsets == {P0: 40}


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
    start = resolve(stored, view, StartPolicy(on_recreated="restart"))

    assert start.offsets == {P0: 0, P2: 3}
    assert {one.reason for one in start.starts.values()} == {Reason.RECREATED_RESTART}
    assert start.vanished == tuple(tp for tp in stored if tp == P1)


def test_rows_of_other_topics_are_left_alone() -> None:
    other = {TopicPartition("orders", 0): row(5, topic_id="gone", cluster_id="there")}

    assert resolve({P0: row(40), **other}, kafka({0: (0, 100)})).offsets == {P0: 40}


# -- what it looks like


@pytest.mark.behaviour("START-23")
def test_the_json_is_spark_s_with_numbers_as_names() -> None:
    view = kafka({10: (0, 5), 2: (0, 5), 0: (0, 100)})
    view.topics['a "quoted" topic'] = TopicLog(None, {0: Watermarks(0, 2**62)})

    found = json.loads(resolve({P0: row(40)}, view).json())

    assert found == {'a "quoted" topic': {"0": 0}, "payments": {"0": 40, "2": 0, "10": 0}}
    assert list(found["payments"]) == ["0", "2", "10"]


@pytest.mark.behaviour("START-5", "START-23")
def test_a_start_by_time_everywhere_can_be_given_to_spark_as_such() -> None:
    view = replace(kafka({0: (0, 100), 1: (0, 100)}), timestamps={P0: 70, P1: 100})

    start = resolve({}, view, StartPolicy(auto_offset_reset=NOON))

    assert json.loads(start.timestamps_json()) == {"payments": {"0": 1767268800000, "1": 1767268800000}}


@pytest.mark.behaviour("START-23")
def test_a_start_that_is_not_by_time_everywhere_can_not() -> None:
    view = replace(kafka({0: (0, 100), 1: (0, 100)}, {1: 7}), timestamps={P0: 70, P1: 100})
    with pytest.raises(ConfigurationError, match="not every partition starts by timestamp") as caught:
        resolve({}, view, StartPolicy(auto_offset_reset=NOON)).timestamps_json()

    assert caught.value.found == "1 of 2 partitions start for another reason"


@pytest.mark.behaviour("START-23", "START-18")
def test_the_explanation_says_where_why_and_what_was_known() -> None:
    stored = {P0: row(40), P1: row(7)}
    assert resolve(stored, kafka({0: (0, 100), 1: (0, 9)}, {0: 60})).explain() == (
        "payments-0  starts at 60: committed in Kafka by another tool, larger than stored"
        " (stored 40, committed 60, log [0, 100)); skips [40, 60)\n"
        "payments-1  starts at 7: stored; nothing is committed in Kafka (stored 7, committed -, log [0, 9))"
    )


@pytest.mark.behaviour("START-23", "START-8")
def test_the_explanation_names_vanished_partitions() -> None:
    start = resolve({P0: row(9), P1: row(7)}, kafka({0: (0, 100)}), StartPolicy(on_recreated="restart"))

    assert start.explain().splitlines()[-1] == "payments-1  vanished from Kafka: its stored offset goes to 0"


def test_no_topics_are_no_partitions() -> None:
    start = resolve({P0: row(40)}, BrokerView("here", {}, {}))

    assert (start.json(), start.explain()) == ("{}", "")


def test_a_stored_partition_that_the_job_does_not_read_any_more_has_not_vanished() -> None:
    """Spark's ``assign`` names some of a topic's partitions; rows of the others stay."""
    rows = {TopicPartition("payments", number): StoredOffset(7, Token(1, UUID(int=1))) for number in range(2)}
    log = TopicLog("payments-id", {0: Watermarks(0, 50)}, partition_count=2)
    starting = resolve(rows, BrokerView("cluster", {"payments": log}, {}))
    assert starting.offsets == {TopicPartition("payments", 0): 7}


# -- where one more, one less, or another topic would make a difference

REFUND0, REFUND1 = (TopicPartition("refunds", number) for number in range(2))


@pytest.mark.behaviour("START-8")
def test_one_record_that_was_read_of_a_vanished_partition_is_enough_to_stop_the_start() -> None:
    with pytest.raises(TopicRecreated):
        resolve({P0: row(40), P1: row(1)}, kafka({0: (0, 100)}))
    with pytest.raises(TopicRecreated):
        resolve({}, kafka({0: (0, 100)}), adopted={P0: 40, P1: 1})
    assert only(resolve({}, kafka({0: (0, 100)}), adopted={P0: 40, P1: 0})) == (40, Reason.CHECKPOINT)


@pytest.mark.behaviour("START-8")
def test_topics_that_are_restarted_each_name_their_vanished_partitions_and_others_stay() -> None:
    other = TopicPartition("orders", 0)
    view = kafka({0: (0, 100)}, topic_id="another")
    view.topics.update({name: TopicLog("another", {0: Watermarks(0, 50)}) for name in ("orders", "refunds")})
    rows = {tp: row(20) for tp in (P0, P1, REFUND0, REFUND1)} | {other: row(20, topic_id="another")}

    start = resolve(rows, view, StartPolicy(on_recreated="restart"))

    assert start.vanished == (P1, REFUND1)
    assert start.offsets == {P0: 0, REFUND0: 0, other: 20}


@pytest.mark.behaviour("START-8")
def test_a_restart_remembers_what_was_stored_and_what_is_committed() -> None:
    stored, committed = row(40), CommittedOffset(77)
    view = replace(kafka({0: (0, 100)}, topic_id="another"), committed={P0: committed})

    start = resolve({P0: stored}, view, StartPolicy(on_recreated="restart")).starts[P0]

    assert (start.stored, start.committed, start.log) == (stored, committed, Watermarks(0, 100))


@pytest.mark.behaviour("START-5", "START-20")
@pytest.mark.parametrize(
    ("adopted", "expected"),
    [
        pytest.param({P0: 40}, (0, Reason.NEW_PARTITION), id="of the topic"),
        pytest.param({REFUND0: 40}, (100, Reason.LATEST), id="of another topic"),
    ],
)
def test_a_checkpoint_makes_known_the_topics_that_it_has_and_no_others(
    adopted: dict[TopicPartition, int], expected: tuple[int, Reason]
) -> None:
    policy = StartPolicy(auto_offset_reset="latest")

    start = resolve({}, kafka({0: (0, 100), 1: (0, 100)}), policy, adopted=adopted).starts[P1]

    assert (start.offset, start.reason) == expected

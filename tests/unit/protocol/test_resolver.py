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
    OffsetsDisagree,
    StartError,
    StoreRewound,
    TopicRecreated,
    WrongCluster,
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


@pytest.mark.behaviour("START-1")
@pytest.mark.parametrize("committed", [0, 39, 40])
def test_the_larger_one_is_the_stored_one(committed: int) -> None:
    start = resolve({P0: row(40)}, kafka({0: (0, 100)}, {0: committed}))

    assert only(start) == (40, Reason.STORED)
    assert start.starts[P0].skipped is None


@pytest.mark.behaviour("START-2")
@pytest.mark.parametrize("committed", [20, 40, 60])
def test_the_stored_one_counts_if_the_policy_says_so(committed: int) -> None:
    start = resolve({P0: row(40)}, kafka({0: (0, 100)}, {0: committed}), StartPolicy(prefer="stored"))

    assert only(start) == (40, Reason.STORED)


def test_the_group_is_unknown_where_nothing_is_stored_alone() -> None:
    view = kafka({0: (0, 100)})
    assert resolve({}, view, group="billing").unknown == "billing"
    assert resolve({P0: row(40)}, view, group="billing").unknown is None


@pytest.mark.behaviour("START-3")
def test_both_agree() -> None:
    start = resolve({P0: row(40)}, kafka({0: (0, 100)}, {0: 40}), StartPolicy(prefer="agree"))

    assert only(start) == (40, Reason.STORED)


@pytest.mark.behaviour("START-3")
@pytest.mark.parametrize("committed", [39, 41])
def test_both_differ_where_they_have_to_agree(committed: int) -> None:
    with pytest.raises(OffsetsDisagree) as caught:
        resolve({P0: row(40)}, kafka({0: (0, 100)}, {0: committed}), StartPolicy(prefer="agree"))

    assert caught.value.topic_partition == P0
    assert caught.value.found == f"40 stored, {committed} committed"


@pytest.mark.behaviour("START-4")
@pytest.mark.parametrize("prefer", ["larger", "stored", "agree"])
def test_only_one_is_there(prefer: str) -> None:
    policy = replace(StartPolicy(), prefer=prefer)

    assert only(resolve({P0: row(40)}, kafka({0: (0, 100)}), policy)) == (40, Reason.ONLY_STORED)
    assert only(resolve({}, kafka({0: (0, 100)}, {0: 60}), policy)) == (60, Reason.ONLY_COMMITTED)


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


@pytest.mark.parametrize("prefer", ["larger", "stored", "agree"])
def test_a_pinned_row_wins_whatever_kafka_says(prefer: str) -> None:
    pinned = replace(row(40), pinned=True)

    start = resolve({P0: pinned}, kafka({0: (0, 100)}, {0: 60}), replace(StartPolicy(), prefer=prefer))

    assert only(start) == (40, Reason.PINNED)


# -- copies of ours


def copy(view: BrokerView, offset: int, epoch: int = 1, *, store_id: UUID = US, group: str | None = None) -> BrokerView:
    """The view, with a copy of a store's for the first partition."""
    stamped = CommittedOffset(offset, Stamp(store_id, epoch, group and digest(group)).text('{"trace": 1}'))
    return replace(view, committed={**view.committed, P0: stamped})


@pytest.mark.behaviour("START-1")
@pytest.mark.parametrize("prefer", ["larger", "stored", "agree"])
@pytest.mark.parametrize("committed", [0, 39, 40])
def test_a_copy_that_lags_behind_does_not_count(committed: int, prefer: str) -> None:
    policy = replace(StartPolicy(), prefer=prefer)
    start = resolve({P0: row(40)}, copy(kafka({0: (0, 100)}), committed), policy, store_id=US)

    assert only(start) == (40, Reason.STORED)


@pytest.mark.behaviour("START-6")
@pytest.mark.parametrize("prefer", ["larger", "stored", "agree"])
@pytest.mark.parametrize("epoch", [1, 9])
def test_a_copy_beyond_the_row_stops_the_start(epoch: int, prefer: str) -> None:
    policy = replace(StartPolicy(), prefer=prefer)
    with pytest.raises(StoreRewound) as caught:
        resolve({P0: row(40)}, copy(kafka({0: (0, 100)}), 60, epoch), policy, store_id=US)

    assert (caught.value.topic_partition, caught.value.found) == (P0, "offset 40 stored")
    assert caught.value.expected == f"at least 60, copied by store {US}, epoch {epoch}"
    assert 'on_rewound="stored"' in caught.value.next_step


@pytest.mark.behaviour("CONS-2")
def test_what_cant_start_for_a_reason_of_its_own_is_passed_over_with_its_error() -> None:
    passed_over: dict[TopicPartition, StartError] = {}
    start = resolve({P0: row(40), P1: row(40)}, kafka({0: (50, 100), 1: (0, 100)}), passed_over=passed_over)
    assert start.offsets == {P1: 40}
    assert {tp: (type(error), error.topic_partition) for tp, error in passed_over.items()} == {
        P0: (OffsetOutOfRange, P0)
    }


@pytest.mark.behaviour("START-6")
@pytest.mark.parametrize(
    ("stored", "policy", "expected"),
    [
        ({P0: row(40)}, StartPolicy(on_rewound="stored"), (40, Reason.REWOUND_STORED)),
        ({P0: row(40)}, StartPolicy(on_rewound="kafka"), (60, Reason.REWOUND_KAFKA)),
        ({}, StartPolicy(on_rewound="stored"), (10, Reason.REWOUND_STORED)),
        ({}, StartPolicy(on_rewound="stored", auto_offset_reset=NOON), (70, Reason.REWOUND_STORED)),
        ({}, StartPolicy(on_rewound="kafka"), (60, Reason.REWOUND_KAFKA)),
    ],
    ids=["stored", "kafka", "lost, stored", "lost, stored, by time", "lost, kafka"],
)
def test_a_rewound_store_starts_where_it_is_told(
    stored: dict[TopicPartition, StoredOffset], policy: StartPolicy, expected: tuple[int, Reason]
) -> None:
    view = replace(copy(kafka({0: (10, 100)}), 60), timestamps={P0: 70} if policy.timestamp_ms else None)

    start = resolve(stored, view, policy, store_id=US)

    assert only(start) == expected
    skipped = OffsetRange(40, 60) if stored and policy.on_rewound == "kafka" else None
    assert start.starts[P0].skipped == skipped


@pytest.mark.behaviour("START-21")
def test_a_copy_of_before_the_row_was_set_back_does_not_count() -> None:
    decided = replace(row(10), pinned_epoch=5)

    assert only(resolve({P0: decided}, copy(kafka({0: (0, 100)}), 60, 4), store_id=US)) == (10, Reason.STORED)
    with pytest.raises(StoreRewound):
        resolve({P0: decided}, copy(kafka({0: (0, 100)}), 60, 5), store_id=US)


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


@pytest.mark.behaviour("START-6")
def test_a_token_of_claims_that_did_not_look_hides_nothing() -> None:
    later = replace(row(40), token=Token(9, UUID(int=1)))
    with pytest.raises(StoreRewound):
        resolve({P0: later}, copy(kafka({0: (0, 100)}), 60, 3), store_id=US)


@pytest.mark.behaviour("START-9")
@pytest.mark.parametrize("stored", [{}, {P0: row(40)}], ids=["no row", "a row"])
@pytest.mark.parametrize("committed", [10, 40, 60])
def test_a_copy_of_another_store_is_refused(stored: dict[TopicPartition, StoredOffset], committed: int) -> None:
    policy = StartPolicy(prefer="stored", on_rewound="stored")
    with pytest.raises(ForeignStore) as caught:
        resolve(stored, copy(kafka({0: (0, 100)}), committed, store_id=THEM), policy, store_id=US)

    assert (caught.value.topic_partition, caught.value.expected) == (P0, f"store {US}")


@pytest.mark.behaviour("START-21")
@pytest.mark.parametrize("store_id", [US, THEM], ids=["ours", "another store's"])
def test_a_pinned_row_wins_over_every_copy(store_id: UUID) -> None:
    pinned = replace(row(40), pinned=True)

    start = resolve({P0: pinned}, copy(kafka({0: (0, 100)}), 60, 9, store_id=store_id), store_id=US)

    assert only(start) == (40, Reason.PINNED)


@pytest.mark.behaviour("START-9", "MIRROR-7")
@pytest.mark.parametrize("stored", [{}, {P0: row(40)}], ids=["no row", "a row"])
@pytest.mark.parametrize("committed", [10, 40, 60])
def test_a_copy_of_another_group_is_refused(stored: dict[TopicPartition, StoredOffset], committed: int) -> None:
    view = copy(kafka({0: (0, 100)}), committed, group="invoicing")
    policy = StartPolicy(prefer="stored", on_rewound="stored")
    with pytest.raises(KafkaGroupShared) as caught:
        resolve(stored, view, policy, store_id=US, group="billing")

    assert (caught.value.topic_partition, caught.value.expected) == (P0, f"group {digest('billing')}, by SHA-256")
    with pytest.raises(ForeignStore):
        resolve(stored, view, policy, store_id=THEM, group="invoicing")


@pytest.mark.behaviour("START-6", "MIRROR-7")
@pytest.mark.parametrize("group", ["billing", None], ids=["this version", "the version before"])
def test_a_copy_of_the_group_s_own_is_known_by_either_version(group: str | None) -> None:
    view = kafka({0: (0, 100)})

    lagging = resolve({P0: row(40)}, copy(view, 30, group=group), store_id=US, group="billing")
    assert only(lagging) == (40, Reason.STORED)
    with pytest.raises(StoreRewound):
        resolve({P0: row(40)}, copy(view, 60, group=group), store_id=US, group="billing")


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
@pytest.mark.parametrize("prefer", ["larger", "agree"])
@pytest.mark.parametrize("committed", [10, 40, 60])
@pytest.mark.parametrize("pinned", [False, True])
def test_what_another_application_has_committed_under_the_job_stops_the_start(
    committed: int, prefer: str, *, pinned: bool
) -> None:
    view = kafka({0: (0, 100)}, {0: committed})
    policy = replace(StartPolicy(), prefer=prefer)
    with pytest.raises(KafkaGroupContested) as caught:
        resolve({P0: replace(CONTESTED, pinned=pinned)}, view, policy, store_id=US)

    assert (caught.value.topic_partition, caught.value.found) == (P0, f"{committed} committed, 40 stored")


@pytest.mark.behaviour("MIRROR-7", "START-18")
@pytest.mark.parametrize("committed", [10, 40, 60])
@pytest.mark.parametrize("pinned", [False, True])
def test_the_stored_offset_counts_where_that_is_decided(committed: int, *, pinned: bool) -> None:
    view = kafka({0: (0, 100)}, {0: committed})
    start = resolve({P0: replace(CONTESTED, pinned=pinned)}, view, StartPolicy(prefer="stored"), store_id=US)

    assert only(start) == (40, Reason.CONTEST_STORED)


@pytest.mark.behaviour("MIRROR-7")
def test_another_application_that_has_nothing_in_kafka_any_more_is_over() -> None:
    view = kafka({0: (0, 100)})

    assert only(resolve({P0: CONTESTED}, view, store_id=US)) == (40, Reason.ONLY_STORED)
    assert only(resolve({P0: CONTESTED}, copy(view, 30), store_id=US)) == (40, Reason.STORED)


@pytest.mark.behaviour("MIRROR-7", "START-9")
@pytest.mark.parametrize("pinned", [False, True])
def test_copies_of_others_are_named_as_such_also_where_they_came_under_the_job(*, pinned: bool) -> None:
    policy, view = StartPolicy(prefer="stored"), kafka({0: (0, 100)})
    stored = {P0: replace(CONTESTED, pinned=pinned)}

    with pytest.raises(ForeignStore):
        resolve(stored, copy(view, 30, store_id=THEM), policy, store_id=US, group="billing")
    with pytest.raises(KafkaGroupShared):
        resolve(stored, copy(view, 30, group="invoicing"), policy, store_id=US, group="billing")


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
@pytest.mark.parametrize("policy", [StartPolicy(), StartPolicy(on_rewound="kafka"), StartPolicy(prefer="agree")])
@pytest.mark.parametrize("committed", [30, 60])
@pytest.mark.parametrize("pinned", [False, True])
def test_a_copy_of_the_database_that_was_seen_under_the_job_is_ignored(
    committed: int, policy: StartPolicy, *, pinned: bool
) -> None:
    stored = {P0: replace(CONTESTED, pinned=pinned)}
    view = copy(kafka({0: (0, 100)}), committed, 2, group="billing")

    assert only(resolve(stored, view, policy, store_id=US, group="billing")) == (40, Reason.COPY_STORED)
    later = {P0: replace(stored[P0], token=Token(2, stored[P0].token.claim_id))}  # a claim that did not look at Kafka
    assert only(resolve(later, view, policy, store_id=US, group="billing")) == (40, Reason.COPY_STORED)
    with pytest.raises(KafkaGroupShared):
        resolve(stored, copy(view, committed, 2, group="invoicing"), policy, store_id=US, group="billing")


@pytest.mark.behaviour("START-27")
def test_each_partition_is_compared_with_the_epoch_in_which_it_was_seen_itself() -> None:
    view = copy(kafka({0: (0, 100), 1: (0, 100)}), 60, 2)
    stored = {P0: CONTESTED, P1: replace(CONTESTED, pinned_epoch=3)}
    assert resolve(stored, view, store_id=US).starts[P0].reason is Reason.COPY_STORED
    stored = {P0: replace(CONTESTED, pinned_epoch=3), P1: CONTESTED}
    assert resolve(stored, view, store_id=US).starts[P0].reason is Reason.STORED


@pytest.mark.behaviour("START-27", "START-6")
def test_a_copy_of_ours_that_no_later_claim_made_is_of_this_database() -> None:
    view = kafka({0: (0, 100)})
    with pytest.raises(StoreRewound):  # it was seen by nobody
        resolve({P0: row(40)}, copy(view, 60, 2), store_id=US)
    with pytest.raises(StoreRewound):  # of the same claim: the rows went back
        resolve({P0: CONTESTED}, copy(view, 60, 1), store_id=US)
    assert only(resolve({P0: CONTESTED}, copy(view, 30, 1), store_id=US)) == (40, Reason.STORED)


@pytest.mark.behaviour("START-27")
def test_a_partition_that_only_the_copy_of_the_database_knows_begins_at_its_beginning() -> None:
    view = copy(kafka({0: (5, 100), 1: (0, 100)}), 60, 2)
    start = resolve({P1: CONTESTED}, view, store_id=US)
    assert (start.starts[P0].offset, start.starts[P0].reason) == (5, Reason.COPY_STORED)
    with pytest.raises(StoreRewound):
        resolve({P1: row(40)}, view, store_id=US)


@pytest.mark.behaviour("START-7", "START-21")
@pytest.mark.parametrize("policy", [StartPolicy(), StartPolicy(on_recreated="restart")], ids=["fail", "restart"])
def test_a_reset_beyond_the_end_reads_nothing_again(policy: StartPolicy) -> None:
    pinned = replace(row(9000), pinned=True)

    with pytest.raises(OffsetOutOfRange, match=r"pinned by an operator.*end 1000.*offsetstore reset"):
        resolve({P0: pinned, P1: row(800)}, kafka({0: (0, 1000), 1: (0, 1000)}), policy, store_id=US)
    with pytest.raises(TopicRecreated):
        resolve({P0: pinned}, kafka({0: (0, 1000)}, topic_id="other"), store_id=US)


@pytest.mark.behaviour("START-8", "START-20")
def test_an_adopted_offset_of_a_partition_that_vanished_stops_the_start() -> None:
    view = kafka({0: (0, 100)})

    with pytest.raises(TopicRecreated, match="70 is to be adopted"):
        resolve({}, view, adopted={P0: 40, P1: 70})
    assert only(resolve({}, view, adopted={P0: 40, P1: 0})) == (40, Reason.CHECKPOINT)


def test_without_a_store_a_copy_is_a_committed_offset_like_any_other() -> None:
    assert only(resolve({}, copy(kafka({0: (0, 100)}), 60))) == (60, Reason.ONLY_COMMITTED)


# -- is it inside the log


@pytest.mark.behaviour("START-7")
def test_their_loss_can_be_accepted() -> None:
    start = resolve({P0: row(40)}, kafka({0: (50, 100)}), StartPolicy(on_data_loss="earliest"))

    assert only(start) == (50, Reason.DATA_LOSS_ACCEPTED)
    assert start.starts[P0].skipped == OffsetRange(40, 50)


@pytest.mark.behaviour("START-7")
@pytest.mark.parametrize("offset", [50, 100])
def test_the_log_s_own_bounds_are_inside(offset: int) -> None:
    assert only(resolve({P0: row(offset)}, kafka({0: (50, 100)})))[0] == offset


@pytest.mark.behaviour("START-7")
def test_a_committed_offset_that_is_gone_is_an_error_too() -> None:
    with pytest.raises(OffsetOutOfRange):
        resolve({}, kafka({0: (50, 100)}, {0: 40}))


# -- is it the same log


@pytest.mark.behaviour("START-8")
def test_a_recreated_topic_that_is_shorter_is_noticed_without_any_id() -> None:
    with pytest.raises(TopicRecreated, match="beyond the end of the log") as caught:
        resolve({P0: row(40, topic_id=None)}, kafka({0: (0, 30)}, topic_id=None))

    assert (caught.value.topic_partition, caught.value.found) == (P0, "end 30")
    assert 'on_recreated="restart"' in caught.value.next_step


@pytest.mark.behaviour("START-24")
@pytest.mark.parametrize("policy", [StartPolicy(), StartPolicy(on_recreated="restart")], ids=["fail", "restart"])
def test_a_log_that_ends_below_the_row_under_the_same_id_is_no_other_topic(policy: StartPolicy) -> None:
    with pytest.raises(OffsetOutOfRange, match=r"and the topic is the same.*open transaction") as caught:
        resolve({P0: row(40)}, kafka({0: (0, 30)}), policy)

    assert (caught.value.topic_partition, caught.value.found, caught.value.expected) == (P0, "end 30", "at least 40")


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


@pytest.mark.behaviour("START-8")
def test_a_restart_concerns_the_recreated_topic_alone() -> None:
    refund = TopicPartition("refunds", 0)
    view = kafka({0: (0, 100)}, topic_id="another")
    view.topics["refunds"] = TopicLog("refunds-id", {0: Watermarks(0, 50)})

    start = resolve({P0: row(40), refund: row(20, topic_id="refunds-id")}, view, StartPolicy(on_recreated="restart"))

    assert start.offsets == {P0: 0, refund: 20}


def test_rows_from_before_there_were_ids_are_taken_as_they_are() -> None:
    assert only(resolve({P0: row(40, topic_id=None, cluster_id=None)}, kafka({0: (0, 100)})))[0] == 40


@pytest.mark.behaviour("START-9")
def test_another_cluster_is_refused_whatever_the_policy() -> None:
    policy = StartPolicy(prefer="stored", on_data_loss="earliest", on_recreated="restart")
    with pytest.raises(WrongCluster) as caught:
        resolve({P0: row(40, cluster_id="there")}, kafka({0: (0, 100)}), policy)

    assert (caught.value.found, caught.value.expected) == ("here", "there")


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


@pytest.mark.behaviour("START-7")
@pytest.mark.parametrize(
    ("stored", "reason"), [({}, Reason.ONLY_COMMITTED), ({P0: row(40)}, Reason.COMMITTED_IS_LARGER)]
)
def test_a_committed_offset_at_the_end_of_the_log_is_inside(
    stored: dict[TopicPartition, StoredOffset], reason: Reason
) -> None:
    assert only(resolve(stored, kafka({0: (0, 100)}, {0: 100}))) == (100, reason)


@pytest.mark.behaviour("START-8")
def test_one_record_that_was_read_of_a_vanished_partition_is_enough_to_stop_the_start() -> None:
    with pytest.raises(TopicRecreated):
        resolve({P0: row(40), P1: row(1)}, kafka({0: (0, 100)}))
    with pytest.raises(TopicRecreated):
        resolve({}, kafka({0: (0, 100)}), adopted={P0: 40, P1: 1})


@pytest.mark.behaviour("START-8")
def test_two_topics_that_are_restarted_at_once_each_name_their_vanished_partitions() -> None:
    view = kafka({0: (0, 100)}, topic_id="another")
    view.topics["refunds"] = TopicLog("another", {0: Watermarks(0, 50)})
    rows = {tp: row(20) for tp in (P0, P1, REFUND0, REFUND1)}

    start = resolve(rows, view, StartPolicy(on_recreated="restart"))

    assert start.vanished == (P1, REFUND1)


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

"""What holds for every start, whatever the store and Kafka say."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offsetstore.errors import StartError
from offsetstore.offsets import (
    BrokerView,
    CommittedOffset,
    StoredOffset,
    Token,
    TopicLog,
    TopicPartition,
    Watermarks,
)
from offsetstore.protocol.resolver import resolve
from offsetstore.protocol.starting import Reason, StartingOffsets, StartPolicy
from offsetstore.protocol.store_facts import Stamp, digest
from offsetstore.store.acquire import new_offsets

TOKEN = Token(1, UUID(int=1))
US, THEM = UUID(int=7), UUID(int=8)
OURS = digest("billing")
EPOCHS = 4
# What passes over records that the store has not seen, each by a decision that the history records.
MAY_SKIP = {
    Reason.COMMITTED_IS_LARGER,
    Reason.DATA_LOSS_ACCEPTED,
    Reason.RECREATED_RESTART,
    Reason.REWOUND_KAFKA,
}

offsets = st.integers(0, 8)
partitions = st.builds(TopicPartition, st.sampled_from(["payments", "refunds"]), st.integers(0, 2))
topic_ids = st.sampled_from([None, "this", "this", "another"])


@st.composite
def watermarks(draw: st.DrawFn) -> Watermarks:
    one, other = draw(offsets), draw(offsets)
    return Watermarks(min(one, other), max(one, other))


rows = st.builds(
    StoredOffset,
    offsets,
    st.just(TOKEN),
    topic_id=topic_ids,
    cluster_id=st.sampled_from([None, "cluster", "cluster", "elsewhere"]),
    pinned=st.booleans(),
    pinned_epoch=st.integers(0, EPOCHS),
    contested=st.sampled_from([False, False, False, True]),
)
texts = st.one_of(
    st.sampled_from([None, "another tool's"]),
    st.builds(
        Stamp.text,
        st.builds(Stamp, st.sampled_from([US, US, US, THEM]), st.integers(1, EPOCHS), st.sampled_from([OURS, None])),
    ),
)
copies = st.builds(CommittedOffset, offsets, texts)
logs = st.builds(TopicLog, topic_ids, st.dictionaries(st.integers(0, 2), watermarks(), min_size=1))
policies = st.builds(
    StartPolicy,
    st.sampled_from(["larger", "stored", "agree"]),
    st.sampled_from(["earliest", "latest", "none", datetime(2026, 1, 1, tzinfo=UTC)]),
    st.sampled_from(["fail", "earliest"]),
    st.sampled_from(["fail", "restart"]),
    st.sampled_from(["fail", "stored", "kafka"]),
)


@st.composite
def views(draw: st.DrawFn) -> BrokerView:
    topics = draw(st.dictionaries(st.sampled_from(["payments", "refunds"]), logs, min_size=1))
    committed = draw(st.dictionaries(partitions, copies))
    timestamps = {
        TopicPartition(topic, number): draw(st.integers(log.beginning, log.end))
        for topic, one in topics.items()
        for number, log in one.partitions.items()
    }
    return BrokerView("cluster", topics, committed, timestamps)


stored_offsets = st.dictionaries(partitions, rows)


def start_of(
    stored: dict[TopicPartition, StoredOffset], view: BrokerView, policy: StartPolicy
) -> StartingOffsets | StartError:
    try:
        return resolve(stored, view, policy, store_id=US, group="billing")
    except StartError as error:
        return error


@pytest.mark.behaviour("START-1", "START-7", "START-8")
@given(stored_offsets, views(), policies)
def test_a_start_lies_inside_the_log_and_off_the_stored_offset_only_by_a_decision(
    stored: dict[TopicPartition, StoredOffset], view: BrokerView, policy: StartPolicy
) -> None:
    start = start_of(stored, view, policy)
    if isinstance(start, StartError):
        assert start.topic_partition is not None
        assert start.next_step
        return
    for tp, one in start.starts.items():
        assert one.log.beginning <= one.offset <= one.log.end
        at = stored[tp].next_offset if tp in stored else one.offset
        if one.offset > at:
            assert one.reason in MAY_SKIP
            assert (one.skipped is None) == (one.reason is Reason.RECREATED_RESTART)
        if one.offset < at:
            assert one.reason is Reason.RECREATED_RESTART
    reasons = {one.reason for one in start.starts.values()}
    allowed = {
        Reason.COMMITTED_IS_LARGER: policy.prefer == "larger",
        Reason.DATA_LOSS_ACCEPTED: policy.on_data_loss != "fail",
        Reason.RECREATED_RESTART: policy.on_recreated != "fail",
        Reason.REWOUND_KAFKA: policy.on_rewound == "kafka",
    }
    assert all(allowed.get(reason, True) for reason in reasons)


@pytest.mark.behaviour("MIRROR-7", "START-18")
@given(stored_offsets, views(), policies)
def test_what_another_application_has_committed_under_the_job_is_never_adopted(
    stored: dict[TopicPartition, StoredOffset], view: BrokerView, policy: StartPolicy
) -> None:
    start = start_of(stored, view, policy)
    if isinstance(start, StartError):
        return
    topics = {tp.topic for tp, row in stored.items() if row.contested}
    decided = {Reason.CONTEST_STORED, Reason.NEW_PARTITION, Reason.DATA_LOSS_ACCEPTED, Reason.RECREATED_RESTART}
    for tp, one in start.starts.items():
        if stored[tp].contested if tp in stored else tp.topic in topics:
            assert one.reason not in {Reason.COMMITTED_IS_LARGER, Reason.ONLY_COMMITTED}
            ours = (stamp := Stamp.of(one.committed)) is not None and stamp.store_id == US
            assert one.committed is None or ours or one.reason in decided


@pytest.mark.behaviour("START-11", "START-23")
@given(stored_offsets, views(), policies)
def test_every_partition_of_every_topic_is_named(
    stored: dict[TopicPartition, StoredOffset], view: BrokerView, policy: StartPolicy
) -> None:
    start = start_of(stored, view, policy)
    if isinstance(start, StartError):
        return
    wanted = {topic: {str(number) for number in log.partitions} for topic, log in view.topics.items()}
    named = json.loads(start.json())
    assert {topic: set(numbers) for topic, numbers in named.items()} == wanted
    told = len(start.starts) + len(start.vanished) + (start.warning is not None)
    assert len(start.explain().splitlines()) == told
    assert all(tp.partition not in view.topics[tp.topic].partitions for tp in start.vanished)


@given(stored_offsets, views(), policies)
def test_what_was_resolved_and_stored_resolves_to_itself(
    stored: dict[TopicPartition, StoredOffset], view: BrokerView, policy: StartPolicy
) -> None:
    """A second claim, right after the first one and with nothing written, starts at the same place."""
    start = start_of(stored, view, policy)
    if isinstance(start, StartError):
        return
    after = claimed(stored, start, view)
    for later in (policy, replace(policy, on_rewound="fail")):  # an override is for one start
        again = start_of(after, view, later)
        if policy.prefer == "agree" and isinstance(again, StartError):
            return
        assert isinstance(again, StartingOffsets)
        assert again.offsets == start.offsets


@pytest.mark.behaviour("START-21", "START-6")
@given(stored_offsets, views(), policies, st.data())
def test_once_the_mirror_has_followed_no_copy_of_a_claim_before_counts(
    stored: dict[TopicPartition, StoredOffset], view: BrokerView, policy: StartPolicy, data: st.DataObject
) -> None:
    """A stale job's last copy may come at any time; what was seen in Kafka at the claim, a restored database's too."""
    start = start_of(stored, view, policy)
    if isinstance(start, StartError):
        return
    after = {tp: replace(row, pinned=False, contested=False) for tp, row in claimed(stored, start, view).items()}
    seen = {tp: one for tp, one in view.committed.items() if (stamp := Stamp.of(one)) and stamp.store_id == US}
    decided = [tp for tp, row in after.items() if row.pinned_epoch == EPOCHS + 1 and tp in seen]
    mirrored = {tp: CommittedOffset(row.next_offset, Stamp(US, EPOCHS + 1, OURS).text()) for tp, row in after.items()}
    late = {tp: seen[tp] for tp in decided if data.draw(st.booleans())}

    again = start_of(after, replace(view, committed=mirrored | late), StartPolicy())

    assert isinstance(again, StartingOffsets)
    assert again.offsets == start.offsets


def claimed(
    stored: dict[TopicPartition, StoredOffset], start: StartingOffsets, view: BrokerView
) -> dict[TopicPartition, StoredOffset]:
    """The rows after the claim, by what it writes."""
    new = new_offsets(stored, start, view)
    rows = {tp: stored.get(tp) or StoredOffset(0, TOKEN) for tp in start.starts}
    return {
        tp: replace(
            row,
            next_offset=new[tp].next_offset,
            topic_id=new[tp].topic_id,
            cluster_id=new[tp].cluster_id,
            pinned=new[tp].pinned,
            pinned_epoch=EPOCHS + 1 if new[tp].pinned or new[tp].contested else row.pinned_epoch,
            contested=new[tp].contested,
        )
        if tp in new
        else row
        for tp, row in rows.items()
    }

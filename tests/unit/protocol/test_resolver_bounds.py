"""The resolver where one more, one less, or another topic would make a difference."""

from __future__ import annotations

from dataclasses import replace

import pytest

from offsetstore.errors import TopicRecreated
from offsetstore.offsets import CommittedOffset, StoredOffset, TopicLog, TopicPartition, Watermarks
from offsetstore.protocol.policy import StartPolicy
from offsetstore.protocol.resolver import resolve
from offsetstore.protocol.starting import Reason
from tests.unit.protocol.test_resolver import P0, P1, kafka, only, row

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

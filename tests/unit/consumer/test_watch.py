"""Records in whose handling processes have died: handed over one by one, in turn with all others."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from offsetstore import Flush, TopicPartition
from offsetstore.consumer.delivery import Polled
from offsetstore.consumer.records import ConsumedRecord
from offsetstore.consumer.watch import CarefulFeed, ranges_of
from offsetstore.offsets import OffsetRange, Ranges
from offsetstore.protocol.letters import Payload
from offsetstore.store.term import Term

pytestmark = pytest.mark.behaviour("CONS-17")

P0, P1, P2 = (TopicPartition("payments", number) for number in range(3))


class Fed:
    """A feed of three partitions from offset 0 on, whose records don't wait.

    :param suspects: may be changed.
    """

    def __init__(self, limits: Flush | None = None, **suspects: tuple[int, int]) -> None:
        self.suspects: dict[TopicPartition, OffsetRange] = {
            TopicPartition("payments", int(name[1:])): OffsetRange(*range_) for name, range_ in suspects.items()
        }
        self.feed = CarefulFeed(limits or Flush(rows=1000, seconds=1000), suspects=lambda: self.suspects)
        self.feed.begin(dict.fromkeys((P0, P1, P2), 0), {tp: Term() for tp in (P0, P1, P2)})

    def add(self, tp: TopicPartition, *offsets: int) -> None:
        self.feed.add(tp, [ConsumedRecord(tp, offset, Payload(None, b"1", (), 0, 0)) for offset in offsets])

    def take(self) -> dict[int, tuple[str, list[int]]]:
        return self._shown(self.feed.take())

    def others(self) -> dict[int, tuple[str, list[int]]]:
        return self._shown(self.feed.take_others())

    @staticmethod
    def _shown(taken: Mapping[TopicPartition, Polled]) -> dict[int, tuple[str, list[int]]]:
        return {tp.partition: (str(one.range), [record.offset for record in one.records]) for tp, one in taken.items()}


def test_suspect_records_are_handed_over_one_by_one_and_others_in_turn_with_them() -> None:
    fed = Fed(P0=(0, 3))
    fed.add(P0, 0, 2, 3, 5)
    fed.add(P1, 0, 1)
    assert not fed.feed.is_due
    assert fed.take() == {1: ("[0, 2)", [0, 1])}
    assert (fed.feed.is_due, fed.feed.is_careful, fed.feed.held) == (True, True, {P0})
    assert fed.take() == {0: ("[0, 1)", [0])}
    fed.add(P1, 2)
    fed.add(P0, 6)
    assert fed.take() == {1: ("[2, 3)", [2])}
    assert fed.take() == {0: ("[1, 3)", [2])}  # with the gap before it
    assert fed.take() == {0: ("[3, 7)", [3, 5, 6])}  # they are passed
    assert (fed.feed.is_due, fed.feed.is_careful, fed.feed.held) == (False, False, set())
    fed.add(P0, 7, 8)
    assert fed.take() == {0: ("[7, 9)", [7, 8])}
    assert fed.take() == {}


def test_a_record_that_is_the_only_suspect_comes_last_since_it_ends_the_process_that_handles_it() -> None:
    fed = Fed(P0=(0, 1), P1=(0, 9))
    fed.add(P0, 0, 1)
    fed.add(P1, 0, 1)
    assert [[*fed.take()] for _ in range(4)] == [[1], [1], [0], [0]]


def test_what_becomes_suspect_while_it_waits_is_handed_over_one_by_one() -> None:
    fed = Fed()
    fed.add(P0, 0, 1)
    fed.suspects[P0] = OffsetRange(0, 2)
    assert [fed.take(), fed.take()] == [{0: ("[0, 1)", [0])}, {0: ("[1, 2)", [1])}]


def test_a_range_without_records_and_one_that_was_passed_are_no_suspects() -> None:
    fed = Fed(P0=(0, 3), P1=(5, 9))
    fed.feed.reach(P0, 3)
    fed.feed.begin({P1: 9}, {P1: Term()})
    fed.add(P1, 9, 10)
    assert fed.take() == {1: ("[9, 11)", [9, 10])}
    assert fed.take() == {0: ("[0, 3)", [])}


def test_a_partition_that_is_given_back_takes_what_waits_of_it_along() -> None:
    fed = Fed(P0=(0, 9))
    fed.add(P0, 0, 1)
    fed.take()
    fed.feed.drop([P0])
    assert (fed.feed.is_due, fed.feed.held, fed.take()) == (False, set(), {})
    fed.feed.begin({P0: 1}, {P0: Term()})
    fed.add(P0, 1, 2)
    assert fed.take() == {0: ("[1, 2)", [1])}


def test_ranges_of_single_records() -> None:
    expected: Ranges = {P0: OffsetRange(3, 8), P1: OffsetRange(4, 5)}
    assert ranges_of([(P0, 5), (P1, 4), (P0, 7), (P0, 3)]) == expected


@pytest.mark.parametrize("limits", [Flush(rows=8, seconds=1000), Flush(seconds=1000, bytes=8)], ids=["rows", "bytes"])
def test_what_is_kept_apart_counts_for_the_limits_and_leaves_half_of_them_to_others(limits: Flush) -> None:
    fed = Fed(limits, P0=(0, 100), P1=(0, 100))
    for tp in (P0, P1):
        fed.add(tp, *range(4))
        assert len(fed.take()) == 1  # the first of them is handed over, and the others are apart
    assert fed.feed.room in {4, 5}  # in bytes it is estimated
    fed.add(P2, *range(4))
    assert fed.feed.room == 0
    assert [[*fed.take()] for _ in range(3)] == [[2], [1], [0]]
    assert fed.feed.room in {4, 5}
    fed.add(P0, *range(4, 8))
    fed.suspects.clear()
    assert sum(len(records) for _, records in fed.take().values()) == 8
    assert fed.feed.room >= 8


def test_a_partition_that_fills_the_limits_alone_leaves_room_for_others() -> None:
    fed = Fed(Flush(rows=1, seconds=1000), P0=(0, 100))
    fed.add(P0, *range(9))
    assert ([*fed.take()], fed.feed.room) == ([0], 1)


def test_what_is_not_suspect_is_handed_over_at_once_where_the_limits_take_suspect_records_first() -> None:
    fed = Fed(Flush(rows=1, seconds=1000), P0=(0, 3))
    for tp in (P0, P1):
        fed.add(tp, 0, 1)
    assert [fed.others() for _ in range(3)] == [{1: ("[0, 1)", [0])}, {1: ("[1, 2)", [1])}, {}]

"""Whatever filters decide, each record is delivered or dropped once, in order, and no offset passes one that waits."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offsetstore import Flush, Record, TopicPartition
from offsetstore.consumer import Context, Filter, Kept, Throttle
from offsetstore.consumer import feed as feed_module
from offsetstore.consumer.feed import Feed
from offsetstore.consumer.records import ConsumedRecord as PolledRecord
from offsetstore.protocol.letters import Payload
from offsetstore.store.term import Term

PARTITIONS = [TopicPartition("payments", number) for number in range(2)]


class Drawn:
    """Decides by the numbers that it was made with, and checks what it is given."""

    def __init__(self, numbers: Sequence[int]) -> None:
        self._numbers = numbers
        self._at = 0
        self._next: dict[int, int] = {}
        self.dropped = set[tuple[int, int]]()

    def apply(self, records: Sequence[Record], context: Context) -> Kept:
        offsets, partition = [one.offset for one in records], context.topic_partition.partition
        assert offsets == sorted({*offsets})
        assert offsets[0] >= self._next.get(partition, 0)  # nothing that was decided comes again
        prefix = self._draw() % (len(records) + 1)
        dropped = [offset for offset in offsets[:prefix] if self._draw() % 3 == 0]
        if prefix:
            self._next[partition] = offsets[prefix - 1] + 1
        self.dropped |= {(partition, offset) for offset in dropped}
        return Kept(prefix, dropped, wait=float(self._draw() % 3))

    def _draw(self) -> int:
        self._at += 1
        return self._numbers[self._at % len(self._numbers)]


numbers = st.lists(st.integers(0, 7), min_size=3, max_size=40)
filters = st.lists(st.one_of(st.builds(Drawn, numbers), st.builds(Throttle, st.integers(1, 5))), max_size=3)
polls = st.lists(st.lists(st.tuples(st.integers(0, 1), st.integers(1, 3)), max_size=6), max_size=25)


@pytest.mark.behaviour("CONS-10")
@settings(max_examples=120, deadline=None)
@given(
    asked=filters,
    polled=polls,
    ends=st.lists(st.booleans(), min_size=25, max_size=25),
    rows=st.sampled_from([1, 3, 10, 1000]),
)
def test_each_record_is_delivered_or_dropped_once_and_no_offset_passes_one_that_waits(
    asked: list[Filter], polled: list[list[tuple[int, int]]], ends: list[bool], rows: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(feed_module, "_DEFERRED", 1)  # so many and those of a flush may wait: the others are read again
        deliver(asked, polled, ends, rows)


def deliver(asked: list[Filter], polled: list[list[tuple[int, int]]], ends: list[bool], rows: int) -> None:
    feed = Feed(Flush(rows=rows, seconds=1e-9), asked)
    feed.begin(dict.fromkeys(PARTITIONS, 0), {tp: Term() for tp in PARTITIONS})
    next_, there = [0, 0], set[tuple[int, int]]()
    logs: list[list[PolledRecord]] = [[], []]
    position = [0, 0]
    delivered, stored, when = list[tuple[int, int]](), [0, 0], list[int]()
    dropped, second = 0, 0
    waiting = True
    while second < len(polled) or (waiting and second < 2000):
        for partition, gap in polled[second] if second < len(polled) else ():
            offset = next_[partition] + gap - 1
            next_[partition] = offset + 1
            there.add((partition, offset))
            logs[partition].append(PolledRecord(PARTITIONS[partition], offset, Payload(None, b"1", (), 0, 0)))
        for tp in {*PARTITIONS}.difference(feed.deferred):
            feed.add(tp, [one for one in logs[tp.partition] if one.offset >= position[tp.partition]])
            position[tp.partition] = next_[tp.partition]
            if tp == PARTITIONS[0] and second < len(polled) and ends[second]:
                feed.reach(tp, next_[0])
        feed.decide(float(second), float(second))
        for tp, offset in feed.again.items():
            position[tp.partition] = offset
        feed.again.clear()
        dropped += feed.dropped.total()
        feed.dropped.clear()
        taken = feed.take()
        for tp, one in taken.items():
            assert one.range.from_ == stored[tp.partition] < one.range.until
            stored[tp.partition] = one.range.until
            assert all(one.range.from_ <= record.offset < one.range.until for record in one.records)
            delivered += [(tp.partition, record.offset) for record in one.records]
        when.append(sum(len(one.records) for one in taken.values()))
        assert when[-1] <= rows
        waiting = bool(feed.deferred) or position != next_ or feed._count > 0
        second += 1

    gone = {place for one in asked if isinstance(one, Drawn) for place in one.dropped}
    assert len({*delivered}) == len(delivered)
    assert {*delivered}.isdisjoint(gone)
    for partition in range(2):
        mine = [offset for one, offset in delivered if one == partition]
        assert mine == sorted(mine)
    decided = {(partition, offset) for partition, offset in there if offset < stored[partition]}
    assert decided <= {*delivered} | gone
    assert dropped == len(gone)
    if asked and isinstance(last := asked[-1], Throttle):
        assert max(when, default=0) <= last.limit
    if not waiting:
        assert {*delivered} | gone == there
        assert stored == next_
        assert feed.room == rows

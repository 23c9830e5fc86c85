"""What a feed hands over at a time: at most the limit of bytes and one record, of all partitions, each record once."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offsetstore import Flush, TopicPartition
from offsetstore.consumer import Filter, Throttle
from offsetstore.consumer.feed import Feed
from offsetstore.consumer.records import ConsumedRecord
from offsetstore.protocol.letters import Payload
from offsetstore.store.term import Term

PARTITIONS = [TopicPartition("payments", number) for number in range(4)]
LIMIT = 100

sizes = st.one_of(st.integers(0, 30), st.integers(0, 30), st.integers(0, 500))
polls = st.lists(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 3), sizes), max_size=25), max_size=12)


def record(tp: TopicPartition, offset: int, size: int) -> ConsumedRecord:
    return ConsumedRecord(tp, offset, Payload(b"k" * (size // 4), b"v" * (size - size // 4), (), 0, 0))


def size_of(one: ConsumedRecord) -> int:
    return len(one.payload.key or b"") + len(one.payload.value or b"")


@pytest.mark.behaviour("CONS-18")
@settings(max_examples=100, deadline=None)
@given(polled=polls, ends=st.lists(st.booleans(), min_size=12, max_size=12), throttled=st.booleans())
def test_a_flush_has_at_most_the_limit_and_one_record_and_none_is_left(
    polled: list[list[tuple[int, int, int]]], ends: list[bool], *, throttled: bool
) -> None:
    filters: list[Filter] = [Throttle(7, per=1.0)] if throttled else []
    feed = Feed(Flush(rows=10_000, seconds=60.0, bytes=LIMIT), filters)
    feed.begin(dict.fromkeys(PARTITIONS, 0), {tp: Term() for tp in PARTITIONS})
    reached, stored = dict.fromkeys(PARTITIONS, 0), dict.fromkeys(PARTITIONS, 0)
    given_, delivered = list[tuple[TopicPartition, int]](), list[tuple[TopicPartition, int]]()
    logs: dict[TopicPartition, list[ConsumedRecord]] = {tp: [] for tp in PARTITIONS}
    position = dict.fromkeys(PARTITIONS, 0)
    waits = dict.fromkeys(PARTITIONS, 0)

    def take(second: float) -> bool:
        for tp in {*PARTITIONS}.difference(feed.deferred):
            feed.add(tp, [one for one in logs[tp] if one.offset >= position[tp]])
            feed.reach(tp, reached[tp])
            position[tp] = reached[tp]
        feed.decide(second, second)
        position.update(feed.again)
        feed.again.clear()
        waiting = {tp for tp, one in feed._partitions.items() if one.records}
        taken = feed.take()
        records = [one for part in taken.values() for one in part.records]
        assert sum(map(size_of, records)) <= LIMIT + max(map(size_of, records), default=0)
        assert not waiting or records
        for tp, part in taken.items():
            assert part.range.from_ == stored[tp] < part.range.until
            stored[tp] = part.range.until
            assert all(part.range.from_ <= one.offset < part.range.until for one in part.records)
        delivered.extend(one.coordinates for one in records)
        for tp in waiting:
            waits[tp] = 0 if tp in taken else waits[tp] + 1
            assert waits[tp] < len(PARTITIONS)  # each had its turn before
        return bool(taken)

    for second, (poll, has_ended) in enumerate(zip(polled, ends, strict=False)):
        for partition, gap, size in poll:
            tp = PARTITIONS[partition]
            offset = reached[tp] + gap - 1
            reached[tp] = offset + 1
            given_.append((tp, offset))
            logs[tp].append(record(tp, offset, size))
        if has_ended:
            reached[PARTITIONS[0]] += 2  # the records of a transaction that was aborted
        take(float(second))
    second = float(len(polled))
    while take(second) or feed.deferred or position != reached:
        second += 1.0
    assert stored == reached
    assert sorted(delivered) == sorted(given_)
    for tp in PARTITIONS:
        offsets = [offset for one, offset in delivered if one == tp]
        assert offsets == sorted(offsets)
    assert (feed._count, feed._bytes, feed.is_due) == (0, 0, False)

"""The age of the first unread record, searched for in a log that is kept in a plain list."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection
from dataclasses import dataclass
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offsetstore.offsets import TopicPartition
from offsetstore.operations.first_unread import TOLERANCE, TOLERANCE_MS, FirstUnread, find_first_unread
from offsetstore.protocol.ports import FoundRecord

NOW = 1_800_000_000_000
DAY = 86_400_000
P0, P1, P2 = (TopicPartition("payments", number) for number in range(3))
Records = tuple[tuple[int, int], ...]


@dataclass
class Log:
    """Records as (offset, timestamp); Kafka's answer is the first one, by offset, that is at or after the time."""

    records: Records
    rounds: int = 0

    @property
    def end(self) -> int:
        return self.records[-1][0] + 1 if self.records else 10

    def first_at(self, time: int) -> FoundRecord | None:
        highest = [*accumulate((timestamp for _offset, timestamp in self.records), max)]
        place = bisect_left(highest, time)
        return FoundRecord(*self.records[place]) if place < len(highest) else None

    def look_up(
        self, asked: Collection[tuple[TopicPartition, int]]
    ) -> dict[tuple[TopicPartition, int], FoundRecord | None]:
        self.rounds += 1
        assert all(time >= 0 for _tp, time in asked)
        return {(tp, time): self.first_at(time) for tp, time in asked}


def search(log: Log, stored: int) -> FirstUnread:
    return find_first_unread({(P0, stored): log.end}, NOW, log.look_up)[P0, stored]


def tolerated(age_ms: int) -> float:
    return max(TOLERANCE_MS, TOLERANCE * age_ms)


# Records of one millisecond, of a second, of hours; holes of any size.
steps = st.sampled_from([0, 0, 1, 40, 1000, 60_000, 7 * 3_600_000]) | st.integers(0, 2 * DAY)
ON_TIME = st.just(0)
holes = st.sampled_from([1, 1, 1, 2, 1000])


@st.composite
def logs(draw: st.DrawFn, *, late: st.SearchStrategy[int] = ON_TIME) -> Records:
    """A log whose newest record is up to a month old; ``late`` is how much earlier a record's timestamp may be."""
    size = draw(st.integers(1, 60))
    ages = [*accumulate(draw(st.lists(steps, min_size=size, max_size=size)))][::-1]
    offsets = accumulate(draw(st.lists(holes, min_size=size, max_size=size)))
    return tuple((offset, NOW - age - draw(late)) for offset, age in zip(offsets, ages, strict=True))


def first_unread(records: Records, stored: int) -> tuple[int, int]:
    return next(record for record in records if record[0] >= stored)


@pytest.mark.behaviour("OPS-12")
@given(records=logs(), data=st.data())
def test_the_age_is_right_within_the_tolerance_or_a_bound(records: Records, data: st.DataObject) -> None:
    stored, log = data.draw(st.integers(0, records[-1][0]), label="stored"), Log(records)
    offset, timestamp = first_unread(records, stored)
    found = search(log, stored)
    assert found.timestamp_ms is not None
    assert found.timestamp_ms <= timestamp, "never younger than it is"
    if not found.is_bound:
        assert timestamp - found.timestamp_ms <= tolerated(NOW - timestamp)
    else:
        ties = [one for one in records if one[0] < stored and one[1] == timestamp]
        assert offset > stored or ties, "Kafka's answers tell where the record at the stored offset is"
    assert log.rounds <= 24


@pytest.mark.behaviour("OPS-12")
@given(records=logs(late=st.integers(0, 30_000)), data=st.data())
def test_timestamps_out_of_order_add_no_more_than_their_disorder(records: Records, data: st.DataObject) -> None:
    stored = data.draw(st.integers(0, records[-1][0]), label="stored")
    _offset, timestamp = first_unread(records, stored)
    found = search(Log(records), stored)
    assert found.timestamp_ms is not None
    if found.is_bound:
        assert found.timestamp_ms <= timestamp + 30_000
    else:
        assert abs(timestamp - found.timestamp_ms) <= tolerated(NOW - timestamp) + 30_000


@pytest.mark.behaviour("OPS-12")
@pytest.mark.parametrize("age", [2_000, 60_000, 3_600_000, 3 * DAY, 40 * DAY])
def test_a_dozen_rounds_are_enough_in_a_steady_log(age: int) -> None:
    assert (TOLERANCE_MS, TOLERANCE) == (1000, 0.02)
    log = Log(tuple((offset, NOW - age + offset * age // 5000) for offset in range(5000)))
    for stored in range(0, 5000, 97):
        log.rounds = 0
        assert not search(log, stored).is_bound
        assert log.rounds <= 13


def test_all_partitions_are_asked_in_one_round_and_one_without_an_answer_is_left_out() -> None:
    log = Log(tuple((offset, NOW - 100_000 + offset) for offset in range(10)))
    asked: list[int] = []

    def look_up(wanted: Collection[tuple[TopicPartition, int]]) -> dict[tuple[TopicPartition, int], FoundRecord | None]:
        asked.append(len(wanted))
        return {key: one for key, one in log.look_up(wanted).items() if key[0] != P2 or len(asked) == 1}

    unread = dict.fromkeys([(P0, 4), (P0, 7), (P1, 4), (P2, 4)], 10)
    found = find_first_unread(unread, NOW, look_up)
    assert found.keys() == unread.keys() - {(P2, 4)}
    assert asked[0] == 3, "two groups that ask for the same are one question"
    assert max(asked) <= 4
    assert find_first_unread({}, NOW, look_up) == {}


@pytest.mark.parametrize(
    ("records", "stored", "age", "is_bound"),
    [
        pytest.param(((0, NOW - 5_000), (1, NOW - 4_000)), 0, 5.0, False, id="at the beginning"),
        pytest.param(((7, NOW - 5_000), (8, NOW - 4_000)), 3, 5.0, False, id="records were removed unread"),
        pytest.param(((0, NOW - 5 * DAY), (9, NOW - 60_000)), 9, 60.0, False, id="the first after a silence"),
        pytest.param(((0, NOW - 5 * DAY), (9, NOW - 60_000)), 4, 5 * 86_400.0, True, id="a hole after a silence"),
        pytest.param(tuple((at, NOW - DAY) for at in range(9)), 5, 86_400.0, True, id="one timestamp"),
        pytest.param(((0, NOW - DAY), (1, NOW + 60_000), (2, NOW)), 2, None, True, id="ahead of the clock, read"),
        pytest.param(((0, NOW - DAY), (1, NOW + 60_000)), 1, 0.0, False, id="ahead of the clock, unread"),
        pytest.param(((0, NOW - DAY), (1, NOW - 60_000), (2, NOW - 9 * DAY)), 2, 60.0, True, id="out of order"),
        pytest.param((), 5, None, True, id="no record"),
    ],
)
@pytest.mark.behaviour("OPS-12")
def test_odd_logs(records: Records, stored: int, age: float | None, *, is_bound: bool) -> None:
    found = search(Log(records), stored)
    assert (found.age(NOW), found.is_bound) == (age, is_bound)


@pytest.mark.behaviour("OPS-12")
def test_a_record_at_the_edge_of_the_tolerance_is_found() -> None:
    """Nothing is found within the tolerance of now, and the record below is not within it."""
    records = ((1, NOW - TOLERANCE_MS - 1), (2, NOW - TOLERANCE_MS))
    assert search(Log(records), 2) == FirstUnread(NOW - TOLERANCE_MS)

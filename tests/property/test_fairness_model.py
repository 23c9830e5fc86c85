"""What a consumer polls and hands over: each partition with records has its turn, whatever the others have."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from offsetstore import Flush, Record, TopicPartition
from offsetstore.consumer import Context, Filter, Kept, SkipIf, Throttle
from offsetstore.consumer import consumer as consumer_module
from offsetstore.consumer import feed as feed_module
from offsetstore.consumer.consumer import Membership
from offsetstore.consumer.delivery import Polled
from offsetstore.consumer.watch import CarefulFeed
from offsetstore.protocol.observers import Observers
from offsetstore.store.term import Term
from tests.support.fetching import FetchingClient

PARTITIONS = [TopicPartition("payments", number) for number in range(4)]
KEPT = 8  # records that filters may defer, of all partitions


class Clock:
    """Goes on while a poll waits."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def go_on(self, seconds: float) -> None:
        self.now += seconds

    def monotonic(self) -> float:
        return self.now

    time = monotonic


class Polling(Membership):
    """The turns of a consumer, without a store: a flush takes as many turns as drawn."""

    def __init__(self, client: FetchingClient, limits: Flush, filters: Sequence[Filter], clock: Clock) -> None:
        self._kafka = client
        self._feed = CarefulFeed(limits, filters, log_end=self._log_end)
        self._member: Any = SimpleNamespace(partitions=PARTITIONS, group="billing", observers=Observers([]))
        self._commits: Any = SimpleNamespace(turn=self._turned)
        self._failed = self._writing = None
        self._paused = set()
        self._alone = (set(), 0)
        self._empty_at = clock.now
        self._held = {}
        self._excused, self._topic_ids, self._pairs = {}, {}, {}
        self._polls = 0
        self._polled_at = clock.now
        self.takes: deque[dict[TopicPartition, Polled]] = deque()
        self.busy = 0
        self.flush_takes = 0
        positions = dict.fromkeys(PARTITIONS, 0)
        self._feed.begin(positions, {tp: Term() for tp in PARTITIONS})
        client.read(positions)

    @property
    def feed(self) -> CarefulFeed:
        return self._feed

    def turn(self) -> None:
        self._turn()

    def _turned(self, *_: object) -> None: ...

    def _take_again(self) -> None: ...

    def _is_busy(self) -> bool:
        self.busy = max(0, self.busy - 1)
        return self.busy > 0

    def _hand_over(self, polled: Mapping[TopicPartition, Polled]) -> bool:
        if polled:
            self.takes.append({**polled})
            self.busy = self.flush_takes
        return bool(polled)


class Hold:
    """Defers the records with some numbers until so many seconds after it first met them."""

    def __init__(self, numbers: set[int], seconds: float) -> None:
        self._numbers = numbers
        self._seconds = seconds
        self._met: dict[tuple[int, int], float] = {}
        self.decided = Counter[tuple[int, int]]()

    def apply(self, records: Sequence[Record], context: Context) -> Kept:
        for prefix, one in enumerate(records):
            place = one.partition, one.offset
            if one.offset % 16 in self._numbers:
                left = self._met.setdefault(place, context.now) + self._seconds - context.now
                if left > 0:
                    return Kept(prefix, wait=left)
            self.decided[place] += 1
        return Kept(len(records))


sizes = st.one_of(st.integers(0, 9), st.integers(0, 9), st.integers(10, 60))
logs = st.lists(st.tuples(st.integers(0, 60), sizes), min_size=4, max_size=4)
late = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 30), sizes, st.integers(0, 60)), max_size=8)


@pytest.mark.behaviour("CONS-19")
@settings(max_examples=100, deadline=None)
@given(
    backlog=logs,
    later=late,
    rows=st.integers(4, 40),
    bytes_=st.integers(40, 400),
    fetches=st.tuples(st.integers(1, 300), st.integers(1, 120), st.integers(0, 3)),
    flush_takes=st.integers(1, 4),
    kind=st.sampled_from(["", "", "throttle", "hold", "skip and hold"]),
)
@example(  # one poll of the first brings ten flushes, while the second does not answer at once
    backlog=[(40, 0), (5, 5), (0, 0), (0, 0)],
    later=[(0, 80, 25, 0)],
    rows=40,
    bytes_=100,
    fetches=(1_000, 120, 3),
    flush_takes=1,
    kind="",
)
def test_no_partition_with_records_waits_for_more_than_three_flushes(
    *,
    backlog: list[tuple[int, int]],
    later: list[tuple[int, int, int, int]],
    rows: int,
    bytes_: int,
    fetches: tuple[int, int, int],
    flush_takes: int,
    kind: str,
) -> None:
    clock = Clock()
    client = FetchingClient(*fetches[:2], clock.go_on)
    client.slow = fetches[2]
    hold = Hold({3, 4, 11}, 2.0)
    filters: dict[str, list[Filter]] = {
        "throttle": [Throttle(7, per=1.0)],
        "hold": [hold],
        "skip and hold": [SkipIf(lambda record: record.offset % 5 == 0), hold],
    }
    client.logs = {tp: [b"x" * size] * count for tp, (count, size) in zip(PARTITIONS, backlog, strict=True)}
    late_ones = sorted(later, key=lambda one: one[3])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(consumer_module, "time", clock)
        patch.setattr(feed_module, "time", clock)
        patch.setattr(feed_module, "_DEFERRED", KEPT)
        limits = Flush(rows=rows, seconds=0.5, bytes=bytes_)
        polling = Polling(client, limits, filters.get(kind, []), clock)
        polling.flush_takes = flush_takes
        ledger = Ledger(client, polling, limits)
        turn = 0
        while not ledger.is_done or late_ones or turn < 60:
            while late_ones and late_ones[0][3] <= turn:
                number, count, size, _ = late_ones.pop(0)
                client.logs[PARTITIONS[number]] += [b"y" * size] * count
            polling.turn()
            ledger.check()
            turn += 1
            assert turn < 5_000
    ledger.check_records(are_fifths_dropped=kind == "skip and hold")
    assert set(hold.decided.values()) <= {1}  # no filter decides about a record twice


class Ledger:
    """What was handed over, and for how many deliveries each partition has waited."""

    def __init__(self, client: FetchingClient, polling: Polling, limits: Flush) -> None:
        self._client = client
        self._polling = polling
        self._limits = limits
        self._stored = dict.fromkeys(PARTITIONS, 0)
        self._offsets: dict[TopicPartition, list[int]] = {tp: [] for tp in PARTITIONS}
        self._waits = dict.fromkeys(PARTITIONS, 0)

    @property
    def is_done(self) -> bool:
        return all(self._stored[tp] >= len(log) for tp, log in self._client.logs.items())

    def check(self) -> None:
        feed = self._polling.feed
        largest = max((len(value) for log in self._client.logs.values() for value in log), default=0)
        fits = largest * len(PARTITIONS) <= self._limits.bytes
        while self._polling.takes:
            taken = self._polling.takes.popleft()
            records = [one for part in taken.values() for one in part.records]
            assert len(records) <= self._limits.rows
            assert sum(len(one.payload.value or b"") for one in records) <= self._limits.bytes + largest
            for tp, part in taken.items():
                assert part.range.from_ == self._stored[tp] < part.range.until
                self._stored[tp] = part.range.until
                assert all(part.range.from_ <= one.offset < part.range.until for one in part.records)
                self._offsets[tp] += [one.offset for one in part.records]
            for tp, one in feed._partitions.items():
                has_records = one.records or (
                    one.pending.first is None and self._client.high.get(tp, 0) > self._stored[tp]
                )
                self._waits[tp] = self._waits[tp] + 1 if has_records and tp not in taken else 0
                # Where a flush has no room for all, each has one turn before any has a second.
                assert self._waits[tp] <= (3 if fits else 2 + len(PARTITIONS))
        for one in feed._partitions.values():
            waiting = [pair[0] for waiting in one.pending._waiting for pair in waiting]
            assert len(waiting) <= max(self._limits.rows, KEPT) // len(PARTITIONS)

    def check_records(self, *, are_fifths_dropped: bool) -> None:
        for tp, log in self._client.logs.items():
            assert self._stored[tp] == len(log)
            assert self._offsets[tp] == [n for n in range(len(log)) if n % 5 or not are_fifths_dropped]
        assert (self._polling.feed._count, self._polling.feed._bytes) == (0, 0)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """What a consumer takes the time from."""
    clock = Clock()
    monkeypatch.setattr(consumer_module, "time", clock)
    return clock


@pytest.mark.behaviour("CONS-19")
def test_a_quiet_partition_is_asked_for_while_the_client_is_too_full_of_another_one(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = FetchingClient(10_000, 40, clock.go_on)  # one fetch brings 500 flushes
    client.logs = {tp: [] for tp in PARTITIONS} | {PARTITIONS[0]: [b"x"] * 50_000}
    polling = Polling(client, Flush(rows=20, seconds=1.0), [], clock)
    polling.flush_takes = 1
    while len(polling.takes) < 10:
        polling.turn()
    client.logs[PARTITIONS[1]].append(b"y")
    came = clock.now
    alone: list[float] = []
    consume = client.consume

    def watched(most: int, seconds: float) -> list[Any]:
        if PARTITIONS[0] in polling._paused and PARTITIONS[1] not in polling._paused:
            alone.append(seconds)
        return consume(most, seconds)

    monkeypatch.setattr(client, "consume", watched)
    while PARTITIONS[1] not in polling.takes[-1]:
        polling.turn()
        clock.go_on(0.1)  # to write
    assert clock.now - came < 7.0
    assert alone[0] >= 2 * 0.05  # fetch.queue.backoff.ms, for which the client may have put its fetch off


@pytest.mark.behaviour("CONS-19")
@pytest.mark.parametrize("late", [0.02, 2.0])
def test_each_partition_is_polled_alone_before_it_is_taken_for_one_that_does_not_answer(
    clock: Clock, late: float
) -> None:
    """Not by the time, which one callback may take, nor for another one that did not answer."""
    client = FetchingClient(10, 10, clock.go_on)
    client.logs = {tp: [] for tp in PARTITIONS}
    polling = Polling(client, Flush(rows=20, seconds=1.0), [], clock)
    first, second = PARTITIONS[:2]
    polling.feed._starving.add(first)
    assert polling._polled_alone() == {first}
    for _ in range(49):
        polling._poll(1, 0.0)
        clock.go_on(late)
        polling.feed._starving.add(first)
        assert polling._polled_alone() == {first}
    polling._poll(1, 0.0)
    polling.feed._starving.add(first)
    assert polling._polled_alone() == set()
    polling.feed._starving.add(second)
    assert polling._polled_alone() == {second}
    assert polling._excused.keys() == {first}


@pytest.mark.behaviour("CONS-19")
def test_a_partition_whose_leader_is_away_keeps_the_others_waiting_for_moments_only(clock: Clock) -> None:
    client = FetchingClient(100, 100, clock.go_on)
    client.logs = {tp: [b"x" * 10] * 500_000 for tp in PARTITIONS}
    polling = Polling(client, Flush(rows=10, seconds=1.0), [], clock)
    polling.flush_takes = 1
    for _ in range(20):
        polling.turn()
    client.away.add(PARTITIONS[0])
    began, alone = clock.now, 0.0
    while clock.now < began + 300.0:
        before = clock.now
        polling.turn()
        if polling._paused >= {*PARTITIONS[1:]}:
            alone += clock.now - before
        else:
            clock.go_on(0.1)  # to write
    assert 0.9 < alone < 6.0
    client.away.clear()
    polling.takes.clear()
    while PARTITIONS[0] not in {tp for taken in polling.takes for tp in taken}:
        polling.turn()
        clock.go_on(0.01)
    assert len(polling.takes) < 100

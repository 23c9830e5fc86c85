"""Filters, each alone, and what is refused of one."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import pytest

from offsetstore import Flush, OffsetRange, Record, TopicPartition
from offsetstore.consumer import Context, Delay, Expire, Kept, SkipIf, Throttle
from offsetstore.consumer import feed as feed_module
from offsetstore.consumer.feed import Feed
from offsetstore.consumer.records import ConsumedRecord as PolledRecord
from offsetstore.errors import ExitCode, FunctionFailed, SinkError, exit_code
from offsetstore.protocol.letters import Payload
from offsetstore.store.term import Term

P0, P1 = (TopicPartition("payments", number) for number in range(2))


def records(*times: float | None) -> list[Record]:
    """Records with these timestamps, in seconds."""
    return [Record("payments", 0, n, timestamp_ms=None if at is None else int(at * 1000)) for n, at in enumerate(times)]


def at(now: float) -> Context:
    return Context(P0, now)


@pytest.mark.behaviour("CONS-10")
def test_a_throttle_lets_so_many_through_in_any_period() -> None:
    throttle, many = Throttle(10, per=2.0), records(*[None] * 8)
    assert throttle.apply(many, at(100.0)) == Kept(8)
    assert throttle.apply(many, at(101.0)) == Kept(2, wait=1.0)
    assert throttle.apply(many, at(101.5)) == Kept(0, wait=0.5)
    assert throttle.apply(many, at(102.0)) == Kept(8)
    assert throttle.apply(many, at(102.5)) == Kept(0, wait=0.5)
    assert throttle.apply(many, at(50.0)) == Kept(8)  # the clock was put back


@pytest.mark.behaviour("CONS-10")
def test_a_delay_defers_until_so_long_after_a_timestamp_and_keeps_the_order() -> None:
    given = records(90.0, None, 95.5, 90.0)
    assert Delay(10).apply(given, at(99.0)) == Kept(0, wait=1.0)
    assert Delay(10).apply(given, at(100.0)) == Kept(2, wait=5.5)
    assert Delay(10).apply(given, at(105.5)) == Kept(4)


@pytest.mark.behaviour("CONS-10")
def test_expired_records_and_those_of_a_predicate_are_dropped() -> None:
    given = records(90.0, None, 95.5, 90.0)
    assert Expire(10).apply(given, at(100.0)) == Kept(4, [])
    assert Expire(10).apply(given, at(100.5)) == Kept(4, [0, 3])
    assert SkipIf(lambda record: record.offset % 2).apply(given, at(0.0)) == Kept(4, [1, 3])


class Own:
    """Decides what it is told to."""

    def __init__(self, decide: Callable[[Sequence[Record], Context], Any]) -> None:
        self.decide = decide

    def apply(self, records: Sequence[Record], context: Context) -> Any:
        return self.decide(records, context)


def fed(*filters: Any, count: int = 4, **limits: Any) -> Feed:
    def metadata(tp: TopicPartition, term: Term) -> str:
        return f"{tp.partition}: {term.metadata}"

    feed = Feed(Flush(**{"seconds": 1000, **limits}), filters, metadata=metadata)
    feed.begin({P0: 5, P1: 0}, {P0: Term(metadata="kept"), P1: Term()})
    feed.add(P0, polled(P0, 5, 5 + count), "id")
    return feed


def polled(tp: TopicPartition, begin: int, end: int) -> list[PolledRecord]:
    return [PolledRecord(tp, offset, Payload(b"k", b"1234", (), 0, 0)) for offset in range(begin, end)]


@pytest.mark.behaviour("CONS-10")
def test_a_filter_of_ones_own_gets_the_records_the_time_and_the_offset_s_metadata() -> None:
    seen: list[Any] = []

    def decide(records: Sequence[Record], context: Context) -> Kept:
        seen.append(([one.id for one in records], context.topic_partition, context.now, context.metadata))
        return Kept(1, wait=5.0)

    feed = fed(Own(decide), count=2)
    feed.decide(100.0, 0.0)
    feed.decide(104.0, 4.9)
    feed.decide(105.0, 5.0)
    ids = ["payments/id/0/5", "payments/id/0/6"]
    assert seen == [(ids, P0, 100.0, "0: kept"), (ids[1:], P0, 105.0, "0: kept")]


@pytest.mark.behaviour("CONS-10")
@pytest.mark.parametrize(
    "kept",
    [None, Kept(5), Kept(-1), Kept(2, [7]), Kept(2, [4]), Kept(2, wait=-1.0), Kept(2, wait=math.inf), ValueError()],
)
def test_what_is_no_decision_ends_the_consumer_with_the_filter_s_name(kept: object) -> None:
    def decide(records: Sequence[Record], context: Context) -> object:
        if isinstance(kept, Exception):
            raise kept
        return kept

    with pytest.raises(SinkError, match="payments-0: the filter Own "):
        fed(Own(decide)).decide(0.0, 0.0)


@pytest.mark.behaviour("CONS-10", "CONS-7", "CONS-19")
def test_deferred_records_hold_the_offset_and_leave_the_room_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_module, "_DEFERRED", 1)
    own = Own(lambda given, _: Kept(min(2, len(given)), wait=9.0))
    feed = fed(SkipIf(lambda record: record.offset == 7), own, rows=8)  # 4 of each partition may wait

    def take() -> dict[TopicPartition, tuple[OffsetRange, int]]:
        return {tp: (one.range, len(one.records)) for tp, one in feed.take().items()}

    feed.add(P0, polled(P0, 9, 11))
    assert (feed.room, [*feed.deferred], feed.is_due) == (8, [P0], False)
    feed.decide(0.0, 0.0)
    assert (feed.room, [*feed.deferred], feed.dropped, feed.again) == (6, [P0], {"SkipIf": 1}, {P0: 9})
    assert take() == {P0: (OffsetRange(5, 8), 2)}
    assert (feed.room, feed.take()) == (8, {})
    feed.decide(0.0, 9.0)
    assert take() == {P0: (OffsetRange(8, 9), 1)}
    feed.add(P0, polled(P0, 9, 11))
    feed.reach(P0, 12)
    feed.decide(0.0, 18.0)
    assert take() == {P0: (OffsetRange(9, 12), 2)}
    assert (feed.room, [*feed.deferred]) == (8, [])
    feed.add(P0, polled(P0, 12, 13))
    feed.drop([P0])
    assert (feed.room, feed.take()) == (8, {})


@pytest.mark.behaviour("CONS-19", "CONS-18")
@pytest.mark.parametrize("limits", [{"rows": 10}, {"bytes": 50}], ids=["rows", "bytes"])
def test_what_a_deferred_partition_keeps_is_bounded_by_itself(
    monkeypatch: pytest.MonkeyPatch, limits: dict[str, int]
) -> None:
    monkeypatch.setattr(feed_module, "_DEFERRED", 1)
    feed = fed(Own(lambda _, __: Kept(0, wait=9.0)), count=100, **limits)
    feed.decide(0.0, 0.0)
    assert feed.again == {P0: 10}  # five of them wait: half of a flush
    assert feed.room == Flush(**limits).rows if "rows" in limits else feed.room > 0


def test_a_limit_for_all_partitions_goes_round() -> None:
    feed = fed(Throttle(2, per=1.0), count=4)
    feed.add(P1, polled(P1, 0, 4))
    taken: list[TopicPartition] = []
    for second in range(4):
        feed.decide(float(second), float(second))
        taken += feed.take()
    assert taken == [P0, P1, P0, P1]


@pytest.mark.behaviour("CONS-9")
def test_a_filter_that_raises_is_told_with_its_line_and_the_record() -> None:
    def misspelt(record: Any) -> object:
        return record.ofset if record.offset == 6 else False

    def of_many(_: Sequence[Record], __: Context) -> Kept:
        return dict[str, Kept]()["limit"]

    line = misspelt.__code__.co_firstlineno + 1
    with pytest.raises(SinkError) as raised:
        fed(SkipIf(misspelt)).decide(0.0, 0.0)
    assert raised.value.what == f"the filter SkipIf raised AttributeError at test_filters.py:{line}"
    assert (raised.value.topic_partition, raised.value.found) == (P0, "record 6")
    assert isinstance(raised.value.__cause__, AttributeError)
    line = of_many.__code__.co_firstlineno + 1
    with pytest.raises(SinkError) as raised:
        fed(Own(of_many)).decide(0.0, 0.0)
    assert raised.value.what == f"the filter Own raised KeyError at test_filters.py:{line}"
    assert raised.value.found == "records 5 to 8"


@pytest.mark.behaviour("CONS-15")
@pytest.mark.parametrize("bad", [5, 7, None], ids=["the first record", "a later one", "all"])
def test_a_predicate_that_fails_for_some_records_is_their_fault_and_one_that_fails_for_all_has_a_bug(
    bad: int | None,
) -> None:
    def leaves(record: Record) -> object:
        return sys.exit(0) if bad in {None, record.offset} else False

    with pytest.raises(FunctionFailed) as raised:
        fed(SkipIf(leaves)).decide(0.0, 0.0)
    assert (raised.value.error_class, raised.value.found) == ("SystemExit", f"record {bad or 5}")
    assert exit_code(raised.value) == (ExitCode.BUG if bad is None else ExitCode.OTHER)


@pytest.mark.behaviour("CONS-15")
@pytest.mark.parametrize(("before", "failing", "is_of_record"), [(0, 1, False), (1, 1, True), (1, 3, False)])
def test_a_predicate_that_fails_for_the_only_record_is_judged_by_earlier_ones(
    before: int, failing: int, *, is_of_record: bool
) -> None:
    filter_, given = SkipIf(lambda record: 1 // (record.offset < before)), records(*[None] * (before + failing))
    if before:
        assert filter_.apply(given[:before], at(0.0)).dropped == [0]
    with pytest.raises(Exception, match=str(before)) as raised:
        filter_.apply(given[before:], at(0.0))
    assert vars(raised.value)["is_of_record"] is is_of_record


@pytest.mark.behaviour("CONS-15")
@pytest.mark.parametrize(
    ("error", "code"), [(GeneratorExit(), ExitCode.BUG), (KeyError(), ExitCode.BUG), (TimeoutError(), ExitCode.OTHER)]
)
def test_a_filter_that_fails_has_a_bug_unless_it_meets_an_outage_after_which_no_other_record_is_looked_at(
    error: BaseException, code: ExitCode
) -> None:
    asked = list[int]()

    def fail(record: Record) -> NoReturn:
        asked.append(record.offset)
        raise error

    def fail_for_all(given: Sequence[Record], _: Context) -> NoReturn:
        fail(given[-1])

    for one in (Own(fail_for_all), SkipIf(fail)):
        with pytest.raises(SinkError, match=type(error).__name__) as raised:
            fed(one).decide(0.0, 0.0)
        assert exit_code(raised.value) == code
    assert asked == ([8, 5] if code is ExitCode.OTHER else [8, 5, 6, 7, 8])

"""A careful part, without Spark."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import pyarrow as pa
import pytest

from offsetstore import Append, OffsetRange, TopicPartition
from offsetstore.errors import FunctionFailed
from offsetstore.processing.blame import Halve
from offsetstore.processing.delivery import Rejected
from offsetstore.processing.outputs import RowsByRecord
from offsetstore.protocol.letters import LetterError
from offsetstore.spark import careful
from offsetstore.spark.careful import Careful, OfRanges

P0 = TopicPartition("payments", 0)


class Computation:
    """Fails for some records."""

    def __init__(self, *bad: int) -> None:
        self.bad = bad
        self.tried: list[int] = []

    def fails(self, number: int) -> FunctionFailed | None:
        self.tried.append(number)
        return FunctionFailed(f"at {number}") if number in self.bad else None

    def failing(self, numbers: Sequence[int], **_: object) -> dict[int, FunctionFailed]:
        return {number: why for number in numbers if (why := self.fails(number)) is not None}


@pytest.mark.behaviour("CONS-18")
def test_the_error_of_records_that_cant_be_computed_holds_no_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    def failed(error: Exception, **_: object) -> FunctionFailed:
        made = FunctionFailed("it")
        made.__cause__ = error
        return made

    monkeypatch.setattr(careful, "function_failed", failed)
    given: Any = SimpleNamespace(handler=None)
    computing = careful._Computation(given, cast("Any", None), OfRanges({P0: OffsetRange(0, 1)}))
    why: Any = computing._or_failed(lambda: 1 // 0)
    assert isinstance(why.__cause__, ZeroDivisionError)
    assert why.__cause__.__traceback__ is None


def part(computation: Any) -> Careful:
    """Of four records: 0 and 3 have failed, 1 makes no row, 2 makes one."""
    failed = {number: FunctionFailed(f"at {number}") for number in (0, 3)}
    numbering = OfRanges({TopicPartition("payments", 0): OffsetRange(0, 4)})
    rows = RowsByRecord(Append("payments"), pa.table({"a": [1]}), array("q", [0, 0, 0, 1, 1]))
    return Careful(
        numbers=[0, 1, 2, 3],
        keys={},
        rejected={},
        failed=failed,
        replaces_in_order=False,
        outputs={"": rows},
        failing=computation.failing,
        numbering=numbering,
        _records=computation,
    )


@pytest.mark.behaviour("DLQ-15")
def test_records_fail_again_and_a_good_one_is_computed_after_them() -> None:
    computation = Computation(3)
    assert [*part(computation).fail_again([0, 3])] == [3]
    assert computation.tried == [0, 3, 2]


@pytest.mark.behaviour("DLQ-15")
def test_a_good_record_that_fails_too_shows_that_none_is_to_blame() -> None:
    with pytest.raises(FunctionFailed, match="at 2"):
        part(Computation(0, 2, 3)).fail_again([0, 3])


@pytest.mark.behaviour("DLQ-15")
def test_a_rejected_record_makes_no_rows_and_is_not_computed_after_those_that_fail() -> None:
    computation = Computation(3)
    rejected = replace(part(computation), rejected={2: Rejected(LetterError("Rejected", ""))})
    assert rejected.with_rows == []
    assert [*rejected.fail_again([3])] == [3]
    assert computation.tried == [3]


class Spark(careful._Computation):
    """Notes its jobs, of which each takes a second."""

    bad: ClassVar[set[int]] = set()
    jobs: ClassVar[list[int]] = []
    """How many records each computes."""

    def rows(self, without: Sequence[int]) -> Any:
        made = self.counted(0, cast("OfRanges", self.numbering).size, without=without)
        return {} if isinstance(made, int) else made

    def counted(self, begin: int, end: int, *, without: Sequence[int] = ()) -> FunctionFailed | int:
        size = end - begin - sum(begin <= number < end for number in without)
        self.jobs.append(size)
        first = self.numbering.record(begin)[1]
        left_out = {self.numbering.record(number)[1] for number in without}
        bad = any(first <= at < first + end - begin for at in self.bad - left_out)
        return FunctionFailed("failed") if bad else size


def compute(
    monkeypatch: pytest.MonkeyPatch, bad: set[int], *, seconds: float = 60.0, check: Callable[[], None] = lambda: None
) -> tuple[list[int], set[int]]:
    """Compute records of which the first hundred have failed before; return the jobs, and those that fail now."""
    monkeypatch.setattr(Spark, "bad", bad)
    monkeypatch.setattr(Spark, "jobs", jobs := [])
    monkeypatch.setattr("offsetstore.spark.careful.time.monotonic", lambda: float(len(jobs)))
    computation: Any = Spark(cast("Any", None), cast("Any", None), OfRanges({P0: OffsetRange(0, 200)}))
    suspects = dict.fromkeys(range(100))
    _, failed = careful._computed_without_failing(computation, range(200), suspects, seconds, check)
    return jobs, {*failed}


@pytest.mark.behaviour("DLQ-3")
def test_after_a_restart_records_that_the_database_refused_are_computed_with_all_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert compute(monkeypatch, set()) == ([200], set())


@pytest.mark.behaviour("DLQ-3")
def test_after_a_restart_those_that_could_not_be_computed_are_tried_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert compute(monkeypatch, {3, 7}, seconds=200) == ([200, *[1] * 100, 198], {3, 7})


@pytest.mark.behaviour("DLQ-3")
def test_the_look_at_records_that_have_failed_before_ends_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def check() -> None:
        assert len(Spark.jobs) < 40

    with pytest.raises(Halve):
        compute(monkeypatch, {50, 150}, seconds=10, check=check)


def test_the_look_at_records_that_have_failed_before_ends_when_the_query_is_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def check() -> None:
        if len(Spark.jobs) == 5:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        compute(monkeypatch, {50}, seconds=200, check=check)


@pytest.mark.behaviour("DLQ-8")
@pytest.mark.parametrize("bad", [set(range(500, 100_000, 1_000)), set(range(100))], ids=["scattered", "at the front"])
@pytest.mark.parametrize("known", [0, 50, 100])
@pytest.mark.parametrize("seconds", [60, 10])
def test_a_search_that_is_cut_again_and_again_does_not_search_again_what_it_has_found(
    monkeypatch: pytest.MonkeyPatch, bad: set[int], known: int, seconds: int
) -> None:
    """As after a restart, at a second a job."""
    monkeypatch.setattr(Spark, "bad", bad)
    monkeypatch.setattr(Spark, "jobs", jobs := [])
    monkeypatch.setattr("offsetstore.spark.careful.time.monotonic", lambda: float(len(jobs)))
    suspects: dict[int, FunctionFailed | None] = dict.fromkeys(sorted(bad)[::2] + sorted(bad)[1::2])
    suspects = dict.fromkeys([*suspects][:known])
    waiting, found = [(0, 100_000)], set[int]()
    while waiting:
        begin, end = waiting.pop()
        computation: Any = Spark(cast("Any", None), cast("Any", None), OfRanges({P0: OffsetRange(begin, end)}))
        here = {at - begin: why for at, why in sorted(suspects.items()) if begin <= at < end}
        try:
            _, failed = careful._computed_without_failing(computation, range(end - begin), here, seconds, lambda: None)
        except Halve as halve:
            suspects |= {at: why for (_, at), why in halve.suspects.items()}
            place = begin + cast("int", halve.place)
            waiting += [(place, end), (begin, place)]
        else:
            assert len(failed) < end - begin, "a record that is good shows that the others are to blame"
            found |= {begin + number for number in failed}
    assert found == bad
    assert len(jobs) <= 20 * len(bad)

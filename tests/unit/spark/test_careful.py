"""A careful part, without Spark."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any, ClassVar, cast

import pyarrow as pa
import pytest

from offsetstore import Append, OffsetRange, TopicPartition
from offsetstore.errors import FunctionFailed
from offsetstore.processing.recovery import Halve
from offsetstore.spark import careful
from offsetstore.spark.careful import Careful, OfRanges

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


P0 = TopicPartition("payments", 0)


class Computation:
    """Fails for some records."""

    def __init__(self, *bad: int) -> None:
        self.bad = bad
        self.tried: list[int] = []

    def fails(self, begin: int, end: int) -> FunctionFailed | None:
        assert end == begin + 1
        self.tried.append(begin)
        return FunctionFailed(f"at {begin}") if begin in self.bad else None

    def failing(self, numbers: Sequence[int], **_: object) -> dict[int, FunctionFailed]:
        return {number: why for number in numbers if (why := self.fails(number, number + 1)) is not None}


def part(computation: Any) -> Careful:
    """Of four records: 0 and 3 have failed, 1 makes no row, 2 makes one."""
    failed = {number: FunctionFailed(f"at {number}") for number in (0, 3)}
    numbering = OfRanges({TopicPartition("payments", 0): OffsetRange(0, 4)})
    rows = careful._Rows(Append("payments"), pa.table({"a": [1]}), array("q", [0, 0, 0, 1, 1]))
    return Careful(numbering, False, [0, 1, 2, 3], {}, {}, failed, computation, {"": rows})  # noqa: FBT003


@pytest.mark.behaviour("DLQ-15")
def test_records_fail_again_and_a_good_one_is_computed_after_them() -> None:
    computation = Computation(3)
    assert [*part(computation).fail_again([0, 3])] == [3]
    assert computation.tried == [0, 3, 2]


@pytest.mark.behaviour("DLQ-15")
def test_a_good_record_that_fails_too_shows_that_none_is_to_blame() -> None:
    with pytest.raises(FunctionFailed, match="at 2"):
        part(Computation(0, 2, 3)).fail_again([0, 3])


class Spark(careful._Computation):
    """Notes its jobs, of which each takes a second."""

    bad: ClassVar[set[int]] = set()
    jobs: ClassVar[list[int]] = []
    """How many records each computes."""

    def rows(self, without: Sequence[int]) -> Any:
        return self._job({*range(200)} - {*without}) or {}

    def fails(self, begin: int, end: int) -> FunctionFailed | None:
        return self._job({*range(begin, end)})

    def _job(self, records: set[int]) -> FunctionFailed | None:
        self.jobs.append(len(records))
        return None if self.bad.isdisjoint(records) else FunctionFailed("failed")


def compute(
    monkeypatch: pytest.MonkeyPatch, bad: set[int], *, seconds: float = 60.0, check: Callable[[], None] = lambda: None
) -> tuple[list[int], set[int]]:
    """Compute records of which the first hundred have failed before; return the jobs, and those that fail now."""
    monkeypatch.setattr(Spark, "bad", bad)
    monkeypatch.setattr(Spark, "jobs", jobs := [])
    monkeypatch.setattr("offsetstore.spark.careful.time.monotonic", lambda: float(len(jobs)))
    computation: Any = Spark(cast("Any", None), cast("Any", None), OfRanges({P0: OffsetRange(0, 200)}))
    _, failed = careful._computed_without_failing(computation, range(200), range(100), seconds, check)
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

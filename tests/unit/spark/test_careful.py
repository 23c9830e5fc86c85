"""A careful part, without Spark."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from offsetstore import Append, OffsetRange, TopicPartition
from offsetstore.errors import FunctionFailed
from offsetstore.spark import careful
from offsetstore.spark.careful import Careful, OfRanges

if TYPE_CHECKING:
    from collections.abc import Sequence


class Computation:
    """Fails for some records."""

    def __init__(self, *bad: int) -> None:
        self.bad = bad
        self.tried: list[int] = []

    def fails(self, begin: int, end: int) -> FunctionFailed | None:
        assert end == begin + 1
        self.tried.append(begin)
        return FunctionFailed(f"at {begin}") if begin in self.bad else None

    def failing(self, numbers: Sequence[int]) -> dict[int, FunctionFailed]:
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

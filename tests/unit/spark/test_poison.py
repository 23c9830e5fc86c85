"""The search for the record that a table refuses, with a table that is a set of offsets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from offsetstore import OffsetRange, TopicPartition
from offsetstore.errors import LockTimeout, RowsRefused
from offsetstore.spark.poison import find_poison

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pytest

P0, P1 = (TopicPartition("payments", number) for number in range(2))


def refused() -> RowsRefused:
    what = "too large"
    return RowsRefused(what, table="payments", column="amount", found="int64", next_step="Correct it.")


class Table:
    """Refuses some records; or any parts that have ``together``."""

    def __init__(self, *poison: tuple[TopicPartition, int], together: bool = False) -> None:
        self.poison = set(poison)
        self.together = together
        self.asked = 0

    def attempt(self, ranges: Mapping[TopicPartition, OffsetRange]) -> None:
        self.asked += 1
        records = {(tp, offset) for tp, range_ in ranges.items() for offset in range(range_.from_, range_.until)}
        found = self.poison & records
        if found and (not self.together or found == self.poison):
            raise refused()


@given(
    st.sets(st.tuples(st.sampled_from([P0, P1]), st.integers(40, 99)), min_size=1),
    st.sampled_from([{P0: (40, 100), P1: (40, 100)}, {P0: (40, 100)}, {P0: (40, 41)}, {P0: (0, 10_000), P1: (40, 41)}]),
)
def test_the_first_poisonous_record_is_named(
    poison: set[tuple[TopicPartition, int]], bounds: dict[TopicPartition, tuple[int, int]]
) -> None:
    ranges = {tp: OffsetRange(*pair) for tp, pair in bounds.items()}
    there = sorted((tp, offset) for tp, offset in poison if tp in bounds and bounds[tp][0] <= offset < bounds[tp][1])
    if not there:
        return
    table = Table(*there)

    found = find_poison(refused(), ranges, table.attempt)

    tp, offset = there[0]
    assert (found.topic_partition, found.offsets) == (tp, OffsetRange(offset, offset + 1))
    assert found.found == f"int64, in the record {tp}@{offset}"
    assert (found.table, found.column, found.next_step) == ("payments", "amount", "Correct it.")
    assert table.asked <= 15


def test_what_only_many_records_together_are_refused_for_is_told_with_the_fewest() -> None:
    table = Table((P0, 3), (P0, 20), together=True)
    found = find_poison(refused(), {P0: OffsetRange(0, 64), P1: OffsetRange(0, 64)}, table.attempt)
    assert (found.topic_partition, found.offsets) == (P0, OffsetRange(0, 32))
    assert found.found == "int64, in the records payments-0 [0, 32)"


def test_records_of_several_partitions_are_named_with_their_ranges() -> None:
    table = Table((P0, 3), (P1, 3), together=True)
    found = find_poison(refused(), {P0: OffsetRange(0, 4), P1: OffsetRange(0, 4)}, table.attempt)
    assert (found.topic_partition, found.offsets) == (None, None)
    assert "payments-0 [0, 4), payments-1 [0, 4)" in str(found)


def test_a_search_that_is_hindered_tells_what_it_knows(caplog: pytest.LogCaptureFixture) -> None:
    table = Table((P0, 3))

    def attempt(ranges: Mapping[TopicPartition, OffsetRange]) -> None:
        if table.asked == 2:
            what = "somebody is in the way"
            raise LockTimeout(what)
        table.attempt(ranges)

    found = find_poison(refused(), {P0: OffsetRange(0, 64)}, attempt)

    assert found.offsets == OffsetRange(0, 16)
    assert "given up: LockTimeout" in caplog.text


def test_a_search_ends_in_time() -> None:
    table = Table((P0, 3))
    found = find_poison(refused(), {P0: OffsetRange(0, 64)}, table.attempt, seconds=0)
    assert (found.offsets, table.asked) == (OffsetRange(0, 64), 0)

"""The search for the record that a table refuses, with a table that is a set of offsets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offsetstore import OffsetRange, TopicPartition
from offsetstore.errors import LockTimeout, RowsRefused, StaleClaim
from offsetstore.spark.micro_batch import PlanOutdated
from offsetstore.spark.poison import find_poison
from offsetstore.writers.staging import StagedRowsLost

if TYPE_CHECKING:
    from collections.abc import Mapping

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
    assert found.found == f"int64; the record {tp}@{offset} is the first with which the batch is refused"
    assert (found.table, found.column, found.next_step) == ("payments", "amount", "Correct it.")
    assert table.asked <= 15


def test_of_records_that_are_refused_together_the_last_is_named_in_words_that_hold_for_it() -> None:
    table = Table((P0, 3), (P1, 20), together=True)
    found = find_poison(refused(), {P0: OffsetRange(0, 64), P1: OffsetRange(0, 64)}, table.attempt)
    assert (found.topic_partition, found.offsets) == (P1, OffsetRange(20, 21))
    assert found.found == "int64; the record payments-1@20 is the first with which the batch is refused"


def test_a_record_that_needs_an_earlier_one_is_not_blamed() -> None:
    """As a child needs its parent: without it, it would be refused for the same reason."""

    def attempt(ranges: Mapping[TopicPartition, OffsetRange]) -> None:
        range_ = ranges[P0]
        if 7 in range(range_.from_, range_.until) or (range_.from_ > 1 and range_.until > 5):
            raise refused()

    assert find_poison(refused(), {P0: OffsetRange(0, 8)}, attempt).offsets == OffsetRange(7, 8)


@pytest.mark.parametrize(
    "other", [{"sqlstate": "23503"}, {"column": "id"}, {"table": "refunds"}, {"constraint": "positive"}], ids=str
)
def test_another_refusal_than_the_batches_ends_the_search(
    other: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    fields: dict[str, Any] = {"sqlstate": "23514", "column": "amount", "table": "payments", "constraint": "rule"}
    what = "no"
    original, another = RowsRefused(what, **fields), RowsRefused(what, **(fields | other))

    def attempt(ranges: Mapping[TopicPartition, OffsetRange]) -> None:
        """The upper half lets the lower one pass, and is refused itself."""
        if ranges[P0].until > 32:
            raise original if ranges[P0].until > 48 else another

    found = find_poison(original, {P0: OffsetRange(0, 64)}, attempt)

    assert (found.sqlstate, found.offsets) == ("23514", OffsetRange(32, 64))
    assert found.found == "one of the records payments-0 [32, 64) is the first with which the batch is refused"
    assert "given up: RowsRefused" in caplog.text


def test_a_refusal_that_tells_less_is_the_same() -> None:
    what = "no"
    original = RowsRefused(what, sqlstate="22003")

    def attempt(ranges: Mapping[TopicPartition, OffsetRange]) -> None:
        if ranges[P0].until > 5:
            raise RowsRefused(what, sqlstate="22003", column="amount")

    found = find_poison(original, {P0: OffsetRange(0, 64)}, attempt)
    assert (found.column, found.offsets) == ("amount", OffsetRange(5, 6))


@pytest.mark.parametrize("sqlstate", ["42501", "42P01", "0A000", "09000"])
def test_no_record_is_blamed_for_what_none_can_cause(sqlstate: str) -> None:
    what = "not allowed"
    original = RowsRefused(what, sqlstate=sqlstate)
    table = Table((P0, 3))
    found = find_poison(original, {P0: OffsetRange(0, 64)}, table.attempt)
    assert found is original
    assert (found.offsets, found.found, table.asked) == (None, None, 0)


@pytest.mark.parametrize("sqlstate", ["21000", "22003", "23505", "44000", "54000", "P0001"])
def test_for_what_a_record_can_cause_one_is_looked_for(sqlstate: str) -> None:
    what = "no"
    original = RowsRefused(what, sqlstate=sqlstate)

    def attempt(ranges: Mapping[TopicPartition, OffsetRange]) -> None:
        if ranges[P0].until > 3:
            raise original

    assert find_poison(original, {P0: OffsetRange(0, 8)}, attempt).offsets == OffsetRange(3, 4)


def test_several_partitions_are_told_with_their_ranges(caplog: pytest.LogCaptureFixture) -> None:
    found = find_poison(refused(), {P1: OffsetRange(0, 4), P0: OffsetRange(0, 4)}, Table().attempt, seconds=0)
    assert (found.topic_partition, found.offsets) == (None, None)
    assert "one of the records payments-0 [0, 4), payments-1 [0, 4)" in str(found)
    assert "payments-0 [0, 4), payments-1 [0, 4): too large" in caplog.text


@pytest.mark.parametrize("error", [StaleClaim, PlanOutdated, StagedRowsLost])
def test_a_batch_that_is_ours_no_more_ends_the_search_with_that_error(error: type[Exception]) -> None:
    def attempt(_: Mapping[TopicPartition, OffsetRange]) -> None:
        what = "another job has it"
        raise error(what)

    with pytest.raises(error):
        find_poison(refused(), {P0: OffsetRange(0, 64)}, attempt)


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

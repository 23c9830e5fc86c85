"""`replay_twice` with a consumer's transforms; tests/integration/spark/test_replay_twice.py has those of Spark."""

from __future__ import annotations

import random
import textwrap
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from itertools import count
from typing import Any, TypeAlias
from uuid import uuid4

import pyarrow as pa
import pytest

from offsetstore import Handler, Record
from offsetstore.errors import ConfigurationError
from offsetstore.testing import replay_twice

RECORDS = [
    Record("payments", number % 2, 10 + number // 2, b"ana", f"{number}.50".encode(), timestamp_ms=1_000 * number)
    for number in range(40)
]
BAD = 13  # of the records in order: the first partition has twenty
Column: TypeAlias = Callable[[Any], list[Any]]


def with_column(make: Column, *, traced: bool = True) -> Callable[[Any], pa.RecordBatch]:
    """A transform whose rows have a column that a function makes of the records."""

    def transform(records: Any) -> pa.RecordBatch:
        kept: dict[str, Any] = {"payer": records["key"].cast("string"), "made": pa.array(make(records))}
        return pa.record_batch({**kept, "_kafka": records["_kafka"]} if traced else kept)

    return transform


def for_bad(make: Callable[[], Any], otherwise: Any) -> Column:
    """For one record only."""
    return lambda records: [
        make() if (number, offset) == (0, 10 + BAD) else otherwise
        for number, offset in zip(records["partition"].to_pylist(), records["offset"].to_pylist(), strict=True)
    ]


def times(records: Any) -> list[Any]:
    return records["timestamp"].to_pylist()


def not_numbers(records: Any) -> list[Any]:
    return [float("nan")] * len(records)


def nested(records: Any) -> list[Any]:
    return [{"list": [offset, None]} for offset in records["offset"].to_pylist()]


@pytest.mark.parametrize("traced", [True, False])
@pytest.mark.parametrize("make", [times, not_numbers, nested])
def test_a_transform_that_only_goes_by_the_record_passes(make: Column, *, traced: bool) -> None:
    replay_twice(with_column(make, traced=traced), RECORDS)


NUMBERS = count()
CASES: dict[str, tuple[Callable[[], Any], Any, str]] = {
    "time": (lambda: datetime.now(UTC), datetime(2026, 1, 1, tzinfo=UTC), "current_timestamp"),
    "id": (lambda: str(uuid4()), "none", "uuid"),
    "number": (lambda: next(NUMBERS), 0, "monotonically_increasing_id"),
    "chance": (random.random, 0.5, "rand"),
    "text": (lambda: str(next(NUMBERS)), "none", "order of a shuffle"),
}


@pytest.mark.parametrize("traced", [True, False])
@pytest.mark.parametrize("case", CASES)
def test_the_record_the_column_and_the_usual_cause_are_named(case: str, *, traced: bool) -> None:
    make, otherwise, cause = CASES[case]
    with pytest.raises(AssertionError) as caught:
        replay_twice(with_column(for_bad(make, otherwise), traced=traced), RECORDS)
    said = str(caught.value)
    assert f"a second run on the same records made other rows of record payments-0 at offset {10 + BAD}" in said
    assert said.count("column made: ") == 1
    assert "payer" not in said
    assert cause in said.partition("usual cause: ")[2]


def place(records: Any) -> list[int]:
    return list(range(len(records)))


def test_a_place_in_the_batch_is_found_by_the_crops() -> None:
    with pytest.raises(AssertionError, match=r"runs on parts of the records, cut payments-0 at \d+") as caught:
        replay_twice(with_column(place), RECORDS)
    assert "of record payments-" in str(caught.value)
    assert "usual cause: monotonically_increasing_id(), row_number()" in str(caught.value)
    with pytest.raises(AssertionError, match="keep _kafka to see which"):
        replay_twice(with_column(place, traced=False), RECORDS)


def test_a_row_of_several_records_is_found_by_the_crops() -> None:
    def transform(records: Any) -> pa.RecordBatch:
        total: Any = pa.array([len(records)])
        return pa.record_batch({"records": total, "_kafka": records["_kafka"].slice(0, 1)})

    with pytest.raises(AssertionError, match="usual cause: rows made from several records: groupBy") as caught:
        replay_twice(lambda records: transform(records) if len(records) else records, RECORDS[:1] + RECORDS[2:4])
    assert "column records: 3, then " in str(caught.value)


def test_partitions_with_one_record_each_are_cut_too() -> None:
    one_each = [Record("payments", number, 7, b"ana", b"1") for number in range(2)]
    with pytest.raises(AssertionError, match=r"cut payments-0 at \d, payments-1 at \d"):
        replay_twice(with_column(place), one_each, crops=1)
    replay_twice(with_column(times), [*one_each[:1], *one_each[:1]])  # nothing to cut


def test_each_cut_leaves_records_on_both_sides() -> None:
    sizes: list[int] = []

    def transform(records: Any) -> Any:
        sizes.append(len(records))
        return records

    replay_twice(transform, RECORDS[:3], crops=50)
    assert sizes[:2] == [3, 3]
    assert {*sizes[2:]} == {1, 2}


@pytest.mark.parametrize(
    "values",
    [[1, 2.5, 3], [Decimal(1), Decimal("2.50"), Decimal("3.125")], [[1], [2.5], []], [{"a": 1}, {"a": 2.5}, {"a": 3}]],
    ids=["numbers", "decimals", "lists", "structs"],
)
def test_numbers_whose_type_arrow_infers_from_a_part_are_equal(values: list[Any]) -> None:
    def inferred(records: Any) -> list[Any]:
        return [values[offset - 10] for offset in records["offset"].to_pylist()]

    replay_twice(with_column(inferred), RECORDS[:6:2], crops=20)


@pytest.mark.parametrize(("first", "second"), [(1.0, 2), (Decimal("1.5"), Decimal("1.50001")), (0.0, -0.0), (1, True)])
def test_numbers_that_differ_are_found(first: Any, second: Any) -> None:
    made = iter([first, second])
    with pytest.raises(AssertionError, match="column made: "):
        replay_twice(with_column(lambda _: [next(made)]), RECORDS[:1])


def test_rows_without_coordinates_in_kafka_are_compared_as_those_that_dropped_it() -> None:
    def transform(make: Column) -> Callable[[Any], pa.RecordBatch]:
        def joined(records: Any) -> pa.RecordBatch:
            places = records["_kafka"].to_pylist()
            kafka: list[Any] = [each if each["partition"] else None for each in places]
            column: Any = pa.array(make(records))
            columns: dict[str, Any] = {"made": column, "_kafka": pa.array(kafka, records["_kafka"].type)}
            return pa.record_batch(columns)

        return joined

    replay_twice(transform(times), RECORDS[:4])
    with pytest.raises(AssertionError, match="column made: "):
        replay_twice(transform(lambda records: [next(NUMBERS) for _ in range(len(records))]), RECORDS[:4])


@pytest.mark.parametrize("made", [None, {"good": None}, [1]])
def test_a_transform_that_returns_no_rows_is_refused(made: Any) -> None:
    with pytest.raises(ConfigurationError, match="the transform returned no rows"):
        replay_twice(lambda _: made, RECORDS)


def test_each_output_is_compared_and_named() -> None:
    def transform(records: Any) -> dict[str, Any]:
        return {
            "good": with_column(for_bad(int, 0))(records),
            "bad": with_column(for_bad(uuid4().hex[:31].lower, ""))(records),
        }

    with pytest.raises(AssertionError, match="output 'bad'"):
        replay_twice(transform, RECORDS)


def test_the_same_seed_cuts_at_the_same_places_and_another_one_elsewhere() -> None:
    def cuts(seed: int) -> str:
        with pytest.raises(AssertionError) as caught:
            replay_twice(with_column(place), RECORDS, seed=seed)
        return str(caught.value)

    assert cuts(1) == cuts(1)
    assert len({cuts(seed) for seed in range(5)}) > 1


def test_what_can_t_be_compared_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="needs records"):
        replay_twice(with_column(place), [])
    handler: Any = Handler(lambda _: None, "number long")
    with pytest.raises(ConfigurationError, match="its calls may have effects"):
        replay_twice(handler, RECORDS)


def test_the_example_of_its_docstring_runs() -> None:
    example = textwrap.dedent((replay_twice.__doc__ or "").split("::\n", 1)[1].split(":param", 1)[0])
    names: dict[str, Any] = {"replay_twice": replay_twice, "Record": Record, "spark": None}
    exec(example, names | {"parse": with_column(lambda records: records["offset"].to_pylist())})  # noqa: S102 - our own

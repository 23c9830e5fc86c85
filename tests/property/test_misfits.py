"""A row is a misfit exactly where converting and encoding that row alone raises, and for the same reason."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any, cast

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offsetstore.errors import RowsRefused
from offsetstore.writers.arrow.casts import Match, find_cast
from offsetstore.writers.arrow.copying import Encoding
from offsetstore.writers.table.catalogue import Column, TableName

LONG, INT = (-(2**63), 2**63 - 1), (-(2**31), 2**31 - 1)
TABLE = TableName("public", "t")

longs = st.sampled_from([*LONG, 0, 1000, -1, 86_400_000_000, -210_866_803_200_000_001]) | st.integers(*LONG)
ints = st.sampled_from([*INT, 0, -2_440_589, 2_145_042_906]) | st.integers(*INT)
small = st.integers(-(2**17), 2**17)
doubles = st.floats() | small.map(float) | small.map(lambda number: number + 0.5)
decimals = st.decimals(-(10**7), 10**7, places=4) | st.integers(-(10**7), 10**7).map(Decimal)
bits = st.sampled_from([b"", b"a\0", b"\xff", b"12345", "ééé".encode(), b"abc \xed\xa0\x80"]) | st.binary(max_size=6)
uuids = st.uuids().map(str) | st.sampled_from(["", "nope", "6ba7b8109dad11d180b400c04fd430c8", "é" * 16])


def lists(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(st.none() | values, max_size=3)


def column(type_name: str, kind: str, modifier: int = -1, element: str | None = None) -> Column:
    return Column("value", type_name, kind, modifier=modifier, element=element)


def array_of(element: str, modifier: int = -1) -> Column:
    return column(f"{element}[]", "array", modifier, element)


MOMENT = pa.timestamp("us")
FINE = pa.decimal128(12, 4)
STRINGS = pa.list_(pa.string())
NESTED = pa.list_(pa.list_(pa.int64()))
IN_JSON = pa.struct([("at", pa.time64("us")), ("number", pa.float64())])
MAP = pa.map_(pa.string(), pa.float64())
TIMES = pa.map_(pa.string(), pa.time64("us"))

# The target, the type in which Python's values become Arrow's, the type that their bits are read as, and the values.
CASES: list[tuple[Column, pa.DataType, pa.DataType, st.SearchStrategy[Any]]] = [
    (column("integer", "int4"), pa.int64(), pa.int64(), longs | small),
    (column("smallint", "int2"), FINE, FINE, decimals),
    (column("bigint", "int8"), pa.float64(), pa.float64(), doubles),
    (column("bigint", "int8"), pa.uint64(), pa.uint64(), st.integers(0, 2**64 - 1)),
    (column("numeric(8,2)", "numeric", (8 << 16 | 2) + 4), FINE, FINE, decimals),
    (column("numeric(3,-2)", "numeric", (3 << 16 | 2046) + 4), pa.int32(), pa.int32(), small),
    (column("numeric", "numeric"), pa.float64(), pa.float64(), doubles),
    (column("double precision", "float8"), pa.int64(), pa.int64(), longs),
    (column("real", "float4"), pa.int32(), pa.int32(), ints),
    (column("text", "text"), pa.binary(), pa.string(), bits),
    (column("varchar(4)", "varchar", 8), pa.binary(), pa.string(), bits),
    (column("varchar(4)", "varchar", 8), pa.large_binary(), pa.large_string(), bits),
    (column("jsonb", "jsonb"), pa.binary(), pa.string(), bits),
    (column("inet", ""), pa.binary(), pa.string(), bits),
    (column("text", "text"), pa.string_view(), pa.string_view(), st.text(max_size=3)),
    (column("uuid", "uuid"), pa.string(), pa.string(), uuids),
    (column("uuid", "uuid"), pa.binary(), pa.string(), bits),
    (column("uuid", "uuid"), pa.string_view(), pa.string_view(), uuids),
    (column("uuid", "uuid"), pa.binary(), pa.binary(), st.binary(min_size=15, max_size=17)),
    (column("date", "date"), pa.int32(), pa.date32(), ints),
    (column("date", "date"), pa.int64(), pa.date64(), longs),
    (column("timestamp", "timestamp"), pa.int64(), MOMENT, longs),
    (column("timestamp", "timestamp"), pa.int64(), pa.timestamp("s"), longs),
    (column("timestamp(3)", "timestamp", 3), pa.int64(), pa.timestamp("ns"), longs),
    (column("timestamptz(3)", "timestamptz", 3), pa.int64(), pa.timestamp("us", "UTC"), longs),
    (column("time(3)", "time", 3), pa.int64(), pa.time64("us"), longs),
    (column("interval", "interval"), pa.int64(), pa.duration("s"), longs),
    (array_of("int4"), pa.list_(pa.int64()), pa.list_(pa.int64()), lists(longs | small)),
    (array_of("int4"), pa.list_(pa.int64(), 2), pa.list_(pa.int64(), 2), st.lists(longs, min_size=2, max_size=2)),
    (array_of("int4"), pa.large_list(pa.int64()), pa.large_list(pa.int64()), lists(longs | small)),
    (array_of("text"), pa.list_(pa.binary()), STRINGS, lists(bits)),
    (array_of("varchar", 8), pa.list_(pa.binary()), STRINGS, lists(bits)),
    (array_of("timestamp", 3), pa.list_(pa.int64()), pa.list_(MOMENT), lists(longs)),
    (array_of("numeric", (8 << 16 | 2) + 4), pa.list_(FINE), pa.list_(FINE), lists(decimals)),
    (array_of("int4"), NESTED, NESTED, lists(lists(longs | small))),
    (column("jsonb", "jsonb"), pa.struct([("at", pa.int64()), ("number", pa.float64())]), IN_JSON,
     st.fixed_dictionaries({"at": st.none() | longs, "number": st.none() | doubles})),
    (column("json", "json"), MAP, MAP, st.lists(st.tuples(st.sampled_from("abc"), doubles), max_size=3)),
    (column("json", "json"), pa.map_(pa.string(), pa.int64()), TIMES,
     st.dictionaries(st.sampled_from("abc"), longs | st.integers(0, 1000)).map(lambda one: list(one.items()))),
    (column("json", "json"), pa.list_(MAP), pa.list_(MAP),
     lists(st.lists(st.tuples(st.sampled_from("abc"), doubles), max_size=2))),
    (column("json", "json"), pa.list_(pa.binary()), STRINGS, lists(bits)),
]  # fmt: skip


def arrow(values: list[Any], held: pa.DataType, read: pa.DataType) -> pa.Array[Any]:
    made = cast("Any", pa).array(values, held)
    return made if held == read else made.view(read)


def refusal(encoding: Encoding, row: pa.RecordBatch, *, binary: bool) -> str | None:
    """Return the error with which one row is refused when it is written."""
    try:
        for _ in encoding.chunks([row]) if binary else encoding.rows([row]):
            pass
    except RowsRefused as error:
        return described(error)
    return None


def described(error: RowsRefused) -> str:
    return f"{error!r} {error.table} {error.column} {error.sqlstate} {error.found} {error.expected} {error.next_step}"


@pytest.mark.behaviour("DLQ-8")
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[2]} to {case[0].type_name}")
def test_a_row_is_a_misfit_exactly_where_that_row_alone_is_refused(
    case: tuple[Column, pa.DataType, pa.DataType, st.SearchStrategy[Any]],
) -> None:
    target, held, read, values = case
    encoding = Encoding(TABLE, [Match(target, cast("Any", find_cast(read, target)))])

    @settings(max_examples=60)
    @given(st.lists(st.none() | values, max_size=30), st.integers(0, 3), st.integers(0, 30), st.booleans())
    def holds(written: list[Any], start: int, length: int, may_be_binary: bool) -> None:  # noqa: FBT001 - hypothesis'
        binary = encoding.binary and may_be_binary
        rows = pa.record_batch([arrow(written, held, read)], names=["value"]).slice(start, length)
        alone = [
            refusal(encoding, pa.record_batch([arrow([value], held, read)], names=["value"]), binary=binary)
            for value in written[start : start + length]
        ]
        misfits = encoding.misfits(rows, binary=binary)
        assert {row: described(error) for row, error in misfits.items()} == {
            row: error for row, error in enumerate(alone) if error is not None
        }

    holds()


@pytest.mark.behaviour("DLQ-8")
@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(st.none() | small, st.none() | bits, st.none() | lists(longs | small), st.none() | uuids),
        max_size=40,
    ),
    st.booleans(),
)
def test_of_several_columns_the_one_counts_that_refuses_the_row_alone(
    rows: list[Any],
    binary: bool,  # noqa: FBT001 - hypothesis'
) -> None:
    targets = [
        Column("number", "smallint", "int2"),
        Column("text", "varchar(4)", "varchar", modifier=8),
        Column("list", "integer[]", "array", element="int4"),
        Column("id", "uuid", "uuid"),
    ]
    held = [pa.int64(), pa.binary(), pa.list_(pa.int64()), pa.string()]
    read = [pa.int64(), pa.string(), pa.list_(pa.int64()), pa.string()]
    matches = [Match(target, cast("Any", find_cast(kind, target))) for target, kind in zip(targets, read, strict=True)]
    encoding = Encoding(TABLE, matches)

    def batch(chosen: list[Any]) -> pa.RecordBatch:
        columns = [arrow([row[i] for row in chosen], held[i], read[i]) for i in range(len(targets))]
        return pa.record_batch(columns, names=[target.name for target in targets])

    alone = [refusal(encoding, batch([row]), binary=binary) for row in rows]
    misfits = encoding.misfits(batch(rows), binary=binary)
    assert {row: described(error) for row, error in misfits.items()} == {
        row: error for row, error in enumerate(alone) if error is not None
    }


@pytest.mark.behaviour("DLQ-8")
@pytest.mark.parametrize("kind", [pa.list_(pa.int64()), pa.list_(pa.int64(), 1), MAP], ids=str)
def test_what_a_null_hides_is_no_misfit(kind: Any) -> None:
    mask = pa.array([False, True, False, True])
    offsets: Any = pa.array([0, 1, 2, 3, 4], pa.int32())
    arrays = cast("Any", pa)
    if kind == MAP:
        numbers = pa.array([1.0, math.nan, math.nan, math.nan])
        lists_: Any = arrays.MapArray.from_arrays(offsets, pa.array(["a"] * 4), numbers, mask=mask)
        target = column("json", "json")
    else:
        numbers = pa.array([1, 2**40, 2**40, 2**40])
        fixed = pa.types.is_fixed_size_list(kind)
        lists_ = (
            arrays.FixedSizeListArray.from_arrays(numbers, 1, mask=mask)
            if fixed
            else arrays.ListArray.from_arrays(offsets, numbers, mask=mask)
        )
        target = array_of("int4")
    encoding = Encoding(TABLE, [Match(target, cast("Any", find_cast(kind, target)))])
    rows = pa.record_batch([lists_], names=["value"])
    assert list(encoding.misfits(rows, binary=encoding.binary)) == [2]
    assert list(encoding.misfits(rows.slice(3), binary=encoding.binary)) == []

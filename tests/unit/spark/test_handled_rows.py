"""What a handler returns, as Arrow columns: nothing is changed without a word."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Mapping, Sequence
from decimal import Decimal
from types import SimpleNamespace
from typing import Any, NoReturn, cast

import pandas as pd  # pyright: ignore[reportMissingTypeStubs]
import pyarrow as pa
import pytest

from offsetstore import Retries
from offsetstore.errors import ConfigurationError
from offsetstore.processing.handled_rows import arrow_rows, as_failed
from offsetstore.processing.handling import (
    CallOutcome,
    Handler,
    HandlerError,
    HandlerFailed,
    NoRows,
    Record,
    rows_of,
    unfit,
)
from offsetstore.spark import handlers
from offsetstore.spark.handlers import FAILED, ROWS, HandlerCalls, TopicIds, check_case, records_of

STRUCT = pa.struct([("n", pa.int32()), ("d", pa.date32())])


def outcome(offset: int, *rows: Any) -> CallOutcome:
    return CallOutcome(Record("payments", 0, offset), rows)


def made(kind: Any, value: Any) -> Any:
    """The value as the column has it, or why it is refused."""
    lists, [one] = rows([outcome(0, {"v": value})], {"": pa.schema([("v", kind)])})
    return lists[0]["rows"][0]["v"] if one.error is None else one.error


def rows(outcomes: Sequence[CallOutcome], schemas: Mapping[str, pa.Schema]) -> tuple[list[Any], Sequence[CallOutcome]]:
    column: Any
    column, found = arrow_rows(outcomes, schemas)
    return column.to_pylist(), found


@pytest.mark.behaviour("HAND-10")
def test_names_that_differ_only_in_case_are_refused_unless_spark_tells_them_apart() -> None:
    def spark(value: str) -> Any:
        return SimpleNamespace(conf={"spark.sql.caseSensitive": value})

    schemas = {"": pa.schema([("id", pa.int64()), ("Name", pa.string()), ("name", pa.string())])}
    check_case(schemas, spark("true"))
    check_case({"": pa.schema([("id", pa.int64())])}, spark("false"))
    with pytest.raises(ConfigurationError, match="found Name, name"):
        check_case(schemas, spark("false"))


@pytest.mark.behaviour("HAND-3")
@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.int64(), 1.0),
        (pa.decimal128(10, 2), Decimal("1.255")),
        (pa.date32(), dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC)),
        (pa.list_(STRUCT), [{"n": 1.5}]),
        (STRUCT, {"d": dt.datetime(2026, 1, 2, 3, tzinfo=dt.UTC)}),
        (pa.map_(pa.string(), pa.int32()), {"a": 1.5}),
        (STRUCT, (1, None)),
        (STRUCT, [("n", 1)]),
        (STRUCT, {"n": 1, "other": 2}),
        (STRUCT, {"N": 1}),
        (pa.struct([pa.field("n", pa.int32(), nullable=False)]), {"n": None}),
        (pa.list_(pa.string()), "abc"),
        (pa.timestamp("us", "UTC"), dt.datetime(2026, 1, 2)),  # noqa: DTZ001
        (pa.timestamp("us"), dt.datetime(2026, 1, 2, tzinfo=dt.UTC)),
        (pa.list_(STRUCT), [{"n": 1}, {"n": 1, "d": 5}]),
        (pa.timestamp("us"), pd.Timestamp(2026, 1, 2, nanosecond=1)),
        (pa.duration("us"), pd.Timedelta(1, "ns")),
    ],
)
def test_values_that_do_not_fit(kind: Any, value: Any) -> None:
    """Beside those of each type alone: see `tests.support.arrow_types`."""
    error = made(kind, value)
    assert isinstance(error, HandlerError)
    assert error.error_class == "HandlerResult"
    assert error.text


@pytest.mark.behaviour("HAND-3")
@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"id": "seventeen"}, "the column id (bigint): a value of type str"),
        ({"id": 1.5}, "the column id (bigint)"),
        ({"ID": 1}, "the schema has no column 'ID'; it has id"),
        ((1, 2), "the row has 2 values; expected 1: id"),
        ({"id": None}, "the column id is NULL"),
    ],
)
def test_a_row_that_does_not_fit_says_why(row: Any, said: str) -> None:
    _, [one] = rows([outcome(0, row)], {"": pa.schema([pa.field("id", pa.int64(), nullable=False)])})
    assert one.error is not None
    assert one.error.error_class == "HandlerResult"
    assert said in one.error.text


class Unreadable:
    """A name of a column that can't be read."""

    def __repr__(self) -> NoReturn:
        raise KeyError("s3cret")


@pytest.mark.behaviour("HAND-3")
@pytest.mark.parametrize(
    ("returned", "shown"),
    [
        ({"id": {"s3cret": 1}}, "the column id (bigint): a value of type dict that int64 does not hold as it is"),
        (
            {"price": "s3cret"},
            "the column price (decimal128(4, 2)): a value of type str that decimal128(4, 2) does not",
        ),
        ({"price": Decimal("123456.5")}, "the column price (decimal128(4, 2)): a value that it does not hold"),
        ({"id": 1 << 70}, "the column id (bigint): a value that it does not hold"),
        ({"s3cret": 1}, "the row has 1 column that the schema does not have; it has id, price"),
        ((1, None, "s3cret"), "the row has 3 values; expected 2: id, price"),
        ({Unreadable(): 1}, "to read what it returned raised KeyError"),
        ("s3cret", "the handler returned str; expected a row"),
    ],
)
def test_what_does_not_fit_is_shown_by_types_and_the_schema_s_columns_without_a_value(
    returned: Any, shown: str
) -> None:
    """Unlike the letter's text: errors are printed, and a name that the function has chosen may be a value, too."""
    schemas = {"": pa.schema([("id", pa.int64()), ("price", pa.decimal128(4, 2))])}
    try:
        _, [one] = rows([outcome(0, *rows_of(returned))], schemas)
        error = one.error
    except NoRows as none:
        error = unfit(none)
    assert error is not None
    assert error.shown.startswith(f": {shown}")
    assert not {word for word in ("s3cret", "123456", str(1 << 70)) if word in error.shown}
    given = as_failed(error, 1)
    del given["is_outage"]
    told = HandlerFailed.of(**given).failed
    assert shown in told.what
    assert "_reject" not in told.next_step


@pytest.mark.behaviour("HAND-3", "HAND-9")
def test_an_output_that_the_schema_does_not_have_is_not_shown_by_its_name() -> None:
    with pytest.raises(NoRows, match="no output 's3cret'") as caught:
        Handler(lambda _: None, {"orders": "id long"}).rows_of({"s3cret": (1,)})
    assert caught.value.shown == "the handler returned an output that its schema does not have; it has orders"


@pytest.mark.behaviour("HAND-3", "HAND-9")
@pytest.mark.parametrize(
    ("returned", "expected"),
    cast("list[Any]", [
        ({"a": {"n": 1}, "b": ({"t": t} for t in "xy")}, {"a": [{"n": 1}], "b": [{"t": "x"}, {"t": "y"}]}),
        ({"a": None}, {"a": [], "b": []}),
        ([{"a": (1,)}, {"a": (2,), "b": []}], {"a": [{"n": 1}, {"n": 2}], "b": []}),
        ({"c": {"n": 1}}, "there is no output 'c'"),
        ((1,), "expected a mapping of outputs to their rows"),
        ({"a": 7}, "returned int"),
    ]),
)  # fmt: skip
def test_several_outputs(returned: Any, expected: Mapping[str, Any] | str) -> None:
    schemas = {"a": pa.schema([("n", pa.int64())]), "b": pa.schema([("t", pa.string())])}
    handler = Handler(repr, schemas)
    if isinstance(expected, str):
        with pytest.raises(NoRows, match=expected):
            handler.rows_of(returned)
        return
    neighbour = handler.rows_of({"b": {"t": 7}})  # does not fit: all are looked at again
    lists, found = rows([outcome(0, *handler.rows_of(returned)), outcome(1, *neighbour)], schemas)
    assert lists[0] == expected
    assert [one.error is None for one in found] == [True, False]


def batch(*offsets: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(
        [
            {
                "key": b"k",
                "value": b"v",
                "topic": "payments",
                "partition": 0,
                "offset": offset,
                "timestamp": dt.datetime(2026, 1, 2, 3, 4, 5, 678_000, tzinfo=dt.UTC),
                "timestampType": 0,
                "headers": [{"key": "a", "value": b"1"}, {"key": "a", "value": None}] if offset else None,
            }
            for offset in offsets
        ]
    )


@pytest.mark.behaviour("HAND-5")
def test_the_records_of_a_batch() -> None:
    first, second = records_of(batch(0, 1), TopicIds({"payments": "new"}, {("payments", 0, 1): "old"}))
    assert (first.id, second.id) == ("payments/new/0/0", "payments/old/0/1")
    assert (first.headers, second.headers) == ((), (("a", b"1"), ("a", None)))
    assert first.timestamp == dt.datetime(2026, 1, 2, 3, 4, 5, 678_000, tzinfo=dt.UTC)
    assert (first.key, first.value) == (b"k", b"v")


@pytest.mark.behaviour("HAND-1", "HAND-3")
def test_batches_come_in_order_each_with_all_its_outcomes() -> None:
    def handle(record: Record) -> tuple[int] | None:
        if record.offset == 7:
            raise ValueError("no\0t this one")
        return (record.offset,) if record.offset % 2 else None

    given = [batch(*range(begin, begin + 5)) for begin in range(0, 50, 5)]
    calls = HandlerCalls(Handler(handle, None), TopicIds({}), {"": pa.schema([("n", pa.int64())])})
    found = pa.Table.from_batches([*calls(given)]).to_pylist()
    assert [row["offset"] for row in found] == [*range(50)]
    assert [row[ROWS]["rows"] for row in found] == [
        [{"n": offset}] if offset % 2 and offset != 7 else [] for offset in range(50)
    ]
    assert [row["offset"] for row in found if row[FAILED]] == [7]
    assert (found[7][FAILED]["error_class"], found[7][FAILED]["text"]) == ("ValueError", "not this one")


class Speechless(ConnectionError):
    def __str__(self) -> str:
        raise RuntimeError


@pytest.mark.behaviour("HAND-2", "HAND-7")
@pytest.mark.parametrize("is_async", [False, True])
def test_an_outage_is_told_at_each_record_that_is_left_and_nothing_more_is_called(*, is_async: bool) -> None:
    called: list[int] = []

    def handle(record: Record) -> tuple[int]:
        called.append(record.offset)
        if record.offset == 7:
            raise Speechless
        return (record.offset,)

    async def later(record: Record) -> tuple[int]:
        await asyncio.sleep(0)
        return handle(record)

    handler = Handler(later if is_async else handle, None, concurrency=2, ordering="partition", retries=Retries(1))
    calls = HandlerCalls(handler, TopicIds({}), {"": pa.schema([("n", pa.int64())])})
    given = [batch(*range(begin, begin + 5)) for begin in range(0, 500, 5)]
    found = pa.Table.from_batches([*calls(given)]).to_pylist()

    assert [row["offset"] for row in found] == [*range(500)]
    failed = [row[FAILED] for row in found if row[FAILED]]
    assert len(failed) in {495, 500}
    told = "Speechless, in a call for payments-0 at offset 7"
    assert {(one["is_outage"], one["error_class"]) for one in failed} == {(True, told)}
    assert called == [*range(8)]


@pytest.mark.behaviour("HAND-3")
def test_rows_that_arrow_cant_hold_in_one_batch_come_in_several(monkeypatch: pytest.MonkeyPatch) -> None:
    """It holds 2 GiB of text in one array."""

    def few(outcomes: Sequence[CallOutcome], schemas: Mapping[str, pa.Schema]) -> Any:
        if len(outcomes) > 2:
            raise TypeError("Expected Array, got ChunkedArray")
        return arrow_rows(outcomes, schemas)

    monkeypatch.setattr(handlers, "arrow_rows", few)
    calls = HandlerCalls(Handler(_offset, None), TopicIds({}), {"": pa.schema([("n", pa.int64())])})
    made = [*calls([batch(*range(5)), batch(*range(5, 8))])]
    assert len(made) > 2
    assert [row[ROWS]["rows"] for row in pa.Table.from_batches(made).to_pylist()] == [[{"n": n}] for n in range(8)]


def _offset(record: Record) -> tuple[int]:
    return (record.offset,)

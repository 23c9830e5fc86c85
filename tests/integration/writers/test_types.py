"""Every type that a DataFrame may have arrives in its column exactly, with NULLs, or not at all."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from typing import Any, cast
from uuid import UUID

import pyarrow as pa
import pytest

from offsetstore.errors import ColumnMismatch, RowsRefused
from offsetstore.writers import Append
from tests.integration.writers.writing import Database, batch, column
from tests.support import arrow_types

UTC = dt.UTC
ID = UUID("6f1c1e4e-1d2f-4a35-9b7a-0c9f6b1d2e3f")
INSTANT = dt.datetime(2024, 7, 1, 12, 30, 15, 123456, tzinfo=UTC)
WALL = dt.datetime(2024, 7, 1, 12, 30, 15, 123456)  # noqa: DTZ001 - a wall clock's time has no zone
AMSTERDAM = "Europe/Amsterdam"

# What is written as an Arrow type into a PostgreSQL type, NULL in the middle, comes back as it was (or as shown).
EXACT: list[tuple[str, pa.DataType, list[Any]]] = [
    ("smallint", pa.int16(), [-(2**15), None, 2**15 - 1]),
    ("smallint", pa.int64(), [-(2**15), None, 2**15 - 1]),
    ("integer", pa.int32(), [-(2**31), None, 2**31 - 1]),
    ("integer", pa.int8(), [-128, None, 127]),
    ("bigint", pa.int32(), [-(2**31), None, 2**31 - 1]),
    ("bigint", pa.int64(), [-(2**63), None, 2**63 - 1]),
    ("bigint", pa.decimal128(20, 0), [-(2**63), None, 2**63 - 1]),
    ("bigint", pa.float64(), [-3.0, None, 2.0**52]),
    ("real", pa.float32(), [1.5, None, -0.25]),
    ("double precision", pa.float32(), [1.5, None, -0.25]),
    ("double precision", pa.int32(), [1, None, -(2**31)]),
    ("numeric", pa.int16(), [-(2**15), None, 7]),
    ("numeric(38,18)", pa.decimal128(38, 18), [Decimal("12345678901234567890.123456789012345678"), None, Decimal(0)]),
    ("numeric(10,2)", pa.decimal128(10, 2), [Decimal("99999999.99"), None, Decimal("-0.01")]),
    ("numeric(10,2)", pa.decimal128(20, 6), [Decimal("1.230000"), None, Decimal("-0.010000")]),
    ("numeric(12,2)", pa.int32(), [5, None, -5]),
    ("text", pa.string(), ["", None, "Grüße\t\\N\n'\"", "🛬"]),
    ("text", pa.large_string(), ["a", None, "b"]),
    ("text", pa.dictionary(pa.int32(), pa.string()), ["a", None, "a"]),
    ("varchar(5)", pa.string(), ["", None, "12345"]),
    ("char(3)", pa.string(), ["abc", None, "de "]),
    ("bytea", pa.binary(), [b"", None, b"\x00\xff\\"]),
    ("bytea", pa.large_binary(), [b"", None, b"\x00"]),
    ("boolean", pa.bool_(), [True, None, False]),
    ("timestamptz", pa.timestamp("us", "UTC"), [INSTANT, None, INSTANT.replace(year=1883)]),
    ("timestamptz", pa.timestamp("us", AMSTERDAM), [INSTANT, None, INSTANT.replace(month=1)]),
    ("time", pa.time64("ns"), [dt.time(23, 59, 59, 999999), None, dt.time(0)]),
    ("time(0)", pa.time64("us"), [dt.time(23, 59, 59), None, dt.time(0)]),
    ("timestamp(3)", pa.timestamp("us"), [WALL.replace(microsecond=123_000), None, WALL.replace(1969, microsecond=0)]),
    ("timestamptz(0)", pa.timestamp("us", AMSTERDAM), [INSTANT.replace(microsecond=0), None, None]),
    ("interval", pa.duration("us"), [dt.timedelta(days=2, microseconds=1), None, dt.timedelta(0)]),
    ("interval(1)", pa.duration("us"), [dt.timedelta(days=2, seconds=1.5), None, dt.timedelta(seconds=-0.1)]),
    ("interval hour to second", pa.duration("us"), [dt.timedelta(days=2, microseconds=1), None, dt.timedelta(0)]),
    ("integer[]", pa.list_(pa.int32()), [[1, None], None, []]),
    ("smallint[]", pa.list_(pa.int64()), [[1, None], None, []]),
    ("integer[]", pa.list_(pa.list_(pa.int32())), [[[1, 2], [3, None]], None, []]),
    ("numeric(8,2)[]", pa.list_(pa.decimal128(8, 2)), [[Decimal("1.50"), None], None, []]),
    ("varchar(3)[]", pa.list_(pa.string()), [["a", None], None, []]),
    ("timestamptz[]", pa.list_(pa.timestamp("us", AMSTERDAM)), [[INSTANT, None], None, []]),
    ("date[]", pa.list_(pa.date32()), [[dt.date(2024, 2, 29), None], None, []]),
    ("double precision[]", pa.list_(pa.float64()), [[0.5, None, math.inf], None, []]),
    ("boolean[]", pa.list_(pa.bool_()), [[True, None], None, []]),
    ("uuid", pa.string(), [ID, None]),
    ("uuid", pa.binary(), [ID, None]),
    ("uuid", pa.binary(16), [ID, None]),
    ("uuid[]", pa.list_(pa.string()), [[ID, None], None, []]),
]

# One column of these, and the whole COPY is a text one.
TEXT_COPIES = {"varchar(3)[]", "timestamptz[]", "uuid[]"}


def given(value: Any, arrow: Any) -> Any:
    """The value as it is written: a UUID in one of its forms."""
    if isinstance(value, UUID):
        return value.hex.upper() if pa.string() == arrow else value.bytes
    return [given(one, arrow.value_type) for one in cast("list[Any]", value)] if isinstance(value, list) else value


@pytest.mark.behaviour("SINK-2")
@pytest.mark.parametrize("form", ["binary", "text"])
def test_values_and_nulls_of_all_types_come_back_side_by_side_in_one_copy(database: Database, form: str) -> None:
    kept = [
        (target, arrow, [*values, *[None] * (4 - len(values))])
        for target, arrow, values in EXACT
        if form == "text" or not (target in TEXT_COPIES or pa.list_(pa.list_(pa.int32())) == arrow)
    ]
    database.run(f"CREATE TABLE t ({', '.join(f'c{i} {target}' for i, (target, *_) in enumerate(kept))})")
    columns = {f"c{i}": [given(one, arrow) for one in values] for i, (_, arrow, values) in enumerate(kept)}
    rows = batch(columns, {f"c{i}": arrow for i, (_, arrow, _) in enumerate(kept)})
    assert database.write(Append("t"), rows) == 4
    assert database.rows("SELECT * FROM t ORDER BY ctid") == [*zip(*(values for *_, values in kept), strict=True)]


@pytest.mark.behaviour("SINK-2")
def test_not_a_number_stays_not_a_number_and_a_numeric_has_a_double_s_own_digits(database: Database) -> None:
    database.run("CREATE TABLE t (d double precision, r real, n numeric)")
    nan = [math.nan, 1e-7, None]
    written = batch({"d": nan, "r": nan, "n": nan}, {"d": pa.float64(), "r": pa.float32(), "n": pa.float64()})
    database.write(Append("t"), written)
    shown = [("NaN",) * 3, ("1e-07", "1e-07", "0.0000001"), (None,) * 3]
    assert database.rows("SELECT d::text, r::text, n::text FROM t ORDER BY ctid") == shown


@pytest.mark.behaviour("SINK-2")
@pytest.mark.parametrize("kind", ["json", "jsonb"])
def test_json_from_text_and_from_nested_columns(database: Database, kind: str) -> None:
    database.run(f"CREATE TABLE t (document {kind}, struct {kind}, map {kind}, list {kind})")
    struct = pa.struct([("amount", pa.decimal128(38, 2)), ("at", pa.timestamp("us", AMSTERDAM)), ("raw", pa.binary())])
    written = batch(
        {
            "document": ['{"a": [1, null]}', None, "null"],
            "struct": [{"amount": Decimal("12345678901234567890.10"), "at": INSTANT, "raw": b"\xff"}, None, {}],
            "map": [[("k", 1.5), ("ü", None)], None, []],
            "list": [[True, None], None, []],
        },
        {"struct": struct, "map": pa.map_(pa.string(), pa.float64()), "list": pa.list_(pa.bool_())},
    )
    database.write(Append("t"), written)
    [(found, *others), *nulls] = database.rows("SELECT struct, document, map, list FROM t ORDER BY ctid")
    assert (found["raw"], dt.datetime.fromisoformat(found["at"])) == ("/w==", INSTANT)
    assert others == [{"a": [1, None]}, {"k": 1.5, "ü": None}, [True, None]]
    assert nulls == [(None,) * 4, ({"amount": None, "at": None, "raw": None}, None, {}, [])]
    assert database.rows("SELECT struct ->> 'amount' FROM t LIMIT 1") == [("12345678901234567890.10",)]


@pytest.mark.behaviour("SINK-23")
def test_a_float32_in_json_has_its_own_digits_at_any_depth(database: Database) -> None:
    database.run("CREATE TABLE t (struct json, map json, list json, value json)")
    single = pa.float32()
    largest, smallest = 3.4028235e38, 1e-45
    written = batch(
        {
            "struct": [{"a": 0.1, "b": [{"c": 16777216.0}, None]}, None, {"a": None, "b": None}],
            "map": [[(0.1, largest)], None, []],
            "list": [[0.1, smallest, -0.0, None], None, []],
            "value": [0.1, None, 2.5],
        },
        {
            "struct": pa.struct([("a", single), ("b", pa.list_(pa.struct([("c", single)])))]),
            "map": pa.map_(single, single),
            "list": pa.list_(single),
            "value": single,
        },
    )
    database.write(Append("t"), written)
    database.write(Append("t"), written.slice(2))
    assert database.rows("SELECT struct::text, map::text, list::text, value::text FROM t ORDER BY ctid") == [
        ('{"a":0.1,"b":[{"c":16777216.0},null]}', '{"0.1":3.4028235e+38}', "[0.1,1e-45,-0.0,null]", "0.1"),
        (None, None, None, None),
        ('{"a":null,"b":null}', "{}", "[]", "2.5"),
        ('{"a":null,"b":null}', "{}", "[]", "2.5"),
    ]


@pytest.mark.behaviour("SINK-2")
def test_types_of_the_database_s_own_take_their_text_form(database: Database) -> None:
    database.run("CREATE TYPE mood AS ENUM ('calm', 'tense'); CREATE DOMAIN small AS numeric(4,1) CHECK (VALUE > 0)")
    database.run("CREATE TABLE t (address inet, mood mood, small small, span int4range, n bigint)")
    written = batch(
        {
            "address": ["10.0.0.1", None],
            "mood": ["tense", None],
            "small": [Decimal("1.5"), None],
            "span": ["[1,5)", None],
            "n": [2**62, None],
        }
    )
    database.write(Append("t"), written)
    assert database.rows("SELECT address::text, mood::text, small, span::text, n FROM t ORDER BY ctid") == [
        ("10.0.0.1/32", "tense", Decimal("1.5"), "[1,5)", 2**62),
        (None, None, None, None, None),
    ]


@pytest.mark.behaviour("SINK-22")
@pytest.mark.parametrize(
    ("target", "kept", "refused"),
    [
        (
            "time",
            ["12:30", "1:02:03", "23:59:59.123456000", "24:00:00", "07:30 PM"],
            ["12:30:15+02", "12:30Z", "2024-07-01 12:30:15", "12:30:15.1234567", "12:30:60", "now", "12:30\n; 1"],
        ),
        (
            "timetz",
            ["12:30+02", "12:30:15.123456 -05:30", "12:30Z"],
            ["12:30", "12:30:15.1234567+02", "2024-07-01 12:30:15+02", "now", "12:30 CET"],
        ),
        (
            "interval",
            [
                "1.500000 s",
                "PT1.123456S",
                "1.25 days",
                "1.5 months",
                "1.25 years",
                "P0.50Y",
                "1.234 ms",
                "2.0 us",
                "1 day, 2:00:00",
                "infinity",
                *["-1 mons +2 days 03:04:05", "-1 mon -2 days", "-1 day +02:00", "-1-2", "-02:03:04", "-1.5 days"],
                *["1 mon -2 days", "P-1M2D", "-1 day"],
            ],
            ["1.1234567 s", "- 1 mon 2 days", "0.4 microseconds", "0.01 decades", "0.5 C", "02:00 1.5 days"],
        ),
        (
            "daterange",
            ["[2024-07-01,2024-08-01)", "empty", '("2024-07-01", infinity ]', "(,)", "[0044-03-15 BC,)"],
            ["[2024-07-01 23:59:59,2024-08-01)", "[07/01/2024,)", "[today,)", "[2024-07-01,2024-08-01 12:00)"],
        ),
        (
            "tsrange",
            ["[2024-07-01,2024-08-01)", '["2024-07-01 12:30:15.123456","2024-08-01T00:00")', "[-infinity,)"],
            ["[2024-07-01 00:00+05,)", "[,2024-07-01 00:00:00.1234567)", "[2024-07-01 00:00Z,)", "[now,)"],
        ),
        (
            "tstzrange",
            ['["2024-07-01 12:30:15.123456+00","2024-08-01 00:00:00-05:30")', "[2024-07-01T12:30Z,)"],
            ["[2024-07-01 00:00,)", "[2024-07-01,)", "[,2024-07-01 00:00:00.1234567Z)", "[2024-07-01 00:00 CET,)"],
        ),
        (
            "datemultirange",
            ["{}", "{[2024-07-01,2024-08-01), [2025-07-01,)}"],
            ["{[2024-07-01,2024-08-01), [2025-07-01 12:00,)}"],
        ),
        ("tsmultirange", ["{[2024-07-01 12:30,)}"], ["{[2024-07-01 12:30+02,)}"]),
        ("tstzmultirange", ["{[2024-07-01 12:30Z,)}"], ["{[2024-07-01 12:30,)}"]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_string_of_which_postgresql_would_drop_a_part_is_refused(
    database: Database, target: str, kept: list[str], refused: list[str]
) -> None:
    database.run(f"CREATE TABLE t (value {target}); CREATE TABLE a (value {target}[])")
    assert database.write(Append("t"), column([*kept, None], pa.string())) == len(kept) + 1
    for text in refused:
        error = database.refusal(RowsRefused, Append("t"), column([None, text], pa.string()))
        assert (error.column, error.sqlstate) == ("value", None)
        database.refusal(RowsRefused, Append("a"), column([[kept[0], text]], pa.list_(pa.string())))


@pytest.mark.behaviour("SINK-2")
def test_a_duration_is_stored_in_hours_whatever_the_other_columns(database: Database) -> None:
    day, kind = dt.timedelta(days=1), pa.duration("us")
    lengths = [day * 1.5, -day + dt.timedelta(microseconds=3), dt.timedelta(hours=-1), None, dt.timedelta.max // 10]
    shown = ["36:00:00", "-23:59:59.999997", "-01:00:00", None, "2399999999:59:59.999999"]
    database.run("CREATE TABLE t (value interval, more interval[], address inet)")
    database.write(Append("t"), column(lengths, kind))
    database.write(Append("t"), batch({"value": lengths, "address": ["10.0.0.1"] * 5}, {"value": kind}))
    assert [value for (value,) in database.rows("SELECT value::text FROM t ORDER BY ctid")] == shown * 2
    database.write(Append("t"), batch({"more": [[day, None], None]}, {"more": pa.list_(kind)}))
    assert database.rows("SELECT more::text FROM t WHERE more IS NOT NULL") == [("{24:00:00,NULL}",)]


@pytest.mark.behaviour("SINK-26")
def test_each_type_of_arrow_is_stored_by_value_also_inside_a_list(database: Database) -> None:
    database.run(arrow_types.TABLE)
    given = arrow_types.batch()
    database.write(Append("kinds"), given, given.slice(1))
    assert database.rows(arrow_types.differing()) == [([],)]
    assert database.rows(arrow_types.NULLS) == [(2,)]


@pytest.mark.behaviour("SINK-26")
def test_what_holds_json_and_uuids_is_written_as_a_person_would(database: Database) -> None:
    arrow: Any = pa
    ids, texts = arrow.array([ID, None], arrow.uuid()), arrow.array(['{"a":1.50}', "null"], arrow.json_())
    pair = arrow.StructArray.from_arrays([ids, texts, arrow.array([0.1, None], pa.float32())], ["i", "j", "f"])
    pairs = arrow.ListArray.from_arrays([0, 1, 2], pair)
    by_id = arrow.MapArray.from_arrays([0, 1, 2], arrow.array(["k", "k"]).dictionary_encode(), pair)
    columns = {
        "pair": pair,
        "pairs": pairs,
        "by_id": by_id,
        "of_ids": arrow.ListArray.from_arrays([0, 1, 2], ids),
        "of_texts": arrow.ListArray.from_arrays([0, 1, 2], texts),
        "id": ids,
        "raw": ids,
        "shown": ids,
        "text": texts,
    }
    database.run(
        "CREATE TABLE t (pair json, pairs json, by_id json, of_ids uuid[], of_texts jsonb[], id json, raw bytea,"
        " shown text, text varchar(10))"
    )
    database.write(Append("t"), batch(columns))
    shown, null = f'{{"i":"{ID}","j":{{"a":1.50}},"f":0.1}}', '{"i":null,"j":null,"f":null}'
    assert database.rows(f"SELECT {', '.join(f'{name}::text' for name in columns)} FROM t ORDER BY ctid") == [
        (
            shown,
            f"[{shown}]",
            f'{{"k":{shown}}}',
            f"{{{ID}}}",
            '{"{\\"a\\": 1.50}"}',
            f'"{ID}"',
            f"\\x{ID.hex}",
            str(ID),
            '{"a":1.50}',
        ),
        (null, f"[{null}]", f'{{"k":{null}}}', "{NULL}", '{"null"}', None, None, None, "null"),
    ]


@pytest.mark.behaviour("SINK-26")
@pytest.mark.parametrize(
    ("kind", "number"),
    [(pa.time64("ns"), 1), (pa.duration("ns"), -1), (pa.date64(), 86_400_001)],
    ids=str,
)
def test_a_part_that_python_leaves_out_is_refused(database: Database, kind: Any, number: int) -> None:
    arrow: Any = pa
    value = arrow.array([number], pa.int64()).view(kind)
    database.run("CREATE TABLE t (day date, value jsonb, list json)")
    for columns in (
        {"day": value} if kind == pa.date64() else {"value": value},
        {"list": arrow.ListArray.from_arrays([0, 1], value)},
    ):
        database.refusal(RowsRefused, Append("t"), batch(columns))


@pytest.mark.behaviour("SINK-26")
def test_a_text_that_is_not_json_cannot_end_the_object_that_it_is_in(database: Database) -> None:
    arrow: Any = pa
    database.run("CREATE TABLE t (value jsonb)")
    for text in ['1, "b": 2', "}", "secret", "[" * 100_000]:
        pair = arrow.StructArray.from_arrays([arrow.array([text], arrow.json_())], ["a"])
        error = database.refusal(RowsRefused, Append("t"), batch({"value": pair}))
        assert "a text that is not JSON" in str(error)
        assert "secret" not in str(error)


@pytest.mark.behaviour("SINK-26")
@pytest.mark.parametrize(
    "case", [one for one in arrow_types.CASES if one.kind and not one.column], ids=lambda one: one.of
)
def test_a_type_that_is_not_written_is_refused_with_what_to_write(database: Database, case: arrow_types.Case) -> None:
    database.run("CREATE TABLE t (value jsonb, text text)")
    for given in (case.array, case.lists):
        error = database.refusal(ColumnMismatch, Append("t"), batch({"value": given, "text": given}))
        assert error.found == dict.fromkeys(["value", "text"], str(given.type))
        assert f"Convert {case.kind} to " in error.next_step
        assert "jsonb" not in error.next_step
    if isinstance(case.kind, pa.BaseExtensionType):
        error = database.refusal(ColumnMismatch, Append("t"), batch({"value": case.array}))
        assert "batch.column('value').storage" in error.next_step


def test_a_column_of_nothing_but_null_fits_any_type(database: Database) -> None:
    database.run("CREATE TABLE t (n bigint, j jsonb, a text[], u uuid, i inet)")
    database.write(Append("t"), batch(dict.fromkeys("njau", pa.nulls(2))))
    database.write(Append("t"), batch(dict.fromkeys("njaui", pa.nulls(1))))
    assert database.rows("SELECT DISTINCT n, j, a, u, i FROM t") == [(None,) * 5]
    assert database.rows("SELECT count(*) FROM t") == [(3,)]


LOSSY: list[tuple[str, pa.DataType, Any]] = [
    ("integer", pa.float64(), 2.5),
    ("integer", pa.float64(), math.nan),
    ("smallint", pa.int64(), 40_000),
    ("bigint", pa.decimal128(38, 0), 2**63),
    ("bigint", pa.decimal128(10, 2), Decimal("1.25")),
    ("real", pa.int64(), 2**24 + 1),
    ("double precision", pa.int64(), 2**53 + 1),
    ("numeric(10,2)", pa.decimal128(10, 3), Decimal("1.005")),
    ("numeric(10,2)[]", pa.list_(pa.decimal128(10, 3)), [Decimal("1.005")]),
    ("numeric(4,2)", pa.decimal128(10, 2), Decimal("12345.67")),
    ("numeric(4,2)", pa.int64(), 12_345),
    ("varchar(3)", pa.string(), "abcd"),
    ("varchar(3)", pa.string(), "abc "),
    ("varchar(3)[]", pa.list_(pa.string()), ["ok", "abc "]),
    ("time", pa.time64("ns"), 1),
    ("timestamptz(3)[]", pa.list_(pa.timestamp("us", "UTC")), [INSTANT]),
    ("interval day to second(2)", pa.duration("us"), dt.timedelta(milliseconds=-1)),
    ("jsonb", pa.list_(pa.float64()), [math.nan]),
    ("jsonb", pa.string(), '{"secret": '),
    ("uuid", pa.string(), "not-a-uuid"),
    ("uuid", pa.binary(), b"short"),
    ("inet", pa.string(), "12345.67"),
    ("smallint[]", pa.list_(pa.int64()), [40_000]),
]


@pytest.mark.parametrize(("target", "arrow", "value"), LOSSY, ids=lambda value: str(value)[:30])
def test_a_value_that_would_lose_something_is_refused(
    database: Database, target: str, arrow: pa.DataType, value: Any
) -> None:
    database.run(f"CREATE TABLE t (value {target})")
    error = database.refusal(RowsRefused, Append("t"), column([None, value], arrow))
    assert error.column == "value"
    assert str(value) not in f"{error} {error.__cause__}"
    assert database.rows("SELECT count(*) FROM t") == [(0,)]


# Pairs beside those of `tests.support.type_pairs`.
REFUSED: list[tuple[str, pa.DataType]] = [
    ("integer[]", pa.int32()),
    ("interval(3)", pa.string()),
    ("json", pa.binary()),
    ("text", pa.struct([("a", pa.int32())])),
    ("timetz(0)", pa.string()),
    ("uuid", pa.binary(8)),
    ("uuid", arrow_types.arrow.json_()),
    ("inet", arrow_types.arrow.json_()),
    ("inet", arrow_types.arrow.uuid()),
    ("inet", pa.float16()),
    ("numeric(10,2)", arrow_types.arrow.decimal256(60, 2)),
]


@pytest.mark.behaviour("SINK-10")
@pytest.mark.parametrize(("target", "arrow"), REFUSED, ids=str)
def test_a_type_that_does_not_fit_is_refused_whatever_its_values(
    database: Database, target: str, arrow: pa.DataType
) -> None:
    database.run(f"CREATE TABLE t (value {target})")
    error = database.refusal(ColumnMismatch, Append("t"), column([None], arrow))
    assert error.found == {"value": str(arrow)}
    assert list(error.expected) == ["value"]  # type: ignore[call-overload]
    assert error.next_step


# The database would take these, and keep something else: no hour of a day, a cent more, one letter of three.
SILENT: list[tuple[str, pa.DataType, Any, str]] = [
    ("interval day", pa.duration("us"), dt.timedelta(hours=23), "interval"),
    ("interval year to month", pa.duration("us"), dt.timedelta(days=40), "interval"),
    ("interval minute[]", pa.list_(pa.duration("us")), [dt.timedelta(seconds=59)], "interval[]"),
    ("money", pa.string(), "1.239", "numeric"),
    ('"char"', pa.string(), "xyz", "text"),
    ("name", pa.string(), "x" * 100, "text"),
    ("name[]", pa.list_(pa.string()), ["x" * 100], "text[]"),
]


@pytest.mark.behaviour("SINK-10")
@pytest.mark.parametrize(("target", "arrow", "value", "instead"), SILENT, ids=lambda value: str(value)[:30])
def test_a_type_that_changes_values_without_an_error_is_refused_with_the_one_to_have(
    database: Database, target: str, arrow: pa.DataType, value: Any, instead: str
) -> None:
    database.run(f"CREATE DOMAIN own AS {target}; CREATE TABLE t (value {target}); CREATE TABLE d (value own)")
    for table in ["t", "d"]:
        error = database.refusal(ColumnMismatch, Append(table), column([value], arrow))
        assert error.expected == {"value": instead}
        assert f"Change value to {instead} in the table." in str(error)
    assert database.write(Append("t"), column([None], pa.null())) == 1


@pytest.mark.behaviour("SINK-2", "SINK-10")
def test_an_array_of_a_domain_takes_what_an_array_of_its_type_takes(database: Database) -> None:
    database.run(
        "CREATE DOMAIN price AS numeric(5,2); CREATE DOMAIN positive AS price CHECK (VALUE > 0);"
        "CREATE DOMAIN code AS name; CREATE DOMAIN label AS text; CREATE DOMAIN labels AS label[];"
        "CREATE DOMAIN numbers AS int[]; CREATE TABLE lists (value numbers[]);"
        "CREATE TABLE t (n positive[], l labels); CREATE TABLE c (value code[])"
    )
    prices, labels = pa.list_(pa.decimal128(7, 3)), pa.list_(pa.string())
    written = batch({"n": [[Decimal("1.230"), None], None], "l": [["a", None], []]}, {"n": prices, "l": labels})
    database.write(Append("t"), written)
    assert database.rows("SELECT n::text, l::text FROM t ORDER BY ctid") == [("{1.23,NULL}", "{a,NULL}"), (None, "{}")]
    database.refusal(RowsRefused, Append("t"), batch({"n": [[Decimal("1.235")]]}, {"n": prices}))
    database.refusal(ColumnMismatch, Append("t"), batch({"n": [["1.235"]]}, {"n": labels}))
    database.refusal(ColumnMismatch, Append("lists"), column([[[1]]], pa.list_(pa.list_(pa.int32()))))
    assert database.write(Append("lists"), column([["{1,2}"]], labels)) == 1
    error = database.refusal(ColumnMismatch, Append("c"), column([["x" * 100]], labels))
    assert error.expected == {"value": "text[]"}


def test_an_escaped_nul_in_jsonb_is_found_by_the_database_and_its_column_named(database: Database) -> None:
    database.run('CREATE TABLE t ("odd, column x" jsonb)')
    error = database.refusal(RowsRefused, Append("t"), batch({"odd, column x": ['{"secret": "\\u0000"}']}))
    assert (error.column, error.sqlstate) == ("odd, column x", "22P05")
    assert "secret" not in str(error)

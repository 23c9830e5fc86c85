"""Each type that pyarrow has, with an edge value and what PostgreSQL then holds; or that it is refused."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any, Final
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc

arrow: Any = pa  # its stubs lack the newer types
kernels: Any = pc

ID: Final = UUID("6f1c1e4e-1d2f-4a35-9b7a-0c9f6b1d2e3f")
WALL: Final = dt.datetime(2024, 7, 1, 12, 30, 15, 123456)  # noqa: DTZ001 - a wall clock's time has no zone
INSTANT: Final = WALL.replace(tzinfo=dt.timezone(dt.timedelta(hours=2)))
CLOCK: Final = dt.time(23, 59, 59, 999999)
LENGTH: Final = dt.timedelta(days=-1, seconds=1, microseconds=7)
FLAG: Final = True
NUMBER: Final = Decimal("-1234567.89")


@dataclass(frozen=True, kw_only=True)
class Case:
    """A type, by pyarrow's name of its id or of its class if it is an extension.

    :param kind: the type; ``None`` if pyarrow can't make any.
    :param column: the type of the column that takes it; without one, it is refused.
    :param value: of Python.
    :param stored: what the column then holds, as PostgreSQL writes it.
    :param inside: what it is in JSON, inside a list.
    :param inside_handled: the same from a handler, if that is another text of the value.
    :param bad: values that a handler's column must refuse.
    :param handled: whether a handler's schema may have it.
    :param handled_inside: whether it may have it inside another.
    """

    of: str
    kind: Any
    column: str = ""
    value: Any = None
    stored: str | None = None
    inside: str | None = None
    inside_handled: str | None = None
    bad: Sequence[Any] = ()
    handled: bool = True
    handled_inside: bool = True

    @property
    def array(self) -> Any:
        """The value and a NULL, in the type."""
        if not self.column:
            return arrow.nulls(2, self.kind)
        given = [self.value, None]
        if arrow.types.is_run_end_encoded(self.kind):
            return kernels.run_end_encode(arrow.array(given, self.kind.value_type))
        if isinstance(self.kind, arrow.Bool8Type):
            return arrow.ExtensionArray.from_storage(self.kind, arrow.array([2 * self.value, None], arrow.int8()))
        return arrow.array(given, self.kind)

    @property
    def lists(self) -> Any:
        """A list with the value, and a NULL."""
        offsets = arrow.array([0, None, 1], arrow.int32())
        return arrow.ListArray.from_arrays(offsets, self.array.slice(0, 1))


def _case(of: str, kind: Any, column: str, value: Any, stored: str, *bad: Any, **more: Any) -> Case:
    inside = more.pop("inside", stored)
    return Case(of=of, kind=kind, column=column, value=value, stored=stored, inside=inside, bad=bad, **more)


def _texts(of: str, kind: Any) -> Case:
    return _case(of, kind, "text", 'ü"', 'ü"', b"abc", 1, "\ud800", inside='"ü\\""')


def _bytes(of: str, kind: Any, *bad: Any) -> Case:
    return _case(of, kind, "bytea", b"\0\xff", "\\x00ff", "abc", 1, *bad, inside='"AP8="')


def _decimals(of: str, kind: Any, value: Decimal = NUMBER, **more: Any) -> Case:
    bad = (Decimal("1.005"), 1.5, "1", Decimal("NaN"), True, Decimal(10) ** 70)
    return _case(of, kind, "numeric", value, str(value), *bad, **more)


def _integers(of: str, kind: Any, column: str, value: int) -> Case:
    return _case(of, kind, column, value, str(value), value * 2, 1.5, 1.0, FLAG, "1", Decimal(1), Decimal("1.5"))


def _times(of: str, kind: Any, step: int) -> Case:
    value = CLOCK.replace(microsecond=CLOCK.microsecond // step * step)
    text = value.isoformat()
    bad = [CLOCK] if step > 1 else []
    return _case(
        of,
        kind,
        "time",
        value,
        text.removesuffix("000"),
        *bad,
        CLOCK.replace(tzinfo=dt.UTC),
        5,
        "1:2",
        inside=f'"{text}"',
    )


def _moments(unit: str, step: int, zone: str | None) -> Case:
    whole = WALL if zone is None else INSTANT
    value = whole.replace(microsecond=whole.microsecond // step * step)
    utc = value if zone is None else value.astimezone(dt.UTC).replace(tzinfo=None)
    text = utc.isoformat(" ").removesuffix("000")
    in_utc = value if zone is None else value.astimezone(dt.UTC)
    inside, inside_handled = (
        f'"{one.isoformat()}"' for one in (value if zone == "Europe/Amsterdam" else in_utc, in_utc)
    )
    other = INSTANT if zone is None else WALL
    bad = ([whole] if step > 1 else []) + [other, 1_700_000_000, dt.date(2024, 7, 1), "2024-07-01"]
    if zone is not None:
        bad.append(INSTANT.replace(microsecond=0, tzinfo=dt.timezone(dt.timedelta(microseconds=7))))
    column = "timestamp" if zone is None else "timestamptz"
    stored = text if zone is None else f"{text}+00"
    kind = arrow.timestamp(unit, zone)
    return _case("TIMESTAMP", kind, column, value, stored, *bad, inside=inside, inside_handled=inside_handled)


def _lengths(unit: str, step: int) -> Case:
    value = dt.timedelta(days=-1, seconds=1, microseconds=LENGTH.microseconds // step * step)
    text = "-23:59:59" if step > 1 else "-23:59:58.999993"
    inside = f"INTERVAL '-0 {text[1:]}' DAY TO SECOND"
    bad = ([LENGTH] if step > 1 else []) + [5, "1 day", 1.5]
    return _case("DURATION", arrow.duration(unit), "interval", value, text, *bad, inside=f'"{inside}"')


def _lists(of: str, kind: Any, *bad: Any) -> Case:
    return _case(of, kind, "bigint[]", [7, None], "{7,NULL}", [1.5, 1], "ab", 7, ["1", 1], *bad, inside="[7,null]")


def _refused(of: str, kind: Any = None, **more: Any) -> Case:
    return Case(of=of, kind=kind, handled=False, handled_inside=False, **more)


_FLOAT_BAD: Final = (1e39, 1e-50, 1 / 3, 16777217, 16777217.0, True, "1", Decimal(1), Fraction(1, 3))
_DAY: Final = dt.date(2024, 2, 29)
_PAIR: Final = pa.struct([("n", pa.int64()), ("at", pa.timestamp("s", "UTC"))])
_MAP: Final = pa.map_(pa.string(), pa.int64())

CASES: Final[Sequence[Case]] = (
    Case(of="NA", kind=pa.null(), column="text", inside="null", bad=[1, ""]),
    _case("BOOL", pa.bool_(), "boolean", FLAG, "true", 1, "yes", 0.0),
    _integers("INT8", pa.int8(), "smallint", -(2**7)),
    _integers("INT16", pa.int16(), "smallint", -(2**15)),
    _integers("INT32", pa.int32(), "integer", -(2**31)),
    _integers("INT64", pa.int64(), "bigint", -(2**63)),
    _integers("UINT8", pa.uint8(), "smallint", 2**8 - 1),
    _integers("UINT16", pa.uint16(), "integer", 2**16 - 1),
    _integers("UINT32", pa.uint32(), "bigint", 2**32 - 1),
    _integers("UINT64", pa.uint64(), "numeric", 2**64 - 1),
    _case("HALF_FLOAT", pa.float16(), "real", 1.5, "1.5", 70000.0, 2049.0, 0.12345, *_FLOAT_BAD),
    _case("FLOAT", pa.float32(), "real", 0.1, "0.1", *_FLOAT_BAD),
    _case("DOUBLE", pa.float64(), "double precision", 1e-50, "1e-50", 2**53 + 1, FLAG, "1", Decimal(1), Fraction(1, 3)),
    _bytes("BINARY", pa.binary()),
    _bytes("LARGE_BINARY", pa.large_binary()),
    _bytes("BINARY_VIEW", arrow.binary_view()),
    _bytes("FIXED_SIZE_BINARY", pa.binary(2), b"a", b"abc"),
    _texts("STRING", pa.string()),
    _texts("LARGE_STRING", pa.large_string()),
    _texts("STRING_VIEW", arrow.string_view()),
    _decimals("DECIMAL32", arrow.decimal32(9, 2)),
    _decimals("DECIMAL64", arrow.decimal64(18, 2)),
    _decimals("DECIMAL128", pa.decimal128(38, 2)),
    _decimals("DECIMAL256", arrow.decimal256(38, 2)),
    _decimals("DECIMAL256", arrow.decimal256(60, 2), Decimal("9" * 50 + ".25"), handled=False, handled_inside=False),
    _case("DATE32", pa.date32(), "date", _DAY, str(_DAY), WALL, 18_000, "2024-02-29", inside=f'"{_DAY}"'),
    _case("DATE64", pa.date64(), "date", _DAY, str(_DAY), WALL, 18_000, "2024-02-29", inside=f'"{_DAY}"'),
    _times("TIME32", pa.time32("s"), 1_000_000),
    _times("TIME32", pa.time32("ms"), 1000),
    _times("TIME64", pa.time64("us"), 1),
    _times("TIME64", pa.time64("ns"), 1),
    *(
        _moments(unit, step, zone)
        for zone in (None, "UTC", "Europe/Amsterdam")
        for unit, step in (("s", 1_000_000), ("ms", 1000), ("us", 1), ("ns", 1))
    ),
    *(_lengths(unit, step) for unit, step in (("s", 1_000_000), ("ms", 1000), ("us", 1), ("ns", 1))),
    _lists("LIST", pa.list_(pa.int64())),
    _lists("LARGE_LIST", pa.large_list(pa.int64())),
    _lists("LIST_VIEW", arrow.list_view(pa.int64())),
    _lists("LARGE_LIST_VIEW", arrow.large_list_view(pa.int64())),
    _lists("FIXED_SIZE_LIST", pa.list_(pa.int64(), 2), [1], [1, 2, 3]),
    _case("LIST", pa.list_(arrow.string_view()), "text[]", ["a", None], "{a,NULL}", [b"a"], inside='["a",null]'),
    _case("MAP", _MAP, "jsonb", {"k": 1}, '{"k": 1}', {"k": 1.5}, {1: 1}, 7, inside='{"k":1}'),
    _case(
        "STRUCT",
        _PAIR,
        "jsonb",
        {"n": 1, "at": INSTANT.replace(microsecond=0)},
        '{"n": 1, "at": "2024-07-01T10:30:15+00:00"}',
        {"n": 1.5},
        {"n": 1, "at": INSTANT},
        {"m": 1},
        (1, INSTANT),
        inside='{"n":1,"at":"2024-07-01T10:30:15+00:00"}',
    ),
    _case("DICTIONARY", pa.dictionary(pa.int8(), pa.string()), "text", "ü", "ü", b"a", 1, inside='"ü"'),
    _case("DICTIONARY", pa.dictionary(pa.int8(), pa.int64()), "bigint", 2**60, str(2**60), 1.5, FLAG),
    _case("RUN_END_ENCODED", arrow.run_end_encoded(pa.int32(), pa.string()), "text", "ü", "ü", b"a", 1, inside='"ü"'),
    _case(
        "RUN_END_ENCODED",
        arrow.run_end_encoded(pa.int16(), pa.date64()),
        "date",
        _DAY,
        str(_DAY),
        5,
        inside=f'"{_DAY}"',
    ),
    _refused("SPARSE_UNION", arrow.sparse_union([pa.field("a", pa.int64())])),
    _refused("DENSE_UNION", arrow.dense_union([pa.field("a", pa.int64())])),
    _refused("INTERVAL_MONTHS"),  # pyarrow can't make one
    _refused("INTERVAL_DAY_TIME"),
    _refused("INTERVAL_MONTH_DAY_NANO", arrow.month_day_nano_interval()),
    _case(
        "JsonType",
        arrow.json_(),
        "jsonb",
        '{"a": [1.50, null]}',
        '{"a": [1.50, null]}',
        {"a": 1},
        b"{}",
        7,
        inside='{"a": [1.50, null]}',
        handled_inside=False,
    ),
    _case("JsonType", arrow.json_(pa.large_string()), "text", "[1 ]", "[1 ]", 1, inside="[1 ]", handled_inside=False),
    _case("UuidType", arrow.uuid(), "uuid", ID, str(ID), str(ID), b"short", 7, inside=f'"{ID}"', handled_inside=False),
    _case("Bool8Type", arrow.bool8(), "boolean", FLAG, "true", 1, "yes"),
    _refused("OpaqueType", arrow.opaque(pa.int64(), "a", "b")),
    _refused("FixedShapeTensorType", arrow.fixed_shape_tensor(pa.int64(), [2])),
)

HANDLED: Final = {f"c{n}": one for n, one in enumerate(CASES) if one.handled}
HANDLED_INSIDE: Final = {f"j{n}": one for n, one in enumerate(CASES) if one.handled_inside and one.column}
WRITTEN: Final = {f"c{n}": one for n, one in enumerate(CASES) if one.column}
WRITTEN_INSIDE: Final = {f"j{n}": one for n, one in enumerate(CASES) if one.column}

TABLE: Final = "CREATE TABLE kinds ({})".format(
    ", ".join([f"{name} {one.column}" for name, one in WRITTEN.items()] + [f"{name} json" for name in WRITTEN_INSIDE])
)


def schema() -> pa.Schema:
    """A handler's, with each type that it may have, and lists of these."""
    fields = [(name, one.kind) for name, one in HANDLED.items()]
    return arrow.schema(fields + [(name, arrow.list_(one.kind)) for name, one in HANDLED_INSIDE.items()])


def row() -> dict[str, Any]:
    """A handler's row of that schema."""
    values = {name: one.value for name, one in HANDLED.items()}
    return values | {name: [one.value] for name, one in HANDLED_INSIDE.items()}


def batch() -> pa.RecordBatch:
    """What a transform returns: each type that is written, and lists of these; and a row of NULLs."""
    columns = {name: one.array for name, one in WRITTEN.items()}
    return arrow.record_batch(columns | {name: one.lists for name, one in WRITTEN_INSIDE.items()})


def differing(*, handled: bool = False) -> str:
    """The query for the columns of the first row that don't hold what was given, each with what it holds."""
    whole, inside = (HANDLED, HANDLED_INSIDE) if handled else (WRITTEN, WRITTEN_INSIDE)
    held = {name: (name, one.stored, one.column) for name, one in whole.items()}
    for name, one in inside.items():
        text = one.inside_handled if handled and one.inside_handled else one.inside
        held[name] = (f"{name}::text", f"[{text}]", "text")
    for name in {**WRITTEN, **WRITTEN_INSIDE}.keys() - held.keys():
        held[name] = (f"{name}::text", None, "text")
    parts = (
        f"CASE WHEN {found} IS DISTINCT FROM {_literal(text)}::{kind} THEN concat('{name}: ', {name}) END"
        for name, (found, text, kind) in held.items()
    )
    return f"SELECT array_remove(ARRAY[{', '.join(parts)}], NULL) FROM kinds ORDER BY ctid LIMIT 1"


def _literal(text: str | None) -> str:
    return "NULL" if text is None else "'" + text.replace("'", "''") + "'"


NULLS: Final = "SELECT count(*) FROM kinds WHERE jsonb_strip_nulls(to_jsonb(kinds)) = '{}'"
"""Counts the rows of NULLs."""

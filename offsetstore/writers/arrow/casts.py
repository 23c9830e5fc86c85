"""Which Arrow type fits which column, and how it gets there without losing anything.

A cast that would fail for every row is refused by type, before any byte is sent; one that can fail for single values
(out of range, a fraction into an integer, too many digits, microseconds into a ``timestamp(3)``) raises there. Nothing
is rounded, cut or shifted silently. If only the text form of a type is known, PostgreSQL reads the text by that type's
rules.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import date, time, timedelta
from decimal import Decimal
from functools import partial
from typing import Any, cast

import pyarrow as pa

from offsetstore.writers.arrow.kinds import SparkType, is_json, is_uuid, plain
from offsetstore.writers.arrow.values import (
    CUT,
    HOLLOW,
    LOSSY_TEXTS,
    NO_TIME_OF_DAY,
    NOT_A_UUID,
    NOT_FINITE,
    NUL,
    OUT_OF_RANGE,
    UUID_TYPE,
    Unfit,
    ValueCheck,
    cast_values,
    changed_rows,
    finer_than,
    has_type,
    is_binary,
    is_string,
    is_wide,
    longer_than,
    off_step,
    too_large,
    uuids_from_strings,
    with_own_digits,
)
from offsetstore.writers.table.catalogue import (
    Column,
    interval_keeps_seconds,
    moment_step,
    numeric_precision,
    numeric_scale,
    text_length,
)

_INTEGERS = {"int2": pa.int16(), "int4": pa.int32(), "int8": pa.int64()}
# Bits of an integer, and the decimal digits that it needs.
_DIGITS = {8: 3, 16: 5, 32: 10, 64: 20}

# Their binary form is the text itself (jsonb's: after a version byte, which its encoder adds).
_TEXTS = frozenset({"text", "varchar", "bpchar", "enum", "json", "jsonb"})

# Types that shorten or round values without an error, and the types to use instead.
_SILENT = {"char": "text", "money": "numeric", "name": "text"}

# PostgreSQL compares the element type that an array's sender names with the column's; these are what pgpq names.
_BINARY_ELEMENTS = frozenset(
    {"bool", "int2", "int4", "int8", "float4", "float8", "numeric", "text", "bytea", "date", "timestamp"}
)

# What is refused before texts are made of values; Python's times of day wrap around at midnight, without an error.
_JSON_CHECKS = (NO_TIME_OF_DAY, NOT_FINITE, CUT)


def is_variant(kind: pa.DataType) -> bool:
    # Spark itself makes its JSON: a decoder of ours would give other digits for a float32 (decision 0054).
    return isinstance(kind, SparkType) and kind.name == "variant"


@dataclass(frozen=True, slots=True)
class Cast:
    """How a column is converted for its target.

    :param arrow: the Arrow type after the conversion.
    :param binary: whether pgpq writes ``arrow`` as the target reads it; if not, COPY has to use its text format.
    :param before: checks of the values before the conversion, in this order.
    :param after: checks of the converted values.
    :param make: converts what Arrow's own safe cast to ``arrow`` can't.
    """

    arrow: pa.DataType
    binary: bool = True
    before: tuple[ValueCheck, ...] = ()
    after: tuple[ValueCheck, ...] = ()
    make: Callable[[pa.Array[Any]], pa.Array[Any]] | None = None

    def convert(self, array: pa.Array[Any]) -> pa.Array[Any]:
        """Convert a batch's column.

        :raises ValueError: a value does not fit (Arrow's ``ArrowInvalid`` is one, and quotes the value).
        """
        for check in self.before:
            check.refuse(array)
        made = cast_values(array, self.arrow) if self.make is None else self.make(array)
        for check in self.after:
            check.refuse(made)
        return made

    def suspects(self, array: pa.Array[Any]) -> set[int]:
        """Guess all rows that `convert` refuses: those that the checks find, or that an unsafe cast changes."""
        found = {row for check in self.before for row in check.rows(array)}
        if found or self.make is not None:
            return found
        try:
            made = cast_values(array, self.arrow)
        except pa.ArrowInvalid:
            return changed_rows(array, self.arrow)
        return {row for check in self.after for row in check.rows(made)}


@dataclass(frozen=True, slots=True)
class Match:
    """A column of the rows: its column in the table, and the cast to it."""

    column: Column
    cast: Cast


def find_cast(given: pa.DataType, column: Column) -> Cast | None:
    """Find the cast of `plain_values` of an Arrow type to a column, or ``None`` if no cast is safe."""
    source = plain(given)
    # Spark's `lit(None)`: in both formats a NULL has no bytes, so any type will do.
    if source is not None and pa.types.is_null(source):
        return Cast(pa.bool_())
    into_json = column.kind in {"json", "jsonb"}
    if source is None or lossless_type(column) or has_type(source, partial(_is_unwritable, into_json=into_json)):
        return None
    if column.kind == "uuid":
        return _uuid(source)
    if into_json and not is_string(source) and not is_binary(source) and not is_json(source):
        return Cast(pa.string(), before=_JSON_CHECKS, make=_json_texts)
    found = _array(source, column) if column.kind == "array" else _scalar(source, column.kind, column.modifier)
    return found if found and _arrow_can(source, found.arrow) else None


def _is_unwritable(kind: pa.DataType, *, into_json: bool) -> bool:
    # Of Spark's own types, only a variant can be written: as the JSON that Spark makes of it.
    return isinstance(kind, SparkType) and not (into_json and is_variant(kind))


def _arrow_can(source: pa.DataType, target: pa.DataType) -> bool:
    try:
        cast_values(cast("Any", pa).nulls(0, source), target)
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
        return False
    return True


def lossless_type(column: Column) -> str | None:
    """Name the type to use instead of one that can change values without an error; ``None`` if it can't."""
    kind = column.element or column.kind
    cuts = kind == "interval" and not interval_keeps_seconds(column.modifier)
    instead = "interval" if cuts else _SILENT.get(kind)
    return f"{instead}[]" if instead and column.kind == "array" else instead


def _array(source: pa.DataType, column: Column) -> Cast | None:
    # The list is cast as a whole: casts and checks look into lists.
    depth, innermost = 0, cast("Any", source)
    while pa.types.is_list(innermost):
        depth, innermost = depth + 1, innermost.value_type
    element = _scalar(innermost, column.element or "", column.modifier)
    if depth == 0 or element is None:
        return None
    arrow = element.arrow
    for _ in range(depth):
        arrow = pa.list_(arrow)
    binary = element.binary and depth == 1 and column.element in _BINARY_ELEMENTS and not column.of_domain
    return Cast(arrow, binary=binary, after=element.after if depth == 1 else (HOLLOW, *element.after))


def _uuid(source: pa.DataType) -> Cast | None:
    if is_string(source):
        return Cast(UUID_TYPE, before=(NOT_A_UUID,), make=uuids_from_strings)
    fits = is_uuid(source) or (is_binary(source) and (source == UUID_TYPE or not pa.types.is_fixed_size_binary(source)))
    return Cast(UUID_TYPE) if fits else None


def _scalar(source: pa.DataType, kind: str, modifier: int) -> Cast | None:  # noqa: PLR0911 - a table, row by row
    known = pa.types
    source = _stored(source, kind)
    match kind:
        case "int2" | "int4" | "int8":
            fits = known.is_integer(source) or known.is_floating(source) or known.is_decimal(source)
            return Cast(_INTEGERS[kind]) if fits else None
        # Not from double: hardly any value would survive, and a cast in the transform says so openly.
        case "float4":
            fits = known.is_integer(source) or known.is_float16(source) or known.is_float32(source)
            return Cast(pa.float32()) if fits else None
        case "float8":
            return Cast(pa.float64()) if known.is_integer(source) or known.is_floating(source) else None
        case "numeric":
            return _numeric(source, modifier)
        case "bool":
            return Cast(pa.bool_()) if known.is_boolean(source) else None
        case "bytea":
            return Cast(pa.large_binary() if is_wide(source) else pa.binary()) if is_binary(source) else None
        case _ if kind in _TEXTS:
            return _text(source, binary=True, length=text_length(modifier) if kind == "varchar" else None)
        case _ if kind in LOSSY_TEXTS and is_string(source):
            # With a precision, PostgreSQL would round the text (decision 0054).
            text = _text(source, binary=False) if moment_step(modifier) == 1 else None
            return replace(text, after=LOSSY_TEXTS[kind]) if text else None
        case "date" | "timestamp" | "timestamptz" | "time" | "interval":
            return _moment(source, kind, modifier)
        # inet, citext, int4range, ...: in their text form, which PostgreSQL checks.
        case _:
            return _text(source, binary=False)


def _stored(source: Any, kind: str) -> pa.DataType:
    """Return the type in which an extension is cast: its text, or a UUID's bytes; JSON fits no other column."""
    if is_uuid(source):
        return pa.string() if kind in {"text", "varchar", "bpchar", "uuid"} else UUID_TYPE
    if is_json(source):
        return source.storage_type if kind in {"text", "varchar", "bpchar", "json", "jsonb"} else pa.null()
    return source


def _text(source: pa.DataType, *, binary: bool, length: int | None = None) -> Cast | None:
    arrow = pa.large_string() if is_wide(source) else pa.string()
    after = (NUL,) if length is None else (longer_than(length), NUL)
    return Cast(arrow, binary=binary, after=after) if is_string(source) else None


def _moment(source: pa.DataType, kind: str, modifier: int) -> Cast | None:
    # Instants go only into timestamptz, and wall clock times only into timestamp: a zone lies between them.
    known = pa.types
    fits, arrow = {
        "date": (known.is_date(source), pa.date32()),
        "time": (known.is_time(source), pa.time64("us")),
        "interval": (known.is_duration(source), pa.duration("us")),
        "timestamp": (known.is_timestamp(source) and source.tz is None, pa.timestamp("us")),
        "timestamptz": (known.is_timestamp(source) and source.tz is not None, pa.timestamp("us", "UTC")),
    }[kind]
    step = moment_step(modifier)
    after = (OUT_OF_RANGE,) if step == 1 else (OUT_OF_RANGE, off_step(step))
    return Cast(arrow, after=after) if fits else None


def _numeric(source: pa.DataType, modifier: int) -> Cast | None:
    # Converted to a decimal first: pgpq writes any other number into numeric as 0.00, without an error. PostgreSQL
    # rounds digits after the point. It refuses too many before it; checked here, all such rows are found at once.
    scale = numeric_scale(modifier)
    after = () if modifier < 0 else (finer_than(scale), too_large(numeric_precision(modifier) - scale))
    if pa.types.is_integer(source):
        return Cast(pa.decimal128(_DIGITS[source.bit_width], 0), after=after)
    if pa.types.is_decimal128(source):
        return Cast(source, after=after)
    # As its shortest decimal text, which numeric(p,s) would round.
    if (pa.types.is_floating(source) or pa.types.is_decimal(source)) and not after:
        return Cast(pa.string(), binary=False)
    return None


def _json_texts(array: pa.Array[Any]) -> pa.Array[Any]:
    """Write each value as JSON; NULL stays NULL, and does not become JSON's ``null``. `_JSON_CHECKS` must come first.

    Numbers keep all their digits (the standard encoder knows no Decimal), and a float32 has its own digits, 0.1;
    timestamps are ISO 8601 with their offset; binary is base64 and a duration SQL's literal, as Spark's ``to_json``
    writes them (decision 0054). Values that are JSON already stay as they are.

    :raises Unfit: a map with a duplicate key, or a text inside that is not JSON.
    """
    try:
        values = with_own_digits(array).to_pylist(maps_as_pydicts="strict")
    except KeyError:
        reason = "a map with a duplicate key"
        raise Unfit(reason) from None
    if has_type(array.type, is_json):
        values = [_marked_json(value, array.type) for value in values]
    return pa.array([None if value is None else _json_text(value) for value in values], pa.string())


class _Json(str):
    """A text that is JSON."""

    __slots__ = ()


def _marked_json(value: Any, kind: Any) -> Any:
    """Mark the texts inside a value that are JSON.

    :raises Unfit: a text is not JSON, and could end the object that it is in.
    """
    types: Any = pa.types
    if value is None:
        return None
    if is_json(kind):
        try:
            json.loads(value)
        except (ValueError, RecursionError):
            reason = "a text that is not JSON"
            raise Unfit(reason) from None
        return _Json(value)
    if types.is_struct(kind):
        return {field.name: _marked_json(value[field.name], field.type) for field in kind}
    if types.is_map(kind):
        return {key: _marked_json(item, kind.item_type) for key, item in value.items()}
    return [_marked_json(element, kind.value_type) for element in value] if types.is_list(kind) else value


def _json_text(value: Any) -> str:  # noqa: PLR0911 - one case a line reads better than a table
    match value:
        case _Json():
            return value
        case dict():
            items = cast("dict[Any, Any]", value).items()
            return "{" + ",".join(f"{_json_key(key)}:{_json_text(item)}" for key, item in items) + "}"
        case list():
            return "[" + ",".join(map(_json_text, cast("list[Any]", value))) + "]"
        case Decimal():
            return format(value, "f")
        case date() | time():  # a datetime is a date
            return json.dumps(value.isoformat())
        case bytes():
            return json.dumps(base64.b64encode(value).decode())
        case None | bool() | int() | float() | str():
            return json.dumps(value, ensure_ascii=False, allow_nan=False)
        case timedelta():
            return json.dumps(_json_interval(value))
        case _:  # a UUID
            return json.dumps(str(value))


def _json_key(key: Any) -> str:
    return json.dumps(key, ensure_ascii=False) if isinstance(key, str) else json.dumps(_json_text(key).strip('"'))


def _json_interval(value: timedelta) -> str:
    sign, length = ("-", -value) if value < timedelta(0) else ("", value)
    minutes, seconds = divmod(length.seconds, 60)
    fraction = f".{length.microseconds:06}".rstrip("0").rstrip(".")
    time_of_day = f"{minutes // 60:02}:{minutes % 60:02}:{seconds:02}{fraction}"
    return f"INTERVAL '{sign}{length.days} {time_of_day}' DAY TO SECOND"

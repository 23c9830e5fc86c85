"""What to do about a column whose type does not fit: an expression for the transform, or another type in the table.

Expressions are in the API of the `RowMaker`. A test computes each one, and compares what PostgreSQL then holds;
docs/types.md lists Spark's (decision 0054).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import pyarrow as pa

from offsetstore.writers.arrow.casts import find_cast, is_variant
from offsetstore.writers.arrow.kinds import SparkType, is_json, is_uuid, plain
from offsetstore.writers.arrow.values import has_type, is_binary, is_string
from offsetstore.writers.table.catalogue import Column, numeric_precision, numeric_scale

RowMaker: TypeAlias = Literal["spark", "pyarrow", "schema"]
"""What makes rows: Spark's transform, a consumer's, or a handler with a schema."""

# Of Spark's decimals, and of Arrow's with 128 bits.
_MOST_DIGITS = 38
# The scale that Spark's own arithmetic keeps where there are too many digits.
_LEAST_SCALE = 6

# The type to cast to in Spark, by PostgreSQL's type.
_SPARK_TYPES = {
    "bool": "boolean",
    "bpchar": "string",
    "bytea": "binary",
    "date": "date",
    "float4": "float",
    "float8": "double",
    "int2": "smallint",
    "int4": "int",
    "int8": "bigint",
    # `decimal` alone is decimal(10,0), and rounds.
    "numeric": "decimal(38,18)",
    "text": "string",
    "timestamp": "timestamp_ntz",
    "timestamptz": "timestamp",
    "varchar": "string",
}

# Tests of Arrow's types, each with the family, and PostgreSQL's type that holds all values of it.
_FAMILIES: tuple[tuple[Callable[[Any], bool], str, str], ...] = (
    (is_json, "json", "jsonb"),
    (is_uuid, "uuid", "uuid"),
    (pa.types.is_boolean, "boolean", "boolean"),
    (pa.types.is_int8, "number", "smallint"),
    (pa.types.is_int16, "number", "smallint"),
    (pa.types.is_int32, "number", "integer"),
    (pa.types.is_int64, "number", "bigint"),
    (lambda kind: pa.types.is_float16(kind) or pa.types.is_float32(kind), "number", "real"),
    (pa.types.is_float64, "number", "double precision"),
    (lambda kind: pa.types.is_integer(kind) or pa.types.is_decimal(kind), "number", "numeric"),
    (is_string, "string", "text"),
    (is_binary, "binary", "bytea"),
    (pa.types.is_date, "date", "date"),
    (pa.types.is_time, "time", "time"),
    (lambda kind: pa.types.is_timestamp(kind) and kind.tz is None, "timestamp_ntz", "timestamp"),
    (pa.types.is_timestamp, "timestamp", "timestamptz"),
    (pa.types.is_duration, "duration", "interval"),
    (pa.types.is_null, "void", "text"),
)
_SPARK_FAMILIES = {"geography": "bytea", "geometry": "bytea", "interval": "interval", "variant": "jsonb"}

_NUMBERS = {"int2", "int4", "int8", "float4", "float8", "numeric"}
_TEXTS = {"bpchar", "text", "varchar"}
_JSON = {"json", "jsonb"}
_TEXT = Column("", "text", "text")
_INSTANTS = {"timestamp", "timestamptz"}

# By family: the types to which Spark's own cast (see `_SPARK_TYPES`) keeps the value.
_CASTS = {
    "boolean": _NUMBERS | _TEXTS,
    "date": _INSTANTS | _TEXTS,
    "number": _NUMBERS | _TEXTS | {"bool"},
    "string": _NUMBERS | _INSTANTS | {"bool", "bytea", "date"},
    "time": _TEXTS,
    "timestamp": {"date", "timestamp"},
    "timestamp_ntz": {"date", "timestamptz"} | _TEXTS,
    "variant": set(_SPARK_TYPES),
    "void": set(_SPARK_TYPES),
}

_OF_TEXT = {"binary", "char", "string", "varchar", "variant"}
_UNITS = ("seconds", "millis", "micros")
# Five X, since offsets before 1900 have seconds.
_ISO = "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXXXX"


# Types in a handler's schema, beside `_SPARK_TYPES`.
_DECLARED = {"time": "time", "interval": "interval day to second"}


@dataclass(frozen=True, slots=True)
class Conversion:
    """The next step.

    :param expressions: in Python; if there are several, the meaning of the values decides, such as their unit. With a
        handler, the type in its schema.
    :param instead: the type that the column would need if there is no expression.
    """

    column: str
    expressions: tuple[str, ...]
    instead: str
    words: RowMaker = "spark"

    def __str__(self) -> str:
        if not self.expressions:
            return f"Change {self.column} to {self.instead} in the table."
        *others, last = self.expressions
        if self.words == "schema":
            return f'Write "{self.column} {last}" in the handler\'s schema, and return such values.'
        made = f"{', '.join(others)} or {last}" if others else last
        if self.words == "pyarrow":
            with_ = "with pyarrow.compute as pc" if "pc." in made else "with pyarrow"
            zone = ", with the zone of these times in place of UTC" if "assume_timezone" in made else ""
            return f"Convert it in the transform, {with_}: {made}{zone}."
        return f"Convert it in the transform{', by its unit' if others else ''}; in Spark: {made}."


def conversion(name: str, source: pa.DataType, column: Column, words: RowMaker = "spark") -> Conversion:
    """Find the next step for a column with a `plain` type for which `find_cast` knows no cast."""
    source = plain(source) or source
    if words == "spark":
        expressions = _expressions(f"col({quoted(name)})", source, column)
    elif words == "pyarrow":
        expressions = _of_arrow(f"batch[{json.dumps(name, ensure_ascii=False)}]", source, column)
    else:
        expressions = [_declared(column)]
    # PostgreSQL would round such a string: only a column without a precision keeps it.
    is_rounded = _family(source) in _OF_TEXT and column.kind in {"interval", "time", "timetz"}
    return Conversion(name, tuple(expressions), column.kind if is_rounded else _natural(source), words)


def _declared(column: Column) -> str:
    """The type in a handler's schema for a column."""
    # Where Spark has no type, PostgreSQL reads a string.
    if column.kind == "array":
        return f"array<{_declared(_element(column, pa.string()))}>"
    return _DECLARED.get(column.kind) or (_spark_type(column) if column.kind in _SPARK_TYPES else "string")


def _of_arrow(x: str, source: Any, column: Column) -> list[str]:
    if not pa.types.is_list(source) or column.kind != "array":
        return _arrow_expressions(x, source, _family(source), column)
    inner = source.value_type
    inside = _arrow_expressions("", inner, _family(inner), _element(column, inner))
    # Arrow casts the elements of a list; its functions do not look into one.
    kinds = [
        cast.removeprefix(".cast(")[:-1] for cast in inside if cast.startswith(".cast(") and cast.count(".cast(") == 1
    ]
    return [f"{x}.cast(pa.list_({kind}))" for kind in kinds]


def _expressions(x: str, source: Any, column: Column) -> list[str]:  # noqa: PLR0911 - a table, row by row
    if column.kind == "array":
        return _arrays(x, source, column)
    if pa.types.is_nested(source):
        return _of_nested(x, source, column)
    family, kind = _family(source), column.kind
    if kind in _CASTS.get(family, ()):
        return [f'{x}.cast("{_spark_type(column)}")']
    if family == "number" and kind in {"date", *_INSTANTS}:
        return _of_epoch(x, source, column)
    if family == "timestamp" and kind == "int8":
        return [f"unix_{unit}({x})" for unit in _UNITS]
    if family in {"geography", "geometry"} and kind == "bytea":
        return [f"st_asbinary({x})"]
    if family in _OF_TEXT - {"string", "variant"} and not find_cast(pa.string(), column):
        return _expressions(f'{x}.cast("string")', pa.string(), column)
    string = _string(x, source, column) if find_cast(pa.string(), column) else None
    return [string] if string else []


def _string(x: str, source: Any, column: Column) -> str | None:  # noqa: PLR0911 - a table, row by row
    """Make a string that PostgreSQL reads as the same value, or that is the value."""
    family, kind = _family(source), column.kind
    match family:
        case "binary" | "char" | "varchar" | "variant" | "void":
            return f"to_json({x})" if family == "variant" and kind in _JSON else f'{x}.cast("string")'
        case "timestamp" if kind in _TEXTS:
            return f'date_format({x}, "{_ISO}")'
        case "timestamp" | "timestamp_ntz" if kind == "time":
            return f'date_format({x}, "HH:mm:ss.SSSSSS")'
        case "geography" | "geometry" if _own_name(column) in {"geography", "geometry"}:
            return f'concat(lit("SRID="), st_srid({x}), lit(";"), hex(st_asbinary({x})))'
        case "geography" | "geometry" if kind in _TEXTS:
            return f"hex(st_asbinary({x}))"
        case "interval" if kind in {"interval", *_TEXTS} and source.name != "interval":
            years, months = (f'extract(lit("{unit}"), {x})' for unit in ("YEAR", "MONTH"))
            return f'concat({years} * 12 + {months}, lit(" months"))'
        # Each part gets its sign, or IntervalStyle would decide what the first sign is for.
        case "interval" if kind in {"interval", *_TEXTS}:
            return f'regexp_replace({x}.cast("string"), "(^| )([0-9])", "$1+$2")'
        case _:
            return f'{x}.cast("string")' if isinstance(source, SparkType) and kind in _TEXTS else None


def _arrays(x: str, source: Any, column: Column) -> list[str]:
    """Convert each element, or make an array of a single value."""
    if pa.types.is_list(source):
        inner = source.value_type
        inside = _expressions("x", inner, column if pa.types.is_list(inner) else _element(column, inner))
        return [f"transform({x}, lambda x: {expression})" for expression in inside]
    fits = find_cast(pa.list_(source), column)
    single = [x] if fits else _expressions(x, source, _element(column, source))
    return [f"when({x}.isNotNull(), array({expression}))" for expression in single]


def _element(column: Column, source: pa.DataType) -> Column:
    # An array of JSON is sent as an array of texts.
    if column.element in _JSON and pa.types.is_nested(source):
        return _TEXT
    return replace(column, kind=column.element or "", element=None, type_name=column.type_name.removesuffix("[]"))


def _of_nested(x: str, source: Any, column: Column) -> list[str]:
    if (
        pa.types.is_list(source)
        and _family(source.value_type) == "number"
        and _own_name(column) in {"halfvec", "vector"}
    ):
        return [f"to_json({x})"]
    if column.kind in _JSON:
        return [_as_json(x, source)]
    # to_json cuts timestamps to milliseconds.
    is_whole = column.kind in _TEXTS and not has_type(source, pa.types.is_timestamp)
    return [f"to_json({_as_json(x, source)})"] if is_whole else []


def _as_json(x: str, source: Any) -> str:
    """Convert the parts of a column that can't become JSON."""
    if pa.types.is_map(source):
        keys, values = _as_json("x", source.key_type), _as_json("x", source.item_type)
        with_values = x if values == "x" else f"transform_values({x}, lambda _, x: {values})"
        return with_values if keys == "x" else f"transform_keys({with_values}, lambda x, _: {keys})"
    if pa.types.is_list(source):
        elements = _as_json("x", source.value_type)
        return x if elements == "x" else f"transform({x}, lambda x: {elements})"
    made = x
    fields: Any = source if pa.types.is_struct(source) else ()
    for field in fields:
        inner = f"{x}[{json.dumps(field.name, ensure_ascii=False)}]"
        if (value := _as_json(inner, field.type)) != inner:
            made += f".withField({quoted(field.name)}, {value})"
    return _expressions(x, source, _TEXT)[0] if isinstance(source, SparkType) and not is_variant(source) else made


def _of_epoch(x: str, source: pa.DataType, column: Column) -> list[str]:
    is_long, is_int = pa.types.is_int64(source), pa.types.is_integer(source)
    whole = x if is_int else f'{x}.cast("bigint")'
    # 32 bits hold seconds alone.
    finer = [f"timestamp_{unit}({whole})" for unit in _UNITS[1:]] if is_long or not is_int else []
    instants = [f"timestamp_seconds({x})", *finer]
    if column.kind == "timestamptz":
        return instants
    days = [f"date_from_unix_date({x})"] if column.kind == "date" and is_int and not is_long else []
    return [*days, *(f'{instant}.cast("{_spark_type(column)}")' for instant in instants)]


def _spark_type(column: Column) -> str:
    if column.kind != "numeric" or column.modifier < 0:
        return _SPARK_TYPES[column.kind]
    scale = numeric_scale(column.modifier)
    before_point = max(numeric_precision(column.modifier) - scale, 0)
    kept = min(max(scale, 0), max(_MOST_DIGITS - before_point, _LEAST_SCALE))
    return f"decimal({min(before_point + kept, _MOST_DIGITS)},{kept})"


def quoted(name: str) -> str:
    """Quote a column's name as Spark's functions take it."""
    is_plain = re.fullmatch(r"\w+", name, re.ASCII)
    return json.dumps(name if is_plain else "`" + name.replace("`", "``") + "`", ensure_ascii=False)


def _own_name(column: Column) -> str:
    """Return the name of a type that is not built in, without its schema and modifiers."""
    return column.type_name.partition("(")[0].rpartition(".")[2]


def _family(source: Any) -> str:
    if isinstance(source, SparkType):
        return re.split("[ (]", source.name)[0]
    return next((family for test, family, _ in _FAMILIES if test(source)), "")


def _natural(source: Any) -> str:
    if isinstance(source, SparkType):
        return _SPARK_FAMILIES.get(_family(source), "text")
    innermost = source
    while pa.types.is_list(innermost):
        innermost = innermost.value_type
    if innermost is not source and not pa.types.is_nested(innermost):
        return f"{_natural(innermost)}[]"
    return next((name for test, _, name in _FAMILIES if test(source)), "jsonb")


# The type to cast to in Arrow, by PostgreSQL's type.
_ARROW_TYPES = {
    "bool": "pa.bool_()",
    "bpchar": "pa.string()",
    "bytea": "pa.binary()",
    "date": "pa.date32()",
    "float4": "pa.float32()",
    "float8": "pa.float64()",
    "int2": "pa.int16()",
    "int4": "pa.int32()",
    "int8": "pa.int64()",
    "text": "pa.string()",
    "time": 'pa.time64("us")',
    "timestamp": 'pa.timestamp("us")',
    "timestamptz": 'pa.timestamp("us", "UTC")',
    "varchar": "pa.string()",
}

# By family: the types to which Arrow's own cast keeps the value. It raises for one that it would cut, except for the
# digits of a float.
_ARROW_CASTS = {
    "boolean": _NUMBERS - {"numeric"} | _TEXTS,
    "date": _TEXTS | {"timestamp"},
    "number": _NUMBERS | _TEXTS,
    "string": _NUMBERS | {"bool", "bytea", "date", "timestamp"},
    "time": _TEXTS,
    "timestamp": _TEXTS,
    "timestamp_ntz": _TEXTS | {"date", "time"},
}

# By family and type: other expressions of pyarrow that keep the value.
_ARROW_OTHERS = {
    ("boolean", "numeric"): ("{x}.cast(pa.int8())",),
    ("date", "timestamptz"): ('pc.assume_timezone({x}.cast(pa.timestamp("us")), "UTC")',),
    # With an offset, or without one.
    ("string", "timestamptz"): (
        '{x}.cast(pa.timestamp("us", "UTC"))',
        'pc.assume_timezone({x}.cast(pa.timestamp("us")), "UTC")',
    ),
    ("timestamp", "date"): ("pc.local_timestamp({x}).cast(pa.date32())",),
    ("timestamp", "int8"): ('{x}.cast(pa.timestamp("us", "UTC")).cast(pa.int64())',),
    ("timestamp", "time"): ('pc.local_timestamp({x}).cast(pa.time64("us"))',),
    ("timestamp", "timestamp"): ("pc.local_timestamp({x})",),
    ("timestamp_ntz", "timestamptz"): ('pc.assume_timezone({x}, "UTC")',),
}

_ARROW_UNITS = ("s", "ms", "us")


def _arrow_expressions(x: str, source: Any, family: str, column: Column) -> list[str]:
    """Make the values of a column fit; several expressions if the meaning of the values decides (decision 0054).

    :param x: an expression of the array.
    """
    kind = column.kind
    if kind in _ARROW_CASTS.get(family, ()):
        return [f"{x}.cast({_arrow_type(column)})"]
    if family == "binary":
        text = f"{x}.cast(pa.string())"
        return [text] if find_cast(pa.string(), column) else _arrow_expressions(text, pa.string(), "string", column)
    if family == "number" and kind == "bool" and not pa.types.is_decimal(source):
        return [f"{x}.cast(pa.bool_())"]
    if family == "number" and kind in {"date", "timestamp", "timestamptz"} and pa.types.is_integer(source):
        return _arrow_of_epoch(x, source, kind)
    return [expression.format(x=x) for expression in _ARROW_OTHERS.get((family, kind), ())]


def _arrow_of_epoch(x: str, source: pa.DataType, kind: str) -> list[str]:
    long = x if pa.types.is_int64(source) else f"{x}.cast(pa.int64())"
    # 32 bits hold seconds alone.
    units = _ARROW_UNITS if pa.types.is_int64(source) else _ARROW_UNITS[:1]
    if kind == "timestamptz":
        return [f'{long}.cast(pa.timestamp("{unit}", "UTC"))' for unit in units]
    instants = [f'{long}.cast(pa.timestamp("{unit}"))' for unit in units]
    return instants if kind == "timestamp" else [f"{instant}.cast(pa.date32())" for instant in instants]


def _arrow_type(column: Column) -> str:
    if column.kind != "numeric":
        return _ARROW_TYPES[column.kind]
    if column.modifier < 0:
        return f"pa.decimal128({_MOST_DIGITS}, 18)"
    precision = min(numeric_precision(column.modifier), _MOST_DIGITS)
    return f"pa.decimal128({precision}, {min(max(numeric_scale(column.modifier), 0), precision)})"

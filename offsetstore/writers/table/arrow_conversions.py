"""What to do about a column whose type does not fit, in a consumer's transform: an expression of pyarrow.

A test applies each expression to values, and compares what is then written (decision 0054). None changes a value
silently: Arrow's casts raise for a value that they would cut, except for the digits of a float.
"""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa

from offsetstore.writers.arrow.casts import find_cast
from offsetstore.writers.table.catalogue import Column, numeric_precision, numeric_scale

_MOST_DIGITS: Final = 38

_MADE: Final = {
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
"""The type to cast to, by PostgreSQL's type."""

_NUMBERS: Final = frozenset({"int2", "int4", "int8", "float4", "float8", "numeric"})
_TEXTS: Final = frozenset({"bpchar", "text", "varchar"})

_CASTS: Final = {
    "boolean": _NUMBERS - {"numeric"} | _TEXTS,
    "date": _TEXTS | {"timestamp"},
    "number": _NUMBERS | _TEXTS,
    "string": _NUMBERS | {"bool", "bytea", "date", "timestamp"},
    "time": _TEXTS,
    "timestamp": _TEXTS,
    "timestamp_ntz": _TEXTS | {"date", "time"},
}
"""By family: the types to which Arrow's own cast keeps the value."""

_OTHERS: Final = {
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
"""By family and type: other expressions that keep the value."""

_UNITS: Final = ("s", "ms", "us")


def arrow_expressions(x: str, source: Any, family: str, column: Column) -> list[str]:
    """Make the values of a column fit; several expressions if the meaning of the values decides (decision 0054).

    :param x: an expression of the array.
    """
    kind = column.kind
    if kind in _CASTS.get(family, ()):
        return [f"{x}.cast({_type(column)})"]
    if family == "binary":
        text = f"{x}.cast(pa.string())"
        return [text] if find_cast(pa.string(), column) else arrow_expressions(text, pa.string(), "string", column)
    if family == "number" and kind == "bool" and not pa.types.is_decimal(source):
        return [f"{x}.cast(pa.bool_())"]
    if family == "number" and kind in {"date", "timestamp", "timestamptz"} and pa.types.is_integer(source):
        return _of_epoch(x, source, kind)
    return [expression.format(x=x) for expression in _OTHERS.get((family, kind), ())]


def _of_epoch(x: str, source: pa.DataType, kind: str) -> list[str]:
    long = x if pa.types.is_int64(source) else f"{x}.cast(pa.int64())"
    # 32 bits hold seconds alone.
    units = _UNITS if pa.types.is_int64(source) else _UNITS[:1]
    if kind == "timestamptz":
        return [f'{long}.cast(pa.timestamp("{unit}", "UTC"))' for unit in units]
    instants = [f'{long}.cast(pa.timestamp("{unit}"))' for unit in units]
    return instants if kind == "timestamp" else [f"{instant}.cast(pa.date32())" for instant in instants]


def _type(column: Column) -> str:
    if column.kind != "numeric":
        return _MADE[column.kind]
    if column.modifier < 0:
        return f"pa.decimal128({_MOST_DIGITS}, 18)"
    precision = min(numeric_precision(column.modifier), _MOST_DIGITS)
    return f"pa.decimal128({precision}, {min(max(numeric_scale(column.modifier), 0), precision)})"

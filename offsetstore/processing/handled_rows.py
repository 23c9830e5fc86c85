"""What a handler returns, as Arrow: nothing is changed without a word, and a row that doesn't fit fails its record."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import date, datetime, time, timedelta
from itertools import accumulate, repeat
from math import isfinite
from numbers import Integral, Real
from typing import Any, Final, cast

import pyarrow as pa

from offsetstore.errors import ConfigurationError
from offsetstore.processing.handling import RESULT, Handler, HandlerError, Outcome, Row
from offsetstore.processing.unit import UNNAMED
from offsetstore.protocol.letters import REJECT, writable
from offsetstore.writers.arrow.batches import KAFKA

ONLY: Final = "rows"
"""The field of the only output, which has no name."""

SQL_TYPES: Final[Mapping[str, pa.DataType]] = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
"""Spark's names of types."""

_SYNONYMS: Final = {"byte": "tinyint", "short": "smallint", "integer": "int", "long": "bigint", "real": "float"}
_DECIMAL: Final = re.compile(r"(?:decimal|dec|numeric)(?:\s*\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\))?")
_COLUMN: Final = re.compile(
    r"\s*(`(?:[^`]|``)+`|\w+)(?:\s*:\s*|\s+)(\w+(?:\s*\([\d\s,]*\))?)(\s+not\s+null)?\s*", re.IGNORECASE
)
_NAMES: Final = {str(kind): name for name, kind in SQL_TYPES.items()}
_EXACT: Final[dict[int, frozenset[type]]] = {
    **dict.fromkeys((one.id for one in (pa.int8(), pa.int16(), pa.int32(), pa.int64())), frozenset({int})),
    pa.float64().id: frozenset({float}),
    pa.string().id: frozenset({str}),
    pa.binary().id: frozenset({bytes}),
    pa.bool_().id: frozenset({bool}),
}
"""Types of which Arrow keeps each value as it is, or says that it can't; most rows have no others."""
_LARGEST_FLOAT32: Final = 3.4028234663852886e38
_arrow: Any = pa  # its stubs know too little of some kinds of arrays
_log = logging.getLogger(__name__)


def schema_of(given: object) -> pa.Schema:
    """A handler's schema, without Spark to parse its DDL: columns of types with one word, or a schema of pyarrow.

    :raises ConfigurationError: it is neither, or has a column with a name of ours.
    """
    schema = given
    if isinstance(given, str):
        columns = [_COLUMN.fullmatch(one) for one in re.split(r",(?![^(]*\))", given)]
        fields: list[Any] = [None if one is None else _field(*one.groups()) for one in columns]
        schema = None if any(one is None for one in fields) else pa.schema([*fields])
    if not isinstance(schema, pa.Schema):
        raise ConfigurationError(
            "a handler's schema can't be read",
            found=repr(given),
            expected='columns of simple types ("id long, score double"), or a schema of pyarrow, or these by output',
        )
    return checked(schema)


def schemas_of(handler: Handler, parse: Callable[[object], pa.Schema] = schema_of) -> dict[str, pa.Schema]:
    """The schema of each of a handler's outputs.

    :raises ConfigurationError: see `schema_of`.
    """
    given: object = handler.schema
    outputs = cast("Mapping[str, object]", given) if isinstance(given, Mapping) else {UNNAMED: given}
    return {name: parse(one) for name, one in outputs.items()}


def checked(schema: pa.Schema) -> pa.Schema:
    """The schema of a handler's rows, if the names of its columns are valid.

    :raises ConfigurationError: they are not.
    """
    names = schema.names
    if not names or len({*names}) < len(names):
        raise ConfigurationError(
            "a handler's schema must have columns, each with a name of its own", found=", ".join(names) or "no column"
        )
    if ours := [name for name in names if name.startswith("_offsetstore") or name in {KAFKA, REJECT}]:
        raise ConfigurationError(
            "a column of a handler's schema has a name that offsetstore uses itself",
            found=", ".join(ours),
            next_step="Give it another name. To reject a record, raise an error.",
        )
    return schema


def _field(name: str, kind: str, not_null: str | None) -> Any:
    """A column of Spark's DDL; ``None`` if its type is unknown here."""
    word = kind.lower()
    decimal = _DECIMAL.fullmatch(word)
    found: Any = SQL_TYPES.get(_SYNONYMS.get(word, word))
    if decimal is not None:
        found = pa.decimal128(int(decimal[1] or 10), int(decimal[2] or 0))
    plain = name[1:-1].replace("``", "`") if name.startswith("`") else name
    return None if found is None else pa.field(plain, found, not_null is None)


def arrow_rows(
    outcomes: Sequence[Outcome], schemas: Mapping[str, pa.Schema]
) -> tuple[pa.StructArray, Sequence[Outcome]]:
    """The rows of each outcome, see `as_lists`.

    :return: the outcomes too: a record whose rows don't fit the schema has failed.
    """
    try:
        return as_lists([one.rows for one in outcomes], schemas), outcomes
    except Exception as error:  # noqa: BLE001 - the user's own objects
        _log.debug("rows of a handler don't fit its schema: %s", type(error).__name__)
    fitting: list[Outcome] = []
    for one in outcomes:
        try:
            as_lists([one.rows], schemas)
        except Exception as error:  # noqa: BLE001 - the user's own objects
            fitting.append(replace(one, rows=(), error=HandlerError(RESULT, str(error))))
        else:
            fitting.append(one)
    return as_lists([one.rows for one in fitting], schemas), fitting


def as_lists(rows: Sequence[Sequence[Any]], schemas: Mapping[str, pa.Schema]) -> pa.StructArray:
    """The rows of each record as lists, in a column of structs with a field for each output.

    :raises Exception: a row does not fit.
    """
    columns: list[Any] = []
    for name, schema in schemas.items():
        of_output = rows if name == UNNAMED else [[row for of in one for row in of.get(name, ())] for one in rows]
        values = [_values(row, schema.names) for one in of_output for row in one]
        ends = accumulate((len(one) for one in of_output), initial=0)
        by_column: Iterable[Sequence[Any]] = zip(*values, strict=True) if values else repeat(())
        arrays = [_as_column(field, column) for field, column in zip(cast("Any", schema), by_column, strict=False)]
        structs = _arrow.StructArray.from_arrays(arrays, fields=[*schema])
        columns.append(_arrow.ListArray.from_arrays(pa.array([*ends], pa.int32()), structs))
    return _arrow.StructArray.from_arrays(columns, [name or ONLY for name in schemas])


def as_failed(error: HandlerError, attempts: int = 1, *, is_outage: bool = False) -> dict[str, Any]:
    """A handler's failure as `reject_of` takes it; texts that PostgreSQL can't store are cleaned."""
    return {
        "error_class": writable(error.error_class),
        "text": writable(error.text),
        "traceback": error.traceback and writable(error.traceback),
        "attempts": attempts,
        "is_outage": is_outage,
    }


def _as_column(field: Any, values: Sequence[Any]) -> Any:
    if not field.nullable and None in values:
        raise ValueError(f"the column {field.name} is NULL, and its schema does not allow that")
    try:
        _check_exact(values, field.type)
        return _arrow.array(values, field.type)
    except Exception as error:  # noqa: BLE001 - of many classes
        kind = _NAMES.get(str(field.type), str(field.type))
        raise ValueError(f"the column {field.name} ({kind}): {error}") from None


def _check_exact(values: Iterable[Any], kind: Any, *, nullable: bool = True) -> None:
    """Refuse what Arrow would change without a word: the fraction of a number, the time of a day, a number as a time.

    :raises TypeError: it would.
    """
    found = [one for one in values if one is not None] if nullable else [*values]
    if {type(one) for one in found} <= _EXACT.get(kind.id, frozenset()):
        return
    for one in found:
        if one is None or not _fits(one, kind):
            raise TypeError(_unfit(one, kind))


def _unfit(value: object, kind: Any) -> str:
    name = "None" if value is None else f"a value of type {type(value).__name__}"
    if not isinstance(value, datetime) or not pa.types.is_timestamp(kind):
        return f"{name}; expected {kind}"
    return f"a datetime with{'out' if value.tzinfo is None else ''} a time zone, or with nanoseconds; expected {kind}"


def _fits(value: Any, kind: Any) -> bool:
    """Whether Arrow keeps the value as it is, or says that it can't."""
    types: Any = pa.types
    return next((fits(value, kind) for name, fits in _FITS.items() if getattr(types, name)(kind)), True)


def _fits_list(value: Any, kind: Any) -> bool:
    if not isinstance(value, (list, tuple)):
        return False
    _check_exact(cast("Sequence[Any]", value), kind.value_type, nullable=kind.value_field.nullable)
    return True


def _fits_map(value: Any, kind: Any) -> bool:
    pairs: list[Any] = [*(cast("Mapping[Any, Any]", value).items() if isinstance(value, Mapping) else value)]
    _check_exact((key for key, _ in pairs), kind.key_type, nullable=False)
    _check_exact((one for _, one in pairs), kind.item_type, nullable=kind.item_field.nullable)
    return True


def _fits_struct(value: Any, kind: Any) -> bool:
    if not isinstance(value, Mapping):
        return False
    given = cast("Mapping[str, Any]", value)
    for inner in kind:
        _check_exact([given.get(inner.name)], inner.type, nullable=inner.nullable)
    return not given.keys() - {inner.name for inner in kind}


def _is_flag(value: object) -> bool:
    """Whether it is a bool, which is a number to Python alone."""
    return isinstance(value, bool)


def _is_moment(value: Any) -> bool:
    """Whether it is a time in microseconds; pandas' may have nanoseconds."""
    return isinstance(value, datetime) and not getattr(value, "nanosecond", 0)


def _is_float32(value: Any) -> bool:
    return not isfinite(value) or abs(value) <= _LARGEST_FLOAT32


_FITS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "is_integer": lambda value, _: isinstance(value, Integral) and not _is_flag(value),
    "is_float32": lambda value, _: isinstance(value, Real) and not _is_flag(value) and _is_float32(value),
    "is_floating": lambda value, _: isinstance(value, Real) and not _is_flag(value),
    "is_date": lambda value, _: isinstance(value, date) and not isinstance(value, datetime),
    "is_timestamp": lambda value, kind: _is_moment(value) and (value.tzinfo is None) == (kind.tz is None),
    "is_duration": lambda value, _: isinstance(value, timedelta) and not getattr(value, "nanoseconds", 0),
    "is_time": lambda value, _: isinstance(value, time) and value.tzinfo is None,
    "is_string": lambda value, _: isinstance(value, str),
    "is_binary": lambda value, _: isinstance(value, (bytes, bytearray, memoryview)),
    "is_list": _fits_list,
    "is_map": _fits_map,
    "is_struct": _fits_struct,
}
"""By the names of Arrow's own tests of types; the first that is true of a type counts."""


def _values(row: Row, names: Sequence[str]) -> Sequence[object]:
    if isinstance(row, tuple):
        if len(row) != len(names):
            raise ValueError(f"the row has {len(row)} values; expected {len(names)}: {', '.join(names)}")
        return row
    values = [row.get(name) for name in names]
    if unknown := row.keys() - {*names}:
        raise ValueError(f"the schema has no column {', '.join(map(repr, sorted(unknown)))}; it has {', '.join(names)}")
    return values

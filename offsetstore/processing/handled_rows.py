"""A handler's schema, and its rows as Arrow: no value is changed, and a row that doesn't fit fails its record.

A schema is read in one way, in Spark and in a consumer: Spark's DDL, a schema of pyarrow, or a StructType.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate, repeat
from typing import Any, Final, cast

import pyarrow as pa

from offsetstore.errors import ConfigurationError
from offsetstore.processing.handling import RESULT, Handler, HandlerError, Outcome, Row
from offsetstore.processing.unit import UNNAMED
from offsetstore.protocol.letters import REJECT, writable
from offsetstore.writers.arrow.batches import KAFKA
from offsetstore.writers.arrow.kinds import check_exact, held, held_inside, replacement, stored, unknown

ONLY: Final = "rows"
"""The field of the only output, which has no name."""

_TYPES: Final[Mapping[str, pa.DataType]] = {
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
    "time": pa.time64("us"),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "interval day to second": pa.duration("us"),  # and its parts: `_DAY_TIME`
    "void": pa.null(),
}
"""By Spark's names."""

_SYNONYMS: Final = {
    "byte": "tinyint",
    "short": "smallint",
    "integer": "int",
    "long": "bigint",
    "real": "float",
    "timestamp_ltz": "timestamp",
}
_NAMES: Final = {str(kind): name for name, kind in _TYPES.items()}
_DECIMAL: Final = re.compile(r"(?:decimal|dec|numeric)(?:\((\d+)(?:,(-?\d+))?\))?")
_TIME: Final = re.compile(r"time\([0-6]\)")
_DAY_TIME: Final = re.compile(
    r"interval (?:day(?: to (?:hour|minute|second))?|hour(?: to (?:minute|second))?|minute(?: to second)?|second)"
)
_TOKEN: Final = re.compile(r"""\s*(`(?:[^`]|``)+`|'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|\w+|[<>(),:])\s*""")
_INTERVAL: Final = {"year", "month", "day", "hour", "minute", "second", "to"}
_EXPECTED: Final = (
    'Spark\'s DDL ("id long, scores array<double>"), a schema of pyarrow or Spark, or a mapping of outputs to these'
)
_arrow: Any = pa  # its stubs know too little of some kinds of arrays
_log = logging.getLogger(__name__)


class _UnreadableError(ValueError):
    """What of a schema can't be read."""


def schemas_of(handler: Handler) -> dict[str, pa.Schema]:
    """The schema of each of a handler's outputs.

    :raises ConfigurationError: see `schema_of`.
    """
    given: object = handler.schema
    outputs = cast("Mapping[str, object]", given) if isinstance(given, Mapping) else {UNNAMED: given}
    return {name: schema_of(one) for name, one in outputs.items()}


def schema_of(given: Any) -> pa.Schema:
    """A handler's schema in Arrow, as it was given: `columns_of` are its columns.

    :raises ConfigurationError: it is none, has a type whose values can't be stored as they are, or a name of ours.
    """
    schema = given
    try:
        if isinstance(given, str):
            schema = pa.schema(_Ddl(given).columns())
        elif hasattr(given, "jsonValue"):  # Spark's StructType; a consumer has no Spark
            schema = pa.schema([*_of_json(given.jsonValue())])
    except (_UnreadableError, TypeError, LookupError, RecursionError) as error:
        found, schema = f"{given!r}: {error}", None
    else:
        found = repr(given)
    if not isinstance(schema, pa.Schema):
        raise ConfigurationError("a handler's schema can't be read", found=found, expected=_EXPECTED)
    return _checked(schema)


def columns_of(schema: pa.Schema) -> pa.Schema:
    """The columns of the rows: the schema's, with the types that hold the same values in Spark, too."""
    return pa.schema([field.with_type(held(field.type)) for field in cast("Any", schema)])


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
        structs = _arrow.StructArray.from_arrays(arrays, fields=[*columns_of(schema)])
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
        check_exact(values, field.type)
        return stored(values, field.type)
    except Exception as error:  # noqa: BLE001 - of many classes
        kind = _NAMES.get(str(field.type), str(field.type))
        raise ValueError(f"the column {field.name} ({kind}): {error}") from None


def _values(row: Row, names: Sequence[str]) -> Sequence[object]:
    if isinstance(row, tuple):
        if len(row) != len(names):
            raise ValueError(f"the row has {len(row)} values; expected {len(names)}: {', '.join(names)}")
        return row
    values = [row.get(name) for name in names]
    if unknown := row.keys() - {*names}:
        raise ValueError(f"the schema has no column {', '.join(map(repr, sorted(unknown)))}; it has {', '.join(names)}")
    return values


def _checked(schema: pa.Schema) -> pa.Schema:
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
    if not_held := {name: kind for name, kind in zip(names, schema.types, strict=True) if held(kind) is None}:
        raise ConfigurationError(
            "a handler's schema has a type whose values can't be stored as they are",
            found=", ".join(f"{name}: {kind}" for name, kind in not_held.items()),
            next_step=" ".join(
                f"In {name}, replace {unknown(kind, held_inside)} by {replacement(kind, held_inside)}."
                for name, kind in not_held.items()
            ),
        )
    return schema


def _type_named(name: str) -> pa.DataType:
    decimal = _DECIMAL.fullmatch(name)
    if decimal is not None:
        precision, scale = int(decimal[1] or 10), int(decimal[2] or 0)
        if not 0 <= scale <= precision:
            raise _UnreadableError(f"{name}: the digits after the point must be 0 to {precision}")
        return pa.decimal128(precision, scale)
    found = _TYPES.get(_SYNONYMS.get(name, name))
    if found is None and _TIME.fullmatch(name):
        return _TYPES["time"]
    if found is None and _DAY_TIME.fullmatch(name):
        return _TYPES["interval day to second"]
    if found is None:
        raise _UnreadableError(f"the type {name} is unknown; a string may hold its values")
    return found


def _of_json(kind: Any) -> Any:
    """A type of Spark, as it writes it in JSON."""
    match kind:
        case str():
            return _type_named(kind)
        case {"type": "array", "elementType": element, "containsNull": nullable}:
            return pa.list_(pa.field("item", _of_json(element), nullable))
        case {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": nullable}:
            return _arrow.map_(_of_json(key), pa.field("value", _of_json(value), nullable))
        case {"type": "struct", "fields": fields}:
            return pa.struct([_field(one["name"], partial(_of_json, one["type"]), one["nullable"]) for one in fields])
        case _:
            raise _UnreadableError("a type of the application's own")


def _field(name: str, kind: Callable[[], pa.DataType], nullable: bool = True) -> Any:  # noqa: FBT001, FBT002
    try:
        return _arrow.field(name, kind(), nullable)
    except ValueError as error:  # ours, and Arrow's for decimal(99)
        raise _UnreadableError(f"column {name}: {error}") from None


class _Ddl:
    """Spark's text of columns, read word by word."""

    def __init__(self, text: str) -> None:
        self._words: list[str] = []
        at = 0
        while at < len(text):
            found = _TOKEN.match(text, at)
            if found is None:
                raise _UnreadableError(f"at {text[at:]!r}")
            self._words.append(found[1])
            at = found.end()
        self._words.append("")

    def columns(self, end: str = "") -> Sequence[Any]:
        """The columns up to the word that ends them."""
        found = [self._column()]
        while self._next_is(","):
            found.append(self._column())
        self._expect(end)
        return found

    def _column(self) -> Any:
        word = self._words.pop(0)
        name = word[1:-1].replace("``", "`") if word.startswith("`") else word
        if not re.fullmatch(r"`.*`|\w+", word, re.DOTALL):
            raise _UnreadableError(f"a column's name is missing before {word or 'the end'!r}")
        self._next_is(":")
        field = _field(name, self._type)
        if self._next_is("not"):
            self._expect("null")
            field = field.with_nullable(nullable=False)
        if self._next_is("comment"):
            self._words.pop(0)
        return field

    def _type(self) -> pa.DataType:
        name = self._words.pop(0).lower()
        match name:
            case "array":
                self._expect("<")
                kind = pa.list_(self._type())
                self._expect(">")
                return kind
            case "map":
                self._expect("<")
                key = self._type()
                self._expect(",")
                kind = pa.map_(key, self._type())
                self._expect(">")
                return kind
            case "struct":
                self._expect("<")
                return pa.struct(self.columns(">"))
            case "interval":
                while self._words[0].lower() in _INTERVAL:
                    name += " " + self._words.pop(0).lower()
            case _:
                pass
        if self._next_is("("):
            name += "("
            while not name.endswith(")"):
                if not self._words[0]:
                    raise _UnreadableError("a parenthesis is not closed")
                name += self._words.pop(0)
        return _type_named(name)

    def _next_is(self, word: str) -> bool:
        """Take the next word if it is this one."""
        if self._words[0].lower() != word:
            return False
        self._words.pop(0)
        return True

    def _expect(self, word: str) -> None:
        if not self._next_is(word):
            raise _UnreadableError(f"{self._words[0] or 'the end'!r} in the place of {word or 'the end'!r}")

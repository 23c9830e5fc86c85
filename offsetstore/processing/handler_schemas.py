"""A handler's schema, in Spark and in a consumer: Spark's DDL, a schema of pyarrow or a StructType, read in one way."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

import pyarrow as pa

from offsetstore.errors import ConfigurationError
from offsetstore.processing.handling import Handler
from offsetstore.processing.unit import UNNAMED
from offsetstore.protocol.letters import REJECT
from offsetstore.writers.arrow.batches import KAFKA
from offsetstore.writers.arrow.kinds import held, held_inside, replacement, unknown

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
    "interval day to second": pa.duration("us"),
    "void": pa.null(),
}
"""By Spark's names."""

_SYNONYMS: Final = {
    "byte": "tinyint",
    "short": "smallint",
    "integer": "int",
    "long": "bigint",
    "real": "float",
    "time(6)": "time",
    "timestamp_ltz": "timestamp",
}
_NAMES: Final = {str(kind): name for name, kind in _TYPES.items()}
_DECIMAL: Final = re.compile(r"(?:decimal|dec|numeric)(?:\((\d+)(?:,(-?\d+))?\))?")
_TOKEN: Final = re.compile(r"""\s*(`(?:[^`]|``)+`|'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|\w+|[<>(),:])\s*""")
_INTERVAL: Final = {"year", "month", "day", "hour", "minute", "second", "to"}
_EXPECTED: Final = (
    'Spark\'s DDL ("id long, scores array<double>"), a schema of pyarrow or Spark, or a mapping of outputs to these'
)


_arrow: Any = pa  # its stubs know no fields of maps


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
    except (ValueError, TypeError, LookupError, RecursionError) as error:  # ours, and Arrow's for decimal(99)
        found, schema = f"{given!r}: {error}", None
    else:
        found = repr(given)
    if not isinstance(schema, pa.Schema):
        raise ConfigurationError("a handler's schema can't be read", found=found, expected=_EXPECTED)
    return _checked(schema)


def columns_of(schema: pa.Schema) -> pa.Schema:
    """The columns of the rows: the schema's, with the types that hold the same values in Spark, too."""
    return pa.schema([field.with_type(held(field.type)) for field in cast("Any", schema)])


def name_of(kind: pa.DataType) -> str:
    """Spark's name of the type, or Arrow's."""
    return _NAMES.get(str(kind), str(kind))


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


def _named(name: str) -> pa.DataType:
    decimal = _DECIMAL.fullmatch(name)
    if decimal is not None:
        return pa.decimal128(int(decimal[1] or 10), int(decimal[2] or 0))
    found = _TYPES.get(_SYNONYMS.get(name, name))
    if found is None:
        raise _UnreadableError(f"the type {name} is unknown here; string may hold its values")
    return found


def _of_json(kind: Any) -> Any:
    """A type of Spark, as it writes it in JSON."""
    match kind:
        case str():
            return _named(kind)
        case {"type": "array", "elementType": element, "containsNull": nullable}:
            return pa.list_(pa.field("item", _of_json(element), nullable))
        case {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": nullable}:
            return _arrow.map_(_of_json(key), pa.field("value", _of_json(value), nullable))
        case {"type": "struct", "fields": fields}:
            return pa.struct([pa.field(one["name"], _of_json(one["type"]), one["nullable"]) for one in fields])
        case _:
            raise _UnreadableError("a type of the application's own")


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
        kind, nullable = self._type(), True
        if self._next_is("not"):
            self._expect("null")
            nullable = False
        if self._next_is("comment"):
            self._words.pop(0)
        return pa.field(name, kind, nullable)

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
        return _named(name)

    def _next_is(self, word: str) -> bool:
        """Take the next word if it is this one."""
        if self._words[0].lower() != word:
            return False
        self._words.pop(0)
        return True

    def _expect(self, word: str) -> None:
        if not self._next_is(word):
            raise _UnreadableError(f"{self._words[0] or 'the end'!r} in the place of {word or 'the end'!r}")

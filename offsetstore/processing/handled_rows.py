"""A handler's schema, and its rows as Arrow: no value is changed, and a row that doesn't fit fails its record.

A schema is Spark's DDL, a pyarrow schema, or a StructType, and means the same in Spark and in a consumer. Spark's own
parser does not do: it needs a session, and reads ``timestamp`` by one of its settings (decision 0092).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from functools import partial
from itertools import accumulate, repeat, takewhile
from typing import Any, Final, cast

import pyarrow as pa

from offsetstore.errors import ConfigurationError, FunctionEnded, as_raised
from offsetstore.processing.handling import RESULT, CallOutcome, Handler, HandlerError, HandlerRow, NoRows, unfit
from offsetstore.processing.unit import UNNAMED
from offsetstore.protocol.letters import REJECT, writable
from offsetstore.runtime.functions import as_texts, call
from offsetstore.text import counted
from offsetstore.writers.arrow.batches import KAFKA
from offsetstore.writers.arrow.kinds import Inexact, check_exact, held, held_inside, replacement, stored, unknown

ONLY: Final = "rows"
"""The name of the field for the only output, which has no name."""

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
"""Arrow's types by Spark's names."""

_SYNONYMS: Final = {
    "byte": "tinyint",
    "short": "smallint",
    "integer": "int",
    "long": "bigint",
    "real": "float",
    "timestamp_ltz": "timestamp",
}
_INSTEAD: Final = {
    "bool": "boolean",
    **dict.fromkeys(("int2", "int16", "smallserial", "uint8"), "smallint"),
    **dict.fromkeys(("int4", "int32", "serial", "uint16"), "int"),
    "int8": "bigint for PostgreSQL's int8, tinyint for Arrow's",
    **dict.fromkeys(("int64", "bigserial", "uint32"), "bigint"),
    "uint64": "decimal(20,0)",
    **dict.fromkeys(("float4", "float32"), "float"),
    **dict.fromkeys(("float8", "float64", "double precision"), "double"),
    "money": "decimal(19,2), and numeric in the table",
    **dict.fromkeys(("bytea", "blob", "bytes", "varbinary", "large_binary"), "binary"),
    **dict.fromkeys(
        ("char", "character", "varchar", "character varying", "bpchar", "text", "str", "utf8", "large_string"), "string"
    ),
    **dict.fromkeys(  # types that Spark doesn't have, or a handler can't make: PostgreSQL reads their text
        [
            *("uuid", "json", "jsonb", "variant", "xml", "citext", "hstore", "inet", "cidr", "macaddr", "timetz"),
            *("time with time zone", "interval year to month", "geometry", "geography"),
        ],
        "string",
    ),
    **dict.fromkeys(("date32", "date64"), "date"),
    "time without time zone": "time",
    **dict.fromkeys(("timestamptz", "timestamp with time zone"), "timestamp"),
    **dict.fromkeys(("datetime", "timestamp without time zone"), "timestamp_ntz"),
    **dict.fromkeys(("interval", "duration"), "interval day to second, or string for one with months"),
    **dict.fromkeys(("decimal", "dec", "numeric"), "decimal(precision,scale)"),
    **dict.fromkeys(("list", "array"), "array<...> with the type of its elements"),
}
"""What to write instead of names of SQL and Arrow that Spark's DDL does not have. Spark refuses them, and so do we."""

_SINGLE: Final = 24
"""Up to this many binary digits, SQL's float(p) is a real, and above a double precision."""

_NAMES: Final = {str(kind): name for name, kind in _TYPES.items()}
_DECIMAL: Final = re.compile(r"(?:decimal|dec|numeric)(?:\((\d+)(?:,(-?\d+))?\))?")
_TIME: Final = re.compile(r"time\([0-6]\)")
_DAY_TIME: Final = re.compile(
    r"interval (?:day(?: to (?:hour|minute|second))?|hour(?: to (?:minute|second))?|minute(?: to second)?|second)"
)
_TOKEN: Final = re.compile(r"""\s*(`(?:[^`]|``)+`|'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|\w+|[<>(),:]|\[\d*\])\s*""")
_AFTER: Final = {"not", "comment"}
"""Words that may follow a column's type."""

_INTERVAL: Final = {"year", "month", "day", "hour", "minute", "second", "to"}
_EXPECTED: Final = (
    'Spark\'s DDL ("id long, scores array<double>"), a schema of pyarrow or Spark, or a mapping of outputs to these'
)
_arrow: Any = pa  # its stubs know too little of some kinds of arrays
_log = logging.getLogger(__name__)


class _UnreadableError(ValueError):
    """A schema can't be read; the text says where."""


def schemas_of(handler: Handler) -> dict[str, pa.Schema]:
    """The schema of each of a handler's outputs.

    :raises ConfigurationError: see `schema_of`.
    """
    given: object = handler.schema
    if not isinstance(given, Mapping):
        return {UNNAMED: schema_of(given)}
    outputs, schemas = cast("Mapping[str, object]", given), dict[str, pa.Schema]()
    for name, schema in outputs.items():
        try:
            schemas[name] = schema_of(schema)
        except ConfigurationError as error:
            if isinstance(schema, str) and _is_type(schema):
                error.next_step = f'A mapping is of outputs. For a column {name}, write "{name} {schema}".'
            error.while_(f"reading the schema of the output {name!r}")
            raise
    return schemas


def schema_of(given: Any) -> pa.Schema:
    """A handler's schema in Arrow, with the types as given; for those of its rows see `columns_of`.

    :raises ConfigurationError: it is not a schema, has a type whose values can't be stored as they are, or uses one of
        our names.
    """
    schema = given
    try:
        if isinstance(given, str):
            schema = pa.schema(_Ddl(given).columns())
        elif hasattr(given, "jsonValue"):  # Spark's StructType; a consumer has no Spark
            schema = _of_json(given.jsonValue())
            schema = pa.schema([*cast("Any", schema)]) if isinstance(schema, pa.StructType) else None
    except (_UnreadableError, TypeError, LookupError, RecursionError) as error:
        found, schema = f"{given!r}: {error}", None
    else:
        found = repr(given)
    if not isinstance(schema, pa.Schema):
        raise ConfigurationError("a handler's schema can't be read", found=found, expected=_EXPECTED)
    return _checked(schema)


def columns_of(schema: pa.Schema) -> pa.Schema:
    """The schema of the rows: each column with a type that holds the same values in Spark, too."""
    return pa.schema([field.with_type(held(field.type)) for field in cast("Any", schema)])


def arrow_rows(
    outcomes: Sequence[CallOutcome], schemas: Mapping[str, pa.Schema]
) -> tuple[pa.StructArray, Sequence[CallOutcome]]:
    """The rows of each outcome, see `as_lists`.

    :return: also the outcomes, in which a record whose rows don't fit the schema has failed.
    """
    # All at once, and only if that fails one by one, to find the records.
    try:
        return call(as_lists, [outcome.rows for outcome in outcomes], schemas), outcomes
    except Exception as error:  # noqa: BLE001 - the user's own objects
        _log.debug("rows of a handler don't fit its schema: %s", type(error).__name__)
    fitting: list[CallOutcome] = []
    for outcome in outcomes:
        try:
            call(as_lists, [outcome.rows], schemas)
        except Exception as error:  # noqa: BLE001 - the user's own objects
            fitting.append(replace(outcome, rows=(), error=_unfit(error)))
        else:
            fitting.append(outcome)
    return as_lists([outcome.rows for outcome in fitting], schemas), fitting


def _unfit(error: Exception) -> HandlerError:
    if isinstance(error, NoRows):
        return unfit(error)
    text = str(error) if isinstance(error, FunctionEnded) else as_texts(error)[0]
    return HandlerError(RESULT, text, shown=f": to read what it returned raised {type(as_raised(error)).__name__}")


def as_lists(rows: Sequence[Sequence[Any]], schemas: Mapping[str, pa.Schema]) -> pa.StructArray:
    """Each record's rows as lists, in a column of structs with a field for each output.

    :param rows: of each record; with several outputs, mappings of their names to rows.
    :raises Exception: a row does not fit.
    """
    columns: list[Any] = []
    for name, schema in schemas.items():
        of_output = rows
        if name != UNNAMED:
            of_output = [[row for outputs in of_record for row in outputs.get(name, ())] for of_record in rows]
        values = [_values(row, schema.names) for of_record in of_output for row in of_record]
        ends = accumulate((len(of_record) for of_record in of_output), initial=0)
        by_column: Iterable[Sequence[Any]] = zip(*values, strict=True) if values else repeat(())
        arrays = [_as_column(field, column) for field, column in zip(cast("Any", schema), by_column, strict=False)]
        structs = _arrow.StructArray.from_arrays(arrays, fields=[*columns_of(schema)])
        columns.append(_arrow.ListArray.from_arrays(pa.array([*ends], pa.int32()), structs))
    return _arrow.StructArray.from_arrays(columns, [name or ONLY for name in schemas])


def as_failed(error: HandlerError, attempts: int = 1, *, is_outage: bool = False) -> dict[str, Any]:
    """A handler's failure as `reject_of` takes it, without what PostgreSQL can't store in a text."""
    return {
        "error_class": writable(error.error_class),
        "text": writable(error.text),
        "traceback": error.traceback and writable(error.traceback),
        "attempts": attempts,
        "shown": writable(error.shown),
        "is_outage": is_outage,
    }


def _as_column(field: Any, values: Sequence[Any]) -> Any:
    if not field.nullable and None in values:
        raise NoRows(f"the column {field.name} is NULL, and its schema does not allow that")
    column = f"the column {field.name} ({_NAMES.get(str(field.type), str(field.type))})"
    try:
        check_exact(values, field.type)
        return stored(values, field.type)
    except Inexact as error:
        raise NoRows(f"{column}: {error}") from None
    # Arrow's errors are of many classes and quote the value, which only the letter may show; and the user's objects may
    # raise anything (decision 0099).
    except Exception as error:  # noqa: BLE001
        raise NoRows(f"{column}: {error}", shown=f"{column}: a value that it does not hold") from None


def _values(row: HandlerRow, names: Sequence[str]) -> Sequence[object]:
    if isinstance(row, tuple):
        if len(row) != len(names):
            raise NoRows(f"the row has {len(row)} values; expected {len(names)}: {', '.join(names)}")
        return row
    values = [row.get(name) for name in names]
    if unknown := row.keys() - {*names}:
        has = f"it has {', '.join(names)}"
        raise NoRows(
            f"the schema has no column {', '.join(sorted(map(repr, unknown)))}; {has}",
            shown=f"the row has {counted(len(unknown), 'column')} that the schema does not have; {has}",
        )
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
        raise _UnreadableError(f"the type {name} is unknown; {_hint(name)}")
    return found


def _hint(name: str) -> str:
    """What to write instead of an unknown type."""
    base = _base(name)
    digits = re.fullmatch(r"float\((\d{1,3})\)", name)
    instead = _INSTEAD.get(base)
    if digits is not None:
        instead = "float" if int(digits[1]) <= _SINGLE else "double"
    elif instead is None and base in {*_TYPES, *_SYNONYMS}:
        instead = base
    if instead is not None:
        return f"write {instead}"
    near = get_close_matches(base, [*_TYPES, *_SYNONYMS], n=1, cutoff=0.7)
    return f"did you mean {near[0]!r}?" if near else "for a type that PostgreSQL has and Spark has not, write string"


def _base(name: str) -> str:
    """A type's words, without anything in parentheses."""
    return " ".join(re.sub(r"\(.*?\)", " ", name).split())


def _is_type(text: str) -> bool:
    try:
        schema_of(f"a {text}")
    except ConfigurationError:
        return False
    return True


def _of_json(kind: Any) -> Any:
    """The Arrow type of Spark's JSON for a type."""
    match kind:
        case str():
            return _type_named(kind)
        case {"type": "array", "elementType": element, "containsNull": nullable}:
            return pa.list_(pa.field("item", _of_json(element), nullable))
        case {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": nullable}:
            return _arrow.map_(_of_json(key), pa.field("value", _of_json(value), nullable))
        case {"type": "struct", "fields": fields}:
            return pa.struct(
                [_field(item["name"], partial(_of_json, item["type"]), item["nullable"]) for item in fields]
            )
        case _:
            raise _UnreadableError("a type of the application's own")


def _field(name: str, kind: Callable[[], pa.DataType], nullable: bool = True) -> Any:  # noqa: FBT001, FBT002
    try:
        return _arrow.field(name, kind(), nullable)
    except ValueError as error:  # ours, and Arrow's for decimal(99)
        raise _UnreadableError(f"column {name}: {error}") from None


class _Ddl:
    """Reads Spark's DDL of columns, word by word."""

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
        word = self._take()
        name = word[1:-1].replace("``", "`") if word.startswith("`") else word
        if not re.fullmatch(r"`.*`|\w+", word, re.DOTALL):
            raise _UnreadableError(f"a column's name is missing before {word or 'the end'!r}")
        self._next_is(":")
        field = _field(name, self._type)
        if self._next_is("not"):
            self._expect("null")
            field = field.with_nullable(nullable=False)
        if self._next_is("comment") and not self._take().startswith(("'", '"')):
            raise _UnreadableError(f"column {name}: the text of its comment is not quoted")
        return field

    def _type(self) -> pa.DataType:
        kind = self._one_type()
        if self._words[0].startswith("["):
            raise _UnreadableError("an array is written array<...>, with the type of its elements")
        return kind

    def _one_type(self) -> pa.DataType:
        name = self._take().lower()
        if not re.fullmatch(r"\w+", name):
            raise _UnreadableError("its type is missing")
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
                    name += " " + self._take().lower()
            case _:
                pass
        name += self._in_parentheses()
        # SQL's names of several words, such as double precision, are read only to say what to write instead.
        more = takewhile(lambda word: re.fullmatch(r"\w+", word) and word.lower() not in _AFTER, self._words)
        whole = " ".join([name, *map(str.lower, more)])
        return _type_named(whole if _base(whole) in _INSTEAD else name)

    def _in_parentheses(self) -> str:
        if not self._next_is("("):
            return ""
        text = "("
        while not text.endswith(")"):
            if not self._words[0]:
                raise _UnreadableError("a parenthesis is not closed")
            text += self._take()
        return text

    def _take(self) -> str:
        """Take the next word; the end, which is empty, stays."""
        return self._words.pop(0) if self._words[0] else ""

    def _next_is(self, word: str) -> bool:
        """Take the next word if it is this one."""
        if self._words[0].lower() != word:
            return False
        self._words.pop(0)
        return True

    def _expect(self, word: str) -> None:
        if not self._next_is(word):
            found, expected = repr(self._words[0] or "the end"), repr(word) if word else "',' or the end"
            raise _UnreadableError(f"{found} in the place of {expected}")

"""``make types``: docs/types.md, from each pair of a Spark type and a PostgreSQL type, and what is done about it.

`VALUES` has the value that each pair ends with, written by hand; tests/integration/spark/test_type_pairs.py has Spark
compute all of them, and PostgreSQL compare them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa

from offsetstore.writers.arrow.casts import find_cast, lossless_type
from offsetstore.writers.arrow.kinds import SparkType, held, plain, replacement
from offsetstore.writers.table.catalogue import Column
from offsetstore.writers.table.conversions import conversion
from tests.support.arrow_types import CASES

PAGE: Final = Path(__file__).parents[2] / "docs" / "types.md"

ZONE: Final = "Asia/Kolkata"
"""Spark's session time zone, 5:30 hours ahead of UTC."""

TYPES: Final = """
CREATE EXTENSION hstore; CREATE EXTENSION citext; CREATE EXTENSION vector;
CREATE TYPE mood AS ENUM ('calm', 'tense'); CREATE TYPE pair AS (n int, label text);
-- PostGIS is not here: this one keeps the text that it is given.
CREATE TYPE geometry;
CREATE FUNCTION geometry_in(cstring) RETURNS geometry LANGUAGE internal IMMUTABLE STRICT AS 'textin';
CREATE FUNCTION geometry_out(geometry) RETURNS cstring LANGUAGE internal IMMUTABLE STRICT AS 'textout';
CREATE TYPE geometry (INPUT = geometry_in, OUTPUT = geometry_out, LIKE = text);
"""
"""The types of `COLUMNS` that have to be made."""


def _column(type_name: str, kind: str, *, element: str | None = None, modifier: int = -1) -> Column:
    return Column("x", type_name, kind, modifier=modifier, element=element)


def _numeric(precision: int, scale: int) -> int:
    return (precision << 16 | scale) + 4


COLUMNS: Final = {
    column.type_name: column
    for column in (
        _column("boolean", "bool"),
        _column("smallint", "int2"),
        _column("integer", "int4"),
        _column("bigint", "int8"),
        _column("real", "float4"),
        _column("double precision", "float8"),
        _column("numeric", "numeric"),
        _column("numeric(12,2)", "numeric", modifier=_numeric(12, 2)),
        _column("numeric(50,2)", "numeric", modifier=_numeric(50, 2)),
        _column("text", "text"),
        _column("varchar(70)", "varchar", modifier=70 + 4),
        _column("char(70)", "bpchar", modifier=70 + 4),
        _column("citext", ""),
        _column("bytea", "bytea"),
        _column("date", "date"),
        _column("timestamp", "timestamp"),
        _column("timestamptz", "timestamptz"),
        _column("time", "time"),
        _column("time(0)", "time", modifier=0),
        _column("timetz", "timetz"),
        _column("interval", "interval"),
        _column("uuid", "uuid"),
        _column("json", "json"),
        _column("jsonb", "jsonb"),
        _column("mood", "enum"),
        _column("inet", "inet"),
        _column("cidr", "cidr"),
        _column("macaddr", "macaddr"),
        _column("int4range", "int4range"),
        _column("hstore", ""),
        _column("vector(3)", "", modifier=3),
        _column("pair", ""),
        _column("geometry", ""),
        _column("point", "point"),
        _column("integer[]", "array", element="int4"),
        _column("real[]", "array", element="float4"),
        _column("numeric(12,2)[]", "array", element="numeric", modifier=_numeric(12, 2)),
        _column("text[]", "array", element="text"),
        _column("timestamptz[]", "array", element="timestamptz"),
        _column("interval[]", "array", element="interval"),
        _column("uuid[]", "array", element="uuid"),
        _column("jsonb[]", "array", element="jsonb"),
        _column("money", "money"),
        _column("name", "name"),
        _column('"char"', "char"),
        _column("interval day", "interval", modifier=8 << 16 | 0xFFFF),
    )
}
"""By the name in SQL, as the catalogue has them."""

_POINT = SparkType("geometry(4326)")
SOURCES: Final[Mapping[str, pa.DataType]] = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "decimal(12,2)": pa.decimal128(12, 2),
    "string": pa.string(),
    "varchar(99)": SparkType("varchar(99)"),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "time(6)": pa.time64("ns"),
    "interval day to second": pa.duration("us"),
    "interval year to month": SparkType("interval year to month"),
    "interval": SparkType("interval"),
    "void": pa.null(),
    "variant": SparkType("variant"),
    "geometry(4326)": _POINT,
    "geography(4326)": SparkType("geography(4326)"),
    "array<int>": pa.list_(pa.int32()),
    "array<float>": pa.list_(pa.float32()),
    "array<string>": pa.list_(pa.string()),
    "array<void>": pa.list_(SparkType("void")),
    "array<variant>": pa.list_(SparkType("variant")),
    "array<struct<a:float>>": pa.list_(pa.struct([("a", pa.float32())])),
    "map<string,float>": pa.map_(pa.string(), pa.float32()),
    "map<void,void>": pa.map_(SparkType("void"), SparkType("void")),
    "map<string,interval>": pa.map_(pa.string(), SparkType("interval")),
    "struct<a:float,b:variant>": pa.struct([("a", pa.float32()), ("b", SparkType("variant"))]),
    "struct<p:geometry(4326),e:array<void>>": pa.struct([("p", _POINT), ("e", pa.list_(SparkType("void")))]),
}
"""Spark's types by name, and what the sink compares with a table."""

SINCE: Final = {"time(6)": "TimeType", "geometry(4326)": "GeometryType", "geography(4326)": "GeographyType"}
"""The types that Spark 4.0 does not have, by their classes; also those that have them inside."""

_ARRAYS_OF_NUMBERS = "integer[], numeric(12,2)[], real[]"
_FLOATS = "real, double precision, numeric, numeric(12,2), numeric(50,2)"
_INTS = "smallint, integer, bigint"
_JSON = "json, jsonb"
_TEXTS = "text, varchar(70), char(70)"
_BY_UNIT = ("2024-07-01 12:30:15+00", "1970-01-20 21:43:57.015+00", "1970-01-01 00:28:39.837015+00")
_BY_UNIT_IN_ZONE = ("2024-07-01 18:00:15", "1970-01-21 03:13:57.015", "1970-01-01 05:58:39.837015")
_FRACTIONS = ("1970-01-01 00:00:01.5+00", "1970-01-01 00:00:00.001+00", "1970-01-01 00:00:00.000001+00")
_FRACTIONS_IN_ZONE = ("1970-01-01 05:30:01.5", "1970-01-01 05:30:00.001", "1970-01-01 05:30:00.000001")
_WKB = "0101000000000000000000F03F0000000000000040"
_GEOMETRY = f"st_setsrid(st_geomfromwkb(X'{_WKB}'), 4326)"
_ID = "6f1c1e4e-1d2f-4a35-9b7a-0c9f6b1d2e3f"

Expected = str | tuple[str, ...] | None
Values = Mapping[str, Mapping[str, Expected]]


def _each(values: Sequence[str]) -> tuple[str, ...]:
    return tuple(f'{{"{value}"}}' for value in values)


_OF_INTS: dict[str, Expected] = {
    "boolean": "true",
    f"{_INTS}, {_FLOATS}, {_TEXTS}, {_JSON}": "7",
    f"{_ARRAYS_OF_NUMBERS}, text[]": "{7}",
}
_OF_SMALL_INTS: dict[str, Expected] = _OF_INTS | {
    "date": ("1970-01-08", "1970-01-01"),
    "timestamp": "1970-01-01 05:30:07",
    "timestamptz": "1970-01-01 00:00:07+00",
    "timestamptz[]": '{"1970-01-01 00:00:07+00"}',
}
_OF_FRACTIONS: dict[str, Expected] = {
    "date": ("1970-01-01",) * 3,
    "timestamp": _FRACTIONS_IN_ZONE,
    "timestamptz": _FRACTIONS,
    "timestamptz[]": _each(_FRACTIONS),
}
# What a string of PostgreSQL's own form becomes; also one that is bytes, or in a VARIANT.
_OF_TEXTS: dict[str, dict[str, Expected]] = {
    "true": {"boolean": "true"},
    "7": {f"{_INTS}, {_FLOATS}": "7", _ARRAYS_OF_NUMBERS: "{7}"},
    "año ☃": {_TEXTS: "año ☃", "citext": "año ☃", "text[]": '{"año ☃"}'},
    "2024-02-29": {"date": "2024-02-29"},
    "2024-07-01 12:30:15.123456": {
        "timestamp": "2024-07-01 12:30:15.123456",
        "timestamptz": "2024-07-01 07:00:15.123456+00",
        "timestamptz[]": '{"2024-07-01 07:00:15.123456+00"}',
    },
    "12:30:15.123456": {"time": "12:30:15.123456"},
    "12:30:15.123456+02": {"timetz": "12:30:15.123456+02"},
    "14 mons -2 days 03:04:05.678901": {
        "interval": "1 year 2 mons -2 days 03:04:05.678901",
        "interval[]": '{"1 year 2 mons -2 days 03:04:05.678901"}',
    },
    _ID: {"uuid": _ID, "uuid[]": f"{{{_ID}}}"},
    "calm": {"mood": "calm"},
    "10.0.0.1": {"inet": "10.0.0.1"},
    "10.0.0.0/8": {"cidr": "10.0.0.0/8"},
    "08:00:2b:01:02:03": {"macaddr": "08:00:2b:01:02:03"},
    "[1,4]": {"int4range": "[1,5)"},
    "a=>1, b=>NULL": {"hstore": "a=>1, b=>NULL"},
    "[0.1,7,2]": {"vector(3)": "[0.1,7,2]"},
    '(1,"a b")': {"pair": '(1,"a b")'},
    "POINT(1 2)": {"geometry": "POINT(1 2)"},
    "(1,2)": {"point": "(1,2)"},
}
_JSON_TEXT = '{"a": [0.1, null]}'
_OF_JSON_TEXT: dict[str, Expected] = {_JSON: _JSON_TEXT, "jsonb[]": '{"{\\"a\\": [0.1, null]}"}'}


def _literal(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _from_texts(sample: str, *, without: str = "") -> Values:
    return {
        sample.format(_literal(value)): {name: stored for name, stored in expected.items() if name != without}
        for value, expected in _OF_TEXTS.items()
    }


def _elements(sample: str) -> Values:
    """Those of `_OF_TEXTS` that have arrays, with a NULL as the second element."""
    return {
        sample.format(_literal(value)): {f"{name}[]": f'{{"{expected[name]}",NULL}}'}
        for value, expected in _OF_TEXTS.items()
        for name in ("timestamptz", "interval", "uuid")
        if name in expected
    }


def _nested(document: str) -> dict[str, Expected]:
    quoted = document.replace('"', '\\"')
    return {f"{_TEXTS}, {_JSON}": document, "text[], jsonb[]": f'{{"{quoted}"}}'}


VALUES: Final[Mapping[str, Values]] = {
    "boolean": {
        "true": {
            f"boolean, {_TEXTS}, {_JSON}": "true",
            f"{_INTS}, {_FLOATS}": "1",
            _ARRAYS_OF_NUMBERS: "{1}",
            "text[]": "{true}",
        }
    },
    "tinyint": {"7Y": _OF_SMALL_INTS},
    "smallint": {"7S": _OF_SMALL_INTS},
    "int": {"7": _OF_SMALL_INTS},
    "bigint": {
        "7L": _OF_INTS,
        "1719837015L": {
            "date": ("2024-07-01", "1970-01-21", "1970-01-01"),
            "timestamp": _BY_UNIT_IN_ZONE,
            "timestamptz": _BY_UNIT,
            "timestamptz[]": _each(_BY_UNIT),
        },
    },
    "float": {
        "7F": {_INTS: "7", "integer[]": "{7}"},
        "0.1F": {
            "boolean": "true",
            f"real, numeric, numeric(12,2), numeric(50,2), {_TEXTS}, {_JSON}": "0.1",
            "double precision": "0.10000000149011612",
            "numeric(12,2)[], real[], text[]": "{0.1}",
        },
        "1.5F": _OF_FRACTIONS,
    },
    "double": {
        "7D": {_INTS: "7", "integer[]": "{7}"},
        "0.1D": {f"{_FLOATS}, {_TEXTS}, {_JSON}": "0.1", "boolean": "true", "numeric(12,2)[], real[], text[]": "{0.1}"},
        "1.5D": _OF_FRACTIONS,
    },
    "decimal(12,2)": {
        "cast(7 AS decimal(12,2))": {_INTS: "7", "integer[]": "{7}"},
        "cast(1.5 AS decimal(12,2))": {
            "boolean": "true",
            _FLOATS: "1.5",
            f"{_TEXTS}, {_JSON}": "1.50",
            "numeric(12,2)[], real[]": "{1.5}",
            "text[]": "{1.50}",
            **_OF_FRACTIONS,
        },
    },
    "string": {
        **_from_texts("{}"),
        _literal(_JSON_TEXT): _OF_JSON_TEXT,
        "'día'": {"bytea": "\\x64c3ad61"},
    },
    "varchar(99)": {
        **_from_texts("cast({} AS varchar(99))"),
        f"cast({_literal(_JSON_TEXT)} AS varchar(99))": _OF_JSON_TEXT,
        "cast('día' AS varchar(99))": {"bytea": "\\x64c3ad61"},
    },
    "binary": {
        **_from_texts("encode({}, 'UTF-8')", without="uuid"),
        f"encode({_literal(_JSON_TEXT)}, 'UTF-8')": _OF_JSON_TEXT,
        "X'00FF'": {"bytea": "\\x00ff"},
        f"X'{_ID.replace('-', '')}'": {"uuid": _ID},
    },
    "date": {
        "date'2024-02-29'": {
            f"date, {_TEXTS}": "2024-02-29",
            _JSON: '"2024-02-29"',
            "timestamp": "2024-02-29 00:00:00",
            "timestamptz": "2024-02-28 18:30:00+00",
            "timestamptz[]": '{"2024-02-28 18:30:00+00"}',
            "text[]": "{2024-02-29}",
        }
    },
    "timestamp": {
        "timestamp'2024-07-01T20:30:15.123456Z'": {
            "timestamptz": "2024-07-01 20:30:15.123456+00",
            "timestamptz[]": '{"2024-07-01 20:30:15.123456+00"}',
            "timestamp": "2024-07-02 02:00:15.123456",
            "date": "2024-07-02",
            "time": "02:00:15.123456",
            "bigint": ("1719865815", "1719865815123", "1719865815123456"),
            "text[]": "{2024-07-02T02:00:15.123456+05:30}",
            _JSON: '"2024-07-01T20:30:15.123456+00:00"',
        },
        # Then the offset of Kolkata had seconds.
        "timestamp'1800-07-01T00:00:00.123456Z'": {_TEXTS: "1800-07-01T05:53:28.123456+05:53:28"},
    },
    "timestamp_ntz": {
        "timestamp_ntz'2024-07-01T20:30:15.123456'": {
            f"timestamp, {_TEXTS}": "2024-07-01 20:30:15.123456",
            "timestamptz": "2024-07-01 15:00:15.123456+00",
            "timestamptz[]": '{"2024-07-01 15:00:15.123456+00"}',
            "date": "2024-07-01",
            "time": "20:30:15.123456",
            "text[]": '{"2024-07-01 20:30:15.123456"}',
            _JSON: '"2024-07-01T20:30:15.123456"',
        }
    },
    "time(6)": {
        "time'12:30:15.123456'": {
            f"time, {_TEXTS}": "12:30:15.123456",
            _JSON: '"12:30:15.123456"',
            "text[]": "{12:30:15.123456}",
        },
        "time'12:30:15'": {"time(0)": "12:30:15"},
    },
    "interval day to second": {
        "INTERVAL '-1 02:03:04.5' DAY TO SECOND": {
            # The same length: Spark's days have 24 hours.
            "interval": "-26:03:04.5",
            "interval[]": '{"-26:03:04.5"}',
            _JSON: "\"INTERVAL '-1 02:03:04.5' DAY TO SECOND\"",
        }
    },
    "interval year to month": {
        "INTERVAL '-1-2' YEAR TO MONTH": {
            "interval": "-14 mons",
            "interval[]": '{"-14 mons"}',
            _TEXTS: "-14 months",
            "text[]": '{"-14 months"}',
        }
    },
    "interval": {
        "make_interval(-1, 2, 3, 4, 5, -6, 7.000008)": {
            "interval": "-10 mons +25 days 04:54:07.000008",
            "interval[]": '{"-10 mons +25 days 04:54:07.000008"}',
            _TEXTS: "-10 months +25 days +4 hours +54 minutes +7.000008 seconds",
            "text[]": '{"-10 months +25 days +4 hours +54 minutes +7.000008 seconds"}',
        }
    },
    "void": {"NULL": {", ".join(COLUMNS): None}},
    "variant": {
        **_from_texts("cast({} AS variant)"),
        f"parse_json({_literal(_JSON_TEXT)})": _OF_JSON_TEXT,
        "cast(X'00FF' AS variant)": {"bytea": "\\x00ff"},
    },
    "geometry(4326)": {
        _GEOMETRY: {
            "bytea": f"\\x{_WKB}",
            _TEXTS: _WKB,
            "text[]": f"{{{_WKB}}}",
            "geometry": f"SRID=4326;{_WKB}",
        }
    },
    "geography(4326)": {
        f"st_geogfromwkb(X'{_WKB}')": {
            "bytea": f"\\x{_WKB}",
            _TEXTS: _WKB,
            "text[]": f"{{{_WKB}}}",
            "geometry": f"SRID=4326;{_WKB}",
        }
    },
    "array<int>": {
        "array(1, 7, 2)": {
            f"{_TEXTS}, {_JSON}, vector(3)": "[1,7,2]",
            f"{_ARRAYS_OF_NUMBERS}, text[]": "{1,7,2}",
            "timestamptz[]": '{"1970-01-01 00:00:01+00","1970-01-01 00:00:07+00","1970-01-01 00:00:02+00"}',
        },
    },
    "array<float>": {
        "array(0.1F, 7F, 2F)": {
            f"{_JSON}, vector(3)": "[0.1,7,2]",
            _TEXTS: "[0.1,7.0,2.0]",
            "numeric(12,2)[], real[]": "{0.1,7,2}",
            "text[]": "{0.1,7.0,2.0}",
        },
        "array(7F, NULL)": {"integer[]": "{7,NULL}"},
        "array(1.5F)": {"timestamptz[]": _each(_FRACTIONS)},
    },
    "array<string>": {
        "array('7', NULL)": {
            f"{_TEXTS}, {_JSON}": '["7",null]',
            f"{_ARRAYS_OF_NUMBERS}, text[], jsonb[]": "{7,NULL}",
        },
        **_elements("array({}, NULL)"),
    },
    "array<void>": {
        "array()": {
            f"{_TEXTS}, {_JSON}": "[]",
            f"{_ARRAYS_OF_NUMBERS}, text[], timestamptz[], interval[], uuid[], jsonb[]": "{}",
        }
    },
    "array<variant>": {
        "array(parse_json('7'), NULL)": {
            f"{_TEXTS}, {_JSON}": "[7,null]",
            f"{_ARRAYS_OF_NUMBERS}, text[], jsonb[]": "{7,NULL}",
        },
        **_elements("array(cast({} AS variant), NULL)"),
    },
    "array<struct<a:float>>": {
        "cast(array(named_struct('a', 0.1F), NULL) AS array<struct<a:float>>)": {
            f"{_TEXTS}, {_JSON}": '[{"a":0.1},null]',
            "text[], jsonb[]": '{"{\\"a\\":0.1}",NULL}',
        },
    },
    "map<string,float>": {"map('k', 0.1F)": _nested('{"k":0.1}')},
    "map<void,void>": {"map()": _nested("{}")},
    "map<string,interval>": {"map('k', make_interval(1))": _nested('{"k":"+1 years"}')},
    "struct<a:float,b:variant>": {"named_struct('a', 0.1F, 'b', parse_json('[0.5]'))": _nested('{"a":0.1,"b":[0.5]}')},
    "struct<p:geometry(4326),e:array<void>>": {
        f"named_struct('p', {_GEOMETRY}, 'e', array())": _nested(f'{{"p":"{_WKB}","e":[]}}')
    },
}
"""By source: samples in Spark's SQL, and what the columns then hold, as PostgreSQL's text; if the unit of a number
decides, one value for each expression. A column that is missing is to be changed."""


@dataclass(frozen=True)
class Pair:
    """A sample, a column, and the expressions that fit the one to the other, with the values that are then stored."""

    source: str
    sample: str
    column: Column
    expressions: tuple[str, ...]
    values: tuple[str | None, ...]


def pairs(name: Callable[[str], str]) -> Iterator[Pair]:
    """Yield each pair that is written.

    :param name: the column of a sample in the DataFrame, which the expressions use.
    """
    for source, samples in VALUES.items():
        for sample, expected in samples.items():
            for names, stored in expected.items():
                values: tuple[str | None, ...] = stored if isinstance(stored, tuple) else (stored,)
                for one in names.split(", "):
                    made = expressions(source, COLUMNS[one], name(sample)) or ()
                    yield Pair(source, sample, COLUMNS[one], made, values)


def expressions(source: str, column: Column, name: str = "x") -> tuple[str, ...] | None:
    """What is written to the column: the column of the DataFrame as it is, or made into another."""
    kind = SOURCES[source]
    if find_cast(kind, column):
        return (f'col("{name}")',)
    return None if lossless_type(column) else conversion(name, kind, column).expressions or None


_HEAD = """\
# Types

This page has the expression that converts each Spark type to each PostgreSQL type. If a column does not fit, nothing is
written, and the error has the expression. In a consumer, that is one of pyarrow.

`x` is a column of what the transform returns; the functions are `pyspark.sql.functions`. Dates and wall clock times
are those of `spark.sql.session.timeZone`. No value is rounded, cut or shifted to fit, except by a cast of yours.
`mood` is an enum, `pair` a composite type, and `geometry` PostGIS's. Other types, such as `tsvector`, take strings in
PostgreSQL's own form.

## Strings that PostgreSQL changes

Some strings are not checked: those for composite types, for range types of your own, and for types that hold floats,
such as `point` and `vector`. In these PostgreSQL rounds a number, drops the time of a date, or takes the session's
time zone, without an error.

In a string for an `interval`, `1.5 months` is `1 mon 15 days`. The string is refused if PostgreSQL would lose a part
(`0.3 years`, `1.5 us`) or read it by `IntervalStyle` (`-1 day 02:00`). A string for a range or multirange of dates or
times needs bounds that are empty, infinite, or written like `2024-07-01`, `2024-07-01 12:30:15.123456` (`tsrange`)
and `2024-07-01 12:30:15.123456+02` (`tstzrange`).

## A handler's schema

A [handler](handlers.md#the-function)'s schema is Spark's DDL text or a pyarrow schema, in Spark and in a consumer
alike. A `timestamp` needs a time zone; a `timestamp_ntz` must have none.

<!-- generated by make types; a test holds each line -->

| the schema's text | in pyarrow | column in PostgreSQL | a value |
|---|---|---|---|
| `boolean` | `pa.bool_()` | `boolean` | `True` |
| `tinyint`, `byte` | `pa.int8()` | `smallint` | `-7` |
| `smallint`, `short` | `pa.int16()` | `smallint` | `7` |
| `int`, `integer` | `pa.int32()` | `integer` | `7` |
| `bigint`, `long` | `pa.int64()` | `bigint` | `7` |
| `float`, `real` | `pa.float32()` | `real` | `0.1` |
| `double` | `pa.float64()` | `double precision` | `0.1` |
| `decimal(12,2)`, `numeric(12,2)` | `pa.decimal128(12, 2)` | `numeric`, `numeric(12,2)` | `Decimal("12.50")` |
| `string` | `pa.string()` | `text`, `varchar(70)`, `char(70)` | `"ana"` |
| `string` | `pa.string()` | `jsonb`, `json` | `json.dumps({"a": 1})` |
| `string` | `pa.string()` | `uuid` | `str(UUID(int=7))` |
| `binary` | `pa.binary()` | `bytea` | `b"ana"` |
| `date` | `pa.date32()` | `date` | `date(2026, 1, 2)` |
| `time` | `pa.time64("us")` | `time` | `time(12, 30)` |
| `timestamp` | `pa.timestamp("us", "UTC")` | `timestamptz` | `datetime(2026, 1, 2, tzinfo=UTC)` |
| `timestamp_ntz` | `pa.timestamp("us")` | `timestamp` | `datetime(2026, 1, 2)` |
| `interval day to second` | `pa.duration("us")` | `interval` | `timedelta(hours=5)` |
| `array<int>` | `pa.list_(pa.int32())` | `integer[]`, `jsonb` | `[1, None]` |
| `struct<n: int>` | `pa.struct([("n", pa.int32())])` | `jsonb` | `{"n": 1}` |
| `map<string,int>` | `pa.map_(pa.string(), pa.int32())` | `jsonb` | `{"a": 1}` |

<!-- end of generated -->

`decimal` alone is `decimal(10,0)`. For PostgreSQL's other types (`uuid`, `inet`, an enum), use `string`. A `float`
takes 0.1, but not 1/3. Give a column of `double precision` a `double`: from a `float` it gets 0.10000000149011612 for
0.1.

<!-- generated by make types: the pairs -->

"""


def text() -> str:
    """Return the page."""
    lines = [line for source in SOURCES for line in _section(source)]
    return _HEAD + "\n".join([*lines, _ARROW, *_arrow_types(), "", "<!-- end of generated -->", ""])


_ARROW = """\
<!-- end of generated -->

## Arrow's other types

A consumer's transform and a `Handler`'s schema may have these types too, also inside lists, structs and maps. They
are written as the type beside them. Types that are not on this page are refused before the first record.

Into `json` and `jsonb`, Arrow's JSON goes as it is, and a UUID as its text. Inside another type of a handler's schema
both are refused: use `string`.

<!-- generated: Arrow's types -->

| type | from a transform | from a handler |
|---|---|---|"""


def _arrow_types() -> Iterator[str]:
    for kind in dict.fromkeys(case.kind for case in CASES if case.kind is not None):
        if not plain(kind) == held(kind) == kind:
            forms = (f"`{one}`" if one else f"refused; use {replacement(kind)}" for one in (plain(kind), held(kind)))
            yield f"| `{kind}` | {' | '.join(forms)} |"


def _section(source: str) -> Iterator[str]:
    lines: dict[str, list[str]] = {}
    for name, column in COLUMNS.items():
        made, instead = expressions(source, column), lossless_type(column)
        if find_cast(SOURCES[source], column):
            line = "as it is"
        elif made:
            line = ", or ".join(f"`{one}`" for one in made).replace("|", "\\|")
        elif instead:
            line = f"change the column to `{instead}`"
        else:
            line = f"change the column to `{conversion('x', SOURCES[source], column).instead}`"
        lines.setdefault(line, []).append(name)
    yield f"## {source}\n"
    yield "| column | in the transform |"
    yield "|---|---|"
    for line, names in sorted(lines.items(), key=lambda item: _is_of_others(*item)):
        told = "any other" if _is_of_others(line, names) else ", ".join(f"`{name}`" for name in names)
        yield f"| {told} | {line} |"
    yield ""


def _is_of_others(line: str, names: Sequence[str]) -> bool:
    return line.startswith("change") and len(names) > 3


if __name__ == "__main__":
    PAGE.write_text(text(), encoding="utf-8")

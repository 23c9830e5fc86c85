"""The next step for a column that does not fit, in pyarrow's words and in those of a handler's schema: each works."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any, Final, cast

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from offsetstore import Append, Handler, Upsert
from offsetstore.consumer.delivery import ConsumerOutputs as ConsumersOutputs
from offsetstore.errors import ColumnMismatch
from offsetstore.processing.handled_rows import columns_of, schema_of
from offsetstore.processing.outputs import CheckedOutputs
from offsetstore.writers.arrow.casts import find_cast, lossless_type
from offsetstore.writers.arrow.kinds import SparkType
from offsetstore.writers.into_table import match_columns
from offsetstore.writers.table.conversions import conversion
from tests.support.type_pairs import COLUMNS, SOURCES

WALL: Final = dt.datetime(2024, 7, 1, 12, 30, 15, 123456)  # noqa: DTZ001 - a wall clock's time has no zone
UTC: Final = WALL.replace(tzinfo=dt.UTC)
DAY: Final = dt.date(2024, 7, 1)
START: Final = dt.datetime(1970, 1, 2, 0, 0, 1)  # noqa: DTZ001 - the same
TEXTS: Final = ("text", "varchar(70)", "char(70)")

# By source, and by column: a value, and what is written; or a list of these, one for each expression.
VALUES: Final[dict[str, dict[str, Any]]] = {
    "boolean": {
        **dict.fromkeys(("smallint", "integer", "bigint", "real", "double precision"), (True, 1)),
        **dict.fromkeys(("numeric", "numeric(12,2)", "numeric(50,2)"), (True, 1)),
        **dict.fromkeys(TEXTS, (True, "true")),
    },
    "tinyint": {
        "boolean": (1, True),
        **dict.fromkeys(TEXTS, (-1, "-1")),
        "date": (1, dt.date(1970, 1, 1)),
        "timestamp": (1, START.replace(day=1)),
        "timestamptz": (1, START.replace(day=1, tzinfo=dt.UTC)),
    },
    "int": {
        "boolean": (0, False),
        **dict.fromkeys(TEXTS, (7, "7")),
        "date": (86_401, START.date()),
        "timestamp": (86_401, START),
        "timestamptz": (86_401, START.replace(tzinfo=dt.UTC)),
    },
    "bigint": {
        "boolean": (1, True),
        **dict.fromkeys(TEXTS, (7, "7")),
        "date": [(86_401 * unit, START.date()) for unit in (1, 10**3, 10**6)],
        "timestamp": [(86_401 * unit, START) for unit in (1, 10**3, 10**6)],
        "timestamptz": [(86_401 * unit, START.replace(tzinfo=dt.UTC)) for unit in (1, 10**3, 10**6)],
    },
    "double": {
        "boolean": (1.5, True),
        "real": (1.5, 1.5),
        **dict.fromkeys(("numeric(12,2)", "numeric(50,2)"), (0.1, Decimal("0.10"))),
        **dict.fromkeys(TEXTS, (0.1, "0.1")),
    },
    "decimal(12,2)": {
        **dict.fromkeys(("real", "double precision"), (Decimal("1.50"), 1.5)),
        **dict.fromkeys(TEXTS, (Decimal("1.50"), "1.50")),
    },
    "string": {
        "boolean": ("true", True),
        **dict.fromkeys(("smallint", "integer", "bigint"), ("-7", -7)),
        **dict.fromkeys(("real", "double precision"), ("1.5", 1.5)),
        **dict.fromkeys(("numeric", "numeric(12,2)", "numeric(50,2)"), ("1.25", Decimal("1.25"))),
        "bytea": ("\u00fc", b"\xc3\xbc"),
        "date": ("2024-07-01", DAY),
        "timestamp": ("2024-07-01 12:30:15.123456", WALL),
        "timestamptz": [("2024-07-01T14:30:15.123456+02:00", UTC), ("2024-07-01 12:30:15.123456", UTC)],
    },
    "date": {
        **dict.fromkeys(TEXTS, (DAY, "2024-07-01")),
        "timestamp": (DAY, WALL.replace(hour=0, minute=0, second=0, microsecond=0)),
        "timestamptz": (DAY, UTC.replace(hour=0, minute=0, second=0, microsecond=0)),
    },
    "timestamp": {
        "bigint": (UTC, 1_719_837_015_123_456),
        **dict.fromkeys(TEXTS, (UTC, "2024-07-01 12:30:15.123456Z")),
        "date": (UTC, DAY),
        "timestamp": (UTC, WALL),
        "time": (UTC, WALL.time()),
        "time(0)": (UTC.replace(microsecond=0), WALL.time().replace(microsecond=0)),
    },
    "timestamp_ntz": {
        **dict.fromkeys(TEXTS, (WALL, "2024-07-01 12:30:15.123456")),
        "date": (WALL, DAY),
        "timestamptz": (WALL, UTC),
        "time": (WALL, WALL.time()),
        "time(0)": (WALL.replace(microsecond=0), WALL.time().replace(microsecond=0)),
    },
    "time(6)": dict.fromkeys(TEXTS, (WALL.time(), "12:30:15.123456000")),
    "array<int>": {"text[]": ([1, None], ["1", None])},
    "array<float>": {"numeric(12,2)[]": ([1.5], [Decimal("1.50")]), "text[]": ([1.5], ["1.5"])},
    "array<string>": {
        "integer[]": (["7", None], [7, None]),
        "real[]": (["1.5"], [1.5]),
        "numeric(12,2)[]": (["1.25"], [Decimal("1.25")]),
        "timestamptz[]": (["2024-07-01T12:30:15.123456Z"], [UTC]),
    },
}
VALUES["smallint"], VALUES["float"] = VALUES["tinyint"], {**VALUES["double"], "numeric(12,2)": (1.5, Decimal("1.50"))}
VALUES["float"] |= {"numeric(50,2)": (1.5, Decimal("1.50")), **dict.fromkeys(TEXTS, (1.5, "1.5"))}
del VALUES["float"]["real"]
IN_ZONE: Final = 'Convert it in the transform, with pyarrow.compute as pc: pc.assume_timezone(batch["x"], "UTC")'
KINDS: Final = {name: kind for name, kind in SOURCES.items() if not isinstance(kind, SparkType)}


def unfit(source: str) -> list[str]:
    return [name for name, one in COLUMNS.items() if not find_cast(SOURCES[source], one) and not lossless_type(one)]


def applied(expression: str, kind: Any, value: Any) -> Any:
    array = cast("Any", pa).array([value, None], kind)
    batch = pa.record_batch({"a b": array})
    return eval(expression, {"pa": pa, "pc": pc, "batch": batch})  # noqa: S307 - what the error tells to write


@pytest.mark.behaviour("SINK-22")
@pytest.mark.parametrize("source", [name for name in KINDS if name != "binary"])
def test_each_expression_of_pyarrow_makes_the_value_that_is_written(source: str) -> None:
    found: dict[str, tuple[str, ...]] = {}
    for name in unfit(source):
        step = conversion("a b", SOURCES[source], COLUMNS[name], "pyarrow")
        if step.expressions:
            found[name] = step.expressions
        else:
            assert str(step) == f"Change a b to {step.instead} in the table."
    expected = VALUES.get(source, {})
    assert found.keys() == expected.keys()
    for name, expressions in found.items():
        pairs = expected[name] if isinstance(expected[name], list) else [expected[name]]
        for expression, (value, written) in zip(expressions, pairs, strict=True):
            made = applied(expression, SOURCES[source], value)
            cast = find_cast(made.type, COLUMNS[name])
            assert cast is not None, expression
            assert cast.convert(made).to_pylist() == [written, None], expression


@pytest.mark.behaviour("SINK-22")
@pytest.mark.parametrize("name", unfit("binary"))
def test_bytes_are_made_a_text_which_then_fits_or_is_converted_as_one(name: str) -> None:
    found = conversion("a b", pa.binary(), COLUMNS[name], "pyarrow").expressions
    text = 'batch["a b"].cast(pa.string())'
    of_text = conversion("a b", pa.string(), COLUMNS[name], "pyarrow").expressions
    fits = find_cast(pa.string(), COLUMNS[name])
    assert found == ((text,) if fits else tuple(one.replace('batch["a b"]', text) for one in of_text))
    if name in {"text", "numeric(12,2)"}:
        assert applied(found[0], pa.binary(), b"1.25").to_pylist() == ["1.25" if fits else Decimal("1.25"), None]


@pytest.mark.behaviour("SINK-22", "HAND-10")
def test_the_type_for_a_handler_s_schema_fits_its_column() -> None:
    for source in KINDS:
        for name in unfit(source):
            [declared] = conversion("x", SOURCES[source], COLUMNS[name], "schema").expressions
            [kind] = columns_of(schema_of(f"x {declared}")).types
            assert find_cast(kind, COLUMNS[name]), f"{name}: {declared}"


def mismatch(words: Any, kind: Any, column: str) -> str:
    with pytest.raises(ColumnMismatch) as refused:
        match_columns(pa.schema([("x", kind)]), {"x": COLUMNS[column]}, Append("t").table, words)
    return refused.value.next_step


@pytest.mark.behaviour("SINK-22", "DX-1")
@pytest.mark.parametrize(
    ("words", "kind", "column", "told"),
    [
        ("spark", pa.string(), "timestamptz", 'Convert it in the transform; in Spark: col("x").cast("timestamp").'),
        (
            "pyarrow",
            pa.string(),
            "numeric(12,2)",
            'Convert it in the transform, with pyarrow: batch["x"].cast(pa.decimal128(12, 2)).',
        ),
        ("pyarrow", pa.timestamp("us"), "timestamptz", f"{IN_ZONE}, with the zone of these times in place of UTC."),
        ("pyarrow", pa.duration("us"), "integer", "Change x to interval in the table."),
        ("schema", pa.string(), "timestamptz", 'Write "x timestamp" in the handler\'s schema, and return such values.'),
        ("schema", pa.int64(), "real[]", 'Write "x array<float>" in the handler\'s schema, and return such values.'),
        ("schema", pa.int64(), "uuid", 'Write "x string" in the handler\'s schema, and return such values.'),
    ],
)
def test_it_is_told_in_the_words_of_what_makes_the_rows(words: Any, kind: Any, column: str, told: str) -> None:
    assert mismatch(words, kind, column) == told


@pytest.mark.behaviour("SINK-22")
def test_who_makes_the_rows_sets_the_words_of_its_own_copies() -> None:
    given = {"a": Append("a"), "b": Upsert("b", key=["x"])}
    handler = Handler(lambda _: None, {"a": "x long", "b": "x long"})

    def transform(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch

    def words(outputs: CheckedOutputs) -> set[str]:
        return {one.words for one in outputs.writers.values() if isinstance(one, (Append, Upsert))}

    assert words(ConsumersOutputs(transform, given)) == {"pyarrow"}
    assert words(ConsumersOutputs(handler, given)) == {"schema"}
    assert words(CheckedOutputs(transform, given, takes="DataFrame", propagate=())) == {"spark"}
    assert {one.words for one in given.values()} == {"spark"}

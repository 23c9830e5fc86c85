"""Whatever bits a batch has for values, they arrive as they are, or are refused with table and column."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from offsetstore.errors import RowsRefused
from offsetstore.local.postgres import PostgresServer
from offsetstore.writers import Append
from tests.integration.writers.writing import Database, batch, new_database
from tests.support.shown import shown
from tests.support.work import work_on

LONG, INT = (-(2**63), 2**63 - 1), (-(2**31), 2**31 - 1)
TO_2000 = 946_684_800_000_000
MICROSECONDS = "(extract(epoch from value) * 1000000)::numeric(30)::text"

# As PostgreSQL has them; near the ends, its `extract` rounds.
STORED = (
    "CASE WHEN isfinite(value) THEN"
    " (('x' || encode({}_send(value), 'hex'))::bit(64)::bigint::numeric + 946684800000000)::text"
    " ELSE 'infinite' END"
)
WALL, INSTANT = STORED.format("timestamp"), STORED.format("timestamptz")

# Target, Arrow's type, and what of the target is the number that Arrow holds.
NUMBERS: list[tuple[str, pa.DataType, str]] = [
    ("timestamp", pa.timestamp("us"), WALL),
    ("timestamptz", pa.timestamp("us", "Asia/Kolkata"), INSTANT),
    ("timestamp", pa.timestamp("s"), "(extract(epoch from value))::numeric(30)::text"),
    ("timestamptz(3)", pa.timestamp("ms", "UTC"), "(extract(epoch from value) * 1000)::numeric(30)::text"),
    ("timestamp", pa.timestamp("ns"), "(extract(epoch from value) * 1000000000)::numeric(30)::text"),
    ("time", pa.time64("us"), MICROSECONDS),
    ("time", pa.time32("ms"), "(extract(epoch from value) * 1000)::numeric(30)::text"),
    ("interval", pa.duration("us"), MICROSECONDS),
    ("date", pa.date32(), "(extract(julian from value) - 2440588)::numeric(30)::text"),
    ("date", pa.date64(), "((extract(julian from value) - 2440588) * 86400000)::numeric(30)::text"),
    ("timestamp[]", pa.list_(pa.timestamp("us")), WALL.replace("value", "value[1]")),
    ("date[]", pa.list_(pa.date32()), "(extract(julian from value[1]) - 2440588)::numeric(30)::text"),
    ("timestamptz[]", pa.list_(pa.timestamp("us", "UTC")), INSTANT.replace("value", "value[1]")),
    ("time[]", pa.list_(pa.time64("us")), MICROSECONDS.replace("value", "value[1]")),
]


@pytest.fixture(scope="module")
def database(offsetstore_postgres: PostgresServer) -> Iterator[Database]:
    with new_database(offsetstore_postgres) as made:
        yield made


def is_short(kind: pa.DataType) -> bool:
    types = pa.types
    return types.is_date32(kind) or types.is_time32(kind)


def of_number(number: int, kind: pa.DataType) -> pa.Array[Any]:
    """One value, by its bits: Arrow takes any number for a moment, as it may come from another program."""
    if pa.types.is_list(kind):
        inner = of_number(number, cast("Any", kind).value_type)
        return cast("Any", pa).ListArray.from_arrays(pa.array([0, 1], pa.int32()), inner)
    return pa.array([number], pa.int32() if is_short(kind) else pa.int64()).view(kind)


def write(database: Database, values: pa.Array[Any], target: str, form: str) -> bool:
    """Write them; ``False`` where they are refused, for which column is told and nothing of a value."""
    database.run(f"DROP TABLE IF EXISTS t; CREATE TABLE t (value {target}, address inet)")
    # An inet goes in its text form, and so does then the whole COPY.
    columns = {"value": values, **({"address": ["10.0.0.1"] * len(values)} if form == "text" else {})}
    refused: Exception | None = None
    try:
        database.write(Append("t"), batch(columns))
    except Exception as error:  # noqa: BLE001 - it is looked at below
        refused = error
    if refused is None:
        return True
    assert isinstance(refused, RowsRefused)
    assert refused.column == "value"
    assert refused.table in {"t", "public.t"}
    assert "canary" not in shown(refused)
    return False


@pytest.mark.behaviour("SINK-21")
@pytest.mark.parametrize("form", ["binary", "text"])
@pytest.mark.parametrize("case", NUMBERS, ids=lambda case: f"{case[1]} to {case[0]}")
@settings(max_examples=3)
@example(number=LONG[0])
@example(number=LONG[1])
@example(number=LONG[0] + TO_2000)
@example(number=LONG[1] - TO_2000)
@example(number=-1)
@example(number=86_400_000_000)
@example(number=INT[0])
@example(number=INT[1])
@example(number=INT[0] + 10_957)
@example(number=-210_866_803_200_000_001)
@example(number=-2_440_589)
@example(number=2_145_042_906)
@given(number=st.one_of(st.integers(*LONG), st.integers(*INT), st.integers(-(10**16), 10**16)))
def test_a_moment_of_any_bits_arrives_or_is_refused(
    database: Database, case: tuple[str, pa.DataType, str], form: str, number: int
) -> None:
    target, kind, shown_as = case
    inner = cast("Any", kind).value_type if pa.types.is_list(kind) else kind
    if is_short(inner):
        number = (number - INT[0]) % 2**32 + INT[0]
    if write(database, of_number(number, kind), target, form):
        assert database.rows(f"SELECT {shown_as} FROM t") == [(str(number),)]


@pytest.mark.behaviour("SINK-21")
@pytest.mark.parametrize("form", ["binary", "text"])
@pytest.mark.parametrize("target", ["text", "varchar(9)", "char(9)", "json", "jsonb", "uuid", "inet", "text[]"])
@settings(max_examples=3)
@example(bits=b"canary\xff")
@example(bits=b"\xed\xa0\x80")
@example(bits=b"canary\0")
@example(bits=b'"\\u0000canary"')
@example(bits=b"")
@given(bits=st.binary(max_size=12))
def test_a_text_of_any_bytes_arrives_or_is_refused(database: Database, target: str, form: str, bits: bytes) -> None:
    values: Any = pa.array([bits], pa.binary()).view(pa.string())
    if target == "text[]":
        values = cast("Any", pa).ListArray.from_arrays(pa.array([0, 1], pa.int32()), values)
    if write(database, values, target, form) and target not in {"jsonb", "uuid", "inet"}:
        stored = "value[1]" if target == "text[]" else "value"
        [(found,)] = database.rows(f"SELECT convert_to({stored}::text, 'UTF8') FROM t")
        assert found == (bits.rstrip(b" ") if target == "char(9)" else bits)


NESTED: list[tuple[str, pa.DataType, Any]] = [
    ("jsonb", pa.struct([("at", pa.timestamp("us", "UTC"))]), LONG[1]),
    ("jsonb", pa.struct([("at", pa.timestamp("us", "UTC"))]), LONG[0]),
    ("json", pa.struct([("at", pa.date32())]), INT[1]),
    ("json", pa.struct([("at", pa.time64("us"))]), -1),
    ("jsonb", pa.struct([("at", pa.time64("us"))]), 86_400_000_000),
    ("jsonb", pa.struct([("at", pa.duration("s"))]), LONG[1]),
    ("jsonb", pa.struct([("at", pa.timestamp("us", "No/Such_Zone"))]), 1),
]


@pytest.mark.behaviour("SINK-21")
@pytest.mark.parametrize("form", ["binary", "text"])
@pytest.mark.parametrize(("target", "kind", "number"), NESTED, ids=str)
def test_what_json_can_t_hold_is_refused(database: Database, target: str, kind: Any, number: int, form: str) -> None:
    inner = of_number(number, kind.field("at").type)
    as_struct = cast("Any", pa).StructArray.from_arrays([inner], names=["at"])
    assert not write(database, as_struct, target, form)
    listed = cast("Any", pa).ListArray.from_arrays(pa.array([0, 1], pa.int32()), inner)
    assert not write(database, listed, target, form)
    offsets = pa.array([0, 1], pa.int32())
    assert not write(database, cast("Any", pa).MapArray.from_arrays(offsets, pa.array(["k"]), inner), target, form)


@pytest.mark.behaviour("SINK-21")
@settings(max_examples=30)
@example(value=[None])
@example(value=[[], []])
@example(value=[[1, 2], []])
@example(value=[[1], None])
@given(value=st.lists(st.none() | st.lists(st.none() | st.integers(*INT), max_size=3), max_size=3))
def test_an_array_of_arrays_arrives_if_postgresql_has_such_and_is_refused_if_not(
    database: Database, value: list[list[int | None] | None]
) -> None:
    is_one = len({len(one or ()) for one in value}) < 2 and all(value)
    assert write(database, pa.array([value], pa.list_(pa.list_(pa.int32()))), "integer[]", "text") is is_one
    if is_one:
        assert database.rows("SELECT value FROM t") == [(value,)]


@pytest.mark.behaviour("SINK-21")
def test_a_letter_that_the_connection_s_encoding_lacks_is_refused(database: Database) -> None:
    rows = batch({"id": [1], "value": ["canary 🛬"]})
    database.run("DROP TABLE IF EXISTS t; CREATE TABLE t (id bigint, value text)")
    with database.engine.connect() as connection:
        connection.exec_driver_sql("SET client_encoding TO latin1")
        with pytest.raises(Exception) as caught:  # noqa: PT011 - it is looked at below
            Append("t").write(work_on(connection), [rows])
        connection.invalidate()
    assert isinstance(caught.value, RowsRefused)
    assert (caught.value.table, caught.value.column) == ("t", "value")
    assert "canary" not in shown(caught.value)

"""What Append writes is what it was given, to the last digit."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offsetstore.errors import RowsRefused
from offsetstore.local.postgres.server import PostgresServer
from offsetstore.writers import Append
from tests.integration.writers.writing import Database, column, new_database

text = st.text(st.characters(codec="utf-8", exclude_characters="\0"))
wide = st.integers(-(10**38) + 1, 10**38 - 1)
CASES: list[tuple[str, pa.DataType, st.SearchStrategy[Any]]] = [
    ("numeric", pa.int64(), st.integers(-(2**63), 2**63 - 1).map(Decimal)),
    ("numeric", pa.decimal128(38, 0), wide.map(Decimal)),
    ("numeric", pa.decimal128(38, 18), wide.map(lambda digits: Decimal(f"{digits}e-18"))),
    ("numeric", pa.decimal128(38, 38), wide.map(lambda digits: Decimal(f"{digits}e-38"))),
    ("double precision", pa.float64(), st.floats(allow_nan=False)),
    ("real", pa.float32(), st.floats(allow_nan=False, width=32, allow_subnormal=False)),
    ("timestamp", pa.timestamp("us"), st.datetimes()),
    ("timestamptz", pa.timestamp("us", "Asia/Kolkata"), st.datetimes(timezones=st.just(dt.UTC))),
    ("date", pa.date32(), st.dates()),
    ("text", pa.string(), text),
    ("text[]", pa.list_(pa.string()), st.lists(st.none() | text)),
    ("varchar[]", pa.list_(pa.string()), st.lists(st.none() | text)),
    ("bytea", pa.binary(), st.binary()),
    ("uuid", pa.string(), st.uuids()),
]


micros = st.integers(0, 86_399_999_999) | st.integers(0, 86_399_999).map(lambda millis: millis * 1000)
MOMENTS: list[tuple[str, pa.DataType]] = [
    ("time", pa.time64("us")),
    ("timestamp", pa.timestamp("us")),
    ("timestamptz", pa.timestamp("us", "Asia/Kolkata")),
    ("interval", pa.duration("us")),
]


@pytest.fixture(scope="module")
def table(offsetstore_postgres: PostgresServer) -> Iterator[Database]:
    with new_database(offsetstore_postgres) as made:
        yield made


@pytest.mark.behaviour("SINK-2")
@pytest.mark.parametrize(("target", "arrow", "values"), CASES, ids=lambda value: str(value)[:30])
def test_any_value_comes_back(table: Database, target: str, arrow: pa.DataType, values: st.SearchStrategy[Any]) -> None:
    table.run(f"DROP TABLE IF EXISTS t; CREATE TABLE t (value {target})")

    @settings(max_examples=40, deadline=None)
    @given(st.lists(st.none() | values, min_size=1, max_size=20), st.integers(0, 3))
    def holds(written: list[Any], start: int) -> None:
        table.run("TRUNCATE t")
        plain = [str(value) if target == "uuid" and value is not None else value for value in written]
        table.write(Append("t"), column(plain, arrow).slice(start))
        shown = "value::double precision" if target == "real" else "value"  # a real's text has the fewest digits
        assert [value for (value,) in table.rows(f"SELECT {shown} FROM t ORDER BY ctid")] == written[start:]

    holds()


@pytest.mark.behaviour("SINK-2")
@pytest.mark.parametrize(("target", "arrow"), MOMENTS, ids=str)
@pytest.mark.parametrize("digits", range(7))
def test_a_time_comes_back_or_is_refused_where_it_has_more_digits_than_the_column(
    table: Database, target: str, arrow: pa.DataType, digits: int
) -> None:
    table.run(f"DROP TABLE IF EXISTS t; CREATE TABLE t (value {target}({digits}))")

    @settings(max_examples=15, deadline=None)
    @given(st.lists(st.none() | micros, min_size=1, max_size=5))
    def holds(written: list[int | None]) -> None:
        table.run("TRUNCATE t")
        rows = column(written, arrow)
        if any(value is not None and value % 10 ** (6 - digits) for value in written):
            assert table.refusal(RowsRefused, Append("t"), rows).column == "value"
        else:
            table.write(Append("t"), rows)
            assert [value for (value,) in table.rows("SELECT value FROM t ORDER BY ctid")] == rows[0].to_pylist()

    holds()

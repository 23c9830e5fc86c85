"""What Append writes is what it was given, to the last digit."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from contextlib import suppress
from decimal import Decimal
from fractions import Fraction
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offsetstore.errors import RowsRefused
from offsetstore.local.postgres import PostgresServer
from offsetstore.writers import Append
from offsetstore.writers.arrow.values import LOSSY_TEXTS
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

    @settings(max_examples=25, deadline=None)
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

    @settings(max_examples=10, deadline=None)
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


SECOND = 1_000_000
DAY = 86_400 * SECOND
MONTH = 30 * DAY
UNITS = {
    "us": 1, "microseconds": 1, "ms": 1000, "msec": 1000, "s": SECOND, "seconds": SECOND, "m": 60 * SECOND,
    "mins": 60 * SECOND, "h": 3600 * SECOND, "hours": 3600 * SECOND, "d": DAY, "Days": DAY, "w": 7 * DAY, "mon": MONTH,
    "months": MONTH, "y": 12 * MONTH, "years": 12 * MONTH, "decade": 120 * MONTH, "c": 1200 * MONTH,
}  # fmt: skip
ISO = {"Y": 12 * MONTH, "M": MONTH, "W": 7 * DAY, "D": DAY, "TH": 3600 * SECOND, "TM": 60 * SECOND, "TS": SECOND}
Part = tuple[str, Fraction]

signs = st.sampled_from(["", "", "", "-", "+"])
numbers = st.sampled_from(["0", "1", "2", "1.5", ".5", "0.3", "3.000", "1.2345", "0.123456", "0.1234567", "0.0000001"])


def signed(sign: str, text: str, micros: Fraction) -> Part:
    return f"{sign}{text}", -micros if sign == "-" else micros


def counted(sign: str, number: str, blank: str, unit: str) -> Part:
    return signed(sign, f"{number}{blank}{unit}", Fraction(number) * UNITS[unit])


def clock(sign: str, hours: int, minutes: int, seconds: str) -> Part:
    micros = Fraction(hours * 3600 + minutes * 60) + Fraction(seconds)
    return signed(sign, f"{hours}:{minutes:02}:{seconds}", micros * SECOND)


def years(sign: str, count: int, months: int) -> Part:
    return signed(sign, f"{count}-{months}", Fraction((count * 12 + months) * MONTH))


def in_iso(unit: str, sign: str, number: str) -> Part:
    return signed(sign, f"{number}{unit[-1]}", Fraction(number) * ISO[unit])


def joined(blank: str, ago: str, parts: list[Part]) -> Part:
    total = sum((micros for _, micros in parts), Fraction(0))
    return blank.join(text for text, _ in parts) + ago, -total if ago else total


def iso(parts: dict[str, Part]) -> Part:
    days, times = ("".join(parts[unit][0] for unit in parts if unit.startswith("T") == is_time) for is_time in (0, 1))
    return f"P{days}T{times}" if times else f"P{days}", sum((micros for _, micros in parts.values()), Fraction(0))


part = (
    st.builds(counted, signs, numbers, st.sampled_from(["", " "]), st.sampled_from(sorted(UNITS)))
    | st.builds(clock, signs, st.integers(0, 30), st.integers(0, 59), st.sampled_from(["00", "09.5", "59.1234567"]))
    | st.builds(years, signs, st.integers(0, 9), st.integers(0, 11))
)
intervals = st.builds(
    joined, st.sampled_from([" ", " ", ", "]), st.sampled_from(["", "", " ago"]), st.lists(part, min_size=1, max_size=3)
) | st.fixed_dictionaries({}, optional={unit: st.builds(in_iso, st.just(unit), signs, numbers) for unit in ISO}).map(
    iso
)


@pytest.mark.behaviour("SINK-22")
def test_a_text_that_is_taken_for_an_interval_is_that_length_in_each_style(table: Database) -> None:
    """Months have 30 days and days 24 hours, as PostgreSQL has them where it divides one."""
    length = (
        f"extract(year FROM i) * {12 * MONTH} + extract(month FROM i) * {MONTH} + extract(day FROM i) * {DAY} + "
        f"extract(hour FROM i) * {3600 * SECOND} + extract(minute FROM i) * {60 * SECOND} + "
        "extract(microseconds FROM i)"
    )
    taken: set[str] = set()

    @settings(max_examples=200, deadline=None)
    @given(intervals)
    def holds(interval: Part) -> None:
        text, micros = interval
        if any(check.rows(pa.array([text])) for check in LOSSY_TEXTS["interval"]):
            return
        for style in ("postgres", "sql_standard"):
            connection.rollback()
            connection.execute(f"SET LOCAL IntervalStyle TO {style}")
            with suppress(psycopg.DataError):  # PostgreSQL refuses more: one unit twice
                stored = connection.execute(f"SELECT {length} FROM (SELECT %s::interval AS i) AS t", (text,)).fetchone()
                assert stored == (micros,), style
                taken.add(text)

    with table.engine.connect() as pooled:
        connection: Any = pooled.connection.driver_connection
        holds()
    assert len(taken) > 50

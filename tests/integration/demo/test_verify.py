"""The demo's check: it finds what is wrong, be it one row in two thousand."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from offsetstore.demo.flights import Ledger, read_flights
from offsetstore.demo.tables import ADDED, COLUMNS, OURS, WORST, Findings, verify
from offsetstore.postgres.url import make_engine

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Engine

FLIGHTS = 2000


@pytest.fixture
def engine(offsetstore_empty_database: str) -> Iterator[Engine]:
    engine = make_engine(offsetstore_empty_database)
    yield engine
    engine.dispose()


@pytest.fixture
def ledger(engine: Engine) -> Ledger:
    """Of flights that have all landed, once, with their sums."""
    ledger = Ledger()
    flights = list(ledger.entering(read_flights(FLIGHTS)))
    delays = [
        (*key, *(getattr(found, name) for name in (*ADDED, WORST))) for key, found in sorted(ledger.delays.items())
    ]
    OURS.create(engine)
    with engine.begin() as connection:
        connection.exec_driver_sql(
            f"INSERT INTO flights VALUES ({', '.join(['%s'] * len(COLUMNS))})",
            [tuple(flight[name] for name in COLUMNS) for flight in flights],
        )
        connection.exec_driver_sql("INSERT INTO carrier_delays VALUES (%s, %s, %s, %s, %s, %s, %s, %s)", delays)
    return ledger


def planted(engine: Engine, statement: str) -> None:
    with engine.begin() as connection:
        assert connection.exec_driver_sql(statement).rowcount == 1


def test_tables_that_are_right_pass(engine: Engine, offsetstore_empty_database: str, ledger: Ledger) -> None:
    findings = verify(offsetstore_empty_database, OURS, ledger)
    assert findings == Findings(stored=FLIGHTS, missing=0, duplicated=0, wrong_aggregates=0)
    assert findings.exact


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        pytest.param(
            "INSERT INTO flights SELECT * FROM flights WHERE flight_id = 77",
            Findings(FLIGHTS + 1, 0, 1, 0),
            id="a flight that is there twice",
        ),
        pytest.param(
            "DELETE FROM flights WHERE flight_id = 77", Findings(FLIGHTS - 1, 1, 0, 0), id="a flight that is gone"
        ),
        pytest.param(
            "UPDATE flights SET flight_id = 78 WHERE flight_id = 77",
            Findings(FLIGHTS, 1, 1, 0),
            id="one gone and another twice, so that the count is right",
        ),
        pytest.param(
            "UPDATE flights SET flight_id = NULL WHERE flight_id = 77",
            Findings(FLIGHTS, 1, 1, 0),
            id="a row that is no flight of the CSV",
        ),
        *(
            pytest.param(
                f"UPDATE carrier_delays SET {name} = {name} + 1 WHERE carrier = 'UA'",
                Findings(FLIGHTS, 0, 0, 1),
                id=f"a sum that is off by one: {name}",
            )
            for name in (*ADDED, WORST)
        ),
        pytest.param(
            "DELETE FROM carrier_delays WHERE carrier = 'UA'", Findings(FLIGHTS, 0, 0, 1), id="a sum that is gone"
        ),
        pytest.param(
            "INSERT INTO carrier_delays VALUES ('UA', 2014, 1, 1, 0, 0, 0, 0)",
            Findings(FLIGHTS, 0, 0, 1),
            id="a sum of nothing",
        ),
    ],
)
def test_what_is_planted_is_found(
    engine: Engine, offsetstore_empty_database: str, ledger: Ledger, statement: str, expected: Findings
) -> None:
    planted(engine, statement)
    findings = verify(offsetstore_empty_database, OURS, ledger)
    assert findings == expected
    assert not findings.exact

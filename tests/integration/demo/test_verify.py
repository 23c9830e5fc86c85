"""The demo's check: it finds what is wrong, be it one row in two thousand."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeAlias

from sqlalchemy import Engine

from offsetstore.demo.flights import GROUP, KINDS, TOPIC, Flight, Ledger, read_flights, records_of
from offsetstore.demo.tables import ADDED, COLUMNS, OURS, WORST, Findings, verify

FLIGHTS = 600


def land(engine: Engine, flights: list[Flight], ledger: Ledger) -> None:
    """Write what the job must write."""
    delays = [
        (*key, *(getattr(found, name) for name in (*ADDED, WORST))) for key, found in sorted(ledger.delays.items())
    ]
    with engine.begin() as connection:
        OURS.create(connection)
        connection.exec_driver_sql(
            f"INSERT INTO flights VALUES ({', '.join(['%s'] * len(COLUMNS))})",
            [tuple(flight[name] for name in COLUMNS) for flight in flights],
        )
        connection.exec_driver_sql("INSERT INTO carrier_delays VALUES (%s, %s, %s, %s, %s, %s, %s, %s)", delays)


RIGHT = Findings(stored=FLIGHTS, missing=0, duplicated=0, wrong_aggregates=0)
Cases: TypeAlias = list[tuple[str, dict[str, int]]]


def expect(engine: Engine, url: str, ledger: Ledger, right: Findings, cases: Cases) -> None:
    """Tables that are right pass; then each statement makes one row wrong, and is undone."""
    assert verify(url, OURS, ledger) == right
    assert right.exact
    tables = ("flights", "carrier_delays", "dead_letters")
    with engine.begin() as connection:
        for table in tables:
            connection.exec_driver_sql(f"CREATE TABLE right_{table} AS TABLE {table}")
    for statement, wrong in cases:
        with engine.begin() as connection:
            assert connection.exec_driver_sql(statement).rowcount == 1
        findings = verify(url, OURS, ledger)
        assert findings == replace(right, **wrong), statement
        assert not findings.exact
        with engine.begin() as connection:
            for table in tables:
                connection.exec_driver_sql(f"DELETE FROM {table}")
                connection.exec_driver_sql(f"INSERT INTO {table} TABLE right_{table}")


def test_what_is_planted_is_found(engine: Engine, offsetstore_database: str) -> None:
    ledger, flights = Ledger(), list(read_flights(FLIGHTS))
    for flight in flights:
        ledger.enter(flight)
    land(engine, flights, ledger)
    cases: Cases = [
        ("INSERT INTO flights SELECT * FROM flights WHERE flight_id = 77", {"stored": FLIGHTS + 1, "duplicated": 1}),
        ("DELETE FROM flights WHERE flight_id = 77", {"stored": FLIGHTS - 1, "missing": 1}),
        # One is gone, and another there twice, or a row that is no flight of the CSV: the count is right.
        ("UPDATE flights SET flight_id = 78 WHERE flight_id = 77", {"missing": 1, "duplicated": 1}),
        ("UPDATE flights SET flight_id = NULL WHERE flight_id = 77", {"missing": 1, "duplicated": 1}),
        *(
            (f"UPDATE carrier_delays SET {name} = {name} + 1 WHERE carrier = 'UA'", {"wrong_aggregates": 1})
            for name in (*ADDED, WORST)
        ),
        ("DELETE FROM carrier_delays WHERE carrier = 'UA'", {"wrong_aggregates": 1}),
        ("INSERT INTO carrier_delays VALUES ('UA', 2014, 1, 1, 0, 0, 0, 0)", {"wrong_aggregates": 1}),
    ]
    expect(engine, offsetstore_database, ledger, RIGHT, cases)


COPY_OF_LETTER_1 = """
INSERT INTO dead_letters (consumer_group, topic, partition, record_offset, state, cause, payload, key, value,
    error_class, attempts)
SELECT consumer_group, topic, partition, 77, state, cause, payload, key, {value}, error_class, attempts
FROM dead_letters WHERE record_offset = 1
"""
CHANGE = "UPDATE dead_letters SET {} WHERE record_offset = 1"


def test_a_wrong_letter_is_found(engine: Engine, offsetstore_database: str) -> None:
    """Some flights are broken, and are letters; flight 1 is one of them."""
    ledger, broken = Ledger(), {1: KINDS[0], 400: KINDS[1], 500: KINDS[2], 550: KINDS[3]}
    records = list(records_of(read_flights(FLIGHTS), broken, ledger))
    land(engine, [flight for flight in read_flights(FLIGHTS) if flight["flight_id"] not in broken], ledger)
    letters = [
        (GROUP, TOPIC, flight_id, letter.cause, records[flight_id - 1].key, records[flight_id - 1].value)
        for flight_id, letter in ledger.letters.items()
    ]
    with engine.begin() as connection:
        connection.exec_driver_sql(
            "INSERT INTO dead_letters (consumer_group, topic, partition, record_offset, state, cause, payload, key, "
            "value, error_class, attempts) VALUES (%s, %s, 0, %s, 'dead', %s, 'kept', %s, %s, 'RowsRefused', 1)",
            letters,
        )
    cases: Cases = [
        ("DELETE FROM dead_letters WHERE record_offset = 1", {"missing": 1, "letters": 3}),
        *((COPY_OF_LETTER_1.format(value=value), {"letters": 5, "wrong_letters": 1}) for value in ("value", "'{}'")),
        *(
            (CHANGE.format(change), {"missing": 1, "wrong_letters": 1})
            for change in ("value = value || '}'", "value = NULL", "key = ''", "cause = 'refused'")
        ),
        # Closed, or written again.
        *((CHANGE.format(change), {"missing": 1, "letters": 3}) for change in ("state = 'superseded'", "times = 2")),
        # A broken flight that has landed, too.
        ("INSERT INTO flights (flight_id) VALUES (400)", {"stored": FLIGHTS - 3, "duplicated": 1}),
    ]
    right = replace(RIGHT, stored=FLIGHTS - 4, letters=4, wrong_letters=0)
    expect(engine, offsetstore_database, ledger, right, cases)

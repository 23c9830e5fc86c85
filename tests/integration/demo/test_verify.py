"""The demo's check: it finds what is wrong, be it one row in two thousand."""

from __future__ import annotations

import json
from collections import Counter
from typing import TypeAlias

import pytest
from sqlalchemy import Engine

from offsetstore.demo.day_totals import Events, create_day_totals, verify_events
from offsetstore.demo.flights import Flight, Ledger, read_flights
from offsetstore.demo.job_settings import GROUP, TOPIC
from offsetstore.demo.poison import KINDS, records_of
from offsetstore.demo.tables import ADDED, COLUMNS, OURS, WORST, Findings, verify

FLIGHTS = 600


@pytest.fixture
def ledger(engine: Engine) -> Ledger:
    """Of flights that have all landed, once, with their sums."""
    ledger = Ledger()
    flights = list(read_flights(FLIGHTS))
    for flight in flights:
        ledger.enter(flight)
    land(engine, flights, ledger)
    return ledger


@pytest.fixture
def poisoned(engine: Engine) -> Ledger:
    """Of flights of which some are broken, and are letters; flight 1 is one of them, flight 2 is not."""
    ledger = Ledger()
    broken = {1: KINDS[0], 400: KINDS[1], 500: KINDS[2], 550: KINDS[3]}
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
    return ledger


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


def planted(engine: Engine, statement: str) -> None:
    with engine.begin() as connection:
        assert connection.exec_driver_sql(statement).rowcount == 1


def test_tables_that_are_right_pass(engine: Engine, offsetstore_database: str, ledger: Ledger) -> None:
    findings = verify(offsetstore_database, OURS, ledger)
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
    engine: Engine, offsetstore_database: str, ledger: Ledger, statement: str, expected: Findings
) -> None:
    planted(engine, statement)
    findings = verify(offsetstore_database, OURS, ledger)
    assert findings == expected
    assert not findings.exact


def test_broken_flights_that_are_letters_pass(engine: Engine, offsetstore_database: str, poisoned: Ledger) -> None:
    findings = verify(offsetstore_database, OURS, poisoned)
    assert findings == Findings(FLIGHTS - 4, 0, 0, 0, letters=4, wrong_letters=0)
    assert findings.exact


COPY_OF_LETTER_1 = """
INSERT INTO dead_letters (consumer_group, topic, partition, record_offset, state, cause, payload, key, value,
    error_class, attempts)
SELECT consumer_group, topic, partition, 77, state, cause, payload, key, {value}, error_class, attempts
FROM dead_letters WHERE record_offset = 1
"""


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        pytest.param(
            "DELETE FROM dead_letters WHERE record_offset = 1",
            Findings(FLIGHTS - 4, 1, 0, 0, 3, 0),
            id="a letter that is lost",
        ),
        pytest.param(
            COPY_OF_LETTER_1.format(value="value"),
            Findings(FLIGHTS - 4, 0, 0, 0, 5, 1),
            id="a letter that is there twice",
        ),
        pytest.param(
            COPY_OF_LETTER_1.format(value="'{}'"),
            Findings(FLIGHTS - 4, 0, 0, 0, 5, 1),
            id="a letter of no broken flight",
        ),
        *(
            pytest.param(
                f"UPDATE dead_letters SET {change} WHERE record_offset = 1",
                Findings(FLIGHTS - 4, 1, 0, 0, 4, 1),
                id=f"a letter with {change}",
            )
            for change in ("value = value || '}'", "value = NULL", "key = ''", "cause = 'refused'")
        ),
        *(
            pytest.param(
                f"UPDATE dead_letters SET {change} WHERE record_offset = 1",
                Findings(FLIGHTS - 4, 1, 0, 0, 3, 0),
                id=f"a letter that was closed or written again: {change}",
            )
            for change in ("state = 'superseded'", "times = 2")
        ),
        pytest.param(
            "INSERT INTO flights (flight_id) VALUES (400)",
            Findings(FLIGHTS - 3, 0, 1, 0, 4, 0),
            id="a broken flight that has landed, too",
        ),
    ],
)
def test_a_wrong_letter_is_found(
    engine: Engine, offsetstore_database: str, poisoned: Ledger, statement: str, expected: Findings
) -> None:
    planted(engine, statement)
    findings = verify(offsetstore_database, OURS, poisoned)
    assert findings == expected
    assert not findings.exact


Message: TypeAlias = tuple[bytes | None, bytes | None]


def events(day: str, *totals: int, first: int = 1) -> list[Message]:
    """Of one day, with their numbers."""
    numbered = enumerate(totals, first)
    return [(day.encode(), json.dumps({"number": number, "flights": flights}).encode()) for number, flights in numbered]


@pytest.fixture
def two_days(engine: Engine) -> Ledger:
    """Of which the first was told in three events, the second in one."""
    with engine.begin() as connection:
        create_day_totals(connection)
        connection.exec_driver_sql("INSERT INTO day_totals VALUES ('2013-01-01', 842, 3), ('2013-01-02', 943, 1)")
    return Ledger(days=Counter({"2013-01-01": 842, "2013-01-02": 943}))


FIRST, SECOND = events("2013-01-01", 300, 600, 842), events("2013-01-02", 943)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        pytest.param(FIRST + SECOND, Events(4, 0, 0, 0), id="right"),
        pytest.param(FIRST, Events(3, 1, 0, 1), id="a day is missing"),
        pytest.param(FIRST[::2] + SECOND, Events(3, 1, 0, 0), id="one is missing that changes no total"),
        pytest.param([FIRST[0], *FIRST, *SECOND], Events(5, 0, 1, 0), id="one is there twice"),
        pytest.param([*FIRST, FIRST[0], *SECOND], Events(5, 0, 1, 1), id="an old one comes again"),
        pytest.param([FIRST[0], FIRST[2], FIRST[1], *SECOND], Events(4, 0, 0, 1), id="they are not in order"),
        pytest.param(FIRST[:2] + FIRST[:1] + FIRST[2:] + [], Events(4, 1, 1, 1), id="one too many and one too few"),
        pytest.param(FIRST + events("2013-01-02", 944), Events(4, 0, 0, 1), id="a total of one flight too many"),
        pytest.param(FIRST + SECOND + events("2014-01-01", 1), Events(5, 0, 1, 1), id="a day that has not landed"),
    ],
)
def test_the_topic_is_compared_event_by_event(
    offsetstore_database: str, two_days: Ledger, found: list[Message], expected: Events
) -> None:
    events = verify_events(offsetstore_database, found, two_days)
    assert events == expected
    assert events.exact is (expected == Events(4, 0, 0, 0))

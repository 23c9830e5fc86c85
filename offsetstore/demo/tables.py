"""The two jobs' tables, which are alike: created, watched while the jobs run, and compared with the ledger at the end.

Only the key of the sums is unique, so that no duplicate is hidden.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from sqlalchemy import Connection

from offsetstore.demo.flights import GROUP, TOPIC, CarrierMonth, Delays, ExpectedLetter, Ledger
from offsetstore.postgres.url import make_engine

COLUMNS: Final = {
    "flight_id": "bigint",
    "year": "integer",
    "month": "integer",
    "day": "integer",
    "dep_time": "integer",
    "sched_dep_time": "integer",
    "dep_delay": "integer",
    "arr_time": "integer",
    "sched_arr_time": "integer",
    "arr_delay": "integer",
    "carrier": "text",
    "flight": "integer",
    "tailnum": "text",
    "origin": "text",
    "dest": "text",
    "air_time": "integer",
    "distance": "integer",
    "hour": "integer",
    "minute": "integer",
    "time_hour": "timestamptz",
}
"""The columns of a flight, with PostgreSQL's types."""

KEY: Final = ("carrier", "year", "month")
ADDED: Final = ("flights", "cancelled", "departure_delay", "arrival_delay")
WORST: Final = "worst_arrival_delay"


@contextmanager
def connected(url: str) -> Generator[Connection]:
    """Yield a connection, in a transaction that the block's end commits."""
    engine = make_engine(url)
    try:
        with engine.begin() as connection:
            yield connection
    finally:
        engine.dispose()


@dataclass(frozen=True, slots=True)
class JobTables:
    """The names of one job's tables."""

    flights: str
    carrier_delays: str

    def create(self, connection: Connection) -> None:
        """Create the missing tables, as the job itself does at its start."""
        columns = ", ".join(f"{name} {type_}" for name, type_ in COLUMNS.items())
        sums = ", ".join(f"{name} bigint NOT NULL" for name in ADDED)
        connection.exec_driver_sql(f"CREATE TABLE IF NOT EXISTS {self.flights} ({columns})")
        connection.exec_driver_sql(
            f"CREATE TABLE IF NOT EXISTS {self.carrier_delays} (carrier text, year integer, month integer, "
            f"{sums}, {WORST} integer, PRIMARY KEY ({', '.join(KEY)}))"
        )


OURS: Final = JobTables("flights", "carrier_delays")
THEIRS: Final = JobTables("flights_alo", "carrier_delays_alo")

# The three are the origins of all flights in the CSV. Constraints have names, since a letter tells which refused it.
_RULES: Final = (
    "CREATE TABLE airports (faa text PRIMARY KEY)",
    "INSERT INTO airports VALUES ('EWR'), ('JFK'), ('LGA')",
    "ALTER TABLE flights ADD CONSTRAINT distance_is_positive CHECK (distance > 0)",
    """
    ALTER TABLE flights ADD CONSTRAINT origin_is_known
        FOREIGN KEY (origin) REFERENCES airports DEFERRABLE INITIALLY DEFERRED
    """,
)


def add_rules(connection: Connection) -> None:
    """Add the constraints that refuse broken flights to our table, which was created without them."""
    for statement in _RULES:
        connection.exec_driver_sql(statement)


JDBC_NAME: Final = "demo at-least-once"
"""The ``application_name`` of Spark's JDBC writer, by which another connection sees it."""

_SECONDS: Final = 0.5
# One statement sees one snapshot. The topic begins at 0 in each partition, so the sum of offsets counts records.
_LOOK: Final = """
SELECT (SELECT count(*) FROM {flights}),
       (SELECT coalesce(sum(next_offset), 0)::bigint FROM kafka_partitions WHERE consumer_group = %s AND topic = %s),
       (SELECT count(*) FROM dead_letters WHERE consumer_group = %s AND topic = %s)
"""
_JDBC_WRITES: Final = """
SELECT count(*) FROM pg_stat_activity
WHERE application_name = %s AND state <> 'idle' AND query ILIKE 'INSERT INTO%%'
"""


@dataclass(frozen=True, slots=True)
class Observation:
    """What was stored ``at`` seconds after the job's first start; ``offsets`` is the sum of the stored offsets."""

    at: float
    landed: int
    offsets: int
    letters: int = 0

    @property
    def passed(self) -> int:
        """How many flights have landed, or have become letters."""
        return self.landed + self.letters


class LandingWatch:
    """Looks now and then at what has landed, over its own connection.

    :param seen: called with each look.
    """

    def __init__(self, url: str, tables: JobTables, seen: Callable[[Observation], None]) -> None:
        self.looks: list[Observation] = []
        self._engine = make_engine(url).execution_options(isolation_level="AUTOCOMMIT")
        self._query = _LOOK.format(flights=tables.flights)
        self._seen = seen
        self._begin = time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._begin

    def look(self) -> Observation:
        with self._engine.connect() as connection:
            landed, offsets, letters = connection.exec_driver_sql(self._query, (GROUP, TOPIC) * 2).one()
        look = Observation(self.seconds, landed, offsets, letters)
        self.looks.append(look)
        self._seen(look)
        return look

    def look_if_due(self) -> None:
        if not self.looks or self.seconds >= self.looks[-1].at + _SECONDS:
            self.look()

    def jdbc_writes(self) -> bool:
        """Whether Spark's JDBC writer is inserting right now."""
        with self._engine.connect() as connection:
            return bool(connection.exec_driver_sql(_JDBC_WRITES, (JDBC_NAME,)).scalar_one())

    def close(self) -> None:
        self._engine.dispose()


# Rows that are not flights of the ledger are surplus, too, and so are broken flights.
_COUNT = """
SELECT count(*), count(DISTINCT flight_id) FILTER (WHERE flight_id BETWEEN 1 AND %s AND flight_id <> ALL (%s))
FROM {flights}
"""
_LETTERS: Final = """
SELECT cause, key, value FROM dead_letters WHERE consumer_group = %s AND topic = %s AND state = 'dead' AND times = 1
"""


@dataclass(frozen=True, slots=True)
class Findings:
    """What is stored, compared with the ledger.

    :param stored: rows of flights.
    :param missing: flights that have not landed, and broken ones that have no letter with their key and value.
    :param duplicated: surplus rows.
    :param wrong_aggregates: carrier-months.
    :param letters: dead letters.
    :param wrong_letters: letters of no broken flight, or of one that has its letter already.
    """

    stored: int
    missing: int
    duplicated: int
    wrong_aggregates: int
    letters: int = 0
    wrong_letters: int = 0

    @property
    def exact(self) -> bool:
        """Whether each flight has landed or is a letter, once, and all sums are right."""
        return not (self.missing or self.duplicated or self.wrong_aggregates or self.wrong_letters)


def verify(url: str, tables: JobTables, ledger: Ledger) -> Findings:
    """Count, in SQL, and compare each carrier's month with the ledger's."""
    query = f"SELECT {', '.join((*KEY, *ADDED, WORST))} FROM {tables.carrier_delays}"  # noqa: S608 - our own names
    with connected(url) as connection:
        count = _COUNT.format(flights=tables.flights)
        stored, known = connection.exec_driver_sql(count, (ledger.flights, list(ledger.letters))).one()
        delays: dict[CarrierMonth, Delays] = {
            (carrier, year, month): Delays(*sums) for carrier, year, month, *sums in connection.exec_driver_sql(query)
        }
        letters = Counter(ExpectedLetter(*letter) for letter in connection.exec_driver_sql(_LETTERS, (GROUP, TOPIC)))
    keys = delays.keys() | ledger.delays.keys()
    wrong = sum(delays.get(key) != ledger.delays.get(key) for key in keys)
    expected = Counter(ledger.letters.values())
    return Findings(
        stored,
        missing=ledger.flights - len(ledger.letters) - known + (expected - letters).total(),
        duplicated=stored - known,
        wrong_aggregates=wrong,
        letters=letters.total(),
        wrong_letters=(letters - expected).total(),
    )

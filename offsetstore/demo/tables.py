"""The two jobs' tables, which are alike. Only the key of the sums is unique, so that no duplicate is hidden."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from offsetstore.postgres.url import make_engine

if TYPE_CHECKING:
    from sqlalchemy import Engine

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


@dataclass(frozen=True, slots=True)
class Tables:
    """The names of one job's tables."""

    flights: str
    carrier_delays: str

    def create(self, engine: Engine) -> None:
        """Create those that are not there."""
        columns = ", ".join(f"{name} {type_}" for name, type_ in COLUMNS.items())
        sums = ", ".join(f"{name} bigint NOT NULL" for name in ADDED)
        with engine.begin() as connection:
            connection.exec_driver_sql(f"CREATE TABLE IF NOT EXISTS {self.flights} ({columns})")
            connection.exec_driver_sql(
                f"CREATE TABLE IF NOT EXISTS {self.carrier_delays} (carrier text, year integer, month integer, "
                f"{sums}, {WORST} integer, PRIMARY KEY ({', '.join(KEY)}))"
            )


OURS: Final = Tables("flights", "carrier_delays")
THEIRS: Final = Tables("flights_alo", "carrier_delays_alo")


def create_tables(url: str, tables: Tables) -> None:
    """Create one job's tables, as the job itself does at its start."""
    engine = make_engine(url)
    try:
        tables.create(engine)
    finally:
        engine.dispose()

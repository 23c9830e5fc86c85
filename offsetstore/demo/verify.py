"""Compare a job's tables with the ledger: what is missing, what is there twice, which sums are wrong."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from offsetstore.demo.flights import Delays
from offsetstore.demo.tables import ADDED, KEY, WORST
from offsetstore.postgres.url import make_engine

if TYPE_CHECKING:
    from offsetstore.demo.flights import CarrierMonth, Ledger
    from offsetstore.demo.tables import Tables

# Rows that are not flights of the ledger are surplus, too.
_COUNT = """
SELECT count(*), count(DISTINCT flight_id) FILTER (WHERE flight_id BETWEEN 1 AND %s) FROM {flights}
"""


@dataclass(frozen=True, slots=True)
class Findings:
    """``stored`` counts rows, ``missing`` flights, ``duplicated`` surplus rows, ``wrong_aggregates`` carrier-months."""

    stored: int
    missing: int
    duplicated: int
    wrong_aggregates: int

    @property
    def exact(self) -> bool:
        """Whether each flight is there once and all sums are right."""
        return not (self.missing or self.duplicated or self.wrong_aggregates)

    def as_json(self) -> dict[str, Any]:
        """Return them for the report."""
        return asdict(self)


def verify(url: str, tables: Tables, ledger: Ledger) -> Findings:
    """Count, in SQL, and compare each carrier's month with the ledger's."""
    engine = make_engine(url)
    query = f"SELECT {', '.join((*KEY, *ADDED, WORST))} FROM {tables.carrier_delays}"  # noqa: S608 - our own names
    try:
        with engine.connect() as connection:
            count = _COUNT.format(flights=tables.flights)
            stored, known = connection.exec_driver_sql(count, (ledger.flights,)).one()
            found: dict[CarrierMonth, Delays] = {
                (carrier, year, month): Delays(*sums)
                for carrier, year, month, *sums in connection.exec_driver_sql(query)
            }
    finally:
        engine.dispose()
    keys = found.keys() | ledger.delays.keys()
    wrong = sum(found.get(key) != ledger.delays.get(key) for key in keys)
    return Findings(stored, ledger.flights - known, stored - known, wrong)

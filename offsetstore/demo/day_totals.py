"""The days' totals, which go back into Kafka: a new one for each day of a batch, exactly once, by way of the outbox."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import pyarrow as pa
from sqlalchemy import Connection

from offsetstore.demo.flights import Ledger
from offsetstore.demo.tables import connected
from offsetstore.protocol.outbox import OutboxRecord
from offsetstore.protocol.work import Work

TOPIC: Final = "day-totals"
DAY: Final = ("year", "month", "day")

# A day's row is locked until COMMIT, so its events are in the outbox in the order of their numbers.
_ADD: Final = """
INSERT INTO day_totals AS stored (day, flights, events)
SELECT make_date(year, month, day) AS day, sum(flights), 1
FROM unnest(%s::int[], %s::int[], %s::int[], %s::bigint[]) AS given (year, month, day, flights)
GROUP BY 1 ORDER BY 1
ON CONFLICT (day) DO UPDATE SET flights = stored.flights + excluded.flights, events = stored.events + 1
RETURNING day::text, flights, events
"""


def create_day_totals(connection: Connection) -> None:
    """Create the table: the flights of each day that have landed, and how many events have told so."""
    connection.exec_driver_sql(
        "CREATE TABLE day_totals (day date PRIMARY KEY, flights bigint NOT NULL, events bigint NOT NULL)"
    )


def add_day_totals(work: Work, batches: Iterable[pa.RecordBatch]) -> None:
    """Add to the days' totals, and produce the new ones, each under its day and with its number."""
    table: Any = pa.Table.from_batches([*batches])
    given = tuple(table[name].to_pylist() for name in (*DAY, "flights"))
    totals = work.connection.exec_driver_sql(_ADD, given).all()
    work.produce_all(OutboxRecord(TOPIC, day.encode(), _event(flights, number)) for day, flights, number in totals)


def _event(flights: int, number: int) -> bytes:
    return json.dumps({"number": number, "flights": flights}).encode()


@dataclass(frozen=True, slots=True)
class Events:
    """What a ``read_committed`` reader finds in the topic, compared with the table and the ledger.

    :param read: all events.
    :param missing: those that were put into the outbox and are not in the topic.
    :param duplicated: surplus ones.
    :param wrong_totals: days whose last event does not have all flights of the day.
    """

    read: int
    missing: int
    duplicated: int
    wrong_totals: int

    @property
    def exact(self) -> bool:
        """Whether each event is there once, and each day's last one has the day's total."""
        return not (self.missing or self.duplicated or self.wrong_totals)

    def as_json(self) -> dict[str, Any]:
        """Return them for the report."""
        return asdict(self)


def verify_events(url: str, records: Sequence[tuple[bytes | None, bytes | None]], ledger: Ledger) -> Events:
    """Compare the topic, in its order, with the table and the ledger."""
    with connected(url) as connection:
        stored = connection.exec_driver_sql("SELECT day::text, events FROM day_totals").all()
    expected = Counter((day, number) for day, count in stored for number in range(1, count + 1))
    found = Counter[tuple[str, int]]()
    totals: dict[str, int] = {}
    for key, value in records:
        day, event = (key or b"").decode(), json.loads(value or b"")
        found[day, event["number"]] += 1
        totals[day] = event["flights"]
    return Events(
        len(records),
        missing=(expected - found).total(),
        duplicated=(found - expected).total(),
        wrong_totals=sum(totals.get(day) != ledger.days.get(day) for day in totals.keys() | ledger.days.keys()),
    )

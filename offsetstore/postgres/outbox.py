"""The outbox on PostgreSQL: the statement of a job, and how a relay is woken."""

# ruff: noqa: D102 - the Protocol says what the methods do

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, cast

import psycopg
from sqlalchemy import Connection

from offsetstore.offsets import in_parts
from offsetstore.postgres.errors import translated
from offsetstore.postgres.letters import CHUNK, headers_as_json, length
from offsetstore.postgres.together import Statements
from offsetstore.protocol.outbox import OutboxRecord

CHANNEL: Final = "offsetstore_outbox"
"""Of NOTIFY; the payload is the quoted schema of the tables, since a database may have several stores."""

# Ids are taken in the order of the records. RETURNING a constant needs no right to read.
WRITE_OUTBOX: Final = """
WITH written AS (
INSERT INTO {s}outbox (consumer_group, topic, key, value, headers)
SELECT :group, n.topic, n.key, n.value, CAST(n.headers AS jsonb)
FROM unnest(CAST(:topics AS text[]), CAST(:keys AS bytea[]), CAST(:values AS bytea[]), CAST(:headers AS text[]))
     WITH ORDINALITY AS n (topic, key, value, headers, number)
ORDER BY n.number
RETURNING 1)
SELECT count(*) AS written, CAST(pg_notify(:channel, :place) AS text) AS told FROM written
"""


class OutboxStatements(Statements):
    """A session's part that implements `OutboxSession`."""

    def write_outbox(self, group: str, records: Sequence[OutboxRecord]) -> int:
        written = 0
        for part in in_parts(records, _length, CHUNK):
            row = self.one(
                WRITE_OUTBOX,
                group=group,
                topics=[one.topic for one in part],
                keys=[one.key for one in part],
                values=[one.value for one in part],
                headers=[headers_as_json(one.headers) for one in part],
                channel=CHANNEL,
                place=self.place,
            )
            written += row.written
        return written


def _length(record: OutboxRecord) -> int:
    return length(record.key, record.value, record.headers)


class Listener:
    """A connection of its own that waits for `CHANNEL`. It must be closed.

    :param connection: taken from its pool for good.
    :param place: see `PostgresSession`; others' payloads are passed over.
    :raises ConnectionLost, StoreUnavailable: the database's errors, as ours; also of `wait`.
    """

    def __init__(self, connection: Connection, place: str) -> None:
        self._place = place
        self._driver = cast("psycopg.Connection", connection.connection.driver_connection)
        connection.detach()
        connection.rollback()
        try:
            with translated():
                self._driver.autocommit = True
                # Behind a pooler, the connection's process is the pooler's own, and a server's session is not kept.
                asked = [self._driver.execute("SELECT pg_backend_pid()").fetchone() for _ in range(2)]
                self.is_pooled = asked != [(self._driver.info.backend_pid,)] * 2
                if not self.is_pooled:
                    self._driver.execute(f"LISTEN {CHANNEL}".encode())
        except BaseException:
            self.close()
            raise

    def wait(self, seconds: float) -> None:
        """Wait until rows are committed, but not longer than this."""
        with translated():
            for told in self._driver.notifies(timeout=seconds):
                if told.payload == self._place:
                    return

    def close(self) -> None:
        """End the connection."""
        self._driver.close()

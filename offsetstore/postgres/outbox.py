"""The outbox on PostgreSQL: a job's statement, a relay's reads, and how a relay is woken."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from functools import lru_cache
from typing import Any, Final, cast

import psycopg
from sqlalchemy import Connection

from offsetstore.errors import ConfigurationError, StoreUnavailable
from offsetstore.offsets import in_parts
from offsetstore.postgres.errors import is_given_up, translated
from offsetstore.postgres.letters import CHUNK, headers_as_json, length, read_headers
from offsetstore.postgres.statements import Statements, as_array
from offsetstore.protocol.letters import Headers
from offsetstore.protocol.outbox import (
    MOST_COUNTED,
    MOST_ROWS,
    OutboxRecord,
    OutboxRow,
    is_header_name,
    is_topic,
)
from offsetstore.runtime.functions import without_frames

CHANNEL: Final = "offsetstore_outbox"
"""Of NOTIFY; the payload is the quoted schema of the tables, since a database may have several stores."""

# Ids are taken in the order of the records. RETURNING a constant needs no right to read. Arrays and not COPY: rows need
# no table to be matched, and tests in memory have them too (decision 0095).
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


# The contents of a row that is too large to send are not read: they might not fit into memory. A header's text may be
# eight times as long as what is sent of it.
_READ: Final = """
SELECT o.id, o.topic, o.key, o.value, o.headers, size.fits,
       CASE WHEN size.fits THEN size.contents + size.headers ELSE 0 END AS bytes,
       concat('it has ', size.contents + size.headers, ' bytes, the relay''s message.max.bytes is ',
              CAST(:largest AS bigint)) AS why
FROM {rows} AS o
CROSS JOIN LATERAL (
    SELECT CAST(coalesce(octet_length(o.key), 0) AS bigint) + coalesce(octet_length(o.value), 0) AS contents,
           CAST(coalesce(octet_length(CAST(o.headers AS text)), 0) AS bigint) AS headers) AS s
CROSS JOIN LATERAL (
    SELECT s.contents, s.headers,
           s.contents <= CAST(:largest AS bigint) AND s.headers <= 8 * CAST(:largest AS bigint) AS fits) AS size
"""
_COLUMNS: Final = """id, topic, CASE WHEN fits THEN key END, CASE WHEN fits THEN value END,
CASE WHEN fits THEN CAST(headers AS text) END, CASE WHEN NOT fits THEN why END"""
_WITHOUT: Final = "NOT o.id <@ CAST(:without AS int8multirange)"
_OTHERS: Final = "o.topic <> ALL(CAST(:but AS text[]))"
# A single topic is looked for in these rows alone: there is no index by topic, and older rows come first (decision
# 0095).
_FIRST_ROWS: Final = f"(SELECT * FROM {{s}}outbox AS o WHERE {_WITHOUT} ORDER BY id LIMIT {MOST_COUNTED})"  # noqa: S608 - constants alone


def _first_rows(rows: str, where: str) -> str:
    """Make a statement for the first rows. ``total`` counts the bytes up to and including the row.

    A row is taken if the rows before it are below the limit.
    """
    return f"""
SELECT {_COLUMNS} FROM (
SELECT r.*, sum(r.bytes) OVER (ORDER BY r.id ROWS UNBOUNDED PRECEDING) AS total
FROM ({_READ.replace("{rows}", rows)}
WHERE {where}
ORDER BY o.id LIMIT :most) AS r) AS w
WHERE w.total - w.bytes < :bytes
ORDER BY w.id
"""  # noqa: S608 - constants alone


LOOK: Final = _first_rows("{s}outbox", _WITHOUT)
LOOK_AT_OTHERS: Final = _first_rows("{s}outbox", f"{_WITHOUT} AND {_OTHERS}")
LOOK_AT_ONE: Final = _first_rows(_FIRST_ROWS, "o.topic = :only")
FETCH: Final = f"""
SELECT {_COLUMNS} FROM ({_READ.replace("{rows}", "{s}outbox")} WHERE o.id = ANY(CAST(:ids AS bigint[]))) AS r
ORDER BY id
"""  # noqa: S608 - constants alone
WITH_POLICIES: Final = """
SELECT t.name FROM unnest(ARRAY['outbox', 'outbox_refused', 'outbox_relays']) AS t (name)
WHERE row_security_active(:place || t.name)
"""

SET_ASIDE: Final = """
WITH gone AS (DELETE FROM {s}outbox WHERE id = ANY(CAST(:ids AS bigint[])) RETURNING *),
kept AS (INSERT INTO {s}outbox_refused (id, consumer_group, topic, key, value, headers, created_at, error)
SELECT g.id, g.consumer_group, g.topic, g.key, g.value, g.headers, g.created_at, e.error
FROM gone AS g JOIN unnest(CAST(:ids AS bigint[]), CAST(:errors AS text[])) AS e (id, error) ON e.id = g.id
ORDER BY g.id
RETURNING 1)
SELECT (SELECT count(*) FROM gone) AS gone, (SELECT count(*) FROM kept) AS kept
"""

MOST_BYTES: Final = 8 << 20
"""Of one batch; a larger row is alone in its batch."""


class OutboxStatements(Statements):
    """A session's part that implements `OutboxSession`."""

    def write_outbox(self, group: str, records: Sequence[OutboxRecord]) -> int:
        written = 0
        for part in in_parts(records, _length, CHUNK):
            row = self.one(
                WRITE_OUTBOX,
                group=group,
                topics=[record.topic for record in part],
                keys=[record.key for record in part],
                values=[record.value for record in part],
                headers=[headers_as_json(record.headers) for record in part],
                channel=CHANNEL,
                place=self.place,
            )
            written += row.written
        return written


def _length(record: OutboxRecord) -> int:
    return length(record.key, record.value, record.headers)


def expect_all_rows(session: Statements) -> None:
    """Expect that a relay sees all rows: row-level security would hide some from it without an error.

    :raises ConfigurationError: policies apply to this role.
    """
    if hidden := [row.name for row in session.rows(WITH_POLICIES, place=session.place)]:
        raise ConfigurationError(
            "row-level security hides rows of the outbox from this role, or could",
            found=f"it is active for {', '.join(hidden)}",
            expected="a relay that sees all rows",
            next_step="As the owner of the tables: ALTER TABLE ... DISABLE ROW LEVEL SECURITY. Or give the relay a "
            "role that has BYPASSRLS.",
        )


class Portions:
    """How much one statement may read or delete: half as much after each that the database gives up.

    So a ``statement_timeout`` slows the relay down instead of stopping it. After ten statements that went well, the
    portion doubles again.
    """

    def __init__(self) -> None:
        self._halved = self._well = 0

    def of(self, most: int) -> int:
        """The portion of ``most``; at least one."""
        return max(1, most >> self._halved)

    def given_up(self, error: BaseException) -> bool:
        """Whether a smaller statement may succeed after this error; if so, halve the portion from now on."""
        if not (isinstance(error, MemoryError) or is_given_up(error)):
            return False
        self._halved, self._well = min(self._halved + 1, _MOST_HALVED), 0
        return True

    def went_well(self) -> None:
        self._well += 1
        if self._halved and self._well % _WELL == 0:
            self._halved -= 1


# 8 MB halved so often are less than a byte.
_MOST_HALVED: Final = 24
_WELL: Final = 10


def parts_of(ids: Sequence[int], portions: Portions) -> list[Sequence[int]]:
    most = portions.of(MOST_ROWS)
    return [ids[first : first + most] for first in range(0, len(ids), most)]


def is_full(rows: Sequence[OutboxRow], most: int) -> bool:
    """Whether there are probably more rows than these."""
    return len(rows) >= most or sum(len(row.value or b"") for row in rows) > MOST_BYTES / 2


class Reader:
    """Reads rows of the outbox. A row that can't be read comes without contents, and says why.

    :param ask: calls a query with a session.
    :param largest: the most bytes of key and value that the producer takes.
    """

    def __init__(self, ask: Callable[[Callable[[Any], Any]], Any], portions: Portions, *, largest: int) -> None:
        self._ask = ask
        self._portions = portions
        self._largest = largest

    def look(
        self, without: str, most: int, *, only: str | None = None, but: Collection[str] = ()
    ) -> Sequence[OutboxRow]:
        """Read the first rows; see `Look`.

        :param without: ids that are left out, as a multirange.
        """
        statement = LOOK_AT_ONE if only is not None else LOOK_AT_OTHERS if but else LOOK
        asked: dict[str, Any] = {"without": without, "only": only, "but": [*but]}
        while True:
            few = self._portions.of(most)
            try:
                return self._rows(statement, most=few, bytes=self._portions.of(MOST_BYTES), **asked)
            except (StoreUnavailable, MemoryError) as error:
                if not self._portions.given_up(error):
                    raise
                if few == 1:
                    return self._unread(error, statement, most=1, bytes=1, **asked)

    def fetch(self, ids: Sequence[int]) -> Sequence[OutboxRow]:
        """Read the rows with these ids; missing rows are left out."""
        rows: list[OutboxRow] = []
        left = ids
        while left:
            part = left[: self._portions.of(len(ids))]
            try:
                rows += self._rows(FETCH, ids=as_array(part))
            except (StoreUnavailable, MemoryError) as error:
                if not self._portions.given_up(error):
                    raise
                if len(part) > 1:
                    continue
                rows += self._unread(error, FETCH, ids=as_array(part))
            left = left[len(part) :]
        return rows

    def _rows(self, statement: str, *, largest: int | None = None, **values: object) -> list[OutboxRow]:
        given = {**values, "largest": self._largest if largest is None else largest}
        rows: list[tuple[Any, ...]] = self._ask(lambda session: session.tuples(statement, **given))
        self._portions.went_well()
        return [*map(as_row, rows)]

    def _unread(self, error: BaseException, statement: str, **values: object) -> list[OutboxRow]:
        """Read without its contents the one row that can't be read; name it if it can't be read again either."""
        if not (rows := self._rows(statement, largest=-1, **values)):
            return rows
        asked = as_array(row.id for row in rows)
        # The first failure may have been a lock or a load: a row is set aside only if it fails once more.
        try:
            return self._rows(FETCH, ids=asked)
        except (StoreUnavailable, MemoryError) as again:
            if not self._portions.given_up(again):
                raise
            without_frames(again)
        rows = self._rows(FETCH, largest=-1, ids=asked)
        return [row._replace(wrong=f"it can't be read: {type(error).__name__}") for row in rows]


def as_row(row: tuple[Any, ...]) -> OutboxRow:
    """Read a row; one that is no record says why, without quoting it."""
    made: OutboxRow = _new(OutboxRow, row)
    if made.wrong is None and not _is_topic(made.topic):
        return made._replace(headers=None, wrong="Kafka allows no topic of this name")
    if made.headers is None:
        return made
    try:
        return made._replace(headers=_headers(cast("str", made.headers)))
    except Exception:  # noqa: BLE001 - whatever it is, this row alone is at fault, and is named
        return made._replace(headers=None, wrong="its headers are not a list of pairs of a name and a value in base64")


def _headers(text: str) -> Headers | None:
    pairs: Any = json.loads(text)
    headers = read_headers(pairs, strict=True)
    if headers is not None and not (
        isinstance(pairs, list)
        and all(len(pair) == (3 if pair[0] is None else 2) for pair in cast("Any", pairs))
        and all(isinstance(cast("object", name), str) and is_header_name(name) for name, _ in headers)
    ):
        raise ValueError
    return headers


# A third of the time of `_make`.
_new: Final = cast("Any", tuple).__new__
# Of ten thousand rows, most have the same topic.
_is_topic: Final = lru_cache(1024)(is_topic)


class Listener:
    """A dedicated connection that waits for `CHANNEL`. It must be closed.

    :param connection: taken from its pool for good.
    :param place: see `PostgresSession`; payloads of other stores are ignored.
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
                # Behind a pooler, the process id is the pooler's own, or changes with each statement. LISTEN is useless
                # there: the session with the server is not kept (decision 0095).
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
            for notification in self._driver.notifies(timeout=seconds):
                if notification.payload == self._place:
                    return

    def close(self) -> None:
        self._driver.close()

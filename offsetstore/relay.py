"""The relay: produces the outbox to Kafka, each row exactly once for ``read_committed`` readers.

What it does next, and why that is exact, is `offsetstore.protocol.outbox.relaying`. Here each step is done.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import Any, Final, cast
from uuid import uuid4

from offsetstore.errors import (
    BrokerUnavailable,
    ConfigurationError,
    OffsetStoreError,
    RelayFenced,
)
from offsetstore.kafka.broker import Broker
from offsetstore.kafka.outlet import Outlet
from offsetstore.offset_store import OffsetStore
from offsetstore.operations.people import ask, people
from offsetstore.postgres.database import PostgresDatabase
from offsetstore.postgres.errors import needing
from offsetstore.postgres.letters import read_headers
from offsetstore.postgres.outbox import Listener
from offsetstore.postgres.session import PostgresSession
from offsetstore.protocol import failpoints
from offsetstore.protocol.background import meanwhile
from offsetstore.protocol.events import OutboxRefused, OutboxSent, OutboxWaits
from offsetstore.protocol.numbers import check_whole
from offsetstore.protocol.outbox import (
    MOST_ROWS,
    Ask,
    Check,
    Fence,
    Fetch,
    Look,
    OnUncertain,
    OutboxRecord,
    OutboxRow,
    Read,
    Record,
    Rest,
    Send,
    Standing,
    Step,
    Take,
    relaying,
)
from offsetstore.protocol.retries import Retries, may_pass
from offsetstore.store.identity import this_process
from offsetstore.store.sessions import transaction

_log = logging.getLogger("offsetstore")

ANCHOR: Final = "offsetstore-outbox"
"""The topic on which the relay's group has its offset, and the beginning of its names."""

_NAME: Final = "offsetstore:relay"
_MOST_BYTES: Final = 8 << 20  # of one batch; a row that is larger is alone
_AT_REST: Final = 1.0  # seconds from one look to the next
_RENEW: Final = 24 * 3600.0  # seconds after which Kafka's number is set again; by default it expires after seven days
_TAKEOVER: Final = 30.0  # seconds to wait for a transaction of an earlier relay
_RETRIES: Final = Retries(shortest=0.1, longest=10.0)

TAKE: Final = """
INSERT INTO {s}outbox_relays AS r (shard, token, owner) VALUES (0, :token, :owner)
ON CONFLICT (shard) DO UPDATE SET token = excluded.token, owner = excluded.owner, taken_at = excluded.taken_at
"""
READ: Final = "SELECT token, owner, batch, ids, cluster_id FROM {s}outbox_relays WHERE shard = 0"

# ``total`` counts the bytes up to and with the row; of jsonb those on the disk. A row is taken if those before it are
# below the limit. NOT IN with a subquery is a hash, and keeps the order of the index.
LOOK: Final = """
SELECT id, topic, key, value, headers FROM (
SELECT o.id, o.topic, o.key, o.value, o.headers, size.bytes,
       sum(size.bytes) OVER (ORDER BY o.id ROWS UNBOUNDED PRECEDING) AS total
FROM {s}outbox AS o
CROSS JOIN LATERAL (SELECT coalesce(octet_length(o.key), 0) + coalesce(octet_length(o.value), 0)
                           + coalesce(pg_column_size(o.headers), 0) AS bytes) AS size
WHERE o.id NOT IN (SELECT unnest(CAST(:without AS bigint[])))
ORDER BY o.id LIMIT :most) AS w
WHERE w.total - w.bytes < :bytes
ORDER BY w.id
"""
FETCH: Final = "SELECT id, topic, key, value, headers FROM {s}outbox WHERE id = ANY(CAST(:ids AS bigint[])) ORDER BY id"

RECORD: Final = """
UPDATE {s}outbox_relays
SET batch = :number, ids = CAST(:ids AS bigint[]), cluster_id = coalesce(CAST(:cluster_id AS text), cluster_id)
WHERE shard = 0 AND token = :token
"""
DELETE: Final = "DELETE FROM {s}outbox WHERE id = ANY(CAST(:ids AS bigint[]))"
SET_ASIDE: Final = """
WITH gone AS (DELETE FROM {s}outbox WHERE id = ANY(CAST(:ids AS bigint[])) RETURNING *)
INSERT INTO {s}outbox_refused (id, consumer_group, topic, key, value, headers, created_at, error)
SELECT g.id, g.consumer_group, g.topic, g.key, g.value, g.headers, g.created_at, e.error
FROM gone AS g JOIN unnest(CAST(:ids AS bigint[]), CAST(:errors AS text[])) AS e (id, error) ON e.id = g.id
ORDER BY g.id
"""


class Relay:
    """Produces what jobs have put into the outbox (`Work.produce`, `Outbox`), in the order of their commits.

    One relay serves a store: a second one fences the first, in the database and in Kafka, whose `run` then raises.

    :param broker: its settings are the producer's too: ``compression.type``, say, or ``message.max.bytes``.
    :param anchor: a topic with one partition, which the relay creates if it may; its group and its transactional id
        begin with this name. Its offset tells what was produced, so never change it, and keep the topic.
    :param most: rows of one transaction, at most; 8 MB end it too.
    :param on_uncertain: what becomes of a batch that may or may not be in Kafka: raise `OutboxUncertain` (``"fail"``),
        produce it, perhaps again (``"repeat"``), or take it for produced (``"skip"``). It decides at the start only.
    :raises ConfigurationError: an argument is invalid, or the store is in memory.
    """

    def __init__(
        self,
        store: OffsetStore,
        broker: Broker,
        *,
        anchor: str = ANCHOR,
        most: int = MOST_ROWS,
        on_uncertain: OnUncertain = "fail",
    ) -> None:
        if not isinstance(store.database, PostgresDatabase):
            raise ConfigurationError("a store in memory has no relay", next_step="In tests, use store.outbox().")
        if on_uncertain not in {"fail", "repeat", "skip"}:
            raise ConfigurationError("on_uncertain is unknown", found=repr(on_uncertain), expected="fail, repeat, skip")
        self._database = store.database
        self._observers = store.observers
        check_whole("most", most, "rows", least=1)
        self._most = most
        self._on_uncertain: OnUncertain = on_uncertain
        self._token = uuid4()
        self._owner = this_process()
        self._broker = broker
        self._anchor = anchor
        self._stopping = threading.Event()
        self._outlet: Outlet | None = None
        self._listener: Listener | None = None
        self._ahead: tuple[Sequence[int], Future[Sequence[OutboxRow]]] | None = None
        self._ends_at_rest = False
        self._sent_at = 0.0
        self._has_taken = self._has_begun = False

    @property
    def group(self) -> str:
        """Its group in Kafka, and its transactional id."""
        return f"{self._anchor}-{self._database.store_id()}"

    def stop(self) -> None:
        """Let `run` return within a second or two, with everything it has sent deleted. Any thread may call it."""
        self._stopping.set()

    def run(self) -> None:
        """Produce rows until `stop` is called, through outages of the database and of Kafka once it has begun.

        :raises RelayFenced: another relay has taken over.
        :raises OutboxUncertain: whether the last batch is in Kafka can't be told.
        :raises OffsetStoreError: at the start, an outage; later, what does not pass: Kafka refuses a transaction
            (`BrokerRefused`), the role lacks a privilege (`MissingPrivilege`).
        """
        self._run(ends_at_rest=False)

    def drain(self) -> None:
        """Produce what is in the outbox now, and return when it is empty. Raises as `run`, and in an outage too."""
        self._run(ends_at_rest=True)

    def _run(self, *, ends_at_rest: bool) -> None:
        self._ends_at_rest = ends_at_rest
        self._outlet = self._broker.outlet(self.group, anchor=self._anchor)
        attempt = 0
        try:
            while True:
                began = time.monotonic()
                on_uncertain = "fail" if self._has_begun else self._on_uncertain  # it was decided once
                try:
                    self._follow(relaying(again=self._has_taken, most=self._most, on_uncertain=on_uncertain))
                except OffsetStoreError as error:
                    if not self._has_begun or ends_at_rest or not _passes(error):
                        raise
                    attempt = 1 if time.monotonic() - began > _RETRIES.longest else attempt + 1
                    wait = _RETRIES.wait(attempt)
                    self._observers.on(OutboxWaits(group=self.group, error=error, wait=wait))
                    if self._stopping.wait(wait):
                        return
                else:
                    return
        finally:
            self._outlet.close()
            self._forget_listener()

    def _follow(self, machine: Any) -> None:
        """Do one step after the other, until it is time to stop."""
        answer: Any = None
        self._ahead = None
        while True:
            step: Step = machine.send(answer)
            if isinstance(step, (Look, Rest)) and self._stopping.is_set():
                if isinstance(step, Rest) or not step.without:
                    return
                answer = ()  # so that what was sent is deleted
            elif isinstance(step, Rest) and self._ends_at_rest:
                return
            else:
                answer = self._do(step)

    def _do(self, step: Step) -> Any:  # noqa: C901, PLR0911 - one case for each step
        outlet = cast("Outlet", self._outlet)
        match step:
            case Take():
                self._take()
                self._has_taken = True
                failpoints.reach("outbox_taken")
            case Check() | Read():
                return self._read()
            case Fence():
                outlet.fence()
                failpoints.reach("outbox_fenced")
            case Ask():
                return outlet.position()
            case Fetch(ids=ids):
                return self._rows(FETCH, ids=_array(ids))
            case Look():
                self._has_begun = True
                return self._look(step)
            case Record():
                self._record(step)
                failpoints.reach("outbox_recorded")
            case Send():
                began = time.monotonic()
                self._look_ahead(step.rows)
                refusal = outlet.send(step.number, step.rows)
                failpoints.reach("outbox_sent")
                self._sent_at = time.monotonic()
                if refusal is None and step.rows:
                    self._observers.on(OutboxSent(group=self.group, rows=len(step.rows), seconds=self._sent_at - began))
                return refusal
            case Rest():
                self._rest()
                return time.monotonic() - self._sent_at > _RENEW
        return None

    def _take(self) -> None:
        with (
            transaction(self._database, name=_NAME, lock_timeout=2 * _TAKEOVER) as session,
            self._database.unblocking(session, after=_TAKEOVER, older_than=_NAME),
            needing(_RIGHT),
        ):
            session.identity().expect_home(self._database.schema)
            people(session).run(TAKE, token=self._token, owner=self._owner)

    def _read(self) -> Standing:
        row = self._ask(lambda session: session.first(READ))
        if row is None or row.token != self._token:
            raise self._fenced(row)
        return Standing(row.batch, row.ids, row.cluster_id)

    def _fenced(self, row: Any) -> RelayFenced:
        return RelayFenced(
            "another relay has taken the outbox over",
            found="no relay's row" if row is None else f"token {row.token} of {row.owner}",
            expected=f"token {self._token} of {self._owner}",
        )

    def _rows(self, statement: str, **values: object) -> Sequence[OutboxRow]:
        return [
            OutboxRow(row.id, OutboxRecord(row.topic, row.key, row.value, read_headers(row.headers)))
            for row in self._ask(lambda session: session.rows(statement, **values))
        ]

    def _look(self, step: Look) -> Sequence[OutboxRow]:
        ahead, self._ahead = self._ahead, None
        if ahead is not None and ahead[0] == step.without:
            return ahead[1].result()[: step.most]
        return self._rows(LOOK, without=_array(step.without), most=step.most, bytes=_MOST_BYTES)

    def _look_ahead(self, rows: Sequence[OutboxRow]) -> None:
        """While a full batch is being sent, look for the next one: there are probably more rows."""
        self._ahead = None
        if len(rows) == self._most:
            sent = [row.id for row in rows]
            asked = {"without": _array(sent), "most": self._most, "bytes": _MOST_BYTES}
            self._ahead = sent, meanwhile("offsetstore-relay-look", lambda: self._rows(LOOK, **asked))

    def _ask(self, query: Callable[[PostgresSession], Any]) -> Any:
        with needing(_RIGHT):
            return ask(self._database, query)

    def _record(self, step: Record) -> None:
        with transaction(self._database, name=_NAME, lock_timeout=_TAKEOVER) as session, needing(_RIGHT):
            tx = people(session)
            changed = {"number": step.number, "ids": _array(step.ids), "cluster_id": step.cluster_id}
            if tx.run(RECORD, token=self._token, **changed) != 1:
                raise self._fenced(tx.first(READ))
            if step.refused:
                tx.run(SET_ASIDE, ids=_array(step.refused), errors=list(step.refused.values()))
            if step.done:
                tx.run(DELETE, ids=_array(step.done))
        if step.refused:
            self._observers.on(OutboxRefused(group=self.group, errors=step.refused))

    def _rest(self) -> None:
        """Wait for a NOTIFY, or a second."""
        began = time.monotonic()
        try:
            if self._listener is None:
                self._listener = self._database.listener()
                if self._listener.is_pooled:
                    _log.warning("the relay looks for rows once a second: LISTEN does not work behind a pooler")
                return  # rows may have come before it listened
            if not self._listener.is_pooled:
                self._listener.wait(_AT_REST)
                return
        except OffsetStoreError as error:
            if not _passes(error):
                raise
            self._forget_listener()  # the next look tells whether it was only this connection
        self._stopping.wait(max(0.0, _AT_REST - (time.monotonic() - began)))

    def _forget_listener(self) -> None:
        if self._listener is not None:
            self._listener.close()
        self._listener = None


_RIGHT: Final = "relay the outbox (`offsetstore grants --relay-role` prints what it needs)"


def _passes(error: OffsetStoreError) -> bool:
    return may_pass(error) or isinstance(error, BrokerUnavailable)


def _array(ids: Iterable[int]) -> str:
    """Write ids as PostgreSQL's array literal; a list of ten thousand takes psycopg many times as long."""
    return f"{{{','.join(map(str, ids))}}}"

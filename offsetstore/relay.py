"""The relay: produces the outbox to Kafka, each row exactly once for ``read_committed`` readers.

What it does next, and why that is exact, is `offsetstore.protocol.outbox.relaying`. Here each step is done.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from itertools import pairwise
from operator import attrgetter
from typing import Any, Final, cast
from uuid import uuid4

from offsetstore.errors import (
    BrokerError,
    BrokerRefused,
    BrokerUnavailable,
    ConfigurationError,
    OffsetStoreError,
    OutboxUncertain,
    RelayFenced,
    SinkError,
)
from offsetstore.kafka.broker import Broker
from offsetstore.kafka.outlet import Outlet
from offsetstore.offset_store import OffsetStore
from offsetstore.operations.people import ask, people
from offsetstore.postgres.database import PostgresDatabase
from offsetstore.postgres.errors import needing
from offsetstore.postgres.letters import read_headers
from offsetstore.postgres.outbox import Listener
from offsetstore.postgres.session import PostgresSession, as_array
from offsetstore.protocol import failpoints
from offsetstore.protocol.background import as_main_work, meanwhile
from offsetstore.protocol.events import OutboxRefused, OutboxSent, OutboxWaits
from offsetstore.protocol.functions import without_frames
from offsetstore.protocol.numbers import check_whole
from offsetstore.protocol.outbox import (
    ANCHOR,
    LOOKS,
    MOST_IN_A_ROW,
    MOST_ROWS,
    TOPIC_NAMES,
    Ask,
    Check,
    Fence,
    Fetch,
    Look,
    Mark,
    OnUncertain,
    OutboxRow,
    Pause,
    Peek,
    Read,
    Record,
    Refusal,
    Rest,
    Send,
    Standing,
    Step,
    Take,
    Trials,
    is_topic,
    relaying,
)
from offsetstore.protocol.retries import Retries, may_pass
from offsetstore.store.identity import this_process
from offsetstore.store.sessions import transaction

_log = logging.getLogger("offsetstore")

_NAME: Final = "offsetstore:relay"
_MOST_BYTES: Final = 8 << 20  # of one batch; a row that is larger is alone
_AT_REST: Final = 1.0  # seconds from one look to the next
_RENEW: Final = 3600.0  # seconds after which Kafka's number is set again; by default it expires after seven days
_REFUSED: Final = 300.0  # seconds in which Kafka may refuse requests once it has taken some: brokers restart
_TAKEOVER: Final = 30.0  # seconds to wait for a transaction of an earlier relay
_PATIENCE: Final = 60.0  # seconds until rows of a topic that is missing, or may not be written to, are set aside
_TRIAL: Final = 2.0  # seconds between two trials of a row, or two looks at Kafka's mark
_RETRIES: Final = Retries(shortest=0.1, longest=10.0)

TAKE: Final = """
INSERT INTO {s}outbox_relays AS r (shard, token, owner) VALUES (0, :token, :owner)
ON CONFLICT (shard) DO UPDATE SET token = excluded.token, owner = excluded.owner, taken_at = excluded.taken_at
"""
READ: Final = "SELECT token, owner, batch, ids, cluster_id, word, word_before FROM {s}outbox_relays WHERE shard = 0"

# ``total`` counts the bytes up to and with the row. A row is taken if those before it are below the limit.
LOOK: Final = """
SELECT id, topic, key, value, headers FROM (
SELECT o.id, o.topic, o.key, o.value, o.headers, size.bytes,
       sum(size.bytes) OVER (ORDER BY o.id ROWS UNBOUNDED PRECEDING) AS total
FROM {s}outbox AS o
CROSS JOIN LATERAL (SELECT coalesce(octet_length(o.key), 0) + coalesce(octet_length(o.value), 0)
                           + coalesce(octet_length(CAST(o.headers AS text)), 0) AS bytes) AS size
WHERE NOT o.id <@ CAST(:without AS int8multirange)
ORDER BY o.id LIMIT :most) AS w
WHERE w.total - w.bytes < :bytes
ORDER BY w.id
"""
FETCH: Final = "SELECT id, topic, key, value, headers FROM {s}outbox WHERE id = ANY(CAST(:ids AS bigint[])) ORDER BY id"

RECORD: Final = """
UPDATE {s}outbox_relays
SET batch = :number, ids = CAST(:ids AS bigint[]), cluster_id = coalesce(CAST(:cluster_id AS text), cluster_id),
    word = :word, word_before = :before, sent = sent + :sent
WHERE shard = 0 AND token = :token
"""
DELETE: Final = """
DELETE FROM {s}outbox WHERE id BETWEEN :first AND :last AND id <@ CAST(:ids AS int8multirange)
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
OTHERS: Final = "SELECT topic FROM {s}outbox WHERE topic <> ALL(CAST(:topics AS text[])) LIMIT 1"
LEFT: Final = "SELECT count(*) AS rows, min(id) AS first FROM {s}outbox WHERE id = ANY(CAST(:ids AS bigint[]))"


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
        if not is_topic(anchor):
            raise ConfigurationError("the name of the anchor is not valid", found=repr(anchor), expected=TOPIC_NAMES)
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
        self._recording: Future[None] | None = None
        self._deleting: Sequence[int] = ()
        self._ends_at_rest = False
        self._sent_at = -math.inf  # each start sets Kafka's mark again: processes may be short-lived
        self._has_taken = self._has_begun = self._has_sent = False
        self._refused_since: float | None = None
        self._sending = 0  # rows
        self._lacking: dict[str, float] = {}  # topics, and since when
        self._trials = Trials()

    @property
    def group(self) -> str:
        """Its group in Kafka, and its transactional id."""
        return f"{self._anchor}-{self._database.store_id()}"

    def stop(self) -> None:
        """Let `run` return, with everything it has sent deleted, and for good. Any thread may call it.

        It takes a second or two; while Kafka does not answer, up to three times the broker's ``timeout``.
        """
        self._stopping.set()

    def run(self) -> None:
        """Produce rows until `stop` is called, through outages of the database and of Kafka once it has begun.

        :raises RelayFenced: another relay has taken over.
        :raises OutboxUncertain: whether the last batch is in Kafka can't be told.
        :raises OffsetStoreError: at the start, an outage; later, what does not pass: Kafka refuses a transaction
            (`BrokerRefused`), the role lacks a privilege (`MissingPrivilege`), rows can't be deleted (`SinkError`).
        """
        with as_main_work():
            self._run(ends_at_rest=False)

    def drain(self) -> None:
        """Produce what is in the outbox now, and return when it is empty. Raises as `run`, and in an outage too.

        A row whose topic is missing is waited with for a minute, as by `run`.
        """
        self._run(ends_at_rest=True)

    def _run(self, *, ends_at_rest: bool) -> None:
        self._ends_at_rest = ends_at_rest
        self._has_taken = self._has_begun = False  # another relay may have run in between
        self._token = uuid4()  # what an earlier run of this object has left can't record anything
        self._outlet = self._broker.outlet(self.group, anchor=self._anchor)
        attempt = 0
        limit = self._most
        try:
            while True:
                began = time.monotonic()
                on_uncertain = "fail" if self._has_begun else self._on_uncertain  # it was decided once
                try:
                    self._follow(
                        relaying(
                            again=self._has_taken,
                            most=self._most,
                            limit=limit,
                            on_uncertain=on_uncertain,
                            trials=self._trials,
                        )
                    )
                except OffsetStoreError as error:
                    if not self._has_begun or ends_at_rest or not self._passes(error):
                        if self._has_taken and isinstance(error, BrokerError):
                            self._tell_of_successor(error)
                        raise
                    is_slow = self._sending and isinstance(error, BrokerError)
                    limit = max(1, self._sending // 2) if is_slow else self._most  # a slow line may take these
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
        self._end_recording()
        self._ahead = None
        self._deleting = ()
        self._has_sent = False
        self._sending = 0
        while True:
            step: Step = machine.send(answer)
            if not isinstance(step, Send):
                self._expect_recorded()
            if isinstance(step, (Look, Rest)) and self._stopping.is_set():
                if isinstance(step, Rest) or not step.without:
                    return
                answer = ()  # so that what was sent is deleted
            elif isinstance(step, Rest) and self._ends_at_rest and not self._has_to_renew():
                return
            elif isinstance(step, Send) and (refusal := self._refused_topics(step)) is not None:
                if self._stopping.is_set():
                    return
                answer = refusal
            elif isinstance(step, Pause):
                if self._pause(step):
                    return
                answer = None
            else:
                answer = self._do(step)

    def _do(self, step: Step) -> Any:  # noqa: C901, PLR0911, PLR0912 - one case for each step
        outlet = cast("Outlet", self._outlet)
        match step:
            case Take():
                self._take()
                self._has_taken = True
                failpoints.reach("outbox_taken")
            case Peek():
                return self._peek()
            case Check():
                self._check()
            case Read():
                return self._read()
            case Fence():
                outlet.fence()
                failpoints.reach("outbox_fenced")
            case Ask(is_fenced=is_fenced):
                return outlet.position(is_fenced=is_fenced)
            case Fetch(ids=ids):
                return self._rows(FETCH, ids=as_array(ids))
            case Look():
                self._has_begun = True
                return self._look(step)
            case Record():
                self._deleting = step.done
                if self._has_sent and step.before is not None and not step.refused:
                    self._recording = meanwhile("offsetstore-relay-record", lambda: self._record(step))
                else:  # at a start, what can't be recorded is not produced, again and again
                    self._record(step)
                    failpoints.reach("outbox_recorded")
            case Send():
                return self._send(step)
            case Pause():
                pass  # as is told by `_follow`, which may have to stop
            case Rest():
                if self._has_to_renew():
                    return True
                self._rest()
                return False
        return None

    def _send(self, step: Send) -> Refusal | None:
        began = time.monotonic()
        self._look_ahead(step.rows)
        self._sending = len(step.rows)
        refusal = cast("Outlet", self._outlet).send(step.mark, step.rows, before_commit=self._expect_recorded)
        failpoints.reach("outbox_sent")
        self._sending = 0
        if refusal is None:
            self._sent_at, self._has_sent = time.monotonic(), True
            self._refused_since = None
            if step.rows:
                self._observers.on(OutboxSent(group=self.group, rows=len(step.rows), seconds=self._sent_at - began))
        return refusal

    def _has_to_renew(self) -> bool:
        return time.monotonic() - self._sent_at > _RENEW

    def _refused_topics(self, step: Send) -> Refusal | None:
        """Set rows aside whose topics are missing, or may not be written to; but not before it has lasted a minute.

        A topic may be created a little later than its first rows. So this waits, and until then nothing else is sent.
        It goes on waiting if no rows of other topics are held up: nothing is gained by setting these aside, and if
        nothing may be written at all, it is the principal that is to blame.

        :raises TopicMissing, BrokerRefused: no others are held up, and we were to drain.
        """
        topics = set(map(attrgetter("topic"), step.rows))
        told = -math.inf
        while topics:
            lacking = cast("Outlet", self._outlet).lacking(topics)
            now = time.monotonic()
            for topic in topics - lacking.keys():
                self._lacking.pop(topic, None)
            since = max((self._lacking.setdefault(topic, now) for topic in lacking), default=now)
            if not lacking:
                return None
            self._expect_recorded()  # else rows that are in Kafka would still seem to wait
            is_over = now - since >= _PATIENCE
            if self._stopping.is_set() or (is_over and (topics - lacking.keys() or self._holds_others_up(topics))):
                return Refusal(certain={row.id: lacking[row.topic].what for row in step.rows if row.topic in lacking})
            if is_over and self._ends_at_rest:
                raise next(iter(lacking.values()))
            if (since == now or is_over) and now - told >= _PATIENCE:
                told = now
                for error in lacking.values():
                    self._observers.on(OutboxWaits(group=self.group, error=error, wait=_PATIENCE))
            if self._has_to_renew():  # this may last for longer than Kafka keeps an offset
                self._send(Send(cast("Mark", step.kafka)))
            self._stopping.wait(max(_AT_REST, 10 * (time.monotonic() - now)))  # a large outbox is read, see OTHERS
        return None

    def _holds_others_up(self, topics: Collection[str]) -> bool:
        """Whether rows wait whose topic may be written to."""
        known = [*topics]
        while found := self._ask(lambda session: session.first(OTHERS, topics=known)):
            if not cast("Outlet", self._outlet).lacking([found.topic]):
                return True
            known.append(found.topic)
        return False

    def _pause(self, step: Pause) -> bool:
        """Wait before a row is tried, or Kafka asked, again; return whether it is time to stop.

        :raises BrokerRefused: one row after the other is refused, and we were to drain.
        """
        wait = _TRIAL
        if step.refused is not None:
            wait = _RETRIES.longest
            error = BrokerRefused(
                f"Kafka has refused more than {MOST_IN_A_ROW} rows of the outbox one after the other",
                found=step.refused,
                next_step="This looks like a bug or an outage, so no more are set aside. Check the relay's settings, "
                "and the brokers' logs; `offsetstore outbox list` names the rows.",
            )
            if self._ends_at_rest:
                raise error
            self._observers.on(OutboxWaits(group=self.group, error=error, wait=wait))
        elif step.lost is not None:
            number = step.lost.number
            lost = OutboxUncertain(
                "Kafka seems to have lost the relay's position",
                found="no batch" if number is None else f"batch {number}",
                next_step="Wait: brokers that have just started may not know it yet, so they are asked again.",
            )
            self._observers.on(OutboxWaits(group=self.group, error=lost, wait=(LOOKS - 1) * _TRIAL))
        return self._stopping.wait(wait)

    def _passes(self, error: OffsetStoreError) -> bool:
        """Whether to begin again. What Kafka refuses, a new producer or a broker that has started may not refuse."""
        if not isinstance(error, BrokerRefused):
            return _passes(error)
        now = time.monotonic()
        if self._refused_since is None:
            self._refused_since = now
        return self._has_sent or now - self._refused_since < _REFUSED

    def _check(self) -> None:
        """Lock the row: a transaction of ours whose COMMIT was not answered may still hold it."""
        with transaction(self._database, name=_NAME, lock_timeout=_TAKEOVER) as session, needing(_RIGHT):
            row = people(session).first(f"{READ} FOR UPDATE")
            if row is None or row.token != self._token:
                raise self._fenced(row)

    def _peek(self) -> Standing:
        """Look at the row; a copy of the store is told here, before it ends the original's relay in Kafka."""

        def look(session: PostgresSession) -> Any:
            session.identity().expect_home(self._database.schema)
            return session.first(READ)

        return _standing(self._ask(look))

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
        return _standing(row)

    def _tell_of_successor(self, error: BrokerError) -> None:
        """Look for another relay before ending with an error of Kafka's, after which we may be started again.

        Kafka ends the producer of a relay that is replaced, but also that of one whose predecessor is not gone yet:
        only the token tells which we are.

        :raises RelayFenced: another relay has taken over.
        """
        try:
            self._read()
        except RelayFenced as fenced:
            raise fenced from error
        except OffsetStoreError:
            return

    def _fenced(self, row: Any) -> RelayFenced:
        return RelayFenced(
            "another relay has taken the outbox over",
            found="no relay's row" if row is None else f"token {row.token} of {row.owner}",
            expected=f"token {self._token} of {self._owner}",
        )

    def _rows(self, statement: str, **values: object) -> Sequence[OutboxRow]:
        new = cast("Any", tuple).__new__  # a third of the time of `_make`
        return [
            new(OutboxRow, row if row[-1] is None else (*row[:-1], read_headers(row[-1])))
            for row in self._ask(lambda session: session.tuples(statement, **values))
        ]

    def _look(self, step: Look) -> Sequence[OutboxRow]:
        ahead, self._ahead = self._ahead, None
        if ahead is not None and ahead[0] == step.without:
            return ahead[1].result()[: step.most]
        return self._rows(LOOK, without=_ranges(step.without), most=step.most, bytes=_MOST_BYTES)

    def _look_ahead(self, rows: Sequence[OutboxRow]) -> None:
        """While a full batch is being sent, look for the next one: there are probably more rows.

        Rows of the batch before may still be there: their deletion is perhaps not committed yet.
        """
        self._ahead = None
        if len(rows) == self._most or sum(len(row.value or b"") for row in rows) > _MOST_BYTES / 2:
            sent = [*map(attrgetter("id"), rows)]
            asked = {"without": _ranges(self._deleting, sent), "most": self._most, "bytes": _MOST_BYTES}
            self._ahead = sent, meanwhile("offsetstore-relay-look", lambda: self._rows(LOOK, **asked))

    def _expect_recorded(self) -> None:
        """Wait until what is being recorded is committed, and raise what has kept it from that.

        A batch is produced meanwhile, in a transaction that Kafka commits only after this.
        """
        if self._recording is not None:
            self._recording.result()
            self._recording = None
            failpoints.reach("outbox_recorded")

    def _end_recording(self) -> None:
        """Wait until nothing is being recorded, whatever comes of it: later, it would change what a new start reads."""
        if self._recording is not None:
            if (error := self._recording.exception()) is not None:
                without_frames(error)
            self._recording = None

    def _ask(self, query: Callable[[PostgresSession], Any]) -> Any:
        with needing(_RIGHT):
            return ask(self._database, query)

    def _record(self, step: Record) -> None:
        with transaction(self._database, name=_NAME, lock_timeout=_TAKEOVER) as session, needing(_RIGHT):
            tx = people(session)
            changed = {
                "number": step.mark.number,
                "word": step.mark.word,
                "before": step.before,
                "sent": len(step.done),
            }
            if tx.run(RECORD, token=self._token, ids=as_array(step.ids), cluster_id=step.cluster_id, **changed) != 1:
                raise self._fenced(tx.first(READ))
            if step.refused:
                moved = tx.one(SET_ASIDE, ids=as_array(step.refused), errors=list(step.refused.values()))
                _expect_gone(tx, step.refused, moved.gone)
                if moved.kept != moved.gone:
                    raise _kept("outbox_refused", "rows could not be set aside", f"{moved.kept} of {moved.gone} rows")
            if step.done:
                first, last = step.done[0], step.done[-1]
                _expect_gone(tx, step.done, tx.run(DELETE, ids=_ranges(step.done), first=first, last=last))
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
            without_frames(error)
            self._forget_listener()  # the next look tells whether it was only this connection
        self._stopping.wait(max(0.0, _AT_REST - (time.monotonic() - began)))

    def _forget_listener(self) -> None:
        if self._listener is not None:
            self._listener.close()
        self._listener = None


_RIGHT: Final = "relay the outbox (`offsetstore grants --relay-role` prints what it needs)"


def _standing(row: Any) -> Standing:
    return Standing() if row is None else Standing(row.batch, row.ids, row.cluster_id, row.word, row.word_before)


def _expect_gone(tx: PostgresSession, ids: Collection[int], gone: int) -> None:
    """Expect that no rows are left that were deleted: they would be sent again, without end.

    Somebody may have deleted some before.
    """
    if gone < len(ids):
        left = tx.one(LEFT, ids=as_array(ids))
        if left.rows:
            raise _kept("outbox", "rows were not deleted from the outbox", f"{left.rows} rows, from id {left.first}")


def _kept(table: str, what: str, found: str) -> SinkError:
    return SinkError(
        what, found=found, next_step=f"Look for a trigger, a rule or row-level security on the table {table}."
    )


def _passes(error: OffsetStoreError) -> bool:
    return may_pass(error) or isinstance(error, BrokerUnavailable)


def _ranges(*ids: Sequence[int]) -> str:
    """Write ascending ids as a multirange: most follow one another, so it is short, and PostgreSQL searches it fast."""
    ranges: list[str] = []
    for some in ids:
        if some:
            gaps = [(one, other) for one, other in pairwise(some) if other - one != 1]
            firsts = [some[0], *(other for _, other in gaps)]
            lasts = [*(one for one, _ in gaps), some[-1]]
            ranges += [f"[{first},{last}]" for first, last in zip(firsts, lasts, strict=True)]
    return f"{{{','.join(ranges)}}}"

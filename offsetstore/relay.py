"""The relay: produces the outbox to Kafka, each row exactly once for ``read_committed`` readers.

`offsetstore.protocol.outbox.relaying` decides what it does next, and says why that is exact (decision 0095). Each step
is carried out here.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
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
    StoreUnavailable,
    TransactionLost,
)
from offsetstore.kafka.broker import Broker
from offsetstore.kafka.outlet import Outlet, ProducerEnded
from offsetstore.offset_store import OffsetStore
from offsetstore.operations.people import ask, people
from offsetstore.operations.relay_record import RelayRecord
from offsetstore.postgres.database import PostgresDatabase
from offsetstore.postgres.errors import needing
from offsetstore.postgres.outbox import (
    SET_ASIDE,
    Listener,
    Portions,
    Reader,
    expect_all_rows,
    is_full,
    parts_of,
)
from offsetstore.postgres.session import PostgresSession
from offsetstore.postgres.statements import as_array
from offsetstore.protocol.arguments import check_whole
from offsetstore.protocol.database import Session
from offsetstore.protocol.events import OutboxBlocked, OutboxRefused, OutboxRests, OutboxSent, OutboxWaits
from offsetstore.protocol.outbox import (
    ANCHOR,
    LOOKS,
    MOST_ROWS,
    TOPIC_NAMES,
    AskForMark,
    CheckToken,
    Fence,
    Fetch,
    OnUncertain,
    OutboxRow,
    Peek,
    Probe,
    Read,
    ReadRows,
    Refusal,
    Rest,
    Send,
    Standing,
    Step,
    Take,
    WaitForMark,
    WriteBatch,
    is_topic,
    relaying,
)
from offsetstore.protocol.refusals import MOST_IN_A_ROW, Topics
from offsetstore.protocol.refusals import TRIAL as _TRIAL
from offsetstore.protocol.retries import Retries, may_pass
from offsetstore.runtime import failpoints
from offsetstore.runtime.background import Background, as_main_work, meanwhile
from offsetstore.runtime.functions import without_frames
from offsetstore.store.identity import this_process
from offsetstore.store.sessions import transaction

_log = logging.getLogger("offsetstore")

_NAME: Final = "offsetstore:relay"
_AT_REST: Final = 1.0  # seconds from one look to the next
# Seconds after which Kafka's mark is set again. It expires with offsets.retention.minutes, which may be ten; another
# minute may pass while the database or Kafka does not answer.
_RENEW: Final = 240.0
_REFUSED: Final = 300.0  # seconds in which Kafka may refuse requests once it has taken some: brokers restart
_TAKEOVER: Final = 30.0  # seconds to wait for a transaction of an earlier relay
_PATIENCE: Final = 60.0  # seconds that `Relay.drain` waits for topics that are blocked
_SILENCE: Final = 60.0  # seconds without an answer of the database, beyond the time for locks: a proxy may forget
# Seconds for which a relay that is to stop waits for the database or Kafka; then it leaves, as safe as by a kill.
_LEAVING: Final = 20.0
_LATE_FENCES: Final = 3  # times that Kafka may end the producer at the start, although the token is ours
_RETRIES: Final = Retries(shortest=0.1, longest=10.0)

TAKE: Final = """
INSERT INTO {s}outbox_relays AS r (shard, token, owner) VALUES (0, :token, :owner)
ON CONFLICT (shard) DO UPDATE SET token = excluded.token, owner = excluded.owner, taken_at = excluded.taken_at
"""
READ: Final = "SELECT token, owner, batch, ids, cluster_id, word, word_before FROM {s}outbox_relays WHERE shard = 0"

RECORD: Final = """
UPDATE {s}outbox_relays
SET batch = :number, ids = CAST(:ids AS bigint[]), cluster_id = coalesce(CAST(:cluster_id AS text), cluster_id),
    word = :word, word_before = :before, sent = sent + :sent
WHERE shard = 0 AND token = :token
"""
DELETE: Final = """
DELETE FROM {s}outbox WHERE id BETWEEN :first AND :last AND id <@ CAST(:ids AS int8multirange)
"""
HERE: Final = """
SELECT count(*) AS rows FROM {s}outbox WHERE id BETWEEN :first AND :last AND id <@ CAST(:ids AS int8multirange)
"""
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
        self._ahead: _Ahead | None = None
        self._recording: Future[None] | None = None
        self._deleting: Sequence[int] = ()
        self._ends_at_rest = False
        self._sent_at = -math.inf  # each start sets Kafka's mark again: processes may be short-lived
        self._has_taken = self._has_begun = self._has_sent = False
        self._refused_since: float | None = None
        self._sending = 0  # rows
        self._is_full = False  # whether the last look has found as many rows as it may
        self._has_news = False  # whether something was sent, or waited for, since it has last come to rest
        self._lacking: Mapping[str, BrokerError] = {}
        self._blocked_since: float | None = None
        self._topics = Topics(most)
        self._portions = Portions()
        # Counted apart: a deletion that is too slow says nothing of what can be read (decision 0095).
        self._deletions = Portions()
        self._waits: dict[PostgresSession, float] = {}  # sessions of the database, and until when to wait for each

    @property
    def group(self) -> str:
        """Its group in Kafka, and its transactional id."""
        return f"{self._anchor}-{self._database.store_id()}"

    def stop(self) -> None:
        """Let `run` return, with everything it has sent deleted, and for good. Any thread may call it.

        It takes a second or two. If the database or Kafka does not answer, it takes 20 seconds, and then leaves behind
        what waits for them, as a kill does: the next relay goes on from there.
        """
        self._stopping.set()

    def run(self) -> None:
        """Produce rows until `stop` is called, through outages of the database and of Kafka once it has begun.

        :raises RelayFenced: another relay has taken over.
        :raises OutboxUncertain: it is unknown whether the last batch is in Kafka.
        :raises OffsetStoreError: at the start, an outage; later, what does not pass: Kafka refuses a transaction
            (`BrokerRefused`), the role lacks a privilege (`MissingPrivilege`), rows can't be deleted (`SinkError`).
        """
        record = self._record_of_run()
        with as_main_work():
            work = meanwhile("offsetstore-relay", lambda: self._run_recorded(record, ends_at_rest=False))
            try:
                while not (self._stopping.is_set() or wait([work], timeout=0.5).done):
                    pass
            except BaseException:  # Ctrl-C
                self._stopping.set()
                raise
            finally:
                if self._stopping.is_set() and wait([work], timeout=_LEAVING).not_done:
                    _log.warning("the database or Kafka does not answer: the relay stops without having ended its work")
                    record.end("closed")
        if work.done():
            work.result()

    def drain(self) -> None:
        """Produce what is in the outbox now, and return when it is empty. Raises as `run`, and in an outage too.

        If a topic is blocked, because it is missing for example, this waits a minute for it.
        """
        self._run_recorded(self._record_of_run(), ends_at_rest=True)

    def _record_of_run(self) -> RelayRecord:
        return RelayRecord(self._database, self._owner, right=_RIGHT)

    def _run_recorded(self, record: RelayRecord, *, ends_at_rest: bool) -> None:
        observers = self._observers
        self._observers = observers.with_one(record)
        try:
            with record.running():
                self._run(ends_at_rest=ends_at_rest)
        finally:
            self._observers = observers

    def _run(self, *, ends_at_rest: bool) -> None:
        self._ends_at_rest = ends_at_rest
        self._has_taken = self._has_begun = False  # another relay may have run in between
        self._token = uuid4()  # what an earlier run of this object has left can't record anything
        self._blocked_since = None
        self._outlet = self._broker.outlet(self.group, anchor=self._anchor)
        attempt = late_fences = 0
        limit = self._most
        watch = self._watch()
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
                            topics=self._topics,
                        )
                    )
                except OffsetStoreError as error:
                    if not self._has_begun or ends_at_rest or not self._passes(error):
                        if self._has_taken and isinstance(error, BrokerError):
                            self._expect_no_successor(error)
                        # A predecessor may have fenced us before it looked at the token; it does so once.
                        is_late = isinstance(error, ProducerEnded) and self._has_taken and not self._has_begun
                        if not is_late or late_fences == _LATE_FENCES:
                            raise
                        late_fences += 1
                    is_slow = self._sending and isinstance(error, BrokerError)
                    limit = max(1, self._sending // 2) if is_slow else self._most  # a slow line may take these
                    attempt = 1 if time.monotonic() - began > _RETRIES.longest else attempt + 1
                    wait = _RETRIES.wait(attempt)
                    self._tell_wait(error, wait)
                    if self._stopping.wait(wait):
                        return
                    self._renew()
                else:
                    return
        finally:
            self._outlet.close()
            self._forget_listener()
            watch.stop(0)

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
            for topic, row, why in self._topics.untold():
                self._observers.on(OutboxBlocked(group=self.group, topic=topic, row=row, error=why))
            if isinstance(step, (ReadRows, Rest)):
                if self._stopping.is_set() and (isinstance(step, Rest) or not step.without):
                    return
                if isinstance(step, Rest) and self._is_drained():
                    return
                self._renew()
            if isinstance(step, ReadRows) and self._stopping.is_set():
                answer = ()  # so that what was sent is deleted
            elif isinstance(step, WaitForMark):
                if self._pause(step):
                    return
                answer = None
            else:
                answer = self._do(step)

    def _is_drained(self) -> bool:
        """Whether this is `drain`, and nothing is left to be sent.

        :raises TopicMissing, BrokerRefused: a topic has been blocked for a minute.
        """
        if not self._ends_at_rest or self._has_to_renew() or self._topics.has_trials:
            return False
        if not (blocked := self._topics.blocked):
            return True
        now = time.monotonic()
        if self._blocked_since is None:
            self._blocked_since = now
        if now - self._blocked_since < _PATIENCE:
            return False
        topic, row, why = blocked[0]
        raise self._lacking.get(topic) or BrokerRefused(
            f"topic {topic} is blocked: Kafka has refused {MOST_IN_A_ROW} rows and taken none in between",
            found=f"row {row}: {why}",
            next_step="This looks like a bug or an outage, so no more are set aside. Check the relay's settings, and "
            "the brokers' logs. `offsetstore outbox set-aside` takes rows out of the way.",
        )

    def _renew(self) -> None:
        """Set Kafka's mark again if it is time, even while the database does not answer or all topics are blocked."""
        outlet = cast("Outlet", self._outlet)
        if self._has_to_renew() and outlet.kept is not None:
            with suppress(BrokerError):  # the next batch tells
                outlet.renew()
                self._sent_at = time.monotonic()

    def _do(self, step: Step) -> Any:  # noqa: C901, PLR0911, PLR0912 - one case for each step
        outlet = cast("Outlet", self._outlet)
        match step:
            case Take():
                self._take()
                self._has_taken = True
                failpoints.reach("outbox_taken")
            case Peek():
                return self._peek()
            case CheckToken():
                self._check()
            case Read():
                return self._read()
            case Fence():
                outlet.fence()
                failpoints.reach("outbox_fenced")
            case AskForMark(is_fenced=is_fenced):
                return outlet.position(is_fenced=is_fenced)
            case Fetch(ids=ids):
                return self._reader.fetch(ids)
            case ReadRows():
                self._has_begun = True
                return self._look(step)
            case Probe(topics=topics):
                self._lacking = outlet.lacking(topics)
                return {topic: error.what for topic, error in self._lacking.items()}
            case WriteBatch():
                self._deleting = step.done
                if self._has_sent and step.before is not None and not step.refused:
                    self._recording = meanwhile("offsetstore-relay-record", lambda: self._record(step))
                else:
                    # At a start it is recorded first: what can't be recorded would fill the log with aborted
                    # transactions (decision 0095).
                    self._record(step)
                    failpoints.reach("outbox_recorded")
            case Send():
                return self._send(step)
            case WaitForMark():
                pass  # `_follow` waits, because it may have to stop
            case Rest():
                if self._has_news:
                    self._has_news = False
                    self._observers.on(OutboxRests(group=self.group, blocked=len(self._topics.blocked)))
                if self._has_to_renew():
                    return True
                self._rest()
                return False
        return None

    def _send(self, step: Send) -> Refusal | None:
        if step.rows:
            # First the mark alone: if a partition can't be written to, the batch may take longer than the mark lasts.
            if step.kafka is not None and self._has_to_renew():
                cast("Outlet", self._outlet).send(step.kafka, (), before_commit=lambda: None)
                self._sent_at = time.monotonic()
            self._look_ahead(step.rows)
        began = time.monotonic()
        self._sending = len(step.rows)
        refusal = cast("Outlet", self._outlet).send(step.mark, step.rows, before_commit=self._expect_recorded)
        failpoints.reach("outbox_sent")
        self._sending = 0
        if refusal is None:
            self._sent_at, self._has_sent = time.monotonic(), True
            self._refused_since = None
            if step.rows:
                self._has_news = True
                self._observers.on(OutboxSent(group=self.group, rows=len(step.rows), seconds=self._sent_at - began))
        return refusal

    def _has_to_renew(self) -> bool:
        return time.monotonic() - self._sent_at > _RENEW

    def _pause(self, step: WaitForMark) -> bool:
        """Wait before Kafka is asked again; return whether it is time to stop."""
        if step.lost is not None:
            number = step.lost.number
            lost = OutboxUncertain(
                "Kafka seems to have lost the relay's position",
                found="no batch" if number is None else f"batch {number}",
                next_step="Wait: brokers that have just started may not know it yet, so they are asked again.",
            )
            self._tell_wait(lost, (LOOKS - 1) * _TRIAL)
        return self._stopping.wait(_TRIAL)

    def _tell_wait(self, error: OffsetStoreError, wait: float) -> None:
        """Report that the relay waits; its next rest reports that this is over."""
        self._has_news = True
        self._observers.on(OutboxWaits(group=self.group, error=error, wait=wait))

    def _passes(self, error: OffsetStoreError) -> bool:
        """Whether to begin again. What Kafka refuses may pass with a new producer, or once a broker has started."""
        if not isinstance(error, BrokerRefused):
            return _passes(error)
        now = time.monotonic()
        if self._refused_since is None:
            self._refused_since = now
        return self._has_sent or now - self._refused_since < _REFUSED

    def _check(self) -> None:
        """Compare the token, with the row locked: a transaction of ours whose COMMIT was not answered may hold it."""
        with self._transaction() as session, needing(_RIGHT):
            self._expect_token(people(session))

    def _peek(self) -> Standing:
        """Look at the row; the relay of a copy of the store stops here, before it ends the original's in Kafka."""

        def look(session: PostgresSession) -> Any:
            session.identity().expect_home(self._database.schema)
            expect_all_rows(session)
            return session.first(READ)

        return _standing(self._ask(look))

    def _take(self) -> None:
        with (
            self._transaction(lock_timeout=2 * _TAKEOVER) as session,
            self._database.unblocking(session, after=_TAKEOVER, older_than=_NAME),
            needing(_RIGHT),
        ):
            session.identity().expect_home(self._database.schema)
            people(session).run(TAKE, token=self._token, owner=self._owner)

    def _read(self) -> Standing:
        def read(session: PostgresSession) -> Any:
            expect_all_rows(session)
            return session.first(READ)

        row = self._ask(read)
        if row is None or row.token != self._token:
            raise self._fenced(row)
        return _standing(row)

    def _expect_no_successor(self, error: BrokerError) -> None:
        """Look for another relay after an error of Kafka's.

        :raises RelayFenced: another relay has taken over.
        """
        # Kafka ends the producer of a relay that is replaced, but also of one whose predecessor has fenced a little
        # late: only the token tells which we are (decision 0095).
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

    @property
    def _reader(self) -> Reader:
        return Reader(self._ask, self._portions, largest=cast("Outlet", self._outlet).largest)

    def _look(self, step: ReadRows) -> Sequence[OutboxRow]:
        ahead, self._ahead = self._ahead, None
        if ahead is not None and ahead.is_of(step):
            rows = ahead.rows.result()[: step.most]
        else:
            rows = self._reader.look(_ranges(step.without), step.most, only=step.only, but=step.but)
        self._is_full = step.only is None and is_full(rows, self._portions.of(step.most))
        return rows

    def _look_ahead(self, rows: Sequence[OutboxRow]) -> None:
        """While a full batch is being sent, look for the next one: there are probably more rows."""
        sent = [*map(attrgetter("id"), rows)]
        if self._ahead is not None and self._ahead.is_rest(sent):
            return
        self._ahead = None
        if self._is_full:
            # Rows of the batch before may still be there: their deletion may not be committed yet.
            reader, but, without = self._reader, tuple(self._topics.apart), _ranges(self._deleting, sent)
            looked = meanwhile("offsetstore-relay-look", lambda: reader.look(without, self._most, but=but))
            self._ahead = _Ahead(sent, but, looked)

    def _expect_recorded(self) -> None:
        """Wait until what is being recorded is committed; raise its error if it failed.

        A batch is produced meanwhile, in a transaction that Kafka commits only after this.
        """
        if self._recording is not None:
            self._recording.result()
            self._recording = None
            failpoints.reach("outbox_recorded")

    def _end_recording(self) -> None:
        """Wait until nothing is being recorded, even if it fails: later it would change what a new start reads."""
        if self._recording is not None:
            if (error := self._recording.exception()) is not None:
                without_frames(error)
            self._recording = None

    def _ask(self, query: Callable[[PostgresSession], Any]) -> Any:
        watched: list[PostgresSession] = []

        def watching(session: PostgresSession) -> Any:
            watched.append(session)
            self._waits[session] = time.monotonic() + _SILENCE
            return query(session)

        try:
            with needing(_RIGHT):
                return ask(self._database, watching)
        finally:
            for session in watched:
                self._waits.pop(session, None)

    @contextmanager
    def _transaction(self, lock_timeout: float | None = None) -> Generator[Session]:
        lock_timeout = _TAKEOVER if lock_timeout is None else lock_timeout
        watched: list[PostgresSession] = []
        try:
            with transaction(self._database, name=_NAME, lock_timeout=lock_timeout) as session:
                watched.append(people(session))
                self._waits[watched[0]] = time.monotonic() + lock_timeout + _SILENCE
                yield session
        finally:
            for begun in watched:
                self._waits.pop(begun, None)

    def _watch(self) -> Background:
        watch = Background("offsetstore-relay-watch", self._end_waits, lambda: 0.5)
        watch.start()
        return watch

    def _end_waits(self) -> bool:
        """Break connections on which the database has not answered for too long; see `PostgresSession.sever`."""
        # No setting of TCP notices a proxy that acknowledges and forgets (decision 0095).
        now = time.monotonic()
        for session, end in [*self._waits.items()]:
            if now >= end:
                session.sever()
        return True

    def _record(self, step: WriteBatch) -> None:
        try:
            *before, last = parts_of(step.done, self._deletions) or [()]
            for part in before:  # what is in Kafka may be deleted at any time
                with self._transaction() as session, needing(_RIGHT):
                    self._expect_token(people(session))
                    _delete(people(session), part)
            self._record_with(step, last)
        except StoreUnavailable as error:
            self._deletions.given_up(error)
            raise
        self._deletions.went_well()
        if (ahead := self._ahead) is not None:  # which the thread that sends may forget meanwhile
            ahead.aside.update(step.refused)
        if step.refused:
            self._observers.on(OutboxRefused(group=self.group, errors=step.refused))

    def _expect_token(self, tx: PostgresSession) -> None:
        row = tx.first(f"{READ} FOR UPDATE")
        if row is None or row.token != self._token:
            raise self._fenced(row)

    def _record_with(self, step: WriteBatch, done: Sequence[int]) -> None:
        with self._transaction() as session, needing(_RIGHT):
            tx = people(session)
            changed = {
                "number": step.mark.number,
                "word": step.mark.word,
                "before": step.before,
                "sent": len(step.done),
            }
            if tx.run(RECORD, token=self._token, ids=as_array(step.ids), cluster_id=step.cluster_id, **changed) != 1:
                raise self._fenced(tx.first(READ))
            # Whoever sets rows aside locks our row first, and leaves out those of the batch (decision 0095). A batch
            # that is recorded for another cluster may have rows that somebody has deleted before.
            if step.ids and step.cluster_id is None:
                _expect_here(tx, step.ids)
            if step.refused:
                moved = tx.one(SET_ASIDE, ids=as_array(step.refused), errors=list(step.refused.values()))
                _expect_gone(tx, step.refused, moved.gone)
                if moved.kept != moved.gone:
                    raise _kept("outbox_refused", "rows could not be set aside", f"{moved.kept} of {moved.gone} rows")
            if done:
                _delete(tx, done)

    def _rest(self) -> None:
        """Wait for a NOTIFY, or a second."""
        began = time.monotonic()
        try:
            if self._listener is None:
                self._listener = self._listen()
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

    def _listen(self) -> Listener:
        made = meanwhile("offsetstore-relay-listen", self._database.listener)
        if wait([made], timeout=_SILENCE).not_done:
            raise StoreUnavailable(
                f"no answer from the database within {_SILENCE:g} s", found="while beginning to LISTEN"
            )
        return made.result()

    def _forget_listener(self) -> None:
        if self._listener is not None:
            self._listener.close()
        self._listener = None


RELAY_ROLE: Final = "--relay-role"
"""The option of `offsetstore grants` for the role that relays."""
_RIGHT: Final = ("relay the outbox", RELAY_ROLE)


@dataclass
class _Ahead:
    """What was looked for while a batch was being sent.

    :param sent: the batch; ``aside`` are its rows that have been set aside since, and ``but`` are the topics left out.
    """

    sent: Sequence[int]
    but: Sequence[str]
    rows: Future[Sequence[OutboxRow]]
    aside: set[int] = field(default_factory=set[int])

    def is_rest(self, ids: Sequence[int]) -> bool:
        """Whether these are what is left of the batch, and all others are set aside."""
        if not self.aside:
            return ids == self.sent
        return len(ids) + len(self.aside) == len(self.sent) and {*ids} | self.aside == {*self.sent}

    def is_of(self, step: ReadRows) -> bool:
        return step.only is None and step.but == self.but and self.is_rest(step.without)


def _standing(row: Any) -> Standing:
    return Standing() if row is None else Standing(row.batch, row.ids, row.cluster_id, row.word, row.word_before)


def _delete(tx: PostgresSession, ids: Sequence[int]) -> None:
    _expect_gone(tx, ids, tx.run(DELETE, ids=_ranges(ids), first=ids[0], last=ids[-1]))


def _expect_here(tx: PostgresSession, ids: Sequence[int]) -> None:
    """Expect that all rows of a batch are still in the outbox: what somebody has set aside must not be sent as well.

    :raises TransactionLost: some are not.
    """
    here = tx.one(HERE, ids=_ranges(ids), first=ids[0], last=ids[-1]).rows
    if here != len(ids):
        raise TransactionLost(
            "rows were taken out of the outbox when they were about to be sent; none of the batch was sent",
            found=f"{here} of {len(ids)} rows",
            next_step="The relay looks again.",
        )


def _expect_gone(tx: PostgresSession, ids: Collection[int], gone: int) -> None:
    """Expect that no rows are left that were to be deleted: they would be sent again, without end."""
    # Somebody may have deleted some before, so the remaining rows count, not the deleted ones.
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
            gaps = [(last, first) for last, first in pairwise(some) if first - last != 1]
            firsts = [some[0], *(first for _, first in gaps)]
            lasts = [*(last for last, _ in gaps), some[-1]]
            ranges += [f"[{first},{last}]" for first, last in zip(firsts, lasts, strict=True)]
    return f"{{{','.join(ranges)}}}"

"""A claim: one job's right to write for a consumer group, until the next claim. `acquire` makes it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection, Generator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Literal, Self, TypeVar, get_args
from urllib.parse import quote
from uuid import UUID

from offsetstore.errors import ClaimInUse, ConfigurationError, OffsetStoreError, ProtocolMisuse, StaleClaim
from offsetstore.offsets import BrokerView, StoredOffset, Suspect, Token, TopicPartition
from offsetstore.protocol.arguments import check_new_name, check_seconds, check_text
from offsetstore.protocol.database import Session
from offsetstore.protocol.events import ClaimEnded, ClaimTaken, DatabaseAsked
from offsetstore.protocol.log_evidence import FindTruncated, log_truncated
from offsetstore.protocol.marking import Marking, Position
from offsetstore.protocol.metadata import Formats, check_formats, dump, format_of, load
from offsetstore.protocol.ports import BrokerOffsets, CheckpointFiles
from offsetstore.protocol.retries import may_pass
from offsetstore.protocol.runs import JobError
from offsetstore.protocol.starting import StartingOffsets, StartPolicy
from offsetstore.protocol.store_facts import Stamp, digest
from offsetstore.runtime.functions import call
from offsetstore.runtime.process import expect_own, is_own
from offsetstore.store import mirror as mirrors
from offsetstore.store.heartbeat import Heartbeat, RunRecord
from offsetstore.store.identity import name_prefix, taken_by
from offsetstore.store.log_watch import LogWatch, can_tell
from offsetstore.store.mirror import INTERVAL, Mirror, MirrorTarget
from offsetstore.store.notes import read_own
from offsetstore.store.sessions import ClaimRows, Connected, read, repeat
from offsetstore.store.term import Term, Terms, delivered
from offsetstore.store.transaction import Transaction
from offsetstore.text import logger

Takeover = Literal["fence", "wait", "refuse"]
# Seconds that the last look at the logs gets even if the last copy has taken all the time.
_LAST_LOOK = 0.1
_T = TypeVar("_T")

_log = logger(__name__)


@dataclass(frozen=True, slots=True)
class ClaimRequest:
    """The arguments of a claim; see `OffsetStore.claim`."""

    group: str
    broker: BrokerOffsets | None
    topics: tuple[str, ...]
    policy: StartPolicy
    takeover: Takeover
    takeover_timeout: float
    kafka_group: str
    mirror_every: float | None = INTERVAL
    checkpoint: CheckpointFiles | None = None
    metadata: Formats = None
    shared: bool = False
    """Whether it is for a fleet, which another fleet replaces even while it is live."""
    partitions: frozenset[TopicPartition] | None = None
    """The partitions that a member takes; ``None`` for the whole group."""

    def __post_init__(self) -> None:
        """Check the arguments, before any request.

        :raises ConfigurationError: an argument is invalid; the error names it.
        """
        check_new_name("group", self.group)
        if not self.group:
            raise ConfigurationError("group must be a name", found=repr(self.group))
        check_text("kafka_group", self.kafka_group)
        for topic in self.topics:
            check_new_name("a topic", topic)
        if not self.topics:
            found = None if self.broker is None else "options without subscribe or assign"
            raise ConfigurationError(
                "the claim names no topics",
                found=found,
                expected='topics=["..."], or a broker made from the options that Spark\'s reader gets',
            )
        if self.takeover not in get_args(Takeover):
            raise ConfigurationError(
                "takeover has an unknown value", found=repr(self.takeover), expected=" or ".join(get_args(Takeover))
            )
        check_seconds("takeover_timeout", self.takeover_timeout, or_zero=True)
        if self.mirror_every is not None:
            check_seconds("mirror_every", self.mirror_every)
        check_formats(self.metadata, self.topics)

    def view(self) -> BrokerView | None:
        """Kafka's current offsets, ``None`` without a broker."""
        if self.broker is None:
            return None
        view, group, timestamp_ms = self.broker.view, self.kafka_group, self.policy.timestamp_ms
        if self.partitions is None:
            return call(view, group, self.topics, timestamp_ms=timestamp_ms)
        # Other topics are left out: an error of theirs is not this member's.
        topics = sorted({tp.topic for tp in self.partitions})
        return call(view, group, topics, timestamp_ms=timestamp_ms, partitions=self.partitions)

    @property
    def find_truncated(self) -> FindTruncated | None:
        """How to ask for logs whose leader epoch has changed, ``None`` if the broker can't tell."""
        find = getattr(self.broker, "find_truncated", None)  # a user's own implementation may predate it
        return None if find is None else partial(call, find)

    @property
    def mirrored_to(self) -> BrokerOffsets | None:
        """The broker that the claim copies its offsets to, ``None`` for no mirror."""
        # A user's own implementation may predate the mirror.
        can = all(hasattr(self.broker, method) for method in ("committed_offsets", "has_members", "commit"))
        return self.broker if can and self.mirror_every is not None else None


@dataclass(frozen=True, slots=True)
class Acquired:
    """What the claim's transaction wrote; see `Claim`."""

    token: Token
    terms: Terms
    starting: StartingOffsets | None
    owner: str
    store_id: UUID
    fenced: str | None = None


class Claim:
    """The right to write for ``group``, made by `OffsetStore.claim`.

    It sends heartbeats, and copies its offsets to Kafka, until it is closed. Every write is checked against ``token``.
    ``partitions`` are those known to have rows, ``starting`` is the resolved start (``None`` without a broker),
    ``mirror`` copies the offsets to Kafka (``None`` if that is off), and ``owner`` describes this process, for people.
    Once the claim ``is_closed``, the sink no longer writes with it; once it ``is_lost``, it knows that another claim
    has taken over, or that the group was reset or renamed, and ``taken_by`` tells who did that. ``fenced`` tells whom
    the claim itself has fenced, ``None`` if nobody was known to run. Once a delivery ``has_made_rows``, the job's
    function has no bug for every record. ``close_error`` is what `close` has raised last. ``is_member`` tells whether
    other members of a fleet share the group.
    """

    is_member: bool = False

    def __init__(
        self,
        store: Connected,
        request: ClaimRequest,
        acquired: Acquired,
        *,
        has_members: bool = False,
        after_fleet: bool = False,
    ) -> None:
        self._pid = os.getpid()
        self.database = store.database
        self.timeouts = store.timeouts
        self.retries = store.retries
        self._run = RunRecord(request.group, acquired.token, of_member=request.shared)
        self.observers = store.observers.with_one(self._run)
        self.group = request.group
        self.broker = request.broker
        self.topics = request.topics
        self.token = acquired.token
        self.terms = acquired.terms
        self.formats = request.metadata
        self.starting = acquired.starting
        self.owner = acquired.owner
        self.store_id = acquired.store_id
        # Eight digits of the id: PostgreSQL keeps 63 bytes of the name, and each transaction adds nine of its own.
        self.name = f"{name_prefix(request.group)}{self.token.epoch}:{self.token.claim_id.hex[:8]}"
        self.checkpoint_base: str | None = None
        self.keeps_checkpoint = False
        self.is_closed = False
        self.is_lost = False
        self.taken_by: str | None = None
        self.fenced = acquired.fenced
        self.has_made_rows = False
        self._lost: Mapping[TopicPartition, str] = {}
        self._query_id: str | None = None
        self._is_reserved = False
        self._at_close: list[Callable[[], object]] = []
        self.close_error: Exception | None = None
        self._binding = threading.Lock()
        self._heartbeat = Heartbeat(
            self.database,
            self.name,
            beat=self._beat,
            end=self._end_beat,
            on_lost=self.lose,
            on_asked=lambda error: self.observers.on(DatabaseAsked(group=self.group, error=error)),
            run=self._run,
        )
        self.mirror: Mirror | None = None
        self._logs: LogWatch | None = None
        if acquired.starting is not None and not self.is_member:
            self._begin_beside(request, acquired.starting, has_members=has_members, after_fleet=after_fleet)
        self.observers.on(
            ClaimTaken(group=self.group, token=self.token, owner=self.owner, starting=self.starting, fenced=self.fenced)
        )

    @property
    def group_token(self) -> Token:
        """The token of the group's row."""
        return self.token

    @property
    def partitions(self) -> AbstractSet[TopicPartition]:
        """The partitions known to have rows; a member's are those that it has."""
        return {tp for tp, term in self.terms.items() if term.has_row}

    def term(self, tp: TopicPartition) -> Term | None:
        """What the claim keeps of the partition, ``None`` if it does not have it; see `offsetstore.store.term`."""
        return self.terms.get(tp)

    def new_terms(self, partitions: Collection[TopicPartition]) -> Terms:
        """See `ClaimInfo`."""
        if any(tp not in self.terms for tp in partitions):
            with self._binding:
                self.terms = {**{tp: Term(has_row=False) for tp in partitions}, **self.terms}
        return self.terms

    def no_term(self, tp: TopicPartition) -> OffsetStoreError | None:  # noqa: ARG002 - nothing is kept of others
        """See `ClaimInfo`."""
        return None

    def note_positions(self, positions: Mapping[TopicPartition, Position]) -> None:
        """Record how far the job has come in memory in partitions that it has."""
        terms = self.terms
        for tp in terms.keys() & positions.keys():
            terms[tp].position = positions[tp]

    def _beat(self, session: Session) -> bool:
        is_ours = session.beat(self.token.claim_id)
        if not is_ours and not self.is_closed:
            self.taken_by = taken_by(session, self.group)
        return is_ours

    def _end_beat(self, session: Session) -> None:
        session.end_beat(self.token.claim_id)

    def lose(self, lost: Terms | None = None, *, by: str | None = None) -> None:  # noqa: ARG002 - it has all or none
        """See `ClaimInfo`."""
        with self._binding:
            was_lost, self.is_lost = self.is_lost, True
            self.taken_by = by or self.taken_by
        if not was_lost:
            self.observers.on(ClaimEnded(group=self.group, token=self.token, outcome="fenced", by=self.taken_by))

    def unblock(self, partitions: Collection[TopicPartition]) -> None:
        """Do nothing: a job shares its partitions with nobody."""

    def note_lost(self, found: Mapping[TopicPartition, str]) -> None:
        """Record logs that lost records while the job ran, each with the evidence: the job must not go on in them."""
        self._lost = dict(found)

    def require_log(self) -> None:
        """Refuse to go on in a log that is known to have lost records.

        :raises LogTruncated: it has been seen while the job ran; see `note_lost`.
        """
        for tp, what in sorted(self._lost.items()):
            raise log_truncated(tp, Suspect(what))

    def _begin_beside(
        self, request: ClaimRequest, starting: StartingOffsets, *, has_members: bool, after_fleet: bool
    ) -> None:
        """Begin to watch the logs and, if requested, to copy the offsets."""
        starts = starting.starts
        rows = ClaimRows(self.database, self, self.partitions - starts.keys())
        if request.broker is not None and can_tell(request.broker):
            self._logs = LogWatch(self, rows, request.broker, on_lost=self.note_lost)
        if (broker := request.mirrored_to) is None or request.mirror_every is None:
            return
        committed = {tp: start.committed for tp, start in starts.items() if start.committed is not None}
        target = MirrorTarget(broker, request.kafka_group, request.mirror_every, committed, has_members, after_fleet)
        stamp = Stamp(self.store_id, self.token.epoch, digest(request.group))
        self.mirror = Mirror(self, rows, stamp, target, self.observers)

    @property
    def starting_offsets(self) -> str:
        """Spark's ``startingOffsets``, naming every partition of every topic.

        :raises ConfigurationError: the claim was made without a broker.
        """
        if self.starting is None:
            raise ConfigurationError(
                "the claim was made without a broker, so it does not know the partitions",
                next_step="Pass Broker.from_spark(options) to store.claim, or keep a checkpoint of your own.",
            )
        return self.starting.json()

    @property
    def checkpoint_name(self) -> str:
        """The last part of the claim's own checkpoint location."""
        return f"{self.token.epoch}-{self.token.claim_id}"

    def checkpoint(self, base: str, *, keep: bool = False) -> str:
        """A checkpoint location for this claim alone, ``<base>/<group>/<epoch>-<claim id>``.

        Spark ignores ``startingOffsets`` once a checkpoint exists, so each claim gets a fresh one and the store
        decides. The sink removes old ones after its first committed batch.

        :param base: any path that Spark takes.
        :param keep: for a query with state: ``<base>/<group>/kept``, the same for every claim and never removed. The
            sink then compares the checkpoint with the database; see docs/stateful.md.
        """
        # A dot too: a group named ".." must not lead out of the directory.
        self.checkpoint_base = f"{base.rstrip('/')}/{quote(self.group, safe='').replace('.', '%2E')}"
        self.keeps_checkpoint = keep
        return f"{self.checkpoint_base}/{'kept' if keep else self.checkpoint_name}"

    @property
    def delivered(self) -> dict[TopicPartition, int]:
        """The next offset that the job has not been given yet, of each partition that it was given records of.

        Only with manual marking or a `Flush`: otherwise the stored offsets say it. See docs/marking.md.
        """
        return delivered(self.terms)

    def transaction(self, *, lock_timeout: float | None = None, marking: Marking = "automatic") -> Transaction:
        """One transaction of this claim; see `OffsetStore.transaction`."""
        return Transaction(self, self, lock_timeout=lock_timeout, marking=marking)

    def run(
        self,
        work: Callable[[Transaction], _T],
        *,
        lock_timeout: float | None = None,
        marking: Marking = "automatic",
        retry_if: Callable[[Exception], bool] = may_pass,
    ) -> _T:
        """Run ``work(tx)`` in a transaction of this claim, with retries; see `OffsetStore.run`."""
        return repeat(
            self,
            self.group,
            lambda _: Transaction(self, self, lock_timeout=lock_timeout, marking=marking),
            work,
            retry_if=self._unless_closed(retry_if),
        )

    def read(self, query: Callable[[Session], _T]) -> _T:
        """Read, and retry while the database is unavailable, or what is read is locked.

        :raises StoreUnavailable, LockTimeout: it still is after `Retries.attempts` attempts.
        """
        return self.repeat(lambda _: read(self.database, query, lock_timeout=self.timeouts.lock))

    def metadata(self, tp: TopicPartition, *, cache: bool | None = None) -> object:
        """The partition's metadata, ``None`` if there is none.

        :param cache: ``True`` for what it was when the group was claimed, without a query; ``False`` for what its row
            has now; by default as the claim's `Metadata` says.
        :raises ConfigurationError: the claim does not have that topic.
        :raises StaleClaim: another claim has taken over, or the group was reset or renamed: a cached read raises it
            once the claim knows, another one always.
        :raises MetadataError: the deserializer fails.
        :raises StoreUnavailable: see `read`.
        """
        self._require_topic(tp, "claim.metadata")
        term = self.terms.get(tp)
        if term is None and (error := self.no_term(tp)) is not None:
            raise error
        if format_of(self.formats, tp.topic).cache if cache is None else cache:
            if self.is_lost:
                raise StaleClaim(
                    f"group {self.group!r} has been claimed, reset or renamed; its metadata belongs to another job",
                    topic_partition=tp,
                    found=self.taken_by,
                    expected=str(self.token),
                )
            return load(self.formats, tp, None if term is None else term.metadata)
        own = self.token, tp.topic, tp.partition
        texts = self.read(lambda session: read_own(session, self.group, *own, group_token=self.group_token))
        return load(self.formats, tp, texts.get(tp))

    def store_metadata(self, tp: TopicPartition | None, value: object) -> None:
        """Have the next advance of the partition write this value, unless that is given metadata of its own.

        It is serialized now, and forgotten once that advance is committed. ``None`` as the value clears the metadata.

        :param tp: ``None`` for all partitions that the claim knows; one without new records gets it when it has some.
        :raises ConfigurationError: the claim does not have that topic, or was made before a fork: the advances of the
            other process would know nothing of the value.
        :raises MetadataError: the serializer fails, or its text is too long.
        """
        expect_own(
            self._pid,
            "this claim was made before a fork, and belongs to the other process",
            "Store metadata in the process that claims and advances.",
        )
        if tp is not None:
            self._require_topic(tp, "claim.store_metadata")
        texts = dump(self.formats, self.partitions if tp is None else [tp], value)
        terms = self.new_terms(texts.keys())
        for partition, text in texts.items():
            terms[partition].store(text)

    def _require_topic(self, tp: TopicPartition, where: str) -> None:
        if tp.topic not in self.topics:
            raise ConfigurationError(
                f"{where} names a topic that the claim does not have",
                topic_partition=tp,
                expected=", ".join(self.topics),
            )

    def repeat(self, work: Callable[[int], _T], *, retry_if: Callable[[Exception], bool] = may_pass) -> _T:
        """Call ``work`` with the number of the attempt, again while that may help, up to `Retries.attempts`."""
        try:
            return repeat(self, self.group, nullcontext, work, retry_if=self._unless_closed(retry_if))
        except StaleClaim as error:
            # A task may have found out first. A member may have lost no more than a partition, and goes on.
            if not self.is_member:
                self.lose(by=None if error.found is None else str(error.found))
            raise

    def _unless_closed(self, retry_if: Callable[[Exception], bool]) -> Callable[[Exception], bool]:
        """Retry nothing that began before the claim was closed: others are told that it no longer writes.

        What is written while it is being closed keeps its retries.
        """
        was_closed = self.is_closed
        return lambda error: retry_if(error) and self.is_closed == was_closed

    def offsets(self) -> dict[TopicPartition, StoredOffset]:
        """The group's rows, as `OffsetStore.offsets` returns them, but with the retries of `read`."""
        return self.read(lambda session: session.read_partitions(self.group))

    def bind(self, query_id: str, is_active: Callable[[], bool] | None = None) -> None:
        """Tie the claim to the first streaming query that writes with it.

        This is kept in memory: a claim lives in one process, and its token nowhere else.

        :param is_active: says whether the query runs. While it does not, the claim sends no heartbeats, so that the
            next claim need not wait for a driver that only other queries keep alive. Called every 5 s, by another
            thread; an error counts as yes.
        :raises ClaimInUse: it is tied to another query.
        """
        with self._binding:  # two queries may bind at once
            if self._query_id is None:
                self._query_id = query_id
        self.require_unused(query_id)
        if is_active is not None:
            self._heartbeat.follow(is_active)

    def require_unused(self, query_id: str) -> None:
        """Refuse a query if the claim is tied to another one.

        :raises ClaimInUse: it is.
        """
        if self._query_id not in {None, query_id}:
            raise ClaimInUse(
                f"the claim of group {self.group!r} is used by a second streaming query",
                found=f"query {query_id}",
                expected=f"query {self._query_id}",
            )

    def reserve(self) -> None:
        """Let only one sink write with the claim: it has in memory what was delivered, and is not stored yet.

        :raises ClaimInUse: another sink has used the claim, or has reserved it.
        """
        with self._binding:
            was_reserved, self._is_reserved = self._is_reserved, True
        if was_reserved or self._query_id is not None:
            raise ClaimInUse(
                f"the claim of group {self.group!r} belongs to another sink",
                found="a second sink, with a flush or manual marking",
                expected="one sink for the claim: it has in memory what is not stored yet",
                next_step="Claim the group again for the new sink: it begins at the stored offsets.",
            )

    def at_close(self, last: Callable[[], object]) -> None:
        """Have `close` call this, before the last offsets are copied to Kafka.

        :raises ProtocolMisuse: the claim is closed.
        """
        self.require_open()
        self._at_close.append(last)

    def require_open(self) -> None:
        """Refuse work for a closed claim, which sends no heartbeats: others would be told that it no longer writes.

        :raises ProtocolMisuse: it is closed.
        """
        if self.is_closed:
            raise ProtocolMisuse(
                f"the claim of group {self.group!r} was closed before the query ended; nothing was written",
                next_step="Keep the query inside the store's with block until awaitTermination() returns.",
            )

    def close(self) -> None:
        """Write what the sink keeps, copy the last offsets to Kafka, and end the heartbeat. Offsets stay.

        The next claim then need not wait. The broker's connections are closed if it has a ``close``; it may be used
        again. In a forked child nothing happens: the claim is the other process's.

        :raises OffsetStoreError: what the sink keeps can't be written: the next start reads those records again. The
            claim is closed all the same.
        """
        if not is_own(self._pid):
            return
        with self._binding:
            was_closed, self.is_closed = self.is_closed, True
        try:
            for last in reversed([*self._at_close]):
                last()  # if it fails, the next close tries again
                with suppress(ValueError):  # another thread closes too
                    self._at_close.remove(last)
        except Exception as error:
            self.close_error = error
            raise
        finally:
            self._stop()
            if not was_closed:
                self.observers.on(ClaimEnded(group=self.group, token=self.token, outcome="closed"))

    def _stop(self) -> None:
        last = time.monotonic() + mirrors.LAST_COMMIT
        # The last look and the last copy ask Kafka at the same time: a look may have to connect first (decision 0073).
        if self._logs is not None:
            self._logs.stop(0.0)
        if self.mirror is not None:
            self.mirror.close()
        if self._logs is not None:
            self._logs.stop(max(_LAST_LOOK, last - time.monotonic()))
        self._heartbeat.stop()
        # Spark keeps a query's sink, and with it the claim, long after the query: close Kafka's clients now.
        are_idle = all(beside is None or beside.is_idle for beside in (self.mirror, self._logs))
        if are_idle and (close := getattr(self.broker, "close", None)) is not None:
            with suppress(OffsetStoreError):  # after a fork, it belongs to another process
                call(close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.end_with(error)
        with not_hiding(error):
            self.close()

    def end_with(self, error: BaseException | None) -> None:
        """Record the error that ends the run, if there is one: Spark does not tell the sink of its own errors."""
        # A job's own exit code: the error that it was raised for tells more.
        if isinstance(error, SystemExit) and error.code:
            error = error.__context__ if isinstance(error.__context__, Exception) else RuntimeError()
        if isinstance(error, Exception) and not self.is_closed:
            self._run.end_with(error)

    def note_error(self, error: JobError) -> None:
        """Record an error of the group that no event reports, at once."""
        self._run.add(error)
        self.record_run()

    def record_run(self) -> None:
        """Write what the run has done and met to the database: the process may end before the next heartbeat.

        If the database does not answer, this waits five seconds at most. It raises nothing.
        """
        self._heartbeat.record_run()

    def __repr__(self) -> str:
        return f"<Claim of {self.group!r}, {self.token}>"


@contextmanager
def not_hiding(error: BaseException | None) -> Generator[None]:
    """Log what closing raises if another error is under way already, which it would hide."""
    try:
        yield
    except Exception as second:
        if error is None:
            raise
        text = str(second) if isinstance(second, OffsetStoreError) else type(second).__name__
        _log.warning("%s, while closing after %s", text, type(error).__name__)

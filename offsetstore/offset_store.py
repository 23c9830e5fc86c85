"""The store: where claims, transactions and reads begin."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime, timedelta
from types import TracebackType
from typing import Self, TypeVar, overload
from uuid import UUID

from sqlalchemy import Engine

from offsetstore.errors import ConfigurationError, OffsetStoreError
from offsetstore.offsets import StoredOffset, TopicPartition
from offsetstore.operations.group_state import GroupState, Lag, measure
from offsetstore.operations.home import MoveStore, NewStoreId, StoreDecided
from offsetstore.operations.letters import (
    MOST,
    DiscardLetters,
    LetterPage,
    LettersDecided,
    LettersPruned,
    Named,
    PruneLetters,
    ReplayLetters,
    Which,
    check_limits,
    read_letter,
    read_page,
    wait_for_replay,
)
from offsetstore.operations.names import CopyGroup, DeletedGroup, DeleteGroup, NewName, RenameGroup
from offsetstore.operations.operation import By, Decided, Operation, Plan, carry_out
from offsetstore.operations.outbox import (
    DiscardRefused,
    RefusedDecided,
    RefusedRow,
    RetryRefused,
    SetAside,
    read_refused,
)
from offsetstore.operations.pauses import PauseDecided, PauseGroup, ResumeGroup, WriteMetadata
from offsetstore.operations.people import (
    ListedGroup,
    StoreFacts,
    ask,
    check_errors,
    check_history,
    check_limit,
    follow,
    people,
    read_errors,
    read_facts,
    read_group,
    read_groups,
    read_overview,
    read_owner,
    read_runs,
)
from offsetstore.operations.resets import Partitions, Reset, ResetOffsets, ResetTarget
from offsetstore.operations.samples import Sample, Selection, read_samples, record_samples
from offsetstore.operations.stored_letters import ErrorGroup, LetterFilter, count_letters, list_letter_errors
from offsetstore.postgres.database import PostgresDatabase
from offsetstore.postgres.url import check_engine, make_engine, schema_or_default
from offsetstore.protocol.arguments import check_whole
from offsetstore.protocol.database import Database, GroupRow, HistoryEvent, Session
from offsetstore.protocol.letters import FINAL, OPEN, Cause, Letter, LetterKey, LetterState
from offsetstore.protocol.marking import Marking
from offsetstore.protocol.metadata import Formats, format_of, load
from offsetstore.protocol.observers import Observer, Observers
from offsetstore.protocol.outbox import MOST_ROWS
from offsetstore.protocol.ports import BrokerOffsets, BrokerOverview, CheckpointFiles
from offsetstore.protocol.resolver import resolve
from offsetstore.protocol.retries import Retries, Timeouts
from offsetstore.protocol.runs import ErrorSource, JobError, Run
from offsetstore.protocol.starting import StartingOffsets, StartPolicy
from offsetstore.protocol.store_facts import StoreIdentity
from offsetstore.store.acquire import acquire, resolve_unlocked
from offsetstore.store.adoption import LocalFiles
from offsetstore.store.claim import Claim, ClaimRequest, Takeover, not_hiding
from offsetstore.store.identity import ClaimInfo
from offsetstore.store.mirror import INTERVAL
from offsetstore.store.sessions import read, repeat, transaction
from offsetstore.store.transaction import Transaction

_T = TypeVar("_T")
_P = TypeVar("_P", bound=Plan)


class OffsetStore:
    """Offsets in a SQL database, in the transaction of the results. Threads may share it; processes may not.

    Decisions (`reset`, `pause`, `discard` and so on) have some arguments in common. ``reason`` is for readers of the
    history, ``actor`` is who decides, by default user, host and process. ``dry_run`` locks and writes nothing, and
    returns what would be done now; ``if_plan`` is the ``digest`` of that: do what it has shown, or nothing. A live job
    is fenced or, with ``takeover="refuse"``, the decision is refused; ``takeover_timeout`` is how many seconds to wait
    for a job's open transaction before its connection is terminated.

    A decision without a reason is a `ConfigurationError`. `PlanChanged`: the plan is not ``if_plan``. `GroupBusy`: a
    job is live, and was to be spared. `LockTimeout`: another transaction holds the rows for longer than
    `Timeouts.lock`. Then nothing was written. `TransactionLost`: the connection broke, and the history shows whether
    it happened.
    """

    def __init__(
        self,
        database: Database,
        *,
        timeouts: Timeouts | None = None,
        retries: Retries | None = None,
        observers: Iterable[Observer] = (),
    ) -> None:
        self.database = database
        self.timeouts = timeouts or Timeouts()
        self.retries = retries or Retries()
        self.observers = Observers(observers)
        self._claims: list[Claim] = []

    @classmethod
    def connect(
        cls,
        url: str | Engine | None = None,
        *,
        schema: str | None = None,
        credentials: Callable[[], str] | None = None,
        timeouts: Timeouts | None = None,
        retries: Retries | None = None,
        observers: Iterable[Observer] = (),
    ) -> Self:
        """Connect, and check that the tables are there.

        :param url: libpq's, SQLAlchemy's or JDBC's form, an ``Engine`` on psycopg 3, or ``None`` for OFFSETSTORE_URL.
        :param schema: the schema of our tables, by default OFFSETSTORE_SCHEMA. Without either, the connection's search
            path is used.
        :param credentials: returns the password for each new connection, for tokens that expire.
        :param observers: get every event of the store and its claims, see `offsetstore.protocol.events`. Log lines are
            written all the same.
        :raises ConfigurationError: the URL is invalid.
        :raises StoreUnavailable: no connection.
        :raises MissingPrivilege: the role may not read the tables; the error has the command that prints the grants.
        :raises SchemaMissing: run ``offsetstore migrate``, or name the schema that has the tables.
        :raises SchemaNotAtHead: this version does not run on the tables: run ``offsetstore migrate``, or update it.
        """
        timeouts = timeouts or Timeouts()
        owned = not isinstance(url, Engine)
        engine = check_engine(url) if isinstance(url, Engine) else make_engine(url, credentials)
        database = PostgresDatabase(engine, schema=schema_or_default(schema), idle_timeout=timeouts.idle, owned=owned)
        try:
            database.check_schema()
        except BaseException as error:
            database.translate(error)  # which names the role that lacks a privilege
            database.close()
            raise
        return cls(database, timeouts=timeouts, retries=retries, observers=observers)

    def claim(
        self,
        group: str,
        broker: BrokerOffsets | None = None,
        *,
        topics: Collection[str] | None = None,
        policy: StartPolicy | None = None,
        takeover: Takeover = "fence",
        takeover_timeout: float = 30.0,
        kafka_group: str | None = None,
        mirror_every: float | None = INTERVAL,
        adopt_checkpoint: str | CheckpointFiles | None = None,
        metadata: Formats = None,
    ) -> Claim:
        """Take over the group: resolve where it starts, and fence every earlier claim.

        :param broker: asked for log ends and committed offsets; without it the claim has no ``starting_offsets``.
        :param topics: by default those of the broker's options.
        :param takeover: ``"fence"`` a live owner, ``"wait"`` until it has left, or ``"refuse"``.
        :param takeover_timeout: seconds to wait for the owner (``"wait"``), and for a stale job's open transaction
            before its connection is terminated.
        :param kafka_group: the group in Kafka to compare with and to copy to, if it is not ``group``.
        :param mirror_every: seconds between two copies of the stored offsets to Kafka's group; ``None`` for none.
        :param adopt_checkpoint: the checkpoint of the query that this job replaces: partitions without a stored offset
            start where it ends. A path, or ``offsetstore.spark.checkpoints.HadoopFiles``. Stop that query first: the
            store can neither see nor fence it.
        :param metadata: how the metadata of offsets are written and read, if not as JSON: one `Metadata`, or a mapping
            of topics to these, with ``None`` for the other topics.
        :raises ConfigurationError: an argument is invalid, or there is no such checkpoint.
        :raises BrokerError: a request to Kafka failed; no job was fenced.
        :raises StartError: where to start can't be decided safely; no job was fenced.
        :raises GroupBusy: there is a live owner.
        :raises LockTimeout: another transaction holds the group's rows.
        """
        names = topics if topics is not None else (broker.topics if broker else None) or ()
        request = ClaimRequest(
            group,
            broker,
            tuple(dict.fromkeys([names] if isinstance(names, str) else names)),
            policy or StartPolicy(),
            takeover,
            takeover_timeout,
            kafka_group or group,
            mirror_every=mirror_every,
            checkpoint=LocalFiles(adopt_checkpoint) if isinstance(adopt_checkpoint, str) else adopt_checkpoint,
            metadata=metadata,
        )
        try:
            claim = acquire(self, request)
        except OffsetStoreError as error:
            error.while_(f"claiming group {group!r} for {', '.join(request.topics)}")
            raise
        # Claims that closed without an error are let go: each holds its start, 10 MB for ten thousand partitions.
        kept = [earlier for earlier in self._claims if not earlier.is_closed or earlier.close_error is not None]
        self._claims = [*kept, claim]
        return claim

    def transaction(
        self, claim: ClaimInfo, *, lock_timeout: float | None = None, marking: Marking = "automatic"
    ) -> Transaction:
        """One transaction, as a context manager; leaving the block commits, an exception rolls back. No retry.

        :param lock_timeout: seconds to wait for any one lock, by default `Timeouts.lock`.
        :param marking: ``"automatic"``: `Transaction.advance` each partition to its range's end. ``"manual"``: the
            offsets move to what you `Transaction.mark`; the next range begins where this one ends all the same. See
            docs/marking.md.
        :raises LockTimeout: another transaction holds a row for longer.
        :raises TransactionLost: the connection broke; nothing was written.
        :raises CommitUnknown: it broke at COMMIT, and the rows do not show whether that happened.
        :raises ProtocolMisuse: used in an order that would break the guarantee; nothing was written (except that writes
            before a COMMIT of your own stay, see `UnexpectedCommit`).
        """
        return Transaction(self, claim, lock_timeout=lock_timeout, marking=marking)

    def run(
        self,
        claim: ClaimInfo,
        work: Callable[[Transaction], _T],
        *,
        lock_timeout: float | None = None,
        marking: Marking = "automatic",
    ) -> _T:
        """Run ``work(tx)`` in a transaction, and repeat all of it after an error that a retry may resolve.

        These are serialization failures, deadlocks, lock timeouts, lost connections, cancelled statements, and a server
        that is out of resources or read-only. ``work`` must not consume an iterator that it can't create again.

        :return: the result of ``work``, once it is committed.
        :raises LockTimeout, TransactionLost, StoreUnavailable: in the last of `Retries.attempts`.
        :raises CommitUnknown: never repeated, because it may have happened.
        """
        return repeat(
            self,
            claim.group,
            lambda _: self.transaction(claim, lock_timeout=lock_timeout, marking=marking),
            work,
        )

    def reset(
        self,
        group: str,
        offsets: Mapping[TopicPartition, int] | ResetTarget,
        *,
        reason: str,
        actor: str | None = None,
        takeover_timeout: float = 30.0,
        partitions: Partitions = None,
        broker: BrokerOffsets | None = None,
        kafka_group: str | None = None,
        takeover: Decided = "fence",
        from_offset: int | None = None,
        dry_run: bool = False,
        if_plan: str | None = None,
    ) -> Reset:
        """Set stored offsets, backwards or forwards, and pin them: the next claim starts there, not at Kafka's offset.

        A running job is fenced. The new offsets, and whether a job is live, are decided under the group's locks, so the
        result is exactly what was done, even if a job advances or claims meanwhile. Kafka is asked before that; the
        next claim sees later changes there, such as records that retention removed. Partitions that are not named stay
        as they are. The metadata of a partition that moves is cleared: it belongs to the old offset.

        :param offsets: the next offset for each partition; or the target for all ``partitions``: ``"earliest"``,
            ``"latest"``, an offset, a time (the first record at or after it, or the end), or ``ShiftBy(n)``.
        :param partitions: numbers by topic, ``None`` for all that have a stored offset; ``"all"``: those of all topics.
        :param broker: asked for the log's ends, so that an offset outside of the log is refused. Without it the next
            claim does that, and ``"earliest"``, ``"latest"`` and times can't be resolved.
        :param kafka_group: the group in Kafka, if it is not ``group``.
        :param from_offset: the offset that must be stored for each of the partitions.
        :param if_plan: the ``digest`` of a dry run: do what it has shown, or nothing. It rests on the job or decision
            that last took the group, and on what is stored, unless that job is live: then it goes on storing. For
            ``"latest"`` the log may have grown. It never goes back if it was to go forwards. A dry run compares it too.
        :raises OffsetMoved: the stored offset is not ``from_offset``; nothing was written.
        :raises ConfigurationError: an unknown partition, not an offset.
        :raises UnknownGroup: the store has no offsets of the group.
        :raises BrokerError: a request to Kafka failed; nothing was written, and no job was fenced.
        :raises OffsetOutOfRange: the log does not hold the offset; nothing was written, and no job was fenced.
        :raises WrongCluster: the stored offset belongs to another cluster; nothing was written, and no job was fenced.
        """
        operation = ResetOffsets(
            group=group,
            target=offsets,
            partitions=partitions,
            from_offset=from_offset,
            broker=broker,
            kafka_group=kafka_group,
            takeover=takeover,
            takeover_timeout=takeover_timeout,
        )
        return self._decide(operation, reason, actor, dry_run=dry_run, if_plan=if_plan)

    def groups(self) -> list[ListedGroup]:
        """All groups that were ever claimed, by name; renamed and deleted ones are included, without partitions."""
        return ask(self.database, read_groups)

    def copy_group(
        self,
        group: str,
        new: str,
        *,
        reason: str,
        actor: str | None = None,
        dry_run: bool = False,
        if_plan: str | None = None,
    ) -> NewName:
        """Give another name the offsets of a group, with their metadata: for a second job from there on.

        The group and its job are left alone. The offsets are copied as of one moment: of a batch, for all partitions or
        for none. They are pinned, so that they count more than what Kafka has under the new name. Dead letters and a
        stateful query's batch marks are not copied: the group's job replays the letters, and the new job begins above
        their records.

        :param new: a name that has no offsets.
        :raises ConfigurationError: an unknown group, a name that is taken.
        """
        return self._decide(CopyGroup(group, new), reason, actor, dry_run=dry_run, if_plan=if_plan)

    def rename_group(
        self,
        group: str,
        new: str,
        *,
        reason: str,
        actor: str | None = None,
        takeover_timeout: float = 30.0,
        takeover: Decided = "fence",
        dry_run: bool = False,
        if_plan: str | None = None,
    ) -> NewName:
        """Rename a group, with its offsets and batch marks. Both names have a history.

        A job that still runs under the old name is fenced, and can't start again: a claim of that name raises
        `GroupRenamed`. Offsets that were copied to Kafka stay there under the old name, and a kept checkpoint stays in
        its directory: move ``<base>/<group>/kept`` too, or the query starts with an empty state.

        :param new: a name that has no offsets.
        :raises ConfigurationError: an unknown group, a name that is taken.
        """
        operation = RenameGroup(group=group, new=new, takeover=takeover, takeover_timeout=takeover_timeout)
        return self._decide(operation, reason, actor, dry_run=dry_run, if_plan=if_plan)

    def delete_group(
        self,
        group: str,
        *,
        reason: str,
        actor: str | None = None,
        takeover_timeout: float = 30.0,
        takeover: Decided = "refuse",
        topics: Collection[str] | None = None,
        discard_letters: bool = False,
        dry_run: bool = False,
        if_plan: str | None = None,
    ) -> DeletedGroup:
        """Delete a group: its offsets and their metadata, batch marks, dead letters, failed attempts, and its pause.

        Stop its job first, and its supervisor. A job that still runs is fenced, and brings nothing back. But the next
        job starts as in a new group, by its `StartPolicy`, and writes the results of what it reads again. Copies of the
        deleted offsets in Kafka don't count; what another application commits there does. The name and its history
        stay, and the results are yours. Remove a kept checkpoint, ``<base>/<group>/kept``, and a checkpoint of the
        query's own: it would repeat its last batch. Only the tables' owner may delete.

        :param takeover: ``"refuse"`` if a job is live, or ``"fence"`` it.
        :param topics: delete the offsets, dead letters and failed attempts of these topics alone, which the job no
            longer reads: nothing compares them with Kafka any more. ``None`` for the whole group.
        :param discard_letters: delete dead letters too that were neither replayed nor discarded.
        :raises ConfigurationError: the group has no offsets of one of the topics, or of no others.
        :raises UnknownGroup: the group was never claimed, or not since it was deleted.
        :raises GroupRenamed: the group has another name now.
        :raises LettersOpen: it has open dead letters, without ``discard_letters``; nothing was written.
        :raises MissingPrivilege: the role may not delete; nothing was written, and no job was fenced.
        """
        operation = DeleteGroup(
            group=group,
            topics=None if topics is None else tuple(sorted({topics} if isinstance(topics, str) else {*topics})),
            discard_letters=discard_letters,
            takeover=takeover,
            takeover_timeout=takeover_timeout,
        )
        return self._decide(operation, reason, actor, dry_run=dry_run, if_plan=if_plan)

    def pause(
        self,
        group: str,
        *,
        reason: str,
        until: datetime | None = None,
        actor: str | None = None,
        dry_run: bool = False,
        if_plan: str | None = None,
    ) -> PauseDecided:
        """Pause a group: the sink of its running job, or of a later one, waits before its next batch.

        A batch that is being computed is still written. The job keeps its claim, and nothing is locked while it waits.
        A second pause replaces the first; a reset or a rename keeps it. Transactions of your own don't wait.

        :param until: when it ends by itself, by the database's clock; ``None``: only `resume` ends it.
        :param if_plan: the ``digest`` of a dry run: do what it has shown, or nothing. It rests on the pause that is
            replaced.
        :raises ConfigurationError: a time that has passed or has no zone.
        :raises UnknownGroup: the group was never claimed.
        :raises GroupRenamed: the group has another name now.
        """
        return self._decide(PauseGroup(group, reason, until), reason, actor, dry_run=dry_run, if_plan=if_plan)

    def resume(
        self,
        group: str,
        *,
        reason: str,
        actor: str | None = None,
        dry_run: bool = False,
        if_plan: str | None = None,
    ) -> PauseDecided:
        """End a group's pause; a job that waits goes on within a second or two. If there is none, nothing is written.

        :raises UnknownGroup, GroupRenamed: as for `pause`.
        """
        return self._decide(ResumeGroup(group), reason, actor, dry_run=dry_run, if_plan=if_plan)

    def identity(self) -> StoreIdentity:
        """Which store it is, and whether it is in the database that its offsets belong to."""
        return self._read(lambda session: session.identity())

    def moved(
        self, *, reason: str, actor: str | None = None, dry_run: bool = False, if_plan: str | None = None
    ) -> StoreDecided:
        """Answer `StoreMoved`: it is the same store, in another database now, and the other one runs no jobs any more.

        For a `pg_upgrade`, a switch to a logical replica, or a backup that was restored in place. The history of each
        group records it. If the store is at home already, nothing is written.

        :raises MissingPrivilege: the role does not own the tables, or may not read which database this is.
        :raises LockTimeout: a claim or another decision takes longer than `Timeouts.lock`.
        """
        done = self._decide(MoveStore(), reason, actor, dry_run=dry_run, if_plan=if_plan)
        # It reads the identity again, which the database object keeps.
        self.database.check_schema()
        return done

    def new_id(
        self, *, reason: str, actor: str | None = None, dry_run: bool = False, if_plan: str | None = None
    ) -> StoreDecided:
        """Answer `StoreMoved`: this database is a copy, and the original goes on. It becomes a store of its own.

        Jobs that run in this database are fenced. What the groups have in Kafka is the original's: give each of this
        database's jobs a ``kafka_group=`` of its own, or the start is refused (`ForeignStore`, `KafkaGroupContested`).
        Also for a copy of the server's files, which PostgreSQL can't tell from the original.

        :param if_plan: a claim, or the end of a job, makes it another plan.
        :raises MissingPrivilege: the role does not own the tables.
        :raises LockTimeout: a job's transaction, a claim or another decision takes longer than `Timeouts.lock`.
        """
        done = self._decide(NewStoreId(), reason, actor, dry_run=dry_run, if_plan=if_plan)
        self.database.check_schema()
        return done

    def offsets(self, group: str) -> dict[TopicPartition, StoredOffset]:
        """The group's rows, in order of (topic, partition), in one query and without a lock."""
        return self._read(lambda session: session.read_partitions(group))

    def metadata(self, group: str, formats: Formats = None) -> dict[TopicPartition, object]:
        """The metadata of each of the group's partitions, ``None`` if there is none.

        :param formats: as for `claim`; by default JSON.
        :raises MetadataError: the deserializer fails.
        """
        return {tp: load(formats, tp, row.metadata) for tp, row in self.offsets(group).items()}

    @overload
    def find_metadata(self, group: str, topic: str, partition: int, *, formats: Formats = None) -> object: ...

    @overload
    def find_metadata(
        self, group: str, topic: str, partition: None = None, *, formats: Formats = None
    ) -> dict[TopicPartition, object]: ...

    def find_metadata(
        self, group: str, topic: str, partition: int | None = None, *, formats: Formats = None
    ) -> object | dict[TopicPartition, object]:
        """The metadata of one partition, or of all the topic's partitions that have a stored offset.

        It needs no claim, and takes one query.

        :param formats: as for `claim`; by default JSON.
        :return: ``None`` for a partition without metadata, or without a stored offset.
        :raises MetadataError: the deserializer fails.
        """
        rows = self._read(lambda session: session.read_metadata(group, topic, partition))
        values = {tp: load(formats, tp, row.text) for tp, row in rows.items()}
        return values if partition is None else values.get(TopicPartition(topic, partition))

    def write_metadata(
        self,
        group: str,
        tp: TopicPartition,
        value: object,
        *,
        reason: str,
        actor: str | None = None,
        formats: Formats = None,
    ) -> int:
        """Rewrite the metadata of a partition, at the offset that is stored; the history records it.

        No job is fenced. A running job's transaction on that partition is waited for. After that, the job's reads with
        ``cache=False`` return the new value, its cached reads the one from when it claimed the group; its next advance
        keeps the new value, unless it writes another.

        :param value: ``None`` clears it.
        :param formats: as for `claim`; by default JSON.
        :return: the stored offset, to which the metadata belongs.
        :raises MetadataError: the serializer fails, or its text is too long.
        :raises ConfigurationError: no such partition.
        :raises UnknownGroup: the store has no offsets of the group.
        """
        text = format_of(formats, tp.topic).dump(value)
        return self._decide(WriteMetadata(group, tp, text), reason, actor).offset

    def letters(
        self,
        group: str,
        *,
        state: LetterState | Collection[LetterState] | None = None,
        cause: Cause | None = None,
        topic: str | None = None,
        partition: int | None = None,
        error_class: str | None = None,
        sqlstate: str | None = None,
        table: str | None = None,
        constraint: str | None = None,
        column: str | None = None,
        after: str | None = None,
        limit: int = 100,
        contents: bool = False,
        within: int | None = None,
    ) -> LetterPage:
        """Read a part of the list of dead letters, the newest first.

        :param state: one or several; by default all.
        :param sqlstate: ``""`` finds letters without one; likewise for ``table``, ``constraint`` and ``column``.
        :param after: the ``next`` of the page before.
        :param contents: read keys, values, headers, texts and tracebacks too; a page then ends after 64 MB, if not
            before. They are not read otherwise: ``payload`` is ``None`` and the error's text is ``""``.
        :param within: bound the time of a filter that few letters match: look at no more than this many letters in
            these states, and return those that match. The page may then be empty although it has a ``next``. Not with
            ``contents``.
        :raises ConfigurationError: an argument is invalid.
        :raises MissingPrivilege: ``contents``, and a role that may not read them.
        """
        states = () if state is None else (state,) if isinstance(state, str) else tuple(state)
        which = LetterFilter(states, cause, topic, partition, error_class, sqlstate, table, constraint, column)
        return read_page(self.database, group, which, after=after, limit=limit, contents=contents, within=within)

    def letter(
        self,
        group: str,
        topic_partition: TopicPartition,
        offset: int,
        topic_id: str | None = None,
        *,
        contents: bool = True,
    ) -> Letter:
        """Read one dead letter.

        :param topic_id: which topic, if it was deleted and created again; by default that of the newest letter.
        :param contents: as for `letters`, but ``True`` by default.
        :raises UnknownLetter, UnknownGroup: there is none.
        :raises TypeError: the partition is not a `TopicPartition`, or the offset not a number.
        :raises MissingPrivilege: ``contents``, and a role that may not read them.
        """
        return read_letter(self.database, group, LetterKey(topic_partition, offset, topic_id), contents=contents)

    def letter_counts(self, group: str, *, up_to: int | None = None) -> dict[LetterState, int]:
        """How many dead letters the group has, of each state that has any.

        :param up_to: bound the time: count no further than this, so that a count which reaches it may be more.
        """
        if up_to is not None:
            check_whole("up_to", up_to, "dead letters", least=1)
        return ask(self.database, lambda session: count_letters(session, group, up_to=up_to))

    def letter_errors(
        self,
        group: str,
        *,
        state: LetterState | Collection[LetterState] | None = OPEN,
        topic: str | None = None,
        limit: int = 100,
        within: int | None = None,
    ) -> list[ErrorGroup]:
        """Group dead letters by their errors, the most frequent error first.

        :param state: as for `letters`; by default the states of letters whose record may still get into the results.
        :param within: bound the time: look only at this many of the newest letters in these states.
        """
        states = () if state is None else (state,) if isinstance(state, str) else tuple(state)
        which = LetterFilter(states, topic=topic)
        check_limits(limit, within)
        return ask(self.database, lambda session: list_letter_errors(session, group, which, limit=limit, within=within))

    def request_replay(
        self,
        group: str,
        which: Which,
        *,
        reason: str,
        actor: str | None = None,
        forced: bool = False,
        limit: int = MOST,
        dry_run: bool = False,
        if_plan: str | None = None,
    ) -> LettersDecided:
        """Have dead letters replayed: the group's job puts their records through its transform and writers once more.

        A running job does so within seconds, a later one when it starts. What fails again is ``dead`` again. A letter
        that follows another one of its sequence waits for that.

        :param which: a letter, as `letters` returns it or its `LetterKey`, several of them, or a `LetterFilter`, which
            chooses the ``dead`` letters that match, in the order of partition and offset. If a letter that is named
            can't be replayed, nothing is written.
        :param forced: even where rows of later records may be replaced by older ones.
        :param limit: choose at most this many; `LettersDecided.more` tells if there are others.
        :param if_plan: the ``digest`` of a dry run: decide about the letters that it has shown, as they were, or about
            none.
        :raises UnknownLetter: there is no such letter.
        :raises LetterSettled: it was replayed, discarded or superseded.
        :raises PayloadMissing: its record is not kept.
        :raises ConfigurationError: an argument is invalid.
        :raises TypeError: ``which`` is something else.
        :raises UnknownGroup: the group was never claimed.
        :raises GroupRenamed: the group has another name now.
        :raises LockTimeout: another transaction, such as a replay, holds a letter for longer than `Timeouts.lock`.
        """
        operation = ReplayLetters(group, which, limit=limit, forced=forced)
        return self._decide(operation, reason, actor, dry_run=dry_run, if_plan=if_plan)

    def wait_for_replay(self, group: str, which: Named, *, seconds: float = 60.0) -> dict[LetterState, int]:
        """Wait until none of these letters is ``requested`` any more; return how many are in each state then.

        ``replayed`` ones are in the results; what has failed again is ``dead``.

        :param which: as for `request_replay`, such as its ``letters``, but no filter.
        :param seconds: return after this time, with letters that are still ``requested``: perhaps no job runs.
        :raises TypeError, ConfigurationError: an argument is invalid.
        :raises UnknownLetter, UnknownGroup, GroupRenamed: a letter is not there, or no longer.
        """
        return wait_for_replay(self.database, group, which, seconds=seconds)

    def discard(
        self,
        group: str,
        which: Which,
        *,
        reason: str,
        actor: str | None = None,
        erase: bool = False,
        limit: int = MOST,
        dry_run: bool = False,
        if_plan: str | None = None,
    ) -> LettersDecided:
        """Give up dead letters, requested ones too: their records stay out of the results.

        :param which: as for `request_replay`; a filter chooses letters that are ``dead`` or ``requested``.
        :param erase: delete their contents: key, value, headers, texts, and the digest of the key. Also of letters that
            are settled, which keep their state. The bytes remain in the database's files until VACUUM, and in backups.
        :raises UnknownLetter, LetterSettled, ConfigurationError: as for `request_replay`, like the other parameters.
        :raises TypeError: as for `request_replay`.
        :raises UnknownGroup, GroupRenamed: as for `request_replay`.
        """
        operation = DiscardLetters(group, which, limit=limit, erase=erase)
        return self._decide(operation, reason, actor, dry_run=dry_run, if_plan=if_plan)

    def prune(
        self,
        group: str,
        *,
        older_than: timedelta,
        reason: str,
        actor: str | None = None,
        states: Collection[LetterState] = FINAL,
        limit: int = MOST,
        dry_run: bool = False,
        if_plan: str | None = None,
    ) -> LettersPruned:
        """Delete old dead letters that were replayed, discarded or superseded. Others are never deleted.

        It needs DELETE on the table ``dead_letters``, which a job's role is not granted.

        :param older_than: how long ago that was at least, by the database's clock.
        :param states: only some of those three.
        :param limit: delete at most this many; `LettersPruned.more` tells if there are others.
        :param dry_run: delete nothing; count them. This needs no DELETE.
        :param if_plan: the ``digest`` of a dry run: delete as many as it has counted, or none.
        :raises PlanChanged: the plan is no longer ``if_plan``; nothing was deleted.
        :raises MissingPrivilege: the role may not delete letters.
        :raises ConfigurationError: another state, or an argument is invalid.
        :raises UnknownGroup, GroupRenamed: as for `request_replay`.
        """
        operation = PruneLetters(group, older_than, tuple(states), limit)
        return self._decide(operation, reason, actor, dry_run=dry_run, if_plan=if_plan)

    def refused_rows(
        self, group: str, *, topic: str | None = None, after: int = -1, limit: int = 100
    ) -> list[RefusedRow]:
        """Read a part of the list of outbox rows that Kafka refuses, in the order of their ids.

        :param topic: only of this topic.
        :param after: continue after the row with this id.
        :param limit: return at most this many.
        :raises ConfigurationError: an argument is invalid, or the store is in memory.
        """
        check_whole("limit", limit, "rows", least=1)
        return ask(self.database, lambda session: read_refused(session, group, topic=topic, after=after, limit=limit))

    def retry_refused(
        self,
        group: str,
        ids: Collection[int] | None = None,
        *,
        reason: str,
        actor: str | None = None,
        topic: str | None = None,
        limit: int = MOST_ROWS,
        dry_run: bool = False,
        if_plan: str | None = None,
    ) -> RefusedDecided:
        """Put outbox rows that Kafka refuses back, behind all that is in the outbox: the relay sends them again.

        The role must own the tables, or have DELETE and UPDATE on ``outbox_refused`` and INSERT on ``outbox``.

        :param ids: only these, as `refused_rows` returns them; ``None`` for all of the group.
        :param topic: only of this topic.
        :param limit: at most this many; `RefusedDecided.more` tells how many others there are.
        :param if_plan: the ``digest`` of a dry run: decide about the rows that it has shown, or about none.
        :raises ConfigurationError: an argument is invalid, or a row is not set aside.
        :raises UnknownGroup: the group was never claimed.
        :raises MissingPrivilege: the role may not.
        """
        operation = RetryRefused(group, None if ids is None else tuple(ids), topic, limit)
        return self._decide(operation, reason, actor, dry_run=dry_run, if_plan=if_plan)

    def discard_refused(
        self,
        group: str,
        ids: Collection[int] | None = None,
        *,
        reason: str,
        actor: str | None = None,
        topic: str | None = None,
        limit: int = MOST_ROWS,
        dry_run: bool = False,
        if_plan: str | None = None,
    ) -> RefusedDecided:
        """Delete outbox rows that Kafka refuses: they never get there. Parameters and errors as `retry_refused`."""
        operation = DiscardRefused(group, None if ids is None else tuple(ids), topic, limit)
        return self._decide(operation, reason, actor, dry_run=dry_run, if_plan=if_plan)

    def set_aside(
        self,
        group: str,
        ids: Collection[int] | None = None,
        *,
        reason: str,
        actor: str | None = None,
        topic: str | None = None,
        limit: int = MOST_ROWS,
        dry_run: bool = False,
        if_plan: str | None = None,
    ) -> RefusedDecided:
        """Move waiting rows from the outbox to the refused rows: they may block others of their topic.

        Parameters and errors as `retry_refused`. Rows that a relay is sending are left out: they may be in Kafka.
        """
        operation = SetAside(group, None if ids is None else tuple(ids), topic, limit)
        return self._decide(operation, reason, actor, dry_run=dry_run, if_plan=if_plan)

    def batch_mark(self, group: str, query_id: UUID) -> int | None:
        """The last batch of a stateful query that is in the results, ``None`` before the first."""
        return self._read(lambda session: session.batch_mark(group, query_id))

    def history(
        self,
        group: str,
        *,
        since: datetime | None = None,
        events: Collection[str] = (),
        topic_partition: TopicPartition | None = None,
        limit: int | None = None,
        before: int | None = None,
    ) -> list[HistoryEvent]:
        """All decisions about the group, oldest first; advances are not included.

        :param since: only those since then.
        :param events: only these, such as ``["reset", "pause"]``; see `HistoryEvent`.
        :param topic_partition: only those about this partition alone.
        :param limit: only the last ones, at most this many.
        :param before: only those with a lower ``id``: to go back page by page, pass the first line's ``id``.
        :raises ConfigurationError: an argument is invalid.
        """
        check_history(since, events, limit)
        if before is not None:
            check_whole("before", before)
        return self._read(
            lambda session: session.history(
                group, since=since, events=events, topic_partition=topic_partition, limit=limit, before=before
            )
        )

    def follow_history(
        self, group: str, *, since: datetime | None = None, events: Collection[str] = (), limit: int | None = None
    ) -> Iterator[HistoryEvent]:
        """Iterate over what `history` returns, and then over each event that is added, about a second later.

        It has no end: leave the loop. The arguments are those of `history`.
        """
        check_history(since, events, limit)  # refuses invalid arguments now, and not at the first event
        return follow(lambda at: self.history(group, since=at, events=events), since=since, limit=limit)

    def runs(self, group: str, *, limit: int | None = None) -> list[Run]:
        """The runs of the group's job, oldest first, as each recorded itself with its heartbeats; see `Run.state`.

        Of each group the newest thousand are kept.

        :param limit: only the last ones, at most this many.
        :raises ConfigurationError: an argument is invalid.
        """
        check_limit(limit, "runs")
        return ask(self.database, lambda session: read_runs(session, group, limit=limit))

    def errors(
        self,
        group: str,
        *,
        since: datetime | None = None,
        sources: Collection[ErrorSource] = (),
        limit: int | None = None,
    ) -> list[JobError]:
        """The errors that the group's jobs met, oldest first. Of each group the newest thousand lines are kept.

        A running job writes its errors with its next heartbeat, at most five seconds later.

        :param since: only those since then.
        :param sources: only those from these sources, such as ``["batch"]``; see `JobError`.
        :param limit: only the last ones, at most this many.
        :raises ConfigurationError: an argument is invalid.
        """
        check_errors(since, sources, limit)
        return ask(
            self.database, lambda session: read_errors(session, group, since=since, sources=sources, limit=limit)
        )

    def follow_errors(
        self,
        group: str,
        *,
        since: datetime | None = None,
        sources: Collection[ErrorSource] = (),
        limit: int | None = None,
    ) -> Iterator[JobError]:
        """Iterate over what `errors` returns, and then over each error that is added, about a second later.

        It has no end: leave the loop. The arguments are those of `errors`.
        """
        check_errors(since, sources, limit)
        return follow(lambda at: self.errors(group, since=at, sources=sources), since=since, limit=limit)

    def owner(self, group: str) -> GroupRow | None:
        """Who claimed the group last, ``None`` before the first claim."""
        return self._read(lambda session: read_owner(session, group))

    def group_state(
        self, group: str, broker: BrokerOverview | None = None, *, kafka_group: str | None = None
    ) -> GroupState | None:
        """Read the group's state, ``None`` if the store does not know it: its owner, and its offsets beside Kafka's.

        The store is read first, without a lock, then Kafka. Lags in time are left out: `lag` finds these.

        :param broker: asked for the logs' ends and the committed offsets. If it can't answer, what is stored is
            returned all the same; for a topic or group that it does not have, the error takes its place.
        :param kafka_group: the group to look up in Kafka, if it is not ``group``.
        :raises StoreUnavailable: the connection was lost, or the server can't serve it.
        :raises LockTimeout: as `lag` does.
        """
        stored = ask(self.database, lambda session: read_group(session, group), lock_timeout=self.timeouts.lock)
        names = {} if kafka_group is None else {group: kafka_group}
        # Without stored offsets there is nothing to compare, so Kafka is not asked.
        asked = broker if stored.partitions.get(group) else None
        return measure(stored, asked, names, in_time=False).groups.get(group)

    def lag(
        self,
        groups: Collection[str] | None,
        broker: BrokerOverview,
        *,
        kafka_groups: Mapping[str, str] | None = None,
    ) -> Lag:
        """Measure how far groups are behind Kafka, in records and in time, for each topic and partition.

        The store is read first, in one round trip, then Kafka, where the number of round trips depends neither on the
        partitions nor on the groups' lags. It needs DESCRIBE of the topics and groups; with READ of the topics it can
        tell the lag in time of a few partitions that otherwise only have a bound. If Kafka can't answer, what is stored
        is returned all the same; for a topic or group that it does not have, the error takes its place.

        :param groups: ``None`` for all that were ever claimed; groups that the store does not know are left out.
        :param kafka_groups: the names in Kafka of groups that have another name there, by the name in the store.
        :raises StoreUnavailable: the connection was lost, or the server can't serve it.
        :raises LockTimeout: a table is locked, by a migration for example, for longer than `Timeouts.lock`.
        """
        before = time.time()
        stored = ask(self.database, lambda session: read_overview(session, groups), lock_timeout=self.timeouts.lock)
        # The database's clock was read about halfway through the round trip.
        skew = stored.at.timestamp() - (before + time.time()) / 2
        return replace(measure(stored, broker, kafka_groups or {}), clock_skew=skew)

    def record_samples(self, lag: Lag) -> None:
        """Keep what `lag` measured, for trends: a sample of each group that has partitions, in one round trip.

        It is meant to be called every ten seconds, by any number of processes. `samples` reads them back. It needs
        INSERT and UPDATE on the table ``samples``, which a dashboard's role is granted.

        :raises MissingPrivilege: the role may not write samples.
        :raises LockTimeout, TransactionLost: nothing was written; the next measurement will be.
        :raises StoreUnavailable: no connection.
        """
        if samples := lag.samples():
            with transaction(self.database, name="offsetstore:samples", lock_timeout=self.timeouts.lock) as session:
                record_samples(people(session), samples)

    def samples(
        self, groups: Collection[str], span: timedelta, *, points: int | None = None
    ) -> dict[str, list[Sample]]:
        """The samples of each of these groups, oldest first, from the last hour every 10 s, day 60 s, month 30 min.

        :param span: up to now, at most 31 days. The finest of those three that covers it is read.
        :param points: at most this many for each group, evenly spaced. `Selection.every` with the same arguments tells
            how far apart they are.
        :raises ConfigurationError: an argument is invalid.
        :raises StoreUnavailable: the connection was lost, or the server can't serve it.
        """
        selection = Selection.of(span, points)
        return ask(self.database, lambda session: read_samples(session, groups, selection))

    def facts(self) -> StoreFacts:
        """Read facts about the store itself: its server, its tables, and its oldest open transaction.

        It takes one round trip. A role needs SELECT on ``offsetstore_version`` only.
        """
        return ask(self.database, read_facts)

    def _decide(
        self,
        operation: Operation[_P],
        reason: str,
        actor: str | None,
        *,
        dry_run: bool = False,
        if_plan: str | None = None,
    ) -> _P:
        by = By(reason, actor, lock_timeout=self.timeouts.lock)
        return carry_out(self.database, operation, by, dry_run=dry_run, if_plan=if_plan)

    def _read(self, query: Callable[[Session], _T]) -> _T:
        return read(self.database, query)

    def close(self) -> None:
        """Close all claims, and the connections that the store opened itself.

        :raises OffsetStoreError: see `Claim.close`; what a claim's own close has raised before is only logged again.
            All is closed all the same.
        """

        def close(claim: Claim) -> None:
            with not_hiding(claim.close_error):
                claim.close()

        # All of it is closed whatever is raised: the claims in their order, and the database after them.
        with ExitStack() as closing:
            closing.callback(self.database.close)
            for claim in reversed(self._claims):
                closing.callback(close, claim)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for claim in self._claims:
            claim.end_with(error)
        with not_hiding(error):
            self.close()


def resolve_starting_offsets(
    broker: BrokerOffsets,
    *,
    group: str,
    topics: Collection[str] | None = None,
    store: OffsetStore | None = None,
    policy: StartPolicy | None = None,
    kafka_group: str | None = None,
) -> StartingOffsets:
    """Resolve where ``group`` would start now. Read-only: this fences no job and writes nothing.

    It takes one round trip to the database and a constant number to Kafka, however many partitions there are.

    :param store: ``None`` to use only the offsets committed in Kafka.
    :raises BrokerError, StartError: as `OffsetStore.claim` does.
    """
    names = [topics] if isinstance(topics, str) else topics if topics is not None else broker.topics
    if not names:
        raise ConfigurationError(
            "no topics to resolve", expected='topics=["..."], or a broker made from Spark\'s options'
        )
    stored = store.offsets(group) if store else {}
    identity = store.database.identity() if store else None
    if store is not None and identity is not None:
        identity.expect_home(store.database.schema)
    timestamp_ms = policy.timestamp_ms if policy else None
    view = broker.view(kafka_group or group, tuple(names), timestamp_ms=timestamp_ms)
    if store is None or identity is None:
        return resolve(stored, view, policy)
    return resolve_unlocked(store.database, group, stored, view, policy, store_id=identity.store_id)

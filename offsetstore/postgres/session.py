"""Sessions on PostgreSQL: `statements` behind the `Session` protocol."""

from __future__ import annotations

import logging
import os
import socket
import sys
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, Final, cast

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import namedtuple_row, tuple_row
from sqlalchemy import Connection, event

from offsetstore.errors import (
    ConfigurationError,
    ConnectionLost,
    MissingPrivilege,
    OffsetStoreError,
    SchemaError,
    SchemaNotAtHead,
    UnexpectedCommit,
)
from offsetstore.offsets import NO_CLAIM, EpochPair, Pause, StoredOffset, Suspect, Token, TopicPartition, makes_many
from offsetstore.postgres import statements as sql
from offsetstore.postgres.errors import (
    DATABASE_ERRORS,
    driver_error,
    naming_texts,
    refusals,
    refused_at_commit,
    stripped,
    translate,
    translated,
)
from offsetstore.postgres.grants import needed_columns
from offsetstore.postgres.letters import LetterStatements
from offsetstore.postgres.outbox import OutboxStatements
from offsetstore.postgres.runs import RunStatements
from offsetstore.postgres.schema import quoted
from offsetstore.postgres.statements import StatementResult, as_array, execute_together
from offsetstore.protocol.database import (
    Advance,
    GroupRow,
    HistoryEvent,
    LockedRow,
    MetadataRow,
    NewOffset,
)
from offsetstore.protocol.letters import writable
from offsetstore.protocol.metadata import Text
from offsetstore.protocol.runs import FleetMember
from offsetstore.protocol.store_facts import StoreIdentity
from offsetstore.runtime import failpoints
from offsetstore.runtime.functions import without_frames
from offsetstore.runtime.process import expect_own, is_own
from offsetstore.text import schema_option

_log = logging.getLogger(__name__)
_OVER: Final = (TransactionStatus.IDLE, TransactionStatus.INERROR)
_PLAIN: Final = {
    b"client_encoding": (b"UTF8",),
    b"standard_conforming_strings": (b"on",),
    b"DateStyle": tuple(b"ISO, " + order for order in (b"MDY", b"DMY", b"YMD")),
    b"IntervalStyle": (b"postgres",),
}
# Refused, not pinned: other values skip a target's triggers or policies, which are part of its data (decision 0053).
_EXPECTED: Final = {"session_replication_role": "origin", "row_security": "on"}
_PASSED_OVER: Final = {"session_replication_role": "triggers and foreign keys", "row_security": "policies"}
_DISCARD = "offsetstore_discard"
_LEAVE_IT: Final = (
    "Leave both to offsetstore. To go on after an error, use a savepoint: connection.begin_nested(), or an ORM "
    'Session(connection, join_transaction_mode="create_savepoint"), whose commit and rollback end its own.'
)
# The number of ids consumed after each failed attempt; some millions in all, which takes a minute.
_IDS_TO_TAKE: Final = tuple(1000 * 2**power for power in range(13))


def discard_at_end(connection: object) -> None:
    """Close this connection when its session ends, since the caller may change its settings (decision 0024).

    Does nothing for a transaction without a database connection.
    """
    if isinstance(connection, Connection):
        connection.execution_options(**{_DISCARD: True})


def history_event(row: Any) -> HistoryEvent:
    """A line of the history."""
    return HistoryEvent(
        row.event,
        None if row.topic is None else TopicPartition(row.topic, row.partition),
        row.from_offset,
        row.to_offset,
        Token(row.epoch, row.claim_id),
        row.actor,
        row.reason,
        row.at,
        row.db_role,
        row.id,
    )


class PostgresSession(LetterStatements, RunStatements, OutboxStatements):
    """One transaction on one connection, which returns to its pool at the end unless it is discarded.

    BEGIN is sent with the first statement, in one round trip. If the connection turns out to be dead then, as after a
    restart of the server, nothing has happened yet, and another one is used.

    :param connect: takes a connection from the pool.
    :param place: the quoted schema and its dot, or nothing.
    """

    def __init__(self, connect: Callable[[], Connection], place: str, settings: Mapping[str, str]) -> None:
        self._connect = connect
        self.place = place
        self._settings = settings
        self._pid = os.getpid()
        self._number = ""
        """The transaction's number in PostgreSQL; empty until BEGIN is sent."""
        self._ending = False
        self._was_ended = False
        """Whether user code has tried to end the transaction."""
        self._ended_for: BaseException | None = None
        """The error for which user code has tried to roll it back."""
        self._is_tried = False
        self._has_failed = False
        """Whether it has failed, even if a savepoint has saved it since."""
        self._closed = False
        self._moved = 0
        """How many rows were advanced; the server counts too, and a savepoint's rollback takes its count back."""
        self._check = sql.CHECK_DEFERRED
        """Checks deferred constraints after a trial."""
        self._open()

    def _open(self) -> None:
        self._connection = self._connect()
        self._listeners: dict[str, Callable[..., None]] = {
            "begin": self._refuse_more,
            "commit": self._refuse,
            "rollback": self._refuse_rollback,
            "rollback_savepoint": self._note_failed,
        }
        for name, hears in self._listeners.items():
            event.listen(self._connection, name, hears)

    @property
    def connection(self) -> Connection:
        expect_own(self._pid)
        if not self._number:
            self.one(sql.NOTHING)
        return self._connection

    @property
    def _psycopg(self) -> psycopg.Connection[Any]:
        expect_own(self._pid)
        return cast("psycopg.Connection[Any]", self._connection.connection.driver_connection)

    def in_savepoint(self) -> bool:
        return self._connection.in_nested_transaction()

    def may_have_raised(self, error: BaseException) -> bool:
        inner = driver_error(error)
        if inner is None or self._connection.closed or self._connection.invalidated or self._psycopg.closed:
            return True
        # libpq's own errors have no SQLSTATE, and leave a closed connection, not a failed transaction. If ours has not
        # failed, the error is of another connection of the function's (decision 0047).
        return inner.sqlstate is not None and (self._has_failed or self._is_failed())

    def _is_failed(self) -> bool:
        return self._psycopg.pgconn.transaction_status == TransactionStatus.INERROR

    def _note_failed(self, *_: object) -> None:
        self._has_failed = self._has_failed or self._connection.invalidated or self._is_failed()

    def is_whole(self) -> bool:
        row = self.one(sql.IS_WHOLE)
        return (row.transaction_number, row.moved) == (self._number, str(self._moved))

    def check_deferred(self) -> None:
        with refusals(None):
            self._send(sql.CHECK_DEFERRED)

    def commit(self) -> None:
        # The COMMIT of a transaction that has failed, or that SQLAlchemy has forgotten, rolls back without an error.
        # The driver's own state shows both without a round trip (decision 0029).
        if self._was_ended:
            raise self._unexpected()
        is_over = self._psycopg.pgconn.transaction_status in _OVER or not self._connection.in_transaction()
        if self._number and is_over:
            raise UnexpectedCommit("the transaction had failed, or was ended, before its COMMIT")
        self._ending = True
        # COMMIT goes alone: a transaction that is lost before it is known not to have happened (decision 0029).
        with translated():
            try:
                if failpoints.armed("commit_sent"):
                    self._psycopg.pgconn.send_query(b"COMMIT")
                    self._psycopg.pgconn.flush()
                failpoints.reach("commit_sent")
                self._connection.commit()
            except DATABASE_ERRORS as error:
                if (refused := refused_at_commit(error)) is not None:
                    raise refused from None
                raise
        try:
            self._close()
        except Exception as error:  # noqa: BLE001 - the COMMIT has happened, even if the pool fails
            kind = type(without_frames(error)).__name__
            _log.warning("could not return the connection to its pool after COMMIT: %s", kind)

    def rollback(self) -> None:
        if self._closed or not is_own(self._pid):
            return
        self._ending = True
        try:
            self._connection.rollback()
            # What psycopg has begun since, SQLAlchemy doesn't know.
            if self._was_ended and not self._connection.invalidated:
                self._psycopg.rollback()
            # After a failover, a new connection may reach the new primary (decision 0008). The server reports these
            # settings when they change.
            if not self._connection.invalidated:
                status = self._psycopg.pgconn.parameter_status
                if b"on" in map(status, (b"in_hot_standby", b"default_transaction_read_only")):
                    self._connection.invalidate()
            self._close()
        except Exception as error:  # noqa: BLE001 - a connection that fails here is of no further use
            without_frames(error)
            if not self._connection.closed:
                self._connection.invalidate()
            self._close()

    def sever(self) -> None:
        """Break the connection from another thread: the thread that waits for the server finds it lost."""
        # A proxy may take what is sent, acknowledge it, and forget it; no setting of TCP notices that (decision 0095).
        with suppress(OSError, *DATABASE_ERRORS):
            descriptor = os.dup(self._psycopg.pgconn.socket)
            with socket.socket(fileno=descriptor) as connection:
                connection.shutdown(socket.SHUT_RDWR)

    def _close(self) -> None:
        if self._closed:
            return
        self._closed = True
        # Its traceback refers to this transaction.
        self._ended_for = None
        while self._listeners:
            event.remove(self._connection, *self._listeners.popitem())
        if self._connection.get_execution_options().get(_DISCARD):
            self._connection.invalidate()
        self._connection.close()

    def _refuse(self, _: Connection) -> None:
        if not self._ending:
            self._was_ended = True
            raise self._unexpected()

    def _refuse_rollback(self, connection: Connection) -> None:
        """Refuse a ROLLBACK; if it is for an error, as an ORM Session's in `flush`, refuse what follows it instead."""
        if self._ending:
            return
        expect_own(self._pid)
        self._note_failed()
        self._was_ended, self._ended_for = True, sys.exc_info()[1]
        # A refusal would hide the error: an outage would not be repeated, and no record named (decision 0007).
        if self._ended_for is None:
            raise self._unexpected()
        # SQLAlchemy is about to call the driver's rollback, once: a search needs its savepoints.
        if self._is_tried and not connection.invalidated:
            driver = self._psycopg
            vars(driver)["rollback"] = lambda: vars(driver).pop("rollback")

    def _refuse_more(self, _: Connection) -> None:
        if self._was_ended and not self._ending:
            raise self._unexpected()

    def _unexpected(self) -> UnexpectedCommit:
        error = self._ended_for
        found = None
        if error is not None:
            trace = error.__traceback__
            place = f" at {trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}" if trace else ""
            found = f"a ROLLBACK for {type(error).__name__}{place}, after which the function went on"
        unexpected = UnexpectedCommit(
            "COMMIT or ROLLBACK was called on tx.connection", found=found, next_step=_LEAVE_IT
        )
        unexpected.__cause__ = None if error is None else stripped(error)
        return unexpected

    def begin_trials(self) -> float | None:
        self._is_tried = True
        with translated():
            timeout, deferred, _ = self.together(
                sql.TRANSACTION_TIMEOUT, sql.INITIALLY_DEFERRED, sql.SAVEPOINT.format(number=0)
            )
        self._check = sql.CHECK_DEFERRED
        if deferred.rows:
            names = ", ".join(f"{quoted(row.schema)}.{quoted(row.name)}" for row in deferred.rows)
            by_name = all(row.by_name for row in deferred.rows)
            again = f"{sql.CHECK_DEFERRED};\n{sql.DEFER_AGAIN.format(names=names)}"
            self._check = again if by_name else sql.CHECK_AND_TAKE_BACK
        milliseconds = next((row.setting for row in timeout.rows), 0)
        return milliseconds / 1000 or None

    def check_and_save(self, number: int) -> None:
        with refusals(None):
            execute_together(self._psycopg, self._check, sql.SAVEPOINT.format(number=number))

    def rollback_to(self, number: int) -> None:
        # What ended the transaction is undone now.
        if self._was_ended:
            self._was_ended, self._ended_for = False, None
            self._connection.begin()
        self.run(sql.ROLLBACK_TO.format(number=number))

    def lock_group(self, group: str) -> Token:
        self.run(sql.CREATE_GROUP, group=group, no_claim=NO_CLAIM.claim_id)
        row = self.one(sql.LOCK_GROUP, group=group)
        return Token(row.epoch, row.claim_id)

    def share_group(self, group: str) -> Token | None:
        row = self.first(sql.SHARE_GROUP, group=group)
        return None if row is None else Token(row.epoch, row.claim_id)

    def group(self, group: str) -> GroupRow | None:
        return group_row(self.rows(sql.GROUP, group=group))

    def names_of_groups(self) -> list[str]:
        return [row.consumer_group for row in self.rows(sql.NAMES_OF_GROUPS)]

    def write_group(self, group: str, token: Token, owner: str, *, fleet: str | None = None) -> None:
        # The group's row still names the earlier claim, whose heartbeat ends.
        self.run(sql.END_OTHER_BEATS, group=group)
        values = {"group": group, "epoch": token.epoch, "claim_id": token.claim_id}
        self.run(sql.WRITE_GROUP, owner=owner, **values)
        self.run(sql.WRITE_TOKENS, **values)
        if fleet is None:
            self.run(sql.FIRST_BEAT, claim_id=token.claim_id)
        else:
            self.run(sql.WRITE_FLEET, group=group, fleet=fleet)

    def write_pause(self, group: str, pause: Pause | None) -> None:
        at, until, reason = (pause.at, pause.until, pause.reason) if pause else (None, None, None)
        self.run(sql.WRITE_PAUSE, group=group, at=at, until=until, reason=reason)

    def lock_group_partitions(self, group: str) -> dict[TopicPartition, StoredOffset]:
        return stored_rows(self.rows(sql.LOCK_ALL_PARTITIONS, group=group))

    def lock_partitions(self, group: str, partitions: Collection[TopicPartition]) -> dict[TopicPartition, LockedRow]:
        asked = list(partitions)
        return {
            asked[number - 1]: LockedRow(offset, token, row.transaction_id)
            for row in self.rows(sql.LOCK_PARTITIONS, group=group, **_keys(asked))
            for token in [Token(row.epoch, row.claim_id)]
            for number, offset in zip(row.numbers, row.offsets, strict=True)
        }

    def read_partitions(
        self, group: str, partitions: Collection[TopicPartition] | None = None
    ) -> dict[TopicPartition, StoredOffset]:
        if partitions is None:
            return stored_rows(self.rows(sql.READ_PARTITIONS, group=group))
        return stored_rows(self.rows(sql.READ_THESE, group=group, **_keys(partitions)))

    def read_group(self, group: str) -> tuple[GroupRow | None, dict[TopicPartition, StoredOffset]]:
        with translated():
            owner, stored = self.together(sql.GROUP, sql.READ_OFFSETS, group=group)
        return group_row(owner.rows), stored_rows(stored.rows)

    def insert_partitions(self, group: str, token: Token, offsets: dict[TopicPartition, int]) -> set[TopicPartition]:
        rows = self.rows(sql.INSERT_PARTITIONS, group=group, offsets=list(offsets.values()), **_keys(offsets, token))
        return {TopicPartition(row.topic, row.partition) for row in rows}

    def set_partitions(self, group: str, token: Token, offsets: dict[TopicPartition, NewOffset]) -> None:
        self._drop_failures(group, offsets)
        self.run(
            sql.SET_PARTITIONS,
            group=group,
            offsets=[new.next_offset for new in offsets.values()],
            topic_ids=[new.topic_id for new in offsets.values()],
            cluster_ids=[new.cluster_id for new in offsets.values()],
            pinned=[new.pinned for new in offsets.values()],
            contested=[new.contested for new in offsets.values()],
            epoch_offsets=[new.pair and new.pair.offset for new in offsets.values()],
            leader_epochs=[new.pair and new.pair.leader_epoch for new in offsets.values()],
            suspects=[new.suspect and new.suspect.what for new in offsets.values()],
            suspect_ats=[new.suspect and new.suspect.at for new in offsets.values()],
            **_keys(offsets, token),
        )

    def advance(self, move: Advance) -> int:
        moved = self.one(sql.ADVANCE, **self._values(move)).moved
        self._moved += moved
        return cast("int", moved)

    def count_mark(self) -> None:
        self.run(sql.COUNT_MARK)
        self._moved += 1

    def finish(self, move: Advance) -> tuple[int, bool]:
        if self._was_ended:
            raise self._unexpected()
        # Deferred constraints come after the advance, which a trigger may look at, and before COMMIT, where a refusal
        # would have to be told from a lost answer (decision 0020).
        with refusals(None):
            texts = [sql.for_psycopg(text, self.place) for text in (sql.ADVANCE, sql.CHECK_DEFERRED, sql.IS_WHOLE)]
            advanced, _, whole = execute_together(
                self._psycopg, *texts, values=self._values(move), row_factory=namedtuple_row
            )
        moved = cast("int", advanced.rows[0].moved)
        self._moved += moved
        [row] = whole.rows
        return moved, (row.transaction_number, row.moved) == (self._number, str(self._moved))

    def _values(self, move: Advance) -> dict[str, object]:
        texts, text_numbers = None, None
        if move.metadata:
            # Each text is sent once, and the partitions have its number.
            numbers = {text: number for number, text in enumerate(dict.fromkeys(move.metadata.values()), 1)}
            texts = list(numbers)
            text_numbers = [numbers[move.metadata[tp]] if tp in move.metadata else None for tp in move.ranges]
        return {
            "group": move.group,
            "froms": as_array(range_.from_ for range_ in move.ranges.values()),
            "untils": as_array(range_.until for range_ in move.ranges.values()),
            "transaction_id": move.transaction_id,
            "texts": texts,
            "text_numbers": text_numbers,
            **_keys(move.ranges, move.token),
        }

    def read_metadata(self, group: str, topic: str, partition: int | None) -> dict[TopicPartition, MetadataRow]:
        return {
            TopicPartition(topic, row.partition): MetadataRow(row.metadata, Token(row.epoch, row.claim_id))
            for row in self.rows(sql.READ_METADATA, group=group, topic=topic, partition=partition)
        }

    def write_metadata(self, group: str, token: Token, metadata: Mapping[TopicPartition, Text]) -> int:
        texts = list(metadata.values())
        return self.run(sql.WRITE_METADATA, group=group, metadata=texts, **_keys(metadata, token))

    def unpin(self, group: str, token: Token, partitions: Collection[TopicPartition]) -> None:
        self.run(sql.UNPIN, group=group, **_keys(partitions, token))

    def contest(self, group: str, token: Token, partitions: Collection[TopicPartition]) -> None:
        self.run(sql.CONTEST, group=group, **_keys(partitions, token))

    def write_pairs(self, group: str, token: Token, pairs: Mapping[TopicPartition, EpochPair]) -> int:
        offsets, epochs = [pair.offset for pair in pairs.values()], [pair.leader_epoch for pair in pairs.values()]
        arrays = {"epoch_offsets": offsets, "leader_epochs": epochs}
        return self.run(sql.WRITE_PAIRS, group=group, **arrays, **_keys(pairs, token))

    def write_suspects(self, group: str, token: Token, found: Mapping[TopicPartition, str]) -> set[TopicPartition]:
        texts = list(found.values())
        rows = self.rows(sql.WRITE_SUSPECTS, group=group, suspects=texts, **_keys(found, token))
        return {TopicPartition(row.topic, row.partition) for row in rows}

    def batch_mark(self, group: str, query_id: uuid.UUID) -> int | None:
        row = self.first(sql.BATCH_MARK, group=group, query_id=query_id)
        return None if row is None else cast("int", row.batch_id)

    def mark_batch(self, group: str, query_id: uuid.UUID, batch_id: int) -> bool:
        return self.first(sql.MARK_BATCH, group=group, query_id=query_id, batch_id=batch_id) is not None

    def take_turn(self, group: str, name: uuid.UUID, every: float) -> bool:
        return self.first(sql.TAKE_TURN, group=group, name=name, every=every) is not None

    def append_history(self, group: str, events: Sequence[HistoryEvent]) -> None:
        if not events:
            return
        places = [line.topic_partition for line in events]
        values = {
            "group": group,
            "topics": [tp.topic if tp else None for tp in places],
            "partitions": [tp.partition if tp else None for tp in places],
            "events": [line.event for line in events],
            "froms": [line.from_offset for line in events],
            "tos": [line.to_offset for line in events],
            "epochs": [line.token.epoch for line in events],
            "claim_ids": [line.token.claim_id for line in events],
            "actors": [line.actor for line in events],
            "reasons": [writable(line.reason) for line in events],
        }
        last = 0
        for count in _IDS_TO_TAKE:
            with self.connection.begin_nested() as savepoint:
                row = self.one(sql.APPEND_HISTORY, **values)
                if row.appended == len(events):
                    return
                last = row.last
                # The identity's sequence lags behind the rows: logical replication does not copy sequences.
                _log.warning("the ids of offset_history lag behind its rows, the last of which is %d", last)
                self.run(sql.TAKE_HISTORY_IDS, no_claim=NO_CLAIM.claim_id, count=count)
                savepoint.rollback()
        what = "the ids of offset_history lag so far behind its rows that no row can be added"
        table = f"{self.place}offset_history"
        raise SchemaError(
            what,
            found=f"the last row has id {last}",
            next_step=f"Run as the owner of the table: SELECT setval(pg_get_serial_sequence('{table}', 'id'), {last}).",
        )

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
        topic, partition = topic_partition or (None, None)
        asked = {"since": since, "events": list(events) or None, "topic": topic, "partition": partition, "limit": limit}
        return [history_event(row) for row in self.rows(sql.HISTORY, group=group, before=before, **asked)]

    def deleted_epochs(self, group: str) -> dict[str | None, int]:
        return {row.topic: row.epoch for row in self.rows(sql.DELETED_EPOCHS, group=group)}

    def beat(self, claim_id: uuid.UUID) -> bool:
        return self.run(sql.BEAT, claim_id=claim_id) == 1

    def end_beat(self, claim_id: uuid.UUID) -> None:
        self.run(sql.END_BEAT, claim_id=claim_id)

    def take_partitions(self, group: str, token: Token, partitions: Collection[TopicPartition]) -> None:
        self.run(sql.TAKE_PARTITIONS, group=group, **_keys(partitions, token))

    def add_member(self, group: str, fleet: Token, member_id: uuid.UUID, owner: str) -> None:
        self.run(sql.ADD_MEMBER, group=group, fleet_id=fleet.claim_id, member_id=member_id, owner=owner)

    def trim_members(self, group: str, fleet_id: uuid.UUID) -> None:
        self.run(sql.TRIM_MEMBERS, group=group, fleet_id=fleet_id)

    def beat_member(self, group: str, fleet: Token, member_id: uuid.UUID) -> bool:
        values = {"group": group, "epoch": fleet.epoch, "claim_id": fleet.claim_id, "member_id": member_id}
        return self.run(sql.BEAT_MEMBER, **values) == 1

    def drop_member(self, group: str, member_id: uuid.UUID) -> None:
        self.run(sql.DROP_MEMBER, group=group, member_id=member_id)

    def members(self, group: str) -> list[FleetMember]:
        return [FleetMember(*row) for row in self.rows(sql.MEMBERS, group=group)]

    def expect_grants(self) -> None:
        tables, needed, columns = zip(*needed_columns(), strict=True)
        with translated():
            missing = self.rows(
                sql.MISSING_GRANTS, place=self.place, tables=[*tables], privileges=[*needed], columns=[*columns]
            )
        if not missing:
            return
        role, schema = missing[0].role, missing[0].schema
        raise MissingPrivilege(
            "the role may not do all that a job does; no job was fenced",
            found=f"role {quoted(role)} lacks {', '.join(f'{row.privilege} on {row.in_table}' for row in missing)}",
        ).granted_by("--role", role, *schema_option(schema))

    def identity(self) -> StoreIdentity:
        # BEGIN comes first: if it were sent again, on another connection, the savepoint would be lost.
        assert self.connection
        try:
            with translated():
                _, found, _ = self.together(sql.SAVE_IDENTITY, sql.IDENTITY, sql.KEEP_IDENTITY)
        except OffsetStoreError:
            # Whatever the error: a service may lack the function, and a job must not stop for that (decision 0050).
            with translated():
                _, found = self.together(sql.LEAVE_IDENTITY, sql.IDENTITY_ALONE)
        if not found.rows:
            raise SchemaNotAtHead(
                "the table store_identity is empty, so this store has no id",
                next_step="Restore its row, which offsetstore's migration wrote.",
            )
        [row] = found.rows
        return StoreIdentity(row.store_id, row.home, row.here)

    def now(self) -> datetime:
        return cast("datetime", self.one(sql.NOW)[0])

    def _send(self, statement: str, **values: object) -> StatementResult:
        """Send a statement, the first one with BEGIN before it."""
        if self._was_ended:
            raise self._unexpected()
        if self._number:
            # As text, psycopg can read neither times nor intervals in another style than ISO's and PostgreSQL's own.
            cursor = self._psycopg.cursor(row_factory=namedtuple_row, binary=True)
            with naming_texts(values):
                cursor.execute(cast("Any", sql.for_psycopg(statement, self.place)), values)
            return StatementResult(cursor.fetchall() if cursor.description else [], cursor.rowcount)
        [result] = self.together(statement, **values)
        return result

    def tuples(self, statement: str, **values: object) -> list[tuple[Any, ...]]:
        """Run a statement that returns many rows: binary tuples without names take a third of the time."""
        # Sends BEGIN.
        assert self.connection
        with translated(), naming_texts(values):
            cursor = self._psycopg.cursor(row_factory=tuple_row, binary=True)
            return cursor.execute(cast("Any", sql.for_psycopg(statement, self.place)), values).fetchall()

    def together(self, *statements: str, **values: object) -> list[StatementResult]:
        """Send the statements in one round trip, the first ones with BEGIN before them; see `_is_plain`."""
        if self._number and not self._is_plain():
            return [self._send(statement, **values) for statement in statements]
        if self._number:
            texts = [sql.for_psycopg(statement, self.place) for statement in statements]
            with naming_texts(values):
                return execute_together(self._psycopg, *texts, values=values, row_factory=namedtuple_row)
        try:
            with naming_texts(values):
                return self._begin(*statements, **values)
        except Exception as error:
            if not isinstance(translate(error), ConnectionLost):
                raise
            # Nothing has happened: the connection may have been dead before, and then so are the others of its pool. By
            # the failing rollback, SQLAlchemy learns that and drops all. Without a new one, the session stays closed.
            self.rollback()
            self._open()
            self._ending = self._closed = False
            return self._begin(*statements, **values)

    def _begin(self, *statements: str, **values: object) -> list[StatementResult]:
        connection = self._psycopg
        # A hook of the engine may have begun it.
        is_begun = connection.pgconn.transaction_status != TransactionStatus.IDLE
        before = [] if is_begun else [sql.BEGIN]
        together, later = (statements, ()) if self._is_plain() else ((), statements)
        texts = [*before, *(sql.for_psycopg(statement, self.place) for statement in (sql.SETTINGS, *together))]
        # psycopg sends a BEGIN by itself and waits for the answer, unless the connection is in autocommit mode; the
        # public setter refuses to change that back in a transaction.
        connection._autocommit = True  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
        try:
            results = execute_together(
                connection, *texts, values={**self._settings, **values}, row_factory=namedtuple_row
            )[len(before) :]
        finally:
            connection._autocommit = False  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
        [settings] = results[0].rows
        # With others, the server would skip triggers, foreign keys or policies. The role, the database, or SQL in an
        # earlier transaction may have set them.
        for name, expected in _EXPECTED.items():
            if (value := getattr(settings, name)) != expected:
                self.rollback()
                raise ConfigurationError(
                    f"the session has {name}={value}, with which {_PASSED_OVER[name]} don't apply; nothing was written",
                    found=value,
                    expected=expected,
                    next_step=f"ALTER ROLE ... RESET {name}, or ALTER DATABASE ... RESET {name}; look for it in the "
                    "URL's options and in SQL of your own, too.",
                )
        self._number = cast("str", settings.transaction_number)
        return results[1:] + [self._send(statement, **values) for statement in later]

    def _is_plain(self) -> bool:
        """Whether statements with values in their text, and results as text, can share a message (decision 0053).

        The server converts and parses a message before it runs the first statement, so before the encoding and the
        strings of `SETTINGS` are in force; and psycopg reads times as text only in these styles. The server reports
        these settings when they change.
        """
        return all(self._psycopg.pgconn.parameter_status(name) in values for name, values in _PLAIN.items())


def group_row(rows: Sequence[Any]) -> GroupRow | None:
    """Read the rows of `statements.GROUP`; ``None`` if it has none."""
    if not rows:
        return None
    [row] = rows
    pause = None if row.paused_at is None else Pause(row.paused_at, row.paused_until, row.pause_reason)
    pauses = (None, pause) if row.pause_ended else (pause, None)
    token = Token(row.epoch, row.claim_id)
    return GroupRow(token, row.owner, row.claimed_at, row.alive_for, *pauses, row.ending, row.fleet, row.last_fleet)


def _keys(partitions: Iterable[TopicPartition], token: Token | None = None) -> dict[str, object]:
    """The partitions, and the token that their rows must have or get, as statements take them."""
    listed = list(partitions)
    topics = [tp.topic for tp in listed]
    # As the elements of an array literal.
    quoted = {topic: '"' + topic.replace("\\", "\\\\").replace('"', '\\"') + '"' for topic in set(topics)}
    keys: dict[str, object] = {
        "topics": as_array(quoted[topic] for topic in topics),
        "partitions": as_array(tp.partition for tp in listed),
    }
    return keys if token is None else {**keys, "epoch": token.epoch, "claim_id": token.claim_id}


@makes_many
def stored_rows(rows: Iterable[Any]) -> dict[TopicPartition, StoredOffset]:
    """Read the rows of `statements.READ_PARTITIONS`."""
    # Mostly one token for all of ten thousand rows. The key has a number: a UUID's hash is computed in Python.
    tokens: dict[tuple[int, int], Token] = {}
    return {
        TopicPartition(row.topic, row.partition): StoredOffset(
            row.next_offset,
            tokens.get(key := (row.epoch, row.claim_id.int)) or tokens.setdefault(key, Token(row.epoch, row.claim_id)),
            row.metadata,
            row.topic_id,
            row.cluster_id,
            row.transaction_id,
            row.pinned,
            row.updated_at,
            row.pinned_epoch,
            row.contested,
            None if row.leader_epoch is None else EpochPair(row.epoch_offset, row.leader_epoch),
            None if row.suspect is None else Suspect(row.suspect, row.suspect_at),
        )
        for row in rows
    }

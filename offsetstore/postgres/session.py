"""Sessions on PostgreSQL: `statements` behind the `Session` protocol."""

from __future__ import annotations

import logging
import uuid
from typing import TYPE_CHECKING, Any, Final, cast

from sqlalchemy import Connection, event, text

from offsetstore.errors import SchemaError, UnexpectedCommit
from offsetstore.offsets import OffsetRange, StoredOffset, Token, TopicPartition
from offsetstore.postgres import statements as sql
from offsetstore.postgres.errors import refusals, translated
from offsetstore.protocol import failpoints
from offsetstore.protocol.database import GroupRow, HistoryEvent, NewOffset
from offsetstore.protocol.metadata import KEEP, Keep

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence
    from datetime import datetime

    from sqlalchemy import CursorResult

_log = logging.getLogger(__name__)
_NO_CLAIM = uuid.UUID(int=0)
_DISCARD = "offsetstore_discard"
# How many ids are consumed after each failed attempt; some millions in all, which takes a minute.
_IDS_TO_TAKE: Final = tuple(1000 * 2**power for power in range(13))


def discard_at_end(connection: object) -> None:
    """Close this connection when its session ends, since the caller may change its settings (decision 0024).

    Does nothing for a transaction without a database connection.
    """
    if isinstance(connection, Connection):
        connection.execution_options(**{_DISCARD: True})


class PostgresSession:
    """One transaction on one connection, which returns to its pool at the end unless it is discarded."""

    def __init__(self, connection: Connection, schema: str, settings: Mapping[str, str]) -> None:
        self._connection = connection
        self._schema = schema
        self._ending = False
        self._closed = False
        self._moved = 0
        event.listen(connection, "commit", self._refuse)
        event.listen(connection, "rollback", self._refuse)
        self._number = cast("str", self._execute(sql.BEGIN, **settings).one().transaction_number)

    @property
    def connection(self) -> Connection:
        return self._connection

    @property
    def _psycopg(self) -> Any:
        return self._connection.connection.driver_connection

    def in_savepoint(self) -> bool:
        return self._connection.in_nested_transaction()

    def is_whole(self) -> bool:
        row = self._run(sql.IS_WHOLE).one()
        return (row.transaction_number, row.moved) == (self._number, str(self._moved))

    def check_deferred(self) -> None:
        with refusals(None):
            self._execute(sql.CHECK_DEFERRED)

    def commit(self) -> None:
        self._ending = True
        with translated():
            if failpoints.armed("commit_sent"):
                self._psycopg.pgconn.send_query(b"COMMIT")
                self._psycopg.pgconn.flush()
            failpoints.reach("commit_sent")
            self._connection.commit()
        try:
            self._close()
        except Exception as error:  # noqa: BLE001 - the COMMIT has happened, even if the pool fails
            _log.warning("could not return the connection to its pool after COMMIT: %s", type(error).__name__)

    def rollback(self) -> None:
        if self._closed:
            return
        self._ending = True
        try:
            self._connection.rollback()
            if not self._connection.invalidated and self._is_read_only():
                self._connection.invalidate()  # a new one may reach the new primary
            self._close()
        except Exception:  # noqa: BLE001 - a connection that fails here is of no further use
            self._connection.invalidate()
            self._close()

    def _is_read_only(self) -> bool:
        """As the server has reported, without a query: PostgreSQL sends these settings when they change."""
        told = map(self._psycopg.pgconn.parameter_status, (b"in_hot_standby", b"default_transaction_read_only"))
        return b"on" in told

    def _close(self) -> None:
        if self._closed:
            return
        self._closed = True
        event.remove(self._connection, "commit", self._refuse)
        event.remove(self._connection, "rollback", self._refuse)
        if self._connection.get_execution_options().get(_DISCARD):
            self._connection.invalidate()
        self._connection.close()

    def _refuse(self, _: Connection) -> None:
        if not self._ending:
            raise UnexpectedCommit("COMMIT or ROLLBACK was called on tx.connection")

    def lock_group(self, group: str) -> Token:
        self._run(sql.CREATE_GROUP, group=group, no_claim=_NO_CLAIM)
        row = self._run(sql.LOCK_GROUP, group=group).one()
        return Token(row.epoch, row.claim_id)

    def share_group(self, group: str) -> Token | None:
        row = self._run(sql.SHARE_GROUP, group=group).one_or_none()
        return None if row is None else Token(row.epoch, row.claim_id)

    def group(self, group: str) -> GroupRow | None:
        row = self._run(sql.GROUP, group=group).one_or_none()
        if row is None:
            return None
        return GroupRow(Token(row.epoch, row.claim_id), row.owner, row.claimed_at, row.alive_for)

    def write_group(self, group: str, token: Token, owner: str) -> None:
        self._run(sql.END_OTHER_BEATS, group=group)
        self._run(sql.WRITE_GROUP, group=group, owner=owner, **_token(token))
        self._run(sql.WRITE_TOKENS, group=group, **_token(token))
        self._run(sql.FIRST_BEAT, claim_id=token.claim_id)

    def lock_partitions(
        self, group: str, partitions: Collection[TopicPartition] | None
    ) -> dict[TopicPartition, StoredOffset]:
        if partitions is None:
            return _stored(self._run(sql.LOCK_ALL_PARTITIONS, group=group))
        return _stored(self._run(sql.LOCK_PARTITIONS, group=group, **_keys(partitions)))

    def read_partitions(self, group: str) -> dict[TopicPartition, StoredOffset]:
        return _stored(self._run(sql.READ_PARTITIONS, group=group))

    def insert_partitions(self, group: str, token: Token, offsets: dict[TopicPartition, int]) -> set[TopicPartition]:
        rows = self._run(
            sql.INSERT_PARTITIONS, group=group, offsets=list(offsets.values()), **_keys(offsets), **_token(token)
        )
        return {TopicPartition(row.topic, row.partition) for row in rows}

    def set_partitions(self, group: str, token: Token, offsets: dict[TopicPartition, NewOffset]) -> None:
        self._run(
            sql.SET_PARTITIONS,
            group=group,
            offsets=[new.next_offset for new in offsets.values()],
            topic_ids=[new.topic_id for new in offsets.values()],
            cluster_ids=[new.cluster_id for new in offsets.values()],
            pinned=[new.pinned for new in offsets.values()],
            contested=[new.contested for new in offsets.values()],
            **_keys(offsets),
            **_token(token),
        )

    def advance(
        self,
        group: str,
        token: Token,
        ranges: dict[TopicPartition, OffsetRange],
        metadata: str | Keep | None,
        transaction_id: uuid.UUID,
    ) -> int:
        row = self._run(
            sql.ADVANCE,
            group=group,
            froms=[range_.from_ for range_ in ranges.values()],
            untils=[range_.until for range_ in ranges.values()],
            keep_metadata=metadata is KEEP,
            metadata=None if metadata is KEEP else metadata,
            transaction_id=transaction_id,
            moved_before=self._moved,
            **_keys(ranges),
            **_token(token),
        ).one()
        self._moved += row.moved
        return cast("int", row.moved)

    def rename_group(self, group: str, new: str) -> None:
        self._run(sql.RENAME_GROUP, group=group, new=new)
        self._run(sql.RENAME_MARKS, group=group, new=new)

    def unpin(self, group: str, token: Token, partitions: Collection[TopicPartition]) -> None:
        self._run(sql.UNPIN, group=group, **_keys(partitions), **_token(token))

    def contest(self, group: str, token: Token, partitions: Collection[TopicPartition]) -> None:
        self._run(sql.CONTEST, group=group, **_keys(partitions), **_token(token))

    def batch_mark(self, group: str, query_id: uuid.UUID) -> int | None:
        return self._run(sql.BATCH_MARK, group=group, query_id=query_id).scalar()

    def mark_batch(self, group: str, query_id: uuid.UUID, batch_id: int) -> bool:
        return self._run(sql.MARK_BATCH, group=group, query_id=query_id, batch_id=batch_id).scalar() is not None

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
            "reasons": [line.reason for line in events],
        }
        last = 0
        for count in _IDS_TO_TAKE:
            with self._connection.begin_nested() as savepoint:
                row = self._run(sql.APPEND_HISTORY, **values).one()
                if row.appended == len(events):
                    return
                last = row.last
                # The identity's sequence lags behind the rows: logical replication does not copy sequences.
                _log.warning("the ids of offset_history lag behind its rows, the last of which is %d", last)
                self._run(sql.TAKE_HISTORY_IDS, no_claim=_NO_CLAIM, count=count)
                savepoint.rollback()
        what = "the ids of offset_history lag so far behind its rows that no row can be added"
        table = f"{self._schema}offset_history".replace("\\:", ":")
        raise SchemaError(
            what,
            found=f"the last row has id {last}",
            next_step=f"Run as the owner of the table: SELECT setval(pg_get_serial_sequence('{table}', 'id'), {last}).",
        )

    def history(self, group: str) -> list[HistoryEvent]:
        return [
            HistoryEvent(
                row.event,
                None if row.topic is None else TopicPartition(row.topic, row.partition),
                row.from_offset,
                row.to_offset,
                Token(row.epoch, row.claim_id),
                row.actor,
                row.reason,
                row.at,
            )
            for row in self._run(sql.HISTORY, group=group)
        ]

    def renamed_since(self, group: str, epoch: int) -> bool:
        return cast("bool", self._run(sql.RENAMED_SINCE, group=group, epoch=epoch).scalar_one())

    def beat(self, claim_id: uuid.UUID) -> bool:
        return self._run(sql.BEAT, claim_id=claim_id).rowcount == 1

    def end_beat(self, claim_id: uuid.UUID) -> None:
        self._run(sql.END_BEAT, claim_id=claim_id)

    def now(self) -> datetime:
        return cast("datetime", self._run(sql.NOW).scalar_one())

    def _run(self, statement: str, **values: object) -> CursorResult[Any]:
        with translated():
            return self._execute(statement, **values)

    def _execute(self, statement: str, **values: object) -> CursorResult[Any]:
        return self._connection.execute(text(statement.replace("{s}", self._schema)), values)


def _keys(partitions: Iterable[TopicPartition]) -> dict[str, object]:
    listed = list(partitions)
    return {"topics": [tp.topic for tp in listed], "partitions": [tp.partition for tp in listed]}


def _token(token: Token) -> dict[str, object]:
    return {"epoch": token.epoch, "claim_id": token.claim_id}


def _stored(rows: Iterable[Any]) -> dict[TopicPartition, StoredOffset]:
    return {
        TopicPartition(row.topic, row.partition): StoredOffset(
            row.next_offset,
            Token(row.epoch, row.claim_id),
            row.metadata,
            row.topic_id,
            row.cluster_id,
            row.transaction_id,
            row.pinned,
            row.updated_at,
            row.pinned_epoch,
            row.contested,
        )
        for row in rows
    }

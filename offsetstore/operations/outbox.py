"""The outbox for people: the rows that Kafka refuses, and decisions about these and about rows that wait.

A relay has moved refused rows to a table of their own, or a person has, because they blocked others. Each decision
writes one line into the history of the group whose job wrote the rows, whatever the group is called now, or of the
source whose application did (decision 0107).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar, Final

from offsetstore.errors import ConfigurationError, UnknownGroup
from offsetstore.offsets import MAX_OFFSET, NO_CLAIM, Token
from offsetstore.operations.operation import By, History, Operation, Plan, digest_of, expect_group, unknown_group
from offsetstore.operations.people import people
from offsetstore.postgres.errors import needing
from offsetstore.postgres.outbox import CHANNEL, SET_ASIDE
from offsetstore.postgres.session import PostgresSession
from offsetstore.protocol.arguments import as_offset, check_whole
from offsetstore.protocol.database import EventName, Session
from offsetstore.protocol.outbox import MOST_ROWS
from offsetstore.text import command

_NAMED: Final = 20  # rows that a line of the history names

_THESE: Final = """
  AND (CAST(:ids AS bigint[]) IS NULL OR id = ANY(CAST(:ids AS bigint[])))
ORDER BY id LIMIT :limit
"""
_OF_GROUP: Final = """
WHERE consumer_group = :group AND id > :after AND (CAST(:topic AS text) IS NULL OR topic = CAST(:topic AS text))"""
_REFUSED: Final = f"FROM {{s}}outbox_refused {_OF_GROUP}"
# Rows of the relay's open batch may be in Kafka already.
_WAITING: Final = f"""FROM {{s}}outbox {_OF_GROUP}
  AND NOT id = ANY(coalesce((SELECT r.ids FROM {{s}}outbox_relays AS r WHERE r.shard = 0), '{{}}'))"""  # noqa: S608 - constants alone
REFUSED: Final = f"SELECT id, topic, error, created_at, refused_at {_REFUSED}{_THESE}"
# By the primary key.
REFUSED_OF_ALL: Final = """
SELECT id, topic, error, created_at, refused_at, consumer_group FROM {s}outbox_refused
WHERE id > :after AND (CAST(:topic AS text) IS NULL OR topic = CAST(:topic AS text)) ORDER BY id LIMIT :limit
"""
COUNT_REFUSED: Final = f"SELECT count(*) AS rows {_REFUSED}"
LOCK_REFUSED: Final = f"{REFUSED}FOR UPDATE"
WAITING: Final = f"SELECT id, topic, 'waiting' AS error, created_at, NULL AS refused_at {_WAITING}{_THESE}"
COUNT_WAITING: Final = f"SELECT count(*) AS rows {_WAITING}"
LOCK_WAITING: Final = f"{WAITING}FOR UPDATE"
# A relay changes this row for each batch, and then checks that all rows of the batch are still there. So a row is
# either in a batch or set aside (decision 0095).
LOCK_RELAY: Final = "SELECT shard FROM {s}outbox_relays WHERE shard = 0 FOR SHARE"
# Before the first relay ever there is no row to lock: its INSERT waits for this.
LOCK_FIRST_RELAY: Final = "LOCK TABLE {s}outbox_relays IN SHARE MODE"
# The rows get new ids, and so come after all that wait: a relay finds them as it finds any other (decision 0095).
RETRY_REFUSED: Final = """
WITH again AS (DELETE FROM {s}outbox_refused WHERE id = ANY(CAST(:ids AS bigint[])) RETURNING *),
written AS (INSERT INTO {s}outbox (consumer_group, topic, key, value, headers)
SELECT consumer_group, topic, key, value, headers FROM again ORDER BY id
RETURNING 1)
SELECT count(*) AS rows, CAST(pg_notify(:channel, :place) AS text) AS told FROM written
"""
# For a name without a group, once: there is no index by it.
IS_SOURCE: Final = """
SELECT EXISTS (SELECT FROM {s}outbox WHERE consumer_group = :name)
    OR EXISTS (SELECT FROM {s}outbox_refused WHERE consumer_group = :name) AS found
"""
DISCARD_REFUSED: Final = "DELETE FROM {s}outbox_refused WHERE id = ANY(CAST(:ids AS bigint[]))"

_RIGHT: Final = "decide about rows that Kafka refuses (the owner of the tables may)"


@dataclass(frozen=True, slots=True)
class RefusedRow:
    """A row of the outbox that Kafka refuses.

    :param error: the error of Kafka or its client, without any content of the record.
    :param created_at: when a job wrote it. It was set aside at ``refused_at``, ``None`` if it still waits. Both by the
        database's clock.
    """

    id: int
    topic: str
    error: str
    created_at: datetime
    refused_at: datetime | None


@dataclass(frozen=True, slots=True)
class RefusedDecided(Plan):
    """What was decided about rows of the outbox; for a dry run, what would be.

    :param decision: ``"outbox-retry"``, ``"outbox-discard"`` or ``"outbox-set-aside"``, as in the history.
    :param rows: in the order of their ids.
    :param more: how many rows beyond the limit stay as they are.
    :param token: of the group's last claim; that of no claim for a source.
    """

    group: str
    decision: EventName
    rows: tuple[RefusedRow, ...]
    more: int
    token: Token

    @property
    def is_empty(self) -> bool:
        """Whether there are none."""
        return not self.rows


def is_source(session: PostgresSession, name: str) -> bool:
    """Whether rows have this name, or a decision was made about such rows, although no group may have it."""
    return session.one(IS_SOURCE, name=name).found or bool(session.history(name, limit=1))


def unknown_source(session: Session, name: str) -> UnknownGroup:
    """Make the error for a name that is no group's, and that no row has."""
    error = unknown_group(session, name)
    return UnknownGroup(
        f"{error.what}, and no outbox row has this name",
        found=error.found,
        next_step=f"{error.next_step} The name of an application is known only while it has rows in the outbox, or "
        "once something was decided about them.",
    )


def read_refused(
    session: PostgresSession, group: str, *, topic: str | None, after: int, limit: int
) -> list[RefusedRow]:
    """Read a part of the list; see `OffsetStore.refused_rows`."""
    found = session.rows(REFUSED, group=group, ids=None, topic=topic, after=after, limit=limit)
    return [RefusedRow(*row) for row in found]


def read_refused_of_all(
    session: PostgresSession, *, topic: str | None, after: int, limit: int
) -> list[tuple[str, RefusedRow]]:
    """Do as `read_refused` does, for all groups and sources: with each row comes the name of its own."""
    found = session.rows(REFUSED_OF_ALL, topic=topic, after=after, limit=limit)
    return [(row.consumer_group, RefusedRow(*row[:5])) for row in found]


@dataclass(frozen=True)
class _Refused(Operation[RefusedDecided]):
    """A decision about rows of a group: rows with these ids, all rows of a topic, or all of them."""

    group: str
    ids: Sequence[int] | None = None
    topic: str | None = None
    limit: int = MOST_ROWS

    are: ClassVar[str] = "set aside"
    statements: ClassVar[tuple[str, str, str]] = REFUSED, LOCK_REFUSED, COUNT_REFUSED

    def __post_init__(self) -> None:
        expect_group(self.group)
        check_whole("limit", self.limit, "rows", least=1)
        if self.ids is None:
            return
        ids = sorted({as_offset("the id of a row", row_id, most=MAX_OFFSET) for row_id in self.ids})
        if not ids or len(ids) > self.limit or self.topic is not None:
            raise ConfigurationError(
                "a decision about refused rows names ids, a topic, or neither for all of the group",
                found=f"{len(ids)} ids{'' if self.topic is None else ' and a topic'}",
                expected=f"1 to {self.limit} ids and no topic, or ids=None",
            )
        object.__setattr__(self, "ids", ids)

    @property
    @abstractmethod
    def kind(self) -> tuple[EventName, str]:
        """The event of the history, and what its reason says is done to the rows."""

    @property
    def where(self) -> str:
        """What to do if there are no such rows."""
        return f"`{command('outbox', 'list', '-g', self.group, schema=None)}` has those that are."

    @abstractmethod
    def change(self, session: PostgresSession, ids: Sequence[int], by: By) -> None:
        """Change the rows, which are locked."""

    def plan(self, session: Session) -> RefusedDecided:
        return self._choose(session, self.statements[0])

    def locked(self, session: Session) -> Iterator[RefusedDecided]:
        # The group's row is locked before any other, as in every decision; a source has none.
        session.share_group(self.group)
        with needing(_RIGHT):
            yield self._choose(session, self.statements[1])

    def _choose(self, session: Session, statement: str) -> RefusedDecided:
        owner, read = session.group(self.group), people(session)
        if owner is None and not is_source(read, self.group):
            raise unknown_source(session, self.group)
        values = {"group": self.group, "topic": self.topic}
        found = [
            RefusedRow(*row) for row in read.rows(statement, ids=self.ids, after=-1, limit=self.limit + 1, **values)
        ]
        if self.ids is not None and len(found) < len(self.ids):
            gone = sorted({*self.ids} - {row.id for row in found})
            raise ConfigurationError(
                f"no such rows of group {self.group!r} are {self.are}",
                found=", ".join(map(str, gone[:_NAMED])),
                next_step=self.where,
            )
        rows, (event, _) = tuple(found[: self.limit]), self.kind
        more = read.one(self.statements[2], after=rows[-1].id, **values).rows if len(found) > self.limit else 0
        digest = digest_of(event, self.group, [[row.id, row.refused_at] for row in rows])
        token = NO_CLAIM if owner is None else owner.token
        return RefusedDecided(self.group, event, rows, more, token, digest=digest)

    def write(self, session: Session, plan: RefusedDecided, by: By) -> History:
        ids = [row.id for row in plan.rows]
        with needing(_RIGHT):
            self.change(people(session), ids, by)
        others = len(ids) - _NAMED
        named = ", ".join(map(str, ids[:_NAMED])) + (f" and {others} more" if others > 0 else "")
        event, words = self.kind
        return {self.group: [by.event(event, plan.token, f"rows {named} {words}: {by.reason}")]}


class RetryRefused(_Refused):
    """Put rows back; see `OffsetStore.retry_refused`."""

    @property
    def kind(self) -> tuple[EventName, str]:
        return "outbox-retry", "put back into the outbox"

    def change(self, session: PostgresSession, ids: Sequence[int], by: By) -> None:
        del by
        written = session.one(RETRY_REFUSED, ids=list(ids), channel=CHANNEL, place=session.place).rows
        _expect_all(written, ids, "put back", "tables outbox and outbox_refused")


class DiscardRefused(_Refused):
    """Delete rows; see `OffsetStore.discard_refused`."""

    @property
    def kind(self) -> tuple[EventName, str]:
        return "outbox-discard", "of the outbox discarded"

    def change(self, session: PostgresSession, ids: Sequence[int], by: By) -> None:
        del by
        deleted = session.run(DISCARD_REFUSED, ids=list(ids))
        _expect_all(deleted, ids, "discarded", "table outbox_refused")


class SetAside(_Refused):
    """Move rows from the outbox to the rows that Kafka refuses; see `OffsetStore.set_aside`."""

    are: ClassVar[str] = "in the outbox, and not being sent"
    statements: ClassVar[tuple[str, str, str]] = WAITING, LOCK_WAITING, COUNT_WAITING

    @property
    def where(self) -> str:
        return "A row that a relay is sending may be in Kafka already: let the relay run until it is sent, or refused."

    @property
    def kind(self) -> tuple[EventName, str]:
        return "outbox-set-aside", "of the outbox set aside"

    def locked(self, session: Session) -> Iterator[RefusedDecided]:
        # The group's row, then the relay's, so that no batch can take the rows that are chosen after it.
        session.share_group(self.group)
        with needing(_RIGHT):
            locked = people(session)
            if not locked.rows(LOCK_RELAY):
                locked.run(LOCK_FIRST_RELAY)
                # The first relay may have inserted its row before the table was locked.
                locked.rows(LOCK_RELAY)
            yield self._choose(session, self.statements[1])

    def change(self, session: PostgresSession, ids: Sequence[int], by: By) -> None:
        moved = session.one(SET_ASIDE, ids=list(ids), errors=[f"set aside by {by.who}: {by.reason}"] * len(ids))
        _expect_all(min(moved.gone, moved.kept), ids, "set aside", "tables outbox and outbox_refused")


def _expect_all(changed: int, ids: Sequence[int], done: str, tables: str) -> None:
    if changed != len(ids):
        raise ConfigurationError(
            f"not all rows could be {done}; nothing was written",
            found=f"{changed} rows",
            expected=str(len(ids)),
            next_step=f"Look for a trigger, a rule or row-level security on the {tables}.",
        )

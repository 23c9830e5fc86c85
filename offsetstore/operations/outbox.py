"""The outbox for people: what is in it, the rows that Kafka refuses, and what is decided about these.

A relay has moved them to a table of their own. Each decision writes one line into the history of the group whose job
has written them, whatever the group is called now.
"""

# ruff: noqa: D102 - `Operation` says what the methods do

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from offsetstore.errors import ConfigurationError, UnknownGroup
from offsetstore.offsets import MAX_OFFSET, Token
from offsetstore.operations.operation import By, History, Operation, Plan, digest_of, expect_group
from offsetstore.operations.people import people
from offsetstore.postgres.errors import needing
from offsetstore.postgres.outbox import CHANNEL
from offsetstore.postgres.session import PostgresSession
from offsetstore.protocol.database import EventName, Session
from offsetstore.protocol.numbers import as_offset, check_whole
from offsetstore.protocol.outbox import MOST_ROWS

_NAMED: Final = 20  # rows that a line of the history names

_OF_GROUP: Final = """FROM {s}outbox_refused
WHERE consumer_group = :group AND id > :after AND (CAST(:topic AS text) IS NULL OR topic = CAST(:topic AS text))
"""
REFUSED: Final = f"""
SELECT id, topic, error, created_at, refused_at {_OF_GROUP}
  AND (CAST(:ids AS bigint[]) IS NULL OR id = ANY(CAST(:ids AS bigint[])))
ORDER BY id LIMIT :limit
"""
COUNT_REFUSED: Final = f"SELECT count(*) AS rows {_OF_GROUP}"
LOCK_REFUSED: Final = f"{REFUSED}FOR UPDATE"
RETRY_REFUSED: Final = """
WITH again AS (DELETE FROM {s}outbox_refused WHERE id = ANY(CAST(:ids AS bigint[])) RETURNING *),
written AS (INSERT INTO {s}outbox (consumer_group, topic, key, value, headers)
SELECT consumer_group, topic, key, value, headers FROM again ORDER BY id
RETURNING 1)
SELECT count(*) AS rows, CAST(pg_notify(:channel, :place) AS text) AS told FROM written
"""
DISCARD_REFUSED: Final = "DELETE FROM {s}outbox_refused WHERE id = ANY(CAST(:ids AS bigint[]))"

_RIGHT: Final = "decide about rows that Kafka refuses (the owner of the tables may)"


@dataclass(frozen=True, slots=True)
class RefusedRow:
    """A row of the outbox that Kafka refuses.

    :param error: what Kafka or its client said, without anything of the record.
    :param created_at: when a job wrote it. It was set aside at ``refused_at``. Both by the database's clock.
    """

    id: int
    topic: str
    error: str
    created_at: datetime
    refused_at: datetime


@dataclass(frozen=True, slots=True)
class RefusedDecided(Plan):
    """What is decided about rows that Kafka refuses; for a dry run, what would be.

    :param decision: ``"outbox-retry"`` or ``"outbox-discard"``, as in the history.
    :param rows: in the order of their ids.
    :param more: how many there are beyond the limit, which stay as they are.
    :param token: of the group's last claim.
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


def read_refused(
    session: PostgresSession, group: str, *, topic: str | None, after: int, limit: int
) -> list[RefusedRow]:
    """Read a part of the list; see `OffsetStore.refused_rows`."""
    found = session.rows(REFUSED, group=group, ids=None, topic=topic, after=after, limit=limit)
    return [RefusedRow(*row) for row in found]


@dataclass(frozen=True)
class _Refused(Operation[RefusedDecided]):
    """A decision about rows: those with these ids, or all that have the topic."""

    group: str
    ids: Sequence[int] | None = None
    topic: str | None = None
    limit: int = MOST_ROWS

    def __post_init__(self) -> None:
        expect_group(self.group)
        check_whole("limit", self.limit, "rows", least=1)
        if self.ids is None:
            return
        ids = sorted({as_offset("the id of a row", one, most=MAX_OFFSET) for one in self.ids})
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
        """The event of the history, and what is done to the rows, in its words."""

    @abstractmethod
    def change(self, session: PostgresSession, ids: Sequence[int]) -> None:
        """Do it to the rows, which are locked."""

    def plan(self, session: Session) -> RefusedDecided:
        return self._choose(session, REFUSED)

    def locked(self, session: Session) -> Iterator[RefusedDecided]:
        """The group's row comes before any other."""
        session.share_group(self.group)
        with needing(_RIGHT):
            yield self._choose(session, LOCK_REFUSED)

    def _choose(self, session: Session, statement: str) -> RefusedDecided:
        owner = session.group(self.group)
        if owner is None:
            raise UnknownGroup(f"the store has no group {self.group!r}")
        read, given = people(session), {"group": self.group, "topic": self.topic}
        found = [
            RefusedRow(*row) for row in read.rows(statement, ids=self.ids, after=-1, limit=self.limit + 1, **given)
        ]
        if self.ids is not None and len(found) < len(self.ids):
            gone = sorted({*self.ids} - {row.id for row in found})
            raise ConfigurationError(
                f"no such rows of group {self.group!r} are set aside",
                found=", ".join(map(str, gone[:_NAMED])),
                next_step="`offsetstore outbox list` has those that are.",
            )
        rows, (event, _) = tuple(found[: self.limit]), self.kind
        more = read.one(COUNT_REFUSED, after=rows[-1].id, **given).rows if len(found) > self.limit else 0
        digest = digest_of(event, self.group, [[row.id, row.refused_at] for row in rows])
        return RefusedDecided(self.group, event, rows, more, owner.token, digest=digest)

    def write(self, session: Session, plan: RefusedDecided, by: By) -> History:
        ids = [row.id for row in plan.rows]
        with needing(_RIGHT):
            self.change(people(session), ids)
        others = len(ids) - _NAMED
        named = ", ".join(map(str, ids[:_NAMED])) + (f" and {others} more" if others > 0 else "")
        event, words = self.kind
        return {self.group: [by.event(event, plan.token, f"rows {named} {words}: {by.reason}")]}


class RetryRefused(_Refused):
    """Put rows back; see `OffsetStore.retry_refused`."""

    @property
    def kind(self) -> tuple[EventName, str]:
        return "outbox-retry", "put back into the outbox"

    def change(self, session: PostgresSession, ids: Sequence[int]) -> None:
        written = session.one(RETRY_REFUSED, ids=list(ids), channel=CHANNEL, place=session.place).rows
        _expect_all(written, ids, "put back", "tables outbox and outbox_refused")


class DiscardRefused(_Refused):
    """Delete rows; see `OffsetStore.discard_refused`."""

    @property
    def kind(self) -> tuple[EventName, str]:
        return "outbox-discard", "of the outbox discarded"

    def change(self, session: PostgresSession, ids: Sequence[int]) -> None:
        deleted = session.run(DISCARD_REFUSED, ids=list(ids))
        _expect_all(deleted, ids, "discarded", "table outbox_refused")


def _expect_all(changed: int, ids: Sequence[int], done: str, tables: str) -> None:
    if changed != len(ids):
        raise ConfigurationError(
            f"not all rows could be {done}; nothing was written",
            found=f"{changed} rows",
            expected=str(len(ids)),
            next_step=f"Look for a trigger, a rule or row-level security on the {tables}.",
        )

"""What only people ask of the database, in PostgreSQL: lists, errors, samples, names, retention.

A job's transaction needs none of it, so that a store in memory has none of it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from datetime import datetime
from typing import Protocol, TypeVar, runtime_checkable

from offsetstore.errors import ConfigurationError
from offsetstore.protocol.database import Database, Session, StoreOverview
from offsetstore.protocol.letters import LetterKey, State
from offsetstore.protocol.runs import JobError, Run, Source
from offsetstore.protocol.samples import Sample, Selection
from offsetstore.protocol.store_facts import StoreFacts
from offsetstore.protocol.stored_letters import ErrorGroup, LetterFilter
from offsetstore.store.sessions import read

_T = TypeVar("_T")


@runtime_checkable
class PeopleSession(Session, Protocol):
    """A `Session` of a database that people work with: `offsetstore.postgres.session`."""

    def overview(self, groups: Collection[str] | None) -> StoreOverview:
        """Read what there is of these groups, or of all, in one round trip."""
        ...

    def rename_group(self, group: str, new: str) -> None:
        """Move all that belongs to the group to ``new``, which has none. Needs both groups' locks and the rows'."""
        ...

    def expect_delete(self) -> None:
        """Check that the role may do `delete_group`.

        :raises MissingPrivilege: it may not.
        """
        ...

    def delete_group(self, group: str) -> None:
        """Delete all that belongs to the group but its own row, its history, its runs and their errors.

        Needs the locks of the group and of the rows.
        """
        ...

    def letter_errors(
        self, group: str, which: LetterFilter, *, limit: int, within: int | None = None
    ) -> list[ErrorGroup]:
        """The letters' errors, those of the most letters first.

        :param within: look only at the newest so many letters in these states.
        """
        ...

    def erase_letters(self, group: str, keys: Collection[LetterKey]) -> None:
        """Clear what letters that are locked hold of their records: bytes, texts, and the digest of the key."""
        ...

    def count_prunable(self, group: str, states: Collection[State], before: datetime, *, up_to: int, lock: bool) -> int:
        """How many letters of these states have had them since before that time; count, or lock, at most ``up_to``."""
        ...

    def prune_letters(self, group: str, states: Collection[State], before: datetime, *, limit: int) -> int:
        """Delete them, at most ``limit``, in order; return how many. They are locked.

        :raises MissingPrivilege: the role may not delete letters; a job's role may not.
        """
        ...

    def runs(self, group: str, *, limit: int | None = None) -> list[Run]:
        """The group's runs, the oldest first: of those, only the last ones."""
        ...

    def errors(
        self,
        group: str,
        *,
        since: datetime | None = None,
        sources: Collection[Source] = (),
        limit: int | None = None,
    ) -> list[JobError]:
        """The group's errors, the oldest first: those since a time, of some sources, or only the last ones."""
        ...

    def record_samples(self, samples: Mapping[str, Sample]) -> None:
        """Write the groups' samples into all rings, in one statement.

        In a slot that has a sample of the same time, the newer one keeps the larger lags and the smaller headroom. A
        group that was claimed or moved since its sample was taken is left out.
        """
        ...

    def samples(self, groups: Collection[str], selection: Selection) -> dict[str, list[Sample]]:
        """The samples of these groups, oldest first, in one statement."""
        ...

    def store_facts(self) -> StoreFacts:
        """Read them, in one round trip."""
        ...


def people(session: Session) -> PeopleSession:
    """The session, of which something is asked that a job never asks.

    :raises ConfigurationError: the store is in memory.
    """
    if not isinstance(session, PeopleSession):
        raise ConfigurationError(
            "a store in memory has a job's side only",
            expected="a store in PostgreSQL, for lists, runs, errors, samples, lag, facts, names and retention",
            next_step="In tests, use the pytest fixture offsetstore_database (offsetstore.testing.fixtures).",
        )
    return session


def ask(database: Database, query: Callable[[PeopleSession], _T], *, lock_timeout: float | None = None) -> _T:
    """Do `read`, with what people ask."""
    return read(database, lambda session: query(people(session)), lock_timeout=lock_timeout)

"""An `OffsetStore` without a database, for unit tests of your own code around it.

It passes a job's part of the contract suite that PostgreSQL's passes: the protocol above it is the same code, the
locks, the fence and the transactions are real, among the threads of one process. It has no SQL: ``tx.connection`` takes
rows as they are, and ``store.rows`` returns those that were committed.

It has no operator's reads (runs, errors, lag, lists of dead letters and groups), and no decisions about letters or
names: these are a `ConfigurationError`. To test a job that replays its letters, there are ``store.dead_letters`` and
``store.decide_letters``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Generator, Iterable
from contextlib import contextmanager
from copy import deepcopy
from datetime import UTC, datetime
from typing import Literal
from uuid import UUID, uuid4

from offsetstore.offset_store import OffsetStore
from offsetstore.offsets import TopicPartition
from offsetstore.protocol.database import Session
from offsetstore.protocol.letters import Letter, LetterKey
from offsetstore.protocol.observers import Observer
from offsetstore.protocol.outbox import OutboxRecord
from offsetstore.protocol.retries import Retries, Timeouts
from offsetstore.protocol.store_facts import StoreIdentity
from offsetstore.store.sessions import transaction
from offsetstore.testing.memory.rows import Shared, Tables
from offsetstore.testing.memory.session import OUTBOX, PARTITIONS, STORE, MemorySession


def _now() -> datetime:
    return datetime.now(UTC)


class MemoryDatabase:
    """The database behind one or several stores: give it to a second one to test a restart.

    :param clock: the database's clock, by which the age of heartbeats is measured.
    """

    def __init__(self, clock: Callable[[], datetime] = _now) -> None:
        self.schema: str | None = None
        self._shared = Shared(clock)
        session = self.begin(name="offsetstore:migrate")
        session.put(STORE, (), (uuid4(), self._shared.here))
        session.commit()

    def begin(self, *, name: str, lock_timeout: float | None = None, dedicated: bool = False) -> MemorySession:  # noqa: ARG002 - nothing is used up in memory
        return MemorySession(self._shared, name, lock_timeout)

    def translate(self, error: BaseException) -> BaseException:
        return error  # the session raises ours

    @contextmanager
    def unblocking(self, session: Session, *, after: float, older_than: str) -> Generator[None]:
        assert isinstance(session, MemorySession)
        session.terminates = (time.monotonic() + after, older_than)
        try:
            yield
        finally:
            session.terminates = None

    def lock_holder(self, group: str, partitions: Collection[TopicPartition]) -> tuple[TopicPartition, str] | None:
        with self._shared.changed:
            for tp in sorted(partitions):
                if (holder := self._shared.holder(PARTITIONS, group, tp)) is not None:
                    return tp, f"held by {holder.name}"
        return None

    def rows(self, table: str) -> list[object]:
        """What is committed in one of the user's tables, in the order of the commits."""
        return self.begin(name="offsetstore:rows").connection.rows(table)

    def outbox(self) -> list[OutboxRecord]:
        """What is committed of the outbox, in the order of the commits."""
        return list(self.begin(name="offsetstore:rows").table(OUTBOX).values())

    def identity(self) -> StoreIdentity:
        return self.begin(name="offsetstore:connect").identity()

    def store_id(self) -> UUID:
        return self.identity().store_id

    def copy(self, *, physical: bool = False) -> MemoryDatabase:
        """Copy what is committed, to test what a job does in a copy of its database.

        :param physical: as a copy of the server's files, which is taken for the same database.
        """
        copied = MemoryDatabase(self._shared.clock)
        with self._shared.changed:
            copied._shared.tables = Tables().apply(deepcopy(dict(self._shared.tables)))  # a test's own rows may change
            if physical:
                copied._shared.here = self._shared.here
        return copied

    def check_schema(self) -> None:
        """Nothing to check."""

    def close(self) -> None:
        """Nothing to close: what was committed stays as long as this object exists."""


class InMemoryOffsetStore(OffsetStore):
    """Offsets and results in memory; a job's side of everything else is `OffsetStore`'s.

    ::

        def test_a_replayed_batch_is_written_once():
            p0 = TopicPartition("payments", 0)
            with InMemoryOffsetStore() as store:
                claim = store.claim("billing", topics=["payments"])

                def work(tx):
                    plan = tx.lock({p0: OffsetRange(0, 2)})
                    if plan[p0].outcome is not Outcome.SKIP:
                        tx.connection.extend("payments", ["first", "second"])
                        tx.advance({p0: plan[p0].remaining})

                store.run(claim, work)
                store.run(claim, work)
                assert store.rows("payments") == ["first", "second"]

    :param memory: the database, a new one if not given.
    """

    def __init__(
        self,
        memory: MemoryDatabase | None = None,
        *,
        timeouts: Timeouts | None = None,
        retries: Retries | None = None,
        observers: Iterable[Observer] = (),
    ) -> None:
        self.memory = memory or MemoryDatabase()
        super().__init__(self.memory, timeouts=timeouts, retries=retries, observers=observers)

    def rows(self, table: str) -> list[object]:
        """What is committed in one of the test's tables, in the order of the commits."""
        return self.memory.rows(table)

    def outbox(self) -> list[OutboxRecord]:
        """What is committed of the outbox, in the order of the commits. In memory no relay takes it away."""
        return self.memory.outbox()

    def dead_letters(self, group: str) -> list[Letter]:
        """The group's dead letters that are committed, with their contents, in the order in which they are replayed."""
        return self.memory.begin(name="offsetstore:rows").dead_letters(group)

    def decide_letters(
        self,
        group: str,
        state: Literal["requested", "discarded"],
        keys: Collection[LetterKey] | None = None,
        *,
        forced: bool = False,
    ) -> None:
        """Decide about dead letters that are open, as `request_replay` and `discard` do where there is a database.

        :param keys: by default all of the group that may be decided about like that.
        """
        with transaction(self.memory, name="offsetstore:admin") as session:
            assert isinstance(session, MemorySession)
            session.decide_letters(group, keys, state, forced=forced)

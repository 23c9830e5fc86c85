"""Rows in memory, and one transaction over them: READ COMMITTED, row locks, and what it writes kept until COMMIT."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from itertools import count
from types import TracebackType
from typing import Any, NoReturn, Self, TypeAlias
from uuid import uuid4

from offsetstore.errors import ConnectionLost, LockTimeout, UnexpectedCommit

Key: TypeAlias = tuple[object, ...]
"""A primary key. A row can be locked before it exists, as by a unique index."""

_SERIAL = count(1)


class Tables(defaultdict[str, dict[Key, Any]]):
    """The rows of each table, by primary key; ``None`` in what a transaction wrote stands for a row that it deleted."""

    def __init__(self) -> None:
        super().__init__(dict)

    def apply(self, changes: Mapping[str, Mapping[Key, Any]]) -> Self:
        """Take over what a transaction wrote."""
        for name, rows in changes.items():
            self[name].update(rows)
        return self

    def commit(self, changes: Tables) -> None:
        """Take over what a transaction wrote, without the rows that it deleted."""
        self.apply(changes)
        for name, rows in changes.items():
            for key in [key for key, row in rows.items() if row is None]:
                del self[name][key]


@dataclass(slots=True)
class Changes:
    """What one transaction has written. ``moved`` counts the partitions it advanced."""

    tables: Tables = field(default_factory=Tables)
    moved: int = 0

    def copy(self) -> Changes:
        """As it is now, for a savepoint."""
        return Changes(Tables().apply(self.tables), self.moved)


class Shared:
    """What all transactions of one database share; ``changed`` guards it, and wakes whoever waits for a lock.

    A deadlock is not distinguished from a long wait: ``lock_timeout`` ends both.
    """

    def __init__(self, clock: Callable[[], datetime]) -> None:
        self.clock = clock
        self.changed = threading.Condition()
        self.here = f"memory:{uuid4()}"
        self.tables = Tables()
        self.held: dict[Key, dict[MemoryTransaction, bool]] = {}
        """Who has locked a row (its table and its key), and whether FOR UPDATE; only two FOR SHARE are compatible."""

    def holder(self, table: str, *key: object) -> MemoryTransaction | None:
        """The transaction that has locked the row FOR UPDATE."""
        locks = self.held.get((table, *key), {})
        return next((transaction for transaction, is_update in locks.items() if is_update), None)


class MemoryTransaction:
    """One transaction; any thread may use it, one at a time, as with a connection."""

    def __init__(self, shared: Shared, name: str, lock_timeout: float | None) -> None:
        self.name = name
        self.terminates: tuple[float, str] | None = None
        """When it begins to end transactions that block it (`time.monotonic`), and the prefix of their names."""
        self.connection = MemoryConnection(self)
        self.was_ended = False
        """Whether user code has tried to end the transaction."""
        self.savepoints = 0
        self._shared = shared
        self._clock = shared.clock
        self._lock_timeout = lock_timeout
        self._changes = Changes()
        self._moved = 0
        self._trials: list[Changes] = []
        self._over: str | None = None

    def in_savepoint(self) -> bool:
        return self.savepoints > 0

    def may_have_raised(self, error: BaseException) -> bool:  # noqa: ARG002 - there is no other
        return True

    def is_whole(self) -> bool:
        with self.statement():
            return not self.was_ended and self._changes.moved == self._moved

    def count_mark(self, moved: int = 1) -> None:
        with self.statement():
            self._changes.moved += moved
            self._moved += moved

    def check_deferred(self) -> None:
        """Nothing is deferred: there are no constraints."""

    def begin_trials(self) -> float | None:
        self.check_and_save(0)
        return None

    def check_and_save(self, number: int) -> None:
        with self.statement():
            self._trials[number:] = [self._changes.copy()]

    def rollback_to(self, number: int) -> None:
        self.go_back(self._trials[number])

    def commit(self) -> None:
        with self.statement():
            self._shared.tables.commit(self._changes.tables)
            self.end("the transaction was committed")

    def rollback(self) -> None:
        with self._shared.changed:
            self.end("the transaction was rolled back")

    def save(self) -> Changes:
        """What was written so far, for a savepoint."""
        with self.statement():
            return self._changes.copy()

    def go_back(self, saved: Changes) -> None:
        with self.statement():
            self._changes = saved.copy()

    @contextmanager
    def statement(self) -> Generator[None]:
        """Keep others out for a statement."""
        with self._shared.changed:
            self._check_alive()
            yield

    def table(self, name: str) -> dict[Any, Any]:
        """The rows that are committed, or written by this transaction."""
        with self.statement():
            both = {**self._shared.tables[name], **self._changes.tables[name]}
        return {key: row for key, row in both.items() if row is not None}

    def get(self, name: str, *key: object) -> Any:
        """The row as `table` would have it, ``None`` if there is none."""
        with self.statement():
            written, committed = self._changes.tables[name], self._shared.tables[name]
            return written[key] if key in written else committed.get(key)

    def put(self, name: str, key: Key, row: object) -> None:
        """Write a row; ``None`` deletes it."""
        with self.statement():
            self._changes.tables[name][key] = row

    def append(self, name: str, group: str, rows: Iterable[object]) -> None:
        """Write rows without a key, after all others of the table."""
        for row in rows:
            self.put(name, (group, next(_SERIAL)), row)

    def lock(self, *key: object, share: bool = False) -> None:
        """Wait for a row's lock and take it, until the transaction ends.

        :param key: the table's name, and the primary key.
        :raises LockTimeout: could not acquire it within ``lock_timeout``.
        :raises ConnectionLost: the transaction was ended while it waited.
        """
        end = None if self._lock_timeout is None else time.monotonic() + self._lock_timeout
        while blocking := self._blocking(key, share=share):
            now = time.monotonic()
            wakes = [] if end is None else [end]
            if self.terminates is not None:
                since, prefix = self.terminates
                doomed = [other for other in blocking if now >= since and other.name.startswith(prefix)]
                for other in doomed:
                    other.end("the connection was ended by another one")
                if doomed:
                    continue
                wakes += [since] if since > now else []
            if end is not None and now >= end:
                raise LockTimeout(
                    "could not acquire a lock within lock_timeout",
                    found=f"{key} is locked by {', '.join(other.name for other in blocking)}",
                )
            self._shared.changed.wait(min(wakes) - now if wakes else None)
            self._check_alive()
        locks = self._shared.held.setdefault(key, {})
        # FOR SHARE after FOR UPDATE does not weaken the lock.
        locks[self] = locks.get(self, False) or not share

    def has_lock(self, *key: object) -> bool:
        return self in self._shared.held.get(key, {})

    def is_free(self, *key: object) -> bool:
        """Whether it could lock the row FOR UPDATE now."""
        return not self._blocking(key, share=False)

    def unlock(self, *key: object) -> None:
        """Release one lock before the transaction ends."""
        self._shared.held.get(key, {}).pop(self, None)
        self._shared.changed.notify_all()

    def _blocking(self, key: Key, *, share: bool) -> list[MemoryTransaction]:
        locks = self._shared.held.get(key, {})
        return [other for other, is_update in locks.items() if other is not self and (is_update or not share)]

    def _check_alive(self) -> None:
        if self._over is not None:
            raise ConnectionLost(self._over)

    def end(self, why: str) -> None:
        """End it; what it has not committed is lost."""
        self._over = self._over or why
        self._changes = Changes()
        held = self._shared.held
        for key in [key for key, locks in held.items() if locks.pop(self, None) is not None and not locks]:
            del held[key]
        self._shared.changed.notify_all()


class MemoryConnection:
    """``tx.connection`` in memory: tables are lists, and rows are any objects that a test can compare.

    It takes the place of SQLAlchemy's ``Connection`` on PostgreSQL. Its rows are committed with the offsets.
    """

    def __init__(self, transaction: MemoryTransaction) -> None:
        self._transaction = transaction

    def __getattr__(self, name: str) -> NoReturn:
        """There is no SQL in memory.

        :raises AttributeError: always, naming the methods that exist.
        """
        raise AttributeError(
            f"in memory tx.connection has no {name!r}: it takes rows by append(table, row) and extend(table, rows); "
            "for SQL use a database (the fixture offsetstore_database)"
        )

    def append(self, table: str, row: object) -> None:
        """Add one row. Tables need not be created."""
        self.extend(table, [row])

    def extend(self, table: str, rows: Iterable[object]) -> None:
        """Add rows, in order."""
        self._transaction.append("rows", table, [(row,) for row in rows])

    def rows(self, table: str) -> list[object]:
        """What this transaction sees: the committed rows, then its own."""
        return [row for (name, _), (row,) in self._transaction.table("rows").items() if name == table]

    def begin_nested(self) -> MemorySavepoint:
        """Set a savepoint, to be used as a context manager or with ``commit()`` and ``rollback()``."""
        return MemorySavepoint(self._transaction)

    def commit(self) -> NoReturn:
        """Refuse, as on PostgreSQL: the transaction's block commits, and an exception rolls back.

        :raises UnexpectedCommit: always.
        """
        self._transaction.was_ended = True
        raise UnexpectedCommit("COMMIT or ROLLBACK was called on tx.connection")

    rollback = commit


class MemorySavepoint:
    """Like SQLAlchemy's ``NestedTransaction``."""

    def __init__(self, transaction: MemoryTransaction) -> None:
        self._transaction = transaction
        self._before: Changes | None = transaction.save()
        transaction.savepoints += 1

    def commit(self) -> None:
        """Release it: what came after it stays."""
        if self._before is not None:
            self._before = None
            self._transaction.savepoints -= 1

    def rollback(self) -> None:
        """Undo all that was written since, offsets included. Locks stay, unlike on PostgreSQL."""
        if self._before is not None:
            self._transaction.go_back(self._before)
        self.commit()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self.commit()
        else:
            self.rollback()

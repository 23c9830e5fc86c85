"""``tx.connection`` in memory: tables are lists, and rows are any objects that a test can compare."""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn, Self

from offsetstore.errors import UnexpectedCommit

if TYPE_CHECKING:
    from offsetstore.testing.memory.session import Changes, MemorySession


class MemoryConnection:
    """Takes the place of SQLAlchemy's ``Connection`` on PostgreSQL. Its rows are committed with the offsets."""

    def __init__(self, session: MemorySession) -> None:
        self._session = session

    def __getattr__(self, name: str) -> NoReturn:
        """There is no SQL in memory.

        :raises AttributeError: always, saying what there is.
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
        self._session.append_rows(table, rows)

    def rows(self, table: str) -> list[object]:
        """What this transaction sees: the committed rows, then its own."""
        return self._session.read_rows(table)

    def begin_nested(self) -> MemorySavepoint:
        """Set a savepoint, to be used as a context manager or with ``commit()`` and ``rollback()``."""
        return MemorySavepoint(self._session)

    def commit(self) -> NoReturn:
        """Refuse, as on PostgreSQL.

        :raises UnexpectedCommit: always: the transaction's block commits.
        """
        self._refuse()

    def rollback(self) -> NoReturn:
        """Refuse, as on PostgreSQL.

        :raises UnexpectedCommit: always: an exception rolls back.
        """
        self._refuse()

    def _refuse(self) -> NoReturn:
        self._session.was_ended = True
        raise UnexpectedCommit("COMMIT or ROLLBACK was called on tx.connection")


class MemorySavepoint:
    """Like SQLAlchemy's ``NestedTransaction``."""

    def __init__(self, session: MemorySession) -> None:
        self._session = session
        self._before: Changes | None = session.save()

    def commit(self) -> None:
        """Release it: what came after it stays."""
        self._end(None)

    def rollback(self) -> None:
        """Undo all that was written since, offsets included. Locks stay, unlike on PostgreSQL."""
        self._end(self._before)

    def _end(self, before: Changes | None) -> None:
        if self._before is not None:
            self._before = None
            self._session.leave_savepoint(before)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self.commit()
        else:
            self.rollback()

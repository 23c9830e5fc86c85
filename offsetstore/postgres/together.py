"""How statements are sent: one at a time, or several in one message and so in one round trip."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import psycopg
from psycopg.rows import RowFactory, tuple_row

from offsetstore.postgres.errors import translated


@dataclass(frozen=True, slots=True)
class StatementResult:
    """The rows of one statement, and how many it returned or changed."""

    rows: list[Any]
    count: int


def execute_together(
    connection: psycopg.Connection[Any],
    *statements: str,
    values: Mapping[str, object] | None = None,
    row_factory: RowFactory[Any] = tuple_row,
) -> list[StatementResult]:
    """Run the statements, and return their results. After an error the server skips those that follow.

    :param values: by name, for ``%(name)s``; with ``None`` the text is sent as it is.
    """
    # ClientCursor writes the values into the text: only a message without parameters may hold several statements.
    # psycopg's pipeline ends with a Flush that switches ``idle_in_transaction_session_timeout`` off (decision 0029).
    cursor = psycopg.ClientCursor(connection, row_factory=row_factory)
    cursor.execute(cast("Any", ";\n".join(statements)), values)
    results: list[StatementResult] = []
    while True:
        results.append(StatementResult(cursor.fetchall() if cursor.description else [], cursor.rowcount))
        if not cursor.nextset():
            return results


class Statements(ABC):
    """How the parts of a session, and operations, run their statements. Errors are ours.

    ``place`` is the quoted schema and its dot, or nothing.
    """

    place: str

    @abstractmethod
    def together(self, *statements: str, **values: object) -> list[StatementResult]:
        """Send the statements in one round trip, if possible. Errors are the database's."""

    @abstractmethod
    def _send(self, statement: str, **values: object) -> StatementResult: ...

    def rows(self, statement: str, **values: object) -> list[Any]:
        with translated():
            return self._send(statement, **values).rows

    def one(self, statement: str, **values: object) -> Any:
        [row] = self.rows(statement, **values)
        return row

    def first(self, statement: str, **values: object) -> Any:
        """The first row, ``None`` if there is none."""
        return next(iter(self.rows(statement, **values)), None)

    def run(self, statement: str, **values: object) -> int:
        """Run a statement; return how many rows it changed."""
        with translated():
            return self._send(statement, **values).count


def as_array(elements: Iterable[object]) -> str:
    """Write a list as PostgreSQL's array literal; with ten thousand elements, psycopg takes four times as long."""
    return f"{{{','.join(map(str, elements))}}}"

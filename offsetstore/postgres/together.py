"""Several statements in one message, and so in one round trip."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import psycopg
from psycopg.rows import RowFactory, tuple_row


@dataclass(frozen=True, slots=True)
class Result:
    """The rows of one statement, and how many it returned or changed."""

    rows: list[Any]
    count: int


def execute_together(
    connection: psycopg.Connection[Any],
    *statements: str,
    values: Mapping[str, object] | None = None,
    row_factory: RowFactory[Any] = tuple_row,
) -> list[Result]:
    """Run the statements, and return their results. After an error the server skips those that follow.

    psycopg writes the values into the text, since only a message without parameters may hold several statements. Its
    pipeline would do without, but ends with a Flush that stops ``idle_in_transaction_session_timeout``: see
    docs/decisions/0029-round-trips.md.

    :param values: by name, for ``%(name)s``; with ``None`` the text is sent as it is.
    """
    cursor = psycopg.ClientCursor(connection, row_factory=row_factory)
    cursor.execute(cast("Any", ";\n".join(statements)), values)
    results: list[Result] = []
    while True:
        results.append(Result(cursor.fetchall() if cursor.description else [], cursor.rowcount))
        if not cursor.nextset():
            return results

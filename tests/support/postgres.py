"""The database as a second connection sees it: not the job's, and outside of its transactions."""

from __future__ import annotations

from typing import Any

import psycopg


class Database:
    """A test's own database. Each statement is a transaction of its own, on a connection that stays open."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._connection = psycopg.connect(url, autocommit=True)

    def execute(self, statement: str) -> None:
        """Run what returns nothing, such as CREATE TABLE."""
        self._connection.execute(statement.encode())

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """All rows of a query."""
        return self._connection.execute(query.encode()).fetchall()

    def column(self, query: str) -> list[Any]:
        """The first column of a query's rows."""
        return [row[0] for row in self.rows(query)]

    def one(self, query: str) -> Any:
        """The only value of a query."""
        [(value,)] = self.rows(query)
        return value

    @property
    def is_connected(self) -> bool:
        """Whether the server still answers on this connection."""
        try:
            self._connection.execute("SELECT 1")
        except psycopg.Error:
            return False
        return True

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

"""The name of a target table, as the user gives it."""

from __future__ import annotations

from dataclasses import dataclass

from psycopg import sql
from sqlalchemy import Table

from offsetstore.errors import ConfigurationError

_MAX_PARTS = 2


@dataclass(frozen=True, slots=True)
class TableName:
    """A table's name, exactly as the catalogue spells it: ``Payments`` is not ``payments``.

    Without a schema, the connection's ``search_path`` decides; see `offsetstore.writers.table.catalogue.locate`.
    """

    schema: str | None
    name: str

    @classmethod
    def parse(cls, table: str | Table) -> TableName:
        """Take ``"payments"``, ``"schema.payments"`` or a SQLAlchemy ``Table``, which may hold any name.

        :raises ConfigurationError: an empty part, or more than one dot.
        """
        if isinstance(table, Table):
            return cls(None if table.schema is None else str(table.schema), str(table.name))
        parts = table.split(".")
        if len(parts) > _MAX_PARTS or not all(parts):
            raise ConfigurationError(
                "not a valid table name",
                found=repr(table),
                expected='"table" or "schema.table"',
                next_step="For a name that contains a dot, give a sqlalchemy.Table.",
            )
        return cls(parts[0] if len(parts) == _MAX_PARTS else None, parts[-1])

    @property
    def identifier(self) -> sql.Identifier:
        """The name for a statement, quoted."""
        return sql.Identifier(self.name) if self.schema is None else sql.Identifier(self.schema, self.name)

    def as_option(self, option: str) -> list[str] | None:
        """Write an option of a command, ``None`` if `parse` could not read it."""
        return None if "." in f"{self.schema or ''}{self.name}" else [option, str(self)]

    def __str__(self) -> str:
        return self.name if self.schema is None else f"{self.schema}.{self.name}"

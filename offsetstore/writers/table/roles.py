"""What an Upsert does with each column of rows that have the same key."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from offsetstore.errors import ColumnMismatch, ConfigurationError
from offsetstore.postgres.schema import quoted
from offsetstore.writers.table.catalogue import Column, TableName

# Not float4, in which 16777216 + 1 is 16777216.
_SUMMABLE = frozenset({"int2", "int4", "int8", "float8", "numeric"})
_ORDERED = _SUMMABLE | {
    "bpchar", "date", "enum", "float4", "interval", "text", "time", "timestamp", "timestamptz", "varchar",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Roles:
    """The columns by role; all other columns of the rows are replaced."""

    key: tuple[str, ...]
    add: tuple[str, ...]
    greatest: tuple[str, ...]
    least: tuple[str, ...]
    version: str | None

    @classmethod
    def parse(
        cls,
        key: Sequence[str],
        add: Sequence[str],
        greatest: Sequence[str],
        least: Sequence[str],
        version: str | None,
    ) -> Roles:
        """Take an Upsert's arguments.

        :raises ConfigurationError: no key, a string where a list should be, or a column in two roles.
        """
        for role, names in {"key": key, "add": add, "greatest": greatest, "least": least}.items():
            if isinstance(names, str):
                raise ConfigurationError(
                    f"{role} of an Upsert takes a list of columns",
                    found=repr(names),
                    next_step=f"Write {role}=[{names!r}].",
                )
        if not key:
            raise ConfigurationError("an Upsert needs the columns of a key", expected='key=["id"]')
        roles = cls(tuple(key), tuple(add), tuple(greatest), tuple(least), version)
        named = roles.named
        if twice := sorted({name for name in named if named.count(name) > 1}):
            raise ConfigurationError(
                "a column can have only one role in an Upsert",
                found=f"{', '.join(twice)} twice",
                expected="each column once",
            )
        return roles

    @property
    def named(self) -> tuple[str, ...]:
        """The columns that the Upsert's arguments name, and that the rows must have."""
        version = () if self.version is None else (self.version,)
        return self.key + self.add + self.greatest + self.least + version

    def replaced(self, names: Iterable[str]) -> list[str]:
        """The columns that are taken from one row, the latest; ``version`` is among them."""
        merged = self.key + self.add + self.greatest + self.least
        return [name for name in names if name not in merged]

    def check(self, names: Sequence[str], columns: Mapping[str, Column], table: TableName) -> None:
        """Check the roles against the rows' names and the table's types.

        :raises ColumnMismatch: a column is missing, or has a type that its role does not allow.
        """
        if absent := [name for name in self.named if name not in names]:
            raise ColumnMismatch(
                f"the Upsert into {table} names columns that the rows do not have: {', '.join(absent)}",
                found=", ".join(names),
                next_step="Keep them in the transform.",
            )
        ordered = (*self.greatest, *self.least, *([] if self.version is None else [self.version]))
        _check_kinds("add", self.add, _SUMMABLE, columns, table)
        _check_kinds("greatest, least and version", ordered, _ORDERED, columns, table)

    def check_key(self, unique: Sequence[frozenset[str]], table: TableName) -> None:
        """Check the key against the table's unique sets of columns.

        :raises ColumnMismatch: the key is not among them, so ON CONFLICT could not use it.
        """
        if frozenset(self.key) not in unique:
            key = ", ".join(self.key)
            named = table.identifier.as_string()
            what = f"the table {table} has no unique constraint or index on exactly the key ({key})"
            found = "; ".join(f"({', '.join(sorted(columns))})" for columns in unique) or "none"
            columns = ", ".join(map(quoted, self.key))
            raise ColumnMismatch(
                what,
                found=found,
                expected=f"({key})",
                next_step=f"Add it (not partial, not deferrable): ALTER TABLE {named} ADD UNIQUE ({columns});",
            )


def _check_kinds(
    role: str, names: Iterable[str], kinds: frozenset[str], columns: Mapping[str, Column], table: TableName
) -> None:
    if wrong := {name: columns[name].type_name for name in names if columns[name].kind not in kinds}:
        raise ColumnMismatch(
            f"columns of {table} have types that {role} does not allow: {', '.join(wrong)}",
            found=wrong,
            expected=f"one of {', '.join(sorted(kinds))}",
            next_step="Use double precision or numeric."
            if any(columns[name].kind == "float4" for name in wrong)
            else None,
        )

"""Hides our tables from an application's ``alembic revision --autogenerate``, which drops tables without a model."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Protocol

import alembic.context

from offsetstore.postgres.schema import VERSION_TABLE, metadata

OURS = frozenset({*metadata.tables, VERSION_TABLE})
"""The names of all our tables."""


class IncludeName(Protocol):
    """Alembic's ``include_name`` of ``context.configure``: whether autogenerate considers a name."""

    def __call__(self, name: str | None, kind: str, parents: MutableMapping[str, str | None], /) -> bool:
        """Return whether it does; ``kind`` is Alembic's: schema, table, column, index and so on."""
        ...


def exclude(include_name: IncludeName | None = None, *, schema: str | None = None) -> IncludeName:
    """Make an ``include_name`` that leaves our tables out, for ``context.configure`` of an application's env.py.

    :param include_name: the application's own, called for everything else.
    :param schema: the argument of `upgrade`. Without it, tables with our names are left alone in every schema, so that
        none is ever dropped; with it, the application may have tables of the same names (``heartbeats``, say)
        elsewhere.
    """

    def include(name: str | None, kind: str, parents: MutableMapping[str, str | None], /) -> bool:
        if kind == "table" and name in OURS and _is_our_schema(parents.get("schema_name"), schema):
            return False
        return include_name is None or include_name(name, kind, parents)

    return include


def _is_our_schema(found: str | None, schema: str | None) -> bool:
    """Whether ``found`` is our schema; Alembic gives ``None`` for the connection's default one."""
    if found is not None or schema is None:
        return schema in {None, found}
    try:
        return alembic.context.get_context().dialect.default_schema_name in {None, schema}
    except NameError:  # no env.py is running: rather ignore a table than drop it
        return True

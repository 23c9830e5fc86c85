"""How PostgreSQL runs a statement: the nodes of its plan, the topmost first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sqlalchemy import text

from offsetstore import OffsetStore
from offsetstore.store.sessions import transaction


def expected_plan(store: OffsetStore, statement: str, values: Mapping[str, object]) -> list[dict[str, Any]]:
    """As the planner would run it."""
    return _explain(store, "FORMAT JSON", statement, values)


def executed_plan(store: OffsetStore, statement: str, values: Mapping[str, object]) -> list[dict[str, Any]]:
    """As it was run, with the rows, the time and the blocks that it took."""
    return _explain(store, "ANALYZE, BUFFERS, FORMAT JSON", statement, values)


def _explain(store: OffsetStore, options: str, statement: str, values: Mapping[str, object]) -> list[dict[str, Any]]:
    explained = text(f"EXPLAIN ({options}) " + statement.replace("{s}", ""))
    with transaction(store.database, name="explain") as session:
        [found] = session.connection.execute(explained, values).scalar_one()
    return list(_nodes(found["Plan"]))


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from _nodes(child)

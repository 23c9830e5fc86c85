"""What writers get without a transaction of the store, and tasks without a way to the driver's."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from sqlalchemy import Connection

from offsetstore import OffsetStore, Work


@dataclass(frozen=True)
class _On:
    connection: Connection


def work_on(connection: Connection) -> Work:
    """Something to write with that has a connection, and nothing else."""
    on: Any = _On(connection)
    return on


def here(store: OffsetStore) -> Any:
    """Stands where a task's way to the driver's store stands."""
    return SimpleNamespace(connect=lambda: store)

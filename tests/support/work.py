"""What writers get, without a transaction of the store."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from offsetstore import Work


@dataclass(frozen=True)
class _On:
    connection: Connection


def work_on(connection: Connection) -> Work:
    """Something to write with that has a connection, and nothing else."""
    on: Any = _On(connection)
    return on

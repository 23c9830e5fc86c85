"""Several statements in one round trip."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import psycopg

if TYPE_CHECKING:
    from contextlib import AbstractContextManager


def in_one_trip(connection: psycopg.Connection[Any]) -> AbstractContextManager[object]:
    """Send the statements of the block without waiting for the results of those before.

    Fetch the results after the block: fetching inside it is a round trip of its own. The first error is raised at the
    block's end; the server has skipped what follows it. With a libpq before 14 each statement is a round trip.
    """
    return connection.pipeline() if psycopg.Pipeline.is_supported() else nullcontext()

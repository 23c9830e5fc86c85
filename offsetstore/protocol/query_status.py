"""What is asked about a streaming query from outside of its batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryStatus:
    """A streaming query at one moment.

    :param is_active: whether it runs; ``None`` if that can't be told.
    :param trigger: another value with each trigger, also one that finds no records; ``None`` if that can't be told.
    :param interval: seconds between two triggers, 0 without a pause.
    :param has_failed: of one that does not run: whether an error ended it; ``None`` if that can't be told.
    :param pid: the process id of its Java; ``None`` if that can't be told.
    """

    is_active: bool | None
    trigger: int | None = None
    interval: float = 0.0
    pid: int | None = None
    has_failed: bool | None = None


class WatchedQuery(Protocol):
    """The streaming query of a sink."""

    def status(self) -> QueryStatus:
        """Ask Spark; this may take as long as Java does not answer, so call it in a thread of its own.

        :raises Exception: Java does not answer at all.
        """
        ...

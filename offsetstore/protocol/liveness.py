"""The one definition of a live job: claims, resets, and all that shows a group use it."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

LIVE: Final = timedelta(seconds=15)
"""A job is live if its last heartbeat is younger, by the database's clock. It may miss two."""


def is_live(silence: timedelta | None) -> bool:
    """Whether a job is live whose last heartbeat was so long ago, ``None`` if there is no heartbeat.

    A heartbeat in the future does not count: the database's clock has stepped back since (a failover, a restored
    machine), and a dead owner would seem live until the clock caught up. A running job is live again with its next
    heartbeat, at most five seconds later.
    """
    return silence is not None and -LIVE < silence < LIVE

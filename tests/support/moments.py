"""What was measured, as if it had been measured at another time."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from offsetstore import Lag


def at_time(lag: Lag, at: datetime) -> Lag:
    """The same, as of then."""
    groups = {name: replace(one, read_at=at) for name, one in lag.groups.items()}
    return replace(lag, groups=groups, store=replace(lag.store, at=at))

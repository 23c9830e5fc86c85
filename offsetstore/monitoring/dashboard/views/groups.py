"""All groups: which of them need someone, and how far they are behind."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, get_args

from starlette.routing import Route

from offsetstore.monitoring.dashboard.context import dashboard_of, page_of, show
from offsetstore.store.group_health import Condition, condition, last_advance

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from starlette.requests import Request
    from starlette.responses import Response

    from offsetstore.store.lag import GroupLag, Lag

SPANS: Final = {
    "5m": timedelta(minutes=5),
    "1h": timedelta(hours=1),
    "24h": timedelta(hours=24),
    "31d": timedelta(days=31),
}
"""What the trends and graphs can show."""

ON_A_PAGE: Final = 50

_ORDER: Final = {name: place for place, name in enumerate(get_args(Condition))}


@dataclass(frozen=True, slots=True)
class Row:
    """One group."""

    name: str
    condition: Condition
    is_live: bool
    lag: GroupLag
    advanced_at: datetime | None
    letters: int
    error: str | None

    @classmethod
    def of(cls, name: str, lag: Lag) -> Row:
        """The group in the snapshot."""
        one = lag.groups[name]
        errors = (topic.error.what for topic in one.topics.values() if topic.error is not None)
        return cls(
            name=name,
            condition=condition(one, lag.store.at),
            is_live=one.owner.is_live,
            lag=one,
            advanced_at=last_advance(one),
            letters=sum(lag.store.letters.get(name, {}).values()),
            error=next(errors, None),
        )


# Each puts first what is looked for first; the name decides between equals.
_SORTS: Final[dict[str, Callable[[Row], Any]]] = {
    "state": lambda row: (_ORDER[row.condition], -(row.lag.records or 0)),
    "group": lambda _row: 0,
    "lag": lambda row: -(row.lag.records or 0),
    "behind": lambda row: -(row.lag.seconds or 0.0),
    "advance": lambda row: row.advanced_at.timestamp() if row.advanced_at is not None else 0.0,
    "letters": lambda row: -row.letters,
}


def groups(request: Request) -> Response:
    """List them."""
    dashboard, query = dashboard_of(request), request.query_params
    lag = dashboard.snapshots.latest().lag
    sort = query.get("sort", "state")
    wanted = query.get("q", "").strip().lower()
    span = query.get("span", "1h")
    span = span if span in SPANS else "1h"
    rows = [] if lag is None else [Row.of(name, lag) for name in lag.groups if wanted in name.lower()]
    key = _SORTS.get(sort, _SORTS["state"])
    rows.sort(key=lambda row: (key(row), row.name))
    pages = max(1, -(-len(rows) // ON_A_PAGE))
    page = min(page_of(request), pages)
    counts = {name: sum(row.condition == name for row in rows) for name in _ORDER}
    return show(
        request,
        "groups.html",
        rows=rows[(page - 1) * ON_A_PAGE : page * ON_A_PAGE],
        count=len(rows),
        counts=counts,
        has_groups=lag is not None and bool(lag.groups),
        sort=sort if sort in _SORTS else "state",
        wanted=query.get("q", "").strip(),
        span=span,
        spans=list(SPANS),
        page=page,
        pages=pages,
    )


ROUTES: Final = [Route("/", groups)]

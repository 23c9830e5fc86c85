"""All groups: which of them need someone, and how far they are behind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, get_args

from starlette.routing import Route

from offsetstore.errors import OffsetStoreError
from offsetstore.monitoring.dashboard.context import SPANS, dashboard_of, page_of, show, snapshot_of, span_of
from offsetstore.protocol.samples import Selection, rates
from offsetstore.store.group_health import Condition

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime, timedelta

    from starlette.requests import Request
    from starlette.responses import Response

    from offsetstore.monitoring.dashboard.snapshots import Summary
    from offsetstore.store.store import OffsetStore

ON_A_PAGE: Final = 50

POINTS: Final = 60
"""Of a trend."""

_ORDER: Final = {name: place for place, name in enumerate(get_args(Condition))}


@dataclass(frozen=True, slots=True)
class Trend:
    """How a group went.

    :param lag: at even times.
    :param rate: records a second, now.
    """

    lag: list[int | None]
    rate: float | None


# Each puts first what is looked for first; the name decides between equals.
_SORTS: Final[dict[str, Callable[[Summary], Any]]] = {
    "state": lambda row: (_ORDER[row.condition], -(row.records or 0)),
    "group": lambda _row: 0,
    "lag": lambda row: -(row.records or 0),
    "behind": lambda row: -(row.seconds or 0.0),
    "advance": lambda row: row.advanced_at.timestamp() if row.advanced_at is not None else 0.0,
    "letters": lambda row: -row.letters,
}


def groups(request: Request) -> Response:
    """List them."""
    dashboard, query = dashboard_of(request), request.query_params
    snapshot = snapshot_of(request)
    sort = query.get("sort", "state")
    wanted = query.get("q", "").strip().lower()
    span = span_of(request)
    rows = [row for row in snapshot.groups.values() if wanted in row.name.lower()]
    key = _SORTS.get(sort, _SORTS["state"])
    rows.sort(key=lambda row: (key(row), row.name))
    pages = max(1, -(-len(rows) // ON_A_PAGE))
    page = min(page_of(request), pages)
    count = len(rows)
    counts = {name: sum(row.condition == name for row in rows) for name in _ORDER}
    rows = rows[(page - 1) * ON_A_PAGE : page * ON_A_PAGE]
    return show(
        request,
        "groups.html",
        rows=rows,
        trends=_trends(dashboard.store, [row.name for row in rows], SPANS[span], snapshot.measured_at),
        count=count,
        counts=counts,
        has_groups=bool(snapshot.groups),
        sort=sort if sort in _SORTS else "state",
        wanted=query.get("q", "").strip(),
        span=span,
        spans=list(SPANS),
        page=page,
        pages=pages,
    )


def _trends(store: OffsetStore, names: list[str], span: timedelta, until: datetime | None) -> dict[str, Trend]:
    """The curves of these groups, with one query. While the database does not answer, the page says so without them."""
    selection = Selection.of(span, POINTS)
    trends = dict.fromkeys(names, Trend([], None))
    if until is None:
        return trends
    try:
        found = store.samples(names, span, points=POINTS)
    except OffsetStoreError:
        return trends
    for name, samples in found.items():
        lag = selection.spread(samples, [one.lag for one in samples], until)
        records = selection.spread(samples, [one.records for one in rates(samples, selection.every)], until)
        trends[name] = Trend(lag, records[-1])
    return trends


ROUTES: Final = [Route("/", groups)]

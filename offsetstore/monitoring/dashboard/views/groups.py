"""All groups: which of them need attention, and how far they are behind; and the store that they share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from offsetstore.errors import OffsetStoreError
from offsetstore.monitoring.dashboard.context import SPANS, dashboard_of, page_of, show, snapshot_of, span_of
from offsetstore.monitoring.dashboard.snapshots import Snapshot
from offsetstore.offset_store import OffsetStore
from offsetstore.operations.group_state import Lag
from offsetstore.operations.group_status import STATES, GroupStatus, relay_in_words
from offsetstore.operations.samples import Selection

OLD: Final = timedelta(hours=1)
"""The age of a transaction from which the alert ``OldTransaction`` fires, too."""
SKEWED: Final = 1.0
"""Seconds between two clocks that the time of a read does not explain."""
FEW: Final = 0.9
"""The share of HOT updates below which an index, or a lack of room in the pages, must be in their way."""
ENOUGH: Final = 1_000
"""Updates from which the share means something."""


def store(request: Request) -> Response:
    """Show the store."""
    dashboard = dashboard_of(request)
    facts = dashboard.store.facts()
    lag = snapshot_of(request).lag
    partitions = next((table for table in facts.tables if table.name == "kafka_partitions"), None)
    share = None if partitions is None or partitions.updates < ENOUGH else partitions.hot_share
    began = (facts.at - facts.oldest_transaction).replace(microsecond=0)
    return show(
        request,
        "store.html",
        facts=facts,
        identity=dashboard.store.identity(),
        began=began if facts.oldest_transaction >= timedelta(seconds=1) else None,
        is_old=facts.oldest_transaction > OLD,
        has_few_hot=share is not None and share < FEW,
        skew=None if lag is None else round(lag.clock_skew, 1),
        is_skewed=lag is not None and abs(lag.clock_skew) > SKEWED,
        clusters=[] if lag is None else _clusters(lag),
        relay=None if lag is None else lag.store.relay,
        relay_text=None if lag is None else relay_in_words(lag.store.relay),
        cluster=None if lag is None or lag.kafka is None else lag.kafka.cluster_id,
    )


def _clusters(lag: Lag) -> list[str]:
    """The clusters to which stored offsets belong."""
    rows = (row for of_group in lag.store.partitions.values() for row in of_group.values())
    return sorted({row.cluster_id for row in rows if row.cluster_id is not None})


ON_A_PAGE: Final = 50

POINTS: Final = 60
"""Points of a trend."""

_ORDER: Final = {name: place for place, name in enumerate(STATES)}


def _unknown_first(lag: float | None) -> tuple[bool, float]:
    return lag is not None, -(lag or 0)


# Each puts first what people look for first; the name decides between equals.
_SORTS: Final[dict[str, Callable[[GroupStatus], Any]]] = {
    "state": lambda row: (_ORDER[row.state], row.error is None, -(row.lag or 0)),
    "group": lambda _row: 0,
    "lag": lambda row: _unknown_first(row.lag),
    "behind": lambda row: _unknown_first(row.lag_seconds),
    "advance": lambda row: row.advanced_at.timestamp() if row.advanced_at is not None else 0.0,
    "letters": lambda row: -row.letters,
}


def groups(request: Request) -> Response:
    """List the groups."""
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
    counts = {name: sum(row.state == name for row in rows) for name in _ORDER}
    rows = rows[(page - 1) * ON_A_PAGE : page * ON_A_PAGE]
    return show(
        request,
        "groups.html",
        rows=rows,
        trends=_trends(dashboard.store, [row.name for row in rows], SPANS[span], snapshot),
        count=count,
        counts=counts,
        states=STATES,
        is_known=snapshot.lag is not None,
        has_groups=bool(snapshot.groups),
        sort=sort if sort in _SORTS else "state",
        wanted=query.get("q", "").strip(),
        span=span,
        spans=list(SPANS),
        page=page,
        pages=pages,
    )


def _trends(
    store: OffsetStore, names: list[str], span: timedelta, snapshot: Snapshot
) -> Mapping[str, list[int | None]]:
    """The lags of these groups at even times, with one query.

    They are empty while the database does not answer, which the page says. It is not asked if it did not answer before.
    """
    selection = Selection.of(span, POINTS)
    trends: dict[str, list[int | None]] = {name: [] for name in names}
    if snapshot.lag is None or not snapshot.has_database:
        return trends
    try:
        found = store.samples(names, span, points=POINTS)
    except OffsetStoreError:
        return trends
    for name, samples in found.items():
        trends[name] = selection.spread(samples, [sample.lag for sample in samples], snapshot.lag.store.at)
    return trends


ROUTES: Final = [Route("/", groups), Route("/store", store)]

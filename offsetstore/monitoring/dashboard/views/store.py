"""The store itself: its schema, its tables, its clock, and what keeps VACUUM from its work."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from offsetstore.monitoring.dashboard.context import dashboard_of, show, snapshot_of
from offsetstore.operations.group_state import Lag
from offsetstore.operations.group_status import relay_in_words

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


ROUTES: Final = [Route("/store", store)]

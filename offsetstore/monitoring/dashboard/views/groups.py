"""All groups: which of them need attention, and how far they are behind; the store that they share; and one group.

One group's page tells what is wrong with it, how it went, and its topics and partitions. A partition has a page, too.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from offsetstore.errors import OffsetStoreError
from offsetstore.monitoring.dashboard.context import (
    SPANS,
    dashboard_of,
    group_of,
    lag_of,
    link,
    number_of,
    page_of,
    schema_of,
    show,
    snapshot_of,
    span_of,
)
from offsetstore.monitoring.dashboard.snapshots import Snapshot
from offsetstore.offset_store import OffsetStore
from offsetstore.offsets import TopicPartition
from offsetstore.operations.group_checks import Check, CheckName, check_group
from offsetstore.operations.group_state import GroupState
from offsetstore.operations.group_status import STATES, GroupStatus, relay_in_words, standing
from offsetstore.operations.samples import Selection, rates
from offsetstore.protocol.metadata import Metadata
from offsetstore.protocol.runs import telling_run
from offsetstore.text import numbered

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
    stored = () if lag is None else (row for rows in lag.store.partitions.values() for row in rows.values())
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
        # The clusters to which stored offsets belong.
        clusters=sorted({row.cluster_id for row in stored if row.cluster_id is not None}),
        # Rows that applications have put into the outbox have a name without a group (decision 0107).
        sources={}
        if lag is None
        else {name: outbox for name, outbox in sorted(lag.store.outbox.items()) if name not in lag.groups},
        relay=None if lag is None else lag.store.relay,
        relay_text=None if lag is None else relay_in_words(lag.store.relay),
        cluster=None if lag is None or lag.kafka is None else lag.kafka.cluster_id,
    )


GROUPS_ON_A_PAGE: Final = 50

TREND_POINTS: Final = 60
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
    pages = max(1, -(-len(rows) // GROUPS_ON_A_PAGE))
    page = min(page_of(request), pages)
    count = len(rows)
    counts = {name: sum(row.state == name for row in rows) for name in _ORDER}
    rows = rows[(page - 1) * GROUPS_ON_A_PAGE : page * GROUPS_ON_A_PAGE]
    stored = None if snapshot.lag is None else snapshot.lag.store
    unsent = 0 if stored is None else sum(outbox.rows for outbox in stored.outbox.values())
    has_relay = stored is not None and stored.relay is not None and stored.relay.is_live
    return show(
        request,
        "groups.html",
        rows=rows,
        # The rows may be an application's, which has no line in the list.
        unsent=0 if has_relay else unsent,
        relay_state=stored.relay.state if stored is not None and stored.relay is not None else "never started",
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
    selection = Selection.of(span, TREND_POINTS)
    trends: dict[str, list[int | None]] = {name: [] for name in names}
    if snapshot.lag is None or not snapshot.has_database:
        return trends
    try:
        found = store.samples(names, span, points=TREND_POINTS)
    except OffsetStoreError:
        return trends
    for name, samples in found.items():
        trends[name] = selection.spread(samples, [sample.lag for sample in samples], snapshot.lag.store.at)
    return trends


PARTITIONS_ON_A_PAGE: Final = 100
SORTS: Final = ("lag", "number")
DECISIONS: Final = 50
LETTERS: Final = 20
_METADATA: Final = 20_000  # characters
_AS_TEXT: Final = Metadata(serializer=str, deserializer=str)
CHART_POINTS: Final = 240
"""Points of a curve."""

_TOPICS: Final = 100
MEMBERS: Final = 100
"""Members of a fleet whose runs are looked at for the checks."""

# The page that shows more about a check that is not ok.
_PAGES: Final[dict[CheckName, tuple[str, str]]] = {
    "claim": ("/runs", "Runs and errors"),
    "batch": ("/runs", "Runs and errors"),
    "copies in Kafka": ("/runs", "Runs and errors"),
    "pause": ("/history", "History"),
    "dead letters": ("/letters", "Look at them"),
    "pinned offsets": ("/history", "History"),
}


@dataclass(frozen=True, slots=True)
class Chosen:
    """Which partitions to list, as the address says.

    :param partition: its number; ``None`` for all.
    """

    topic: str = ""
    partition: int | None = None
    only_lagging: bool = False
    sort: str = "lag"

    @classmethod
    def of(cls, request: Request) -> Chosen:
        """Read the address; invalid parameters count as missing."""
        query = request.query_params
        sort = query.get("sort", "lag")
        return cls(
            topic=query.get("topic", ""),
            partition=number_of(request),
            only_lagging=query.get("lagging") == "1",
            sort=sort if sort in SORTS else "lag",
        )

    def query(self) -> dict[str, Any]:
        """The parameters of the address again."""
        return {
            "topic": self.topic or None,
            "partition": self.partition,
            "lagging": 1 if self.only_lagging else None,
            "sort": self.sort,
        }

    def sorted(self, group: GroupState, stands: Collection[TopicPartition]) -> list[TopicPartition]:
        """The partitions, sorted. By lag: standing ones, then unknown lags, then the largest lag."""
        found = {
            tp: part.lag
            for topic in ([self.topic] if self.topic else sorted(group.topics))
            if topic in group.topics
            for tp, part in group.topics[topic].partitions.items()
            if self.partition in {None, tp.partition}
        }
        chosen = [tp for tp, lag in found.items() if lag != 0 or not self.only_lagging]
        if self.sort == "lag":
            chosen.sort(key=lambda tp: (tp not in stands, found[tp] is not None, -(found[tp] or 0), tp))
        return chosen


@dataclass(frozen=True, slots=True)
class Chart:
    """A curve over time.

    :param unit: what the caption has after a number.
    :param values: one for each of the times; ``None`` where it is not known.
    :param now: the last value, which may be of a shorter time than the others.
    """

    name: str
    title: str
    unit: str
    times: Sequence[int]
    values: Sequence[float | None]
    now: float | None

    @property
    def known(self) -> list[float]:
        """The known values, the oldest first."""
        return [value for value in self.values if value is not None]

    @property
    def peak(self) -> float:
        """The largest value, ``now`` included."""
        return max(value for value in (*self.known, self.now) if value is not None)

    @property
    def series(self) -> str:
        """JSON for the page's script."""
        short = [value if value is None else round(value, 3) for value in self.values]
        return json.dumps([self.times, short], separators=(",", ":"))


def _charts(store: OffsetStore, summary: GroupStatus, span: timedelta, until: datetime) -> list[Chart]:
    """Make the curves, with one query."""
    samples = store.samples([summary.name], span, points=CHART_POINTS)[summary.name]
    selection = Selection.of(span, CHART_POINTS)
    grown = rates(samples, selection.every)
    times = [int(at.timestamp()) for at in selection.times(until)]
    curves: list[tuple[str, str, str, list[float | None]]] = [
        ("lag", "Lag", "", [sample.lag for sample in samples]),
        ("rate", "Records per second", "/s", [rate.records for rate in grown]),
        ("batch", "Seconds per batch", "\N{NO-BREAK SPACE}s", [rate.batch_seconds for rate in grown]),
    ]
    charts: list[Chart] = []
    for key, title, unit, values in curves:
        spread = selection.spread(samples, values, until)
        charts.append(Chart(key, title, unit, times, spread, summary.rate if key == "rate" else spread[-1]))
    return charts


def group(request: Request) -> Response:
    """Show one group."""
    found, store = group_of(request), dashboard_of(request).store
    name = found.group
    last = telling_run(store.runs(name, limit=1 if found.owner.fleet is None else MEMBERS))
    pauses = store.history(name, events=["pause"], limit=1) if found.pause is not None else []
    chosen, span = Chosen.of(request), span_of(request)
    stands = standing(found)
    partitions = chosen.sorted(found, stands)
    pages = max(1, -(-len(partitions) // PARTITIONS_ON_A_PAGE))
    page = min(page_of(request), pages)
    # Topics with an error come first, then those with the largest lag.
    by_trouble = sorted(
        (topic.error is None, -(topic.lag or 0), topic_name) for topic_name, topic in found.topics.items()
    )
    summary = snapshot_of(request).groups[name]
    checks = check_group(found, last, next(iter(pauses), None), schema=schema_of(request))
    return show(
        request,
        "group.html",
        group=name,
        state=found,
        members=[(member.member, numbered(member.partitions)) for member in found.of_members],
        at=found.read_at,
        summary=summary,
        charts=_charts(store, summary, SPANS[span], found.read_at),
        span=span,
        spans=list(SPANS),
        checks=checks,
        check_links=_links(name, checks, may_reset=dashboard_of(request).actions is not None),
        stands=stands,
        topics=[topic_name for _, _, topic_name in by_trouble[:_TOPICS]],
        topic_count=len(found.topics),
        partitions=[
            (tp, found.topics[tp.topic].partitions[tp])
            for tp in partitions[(page - 1) * PARTITIONS_ON_A_PAGE : page * PARTITIONS_ON_A_PAGE]
        ],
        partition_count=len(partitions),
        has_partitions=bool(found.topics),
        chosen=chosen,
        query={"group": name, "span": span, **chosen.query()},
        sorts=SORTS,
        page=page,
        pages=pages,
    )


def _links(group: str, checks: Iterable[Check], *, may_reset: bool) -> dict[CheckName, tuple[str, str]]:
    """For checks that are not ok: the page that shows more, or the action that mends it, and the link's text."""
    found: dict[CheckName, tuple[str, str]] = {}
    for check in checks:
        if may_reset and check.name == "copies in Kafka" and check.verdict == "bad":
            found[check.name] = link("/actions/reset", group=group, to="current"), "Reset them to where they stand"
        elif may_reset and check.name == "outbox" and check.verdict == "attention":
            found[check.name] = link("/actions/outbox-retry/plan", group=group), "Look at them"
        elif check.next_step and check.name in _PAGES:
            path, text = _PAGES[check.name]
            found[check.name] = link(path, group=group), text
    return found


def partition(request: Request) -> Response:
    """Show one partition, with three queries."""
    state = group_of(request)
    group, asked = state.group, (request.query_params.get("topic", ""), number_of(request))
    tp = next((tp for tp in state.partitions if tp == asked), None)
    if tp is None:
        raise HTTPException(404, "Neither the store nor Kafka has such a partition of the group's topics.")
    topic = state.topics[tp.topic]
    store = dashboard_of(request).store
    metadata = store.find_metadata(group, tp.topic, tp.partition, formats=_AS_TEXT)
    decisions = store.history(group, topic_partition=tp, limit=DECISIONS)
    letters = store.letters(group, topic=tp.topic, partition=tp.partition, limit=LETTERS)
    kafka_topic = lag_of(request).topics.get(tp.topic)
    return show(
        request,
        "partition.html",
        group=group,
        tp=tp,
        topic=topic,
        part=topic.partitions[tp],
        owner=state.owner,
        topic_id=kafka_topic.topic_id if kafka_topic is not None else None,
        metadata=None if metadata is None else str(metadata)[:_METADATA],
        metadata_left=0 if metadata is None else max(0, len(str(metadata)) - _METADATA),
        decisions=decisions[::-1],
        most_decisions=DECISIONS,
        letters=letters.letters,
        has_more_letters=letters.next is not None,
    )


ROUTES: Final = [Route("/", groups), Route("/store", store), Route("/group", group), Route("/partition", partition)]

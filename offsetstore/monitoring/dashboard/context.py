"""What each page can use, and what all pages show."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from offsetstore.monitoring.dashboard.forms import Tickets
from offsetstore.monitoring.dashboard.rendering import respond
from offsetstore.monitoring.dashboard.security import Access, is_open
from offsetstore.monitoring.dashboard.snapshots import Snapshot, Snapshots
from offsetstore.offset_store import OffsetStore
from offsetstore.operations.group_state import GroupState, Lag
from offsetstore.protocol.ports import BrokerOffsets
from offsetstore.text import command

SPANS: Final = {
    "5m": timedelta(minutes=5),
    "1h": timedelta(hours=1),
    "24h": timedelta(hours=24),
    "31d": timedelta(days=31),
}
"""What the curves can show."""

_DIGITS: Final = 10  # of the largest partition


@dataclass(frozen=True, slots=True)
class Deciding:
    """What decisions on the pages need.

    :param store: with a role that may decide. It is left open, as is the broker.
    :param broker: asked for the log's ends when offsets are reset.
    :param kafka_groups: Kafka's names of groups that have a different one there, by the name in the store.
    """

    store: OffsetStore
    broker: BrokerOffsets
    kafka_groups: Mapping[str, str] = field(default_factory=dict[str, str])
    tickets: Tickets = field(default_factory=Tickets)


@dataclass(frozen=True, slots=True)
class Dashboard:
    """One server's parts.

    :param store: with a role that may read all but the contents of dead letters.
    :param actions: ``None``: nothing can be decided on the pages.
    """

    store: OffsetStore
    snapshots: Snapshots
    access: Access
    actions: Deciding | None = None


def dashboard_of(request: Request) -> Dashboard:
    return request.app.state.dashboard


def schema_of(request: Request) -> str | None:
    """The schema of the tables, for the commands that a page prints."""
    return dashboard_of(request).store.database.schema


def snapshot_of(request: Request) -> Snapshot:
    """The snapshot for the whole page. If another one is taken meanwhile, the next page shows that."""
    if "offsetstore.snapshot" not in request.scope:
        request.scope["offsetstore.snapshot"] = dashboard_of(request).snapshots.latest()
    return request.scope["offsetstore.snapshot"]


def show(request: Request, template: str, *, status: int = 200, **values: Any) -> Response:
    """Render a page, with what all of them show."""
    snapshot = Snapshot() if is_open(request.url.path) else snapshot_of(request)
    common = {
        "snapshot": snapshot,
        "path": request.url.path,
        "status": status,
        "has_login": dashboard_of(request).access.token is not None,
        "has_actions": dashboard_of(request).actions is not None,
        "command": partial(command, schema=schema_of(request)),
    }
    return respond(request, template, common | values, status=status)


def lag_of(request: Request) -> Lag:
    """The last snapshot's lag.

    :raises HTTPException: there is none yet.
    """
    lag = snapshot_of(request).lag
    if lag is None:
        raise HTTPException(503, "The database has not been read yet.")
    return lag


def group_of(request: Request) -> GroupState:
    """The group that the page is about, by the parameter ``group``, in the last snapshot.

    :raises HTTPException: there is no such group.
    """
    found = lag_of(request).groups.get(request.query_params.get("group", ""))
    if found is None:
        raise HTTPException(404, "There is no group of this name. A new one appears within ten seconds of its claim.")
    return found


def page_of(request: Request, name: str = "page") -> int:
    """The number of the page of a long list, from 1."""
    try:
        return max(1, int(request.query_params.get(name, "1")))
    except ValueError:
        return 1


def number_in(text: str | None, most: int, what: str) -> int | None:
    """Read a number in the address, from 0 to ``most``; ``None`` if it is missing.

    :param what: what it should be, for people.
    :raises HTTPException: it is not such a number.
    """
    try:
        number = None if text is None else int(text)
    except ValueError:
        number = -1
    if number is not None and not 0 <= number <= most:
        raise HTTPException(400, f"That is not {what}.")
    return number


def span_of(request: Request) -> str:
    """The name of the time that the curves show, one of `SPANS`."""
    span = request.query_params.get("span", "1h")
    return span if span in SPANS else "1h"


def number_of(request: Request) -> int | None:
    """The number of the partition in the address; ``None`` if it has none."""
    text = request.query_params.get("partition", "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= _DIGITS else None

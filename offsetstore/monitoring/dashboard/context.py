"""What each page can use, what all pages show, and the filters of their templates.

Each value is escaped, and invisible characters in names are made visible.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from typing import Any, Final
from urllib.parse import urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from offsetstore.monitoring.dashboard.forms import Tickets, hidden
from offsetstore.monitoring.dashboard.security import Access, is_open
from offsetstore.monitoring.dashboard.snapshots import Snapshot, Snapshots
from offsetstore.offset_store import OffsetStore
from offsetstore.operations.group_state import GroupState, Lag
from offsetstore.protocol.ports import BrokerOffsets
from offsetstore.text import NOTHING, command, counted, short, visible

SPANS: Final = {
    "5m": timedelta(minutes=5),
    "1h": timedelta(hours=1),
    "24h": timedelta(hours=24),
    "31d": timedelta(days=31),
}
"""What the curves can show."""

_DIGITS: Final = 10  # of the largest partition
_WIDTH: Final = 120  # of a trend
_HEIGHT: Final = 24


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
    """Render a page, with what all of them show, or answer that the browser has it already."""
    snapshot = Snapshot() if is_open(request.url.path) else snapshot_of(request)
    common = {
        "snapshot": snapshot,
        "path": request.url.path,
        "status": status,
        "has_login": dashboard_of(request).access.token is not None,
        "has_actions": dashboard_of(request).actions is not None,
        "command": partial(command, schema=schema_of(request)),
    }
    # The bytes of a page don't depend on the time, since the browser fills ages in (decision 0046).
    body = environment().get_template(template).render(common | values).encode(errors="replace")
    tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    if status == 200 and request.headers.get("if-none-match") == tag:  # noqa: PLR2004 - HTTP's
        return Response(status_code=304, headers={"ETag": tag})
    return Response(body, status, {"ETag": tag}, "text/html")


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


@cache
def environment() -> Environment:
    """The templates, with our filters."""
    made = Environment(
        loader=PackageLoader("offsetstore.monitoring.dashboard"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters: dict[str, Any] = {
        "bytes": in_bytes,
        "counted": counted,
        "moment": moment,
        "number": number,
        "seconds": seconds,
        "trend": trend,
        "visible": visible,
    }
    made.filters.update(filters)
    helpers: dict[str, Any] = {"hidden": hidden, "link": link}
    made.globals.update(helpers)
    return made


def link(path: str, **query: object) -> str:
    """An address on this server; what is ``None`` is left out of its query.

    Names are in the query, where nothing in them has a meaning of its own.
    """
    pairs = {name: str(value) for name, value in query.items() if value is not None}
    return f"{path}?{urlencode(pairs)}" if pairs else path


def number(value: float | None) -> str:
    """``1,234,567``; a fraction has one digit, unless it is large."""
    if value is None:
        return NOTHING
    # An offset may be larger than the numbers that a float can tell apart.
    if isinstance(value, int):
        return f"{value:,d}"
    return f"{value:,.1f}" if abs(value) < 100 else f"{value:,.0f}"  # noqa: PLR2004


def seconds(value: float | timedelta | None) -> str:
    """A time: ``0.4s``, ``5s``, ``3h``."""
    if value is None:
        return NOTHING
    of = value.total_seconds() if isinstance(value, timedelta) else value
    return f"{of:.1f}s" if 0 < of < 2 else short(timedelta(seconds=of))  # noqa: PLR2004


def in_bytes(value: int | None) -> str:
    """``1.5 MB``."""
    if value is None:
        return NOTHING
    size, unit = float(value), "B"
    for unit in ("B", "kB", "MB", "GB", "TB"):  # noqa: B007 - the last one is used
        if size < 1000:  # noqa: PLR2004
            break
        size /= 1000
    return f"{size:,.0f} {unit}" if unit == "B" or size >= 100 else f"{size:.1f} {unit}"  # noqa: PLR2004


def moment(at: datetime | None, *, age: bool = True) -> Markup:
    """A time, in UTC. The page's script turns it into an age that goes on, unless ``age`` is ``False``."""
    if at is None:
        return Markup(NOTHING)  # noqa: S704 - a constant
    utc = at.astimezone(UTC)
    text = utc.strftime("%Y-%m-%d %H:%M:%S UTC")
    mark = Markup(" data-age") if age else Markup("")
    return Markup('<time datetime="{}" title="{}"{}>{}</time>').format(utc.isoformat(), text, mark, text)


def trend(values: Sequence[float | None], label: str) -> Markup:
    """A small curve without a scale, for a table's cell. Where a value is missing, it is broken."""
    known = [value for value in values if value is not None]
    if len(known) < 2:  # noqa: PLR2004 - of one point there is no curve
        return Markup(NOTHING)  # noqa: S704 - a constant
    top = max(known) or 1.0
    step = _WIDTH / max(1, len(values) - 1)
    path: list[str] = []
    pen = "M"
    for index, value in enumerate(values):
        if value is None:
            pen = "M"
            continue
        path.append(f"{pen}{index * step:.1f} {_HEIGHT - 2 - value / top * (_HEIGHT - 4):.1f}")
        pen = "L"
    text = f"{label}: {number(known[0])} to {number(known[-1])}, at most {number(max(known))}"
    return Markup('<svg class="trend" viewBox="0 0 {} {}" role="img" aria-label="{}"><path d="{}"/></svg>').format(
        _WIDTH, _HEIGHT, text, escape(" ".join(path))
    )

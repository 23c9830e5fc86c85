"""Fills in the templates: each value is escaped, and invisible characters in names are made visible."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, Final
from urllib.parse import urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.requests import Request
from starlette.responses import Response

from offsetstore.monitoring.dashboard.forms import hidden
from offsetstore.text import NOTHING, counted, short, visible

_WIDTH: Final = 120
_HEIGHT: Final = 24


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


def respond(request: Request, template: str, values: Mapping[str, Any], *, status: int = 200) -> Response:
    """Render a page, or answer that the browser has it already."""
    # The bytes of a page don't depend on the time, since the browser fills ages in (decision 0046).
    body = environment().get_template(template).render(values).encode(errors="replace")
    tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    if status == 200 and request.headers.get("if-none-match") == tag:  # noqa: PLR2004 - HTTP's
        return Response(status_code=304, headers={"ETag": tag})
    return Response(body, status, {"ETag": tag}, "text/html")


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

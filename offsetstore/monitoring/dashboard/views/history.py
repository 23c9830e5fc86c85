"""What was decided about a group: who moved what, and why."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from offsetstore.monitoring.dashboard.context import dashboard_of, group_of, number_in, show
from offsetstore.monitoring.dashboard.rendering import link
from offsetstore.offsets import MAX_OFFSET
from offsetstore.protocol.database import EVENTS

ON_A_PAGE: Final = 50


def history(request: Request) -> Response:
    """List the events, the newest first."""
    name = group_of(request).group
    query = request.query_params
    events = [known for known in EVENTS if known == query.get("event")]
    given = query.get("since", "").strip()
    since, before = _since(given), number_in(query.get("before"), MAX_OFFSET, "a line of the history")
    is_wrong = bool(given) and since is None
    lines = dashboard_of(request).store.history(name, since=since, events=events, before=before, limit=ON_A_PAGE + 1)[
        ::-1
    ]
    event = events[0] if events else None
    same = {"group": name, "event": event, "since": None if since is None else _in_form(since)}
    shown = lines[:ON_A_PAGE]
    return show(
        request,
        "history.html",
        status=400 if is_wrong else 200,
        group=name,
        lines=shown,
        event=event,
        events=EVENTS,
        since=given if is_wrong else same["since"],
        is_wrong=is_wrong,
        newest=None if before is None else link("/history", **same),
        older=link("/history", **same, before=shown[-1].id) if len(lines) > ON_A_PAGE else None,
        is_whole=event is None and since is None and before is None,
    )


def _since(text: str) -> datetime | None:
    """Read a time as the form sends it, without a zone: it is in UTC. ``None`` if it is not a time."""
    try:
        at = datetime.fromisoformat(text)
        return at.replace(tzinfo=at.tzinfo or UTC).astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def _in_form(at: datetime) -> str:
    return at.replace(tzinfo=None).isoformat(timespec="minutes")


ROUTES: Final = [Route("/history", history)]

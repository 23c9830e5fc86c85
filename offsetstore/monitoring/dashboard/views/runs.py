"""The past of a group: the runs of its job, the errors that they met, and what was decided about it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, get_args
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from offsetstore.monitoring.dashboard.context import dashboard_of, group_of, link, number_in, page_of, show
from offsetstore.offsets import MAX_OFFSET
from offsetstore.operations.group_status import STATES
from offsetstore.protocol.database import EVENTS
from offsetstore.protocol.runs import KEPT, SOURCES, ErrorSource, Phase, Run, RunState

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
    same = {
        "group": name,
        "event": event,
        "since": None if since is None else since.replace(tzinfo=None).isoformat(timespec="minutes"),
    }
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


RUNS_ON_A_PAGE: Final = 10
ERRORS_ON_A_PAGE: Final = 50

WORDS: Final = {state: STATES[state] for state in get_args(RunState)}


@dataclass(frozen=True, slots=True)
class RunRow:
    """One run. Its times are by the database's clock, to the second, so that they don't change with each heartbeat."""

    run: Run
    phase: Phase
    phase_since: datetime
    batch_at: datetime | None

    @classmethod
    def of(cls, run: Run) -> RunRow:
        status = run.status
        last = status.last_batch_age
        return cls(
            run,
            status.phase,
            _to_the_second(run.read_at - timedelta(seconds=status.phase_age)),
            None if last is None else _to_the_second(run.read_at - timedelta(seconds=last)),
        )

    @property
    def ui_link(self) -> str | None:
        """The address of Spark's UI, if all that a browser can do with it is to go there."""
        address = self.run.status.ui_url
        try:
            is_plain = address is not None and address.isascii() and address.isprintable()
            is_web = is_plain and urlsplit(address).scheme in {"http", "https"}
        except ValueError:
            is_web = False
        return address if is_web else None


def runs(request: Request) -> Response:
    """List runs and errors, the newest first: both lists hold a thousand lines at most."""
    name = group_of(request).group
    store = dashboard_of(request).store
    page, errors_page = page_of(request), page_of(request, "errors")
    asked = request.query_params.get("source", "")
    sources: list[ErrorSource] = [source for source in SOURCES if source == asked]
    found = store.runs(name, limit=min(KEPT, page * RUNS_ON_A_PAGE + 1))[::-1]
    errors = store.errors(name, sources=sources, limit=min(KEPT, errors_page * ERRORS_ON_A_PAGE + 1))[::-1]
    same = {"group": name, "source": sources[0] if sources else None}
    at = (page - 1) * RUNS_ON_A_PAGE
    errors_at = (errors_page - 1) * ERRORS_ON_A_PAGE

    def address(page: int, errors_page: int) -> str:
        return link("/runs", **same, page=page if page > 1 else None, errors=errors_page if errors_page > 1 else None)

    return show(
        request,
        "runs.html",
        group=name,
        rows=[RunRow.of(run) for run in found[at : at + RUNS_ON_A_PAGE]],
        has_runs=bool(found),
        newest_runs=address(1, errors_page) if page > 1 else None,
        older_runs=address(page + 1, errors_page) if len(found) > at + RUNS_ON_A_PAGE else None,
        errors=errors[errors_at : errors_at + ERRORS_ON_A_PAGE],
        has_errors=bool(errors),
        newest_errors=address(page, 1) if errors_page > 1 else None,
        older_errors=address(page, errors_page + 1) if len(errors) > errors_at + ERRORS_ON_A_PAGE else None,
        source=same["source"],
        sources=SOURCES,
        words=WORDS,
        kept=KEPT,
    )


def _to_the_second(at: datetime) -> datetime:
    return at.replace(microsecond=0)


ROUTES: Final = [Route("/runs", runs), Route("/history", history)]

"""Decisions in three steps: a form, a plan that asks for a reason and the group's name, and what was done.

Only the last step changes anything. It takes the plan's ticket, which is good once; the library then decides under its
locks, so what the last page shows may differ from the plan.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from starlette.background import BackgroundTask
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from offsetstore import errors
from offsetstore.errors import OffsetStoreError, step_for
from offsetstore.monitoring.dashboard.context import (
    Deciding,
    dashboard_of,
    group_of,
    lag_of,
    show,
    snapshot_of,
)
from offsetstore.monitoring.dashboard.forms import (
    DECISIONS,
    Answers,
    AnyOperation,
    Invalid,
    TicketRefused,
    names_letters,
    premise,
    read,
    read_fields,
    settled,
)
from offsetstore.monitoring.dashboard.views.letters import WITHIN
from offsetstore.offset_store import OffsetStore
from offsetstore.operations.letters import LettersDecided, ReplayLetters
from offsetstore.operations.operation import By, Plan, carry_out, plan_of
from offsetstore.operations.wording import in_words
from offsetstore.postgres.errors import DATABASE_ERRORS, of_database
from offsetstore.protocol.arguments import MOST_REASON
from offsetstore.store.identity import this_process
from offsetstore.text import visible

SHOWN: Final = 100
"""Rows that a plan lists."""
ERRORS: Final = 50

LONGEST: Final = MOST_REASON
"""Characters of a reason, and of a name."""

_ENTERED: Final = frozenset({"group", "ticket", "who", "reason", "typed", "fence"})
"""Fields that are not part of the plan."""
_AGREED: Final = frozenset({"typed", "fence"})
"""Of these, the fields that agree to one plan alone."""
_CHANGED: Final = "The plan has changed since it was shown; nothing was done. This is what would happen now."
_KEEPS_CHANGING: Final = "If letters keep coming, pause the group first."

# The first that fits counts.
_STATUSES: Final[tuple[tuple[int, tuple[type[OffsetStoreError], ...]], ...]] = (
    (404, (errors.UnknownGroup, errors.UnknownLetter)),
    (400, (errors.ConfigurationError, errors.OffsetOutOfRange)),
    (403, (errors.MissingPrivilege,)),
    (409, (errors.GroupBusy, errors.GroupRenamed, errors.StartError, errors.DeadLetterError)),
)
_UNAVAILABLE: Final = 503
_REFUSALS: Final = (errors.OffsetStoreError, *DATABASE_ERRORS)

_OTHER_ROLE: Final = (
    "Let the dashboard act (OFFSETSTORE_ACTIONS_URL) with a role that has what `offsetstore grants --role ROLE` "
    "prints. For rows of the outbox it must be the owner of the tables."
)


def form(request: Request) -> Response:
    """Ask what is to be done; the address may already say some of it."""
    name = _name(request)
    given = dict(request.query_params)
    group = given.get("group", "")
    if not (_is_source(request, name, group) and group in lag_of(request).store.outbox):
        group = group_of(request).group
    return _show_form(request, name, group, given)


def plan(request: Request) -> Response:
    """Show what would happen. GET, since it writes nothing: Back then leads to the plan as it is by then."""
    given = dict(request.query_params)
    name, group = _name(request), _group(given)
    try:
        fields = settled(name, given)
        return _show_plan(request, name, read(name, fields, _answers(request, group)), group, fields)
    except Invalid as wrong:
        return _show_form(request, name, group, given, wrong={wrong.field: str(wrong)})
    except _REFUSALS as error:
        return _show_form(request, name, group, given, error=_ours(error))


async def execute(request: Request) -> Response:
    """Carry out the plan, and show what was done."""
    # In a thread: a decision waits for locks.
    return await run_in_threadpool(_execute, request, await read_fields(request))


def _execute(request: Request, given: Mapping[str, str]) -> Response:
    name, group, actions = _name(request), _group(given), _actions(request)
    planned = {name: text for name, text in given.items() if name not in _ENTERED}
    # Before all else: of two requests with one ticket, one alone may decide.
    try:
        actions.tickets.take(given.get("ticket", ""), name, group, planned)
    except TicketRefused as refused:
        return show(request, "action_refused.html", status=403, action=name, group=group, text=str(refused))
    try:
        reason = given.get("reason", "").strip()
        answers = _answers(request, group, reason=reason, fence=given.get("fence") == "yes")
        fields = settled(name, planned)
        decision = read(name, fields, answers)
        if wrong := _wrong(given, group):
            return _show_plan(request, name, decision, group, fields, status=400, entered=given, wrong=wrong)
        who = given.get("who", "").strip()
        # The guard has compared the host with the server's names.
        place = f"dashboard at {request.headers['host']}, {this_process()}"
        by = By(reason, f"{who}, {place}" if who else place, lock_timeout=actions.store.timeouts.lock)
        try:
            done = carry_out(actions.store.database, decision, by, if_plan=given["premise"] or None)
        except (errors.PlanChanged, errors.GroupBusy) as refused:
            return _show_plan(request, name, decision, group, fields, status=409, entered=given, error=refused)
    except Invalid as wrong:
        # A time that has passed meanwhile.
        return _show_form(request, name, group, planned, wrong={wrong.field: str(wrong)})
    except _REFUSALS as error:
        return _show_form(request, name, group, planned, error=_ours(error))
    answer = show(
        request,
        "action_done.html",
        action=name,
        group=group,
        is_source=_is_source(request, name, group),
        result=done,
        words=in_words(done),
        reason=reason,
        shown=SHOWN,
    )
    # So that the next page shows what was done.
    answer.background = BackgroundTask(dashboard_of(request).snapshots.refresh)
    return answer


def _show_form(
    request: Request,
    name: str,
    group: str,
    given: Mapping[str, str],
    *,
    wrong: Mapping[str, str] | None = None,
    error: OffsetStoreError | None = None,
) -> Response:
    """Ask, with what was entered before, and what was wrong with it."""
    status = 400 if wrong else 200
    if error is not None:
        status = next((status for status, kinds in _STATUSES if isinstance(error, kinds)), _UNAVAILABLE)
    more: dict[str, Any] = {}
    if name in {"replay", "discard"}:
        more["is_chosen"] = names_letters(given)
        store = dashboard_of(request).store
        more["errors"] = [] if more["is_chosen"] else store.letter_errors(group, limit=ERRORS, within=WITHIN)
    elif name == "reset":
        found = lag_of(request).groups.get(group)
        more["topics"] = [] if found is None else sorted(found.topics)
    return show(
        request,
        "action_form.html",
        status=status,
        action=name,
        group=group,
        is_source=_is_source(request, name, group),
        given={key: text for key, text in given.items() if key not in _ENTERED},
        wrong=wrong or {},
        error=error,
        next_step=_next_step(error),
        **more,
    )


def _show_plan(
    request: Request,
    name: str,
    decision: AnyOperation,
    group: str,
    planned: dict[str, str],
    *,
    status: int = 200,
    entered: Mapping[str, str] | None = None,
    wrong: Mapping[str, str] | None = None,
    error: OffsetStoreError | None = None,
) -> Response:
    """Show what would happen now, and ask for a reason and the group's name."""
    actions = _actions(request)
    result = _planned(actions, dashboard_of(request).store, decision)
    # If the topic is created again, a newer letter of that offset is another letter.
    if isinstance(result, LettersDecided) and "offset" in planned:
        planned = {**planned, "topic_id": result.letters[0].topic_id or ""}
    rests_on = premise(decision, result)
    has_changed = isinstance(error, errors.PlanChanged)
    if has_changed or (entered is not None and entered.get("premise") != rests_on):
        changed = f"{_CHANGED} {_KEEPS_CHANGING}" if isinstance(result, LettersDecided) else _CHANGED
        status, wrong = 409, {"plan": changed, **(wrong or {})}
        entered = {name: text for name, text in (entered or {}).items() if name not in _AGREED}
        error = None if has_changed else error
    return show(
        request,
        "action_plan.html",
        status=status,
        action=name,
        group=group,
        is_source=_is_source(request, name, group),
        decision=decision,
        planned=planned,
        premise=rests_on,
        ticket=actions.tickets.issue(name, group, {**planned, "premise": rests_on}),
        result=result,
        words=in_words(result),
        entered=entered or {},
        wrong=wrong or {},
        error=error,
        next_step=_next_step(error),
        shown=SHOWN,
        longest=LONGEST,
    )


def _planned(actions: Deciding, store: OffsetStore, decision: AnyOperation) -> Plan:
    # To tell whether letters were overtaken, a role must read their contents, which the pages' role may not.
    is_forced = isinstance(decision, ReplayLetters) and decision.forced
    return plan_of((actions.store if is_forced else store).database, decision)


def _wrong(given: Mapping[str, str], group: str) -> dict[str, str]:
    """What is wrong with the answers to a plan, by field."""
    wrong: dict[str, str] = {}
    if not given.get("reason", "").strip():
        wrong["reason"] = "A decision needs a reason, which the history records."
    for name in ("who", "reason"):
        if len(given.get(name, "")) > LONGEST:
            wrong[name] = f"At most {LONGEST:,} characters are recorded."
    # A name with invisible characters can be typed as it is shown; a name of blanks alone has to be typed exactly.
    typed = given.get("typed", "")
    if typed not in {group, visible(group)} and (not typed.strip() or typed.strip() != visible(group).strip()):
        wrong["typed"] = "That is not the name of this group."
    return wrong


def _name(request: Request) -> str:
    name = request.path_params["action"]
    if name not in DECISIONS:
        raise HTTPException(404)
    return name


def _is_source(request: Request, name: str, group: str) -> bool:
    """Whether a decision is about outbox rows of an application, which has no group (decision 0107)."""
    lag = snapshot_of(request).lag
    return name.startswith("outbox-") and lag is not None and group not in lag.groups


def _group(given: Mapping[str, str]) -> str:
    """The group that a form names; the library says whether it exists."""
    if not (group := given.get("group", "")):
        raise HTTPException(400, "The form names no group.")
    return group


def _actions(request: Request) -> Deciding:
    dashboard = dashboard_of(request)
    actions = dashboard.actions
    # Without it, these routes don't exist.
    assert actions is not None
    found, expected = actions.store.database.identity(), dashboard.store.database.identity()
    if not found.may_be(expected):
        raise errors.ConfigurationError(
            "--actions-url points to a different store from the one that the pages read; nothing was done",
            found=found,
            expected=expected,
            next_step="Give both addresses the same database and schema.",
        )
    return actions


def _answers(request: Request, group: str, *, reason: str = "", fence: bool = False) -> Answers:
    actions = _actions(request)
    return Answers(group, actions.kafka_groups.get(group, group), actions.broker, reason, fence)


def _ours(error: Exception) -> OffsetStoreError:
    """Make the error ours: the library raises unexpected errors as the database's."""
    if isinstance(error, errors.OffsetStoreError):
        return error
    if (ours := of_database(error)) is None:
        raise error
    return ours


def _next_step(error: OffsetStoreError | None) -> str:
    # Not the error's own step, which would be more grants for the role that only reads.
    if isinstance(error, errors.MissingPrivilege):
        return _OTHER_ROLE
    return "" if error is None else step_for("page", error.next_step)


ROUTES: Final = [
    Route("/actions/{action}", form, methods=["GET"]),
    Route("/actions/{action}/plan", plan, methods=["GET"]),
    Route("/actions/{action}/execute", execute, methods=["POST"]),
]

"""Decisions on the pages: a plan that writes nothing, what an answer to it must bring, and what is then done."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest.mock import Mock

import httpx
import pytest

from offsetstore import LetterError, LetterKey, OffsetRange, OffsetStore, TopicPartition
from offsetstore.errors import BrokerUnavailable, LockTimeout, MissingPrivilege
from offsetstore.monitoring.dashboard.context import Deciding
from offsetstore.monitoring.dashboard.decisions import DECISIONS, Answers, read
from offsetstore.monitoring.dashboard.forms import LIFETIME, MOST_USED, TicketRefused, Tickets
from offsetstore.monitoring.dashboard.rendering import environment
from offsetstore.monitoring.dashboard.serving import DashboardServer, Settings
from offsetstore.monitoring.dashboard.views import actions
from offsetstore.operations.operation import carry_out
from offsetstore.postgres.session import PostgresSession
from offsetstore.protocol.database import GroupRow, HistoryEvent
from offsetstore.protocol.letters import NewLetter, Payload
from offsetstore.store import heartbeat
from offsetstore.store.sessions import transaction
from offsetstore.testing import InMemoryOffsetStore, StaticBroker
from tests.integration.conftest import Query
from tests.integration.pages.conftest import P0, P1, P2, Clock, advance, give, hold_still
from tests.support.page_forms import Browser, Page
from tests.support.waiting import wait_until

pytestmark = pytest.mark.behaviour("DASH-3")

GROUP = "billing"
TOKEN = "t0ken-" * 6
ANSWER = {"reason": "wrong rates, ticket 17", "typed": GROUP}
REFUSED = LetterError("RowsRefused", "", "23514", "public.results", "positive")
RAISED = LetterError("ValueError", "")
ERROR = {"cause": "refused", "error_class": "RowsRefused"}
PAYLOAD = Payload(b"key", b"value", None, None, None)


@pytest.fixture
def now() -> list[float]:
    """What the tickets' clock shows."""
    return [1000.0]


@pytest.fixture
def deciding(offsetstore_database: str, broker: StaticBroker, now: list[float]) -> Iterator[Deciding]:
    with OffsetStore.connect(offsetstore_database) as store:
        yield Deciding(store, broker, tickets=Tickets(lambda: now[0]))


@pytest.fixture
def server(store: OffsetStore, broker: StaticBroker, deciding: Deciding) -> Iterator[DashboardServer]:
    """Pages on which one may decide about `billing`, whose job has left: at 4, 10 and 10 of 10."""
    give(store, GROUP, {P0: 4, P1: 10, P2: 10}, stay=False)
    with DashboardServer(store, broker, Settings(port=0), actions=deciding) as server:
        hold_still(server)
        server.snapshots.take()
        yield server


@pytest.fixture
def browser(client: httpx.Client) -> Browser:
    return Browser(client)


@pytest.fixture
def letters(server: DashboardServer, store: OffsetStore) -> None:
    """Three letters of two errors; the server's fixture has written what is below them."""
    claim = store.claim(GROUP, topics=["payments"], mirror_every=None)
    advance(
        store,
        claim,
        {P0: OffsetRange(4, 6), P1: OffsetRange(10, 11)},
        [refused(4), refused(5), NewLetter(P1, 10, "raised", RAISED, 1, None, PAYLOAD)],
    )
    claim.close()


def refused(offset: int) -> NewLetter:
    return NewLetter(P0, offset, "refused", REFUSED, 3, None, PAYLOAD)


@pytest.fixture
def set_aside(server: DashboardServer, query: Query) -> None:
    """Rows 1 and 2 for one topic, and 3 for another, which Kafka refuses."""
    for row, topic in enumerate(("events", "events", "others"), 1):
        query(
            "INSERT INTO outbox_refused (id, consumer_group, topic, created_at, error) "
            f"VALUES ({row}, '{GROUP}', '{topic}', now(), 'Kafka has no topic {topic}')"
        )
    server.snapshots.take()


def discard_a_row(store: OffsetStore) -> None:
    store.discard_refused(GROUP, [1], reason="someone else")


def give_up_another(store: OffsetStore) -> None:
    """Let a job write one more letter of the same error as the first two."""
    claim = store.claim(GROUP, topics=["payments"], mirror_every=None)
    advance(store, claim, {P0: OffsetRange(6, 7)}, [refused(6)])
    claim.close()


def reset_offsets(store: OffsetStore) -> None:
    store.reset(GROUP, {P0: 3}, reason="someone else")


def pause_again(store: OffsetStore) -> None:
    store.pause(GROUP, reason="a restore runs")


def owner_of(store: OffsetStore) -> GroupRow:
    owner = store.owner(GROUP)
    assert owner is not None
    return owner


def state_of(store: OffsetStore) -> tuple[Any, ...]:
    """All that a decision could change."""
    owner = owner_of(store)
    return store.offsets(GROUP), store.history(GROUP), owner.token, owner.pause, store.letters(GROUP).letters


def offsets(store: OffsetStore) -> dict[TopicPartition, int]:
    return {tp: row.next_offset for tp, row in store.offsets(GROUP).items()}


def decided(store: OffsetStore, event: str) -> list[HistoryEvent]:
    return store.history(GROUP, events=[event])


def plan_reset(browser: Browser, **fields: str) -> Page:
    return browser.open("/actions/reset/plan", **{"group": GROUP, "to": "earliest", **fields})


# --- evidence of loss


@pytest.mark.behaviour("START-25")
def test_a_reset_shows_the_evidence_of_loss_that_it_accepts(browser: Browser, store: OffsetStore) -> None:
    with transaction(store.database, name="test", lock_timeout=5) as session:
        session.write_suspects(GROUP, owner_of(store).token, {P0: "the log ended at 3"})
    plan = plan_reset(browser, to="current")
    assert "pins the offsets, and accepts the loss" in plan.text
    assert "The reset would accept this loss" in plan.text
    assert re.search(r"payments\S*0: the log lost records that had been read: the log ended at 3", plan.text)
    done = browser.send(plan, **ANSWER)
    assert "The reset accepted this loss" in done.text
    assert store.offsets(GROUP)[P0].suspect is None
    assert "loss" not in plan_reset(browser, to="current").text


# --- each decision ------------------------------------------------------------------------------------------------


def test_a_reset_is_planned_and_then_done(browser: Browser, store: OffsetStore, broker: StaticBroker) -> None:
    before = state_of(store)
    form = browser.open("/actions/reset", group=GROUP)
    plan = browser.send(form, to="offset", value="3", topic="payments", partition="0")
    assert plan.status == 200
    assert "read 1 offset again" in plan.text
    assert re.search(r"payments\S*0 4 3 -1 0 10", plan.text)
    assert state_of(store) == before

    done = browser.send(plan, **ANSWER)
    assert done.status == 200
    assert "Done: billing will read 1 offset again, in 1 partition." in done.text
    assert offsets(store) == {P0: 3, P1: 10, P2: 10}
    [event] = decided(store, "reset")
    assert (event.from_offset, event.to_offset, event.reason) == (4, 3, ANSWER["reason"])
    host = browser.origin.removeprefix("http://")
    assert event.actor.startswith(f"dashboard at {host}, ")
    assert broker.asked == [GROUP, GROUP]


def test_who_decides_may_say_so(browser: Browser, store: OffsetStore) -> None:
    browser.send(browser.send(browser.open("/actions/pause", group=GROUP)), who=" ana ", **ANSWER)
    [event] = decided(store, "pause")
    assert event.actor.startswith("ana, dashboard at ")


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"to": "earliest"}, (0, 0, 0)),
        ({"to": "latest"}, (10, 10, 10)),
        ({"to": "current"}, (4, 10, 10)),
        ({"to": "latest", "topic": "payments", "partition": "0"}, (10, 10, 10)),
        ({"to": "offset", "value": " 2 ", "topic": "payments"}, (2, 2, 2)),
        ({"to": "shift", "value": "-2"}, (2, 8, 8)),
        ({"to": "shift", "value": "+3", "topic": "payments", "partition": "0"}, (7, 10, 10)),
    ],
)
def test_each_place_to_reset_to(
    browser: Browser, store: OffsetStore, fields: dict[str, str], expected: tuple[int, int, int]
) -> None:
    done = browser.send(plan_reset(browser, **fields), **ANSWER)
    assert done.status == 200
    assert tuple(offsets(store).values()) == expected


def test_a_duration_leads_to_the_time_that_the_plan_shows(
    browser: Browser, store: OffsetStore, broker: StaticBroker
) -> None:
    """Else it would be another one when the form is sent."""
    broker.current = replace(broker.current, timestamps=dict.fromkeys((P0, P1, P2), 5))  # the answer to any time
    plan = plan_reset(browser, to="duration", value="pt5m30s")
    assert plan.form.fields["to"] == "time"
    at = datetime.fromisoformat(plan.form.fields["value"])
    assert timedelta(minutes=5) < datetime.now(UTC) - at < timedelta(minutes=6)
    assert browser.send(plan, **ANSWER).status == 200
    assert offsets(store) == {P0: 5, P1: 5, P2: 5}


def test_a_pause_and_its_end(browser: Browser, store: OffsetStore) -> None:
    before = state_of(store)
    plan = browser.send(browser.open("/actions/pause", group=GROUP), until="PT2H")
    assert "No job is live" in plan.text
    assert state_of(store) == before
    assert "billing is paused until" in browser.send(plan, **ANSWER).text
    pause = owner_of(store).pause
    assert pause is not None
    assert pause.until is not None
    assert timedelta(hours=1) < pause.until - datetime.now(UTC) < timedelta(hours=3)
    [event] = decided(store, "pause")
    assert event.reason.endswith(ANSWER["reason"])

    before = state_of(store)
    plan = browser.send(browser.open("/actions/resume", group=GROUP))
    assert str(pause) in plan.text
    assert state_of(store) == before
    assert "Resumed" in browser.send(plan, **{**ANSWER, "reason": "it is over"}).text
    assert [event.reason for event in decided(store, "resume")] == ["it is over"]
    assert "not paused" in browser.send(browser.open("/actions/resume", group=GROUP)).text


@pytest.mark.usefixtures("letters")
@pytest.mark.parametrize(("action", "state"), [("replay", "requested"), ("discard", "discarded")])
def test_a_letter_is_replayed_or_discarded(browser: Browser, store: OffsetStore, action: str, state: str) -> None:
    before = state_of(store)
    form = browser.open(f"/actions/{action}", group=GROUP, topic="payments", partition="0", offset="4", topic_id="")
    plan = browser.send(form)
    assert "1 dead letter would be" in plan.text
    assert "payments:0:4" in plan.text
    assert state_of(store) == before
    done = browser.send(plan, **ANSWER)
    assert "1 dead letter" in done.text
    assert {letter.offset: letter.state for letter in store.letters(GROUP).letters} == {4: state, 5: "dead", 10: "dead"}
    [event] = decided(store, action)
    assert ANSWER["reason"] in event.reason
    assert "payments:0:4" in event.reason


@pytest.mark.behaviour("OUT-6")
@pytest.mark.usefixtures("set_aside")
@pytest.mark.parametrize(
    ("action", "fields", "done", "left", "sent"),
    [
        ("outbox-retry", {}, "3 rows put back into the outbox.", [], ["events", "events", "others"]),
        ("outbox-retry", {"topic": " events "}, "2 rows put back into the outbox.", [3], ["events", "events"]),
        ("outbox-discard", {"row": "2"}, "1 row discarded.", [1, 3], []),
    ],
)
def test_rows_that_kafka_refuses_are_put_back_or_discarded(
    browser: Browser,
    store: OffsetStore,
    query: Query,
    *,
    action: str,
    fields: dict[str, str],
    done: str,
    left: list[int],
    sent: list[str],
) -> None:
    plan = browser.send(browser.open(f"/actions/{action}", group=GROUP), **fields)
    assert f"would be {done.partition(' row')[2].removeprefix('s').strip()}" in plan.text
    assert "Kafka has no topic events" in plan.text
    assert query("SELECT count(*) FROM outbox_refused") == [(3,)]
    assert browser.send(plan, **{**ANSWER, "typed": ""}).status == 400
    page = browser.open(f"/actions/{action}/plan", group=GROUP, **fields)
    assert done in browser.send(page, **ANSWER).text
    assert [row for (row,) in query("SELECT id FROM outbox_refused ORDER BY id")] == left
    assert [topic for (topic,) in query("SELECT topic FROM outbox ORDER BY id")] == sent
    [event] = decided(store, action)
    assert event.reason.endswith(ANSWER["reason"])


@pytest.mark.behaviour("OUT-6")
@pytest.mark.usefixtures("set_aside")
@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"row": "x"}, "is not a number"),
        ({"row": "9"}, "no such rows"),
        ({"row": "1", "topic": "events"}, "Name a row or a topic, not both."),
    ],
)
def test_rows_that_do_not_exist_are_refused(browser: Browser, fields: dict[str, str], text: str) -> None:
    again = browser.open("/actions/outbox-retry/plan", group=GROUP, **fields)
    assert (again.status, text in again.text) == (400, True)
    assert again.form.fields["row"] == fields["row"]


@pytest.mark.behaviour("OUT-6")
@pytest.mark.usefixtures("set_aside")
def test_the_group_s_page_leads_to_the_rows_that_kafka_refuses(browser: Browser) -> None:
    page = browser.client.get("/group", params={"group": GROUP})
    [link] = re.findall(r'href="([^"]+)">Look at them', page.text)
    assert "3 rows would be put back into the outbox." in browser.open(html.unescape(link)).text


@pytest.mark.usefixtures("letters")
@pytest.mark.parametrize(("action", "state"), [("replay", "requested"), ("discard", "discarded")])
def test_all_letters_of_one_error_are(browser: Browser, store: OffsetStore, action: str, state: str) -> None:
    choice = browser.open(f"/actions/{action}", group=GROUP)
    links = re.findall(rf'href="(/actions/{action}\?[^"]*constraint=positive[^"]*)"', choice.answer.text)
    [link] = links
    form = browser.open(link.replace("&amp;", "&"))
    plan = browser.send(form)
    assert "2 dead letters would be" in plan.text
    assert browser.send(plan, **ANSWER).status == 200
    assert {letter.offset: letter.state for letter in store.letters(GROUP).letters} == {4: state, 5: state, 10: "dead"}
    [event] = decided(store, action)
    assert "2 dead letters" in event.reason


@pytest.mark.usefixtures("letters")
def test_an_error_without_a_sqlstate_is_not_any_error(browser: Browser, store: OffsetStore) -> None:
    choice = browser.open("/actions/replay", group=GROUP)
    [link] = re.findall(r'href="(/actions/replay\?[^"]*ValueError[^"]*)"', choice.answer.text)
    plan = browser.send(browser.open(link.replace("&amp;", "&")))
    assert "1 dead letter would be" in plan.text
    assert plan.form.fields["sqlstate"] == ""
    browser.send(plan, **ANSWER)
    assert store.letter_counts(GROUP) == {"dead": 2, "requested": 1}


@pytest.mark.usefixtures("letters")
def test_letters_can_be_erased_and_forced(browser: Browser, store: OffsetStore) -> None:
    form = browser.open("/actions/discard", group=GROUP, topic="payments", partition="0", offset="4")
    plan = browser.send(form, erase="yes")
    assert "for good" in plan.text
    browser.send(plan, **ANSWER)
    assert store.letter(GROUP, P0, 4).payload_state == "erased"
    form = browser.open("/actions/replay", group=GROUP, topic="payments", partition="0", offset="5")
    browser.send(browser.send(form, forced="yes"), **ANSWER)
    assert store.letter(GROUP, P0, 5).forced
    assert [len(decided(store, event)) for event in ("erase", "replay")] == [1, 1]


@pytest.mark.usefixtures("letters")
def test_a_letter_that_is_settled_meanwhile_is_not_replayed(browser: Browser, store: OffsetStore) -> None:
    form = browser.open("/actions/replay", group=GROUP, topic="payments", partition="0", offset="4")
    plan = browser.send(form)
    store.discard(GROUP, LetterKey(P0, 4), reason="someone else")
    refused = browser.send(plan, **ANSWER)
    assert refused.status == 409
    assert "can't be replayed" in refused.text
    assert store.letter(GROUP, P0, 4).state == "discarded"


def test_what_was_done_is_shown_and_not_what_was_planned(browser: Browser, store: OffsetStore) -> None:
    claim = store.claim(GROUP, topics=["payments"], mirror_every=None)
    plan = plan_reset(browser, to="shift", value="-1", topic="payments", partition="0")
    advance(store, claim, {P0: OffsetRange(4, 8)})
    done = browser.send(plan, **ANSWER, fence="yes")
    assert re.search(r"payments\S*0 8 7 -1", done.text)
    assert offsets(store)[P0] == 7


def expect_new_plan(page: Page) -> None:
    """Nothing was done, and this is another plan, which has to be agreed to anew."""
    assert page.status == 409
    assert "The plan has changed since it was shown; nothing was done." in page.text
    assert page.form.fields["reason"] == ANSWER["reason"]
    assert not page.form.fields["typed"]
    assert page.form.fields.get("fence") is None


def test_the_job_that_the_plan_names_is_fenced_and_no_other(browser: Browser, store: OffsetStore) -> None:
    store.claim(GROUP, topics=["payments"], mirror_every=None)
    plan = plan_reset(browser)
    newer = store.claim(GROUP, topics=["payments"], mirror_every=None)
    again = browser.send(plan, **ANSWER, fence="yes")
    expect_new_plan(again)
    assert owner_of(store).token == newer.token
    assert browser.send(again, **ANSWER, fence="yes").status == 200


def test_a_silent_job_that_a_reset_would_fence_is_named(
    browser: Browser, store: OffsetStore, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeat, "INTERVAL", 3600)
    store.claim(GROUP, topics=["payments"], mirror_every=None)
    clock.put_forward(20)
    plan = plan_reset(browser)
    assert "The last job is silent" in plan.text
    assert browser.send(plan, **ANSWER).status == 200


@pytest.mark.usefixtures("letters")
def test_letters_that_come_after_the_plan_are_not_erased_unseen(browser: Browser, store: OffsetStore) -> None:
    plans = [browser.open(f"/actions/{action}/plan", group=GROUP, **ERROR) for action in ("discard", "replay")]
    give_up_another(store)
    again = browser.send(plans[0], **ANSWER)
    expect_new_plan(again)
    assert "3 dead letters would be" in again.text
    assert "If letters keep coming, pause the group first." in again.text
    assert store.letter_counts(GROUP) == {"dead": 4}
    assert "3 dead letters requested" in browser.send(plans[1], **ANSWER).text


@pytest.mark.behaviour("DLQ-18", "OPS-10")
@pytest.mark.usefixtures("letters", "set_aside")
@pytest.mark.parametrize(
    ("action", "fields", "method", "change"),
    [
        ("reset", {"to": "shift", "value": "-1"}, "lock_group", reset_offsets),
        ("pause", {"until": "PT2H"}, "lock_group", pause_again),
        ("resume", {}, "lock_group", pause_again),
        ("discard", ERROR, "share_group", give_up_another),
        ("discard", {**ERROR, "erase": "yes"}, "share_group", give_up_another),
        ("replay", {**ERROR, "forced": "yes"}, "share_group", give_up_another),
        ("outbox-retry", {}, "share_group", discard_a_row),
        ("outbox-discard", {"topic": "events"}, "share_group", discard_a_row),
    ],
)
def test_what_changes_right_before_the_lock_is_shown_first(
    browser: Browser,
    store: OffsetStore,
    monkeypatch: pytest.MonkeyPatch,
    *,
    action: str,
    fields: dict[str, str],
    method: str,
    change: Callable[[OffsetStore], None],
) -> None:
    store.pause(GROUP, reason="a deploy")
    plan = browser.open(f"/actions/{action}/plan", group=GROUP, **fields)
    lock = getattr(PostgresSession, method)
    changed: list[tuple[Any, ...]] = []

    def after_another(one: PostgresSession, group: str) -> Any:
        monkeypatch.setattr(PostgresSession, method, lock)
        change(store)
        changed.append(state_of(store))
        return lock(one, group)

    monkeypatch.setattr(PostgresSession, method, after_another)
    again = browser.send(plan, **ANSWER)
    expect_new_plan(again)
    assert [state_of(store)] == changed
    assert browser.send(again, **ANSWER).status == 200
    assert [state_of(store)] != changed


def test_the_pages_soon_show_what_was_done(browser: Browser, server: DashboardServer) -> None:
    browser.send(browser.send(browser.open("/actions/pause", group=GROUP)), **ANSWER)
    wait_until(lambda: server.snapshots.latest().groups[GROUP].state == "paused")


@pytest.mark.usefixtures("letters")
def test_letters_of_a_paused_group_wait_for_its_end(browser: Browser, store: OffsetStore) -> None:
    store.claim(GROUP, topics=["payments"], mirror_every=None)
    store.pause(GROUP, reason="a restore runs")
    form = browser.open("/actions/replay", group=GROUP, topic=" payments ", partition="0", offset="4")
    plan = browser.send(form)
    assert plan.form.fields["topic_id"] == ""  # the letter that is shown, should another of that offset come
    assert "The group is paused: they are replayed once it is resumed." in plan.text
    assert "The group is paused: they are replayed once it is resumed." in browser.send(plan, **ANSWER).text


@pytest.mark.parametrize("is_restored", [False, True])
def test_decisions_do_not_go_to_another_store_than_the_one_that_is_shown(
    store: OffsetStore, broker: StaticBroker, monkeypatch: pytest.MonkeyPatch, *, is_restored: bool
) -> None:
    """A dump that was restored keeps the store's id."""
    give(store, GROUP, {P0: 4}, stay=False)
    with (
        InMemoryOffsetStore() as other,
        DashboardServer(store, broker, Settings(port=0), actions=Deciding(other, broker)) as server,
        httpx.Client(base_url=server.url, timeout=60) as client,
    ):
        server.snapshots.take()
        if is_restored:
            restored = replace(store.database.identity(), here="7370000000000000000:16384")
            monkeypatch.setattr(other.database, "identity", lambda: restored)
        refused = plan_reset(Browser(client))
        assert refused.status == 400
        assert "--actions-url points to a different store" in refused.text


def test_a_live_job_is_fenced_only_if_that_is_chosen(browser: Browser, store: OffsetStore) -> None:
    claim = store.claim(GROUP, topics=["payments"], mirror_every=None)
    plan = plan_reset(browser)
    assert "A job is live" in plan.text
    assert "StaleClaim" in plan.text
    assert "are in what is done, not in this plan" in plan.text
    assert plan.form.ticks == {"fence"}
    before = state_of(store)
    refused = browser.send(plan, **ANSWER)
    assert refused.status == 409
    assert "a job of group 'billing' is live; nothing was written. Found " in refused.text
    assert "s ago. Stop it first, or tick" in refused.text
    assert "Fence the live job" in refused.text
    assert refused.form.fields["reason"] == ANSWER["reason"]
    assert state_of(store) == before

    done = browser.send(refused, **ANSWER, fence="yes")
    assert done.status == 200
    assert "Fenced the live job" in done.text
    assert offsets(store) == {P0: 0, P1: 0, P2: 0}
    assert owner_of(store).token != claim.token


def test_a_job_that_starts_after_the_plan_is_not_fenced_either(browser: Browser, store: OffsetStore) -> None:
    plan = plan_reset(browser)
    assert not plan.form.ticks
    store.claim(GROUP, topics=["payments"], mirror_every=None)
    refused = browser.send(plan, **ANSWER)
    assert refused.status == 409
    assert refused.form.ticks == {"fence"}
    assert not decided(store, "reset")


def test_a_live_job_keeps_its_claim_when_it_is_paused(browser: Browser, store: OffsetStore) -> None:
    claim = store.claim(GROUP, topics=["payments"], mirror_every=None)
    plan = browser.send(browser.open("/actions/pause", group=GROUP))
    assert "A job is live" in plan.text
    assert not plan.form.ticks
    assert browser.send(plan, **ANSWER).status == 200
    assert owner_of(store).token == claim.token


# --- what is refused ----------------------------------------------------------------------------------------------


def test_without_leave_there_are_no_actions(store: OffsetStore, broker: StaticBroker) -> None:
    give(store, GROUP, {P0: 4})
    with (
        DashboardServer(store, broker, Settings(port=0)) as server,
        httpx.Client(base_url=server.url, timeout=60) as client,
    ):
        browser = Browser(client)
        assert browser.open("/actions/reset", group=GROUP).status == 404
        assert plan_reset(browser).status == 404
        assert browser.post("/actions/reset/execute", {"group": GROUP, **ANSWER}).status == 404


@pytest.mark.parametrize(
    ("entered", "field"),
    [
        ({"reason": ANSWER["reason"]}, "typed"),
        ({"reason": ANSWER["reason"], "typed": ""}, "typed"),
        ({"reason": ANSWER["reason"], "typed": "shipping"}, "typed"),
        ({"reason": ANSWER["reason"], "typed": "Billing"}, "typed"),
        ({"typed": GROUP}, "reason"),
        ({"typed": GROUP, "reason": " \t"}, "reason"),
        ({"typed": GROUP, "reason": "x" * 1001}, "reason"),
        ({**ANSWER, "who": "x" * 1001}, "who"),
    ],
)
def test_a_reason_and_the_groups_name_are_asked_for(
    browser: Browser, store: OffsetStore, entered: dict[str, str], field: str
) -> None:
    give(store, "shipping", {P0: 1})
    plan = plan_reset(browser)
    again = browser.send(plan, **entered)
    assert again.status == 400
    assert f"{field}-wrong" in again.reader.described[field]
    assert f"{field}-wrong" in again.reader.ids
    kept = {name: text for name, text in entered.items() if name != field}
    assert {name: again.form.fields[name] for name in kept} == kept
    assert not decided(store, "reset")
    assert browser.send(again, **{"who": "", **ANSWER}).status == 200  # with the ticket of this page
    assert len(decided(store, "reset")) == 3


def test_a_form_can_be_sent_once(browser: Browser, store: OffsetStore) -> None:
    plan = plan_reset(browser)
    assert browser.send(plan, **ANSWER).status == 200
    again = browser.send(plan, **ANSWER)
    assert again.status == 403
    assert "sent already" in again.text
    assert len(decided(store, "reset")) == 3


def test_a_form_can_be_sent_for_fifteen_minutes(browser: Browser, store: OffsetStore, now: list[float]) -> None:
    late, in_time = plan_reset(browser), plan_reset(browser)
    now[0] += LIFETIME - 1
    assert browser.send(in_time, **ANSWER).status == 200
    now[0] += 1
    refused = browser.send(late, **ANSWER)
    assert refused.status == 403
    assert "older than 15 minutes" in refused.text
    assert len(decided(store, "reset")) == 3


@pytest.mark.parametrize(
    "changed",
    [
        {"to": "latest"},
        {"value": "1"},
        {"partition": "1"},
        {"topic": ""},
        {"until": "2099-01-01T00:00Z"},
        {"premise": "x"},
        {"premise": ""},
        {"group": "shipping", "typed": "shipping"},
        {"ticket": ""},
        {"ticket": "1.2"},
        {"ticket": "9999999999.x.y"},
        {"ticket": "²٣.é.ü"},
        {"ticket": "9" * 5000 + ".x.y"},
    ],
)
def test_a_form_that_was_changed_after_the_plan_is_refused(
    browser: Browser, store: OffsetStore, changed: dict[str, str]
) -> None:
    give(store, "shipping", {P0: 4}, stay=False)
    plan = plan_reset(browser, to="earliest", topic="payments", partition="0")
    refused = browser.send(plan, **{**ANSWER, **changed})
    assert refused.status == 403
    assert "does not come from this server" in refused.text
    assert not decided(store, "reset")
    assert not store.history("shipping", events=["reset"])
    assert browser.send(plan, **ANSWER).status == 200  # it was not used up


def test_a_ticket_is_good_for_its_own_action(browser: Browser, store: OffsetStore) -> None:
    pause = browser.send(browser.open("/actions/pause", group=GROUP))
    assert browser.post("/actions/resume/execute", {**pause.form.fields, **ANSWER}).status == 403
    changed = pause.form.fields["ticket"][:-1] + ("0" if pause.form.fields["ticket"][-1] != "0" else "1")
    assert browser.send(pause, **ANSWER, ticket=changed).status == 403
    assert not decided(store, "pause")


def test_used_tickets_are_forgotten_with_their_time_and_not_before(now: list[float]) -> None:
    tickets = Tickets(lambda: now[0])
    first = [tickets.issue("pause", GROUP, {}) for _ in range(MOST_USED)]
    for ticket in first:
        tickets.take(ticket, "pause", GROUP, {})
    more = tickets.issue("pause", GROUP, {})
    with pytest.raises(TicketRefused, match="Too many"):
        tickets.take(more, "pause", GROUP, {})
    now[0] += LIFETIME
    tickets.take(tickets.issue("pause", GROUP, {}), "pause", GROUP, {})
    with pytest.raises(TicketRefused, match="older"):
        tickets.take(first[0], "pause", GROUP, {})


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"to": "nowhere"}, "to"),
        ({"to": "offset", "value": ""}, "value"),
        ({"to": "offset", "value": "-1"}, "value"),
        ({"to": "offset", "value": "1_0"}, "value"),
        ({"to": "offset", "value": "9" * 5000}, "value"),
        ({"to": "offset", "value": "9223372036854775808"}, "value"),
        ({"to": "shift", "value": "many"}, "value"),
        ({"to": "time", "value": "yesterday"}, "value"),
        ({"to": "time", "value": "2025-03-01T00:00"}, "value"),
        ({"to": "duration", "value": "2h"}, "value"),
        ({"to": "duration", "value": "P9999999D"}, "value"),
        ({"to": "duration", "value": "P99999999999999999999D"}, "value"),
        ({"to": "earliest", "value": "5"}, "value"),
        ({"partition": "0"}, "topic"),
        ({"topic": "payments", "partition": "x"}, "partition"),
        ({"topic": "payments", "partition": "2147483648"}, "partition"),
    ],
)
def test_a_field_that_makes_no_sense_is_named_and_what_was_entered_is_kept(
    browser: Browser, fields: dict[str, str], field: str
) -> None:
    again = plan_reset(browser, **fields)
    assert again.status == 400
    assert f"{field}-wrong" in again.reader.described[field]
    assert f"{field}-wrong" in again.reader.ids
    kept = {"to": "earliest", **fields}
    assert {name: again.form.fields[name] for name in kept if name != "to"} == {
        name: text for name, text in kept.items() if name != "to"
    }


@pytest.mark.parametrize("until", ["soon", "2020-01-01T00:00Z", "2099-01-01", "P9999999D", "9999-12-31T23:59-14:00"])
def test_a_pause_without_a_sensible_end_is_refused(browser: Browser, store: OffsetStore, until: str) -> None:
    again = browser.send(browser.open("/actions/pause", group=GROUP), until=until)
    assert again.status == 400
    assert again.form.fields["until"] == until
    assert "until-wrong" in again.reader.described["until"]
    assert not decided(store, "pause")


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"offset": "4"},
        {"offset": "4", "topic": "payments"},
        {"offset": "x", "topic": "payments", "partition": "0"},
        {"cause": "none"},
    ],
)
@pytest.mark.parametrize("action", ["replay", "discard"])
def test_letters_have_to_be_named(browser: Browser, action: str, fields: dict[str, str]) -> None:
    again = browser.open(f"/actions/{action}/plan", group=GROUP, **fields)
    assert again.status == 400
    assert "trouble-of-form" in again.reader.ids


@pytest.mark.parametrize(
    ("fields", "status", "text"),
    [
        ({"to": "offset", "value": "11"}, 400, "the log does not hold offset 11. Expected from 0 to 10."),
        ({"to": "shift", "value": "-5"}, 400, "the shift goes below offset 0"),
        ({"topic": "other"}, 400, "the store has no offsets of topic 'other' for group 'billing'"),
        ({"group": "nobody"}, 404, "the store has no offsets of group 'nobody'"),
    ],
)
def test_what_the_library_refuses_is_shown_with_its_next_step(
    browser: Browser, fields: dict[str, str], status: int, text: str
) -> None:
    refused = plan_reset(browser, **fields)
    assert refused.status == status
    assert text in refused.text


def test_a_letter_that_there_is_not(browser: Browser) -> None:
    fields = {"group": GROUP, "topic": "payments", "partition": "0", "offset": "1"}
    refused = browser.open("/actions/replay/plan", **fields)
    assert refused.status == 404
    assert "has no dead letter of offset 1" in refused.text
    assert refused.form.fields["offset"] == "1"


def test_kafka_that_does_not_answer_is_said_so(browser: Browser, broker: StaticBroker, store: OffsetStore) -> None:
    plan = plan_reset(browser)
    broker.error = BrokerUnavailable("Kafka did not answer within 15 s")
    assert plan_reset(browser).status == 503
    refused = browser.send(plan, **ANSWER)
    assert refused.status == 503
    assert "Kafka did not answer within 15 s" in refused.text
    assert not decided(store, "reset")


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (MissingPrivilege("the role may not write consumer_groups"), 403),
        (LockTimeout("could not acquire the lock within 10 s"), 503),
    ],
)
def test_what_the_database_refuses_is_said_so(
    browser: Browser, monkeypatch: pytest.MonkeyPatch, error: Exception, status: int
) -> None:
    def fail(*_arguments: object, **_named: object) -> None:
        raise error

    plan = browser.send(browser.open("/actions/pause", group=GROUP))
    monkeypatch.setattr(actions, "carry_out", fail)
    refused = browser.send(plan, **ANSWER)
    assert refused.status == status
    assert str(error).partition(".")[0] in refused.text


def test_nobody_decides_without_the_token_or_from_another_site(
    store: OffsetStore, broker: StaticBroker, deciding: Deciding
) -> None:
    give(store, GROUP, {P0: 4}, stay=False)
    token = "t0ken-" * 6
    signed = {"Authorization": f"Bearer {token}"}
    with (
        DashboardServer(store, broker, Settings(port=0, token=token), actions=deciding) as server,
        httpx.Client(base_url=server.url, timeout=60) as client,
        httpx.Client(base_url=server.url, headers=signed, timeout=60) as ours,
    ):
        server.snapshots.take()
        [form] = [one for one in plan_reset(Browser(ours)).reader.forms if "ticket" in one.fields]
        sent = {**form.fields, **ANSWER}
        before = state_of(store)

        def post(by: httpx.Client, origin: str) -> int:
            return by.post("/actions/reset/execute", data=sent, headers={"Origin": origin}).status_code

        own = Browser(ours).origin
        assert post(client, own) == 401
        assert post(ours, "http://evil.example") == 403
        assert post(client, "http://evil.example") == 403
        assert state_of(store) == before
        assert post(ours, own) == 200
        assert state_of(store) != before


@pytest.mark.parametrize("action", ["none", "RESET", "reset/none"])
def test_there_are_no_other_actions(browser: Browser, action: str) -> None:
    assert browser.open(f"/actions/{action}", group=GROUP).status == 404
    assert browser.open(f"/actions/{action}/plan", group=GROUP).status == 404
    assert browser.post(f"/actions/{action}/execute", {"group": GROUP}).status == 404


@pytest.mark.parametrize("body", [b"", b"group=", b"group=%00", b"\xff\xfe", b"a" * 70_000])
def test_a_body_that_is_no_form_is_refused(client: httpx.Client, browser: Browser, body: bytes) -> None:
    answer = client.post("/actions/reset/execute", content=body, headers={"Origin": browser.origin})
    assert answer.status_code == (413 if len(body) > 65_536 else 400)
    assert browser.open("/actions/reset/plan").status == 400


# --- the pages ----------------------------------------------------------------------------------------------------


@pytest.mark.behaviour("DASH-4")
def test_names_are_inert_in_forms(store: OffsetStore, server: DashboardServer, browser: Browser) -> None:
    name = '"><script>alert(1)</script>\u202e'
    give(store, name, {P0: 4}, stay=False)
    server.snapshots.take()
    form = browser.open("/actions/reset", group=name)
    assert form.form.fields["group"] == name
    plan = browser.send(form, to="earliest")
    done = browser.send(plan, reason="<b>why</b>", typed=name.replace("\u202e", "\\u202e"))
    assert done.status == 200
    refused = browser.send(plan, reason="again", typed=name)
    for page in (form, plan, done, refused):
        assert "<script>alert" not in page.answer.text
        assert "<b>why" not in page.answer.text
    assert [event.reason for event in store.history(name, events=["reset"])] == ["<b>why</b>"]


@pytest.mark.parametrize("name", ["two\nlines", "two\r\nlines", "two\rlines"])
def test_a_line_break_in_a_name_survives_the_browser(
    store: OffsetStore, server: DashboardServer, browser: Browser, name: str
) -> None:
    give(store, name, {P0: 4}, stay=False)
    server.snapshots.take()
    plan = browser.send(browser.open("/actions/pause", group=name))
    typed = name.encode("unicode_escape").decode()
    assert f"Type it: {typed}" in plan.text
    assert browser.send(plan, reason="maintenance", typed=typed).status == 200
    assert len(store.history(name, events=["pause"])) == 1
    assert browser.open("/history", group="two\r\nlines").status == 200  # as the filter's form sends it


def test_a_name_of_blanks_has_to_be_typed(store: OffsetStore, server: DashboardServer, browser: Browser) -> None:
    give(store, "   ", {P0: 4}, stay=False)
    server.snapshots.take()
    plan = browser.send(browser.open("/actions/pause", group="   "))
    again = browser.send(plan, reason="maintenance", typed="")
    assert again.status == 400
    assert browser.send(again, reason="maintenance", typed="   ").status == 200


@pytest.mark.behaviour("DASH-5")
@pytest.mark.usefixtures("letters", "set_aside")
@pytest.mark.parametrize("action", DECISIONS)
def test_each_field_has_a_label_and_what_describes_it(browser: Browser, action: str) -> None:
    fields = {"topic": "payments", "partition": "0", "offset": "4"} if action in {"replay", "discard"} else {}
    empty = browser.open(f"/actions/{action}", group=GROUP)
    form = browser.open(f"/actions/{action}", group=GROUP, **fields)
    plan = browser.send(form)
    wrong = Page(plan.answer) if action == "resume" else browser.send(plan)
    for page in (empty, form, plan, wrong):
        for one in page.reader.forms:
            assert one.fields.keys() | one.ticks <= one.labelled
        assert {name for names in page.reader.described.values() for name in names} <= page.reader.ids
        assert "refresh.js" not in page.answer.text  # a plan is of one moment, and was not asked for with GET
        assert "style=" not in page.answer.text


def test_a_decision_that_is_not_read_yet_is_not_taken_for_another(broker: StaticBroker) -> None:
    with pytest.raises(KeyError, match="prune"):
        read("prune", ERROR, Answers(GROUP, GROUP, broker))


@pytest.mark.usefixtures("letters")
def test_other_pages_link_to_what_is_allowed(browser: Browser, store: OffsetStore) -> None:
    macros = '{% import "actions.html" as actions with context %}'
    shown = "{{ actions.of_group(group) }}{{ actions.of_error(group, which) }}{{ actions.of_letter(group, letter) }}"
    template = environment().from_string(macros + shown)
    [letter] = store.letters(GROUP, cause="raised").letters
    values = {"group": GROUP, "which": store.letter_errors(GROUP)[0].which, "letter": letter}
    assert "href" not in template.render(values, has_actions=False)
    links = [html.unescape(one) for one in re.findall(r'href="([^"]+)"', template.render(values, has_actions=True))]
    assert len(links) == 7 + 2 + 2
    assert {browser.open(link).status for link in links} == {200}
    for link, text in zip(links[7:], ("2 dead letters",) * 2 + ("1 dead letter",) * 2, strict=True):
        assert f"{text} would be" in browser.send(browser.open(link)).text
    settled = replace(letter, state="discarded")
    assert len(re.findall("href", template.render({**values, "letter": settled}, has_actions=True))) == 7 + 2


def test_a_plan_of_many_partitions_is_short(
    store: OffsetStore, server: DashboardServer, browser: Browser, broker: StaticBroker
) -> None:
    many = {TopicPartition("many", number): 1 for number in range(300)}
    for tp in many:
        broker.set_log(tp, 0, 10)
    give(store, GROUP, many, stay=False)
    server.snapshots.take()
    plan = browser.send(browser.open("/actions/reset", group=GROUP), to="earliest", topic="many")
    assert "read 300 offsets again" in plan.text
    assert "And 200 more." in plan.text
    assert len(re.findall(r'scope="row"', plan.answer.text)) == 100


def test_of_requests_at_the_same_time_one_alone_gets_through() -> None:
    tickets = Tickets()
    ticket = tickets.issue("pause", GROUP, {})

    def take(_number: int) -> bool:
        try:
            tickets.take(ticket, "pause", GROUP, {})
        except TicketRefused:
            return False
        return True

    with ThreadPoolExecutor(16) as threads:
        assert sum(threads.map(take, range(200))) == 1


def test_what_was_done_is_never_shown_as_failed(
    browser: Browser, store: OffsetStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is asked of the database once the decision is there."""
    plan = browser.send(browser.open("/actions/pause", group=GROUP))

    def then_fail(*given: Any, **named: Any) -> Any:
        done = carry_out(*given, **named)
        monkeypatch.setattr(store, "owner", Mock(side_effect=AssertionError("it was asked")))
        return done

    monkeypatch.setattr(actions, "carry_out", then_fail)
    answer = browser.send(plan, **ANSWER)
    assert answer.status == 200
    assert "billing is paused until it is resumed." in answer.text


def test_an_error_without_a_cause_is_none(browser: Browser) -> None:
    """It would be every letter."""
    page = browser.send(browser.open("/actions/discard", group=GROUP, cause=""))
    assert page.status == 400
    assert "A dead letter has no such cause." in page.text

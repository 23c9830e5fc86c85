"""Decisions on the pages: a plan that writes nothing, what an answer to it must bring, and what is then done."""

from __future__ import annotations

import html
import re
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import httpx
import pytest

from offsetstore import LetterError, OffsetRange, OffsetStore, TopicPartition
from offsetstore.errors import (
    BrokerUnavailable,
    ConfigurationError,
    DeadLetterError,
    LockTimeout,
    MissingPrivilege,
    OffsetOutOfRange,
    UnknownGroup,
    UnknownLetter,
)
from offsetstore.monitoring.dashboard.context import Deciding, environment
from offsetstore.monitoring.dashboard.forms import DECISIONS
from offsetstore.monitoring.dashboard.serving import DashboardServer, DashboardSettings
from offsetstore.monitoring.dashboard.views import actions
from offsetstore.operations.operation import carry_out
from offsetstore.protocol.database import GroupRow, HistoryEvent
from offsetstore.protocol.letters import NewLetter, Payload
from offsetstore.store.sessions import transaction
from offsetstore.testing import InMemoryOffsetStore, StaticBroker
from tests.integration.conftest import Query
from tests.integration.pages.conftest import GROUP, NO_TLS, P0, P1, P2, advance, give, hold_still
from tests.support.page_forms import Browser, Page
from tests.support.waiting import wait_until

pytestmark = pytest.mark.behaviour("DASH-3")

ANSWER = {"reason": "wrong rates, ticket 17", "typed": GROUP}
REFUSED = LetterError("RowsRefused", "", "23514", "public.results", "positive")
RAISED = LetterError("ValueError", "")
ERROR = {"cause": "refused", "error_class": "RowsRefused"}
PAYLOAD = Payload(b"key", b"value", None, None, None)


@pytest.fixture
def deciding(offsetstore_database: str, broker: StaticBroker) -> Iterator[Deciding]:
    with OffsetStore.connect(offsetstore_database) as store:
        yield Deciding(store, broker)


@pytest.fixture
def server(store: OffsetStore, broker: StaticBroker, deciding: Deciding) -> Iterator[DashboardServer]:
    """Pages on which one may decide about `billing`, whose job has left: at 4, 10 and 10 of 10."""
    give(store, GROUP, {P0: 4, P1: 10, P2: 10}, stay=False)
    with DashboardServer(store, broker, DashboardSettings(port=0), actions=deciding) as server:
        hold_still(server)
        server.snapshots.take()
        yield server


@pytest.fixture
def browser(client: httpx.Client) -> Browser:
    return Browser(client)


@pytest.fixture
def letters(server: DashboardServer, store: OffsetStore) -> None:
    """Three letters of two errors; the server's fixture has written what is below them."""
    raised = NewLetter(P1, 10, "raised", RAISED, 1, None, PAYLOAD)
    give_up(store, {P0: OffsetRange(4, 6), P1: OffsetRange(10, 11)}, refused(4), refused(5), raised)


def refused(offset: int) -> NewLetter:
    return NewLetter(P0, offset, "refused", REFUSED, 3, None, PAYLOAD)


def give_up(store: OffsetStore, ranges: dict[TopicPartition, OffsetRange], *letters: NewLetter) -> None:
    """Let a job pass these offsets with these letters, and leave."""
    claim = store.claim(GROUP, topics=["payments"], mirror_every=None)
    advance(store, claim, ranges, letters)
    claim.close()


@pytest.fixture
def set_aside(server: DashboardServer, query: Query) -> None:
    """Rows 1 and 2 for one topic, and 3 for another, which Kafka refuses."""
    for row, topic in enumerate(("events", "events", "others"), 1):
        query(
            "INSERT INTO outbox_refused (id, consumer_group, topic, created_at, error) "
            f"VALUES ({row}, '{GROUP}', '{topic}', now(), 'Kafka has no topic {topic}')"
        )
    server.snapshots.take()


WAITING = f"INSERT INTO outbox (id, consumer_group, topic) OVERRIDING SYSTEM VALUE VALUES (50, '{GROUP}', 'events')"


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


@contextmanager
def browsing(store: OffsetStore, broker: StaticBroker, actions: Deciding | None = None) -> Generator[Browser]:
    """The pages of another server."""
    with (
        DashboardServer(store, broker, DashboardSettings(port=0), actions=actions) as server,
        httpx.Client(base_url=server.url, timeout=60, verify=NO_TLS) as client,
    ):
        server.snapshots.take()
        yield Browser(client)


def plan_reset(browser: Browser, **fields: str) -> Page:
    return browser.open("/actions/reset/plan", **{"group": GROUP, "to": "earliest", **fields})


# --- each decision ------------------------------------------------------------------------------------------------

LETTER = {"topic": "payments", "partition": "0", "offset": "4"}
TO_3 = {"to": "offset", "value": "3", "topic": "payments", "partition": "0"}


@pytest.mark.behaviour("DASH-5", "OUT-6", "OUT-10")
@pytest.mark.usefixtures("letters", "set_aside")
@pytest.mark.parametrize(
    ("action", "chosen", "entered", "planned", "done"),
    [
        ("reset", {}, TO_3, r"read 3 offsets again.* payments\S*0 6 3 -3 0 10", "Done: billing will read 3 offsets"),
        ("pause", {}, {"until": "2099-03-01T00:00Z"}, "No job is live", "billing is paused until 2099-03-01"),
        ("resume", {}, {}, "a deploy", "Resumed"),
        ("replay", LETTER, {}, "1 dead letter would be.* payments:0:4", "1 dead letter"),
        ("discard", LETTER, {"erase": "yes"}, "1 dead letter would be.* for good", "1 dead letter"),
        ("outbox-retry", {}, {"topic": " events "}, "2 rows would be put back.* no topic events", "2 rows put back"),
        ("outbox-discard", {}, {"row": "2"}, "1 row would be discarded.", "1 row discarded."),
        ("outbox-set-aside", {}, {"row": "50"}, "1 row would be set aside.* sent before them.", "1 row set aside."),
    ],
)
def test_each_decision_is_planned_and_then_done(
    browser: Browser,
    store: OffsetStore,
    query: Query,
    *,
    action: str,
    chosen: dict[str, str],
    entered: dict[str, str],
    planned: str,
    done: str,
) -> None:
    query(WAITING)
    store.pause(GROUP, reason="a deploy")
    before = state_of(store)
    form = browser.open(f"/actions/{action}", group=GROUP, **chosen)
    plan = browser.send(form, **entered)
    assert plan.status == 200
    assert re.search(planned, plan.text)
    wrong = browser.send(plan)
    assert wrong.status == 400
    assert state_of(store) == before
    assert query("SELECT (SELECT count(*)::int FROM outbox), (SELECT count(*)::int FROM outbox_refused)") == [(1, 3)]

    answer = browser.send(wrong, who=" ana ", **ANSWER)  # with the ticket of this page
    assert answer.status == 200
    assert done in answer.text
    event = decided(store, "erase" if "erase" in entered else action)[-1]
    assert event.reason.endswith(ANSWER["reason"])
    assert event.actor.startswith(f"ana, dashboard at {browser.origin.removeprefix('http://')}, ")

    for page in (browser.open(f"/actions/{action}", group=GROUP), form, plan, wrong):
        for one in page.reader.forms:
            assert one.fields.keys() | one.ticks <= one.labelled
        assert {name for names in page.reader.described.values() for name in names} <= page.reader.ids
        assert "refresh.js" not in page.answer.text  # a plan is of one moment, and was not asked for with GET
        assert "style=" not in page.answer.text


@pytest.mark.behaviour("OUT-14")
def test_rows_of_an_application_are_decided_about_from_the_store_s_page(
    browser: Browser, store: OffsetStore, server: DashboardServer, query: Query
) -> None:
    """Nothing on these pages leads to the pages of a group, which it is not."""
    assert browser.open("/actions/outbox-retry", group="shop").status == 404
    query("INSERT INTO outbox (consumer_group, topic) VALUES ('shop', 'orders')")
    server.snapshots.take()
    assert 'href="/actions/outbox-set-aside?group=shop"' in browser.open("/store").answer.text
    assert browser.open("/actions/pause", group="shop").status == 404
    form = browser.open("/actions/outbox-set-aside", group="shop")
    plan = browser.send(form, topic="orders")
    assert "1 row would be set aside" in plan.text
    wrong = browser.send(plan, reason="ticket 17", typed=GROUP)
    assert wrong.status == 400
    done = browser.send(wrong, reason="ticket 17", typed="shop")
    assert "1 row set aside." in done.text
    assert "offsetstore history -g shop has it" in done.text
    for page in (form, plan, wrong, done):
        assert "/group?" not in page.answer.text
    assert [event.event for event in store.history("shop")] == ["outbox-set-aside"]


def test_each_decision_is_in_the_table() -> None:
    marks = vars(test_each_decision_is_planned_and_then_done)["pytestmark"]
    assert [[row[0] for row in one.args[1]] for one in marks if one.name == "parametrize"] == [list(DECISIONS)]


@pytest.mark.behaviour("START-25")
def test_a_reset_shows_the_evidence_of_loss_that_it_accepts(browser: Browser, store: OffsetStore) -> None:
    with transaction(store.database, name="test", lock_timeout=5) as session:
        session.write_suspects(GROUP, owner_of(store).token, {P0: "the log ended at 3"})
    plan = plan_reset(browser, to="current")
    assert "The reset would accept this loss" in plan.text
    assert re.search(r"payments\S*0: the log lost records that had been read: the log ended at 3", plan.text)
    assert "The reset accepted this loss" in browser.send(plan, **ANSWER).text
    assert store.offsets(GROUP)[P0].suspect is None


@pytest.mark.usefixtures("letters")
def test_letters_are_chosen_by_their_error_and_one_without_a_sqlstate_is_not_any_error(
    browser: Browser, store: OffsetStore
) -> None:
    for action in ("replay", "discard"):
        choice = browser.open(f"/actions/{action}", group=GROUP)
        links = re.findall(rf'href="(/actions/{action}\?[^"]*)"', choice.answer.text)
        plans = [browser.send(browser.open(html.unescape(link))) for link in links]
        assert sorted(re.findall(r"\d dead letters? would be", plan.text) for plan in plans) == [
            ["1 dead letter would be"],
            ["2 dead letters would be"],
        ]
    [of_raised] = [plan for plan in plans if plan.form.fields["error_class"] == "ValueError"]
    assert of_raised.form.fields["sqlstate"] == ""
    browser.send(of_raised, **ANSWER)
    assert store.letter_counts(GROUP) == {"dead": 2, "discarded": 1}


@pytest.mark.behaviour("OUT-6")
@pytest.mark.usefixtures("set_aside")
def test_the_group_s_page_leads_to_the_rows_that_kafka_refuses(browser: Browser) -> None:
    page = browser.client.get("/group", params={"group": GROUP})
    [link] = re.findall(r'href="([^"]+)">Look at them', page.text)
    assert "3 rows would be put back into the outbox." in browser.open(html.unescape(link)).text


# --- a plan that no longer holds


def expect_new_plan(page: Page) -> None:
    """Nothing was done, and this is another plan, which has to be agreed to anew."""
    assert page.status == 409
    assert "The plan has changed since it was shown; nothing was done." in page.text
    assert page.form.fields["reason"] == ANSWER["reason"]
    assert not page.form.fields["typed"]
    assert page.form.fields.get("fence") is None


@pytest.mark.behaviour("DLQ-18", "OPS-10")
@pytest.mark.usefixtures("letters")
def test_letters_that_come_after_the_plan_are_neither_discarded_nor_forced_unseen_but_may_be_replayed(
    browser: Browser, store: OffsetStore
) -> None:
    of_letter = browser.open("/actions/replay/plan", group=GROUP, **LETTER)
    assert of_letter.form.fields["topic_id"] == "", "a letter of that offset that comes later is another"
    discard, forced, replay = (
        browser.open(f"/actions/{action}/plan", group=GROUP, **ERROR, **more)
        for action, more in (("discard", {}), ("replay", {"forced": "yes"}), ("replay", {}))
    )
    give_up(store, {P0: OffsetRange(6, 7)}, refused(6))
    for plan in (discard, forced):
        again = browser.send(plan, **ANSWER)
        expect_new_plan(again)
        assert "3 dead letters would be" in again.text
        assert "If letters keep coming, pause the group first." in again.text
        assert store.letter_counts(GROUP) == {"dead": 4}
    assert "3 dead letters requested" in browser.send(replay, **ANSWER).text


def test_a_live_job_is_fenced_only_if_that_is_chosen_and_what_was_done_is_shown(
    browser: Browser, store: OffsetStore
) -> None:
    claim = store.claim(GROUP, topics=["payments"], mirror_every=None)
    pause = browser.send(browser.open("/actions/pause", group=GROUP))
    plan = plan_reset(browser, to="shift", value="-1", topic="payments", partition="0")
    assert (pause.form.ticks, plan.form.ticks) == (set(), {"fence"})
    for page in (pause, plan):
        assert "A job is live" in page.text
    assert "StaleClaim" in plan.text
    assert "are in what is done, not in this plan" in plan.text
    before = state_of(store)
    refused = browser.send(plan, **ANSWER)
    assert refused.status == 409
    told = r"a job of group 'billing' is live; nothing was written. Found .* s ago. Stop it first, or tick"
    assert re.search(told, refused.text)
    assert "Fence the live job" in refused.text
    assert refused.form.fields["reason"] == ANSWER["reason"]
    assert state_of(store) == before

    advance(store, claim, {P0: OffsetRange(4, 8)})
    done = browser.send(refused, **ANSWER, fence="yes")
    assert done.status == 200
    assert "Fenced the live job" in done.text
    assert re.search(r"payments\S*0 8 7 -1", done.text)
    assert offsets(store)[P0] == 7
    assert owner_of(store).token != claim.token


@pytest.mark.parametrize("is_restored", [False, True])
def test_decisions_do_not_go_to_another_store_than_the_one_that_is_shown(
    store: OffsetStore, broker: StaticBroker, monkeypatch: pytest.MonkeyPatch, *, is_restored: bool
) -> None:
    """A dump that was restored keeps the store's id."""
    give(store, GROUP, {P0: 4}, stay=False)
    with InMemoryOffsetStore() as other, browsing(store, broker, Deciding(other, broker)) as browser:
        if is_restored:
            restored = replace(store.database.identity(), here="7370000000000000000:16384")
            monkeypatch.setattr(other.database, "identity", lambda: restored)
        refused = plan_reset(browser)
        assert refused.status == 400
        assert "--actions-url points to a different store" in refused.text


# --- what is refused ----------------------------------------------------------------------------------------------


def test_without_leave_there_are_no_actions(store: OffsetStore, broker: StaticBroker) -> None:
    give(store, GROUP, {P0: 4})
    with browsing(store, broker) as browser:
        assert browser.open("/actions/reset", group=GROUP).status == 404
        assert plan_reset(browser).status == 404
        assert browser.post("/actions/reset/execute", {"group": GROUP, **ANSWER}).status == 404


def test_a_reason_and_the_groups_name_are_asked_for(browser: Browser, store: OffsetStore) -> None:
    give(store, "shipping", {P0: 1})
    plan = plan_reset(browser)
    for entered, field in (
        ({"reason": ANSWER["reason"], "typed": ""}, "typed"),
        ({"reason": ANSWER["reason"], "typed": "shipping"}, "typed"),
        ({"reason": ANSWER["reason"], "typed": "Billing"}, "typed"),
        ({"typed": GROUP, "reason": " \t"}, "reason"),
        ({"typed": GROUP, "reason": "x" * 1001}, "reason"),
        ({**ANSWER, "who": "x" * 1001}, "who"),
    ):
        plan = browser.send(plan, **{"who": "", "reason": "", **entered})
        assert plan.status == 400
        assert f"{field}-wrong" in plan.reader.described[field]
        assert f"{field}-wrong" in plan.reader.ids
        kept = {name: text for name, text in entered.items() if name != field}
        assert {name: plan.form.fields[name] for name in kept} == kept
    assert not decided(store, "reset")


def test_a_form_can_be_sent_once_and_not_when_it_was_changed(browser: Browser, store: OffsetStore) -> None:
    give(store, "shipping", {P0: 4}, stay=False)
    plan = plan_reset(browser, to="offset", value="2", topic="payments", partition="0")
    for changed in ({"value": "1"}, {"premise": ""}, {"group": "shipping", "typed": "shipping"}, {"ticket": ""}):
        refused = browser.send(plan, **{**ANSWER, **changed})
        assert refused.status == 403
        assert "does not come from this server" in refused.text
    pause = browser.send(browser.open("/actions/pause", group=GROUP))
    assert browser.post("/actions/resume/execute", {**pause.form.fields, **ANSWER}).status == 403
    assert not decided(store, "reset")
    assert not store.history("shipping", events=["reset"])
    assert browser.send(plan, **ANSWER).status == 200
    again = browser.send(plan, **ANSWER)
    assert again.status == 403
    assert "sent already" in again.text
    assert len(decided(store, "reset")) == 1


@pytest.mark.usefixtures("letters")
def test_a_field_that_makes_no_sense_is_marked_and_what_was_entered_is_kept(browser: Browser) -> None:
    for action, given, field, marked in (
        ("reset", {"to": "offset", "value": "x"}, "value", "value-wrong"),
        ("reset", {"to": "earliest", "partition": "0"}, "topic", "topic-wrong"),
        ("reset", {"to": "earliest", "topic": "payments", "partition": "x"}, "partition", "partition-wrong"),
        ("pause", {"until": "soon"}, "until", "until-wrong"),
        ("outbox-retry", {"row": "x"}, "row", "row-wrong"),
        ("replay", {"offset": "4"}, "", "trouble-of-form"),
        ("discard", {"cause": ""}, "", "trouble-of-form"),
    ):
        again = browser.open(f"/actions/{action}/plan", group=GROUP, **given)
        assert again.status == 400, given
        assert marked in again.reader.ids
        assert not field or marked in again.reader.described[field]
        assert again.form.fields.items() >= given.items() - {("to", "offset"), ("to", "earliest")}


def test_what_the_library_refuses_is_shown_beside_what_was_entered(
    browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    for error, status in (
        (UnknownGroup("the store has no offsets of group 'nobody'"), 404),
        (UnknownLetter("it has no dead letter of offset 1"), 404),
        (ConfigurationError("the store has no offsets of topic 'other'"), 400),
        (OffsetOutOfRange("the log does not hold offset 11"), 400),
        (MissingPrivilege("the role may not write consumer_groups"), 403),
        (DeadLetterError("the letter can't be replayed"), 409),
        (LockTimeout("could not acquire the lock within 10 s"), 503),
        (BrokerUnavailable("Kafka did not answer within 15 s"), 503),
    ):
        plan = browser.open("/actions/pause/plan", group=GROUP, until="2099-03-01T00:00Z")
        with monkeypatch.context() as patched:
            patched.setattr(actions, "carry_out", Mock(side_effect=error))
            not_done = browser.send(plan, **ANSWER)
            patched.setattr(actions, "plan_of", Mock(side_effect=error))
            not_planned = browser.open("/actions/pause/plan", group=GROUP, until="2099-03-01T00:00Z")
        for refused in (not_done, not_planned):
            assert refused.status == status, error
            assert str(error).partition(".")[0] in refused.text
            assert refused.form.fields["until"].startswith("2099-03-01")


def test_there_are_no_other_actions_and_a_body_that_is_no_form_is_refused(
    client: httpx.Client, browser: Browser
) -> None:
    for action in ("none", "RESET"):
        assert browser.open(f"/actions/{action}", group=GROUP).status == 404
        assert browser.open(f"/actions/{action}/plan", group=GROUP).status == 404
        assert browser.post(f"/actions/{action}/execute", {"group": GROUP}).status == 404
    for body in (b"", b"group=", b"group=%00", b"\xff\xfe", b"a" * 70_000):
        answer = client.post("/actions/reset/execute", content=body, headers={"Origin": browser.origin})
        assert answer.status_code == (413 if len(body) > 65_536 else 400)
    assert browser.open("/actions/reset/plan").status == 400


# --- the pages ----------------------------------------------------------------------------------------------------


@pytest.mark.behaviour("DASH-4", "OPS-27")
def test_an_odd_name_is_inert_in_forms_and_comes_back_as_it_was(
    store: OffsetStore, server: DashboardServer, browser: Browser
) -> None:
    name = '~"><script>alert(1)</script>\u202e\n%0A+&=two\r\nlines\rall'
    give(store, name, {P0: 4}, stay=False)
    server.snapshots.take()
    form = browser.open("/actions/reset", group=name)
    plan = browser.send(form, to="earliest")
    typed = name.replace("\u202e", "\\u202e").replace("\n", "\\n").replace("\r", "\\r")
    assert f"Type it: {typed}" in plan.text
    done = browser.send(plan, reason="<b>why</b>", typed=typed)
    assert done.status == 200
    history = browser.send(browser.open("/history", group=name))
    for page in (form, plan, done, browser.send(plan, reason="again", typed=typed), history):
        assert "<script>alert" not in page.answer.text
        assert "<b>why" not in page.answer.text
    assert history.status == 200
    assert [event.reason for event in store.history(name, events=["reset"])] == ["<b>why</b>"]

    give(store, "   ", {P0: 4}, stay=False)
    server.snapshots.take()
    plan = browser.send(browser.open("/actions/pause", group="   "))
    again = browser.send(plan, reason="maintenance", typed="")
    assert again.status == 400
    assert browser.send(again, reason="maintenance", typed="   ").status == 200


@pytest.mark.usefixtures("letters")
def test_other_pages_link_to_what_is_allowed(browser: Browser, store: OffsetStore) -> None:
    macros = '{% import "actions.html" as actions with context %}'
    shown = "{{ actions.of_group(group) }}{{ actions.of_error(group, which) }}{{ actions.of_letter(group, letter) }}"
    template = environment().from_string(macros + shown)
    [letter] = store.letters(GROUP, cause="raised").letters
    values = {"group": GROUP, "which": store.letter_errors(GROUP)[0].which, "letter": letter}
    assert "href" not in template.render(values, has_actions=False)
    links = [html.unescape(one) for one in re.findall(r'href="([^"]+)"', template.render(values, has_actions=True))]
    assert len(links) == 8 + 2 + 2
    assert {browser.open(link).status for link in links} == {200}
    for link, text in zip(links[8:], ("2 dead letters",) * 2 + ("1 dead letter",) * 2, strict=True):
        assert f"{text} would be" in browser.send(browser.open(link)).text
    settled = replace(letter, state="discarded")
    assert len(re.findall("href", template.render({**values, "letter": settled}, has_actions=True))) == 8 + 2


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


def test_what_was_done_is_never_shown_as_failed_and_the_pages_soon_show_it(
    browser: Browser, server: DashboardServer, store: OffsetStore, monkeypatch: pytest.MonkeyPatch
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
    wait_until(lambda: server.snapshots.latest().groups[GROUP].state == "paused")

"""Decisions on the pages with two roles: one reads what is shown and planned, the other decides."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from offsetstore import LetterError, OffsetRange, OffsetStore
from offsetstore.monitoring.dashboard.context import Deciding
from offsetstore.monitoring.dashboard.serving import DashboardServer, DashboardSettings
from offsetstore.postgres.grants import grant_runtime
from offsetstore.protocol.letters import NewLetter, Payload
from offsetstore.testing import StaticBroker
from tests.integration.conftest import Query
from tests.integration.dashboard.conftest import GROUP, role_with
from tests.integration.pages.conftest import P0, advance
from tests.support.page_forms import Browser

pytestmark = pytest.mark.behaviour("DASH-3")

ANSWER = {"reason": "wrong rates, ticket 17", "typed": GROUP}


@pytest.fixture
def decider(offsetstore_database: str, query: Query) -> Iterator[OffsetStore]:
    """The store as the role has it that decides."""
    with role_with(grant_runtime, offsetstore_database, query) as url, OffsetStore.connect(url) as store:
        yield store


@pytest.fixture
def broker() -> StaticBroker:
    return StaticBroker.with_topics({"payments": 1}, end=10)


@pytest.fixture(autouse=True)
def job(store: OffsetStore) -> None:
    """A job that has left: it stored offset 4, and a dead letter of offset 2."""
    claim = store.claim(GROUP, topics=["payments"], mirror_every=None)
    error = LetterError("RowsRefused", "", "23514", "public.results", "positive")
    letter = NewLetter(P0, 2, "refused", error, 3, None, Payload(b"key", b"value", None, None, None))
    advance(store, claim, {P0: OffsetRange(0, 4)}, [letter])
    claim.close()


def test_who_reads_plans_and_who_may_decide_writes(
    store: OffsetStore, reader: OffsetStore, decider: OffsetStore, broker: StaticBroker
) -> None:
    with (
        DashboardServer(reader, broker, DashboardSettings(port=0), actions=Deciding(decider, broker)) as server,
        httpx.Client(base_url=server.url, timeout=30) as client,
    ):
        server.snapshots.take()
        browser = Browser(client)
        for action, fields in (
            ("reset", {"to": "earliest"}),
            ("pause", {"until": "PT1H"}),
            ("resume", {}),
            ("replay", {"constraint": "positive", "sqlstate": "23514"}),
            ("discard", {"topic": "payments", "partition": "0", "offset": "2", "erase": "yes"}),
        ):
            before = store.history(GROUP)
            assert browser.open(f"/actions/{action}", group=GROUP).status == 200
            plan = browser.open(f"/actions/{action}/plan", group=GROUP, **fields)
            assert (action, plan.status) == (action, 200), plan.text
            assert store.history(GROUP) == before
            done = browser.send(plan, **ANSWER)
            assert (action, done.status) == (action, 200), done.text
    made = store.history(GROUP, events=["reset", "pause", "resume", "replay", "erase"])
    assert [event.event for event in made] == ["reset", "pause", "resume", "replay", "erase"]
    assert all(str(event.db_role).startswith(f"{grant_runtime.__name__}_") for event in made)
    assert all(event.actor.startswith("dashboard at 127.0.0.1:") for event in made)
    assert all(event.reason.endswith(ANSWER["reason"]) for event in made)
    assert store.offsets(GROUP)[P0].next_offset == 0
    assert store.letter(GROUP, P0, 2).payload_state == "erased"


def test_a_role_that_may_not_decide_is_refused_by_the_database(
    store: OffsetStore, reader: OffsetStore, broker: StaticBroker, query: Query
) -> None:
    query(
        "INSERT INTO outbox_refused (id, consumer_group, topic, created_at, error) "
        f"VALUES (7, '{GROUP}', 'events', now(), 'MSG_SIZE_TOO_LARGE')"
    )
    query(f"INSERT INTO outbox (consumer_group, topic) VALUES ('{GROUP}', 'events')")
    before = store.history(GROUP), store.offsets(GROUP), store.letter(GROUP, P0, 2)
    with (
        DashboardServer(reader, broker, DashboardSettings(port=0), actions=Deciding(reader, broker)) as server,
        httpx.Client(base_url=server.url, timeout=30) as client,
    ):
        server.snapshots.take()
        browser = Browser(client)
        for action, fields in (
            ("reset", {"to": "earliest"}),
            ("pause", {}),
            ("replay", {"constraint": "positive"}),
            ("discard", {"topic": "payments", "partition": "0", "offset": "2"}),
            ("outbox-retry", {}),
            ("outbox-discard", {"row": "7"}),
            ("outbox-set-aside", {}),
        ):
            refused = browser.send(browser.open(f"/actions/{action}/plan", group=GROUP, **fields), **ANSWER)
            assert (action, refused.status) == (action, 403), refused.text
            assert "OFFSETSTORE_ACTIONS_URL" in refused.text
    assert (store.history(GROUP), store.offsets(GROUP), store.letter(GROUP, P0, 2)) == before
    assert query("SELECT id FROM outbox_refused") == [(7,)]

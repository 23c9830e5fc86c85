"""``offsetstore outbox`` and what ``status`` says of it: rows that Kafka refuses, and what is decided about them."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from typing import Any

import psycopg
import pytest

from offsetstore import OffsetStore, errors
from offsetstore import outbox as application
from offsetstore.operations.outbox import SetAside
from offsetstore.store.sessions import transaction
from offsetstore.testing import InMemoryOffsetStore, StaticBroker
from tests.integration.cli.conftest import Here, Run, blocks, words
from tests.integration.conftest import Query
from tests.support.background import in_background
from tests.support.outbox import numbered, put
from tests.support.waiting import wait_until

GROUP = "billing"
OF_GROUP = ("-g", GROUP, "--reason", "ticket 17")
SET_ASIDE = """
WITH gone AS (DELETE FROM outbox RETURNING *)
INSERT INTO outbox_refused (id, consumer_group, topic, key, value, headers, created_at, error)
SELECT id, consumer_group, topic, key, value, headers, created_at, 'Kafka has no topic ' || topic FROM gone
"""


@pytest.fixture
def store(offsetstore_database: str, query: Query) -> Generator[OffsetStore]:
    """Rows 1 to 3 for one topic and 4 for another are set aside, and row 5 is in the outbox."""
    with OffsetStore.connect(offsetstore_database) as store:
        put(store, [*numbered("events", range(3)), *numbered("others", [3])])
        query(SET_ASIDE)
        put(store, numbered("events", [4]))
        yield store


@pytest.fixture
def decide(here: Here) -> Callable[..., Any]:
    """Decide, or plan it, and return the document."""
    return lambda *words: here.json("outbox", *words, *OF_GROUP)


@pytest.fixture
def listed(here: Here, store: OffsetStore) -> Callable[..., list[dict[str, Any]]]:
    """The rows that are set aside."""
    return lambda *words: here.json("outbox", "list", "-g", GROUP, *words)["rows"]


def ids(rows: list[dict[str, Any]]) -> list[int]:
    return [row["id"] for row in rows]


@pytest.mark.behaviour("OUT-6")
def test_they_are_listed_put_back_after_all_others_in_their_order_which_wakes_the_relay_or_discarded(
    decide: Callable[..., Any], listed: Callable[..., Any], query: Query, offsetstore_database: str, store: OffsetStore
) -> None:
    assert ids(listed()) == [1, 2, 3, 4]
    assert ids(listed("--limit", "2", "--after", "2")) == [3, 4]
    [row] = listed("--topic", "others")
    assert row.keys() == {"id", "topic", "error", "created_at", "refused_at"}
    assert row["error"] == "Kafka has no topic others"
    with psycopg.connect(offsetstore_database, autocommit=True) as listening:
        listening.execute("LISTEN offsetstore_outbox")
        planned = decide("retry", "--topic", "events")
        assert (ids(planned["rows"]), planned["executed"]) == ([1, 2, 3], False)
        done = decide("retry", "--topic", "events", "--execute", "--if-plan", planned["plan"])
        assert done == planned | {"executed": True}
        assert len(list(listening.notifies(timeout=5, stop_after=1))) == 1

    assert query("SELECT id, topic, convert_from(key, 'UTF8'), encode(value, 'escape') FROM outbox ORDER BY id") == [
        (5, "events", "key 1", "4"), *((6 + one, "events", f"key {one}", str(one)) for one in range(3))
    ]  # fmt: skip
    last = store.history(GROUP)[-1]
    assert (last.event, last.reason) == ("outbox-retry", "rows 1, 2, 3 put back into the outbox: ticket 17")

    query(SET_ASIDE)
    assert ids(decide("discard", "4", "--execute")["rows"]) == [4]
    for row_id, more in ((5, 3), (6, 2)):
        done = decide("discard", "--all", "--limit", "1", "--execute")
        assert (ids(done["rows"]), done["more"]) == ([row_id], more)
    assert ids(listed()) == [7, 8]
    assert [line.event for line in store.history(GROUP)][-3:] == ["outbox-discard"] * 3
    assert decide("discard", "--topic", "none", "--execute")["executed"] is False


@pytest.mark.behaviour("OUT-6")
def test_the_commands_of_the_page_do_what_it_says(here: Here, store: OffsetStore, query: Query) -> None:
    query("UPDATE outbox_refused SET topic = 'payment-events' WHERE id < 3")
    query("UPDATE outbox_refused SET id = 17 WHERE id = 4")
    query("INSERT INTO outbox (id, consumer_group, topic) OVERRIDING SYSTEM VALUE VALUES (19, 'billing', 'small')")
    lines = [line for _, block in blocks("relay-refused.md", "console") for line in block.splitlines()]
    assert len(lines) == 4
    for line in lines:
        here(*words(line))
    assert query("SELECT id FROM outbox_refused ORDER BY id") == [(3,), (19,)]
    assert query("SELECT topic FROM outbox ORDER BY id") == [("events",), *[("payment-events",)] * 2]
    assert {line.event for line in store.history(GROUP)[-3:]} == {"outbox-retry", "outbox-discard", "outbox-set-aside"}


@pytest.mark.behaviour("OUT-10")
def test_rows_that_wait_are_set_aside_with_the_reason_but_not_those_of_a_batch(
    decide: Callable[..., Any], listed: Callable[..., Any], query: Query, store: OffsetStore, here: Here
) -> None:
    """They may be in Kafka already. What is set aside can be put back or discarded as the others can."""
    put(store, numbered("events", [5, 6]))
    query("INSERT INTO outbox_relays (shard, token, owner, ids) VALUES (0, gen_random_uuid(), 'relay', '{6}')")
    planned = decide("set-aside", "--topic", "events")
    assert [(row["id"], row["refused_at"]) for row in planned["rows"]] == [(5, None), (7, None)]
    assert planned["executed"] is False
    told = here.fail(2, "outbox", "set-aside", "6", *OF_GROUP, "--execute")
    assert "A row that a relay is sending may be in Kafka already" in " ".join(told.split())
    assert ids(decide("set-aside", "5", "--execute")["rows"]) == [5]
    assert query("SELECT id FROM outbox ORDER BY id") == [(6,), (7,)]
    [error] = [row["error"] for row in listed() if row["id"] == 5]
    assert re.fullmatch(r"set aside by .+: ticket 17", error)
    assert store.history(GROUP)[-1].reason == "rows 5 of the outbox set aside: ticket 17"
    assert ids(decide("retry", "5", "--execute")["rows"]) == [5]
    assert query("SELECT id FROM outbox ORDER BY id") == [(6,), (7,), (8,)]


@pytest.mark.behaviour("OUT-10")
def test_a_row_is_not_set_aside_while_the_first_relay_ever_takes_it(
    store: OffsetStore, query: Query, offsetstore_database: str
) -> None:
    """It has no row yet that could be locked: whichever of the two comes first has the row, and the other waits."""
    take = "INSERT INTO outbox_relays (shard, token, owner, ids) VALUES (0, gen_random_uuid(), 'relay', '{}')"
    with transaction(store.database, name="set aside") as session:
        [plan] = SetAside(GROUP, ids=[5]).locked(session)
        assert [row.id for row in plan.rows] == [5]
        query("SET lock_timeout = 100")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            query(take.format("{}"))
    with psycopg.connect(offsetstore_database) as relay:
        relay.execute(take.format("{5}").encode())
        deciding = in_background(lambda: store.set_aside(GROUP, [5], reason="ticket 17"))
        waits = "SELECT 1 FROM pg_locks WHERE relation = 'outbox_relays'::regclass AND NOT granted"
        wait_until(lambda: query(waits) != [])
        relay.commit()
    with pytest.raises(errors.ConfigurationError, match="and not being sent"):
        deciding.result(20)
    assert query("SELECT id FROM outbox") == [(5,)]


def test_what_cant_be_decided_is_refused(store: OffsetStore, here: Here, query: Query) -> None:
    for ids, topic in (([1], "events"), ([], None)):
        with pytest.raises(errors.ConfigurationError, match="names ids, a topic, or neither"):
            store.retry_refused(GROUP, ids, topic=topic, reason="ticket 17")
    with pytest.raises(errors.ConfigurationError, match=r"no such rows of group 'billing'.*found 5, 7"):
        store.discard_refused(GROUP, [1, 5, 7], reason="ticket 17")
    with pytest.raises(errors.UnknownGroup):
        store.retry_refused("nobody", reason="ticket 17")
    assert "one of the three" in here.fail(2, "outbox", "retry", "1", "--all", *OF_GROUP)
    with InMemoryOffsetStore() as memory, pytest.raises(errors.ConfigurationError, match="job's side only"):
        memory.refused_rows(GROUP)
    query("CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'")
    query("CREATE TRIGGER keep BEFORE DELETE ON outbox_refused FOR EACH ROW EXECUTE FUNCTION keep()")
    with pytest.raises(errors.ConfigurationError, match=r"not all rows could be discarded.*0 rows"):
        store.discard_refused(GROUP, [4], reason="ticket 17")
    query("DROP TRIGGER keep ON outbox_refused")
    assert "outbox-discard" not in [line.event for line in store.history(GROUP)]
    store.claim(GROUP, StaticBroker.with_topics({"payments": 1}, end=10), mirror_every=None).close()
    store.rename_group(GROUP, "invoicing", reason="ticket 17")
    assert store.retry_refused(GROUP, [4], reason="ticket 17").executed, "a renamed group's rows stay its own"


@pytest.mark.behaviour("OUT-6", "OUT-7")
def test_status_says_how_many_rows_wait_for_how_long_and_how_many_kafka_refuses(
    here: Here, store: OffsetStore, query: Query
) -> None:
    query("UPDATE outbox SET created_at = clock_timestamp() - interval '150 min'")
    found = here.json("status", "-g", GROUP)["outbox"]
    assert found.pop("oldest")
    assert found == {"rows": 1, "row": 5, "topic": "events", "refused": 4, "more": False}
    text = here("status", "-g", GROUP)
    assert "1 row in the outbox, the oldest for 2h. The first is row 5, for topic events." in text
    assert f"Kafka refuses 4 rows of the outbox: `offsetstore outbox list -g {GROUP}` names them." in text


SHOP = ("-g", "shop", "--reason", "ticket 17")


@pytest.mark.behaviour("OUT-14")
def test_rows_of_an_application_are_listed_and_decided_about_by_its_source_which_is_a_group_nowhere_else(
    here: Here, store: OffsetStore, query: Query, offsetstore_database: str
) -> None:
    for command in (("outbox", "list"), ("history",), ("status",)):
        told = here.fail(1, *command, "-g", "shop")
        assert "the store has no group 'shop', and no outbox row has this name" in " ".join(told.split()), command
        assert "known only while it has rows in the outbox" in " ".join(told.split())
    with psycopg.connect(offsetstore_database) as connection:
        application.put(connection, numbered("orders", range(4)), source="shop")
    query("UPDATE outbox SET created_at = now() - interval '1 h' WHERE consumer_group = 'shop'")
    for command in ("runs", "errors"):
        assert "the store has no group 'shop'" in here.fail(1, command, "-g", "shop")
    assert [group.group for group in store.groups()] == [GROUP]
    assert set(store.lag(None, StaticBroker.with_topics({"payments": 1}, end=10)).groups) == {GROUP}
    assert here.json("status", "-g", GROUP)["outbox"]["rows"] == 1, "its group's own row, and no other"
    assert here.json("outbox", "list", "-g", "shop")["rows"] == []

    assert ids(here.json("outbox", "set-aside", "6", "7", *SHOP)["rows"]) == [6, 7]
    for which in (("6", "7"), ("--all",)):
        assert here.json("outbox", "set-aside", *which, *SHOP, "--execute")["executed"]
    assert ids(here.json("outbox", "list", "-g", "shop")["rows"]) == [6, 7, 8, 9]
    assert ids(here.json("outbox", "retry", "--all", "--limit", "1", *SHOP, "--execute")["rows"]) == [6]
    assert ids(here.json("outbox", "discard", "7", *SHOP, "--execute")["rows"]) == [7]
    here.fail(2, "outbox", "discard", "1", *SHOP, "--execute")
    assert query("SELECT id FROM outbox WHERE consumer_group = 'shop'") == [(10,)]

    query("DELETE FROM outbox; DELETE FROM outbox_refused")
    events = here.json("history", "-g", "shop")["events"]
    assert [event["event"] for event in events] == [*["outbox-set-aside"] * 2, "outbox-retry", "outbox-discard"]
    assert {(event["epoch"], event["reason"][-9:]) for event in events} == {(0, "ticket 17")}
    assert here.json("outbox", "list", "-g", "shop")["rows"] == [], "the history still knows it"
    assert here.json("outbox", "retry", "--all", *SHOP, "--execute")["rows"] == []
    here.fail(1, "outbox", "retry", "--all", "-g", "nobody", "--reason", "ticket 17")
    assert here.json("status", "-g", "shop")["outbox"]["rows"] == 0, "the history still knows it"
    store.claim("shop", topics=["payments"]).close()
    assert here.json("status", "-g", "shop")["outbox"] is None, "a group of this name is well"


RELAY = "INSERT INTO relay_runs (run_id, owner) VALUES (gen_random_uuid(), 'r@host:9')"
NONE = "Relay: No relay was ever started: `offsetstore relay` sends the rows."


@pytest.mark.behaviour("OUT-14", "OPS-1")
@pytest.mark.usefixtures("store")
def test_an_application_s_rows_and_the_relay_are_in_status_and_a_source_is_no_group(
    here: Here, run: Run, query: Query, offsetstore_database: str
) -> None:
    query("DELETE FROM outbox; DELETE FROM outbox_refused")
    assert not re.search(r"^(Outbox|Relay):", here("status"), re.MULTILINE)
    with psycopg.connect(offsetstore_database) as connection:
        application.put(connection, numbered("orders", range(4)), source="shop")
    query("UPDATE outbox SET created_at = now() - interval '3 h'")
    rows = "Outbox: 4 rows waiting, the oldest for 3h: shop 4."
    for group in ((), ("-g", GROUP)):
        assert here("status", *group).splitlines()[-2:] == [rows, NONE] or group, group
        assert {rows, NONE} <= {*here("status", *group).splitlines()}
    what = "shop is no consumer group: an application put rows into the outbox under this name."
    assert here("status", "-g", "shop").splitlines() == [what, rows, NONE]
    for command in (("outbox", "list"), ("history",)):
        assert here(*command, "-g", "shop").splitlines()[-3:] == [what, rows, NONE]

    made = here.json("status", "-g", "shop")
    assert made.keys() == {"source", "outbox", "relay"}
    assert (made["source"], made["outbox"]["rows"], made["relay"]) == ("shop", 4, None)
    of_all = here.json("status")
    assert [(row["name"], row["rows"]) for row in of_all["outbox"]] == [("shop", 4)]
    assert [group["group"] for group in of_all["groups"]] == [GROUP]
    assert "an application put rows into the outbox" in here.fail(2, "health", "-g", "shop")

    query(RELAY)
    query("UPDATE relay_runs SET ended_at = now(), ending = 'closed'")
    assert re.search(
        r"^Relay: ended\. The relay r@host:9 ended cleanly at .*: start it again\.$", here("status"), re.MULTILINE
    )
    query("UPDATE relay_runs SET ended_at = NULL, ending = NULL, sent_at = now()")
    assert "Relay: live. The relay r@host:9 runs." in here("status", "-g", "shop")
    query(SET_ASIDE)
    assert "Outbox: no row waits. Kafka refuses 4 rows: `offsetstore outbox list`." in here("status")

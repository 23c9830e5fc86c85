"""``offsetstore outbox`` and what ``status`` says of it: rows that Kafka refuses, and what is decided about them."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from offsetstore import OffsetStore, errors
from offsetstore.operations.outbox import SetAside
from offsetstore.store.sessions import transaction
from offsetstore.testing import InMemoryOffsetStore, StaticBroker
from tests.integration.cli.conftest import Run
from tests.integration.conftest import Query
from tests.support.background import in_background
from tests.support.outbox import numbered, put
from tests.support.waiting import wait_until

PAGE = (Path(__file__).parents[3] / "docs" / "outbox.md").read_text(encoding="utf-8")
GROUP = "billing"
REASON = ("--reason", "ticket 17")
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
def call(run: Run, store: OffsetStore, offsetstore_database: str) -> Callable[..., Any]:
    """Return what a command prints as JSON."""
    del store

    def called(*words: str, exit_code: int = 0) -> Any:
        result = run(*words, "-g", GROUP, "--format", "json", url=offsetstore_database)
        assert result.exit_code == exit_code, result.output
        return json.loads(result.stdout)

    return called


def ids(found: Any) -> list[int]:
    return [row["id"] for row in found["rows"]]


@pytest.mark.behaviour("OUT-6")
def test_they_are_listed_and_a_retry_puts_them_back_after_all_others_in_their_order_and_wakes_the_relay(
    call: Callable[..., Any], query: Query, offsetstore_database: str, store: OffsetStore
) -> None:
    assert ids(call("outbox", "list")) == [1, 2, 3, 4]
    assert ids(call("outbox", "list", "--limit", "2", "--after", "2")) == [3, 4]
    [row] = call("outbox", "list", "--topic", "others")["rows"]
    assert row.keys() == {"id", "topic", "error", "created_at", "refused_at"}
    assert row["error"] == "Kafka has no topic others"
    with psycopg.connect(offsetstore_database, autocommit=True) as listening:
        listening.execute("LISTEN offsetstore_outbox")
        planned = call("outbox", "retry", "--topic", "events", *REASON)
        assert (ids(planned), planned["executed"]) == ([1, 2, 3], False)
        done = call("outbox", "retry", "--topic", "events", *REASON, "--execute", "--if-plan", planned["plan"])
        assert (ids(done), done["executed"], done["plan"]) == ([1, 2, 3], True, planned["plan"])
        assert len(list(listening.notifies(timeout=5, stop_after=1))) == 1

    assert query("SELECT id, topic, convert_from(key, 'UTF8'), encode(value, 'escape') FROM outbox ORDER BY id") == [
        (5, "events", "key 1", "4"), *((6 + one, "events", f"key {one}", str(one)) for one in range(3))
    ]  # fmt: skip
    assert query("SELECT id FROM outbox_refused") == [(4,)]
    last = store.history(GROUP)[-1]
    assert (last.event, last.reason) == ("outbox-retry", "rows 1, 2, 3 put back into the outbox: ticket 17")


@pytest.mark.behaviour("OUT-6")
def test_the_commands_of_the_page_do_what_it_says(
    run: Run, store: OffsetStore, query: Query, offsetstore_database: str
) -> None:
    query("UPDATE outbox_refused SET topic = 'payment-events' WHERE id < 3")
    query("UPDATE outbox_refused SET id = 17 WHERE id = 4")
    query("INSERT INTO outbox (id, consumer_group, topic) OVERRIDING SYSTEM VALUE VALUES (19, 'billing', 'small')")
    for line in re.findall(r"^\$ offsetstore (outbox .*)$", PAGE, re.MULTILINE):
        done = run(*shlex.split(line), url=offsetstore_database)
        assert done.exit_code == 0, done.output
    assert query("SELECT id FROM outbox_refused ORDER BY id") == [(3,), (19,)]
    assert query("SELECT topic FROM outbox ORDER BY id") == [("events",), *[("payment-events",)] * 2]
    assert {line.event for line in store.history(GROUP)[-3:]} == {"outbox-retry", "outbox-discard", "outbox-set-aside"}


@pytest.mark.behaviour("OUT-10")
def test_rows_that_wait_are_set_aside_with_the_reason_but_not_those_of_a_batch(
    call: Callable[..., Any], query: Query, store: OffsetStore, run: Run, offsetstore_database: str
) -> None:
    """They may be in Kafka already. What is set aside can be put back or discarded as the others can."""
    put(store, numbered("events", [5, 6]))
    query("INSERT INTO outbox_relays (shard, token, owner, ids) VALUES (0, gen_random_uuid(), 'relay', '{6}')")
    planned = call("outbox", "set-aside", "--topic", "events", *REASON)
    assert (ids(planned), planned["executed"]) == ([5, 7], False)
    assert {row["refused_at"] for row in planned["rows"]} == {None}
    ended = run("outbox", "set-aside", "6", "-g", GROUP, *REASON, "--execute", url=offsetstore_database)
    assert ended.exit_code != 0
    assert "A row that a relay is sending may be in Kafka already" in " ".join(ended.stderr.split())
    assert ids(call("outbox", "set-aside", "5", *REASON, "--execute")) == [5]
    assert query("SELECT id FROM outbox ORDER BY id") == [(6,), (7,)]
    [error] = [row["error"] for row in call("outbox", "list")["rows"] if row["id"] == 5]
    assert re.fullmatch(r"set aside by .+: ticket 17", error)
    assert store.history(GROUP)[-1].reason == "rows 5 of the outbox set aside: ticket 17"
    assert ids(call("outbox", "retry", "5", *REASON, "--execute")) == [5]
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


@pytest.mark.behaviour("OUT-6")
def test_what_is_discarded_is_gone_and_the_history_says_so(
    call: Callable[..., Any], query: Query, store: OffsetStore
) -> None:
    assert ids(call("outbox", "discard", "4", *REASON, "--execute")) == [4]
    done = call("outbox", "discard", "--all", "--limit", "1", *REASON, "--execute")
    assert (ids(done), done["more"]) == ([1], 2)
    done = call("outbox", "discard", "--all", "--limit", "1", *REASON, "--execute")
    assert (ids(done), done["more"]) == ([2], 1)
    assert query("SELECT id FROM outbox_refused") == [(3,)]
    assert [line.event for line in store.history(GROUP)][-2:] == ["outbox-discard"] * 2
    assert store.discard_refused(GROUP, limit=1, reason="ticket 17", dry_run=True).more == 0
    assert call("outbox", "discard", "--topic", "none", *REASON, "--execute")["executed"] is False


@pytest.mark.behaviour("OUT-6")
def test_rows_that_something_in_the_database_keeps_are_not_said_to_be_discarded(
    store: OffsetStore, query: Query
) -> None:
    query("CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'")
    query("CREATE TRIGGER keep BEFORE DELETE ON outbox_refused FOR EACH ROW EXECUTE FUNCTION keep()")
    with pytest.raises(errors.ConfigurationError, match=r"not all rows could be discarded.*0 rows"):
        store.discard_refused(GROUP, [4], reason="ticket 17")
    assert "outbox-discard" not in [line.event for line in store.history(GROUP)]


def test_bad_arguments_are_refused(store: OffsetStore, run: Run, offsetstore_database: str) -> None:
    with pytest.raises(errors.ConfigurationError, match=r"no such rows of group 'billing'.*found 5, 7"):
        store.discard_refused(GROUP, [1, 5, 7], reason="ticket 17")
    with pytest.raises(errors.ConfigurationError, match="names ids, a topic, or neither"):
        store.retry_refused(GROUP, [1], topic="events", reason="ticket 17")
    with pytest.raises(errors.ConfigurationError, match="names ids, a topic, or neither"):
        store.retry_refused(GROUP, [], reason="ticket 17")
    with pytest.raises(errors.UnknownGroup):
        store.retry_refused("nobody", reason="ticket 17")
    store.claim(GROUP, StaticBroker.with_topics({"payments": 1}, end=10), mirror_every=None).close()
    store.rename_group(GROUP, "invoicing", reason="ticket 17")
    assert store.retry_refused(GROUP, [4], reason="ticket 17").executed, "a renamed group's rows stay its own"
    with InMemoryOffsetStore() as memory, pytest.raises(errors.ConfigurationError, match="job's side only"):
        memory.refused_rows(GROUP)
    ended = run("outbox", "retry", "1", "--all", "-g", GROUP, *REASON, url=offsetstore_database)
    assert (ended.exit_code, "one of the three" in ended.stderr) == (2, True)


@pytest.mark.behaviour("OUT-6", "OUT-7")
def test_status_says_how_many_rows_wait_for_how_long_and_how_many_kafka_refuses(
    call: Callable[..., Any], run: Run, offsetstore_database: str, query: Query
) -> None:
    query("UPDATE outbox SET created_at = clock_timestamp() - interval '150 min'")
    found = call("status")["outbox"]
    assert (found["rows"], found["refused"]) == (1, 4)
    assert found["oldest"]
    text = run("status", "-g", GROUP, url=offsetstore_database).stdout
    assert "1 row in the outbox, the oldest for 2h. The first is row 5, for topic events." in text
    assert (found["row"], found["topic"]) == (5, "events")
    assert f"Kafka refuses 4 rows of the outbox: `offsetstore outbox list -g {GROUP}` names them." in text
    query("DELETE FROM outbox")
    query("DELETE FROM outbox_refused")
    assert call("status")["outbox"] is None

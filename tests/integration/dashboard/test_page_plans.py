"""What the server does for each page, for the dashboard's role: the plan of every statement, as it was carried out."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from sqlalchemy import event

from offsetstore import OffsetStore, TopicPartition
from offsetstore.monitoring.dashboard.context import SPANS, Deciding
from offsetstore.monitoring.dashboard.serving import DashboardServer, DashboardSettings
from offsetstore.monitoring.dashboard.views import runs
from offsetstore.operations.letters import MOST
from offsetstore.operations.samples import RINGS
from offsetstore.operations.stored_letters import LOCK_FITTING
from offsetstore.postgres.database import PostgresDatabase
from offsetstore.postgres.schema import quoted
from offsetstore.testing import StaticBroker
from tests.integration.conftest import Query
from tests.integration.dashboard.conftest import GROUP
from tests.integration.pages.conftest import give
from tests.support.page_forms import Browser
from tests.support.plans import executed_plan

SMALL = "small"
PARTITIONS = 1_000  # of the one group; the other has one
LARGEST = 10_000  # bytes of a page, compressed

PLANT = f"""
INSERT INTO dead_letters (consumer_group, topic, partition, record_offset, state, cause, payload, error_class, sqlstate,
                          constraint_name, attempts, created_at)
SELECT g, 'payments', 0, n, CASE n % 10 WHEN 0 THEN 'replayed' WHEN 1 THEN 'requested' ELSE 'dead' END, 'refused',
       'kept', 'RowsRefused', '23514', CASE WHEN n = 2 THEN 'rare' ELSE 'common' END, 1,
       TIMESTAMPTZ '2025-03-01 00:00Z' + n * INTERVAL '1 second'
FROM generate_series(1, 40000) AS n, (VALUES ('{GROUP}'), ('another'), ('{SMALL}')) AS groups (g)
WHERE n = 13 OR g <> '{SMALL}';

INSERT INTO offset_history (consumer_group, topic, partition, event, from_offset, to_offset, epoch, claim_id, actor,
                            reason)
SELECT g, 'payments', n % 100, CASE n % 10 WHEN 0 THEN 'reset' ELSE 'adopt' END, 0, n, 1, gen_random_uuid(), 'ana', ''
FROM generate_series(1, 20000) AS n, (VALUES ('{GROUP}'), ('another')) AS groups (g);

INSERT INTO job_runs (consumer_group, epoch, claim_id, owner, topics, versions)
SELECT g || n % 20, n, gen_random_uuid(), 'ana', ARRAY['payments'], '{{}}'
FROM generate_series(100, 20000) AS n, (VALUES ('{GROUP}'), ('another')) AS groups (g);

INSERT INTO job_errors (consumer_group, epoch, source, error_class, error_text, times)
SELECT CASE n % 20 WHEN 0 THEN '{GROUP}' ELSE 'another' || n % 20 END, 1, 'batch', 'RowsRefused', 'violates', 1
FROM generate_series(1, 20000) AS n;
"""

PLANT_SAMPLES = f"""
INSERT INTO samples (consumer_group, resolution, slot, at, stored, epoch)
SELECT g, {{seconds}}, mod(CAST(floor(extract(epoch FROM t.at) / {{seconds}}) AS bigint), {{slots}}), t.at, s, 1
FROM (SELECT clock_timestamp() AS now) AS clock, generate_series(0, {{slots}} - 1) AS s,
     (SELECT '{GROUP}' UNION ALL SELECT 'another' || n FROM generate_series(1, 19) AS n) AS groups (g),
     LATERAL (SELECT clock.now - s * interval '{{seconds}} s' AS at) AS t
"""

LARGE = {"dead_letters", "offset_history", "samples", "job_runs", "job_errors"}


@pytest.fixture
def explained(reader_url: str, query: Query) -> Iterator[tuple[OffsetStore, list[dict[str, Any]]]]:
    """The store with the dashboard's role, and the plan of each statement that it sends."""
    role = quoted(reader_url.partition("//")[2].partition("@")[0])
    for name, value in (
        ("session_preload_libraries", "auto_explain"),
        ("auto_explain.log_min_duration", "0"),
        ("auto_explain.log_analyze", "on"),
        ("auto_explain.log_format", "json"),
        ("auto_explain.log_level", "notice"),
    ):
        query(f"ALTER ROLE {role} SET {name} = '{value}'")
    plans: list[dict[str, Any]] = []

    def note(diagnostic: Any) -> None:
        _duration, _plan, text = diagnostic.message_primary.partition("plan:\n")
        plans.append(json.loads(text)["Plan"])

    def listen(connection: Any, *_: object) -> None:
        connection.add_notice_handler(note)

    with OffsetStore.connect(reader_url) as reader:
        assert isinstance(reader.database, PostgresDatabase)
        reader.database.engine.dispose()  # those that are there already
        event.listen(reader.database.engine, "connect", listen)
        yield reader, plans


def most_of(page: tuple[Any, ...], table: str) -> int:
    """How many rows a scan for a page may read of a table that has 40,000 or 21,000 of the group."""
    if page[0] == "/letter" or ("rare" in str(page[1]) and "/plan" in page[0]):
        return 1
    if page[0] == "/history":
        return 10 * (runs.ON_A_PAGE + 1)  # one line in ten is of the event
    return {"dead_letters": 2 * MOST, "samples": 2_000, "job_runs": 10, "job_errors": 200}.get(table, 21_010)


def scans(plan: dict[str, Any]) -> Iterator[tuple[str, str, int]]:
    """Each table that is read, how, and how many of its rows."""
    if "Relation Name" in plan:
        rows = plan["Actual Rows"] + plan.get("Rows Removed by Filter", 0)
        yield plan["Relation Name"], plan["Node Type"], rows * plan["Actual Loops"]
    for child in plan.get("Plans", ()):
        yield from scans(child)


def lock_of(chosen: dict[str, str]) -> dict[str, object]:
    """What the statement is told that locks the dead letters which a decision about an error is about."""
    names = ("cause", "topic", "partition", "error_class", "sqlstate", "table", "constraint", "column")
    fixed = {"group": GROUP, "states": ["dead"], "payloads": ["kept"], "limit": MOST + 1}
    return {**dict.fromkeys(names), **fixed, **chosen}


def costs(client: httpx.Client, path: str, asked: dict[str, Any]) -> None:
    """Ask for a page, which is short."""
    with client.stream("GET", path, params=asked) as answer:
        assert answer.status_code == 200, (path, asked)
        assert sum(map(len, answer.iter_raw())) < LARGEST, (path, asked)


@pytest.mark.behaviour("DASH-1")
def test_pages_read_a_bounded_number_of_rows_by_an_index_with_as_many_statements_whatever_the_group(
    store: OffsetStore, explained: tuple[OffsetStore, list[dict[str, Any]]], query: Query
) -> None:
    reader, plans = explained
    broker = StaticBroker.with_topics({"payments": PARTITIONS}, end=50_000)
    for name, count in ((GROUP, PARTITIONS), (SMALL, 1)):
        give(store, name, {TopicPartition("payments", number): 41_000 for number in range(count)}, stay=False)
        store.pause(name, reason="maintenance")
    query(PLANT)
    for ring in RINGS:
        query(PLANT_SAMPLES.format(seconds=ring.seconds, slots=ring.slots))
    query("VACUUM ANALYZE")
    after = store.letters(GROUP, limit=20_000).next
    middle = store.history(GROUP, limit=10_000)[0].id
    group = {"group": GROUP}
    error = {"cause": "refused", "error_class": "RowsRefused", "sqlstate": "23514", "table": "", "column": ""}
    letter = {"topic": "payments", "partition": "0", "offset": "13"}
    pages: list[tuple[str, dict[str, Any], set[str]]] = [
        *(("/", {"span": span}, {"samples"}) for span in SPANS),
        *(("/group", {**group, "span": span}, {"samples", "job_runs", "offset_history"}) for span in SPANS),
        *(("/group", {**group, **more}, set()) for more in ({"page": 10}, {"sort": "number"}, {"lagging": 1})),
        ("/partition", {**group, "topic": "payments", "partition": 0}, {"dead_letters", "offset_history"}),
        ("/runs", group, {"job_runs", "job_errors"}),
        ("/runs", {**group, "page": 3, "errors": 3, "source": "batch"}, {"job_runs", "job_errors"}),
        *(("/letters", {**group, "state": state}, {"dead_letters"}) for state in ("open", "requested", "all")),
        ("/letters", {**group, "after": after}, {"dead_letters"}),
        ("/letters", {**group, **error, "constraint": "rare"}, {"dead_letters"}),
        ("/letters", {**group, "topic": "payments", "partition": 0, "after": after}, {"dead_letters"}),
        ("/letter", {**group, **letter}, {"dead_letters"}),
        ("/letter", {**group, **letter, "topic_id": ""}, {"dead_letters"}),
        *(("/history", {**group, **more}, {"offset_history"}) for more in ({}, {"event": "reset"}, {"before": middle})),
        ("/history", {**group, "since": "2025-03-01T09:30"}, {"offset_history"}),
        ("/store", {}, set()),
        *((f"/actions/{action}", group, set[str]()) for action in ("reset", "pause", "resume")),
        *((f"/actions/{action}", group, {"dead_letters"}) for action in ("replay", "discard")),
    ]
    forms: list[tuple[str, dict[str, str], set[str]]] = [
        ("/actions/reset/plan", {"to": "earliest"}, {"dead_letters"}),
        ("/actions/pause/plan", {}, set()),
        ("/actions/resume/plan", {}, set()),
        *(
            (f"/actions/{action}/plan", chosen, {"dead_letters"})
            for action in ("replay", "discard")
            for chosen in (letter, {**error, "constraint": "rare"}, {**error, "constraint": "common"}, error)
        ),
    ]
    with (
        DashboardServer(reader, broker, DashboardSettings(port=0), actions=Deciding(reader, broker)) as server,
        httpx.Client(base_url=server.url, timeout=60) as client,
    ):
        client.get("/login")  # answered once the first snapshot is there
        server.snapshots.take()
        server.snapshots.close()
        through: list[tuple[object, ...]] = []

        def check(page: tuple[object, ...], expected: set[str]) -> int:
            """Note what is read through; return the number of statements."""
            found = [scan for plan in plans for scan in scans(plan) if scan[0] in LARGE]
            assert {table for table, _how, _rows in found} >= expected, page
            if page != ("snapshot",):  # which counts all letters
                assert {scan[:2]: scan[2] for scan in found if scan[2] > most_of(page, scan[0])} == {}, page
            through.extend((*page, *scan) for scan in found if scan[1] == "Seq Scan")
            count = len(plans)
            plans.clear()
            return count

        check(("snapshot",), {"dead_letters", "job_runs"})
        for path, asked, expected in pages:
            costs(client, path, asked)
            count = check((path, asked), expected)
            if "group" in asked:
                costs(client, path, {**asked, "group": SMALL})
                assert check((path, SMALL), expected) == count
        for path, fields, expected in forms:
            assert Browser(client).open(path, **group, **fields).status == 200
            count = check((path, fields), expected)
            assert Browser(client).open(path, group=SMALL, **fields).status == 200
            assert check((path, SMALL), expected) == count
    assert through == []

    for chosen, index, most in (
        ({**error, "constraint": "rare"}, "dead_letters_error_idx", 1),
        ({"constraint": "rare"}, "dead_letters_error_idx", 1),
        ({**error, "constraint": "common"}, "dead_letters_pkey", 2 * MOST),
    ):
        found = [one for one in executed_plan(store, LOCK_FITTING, lock_of(chosen)) if "Relation Name" in one]
        assert [one["Index Name"] for one in found] == [index], chosen
        assert sum(one["Actual Rows"] + one.get("Rows Removed by Filter", 0) for one in found) <= most, chosen

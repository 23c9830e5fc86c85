"""Samples on PostgreSQL: how large they get, how they are read, and that no writer blocks a rename for good."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from offsetstore import Lag, OffsetStore
from offsetstore.operations import samples as sql
from offsetstore.operations.samples import RINGS, Selection
from offsetstore.testing import StaticBroker
from tests.integration.conftest import Query
from tests.integration.transacting import GROUP
from tests.support.moments import at_time
from tests.support.plans import expected_plan
from tests.support.waiting import wait_until

GROUPS = [f"group-{number:03}" for number in range(200)]

FILL = """
INSERT INTO samples (consumer_group, resolution, slot, at, stored, epoch)
SELECT 'group-' || lpad(CAST(g AS text), 3, '0'), {seconds},
       mod(CAST(floor(extract(epoch FROM t.at) / {seconds}) AS bigint), {slots}), t.at, s, 1
FROM (SELECT clock_timestamp() AS now) AS clock, generate_series(0, {slots} - 1) AS s, generate_series(0, 199) AS g,
     LATERAL (SELECT clock.now - s * interval '{seconds} s' AS at) AS t
"""


def after(lag: Lag, seconds: float) -> Lag:
    return at_time(lag, lag.store.at + timedelta(seconds=seconds))


def measured(store: OffsetStore, groups: Sequence[str]) -> Lag:
    broker = StaticBroker.with_topics({"payments": 1}, end=100)
    for group in groups:
        store.claim(group, broker, mirror_every=None).close()
    return store.lag(None, broker)


@pytest.mark.behaviour("DASH-1")
def test_a_sample_is_a_hot_update(store: OffsetStore, query: Query) -> None:
    """It touches no index, so that the table needs no vacuum to stay small."""
    lag = measured(store, GROUPS[:50])
    for number in range(20):
        store.record_samples(after(lag, number / 1_000))
    store.close()  # a server process hands in its figures when it ends

    # One row of a page may have to leave it, once.
    figures = "SELECT n_tup_ins + n_tup_upd >= 20 * 3 * 50, n_tup_hot_upd >= 0.99 * n_tup_upd"
    look = f"{figures} FROM pg_stat_user_tables WHERE relname = 'samples'"
    wait_until(lambda: query(look) == [(True, True)], timeout=60)


@pytest.mark.behaviour("DASH-1")
def test_samples_are_read_by_the_key_however_many_there_are(store: OffsetStore, query: Query) -> None:
    for ring in reversed(RINGS):  # the finest last: a minute later it would lack windows
        query(FILL.format(seconds=ring.seconds, slots=ring.slots))
    assert_all_are_read_by_the_key(store)
    query("ANALYZE samples")
    assert_all_are_read_by_the_key(store)


def assert_all_are_read_by_the_key(store: OffsetStore) -> None:
    """Before the table's first ANALYZE the planner may take the key's index through a bitmap as well."""
    one: dict[str, object] = {"group": GROUPS[7], "new": "new"}
    asked = [(sql.LOCK_SAMPLES, one), (sql.RENAME_SAMPLES, one)]
    for ring in RINGS:
        for points in (None, 60):
            chosen = Selection.of(ring.span, points)
            of_ring = {"resolution": chosen.ring.seconds, "slots": chosen.ring.slots}
            of_windows = {"step": chosen.step, "every": chosen.ring.seconds * chosen.step, "windows": chosen.windows}
            asked.append((sql.SAMPLES, {"groups": GROUPS[:50], "span": chosen.span, **of_ring, **of_windows}))
        found = store.samples(GROUPS[:50], ring.span, points=60)
        assert {len(samples) for samples in found.values()} <= {chosen.windows, chosen.windows - 1}
    for statement, values in asked:
        plan = [node for node in expected_plan(store, statement, values) if node.get("Relation Name") == "samples"]
        scans = {node["Node Type"] for node in plan if "Scan" in node["Node Type"]}
        assert scans
        assert scans <= {"Index Scan", "Bitmap Heap Scan"}
    assert [len(found) for found in store.samples(GROUPS[:1], RINGS[-1].span).values()] in ([1487], [1488])


@pytest.mark.behaviour("DASH-1")
@pytest.mark.parametrize("decision", ["rename", "delete"])
def test_who_records_and_who_renames_or_deletes_lock_the_rows_in_one_order(
    store: OffsetStore, query: Query, offsetstore_database: str, decision: str
) -> None:
    lag = measured(store, [GROUP])
    middle = datetime.fromtimestamp(lag.store.at.timestamp() // 3600 * 3600 - 1800, UTC)  # slot 180
    for seconds in (20, 10, 0):
        store.record_samples(at_time(lag, middle + timedelta(seconds=seconds)))
    query("ANALYZE samples")  # so that the table is read as it lies there, the latest slot first
    waiting = "SELECT count(*) FROM pg_locks WHERE locktype IN ('tuple', 'transactionid') AND NOT granted"

    with ThreadPoolExecutor(1) as pool, psycopg.connect(offsetstore_database) as writer:
        writer.execute("SELECT FROM samples WHERE resolution = 10 AND slot = 180 FOR UPDATE")
        if decision == "rename":
            done = pool.submit(store.rename_group, GROUP, "new", reason="ticket 17")
        else:
            done = pool.submit(store.delete_group, GROUP, reason="ticket 17")
        wait_until(lambda: query(waiting) != [(0,)])
        writer.execute("SELECT FROM samples ORDER BY resolution, slot FOR UPDATE")
        writer.commit()
        assert done.result(60).executed
    assert len(store.samples(["new"], timedelta(hours=2))["new"]) == (decision == "rename")

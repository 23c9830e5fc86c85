"""The heartbeat of a claim, as the database sees it."""

from __future__ import annotations

import time
from datetime import timedelta
from threading import Event
from typing import Any

import psycopg
import pytest
from sqlalchemy import Engine

from offsetstore import OffsetRange, OffsetStore
from offsetstore.errors import OffsetGap
from offsetstore.local.postgres import PostgresServer
from offsetstore.protocol import runs as protocol_runs
from offsetstore.protocol.events import BatchEnded, BatchStarted
from offsetstore.store import heartbeat
from tests.integration.conftest import Query
from tests.integration.store.meeting import P0
from tests.support.waiting import wait_until

BEAT = "SELECT beat_at FROM heartbeats"


@pytest.fixture(autouse=True)
def fast_beats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "INTERVAL", 0.1)


def beats(query: Query) -> bool:
    """Whether a heartbeat comes within twenty intervals."""
    before = query(BEAT)
    deadline = time.monotonic() + 20 * heartbeat.INTERVAL
    while time.monotonic() < deadline:
        if query(BEAT) != before:
            return True
    return False


def wait_for_a_beat(query: Query) -> None:
    """The next one."""
    before = query(BEAT)
    wait_until(lambda: query(BEAT) != before)


@pytest.mark.behaviour("START-22")
def test_it_skips_its_beats_while_the_bound_query_has_ended_and_beats_again_once_it_runs(
    store: OffsetStore, query: Query
) -> None:
    runs = True
    asked: list[bool] = []

    def is_active() -> bool:
        asked.append(runs)
        return runs

    def ask_twice() -> None:
        """Until it was asked about what is the case now, and has acted upon it."""
        seen = len(asked)
        wait_until(lambda: len(asked) > seen + 2)

    with store.claim("billing", topics=["payments"]) as claim:
        wait_for_a_beat(query)
        claim.bind("one", is_active)
        ask_twice()
        wait_for_a_beat(query)
        runs = False
        ask_twice()
        wait_until(lambda: not beats(query))
        runs = True
        ask_twice()
        wait_for_a_beat(query)


@pytest.mark.behaviour("START-22")
def test_the_next_claim_does_not_wait_for_a_query_that_has_ended_in_a_process_that_lives(
    store: OffsetStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol_runs, "LIVE", timedelta(seconds=1))
    first = store.claim("billing", topics=["payments"])
    first.bind("one", lambda: False)

    assert store.claim("billing", topics=["payments"], takeover="wait", takeover_timeout=10).token.epoch == 2


@pytest.mark.behaviour("START-22")
def test_a_query_that_can_t_be_asked_or_does_not_answer_counts_as_running(store: OffsetStore, query: Query) -> None:
    answers, hangs = Event(), Event()
    failures: list[int] = []

    def fails() -> bool:
        failures.append(0)
        raise ConnectionError("the JVM is gone")

    def never_answers() -> bool:
        hangs.set()
        answers.wait()
        return False

    with store.claim("billing", topics=["payments"]) as claim:
        claim.bind("one", fails)
        wait_until(lambda: len(failures) > 2)
        wait_for_a_beat(query)
        claim.bind("one", never_answers)
        assert hangs.wait(60)
        wait_for_a_beat(query)
        claim.bind("one", lambda: True)  # it was started again
        answers.set()
        wait_for_a_beat(query)  # the answer is about an earlier run


@pytest.mark.behaviour("OPS-11")
def test_each_heartbeat_records_the_run_and_an_ended_query_records_its_end(store: OffsetStore) -> None:
    runs = True
    batch: dict[str, Any] = {"group": "billing", "batch": 3, "ranges": {P0: OffsetRange(0, 40)}}
    with store.claim("billing", topics=["payments"]) as claim:
        claim.bind("one", lambda: runs)
        claim.observers.on(BatchStarted(**batch))
        wait_until(lambda: store.runs("billing")[0].status.phase == "batch")
        seen = store.runs("billing")[0].seen_at
        wait_until(lambda: store.runs("billing")[0].seen_at > seen)

        claim.observers.on(BatchEnded(outcome="failed", error=OffsetGap("a gap"), **batch))
        runs = False
        wait_until(lambda: store.runs("billing")[0].state == "failed")
        assert [error.error_class for error in store.errors("billing")] == ["OffsetGap"]


def test_heartbeats_go_on_where_runs_can_t_be_recorded(
    store: OffsetStore, query: Query, offsetstore_database: str
) -> None:
    with store.claim("billing", topics=["payments"]), psycopg.connect(offsetstore_database) as locking:
        locking.execute("LOCK TABLE job_runs")
        wait_for_a_beat(query)
        locking.rollback()
        locking.execute("ALTER TABLE job_runs RENAME TO gone")
        locking.commit()
        wait_for_a_beat(query)


@pytest.mark.behaviour("OPS-11")
def test_a_fenced_claim_records_that_stops_beating_and_does_not_come_back(
    store: OffsetStore, query: Query, caplog: pytest.LogCaptureFixture
) -> None:
    first = store.claim("billing", topics=["payments"])
    wait_for_a_beat(query)
    second = store.claim("billing", topics=["payments"])

    wait_until(lambda: "the claim of group 'billing' has been taken over" in caplog.text)
    wait_until(lambda: query("SELECT ending FROM job_runs ORDER BY epoch") == [("fenced",), (None,)])

    of_second = [(second.token.claim_id,)]
    assert query("SELECT claim_id FROM heartbeats") == of_second
    first.close()
    assert query("SELECT claim_id FROM heartbeats") == of_second
    second.close()
    assert query(BEAT) == []


def test_beats_that_fail_are_made_up_for_and_leave_no_connection_behind(
    engine: Engine, offsetstore_database: str, query: Query
) -> None:
    with OffsetStore.connect(engine) as store, store.claim("billing", topics=["payments"]):
        with psycopg.connect(offsetstore_database) as blocking:
            blocking.execute("LOCK TABLE heartbeats")
            failed = "SELECT sum(xact_rollback) FROM pg_stat_database WHERE datname = current_database()"
            before = query(failed)
            wait_until(lambda: query(failed) > before)
        then = query(BEAT)

        wait_until(lambda: query(BEAT) > then)

        assert engine.pool.status().count("Connections in pool") == 1
        wait_until(lambda: _checked_out(engine) == 0)


def test_it_survives_a_database_that_is_away_for_a_moment_and_leaving_while_it_is_away_is_no_error(
    private_postgres: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    with OffsetStore.connect(private_postgres.url) as store:
        claim = store.claim("billing", topics=["payments"])
        private_postgres.stop("immediate")
        time.sleep(0.5)  # some beats meet a closed port
        private_postgres.start()
        with psycopg.connect(private_postgres.url, autocommit=True) as connection:
            first = connection.execute(BEAT).fetchall()
            wait_until(lambda: connection.execute(BEAT).fetchall() > first)
        private_postgres.stop("immediate")

        claim.close()

    assert "could not remove the claim's last heartbeat: StoreUnavailable" in caplog.text


def test_leaving_does_not_wait_for_a_lock_for_ever(store: OffsetStore, offsetstore_database: str) -> None:
    claim = store.claim("billing", topics=["payments"])
    with psycopg.connect(offsetstore_database) as blocking:
        blocking.execute("LOCK TABLE heartbeats")
        began = time.monotonic()

        claim.close()

        assert time.monotonic() - began < 5


def _checked_out(engine: Engine) -> int:
    count = getattr(engine.pool, "checkedout", None)
    assert count is not None
    return count()

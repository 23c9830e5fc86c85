"""The engine with a second source, on PostgreSQL, without Spark and Kafka: see `tests.support.memory_source`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from offsetstore import Append, Flush, OffsetStore
from offsetstore.processing.runner import RunnerSettings
from offsetstore.protocol.events import BatchEnded
from tests.integration.conftest import Query
from tests.support.memory_source import GOOD, LOG, P0, P1, SETTINGS, MemorySource
from tests.support.recorder import Recorder

ROOT = Path(__file__).parents[3]
ROWS = "SELECT record FROM results ORDER BY record"
FAILURES = "SELECT record_offset, attempts, errors FROM failures ORDER BY 1"
LETTERS = "SELECT partition, record_offset, cause, state FROM dead_letters ORDER BY 1, 2"
_NAMES = ("source_partition", "source_offset", "source_attempts", "source_error_class")
_HEADERS = ", ".join(
    f"""(SELECT convert_from(decode(one ->> 1, 'base64'), 'UTF8') FROM jsonb_array_elements(headers) AS one
         WHERE one ->> 0 = '{name}') AS {name}"""
    for name in _NAMES
)
PRODUCED = f"SELECT key, value, {_HEADERS} FROM outbox WHERE topic = 'payments-dlq' ORDER BY source_offset"
ALL_LETTERS = [(0, 2, "refused", "dead"), (0, 4, "raised", "dead"), (0, 6, "rejected", "dead")]


@pytest.fixture(autouse=True)
def _table(query: Query) -> None:
    query("CREATE TABLE results (record bigint CONSTRAINT unlucky CHECK (record <> 13))")


@pytest.fixture
def store(offsetstore_database: str, recorder: Recorder) -> Iterator[OffsetStore]:
    with OffsetStore.connect(offsetstore_database, observers=[recorder]) as connected:
        yield connected


def numbers(query: Query) -> list[int]:
    return [number for (number,) in query(ROWS)]


def run_job(url: str, kind: str, failpoint: str | None = None) -> None:
    """Run a job to its end, or to the failpoint where it is killed; it prints what it has of Spark's and Kafka's."""
    environment = {name: value for name, value in os.environ.items() if name != "OFFSETSTORE_FAILPOINT"}
    ended = subprocess.run(
        [sys.executable, "-m", "tests.support.memory_source", url, "billing", kind],
        cwd=ROOT,
        env=environment | ({} if failpoint is None else {"OFFSETSTORE_FAILPOINT": failpoint}),
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert (ended.returncode, ended.stdout.strip()) == (-signal.SIGKILL if failpoint else 0, ""), ended.stderr


@pytest.mark.parametrize("failpoint", ["after_commit:3", "in_discovery:2", "letters_written"])
@pytest.mark.behaviour("DLQ-1", "DLQ-2", "DLQ-9", "OUT-8")
def test_a_job_that_is_killed_writes_each_record_once(
    store: OffsetStore, query: Query, offsetstore_database: str, failpoint: str
) -> None:
    run_job(offsetstore_database, "letters", failpoint)
    if failpoint == "letters_written":  # before the first COMMIT
        assert (numbers(query), query(LETTERS), query(PRODUCED)) == ([], [], [])
    run_job(offsetstore_database, "letters")
    assert numbers(query) == GOOD
    assert query(LETTERS) == ALL_LETTERS
    assert query("SELECT DISTINCT times FROM dead_letters") == [(1,)]
    assert query(PRODUCED) == query(
        "SELECT key, value, partition::text, record_offset::text, attempts::text, error_class FROM dead_letters "
        "ORDER BY record_offset"
    )
    assert {tp: row.next_offset for tp, row in store.offsets("billing").items()} == {P0: 8, P1: 6}


@pytest.mark.behaviour("DLQ-3")
def test_a_record_that_is_good_after_a_kill_is_written_and_its_attempts_are_forgotten(
    query: Query, offsetstore_database: str
) -> None:
    run_job(offsetstore_database, "letters", "failures_written")
    assert (numbers(query), query(FAILURES)) == ([], [(2, 1, {"23514": 1})])
    query("ALTER TABLE results DROP CONSTRAINT unlucky")

    run_job(offsetstore_database, "letters")
    assert numbers(query) == sorted([*GOOD, 13])
    assert (query(LETTERS), query(FAILURES)) == (ALL_LETTERS[1:], [])


def test_a_replay_that_is_killed_is_done_once(store: OffsetStore, query: Query, offsetstore_database: str) -> None:
    with store.claim("billing", topics=["payments"]) as claim:
        MemorySource(claim, Append("results"), SETTINGS["letters"](), LOG).drain_log()
    query("ALTER TABLE results DROP CONSTRAINT unlucky")
    [refused] = [letter for letter in store.letters("billing").letters if letter.cause == "refused"]
    store.request_replay("billing", [refused], reason="the table takes them now")
    run_job(offsetstore_database, "replay", "letters_replayed")
    assert numbers(query) == GOOD

    run_job(offsetstore_database, "replay")
    assert numbers(query) == sorted([*GOOD, 13])


def test_what_is_kept_is_written_at_the_end_in_one_transaction_and_a_crash_before_it_loses_nothing(
    store: OffsetStore, query: Query, recorder: Recorder, offsetstore_database: str
) -> None:
    run_job(offsetstore_database, "flush", "before_commit:2")
    assert numbers(query) == []

    claim = store.claim("billing", topics=["payments"])
    source = MemorySource(claim, Append("results"), RunnerSettings(flush=Flush(rows=1000)), {P1: LOG[P1]})
    source.drain_log()
    assert len(recorder.of(BatchEnded, "kept")) == 2
    assert numbers(query) == []
    claim.close()
    assert numbers(query) == [20, 21, 22, 23, 24, 25]
    assert store.offsets("billing")[P1].next_offset == 6

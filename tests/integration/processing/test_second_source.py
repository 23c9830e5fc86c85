"""The engine with a second source, on PostgreSQL, without Spark and Kafka: see `tests.support.memory_source`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest

from offsetstore import Append, DeadLetters, Flush, OffsetRange, OffsetStore, Tick, Work
from offsetstore.errors import RowsRefused, StaleClaim
from offsetstore.processing.runner import Interrupted, Settings
from offsetstore.protocol.events import BatchEnded, PauseChanged
from offsetstore.writers.into_table import IntoTable
from tests.integration.conftest import Query
from tests.support.background import in_background
from tests.support.memory_source import GOOD, LOG, P0, P1, Log, MemorySource
from tests.support.recorder import Recorder
from tests.support.waiting import wait_until

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


def source_of(store: OffsetStore, settings: Settings, *, log: Log = LOG) -> MemorySource:
    return MemorySource(store.claim("billing", topics=["payments"]), Append("results"), settings, log)


def numbers(query: Query) -> list[int]:
    return [number for (number,) in query(ROWS)]


def request_replay(store: OffsetStore) -> None:
    refused = [letter for letter in store.letters("billing").letters if letter.cause == "refused"]
    store.request_replay("billing", refused, reason="the table takes them now")


def run_job(url: str, kind: str, failpoint: str | None = None) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "OFFSETSTORE_FAILPOINT"}
    return subprocess.run(
        [sys.executable, "-m", "tests.support.memory_source", url, "billing", kind],
        cwd=ROOT,
        env=environment | ({} if failpoint is None else {"OFFSETSTORE_FAILPOINT": failpoint}),
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def test_without_dead_letters_a_refused_record_ends_the_job_and_what_comes_before_it_is_stored(
    store: OffsetStore, query: Query, recorder: Recorder
) -> None:
    source = source_of(store, Settings())
    with pytest.raises(RowsRefused, match="first refused at record payments-0@2") as refused:
        source.drain_log()
    assert "--from-offset 2 --to-offset 3" in str(refused.value)
    assert numbers(query) == [0, 1]
    assert source.runner.error is refused.value
    [failed] = recorder.of(BatchEnded, "failed")
    assert failed.stored == {P0: OffsetRange(0, 2)}


def test_a_record_that_cant_be_computed_is_named(store: OffsetStore, query: Query) -> None:
    with pytest.raises(RowsRefused, match="first refused at record payments-0@1"):
        source_of(store, Settings(), log={P0: [b"0", b"bad", b"2"]}).drain_log()
    assert numbers(query) == [0]


def test_bad_records_become_letters_and_are_replayed_when_they_are_asked_for(
    store: OffsetStore, query: Query, recorder: Recorder
) -> None:
    source = source_of(store, Settings(dead_letters=DeadLetters(max_retries=1)))
    source.drain_log()
    assert numbers(query) == GOOD
    assert query(LETTERS) == ALL_LETTERS
    assert len(recorder.of(BatchEnded, "written")) == 3

    query("ALTER TABLE results DROP CONSTRAINT unlucky")
    request_replay(store)
    assert source.runner.drain(source.compute) == 1
    assert numbers(query) == sorted([*GOOD, 13])
    assert [state for *_, state in query(LETTERS)] == ["replayed", "dead", "dead"]


def test_values_that_never_fit_become_letters_without_a_trial(
    store: OffsetStore, query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    query("ALTER TABLE results ALTER record TYPE int")
    source = source_of(store, Settings(dead_letters=DeadLetters()), log={P0: [b"0", b"99999999999", b"2"]})
    wrote = Mock(wraps=Append("results").write)
    monkeypatch.setattr(IntoTable, "write", wrote)
    source.poll()
    assert (numbers(query), query(LETTERS)) == ([0, 2], [(0, 1, "refused", "dead")])
    assert wrote.call_count == 2  # the whole, and the good ones


@pytest.mark.parametrize(
    "failpoint",
    [
        "before_lock:2",
        "after_lock:3",
        "in_copy:2",
        "before_commit:4",
        "after_commit:3",
        "in_discovery:1",
        "in_discovery:2",
        "letters_written",
    ],
)
@pytest.mark.behaviour("DLQ-1", "DLQ-2", "DLQ-9", "OUT-8")
def test_a_job_that_is_killed_writes_each_record_once(
    store: OffsetStore, query: Query, offsetstore_database: str, failpoint: str
) -> None:
    killed = run_job(offsetstore_database, "letters", failpoint)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    if failpoint == "letters_written":  # before the first COMMIT
        assert (numbers(query), query(LETTERS), query(PRODUCED)) == ([], [], [])
    ended = run_job(offsetstore_database, "letters")
    assert ended.returncode == 0, ended.stderr
    assert numbers(query) == GOOD
    assert query(LETTERS) == ALL_LETTERS
    assert query("SELECT DISTINCT times FROM dead_letters") == [(1,)]
    assert query(PRODUCED) == query(
        "SELECT key, value, partition::text, record_offset::text, attempts::text, error_class FROM dead_letters "
        "ORDER BY record_offset"
    )
    assert {tp: row.next_offset for tp, row in store.offsets("billing").items()} == {P0: 8, P1: 6}


@pytest.mark.behaviour("DLQ-3")
def test_attempts_survive_a_kill(query: Query, offsetstore_database: str) -> None:
    killed = run_job(offsetstore_database, "letters", "failures_written")
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert query(FAILURES) == [(2, 1, {"23514": 1})]
    assert numbers(query) == []

    assert run_job(offsetstore_database, "letters").returncode == 0
    assert query("SELECT attempts FROM dead_letters WHERE record_offset = 2") == [(2,)]
    assert query(LETTERS) == ALL_LETTERS
    assert query(FAILURES) == []


@pytest.mark.behaviour("DLQ-3")
def test_a_record_that_is_good_after_a_kill_is_written_and_its_attempts_are_forgotten(
    query: Query, offsetstore_database: str
) -> None:
    assert run_job(offsetstore_database, "letters", "failures_written").returncode == -signal.SIGKILL
    query("ALTER TABLE results DROP CONSTRAINT unlucky")

    assert run_job(offsetstore_database, "letters").returncode == 0
    assert numbers(query) == sorted([*GOOD, 13])
    assert (query(LETTERS), query(FAILURES)) == (ALL_LETTERS[1:], [])


def test_a_replay_that_is_killed_is_done_once(store: OffsetStore, query: Query, offsetstore_database: str) -> None:
    assert run_job(offsetstore_database, "letters").returncode == 0
    query("ALTER TABLE results DROP CONSTRAINT unlucky")
    request_replay(store)
    killed = run_job(offsetstore_database, "replay", "letters_replayed")
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert numbers(query) == GOOD

    assert run_job(offsetstore_database, "replay").returncode == 0
    assert numbers(query) == sorted([*GOOD, 13])


def test_the_engine_imports_neither_spark_nor_kafka(offsetstore_database: str) -> None:
    ended = run_job(offsetstore_database, "letters")
    assert (ended.returncode, ended.stdout.strip()) == (0, ""), ended.stderr


def test_what_is_kept_is_written_at_the_end_in_one_transaction_and_a_crash_before_it_loses_nothing(
    store: OffsetStore, query: Query, recorder: Recorder, offsetstore_database: str
) -> None:
    killed = run_job(offsetstore_database, "flush", "before_commit:2")
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert numbers(query) == []

    source = source_of(store, Settings(flush=Flush(rows=1000)), log={P1: LOG[P1]})
    source.drain_log()
    assert len(recorder.of(BatchEnded, "kept")) == 2
    assert numbers(query) == []
    source.runner.claim.close()
    assert numbers(query) == [20, 21, 22, 23, 24, 25]
    assert store.offsets("billing")[P1].next_offset == 6


def test_a_paused_group_waits_and_a_stop_leaves_the_batch_to_the_next_start(
    store: OffsetStore, query: Query, recorder: Recorder
) -> None:
    source = source_of(store, Settings(), log={P1: LOG[P1]})
    store.pause("billing", reason="maintenance")
    polling = in_background(source.poll)
    wait_until(lambda: recorder.of(PauseChanged) != [])
    source.runner.stop(source.stopping.set, timeout=30)
    with pytest.raises(Interrupted):
        polling.result(timeout=30)
    assert len(recorder.of(BatchEnded, "interrupted")) == 1
    assert numbers(query) == []

    store.resume("billing", reason="done")
    source.stopping.clear()
    source.drain_log()
    assert numbers(query) == [20, 21, 22, 23, 24, 25]


def test_a_delivery_that_is_handed_over_again_is_skipped_and_a_stale_job_writes_nothing(
    store: OffsetStore, query: Query, recorder: Recorder
) -> None:
    source, log = source_of(store, Settings(), log={P1: LOG[P1]}), {P1: LOG[P1]}
    again = MemorySource(source.runner.claim, Append("results"), Settings(), log)
    source.drain_log()
    again.poll()
    assert len(recorder.of(BatchEnded, "skipped")) == 1
    source_of(store, Settings())
    with pytest.raises(StaleClaim):
        again.poll()
    assert numbers(query) == [20, 21, 22, 23, 24, 25]


def test_idle_work_is_done_between_deliveries(store: OffsetStore, query: Query) -> None:
    done = threading.Event()

    def work(tx: Work) -> None:
        tx.connection.exec_driver_sql("INSERT INTO results VALUES (99)")
        done.set()

    source = source_of(store, Settings(tick=Tick(work, every=0.05)), log={})
    assert done.wait(30)
    source.runner.claim.close()
    assert 99 in numbers(query)

"""Recovery on PostgreSQL: a job that is killed while it tries a bad record again, and errors that blame no record."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from offsetstore import DeadLetters, OffsetRange, OffsetStore, Retries, TopicPartition
from offsetstore.errors import RowsRefused
from offsetstore.processing.batch_metadata import BatchMetadata
from offsetstore.processing.cycle import with_replanning
from offsetstore.processing.recovery import Recovery
from tests.support.recovering_job import compute

if TYPE_CHECKING:
    from tests.integration.conftest import Query

P0 = TopicPartition("payments", 0)
ROOT = Path(__file__).parents[3]
FAILURES = "SELECT record_offset, attempts, errors FROM failures ORDER BY 1"
LETTERS = "SELECT record_offset, attempts, sqlstate, convert_from(value, 'UTF8') FROM dead_letters"


@pytest.fixture(autouse=True)
def _table(query: Query) -> None:
    query("CREATE TABLE results (record bigint CHECK (record <> 3))")


def run_job(url: str, failpoint: str | None) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "OFFSETSTORE_FAILPOINT"}
    return subprocess.run(
        [sys.executable, "-m", "tests.support.recovering_job", url, "billing"],
        cwd=ROOT,
        env=environment | ({} if failpoint is None else {"OFFSETSTORE_FAILPOINT": failpoint}),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def killed_at(failpoint: str, url: str) -> None:
    killed = run_job(url, failpoint)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert f"failpoint {failpoint.partition(':')[0]}: kill" in killed.stderr


def ends_well(url: str) -> None:
    ended = run_job(url, None)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.behaviour("DLQ-3")
def test_attempts_survive_a_kill(store: OffsetStore, query: Query, offsetstore_database: str) -> None:
    killed_at("failures_written:2", offsetstore_database)
    assert query(FAILURES) == [(3, 2, {"23514": 2})]
    assert query("SELECT * FROM results") == []

    ends_well(offsetstore_database)
    assert query(LETTERS) == [(3, 4, "23514", "(0, 3)")]
    assert query("SELECT record FROM results ORDER BY 1") == [(0,), (1,), (2,), (4,)]
    assert query(FAILURES) == []
    assert store.offsets("billing")[P0].next_offset == 5


@pytest.mark.behaviour("DLQ-3")
def test_a_record_that_is_good_after_a_kill_is_written_and_its_attempts_are_forgotten(
    store: OffsetStore, query: Query, offsetstore_database: str
) -> None:
    killed_at("failures_written:3", offsetstore_database)
    query("ALTER TABLE results DROP CONSTRAINT results_record_check")

    ends_well(offsetstore_database)
    assert query("SELECT record FROM results ORDER BY 1") == [(0,), (1,), (2,), (3,), (4,)]
    assert (query(LETTERS), query(FAILURES)) == ([], [])
    assert store.offsets("billing")[P0].next_offset == 5


@pytest.mark.behaviour("DLQ-2", "DLQ-3")
@pytest.mark.parametrize("point", ["in_discovery:1", "in_discovery:3", "letters_written", "before_commit:5"])
def test_a_kill_on_the_way_leaves_no_letter_and_no_row_behind(
    query: Query, offsetstore_database: str, point: str
) -> None:
    """The COMMITs are: the partition's row, three tries, and the batch."""
    killed_at(point, offsetstore_database)
    assert query("SELECT * FROM results") == []
    assert query(LETTERS) == []

    ends_well(offsetstore_database)
    assert query("SELECT count(*) FROM results") == [(4,)]
    assert query(LETTERS) == [(3, 4, "23514", "(0, 3)")]
    assert query(FAILURES) == []


@pytest.mark.behaviour("DLQ-1")
def test_a_kill_after_the_commit_writes_no_second_letter(query: Query, offsetstore_database: str) -> None:
    killed_at("after_commit:5", offsetstore_database)
    assert query(LETTERS) == [(3, 4, "23514", "(0, 3)")]

    ends_well(offsetstore_database)
    assert query("SELECT count(*) FROM results") == [(4,)]
    assert query("SELECT times FROM dead_letters") == [(1,)]


@pytest.mark.behaviour("DLQ-6")
@pytest.mark.parametrize(
    "sqlstate",
    [
        "08006",
        "25006",
        "25P04",
        "28000",
        "40001",
        "40P01",
        "53100",
        "53200",
        "55P03",
        "57014",
        "57P01",
        "58030",
        "XX000",
    ],
)
def test_an_outage_counts_for_no_record(offsetstore_database: str, query: Query, sqlstate: str) -> None:
    query("CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS "
          f"$$ BEGIN RAISE EXCEPTION 'no' USING ERRCODE = '{sqlstate}'; END $$")  # fmt: skip
    query("CREATE TRIGGER fail BEFORE INSERT ON results FOR EACH ROW WHEN (NEW.record = 1) EXECUTE FUNCTION fail()")
    query("ALTER TABLE results DROP CONSTRAINT results_record_check")

    with OffsetStore.connect(offsetstore_database, retries=Retries(attempts=2, shortest=0.0)) as store:
        with pytest.raises(Exception) as ended:  # noqa: PT011 - which one, is the errors' own tests' concern
            write(store)
        assert not isinstance(ended.value, RowsRefused)
        assert store.offsets("billing")[P0].next_offset == 0
    assert (query(LETTERS), query(FAILURES), query("SELECT * FROM results")) == ([], [], [])


@pytest.mark.behaviour("DLQ-6")
@pytest.mark.parametrize("sqlstate", ["40001", "53100", "55P03", "57014", "XX000"])
def test_an_outage_in_the_middle_of_discovery_counts_for_no_record(
    offsetstore_database: str, query: Query, sqlstate: str
) -> None:
    """Record 3 is refused in any company, and the server fails once it is tried without record 0."""
    query("CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
          "IF (SELECT count(*) FROM fresh) > 1 AND NOT EXISTS (SELECT FROM fresh WHERE record = 0) THEN "
          f"RAISE EXCEPTION 'no' USING ERRCODE = '{sqlstate}'; END IF; RETURN NULL; END $$")  # fmt: skip
    query("CREATE TRIGGER fail AFTER INSERT ON results REFERENCING NEW TABLE AS fresh "
          "FOR EACH STATEMENT EXECUTE FUNCTION fail()")  # fmt: skip
    query("ALTER TABLE results DROP CONSTRAINT results_record_check, "
          "ADD CONSTRAINT late UNIQUE (record) DEFERRABLE INITIALLY DEFERRED")  # fmt: skip
    query("INSERT INTO results VALUES (3)")

    with OffsetStore.connect(offsetstore_database, retries=Retries(attempts=2, shortest=0.0)) as store:
        with pytest.raises(Exception) as ended:  # noqa: PT011 - see above
            write(store)
        assert not isinstance(ended.value, RowsRefused)
        assert store.offsets("billing")[P0].next_offset == 0
    assert (query(LETTERS), query(FAILURES)) == ([], [])
    assert query("SELECT * FROM results") == [(3,)]


def write(store: OffsetStore) -> None:
    claim = store.claim("billing", topics=["payments"])
    recovery = Recovery(claim, DeadLetters(max_retries=0), BatchMetadata(claim, None))
    with_replanning(lambda: recovery.write(0, {P0: OffsetRange(0, 5)}, compute, lambda _: None), "batch 0")

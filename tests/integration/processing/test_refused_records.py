"""The search for a refused record, in the database: what it names, and that it is fenced as any transaction is."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pytest

from offsetstore import Append, Claim, Execute, OffsetRange, OffsetStore, TopicPartition, Upsert
from offsetstore.errors import RowsRefused, StaleClaim
from offsetstore.postgres.errors import refusals
from offsetstore.processing.blame import blame
from offsetstore.processing.plan import Plan
from offsetstore.processing.unit import Coordinates, Ranges
from offsetstore.protocol.ports import Writer
from offsetstore.protocol.replay import decide
from offsetstore.protocol.work import Work
from offsetstore.spark.collecting import OnDriver
from offsetstore.spark.executors.task import TaskEnding, Tasks
from offsetstore.store.identity import TaskClaim
from tests.integration.conftest import Query
from tests.integration.transacting import process
from tests.integration.writers.writing import batch, kafka
from tests.support.background import in_background
from tests.support.units import commit_rows, tried
from tests.support.work import here

P0 = TopicPartition("payments", 0)


@pytest.fixture
def claim(store: OffsetStore) -> Claim:
    return store.claim("billing", topics=["payments"])


def attempt(
    claim: Claim, writer: Writer, rows: Sequence[Mapping[str, Any]], part: Ranges, without: Collection[Coordinates] = ()
) -> int:
    """Write some of the rows, of which each is one record's, and take them back."""
    chosen = [rows[at] for at in range(part[P0].from_, part[P0].until) if (P0, at) not in without]
    batches = [batch({name: [row[name] for row in chosen] for name in rows[0]})] if chosen else []
    plan = {P0: decide(0, OffsetRange(0, len(rows)))}
    return tried(claim, plan, lambda work: writer.write(work, batches))


def search(claim: Claim, writer: Writer, rows: Sequence[Mapping[str, Any]]) -> RowsRefused:
    """Fail with all of them, as the batch does, and look for the one; nothing is stored."""
    whole = {P0: OffsetRange(0, len(rows))}
    with pytest.raises(RowsRefused) as caught:
        attempt(claim, writer, rows, whole)
    return blame(caught.value, whole, lambda part, without: attempt(claim, writer, rows, part, without), claim)


def insert_family(work: Work, batches: Iterable[pa.RecordBatch]) -> None:
    with refusals(None):
        for rows in batches:
            for row in rows.to_pylist():
                values = (row["id"], row["parent"], row["note"])
                if row["parent"] is None:
                    work.connection.connection.cursor().execute("INSERT INTO parents VALUES (%s)", values[:1])
                else:
                    work.connection.connection.cursor().execute("INSERT INTO children VALUES (%s, %s, %s)", values)


def test_a_child_whose_parent_comes_later_is_not_blamed(claim: Claim, query: Query) -> None:
    query("CREATE TABLE parents (id bigint PRIMARY KEY)")
    query(
        "CREATE TABLE children"
        " (id bigint, parent bigint REFERENCES parents DEFERRABLE INITIALLY DEFERRED, note text NOT NULL)"
    )
    rows: list[dict[str, Any]] = [{"id": number, "parent": None, "note": "n"} for number in range(8)]
    rows[0] = {"id": 1, "parent": 6, "note": "n"}
    rows[7] = {"id": 2, "parent": 2, "note": None}

    found = search(claim, Execute(insert_family), rows)

    assert (found.column, found.offsets) == ("note", OffsetRange(0, 8))
    assert "reset" not in found.next_step


@pytest.mark.behaviour("TX-18")
def test_a_withdrawal_that_a_later_deposit_covers_is_not_blamed(claim: Claim, query: Query) -> None:
    """The whole batch is combined by key first; a part of it may end before the deposit."""
    query("CREATE TABLE balances (account text PRIMARY KEY, amount bigint CHECK (amount >= 0))")
    rows = [{"account": f"other {number}", "amount": 1} for number in range(8)]
    rows[1], rows[5] = {"account": "A", "amount": -50}, {"account": "A", "amount": 100}
    rows[7] = {"account": "B", "amount": -5}

    found = search(claim, Upsert("balances", key=["account"], add=["amount"]), rows)

    assert found.offsets == OffsetRange(1, 8)
    assert "reset" not in found.next_step


def test_a_search_of_a_job_that_was_taken_over_ends_with_that(store: OffsetStore, claim: Claim, query: Query) -> None:
    """Otherwise it would meet what its successor has written, and blame an innocent record."""
    query("CREATE TABLE once (id bigint PRIMARY KEY, amount bigint NOT NULL)")
    rows = [{"id": number, "amount": None if number == 6 else number} for number in range(8)]
    whole = {P0: OffsetRange(0, 8)}
    with pytest.raises(RowsRefused) as caught:
        attempt(claim, Append("once"), rows, whole)
    query("INSERT INTO once SELECT n, n FROM generate_series(0, 7) n")
    store.claim("billing", topics=["payments"])

    with pytest.raises(StaleClaim):
        blame(caught.value, whole, lambda part, without: attempt(claim, Append("once"), rows, part, without), claim)


def test_a_frozen_search_is_ended_by_a_claim_and_ends_with_that(
    store: OffsetStore, claim: Claim, query: Query, results: str
) -> None:
    is_frozen, goes_on = threading.Event(), threading.Event()

    def write(work: Work) -> int:
        work.connection.exec_driver_sql(f"INSERT INTO {results} VALUES (1)")
        is_frozen.set()
        assert goes_on.wait(60)
        work.connection.exec_driver_sql(f"INSERT INTO {results} VALUES (2)")
        return 2

    searching = in_background(lambda: tried(claim, {P0: decide(0, OffsetRange(0, 8))}, write))
    assert is_frozen.wait(60)

    store.claim("billing", topics=["payments"], takeover_timeout=1)

    query(f"ALTER TABLE {results} ADD free boolean")  # waits for whoever still has written to it
    goes_on.set()
    with pytest.raises(StaleClaim):
        searching.result(timeout=60)
    assert query(f"SELECT * FROM {results}") == []


# -- deferred constraints

# As it is in an application that holds its results and our offset together.
AGREE = """
CREATE FUNCTION agree() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  IF (SELECT count(*) FROM results) <> (SELECT next_offset FROM kafka_partitions WHERE partition = 0) THEN
    RAISE EXCEPTION 'results and offset disagree';
  END IF;
  RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER agree AFTER INSERT ON results DEFERRABLE INITIALLY DEFERRED
FOR EACH ROW EXECUTE FUNCTION agree()
"""


@pytest.fixture
def agreeing(store: OffsetStore, claim: Claim, query: Query, results: str) -> Query:
    """The table of results, which at COMMIT has as many rows as the stored offset says; of three records by now."""
    query(AGREE)
    process(store, claim, P0, range_=OffsetRange(0, 3))
    assert query(f"SELECT count(*) FROM {results}") == [(3,)]
    return query


ROWS = batch({"record": [3, 4], "_kafka": kafka(("payments", 0, 3), ("payments", 0, 4))})


def write_batch(claim: Claim, *, until: int) -> None:
    commit_rows(claim, Plan.of(claim, {P0: OffsetRange(3, until)}), {"": OnDriver(Append("results"), [ROWS])})


def test_a_deferred_trigger_that_reads_the_offset_sees_the_batchs(claim: Claim, agreeing: Query) -> None:
    write_batch(claim, until=5)

    assert agreeing("SELECT count(*) FROM results") == [(5,)]


def test_a_deferred_trigger_that_reads_the_offset_sees_the_tasks(
    store: OffsetStore, claim: Claim, agreeing: Query
) -> None:
    decision = decide(3, OffsetRange(3, 5))
    tasks = Tasks(here(store), TaskClaim.of(claim), Append("results"), [decision], [P0], None, 30.0)

    result = tasks.perform(0, iter([ROWS, None]))

    assert result.ending is TaskEnding.WRITTEN, result.why()
    assert agreeing("SELECT count(*) FROM results") == [(5,)]


def test_what_a_deferred_trigger_refuses_is_refused_before_the_commit(claim: Claim, agreeing: Query) -> None:
    with pytest.raises(RowsRefused, match="P0001"):
        write_batch(claim, until=10)

    assert agreeing("SELECT count(*) FROM results") == [(3,)]

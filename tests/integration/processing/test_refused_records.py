"""The search for a refused record, in the database: what it names, and that it is fenced as any transaction is."""

from __future__ import annotations

import threading
from collections.abc import Collection

import pytest

from offsetstore import Append, Claim, OffsetRange, OffsetStore, TopicPartition, Upsert
from offsetstore.errors import RowsRefused, StaleClaim
from offsetstore.processing.blame import blame
from offsetstore.processing.plan import Plan
from offsetstore.processing.unit import Coordinates, Ranges
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


@pytest.mark.behaviour("TX-18")
def test_a_withdrawal_that_a_later_deposit_covers_is_not_blamed(claim: Claim, query: Query) -> None:
    """The whole batch is combined by key first; a part of it may end before the deposit."""
    query("CREATE TABLE balances (account text PRIMARY KEY, amount bigint CHECK (amount >= 0))")
    rows = [{"account": f"other {number}", "amount": 1} for number in range(8)]
    rows[1], rows[5] = {"account": "A", "amount": -50}, {"account": "A", "amount": 100}
    rows[7] = {"account": "B", "amount": -5}
    writer, whole = Upsert("balances", key=["account"], add=["amount"]), {P0: OffsetRange(0, 8)}

    def attempt(part: Ranges, without: Collection[Coordinates] = ()) -> int:
        """Write some of the rows, of which each is one record's, and take them back."""
        chosen = [rows[at] for at in range(part[P0].from_, part[P0].until) if (P0, at) not in without]
        batches = [batch({name: [row[name] for row in chosen] for name in rows[0]})] if chosen else []
        return tried(claim, {P0: decide(0, whole[P0])}, lambda work: writer.write(work, batches))

    with pytest.raises(RowsRefused) as caught:
        attempt(whole)
    found = blame(caught.value, whole, attempt, claim)

    assert found.offsets == OffsetRange(1, 8)
    assert "reset" not in found.next_step


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


def test_a_deferred_trigger_that_reads_the_offset_sees_the_batchs_and_refuses_it_before_the_commit(
    claim: Claim, agreeing: Query
) -> None:
    def write(*, until: int) -> None:
        commit_rows(claim, Plan.of(claim, {P0: OffsetRange(3, until)}), {"": OnDriver(Append("results"), [ROWS])})

    with pytest.raises(RowsRefused, match="P0001"):
        write(until=10)
    assert agreeing("SELECT count(*) FROM results") == [(3,)]
    write(until=5)
    assert agreeing("SELECT count(*) FROM results") == [(5,)]


def test_a_deferred_trigger_that_reads_the_offset_sees_the_tasks(
    store: OffsetStore, claim: Claim, agreeing: Query
) -> None:
    decision = decide(3, OffsetRange(3, 5))
    tasks = Tasks(here(store), TaskClaim.of(claim), Append("results"), [decision], [P0], None, 30.0)

    result = tasks.perform(0, iter([ROWS, None]))

    assert result.ending is TaskEnding.WRITTEN, result.why()
    assert agreeing("SELECT count(*) FROM results") == [(5,)]

"""The search for a refused record, in the database: what it names, and that it is fenced as any transaction is."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from offsetstore import Append, Claim, OffsetRange, OffsetStore, TopicPartition, Upsert
from offsetstore.errors import RowsRefused, StaleClaim
from offsetstore.processing.outputs import ArrowRows
from offsetstore.processing.plan import BatchMetadata, DeliveryPlan
from offsetstore.processing.policies import Whole
from offsetstore.processing.unit import UNNAMED, Coordinates, Ranges, Stored
from offsetstore.protocol.ports import Work, Writer
from offsetstore.protocol.replay import decide
from offsetstore.spark.collecting import OnDriver
from offsetstore.spark.executors.task import TaskEnding, Tasks
from offsetstore.store.identity import TaskClaim
from offsetstore.store.term import Term, Terms
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


@dataclass(frozen=True)
class Rows:
    """A delivery of rows, of which each is one record's; see `Delivery`."""

    claim: Claim
    writer: Writer
    listed: Sequence[Mapping[str, object]]
    number: int = 0
    terms: Terms = field(default_factory=dict[TopicPartition, Term])

    @property
    def ranges(self) -> Ranges:
        return {P0: OffsetRange(0, len(self.listed))}

    def rows(self, part: Ranges, without: Collection[Coordinates] = ()) -> dict[str, ArrowRows]:
        chosen = [self.listed[at] for at in range(part[P0].from_, part[P0].until) if (P0, at) not in without]
        batches = [batch({name: [row[name] for row in chosen] for name in self.listed[0]})] if chosen else []
        return {UNNAMED: ArrowRows(self.writer, batches)}

    def failed(self, _: Exception) -> None: ...

    def sleep(self, _: float) -> None: ...

    def repeats(self) -> bool:
        return True

    def write(self) -> RowsRefused:
        with pytest.raises(RowsRefused) as refused:
            Whole(self.claim, BatchMetadata(self.claim, None)).write(cast("Any", self), Stored())
        return refused.value


def balances(query: Query, claim: Claim, changed: Mapping[int, tuple[str, int]]) -> Rows:
    query("CREATE TABLE balances (account text PRIMARY KEY, amount bigint CHECK (amount >= 0))")
    rows = [{"account": f"other {number}", "amount": 1} for number in range(8)]
    for number, (account, amount) in changed.items():
        rows[number] = {"account": account, "amount": amount}
    return Rows(claim, Upsert("balances", key=["account"], add=["amount"]), rows)


@pytest.mark.behaviour("TX-18")
def test_a_withdrawal_that_a_later_deposit_covers_is_not_blamed(store: OffsetStore, claim: Claim, query: Query) -> None:
    """The whole batch is combined by key first; a part of it may end before the deposit."""
    rows = balances(query, claim, {1: ("A", -50), 5: ("A", 100), 7: ("B", -5)})

    refused = rows.write()

    assert refused.offsets == OffsetRange(1, 8)
    assert "reset" not in refused.next_step
    assert query("SELECT * FROM balances") == [("other 0", 1)]
    assert store.offsets("billing")[P0].next_offset == 1


@pytest.mark.behaviour("TX-17")
def test_what_comes_before_the_withdrawal_that_nothing_covers_is_stored_and_nothing_after_it(
    store: OffsetStore, claim: Claim, query: Query
) -> None:
    rows = balances(query, claim, {1: ("A", 100), 5: ("A", -150), 6: ("A", 10), 7: ("B", -5)})

    refused = rows.write()

    assert refused.offsets == OffsetRange(5, 6)
    assert "--from-offset 5 --to-offset 6" in refused.next_step
    stored = [("A", 100), ("other 0", 1), ("other 2", 1), ("other 3", 1), ("other 4", 1)]
    assert query("SELECT * FROM balances ORDER BY 1") == stored
    assert store.offsets("billing")[P0].next_offset == 5


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
        commit_rows(
            claim, DeliveryPlan.of(claim, {P0: OffsetRange(3, until)}), {"": OnDriver(Append("results"), [ROWS])}
        )

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

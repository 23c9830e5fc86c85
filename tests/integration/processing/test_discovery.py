"""Discovery on PostgreSQL: which of a batch's records the tables refuse, and what that leaves behind."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from offsetstore import Append, Claim, Execute, OffsetRange, OffsetStore, Retries, Timeouts, TopicPartition, Upsert
from offsetstore.errors import LockTimeout, RowsRefused, StaleClaim, StoreUnavailable, UnexpectedCommit
from offsetstore.processing.blame import Halve, discover
from offsetstore.protocol import failpoints
from offsetstore.protocol.failpoints import FailpointReached
from offsetstore.protocol.ports import Writer
from offsetstore.protocol.replay import decide
from offsetstore.protocol.work import Work
from tests.integration.conftest import Query
from tests.integration.writers.writing import batch
from tests.support.background import in_background

P0 = TopicPartition("payments", 0)


@pytest.fixture
def claim(store: OffsetStore) -> Claim:
    return store.claim("billing", topics=["payments"])


@dataclass
class Output:
    """The rows that a batch has for one table, and the record of each."""

    writer: Writer
    rows: list[dict[str, Any]]
    records: list[int]
    types: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._batch = batch({name: [row[name] for row in self.rows] for name in self.rows[0]}, self.types)
        self._places: dict[int, list[int]] = {}
        for place, record in enumerate(self.records):
            self._places.setdefault(record, []).append(place)

    def write(self, work: Work, records: Sequence[int]) -> None:
        places = [place for record in records for place in self._places.get(record, ())]
        if places:
            self.writer.write(work, [self._batch.take(places)])


def each(writer: Writer, *rows: dict[str, Any]) -> Output:
    """One row of each record."""
    return Output(writer, list(rows), list(range(len(rows))))


def in_order(*outputs: Output) -> Callable[[Work, Sequence[int]], None]:
    def write(work: Work, records: Sequence[int]) -> None:
        for output in outputs:
            output.write(work, records)

    return write


def search(
    claim: Claim, *outputs: Output, seconds: float = 60.0, check: Callable[[], None] = lambda: None
) -> dict[int, RowsRefused]:
    size = 1 + max(record for output in outputs for record in output.records)
    decisions = {P0: decide(0, OffsetRange(0, size))}
    options: dict[str, Any] = {"refused": RowsRefused("refused"), "seconds": seconds, "limit": 10_000, "check": check}
    return dict(discover(claim, decisions, range(size), {}, in_order(*outputs), **options).dead)


# -- whom it blames


LINES = """
CREATE TABLE orders (id int PRIMARY KEY);
CREATE TABLE lines (id int, "order" int CONSTRAINT of_order REFERENCES orders {deferrable})
"""
DEFERRED = "DEFERRABLE INITIALLY DEFERRED"


@pytest.mark.behaviour("DLQ-8")
@pytest.mark.parametrize("name", ["of_lines", 'of "% order'], ids=["plain", "quoted"])
def test_a_record_that_makes_a_line_and_then_its_order_is_accepted_alone_too(
    claim: Claim, query: Query, name: str
) -> None:
    """Its constraint is deferred again after each try."""
    query(LINES.format(deferrable=DEFERRED))
    query(f'ALTER TABLE lines RENAME CONSTRAINT of_order TO "{name.replace(chr(34), 2 * chr(34))}"')
    lines = each(Append("lines"), *({"id": number, "order": number} for number in range(8)))
    orders = each(Append("orders"), *({"id": -1 if number == 5 else number} for number in range(8)))

    assert search(claim, lines, orders).keys() == {5}


@pytest.mark.behaviour("DLQ-8")
def test_a_deferred_constraint_that_shares_its_name_with_another_is_checked_all_the_same(
    claim: Claim, query: Query
) -> None:
    """It can't be deferred again by its name."""
    query(LINES.format(deferrable=DEFERRED))
    query("CREATE TABLE other (id int CONSTRAINT of_order CHECK (id > 0))")
    lines = each(Append("lines"), *({"id": number, "order": number} for number in range(200)))
    orders = each(Append("orders"), *({"id": -number if number % 70 == 5 else number} for number in range(200)))

    found = search(claim, lines, orders)

    assert found.keys() == {5, 75, 145}
    assert {refused.constraint for refused in found.values()} == {"of_order"}


@pytest.mark.behaviour("DLQ-8")
def test_a_constraint_that_is_immediate_at_first_stays_so(claim: Claim, query: Query) -> None:
    """Otherwise discovery would accept what the batch's transaction refuses."""
    query(LINES.format(deferrable="DEFERRABLE INITIALLY IMMEDIATE"))
    query("CREATE TABLE other (id int PRIMARY KEY DEFERRABLE INITIALLY DEFERRED)")
    lines = Output(Append("lines"), [{"id": 1, "order": 1}], [4])
    orders = Output(Append("orders"), [{"id": 1}], [4])
    others = each(Append("other"), *({"id": number} for number in range(8)))

    assert search(claim, lines, orders, others).keys() == {4}


def insert_with_a_savepoint(work: Work, batches: Iterable[pa.RecordBatch]) -> None:
    for rows in batches:
        work.connection.execute(text("INSERT INTO parents VALUES (1)"))
        with work.connection.begin_nested():
            work.connection.execute(text("INSERT INTO results VALUES (:record)"), rows.to_pylist())


@pytest.mark.behaviour("DLQ-8")
def test_a_function_that_uses_savepoints_of_its_own_can_be_tried(claim: Claim, query: Query) -> None:
    query("CREATE TABLE parents (id int); CREATE TABLE results (record int CHECK (record <> 3))")

    found = search(claim, each(Execute(insert_with_a_savepoint), *({"record": number} for number in range(8))))

    assert found.keys() == {3}
    assert query("SELECT * FROM parents") == []


def insert_by_a_session(work: Work, batches: Iterable[pa.RecordBatch]) -> None:
    """It commits the parent, and leaves the rows to the end of the function's transaction."""
    for rows in batches:
        with Session(work.connection) as session, session.begin():
            session.execute(text("INSERT INTO parents VALUES (1)"))
        with Session(work.connection) as session:
            try:
                session.execute(text("INSERT INTO results VALUES (:record)"), rows.to_pylist())
            except BaseException:
                session.rollback()
                raise


@pytest.mark.behaviour("DLQ-8")
@pytest.mark.parametrize("splittable", [False, True])
def test_a_function_whose_session_rolls_back_can_be_tried(claim: Claim, query: Query, *, splittable: bool) -> None:
    query("CREATE TABLE parents (id int); CREATE TABLE results (record int CHECK (record NOT IN (3, 6)))")

    writer = Execute(insert_by_a_session, splittable=splittable)
    found = search(claim, each(writer, *({"record": number} for number in range(8))))

    assert found.keys() == {3, 6}
    assert {one.sqlstate for one in found.values()} == {"23514"}
    assert query("SELECT * FROM parents") == []


@pytest.mark.behaviour("DLQ-8", "TX-3")
def test_a_record_for_which_a_function_rolls_back_and_goes_on_is_not_blamed(claim: Claim, query: Query) -> None:
    query("CREATE TABLE parents (id int); CREATE TABLE results (record int CHECK (record NOT IN (3, 6)))")

    def passing_over_6(work: Work, batches: Iterable[pa.RecordBatch]) -> None:
        for row in (row for rows in batches for row in rows.to_pylist()):
            try:
                insert_by_a_session(work, [batch({"record": [row["record"]]})])
            except IntegrityError:
                if row["record"] != 6:
                    raise
        work.connection.execute(text("INSERT INTO parents VALUES (2)"))

    writer = Execute(passing_over_6, splittable=True)
    with pytest.raises(UnexpectedCommit, match="a ROLLBACK for IntegrityError at"):
        search(claim, each(writer, *({"record": number} for number in range(8))))


@pytest.mark.behaviour("DLQ-8")
def test_after_rows_that_the_driver_refuses_in_the_middle_of_a_copy_the_next_are_tried(
    claim: Claim, query: Query
) -> None:
    query("CREATE TABLE small (n int)")
    rows = [{"n": 2**40 if number in {3, 90_000} else number} for number in range(100_000)]

    found = search(claim, each(Append("small"), *rows))

    assert {record: refused.sqlstate for record, refused in found.items()} == {3: None, 90_000: None}


# -- outages


@pytest.mark.behaviour("DLQ-6")
def test_a_lock_timeout_blames_no_record_and_a_later_refusal_does(offsetstore_database: str, query: Query) -> None:
    query("CREATE TABLE once (id int PRIMARY KEY)")
    rows = each(Append("once"), *({"id": number if number != 7 else 6} for number in range(8)))
    with OffsetStore.connect(offsetstore_database, timeouts=Timeouts(lock=0.3)) as store:
        claim = store.claim("billing", topics=["payments"])
        with psycopg.connect(offsetstore_database) as other:
            other.execute("INSERT INTO once VALUES (3)")
            with pytest.raises(LockTimeout):
                search(claim, rows)
        assert search(claim, rows).keys() == {3, 7}


@pytest.mark.behaviour("DLQ-6")
def test_a_statement_timeout_blames_no_record(offsetstore_database: str, query: Query) -> None:
    query("CREATE TABLE slow (id int CHECK (id > 0 AND pg_sleep(id) IS NOT NULL))")
    [(name,)] = query("SELECT current_database()")
    query(f"ALTER DATABASE {name} SET statement_timeout = 1500")
    rows = each(Append("slow"), {"id": 0}, {"id": 5}, {"id": 0})
    retries = Retries(attempts=2, shortest=0.01)
    with (
        OffsetStore.connect(offsetstore_database, retries=retries) as store,
        pytest.raises(StoreUnavailable, match="57014"),
    ):
        search(store.claim("billing", topics=["payments"]), rows)


@pytest.mark.behaviour("DLQ-6")
def test_discovery_ends_by_itself_at_half_of_a_transaction_timeout(offsetstore_database: str, query: Query) -> None:
    query("CREATE TABLE slow (id int CHECK (id >= 0))")
    [(name,)] = query("SELECT current_database()")
    query(f"ALTER DATABASE {name} SET transaction_timeout = 4000")
    rows = each(Append("slow"), *({"id": -1 if number % 5 == 0 else number} for number in range(200)))

    with OffsetStore.connect(offsetstore_database) as store:
        claim = store.claim("billing", topics=["payments"])
        began = time.monotonic()
        with pytest.raises(Halve):
            search(claim, rows, check=lambda: time.sleep(0.2))
        took = time.monotonic() - began

    assert 1.9 < took < 3.9


@pytest.mark.behaviour("DLQ-6")
def test_a_takeover_ends_discovery_which_finds_out_when_it_begins_again(
    store: OffsetStore, claim: Claim, query: Query, results: str
) -> None:
    is_frozen, goes_on = threading.Event(), threading.Event()
    rows = each(Append(results), *({"record": number} for number in range(8)))

    def check() -> None:
        if not is_frozen.is_set():
            is_frozen.set()
            assert goes_on.wait(60)

    searching = in_background(lambda: search(claim, rows, check=check))
    assert is_frozen.wait(60)
    store.claim("billing", topics=["payments"], takeover_timeout=1)
    goes_on.set()

    with pytest.raises(StaleClaim):
        searching.result(timeout=60)
    assert claim.is_lost


@pytest.mark.behaviour("DLQ-6")
def test_discovery_that_fails_after_parts_were_accepted_leaves_nothing(
    claim: Claim, query: Query, results: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(failpoints.VARIABLE, "in_discovery:2:raise")
    failpoints._reached.clear()
    query(f"ALTER TABLE {results} ADD CHECK (record <> 3)")
    with pytest.raises(FailpointReached):
        search(claim, each(Append(results), *({"record": number} for number in range(8))))
    assert query(f"SELECT * FROM {results}") == []


# -- what it costs

SUBTRANSACTIONS = """
SELECT max(s.subxact_count), bool_or(s.subxact_overflowed)
FROM pg_stat_get_backend_idset() AS id, LATERAL pg_stat_get_backend_subxact(id) AS s
"""


@pytest.mark.behaviour("DLQ-8")
@pytest.mark.parametrize("writer", [Append("results"), Upsert("results", key=["record"], add=["n"])], ids=repr)
def test_however_much_is_kept_subtransactions_do_not_overflow(claim: Claim, query: Query, writer: Writer) -> None:
    query("CREATE TABLE results (record int PRIMARY KEY, n int CHECK (n < 7))")
    bad = {*range(0, 300, 4)}
    rows = each(writer, *({"record": number, "n": 7 if number in bad else 1} for number in range(300)))
    seen: list[tuple[int, bool]] = []

    found = search(claim, rows, check=lambda: seen.extend(query(SUBTRANSACTIONS)))

    assert found.keys() == bad
    assert len(found) > 48
    assert max(count for count, _ in seen) in range(40, 60)
    assert not any(is_overflowed for _, is_overflowed in seen)

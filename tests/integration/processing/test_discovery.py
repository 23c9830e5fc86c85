"""Discovery on PostgreSQL: which of a batch's records the tables refuse, and what that leaves behind."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from offsetstore import Append, Claim, Execute, OffsetRange, OffsetStore, TopicPartition, Upsert
from offsetstore.errors import RowsRefused, UnexpectedCommit
from offsetstore.processing import blame
from offsetstore.processing.blame import Halve, discover
from offsetstore.protocol.ports import Work, Writer
from offsetstore.protocol.replay import decide
from tests.integration.conftest import Query
from tests.integration.writers.writing import batch
from tests.support.clock import Clock

P0 = TopicPartition("payments", 0)


@pytest.fixture
def claim(store: OffsetStore) -> Claim:
    return store.claim("billing", topics=["payments"])


@dataclass(frozen=True)
class Output:
    """The rows that a batch has for one table, by their records."""

    writer: Writer
    rows: Mapping[int, dict[str, Any]]

    def write(self, work: Work, records: Sequence[int]) -> None:
        rows = [self.rows[record] for record in records if record in self.rows]
        if rows:
            self.writer.write(work, [batch({name: [row[name] for row in rows] for name in rows[0]})])


def each(writer: Writer, *rows: dict[str, Any]) -> Output:
    """One row of each record."""
    return Output(writer, dict(enumerate(rows)))


def search(claim: Claim, *outputs: Output, check: Callable[[], None] = lambda: None) -> dict[int, RowsRefused]:
    def write(work: Work, records: Sequence[int]) -> None:
        for output in outputs:
            output.write(work, records)

    size = 1 + max(record for output in outputs for record in output.rows)
    options: dict[str, Any] = {"refused": RowsRefused("refused"), "seconds": 60.0, "limit": 10_000, "check": check}
    return dict(discover(claim, {P0: decide(0, OffsetRange(0, size))}, range(size), {}, write, **options).dead)


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
    lines = Output(Append("lines"), {4: {"id": 1, "order": 1}})
    orders = Output(Append("orders"), {4: {"id": 1}})
    others = each(Append("other"), *({"id": number} for number in range(8)))

    assert search(claim, lines, orders, others).keys() == {4}


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
def test_discovery_ends_by_itself_at_half_of_a_transaction_timeout(
    offsetstore_database: str, query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    query("CREATE TABLE slow (id int CHECK (id >= 0))")
    [(name,)] = query("SELECT current_database()")
    query(f"ALTER DATABASE {name} SET transaction_timeout = '80s'")
    rows = each(Append("slow"), *({"id": -1 if number % 5 == 0 else number} for number in range(200)))
    clock = Clock()
    monkeypatch.setattr(blame, "time", SimpleNamespace(monotonic=clock))

    def wait() -> None:
        clock.now += 4

    with OffsetStore.connect(offsetstore_database) as store:
        claim = store.claim("billing", topics=["payments"])
        with pytest.raises(Halve):
            search(claim, rows, check=wait)
    assert 40 <= clock.now < 60  # a search has 60 s


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

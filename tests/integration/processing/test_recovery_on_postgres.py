"""Recovery on PostgreSQL: which errors blame a record, and which blame none."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from sqlalchemy import make_url
from sqlalchemy.exc import DBAPIError

from offsetstore import Append, DeadLetters, Execute, OffsetRange, OffsetStore, Retries, Timeouts, TopicPartition, Work
from offsetstore.errors import LockTimeout, RowsRefused, StoreUnavailable, TransactionLost
from offsetstore.postgres.grants import grant_runtime
from offsetstore.processing.letters import Recovery
from offsetstore.processing.plan import BatchMetadata
from offsetstore.processing.runner import with_replanning
from offsetstore.processing.unit import Ranges
from tests.integration.conftest import Query
from tests.support.careful_part import FakePart, Row, written
from tests.support.server_errors import OF_SERVER, held

P0 = TopicPartition("payments", 0)
OUTAGES = (LockTimeout, StoreUnavailable, TransactionLost)
FAILURES = "SELECT record_offset, attempts, errors FROM failures ORDER BY 1"
LETTERS = "SELECT record_offset, attempts, sqlstate, convert_from(value, 'UTF8') FROM dead_letters"


@pytest.fixture(autouse=True)
def _table(query: Query) -> None:
    query("CREATE TABLE results (record bigint CHECK (record <> 3))")


def write_offsets(work: Any, rows: Sequence[Row]) -> None:
    """Write the rows' offsets."""
    numbers = pa.array([offset for _, offset in rows], pa.int64())
    Append("results").write(work, [pa.record_batch({"record": numbers})])


@contextmanager
def compute(ranges: Ranges, *, suspects: Collection[Any] = ()) -> Generator[FakePart]:
    yield FakePart(ranges, write_offsets)


def fails_for(query: Query, body: str, when: str = "NEW.record = 1") -> None:
    """Have a trigger run this, instead of the table's CHECK."""
    query(f"CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {body} RETURN NEW; END $$")
    query(f"CREATE TRIGGER fail BEFORE INSERT ON results FOR EACH ROW WHEN ({when}) EXECUTE FUNCTION fail()")
    query("ALTER TABLE results DROP CONSTRAINT results_record_check")


@pytest.mark.behaviour("DLQ-6")
@pytest.mark.parametrize("sqlstate", OF_SERVER)
def test_an_outage_counts_for_no_record(offsetstore_database: str, query: Query, sqlstate: str) -> None:
    fails_for(query, OF_SERVER[sqlstate])

    with (
        psycopg.connect(offsetstore_database) as other,
        held(other),
        OffsetStore.connect(offsetstore_database, retries=Retries(attempts=2, shortest=0.0)) as store,
    ):
        with pytest.raises(OUTAGES) as ended:
            write(store)
        assert not isinstance(ended.value, RowsRefused)
        assert store.offsets("billing")[P0].next_offset == 0
    assert (query(LETTERS), query(FAILURES), query("SELECT * FROM results")) == ([], [], [])


@pytest.mark.behaviour("DLQ-20")
@pytest.mark.parametrize("at", ["misfits", "commit", "search"])
def test_a_locked_target_ends_in_a_lock_timeout_that_names_the_holder(
    offsetstore_database: str, query: Query, at: str
) -> None:
    """In each step of the careful way: the look for misfits, the try to commit, and the search."""
    writer, rows = Append("results"), pa.record_batch({"record": pa.array(range(5), pa.int64())})

    class Part(FakePart):
        def misfits(self, connection: Any) -> dict[int, RowsRefused]:
            if at == "misfits":
                lock()
                writer.misfits(connection, rows)
            return {}

    def lock() -> None:
        other.execute("SET application_name = 'a migration'")
        other.execute("LOCK TABLE results IN ACCESS EXCLUSIVE MODE")

    def write_rows(work: Work, rows: Sequence[Row]) -> None:
        tries.append(rows)
        if len(tries) == {"commit": 1, "search": 2}.get(at):
            lock()
        write_offsets(work, rows)

    tries: list[Sequence[Row]] = []

    @contextmanager
    def compute_here(ranges: Ranges, *, suspects: Collection[Any] = ()) -> Generator[FakePart]:
        yield Part(ranges, write_rows)

    with (
        psycopg.connect(offsetstore_database) as other,
        OffsetStore.connect(
            offsetstore_database, timeouts=Timeouts(lock=0.1), retries=Retries(attempts=2, shortest=0.0)
        ) as store,
    ):
        with pytest.raises(LockTimeout, match=r"results.* held by pid \d+ \(a migration, idle in transaction\)"):
            write(store, compute_here)
        other.rollback()
        assert store.offsets("billing")[P0].next_offset == 0
    assert (query(LETTERS), query(FAILURES), query("SELECT * FROM results")) == ([], [], [])


@pytest.mark.behaviour("DLQ-20")
def test_what_a_claim_reads_waits_for_a_lock_as_long_as_its_transactions_do(offsetstore_database: str) -> None:
    """The look for misfits locks the target, in the careful way and in a replay."""
    with OffsetStore.connect(offsetstore_database, timeouts=Timeouts(lock=0.1)) as store:
        claim = store.claim("billing", topics=["payments"])
        found = claim.read(lambda session: session.connection.exec_driver_sql("SHOW lock_timeout").scalar_one())
    assert found == "100ms"


# -- who is to blame


@pytest.mark.behaviour("DLQ-15")
@pytest.mark.parametrize("sqlstate", ["25006", "XX000", "08006", "40001", "55P03", "57014", "42501", "2200H"])
def test_a_record_is_a_letter_whatever_a_trigger_raises_for_it(store: OffsetStore, query: Query, sqlstate: str) -> None:
    fails_for(query, f"RAISE EXCEPTION 'no' USING ERRCODE = '{sqlstate}';")

    write(store)

    assert query("SELECT record FROM results ORDER BY 1") == [(0,), (2,), (3,), (4,)]
    assert query(LETTERS) == [(1, 1, sqlstate, "(0, 1)")]


@pytest.mark.behaviour("DLQ-15")
def test_a_grant_that_is_missing_inside_a_trigger_blames_no_record(offsetstore_database: str, query: Query) -> None:
    query("CREATE TABLE notes (record bigint)")
    fails_for(query, "INSERT INTO notes VALUES (NEW.record);", "true")
    with (
        as_ordinary_role(offsetstore_database, query) as url,
        OffsetStore.connect(url) as store,
        pytest.raises(RowsRefused, match=r"42501.*no other record was accepted"),
    ):
        write(store)
    assert (query(LETTERS), query("SELECT * FROM results")) == ([], [])


@contextmanager
def as_ordinary_role(url: str, query: Query) -> Generator[str]:
    """A role of its own that may write into the results, and do what a job does; gives the URL with it."""
    [(database,)] = query("SELECT current_database()")
    role = f"writer_{database}"
    query(f"CREATE ROLE {role} LOGIN PASSWORD 'secret'; GRANT INSERT ON results TO {role}")
    for grant in grant_runtime(role, schema="public"):
        query(grant)
    try:
        yield make_url(url).set(username=role, password="secret").render_as_string(hide_password=False)
    finally:
        query(f"DROP OWNED BY {role}; DROP ROLE {role}")


def insert_each(work: Work, batches: Iterable[pa.RecordBatch]) -> None:
    for batch in batches:
        for row in batch.to_pylist():
            try:
                work.connection.exec_driver_sql("INSERT INTO results VALUES (%s)", (row["record"],))
            except DBAPIError as error:
                raise ValueError("a text with the row") from error


@contextmanager
def by_inserts(ranges: Ranges, *, suspects: Collection[Any] = ()) -> Generator[FakePart]:
    """With an Execute that raises its own error from the database's; COPY can't be used where there are policies."""
    writer = Execute(insert_each, splittable=True)

    def write_rows(work: Work, rows: Sequence[Row]) -> None:
        writer.write(work, [pa.record_batch({"record": pa.array([offset for _, offset in rows], pa.int64())})])

    yield FakePart(ranges, write_rows)


@pytest.mark.behaviour("DLQ-15")
@pytest.mark.parametrize("sqlstate", ["23505", "40001"])
def test_a_function_may_raise_its_own_error_from_the_databases(store: OffsetStore, query: Query, sqlstate: str) -> None:
    fails_for(query, f"RAISE EXCEPTION 'no' USING ERRCODE = '{sqlstate}';")
    write(store, by_inserts)
    assert query("SELECT record FROM results ORDER BY 1") == [(0,), (2,), (3,), (4,)]
    assert query("SELECT record_offset, cause, error_class FROM dead_letters") == [(1, "raised", "ValueError")]


@pytest.mark.behaviour("DLQ-6")
def test_an_error_that_a_function_raises_from_an_outage_is_no_records(
    store: OffsetStore, query: Query, offsetstore_database: str
) -> None:
    fails_for(query, OF_SERVER["55P03"])
    with psycopg.connect(offsetstore_database) as other, held(other), pytest.raises(ValueError, match="a text"):
        write(store, by_inserts)
    assert (query(LETTERS), query(FAILURES), query("SELECT * FROM results")) == ([], [], [])


def write(store: OffsetStore, compute: Callable[..., AbstractContextManager[FakePart]] = compute) -> None:
    claim = store.claim("billing", topics=["payments"])
    recovery = Recovery(claim, DeadLetters(max_retries=0), BatchMetadata(claim, None))
    with_replanning(lambda: written(recovery, 0, {P0: OffsetRange(0, 5)}, compute), "batch 0")

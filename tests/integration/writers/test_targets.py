"""Which tables results may go to: those that keep rows as long as the offsets are kept, found once by name."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

import pyarrow as pa
import pytest

from offsetstore.errors import ColumnMismatch, UnsafeTarget
from offsetstore.writers import Append, Upsert
from tests.integration.writers.writing import Database, batch
from tests.support.waiting import wait_until
from tests.support.work import work_on

ROWS = batch({"id": [1], "n": [1]})
FOREIGN = "CREATE FOREIGN DATA WRAPPER {0}; CREATE SERVER {0} FOREIGN DATA WRAPPER {0};"
TREE = """
CREATE TABLE t (id bigint, n bigint, UNIQUE (id)) PARTITION BY RANGE (id);
CREATE TABLE low PARTITION OF t FOR VALUES FROM (0) TO (10);
CREATE TABLE high PARTITION OF t FOR VALUES FROM (10) TO (100) PARTITION BY RANGE (id);
CREATE TABLE higher PARTITION OF high FOR VALUES FROM (10) TO (50);
"""

each_writer = pytest.mark.parametrize(
    "writer",
    [lambda: Append("t"), lambda: Upsert("t", key=["id"], add=["n"])],
    ids=["append", "upsert"],
)


@pytest.fixture
def server(database: Database) -> Iterator[str]:
    """The name of a foreign server; of what is there, only the catalogue is asked."""
    name = f"server_{uuid4().hex[:12]}"
    database.run(FOREIGN.format(name))
    yield name
    database.run(f"DROP FOREIGN DATA WRAPPER {name} CASCADE")


def refused_everywhere(database: Database, writer: Append | Upsert) -> UnsafeTarget:
    """By the check, and without one by a write; no row is there."""
    error = database.refusal(UnsafeTarget, writer, ROWS)
    with database.engine.begin() as connection, pytest.raises(UnsafeTarget):
        writer.write(work_on(connection), [ROWS])
    return error


@pytest.mark.behaviour("SINK-18")
@each_writer
def test_an_unlogged_table_is_refused_by_name_until_it_is_logged(
    database: Database, writer: Callable[[], Append | Upsert]
) -> None:
    database.run("CREATE UNLOGGED TABLE t (id bigint PRIMARY KEY, n bigint)")

    error = refused_everywhere(database, writer())

    assert "the table public.t is UNLOGGED: a crash of the database empties it" in str(error)
    assert error.found == "public.t (unlogged)"
    assert str(pickle.loads(pickle.dumps(error))) == str(error)  # noqa: S301 - our own
    assert database.rows("SELECT * FROM t") == []
    database.run(error.next_step)
    assert database.write(writer(), ROWS) == 1


@pytest.mark.behaviour("SINK-18", "SINK-20")
@each_writer
@pytest.mark.parametrize("beside", ["a table of its name", "nothing"])
def test_a_temporary_table_is_refused_also_where_it_hides_the_target(
    database: Database, writer: Callable[[], Append | Upsert], beside: str
) -> None:
    if beside == "a table of its name":
        database.run("CREATE TABLE t (id bigint PRIMARY KEY, n bigint)")
    with database.engine.begin() as connection:
        connection.exec_driver_sql("CREATE TEMPORARY TABLE t (id bigint PRIMARY KEY, n bigint) ON COMMIT DROP")
        with pytest.raises(UnsafeTarget):
            writer().write(work_on(connection), [ROWS])
        hidden = writer()
        hidden.resolve_table(connection)
        with pytest.raises(UnsafeTarget, match=r"the table pg_temp_\d+.t is temporary") as caught:
            hidden.check(connection, ROWS.schema)
        assert '"schema.table"' in caught.value.next_step
        assert connection.exec_driver_sql("SELECT count(*) FROM t").scalar() == 0


@pytest.mark.behaviour("SINK-18")
@each_writer
def test_partitions_are_looked_at_down_to_the_last(database: Database, writer: Callable[[], Append | Upsert]) -> None:
    database.run(TREE)
    assert database.write(writer(), ROWS) == 1
    others = batch({"id": [2], "n": [1]})
    database.run('CREATE UNLOGGED TABLE "Late" PARTITION OF high FOR VALUES FROM (50) TO (90)')

    error = database.refusal(UnsafeTarget, writer(), others)

    assert "the partition public.Late of t is UNLOGGED" in str(error)
    database.run(error.next_step)
    database.run("ALTER TABLE low SET UNLOGGED")
    assert "the partition public.low of t is UNLOGGED" in str(database.refusal(UnsafeTarget, writer(), others))
    database.run("DROP TABLE low; CREATE TABLE low PARTITION OF t FOR VALUES FROM (0) TO (10)")
    assert database.write(writer(), ROWS) == 1


@pytest.mark.behaviour("SINK-18")
def test_a_foreign_table_is_refused_and_one_that_is_a_partition(database: Database, server: str) -> None:
    """Rows for the other partitions could be written."""
    database.run(f"CREATE FOREIGN TABLE f (id bigint, n bigint) SERVER {server}")
    for writer in (Append("f"), Upsert("f", key=["id"], add=["n"])):
        error = refused_everywhere(database, writer)
        assert "the table public.f is a foreign table: its server commits separately" in str(error)
    database.run(TREE.replace(", UNIQUE (id)", ""))
    database.run(f"CREATE FOREIGN TABLE far PARTITION OF high FOR VALUES FROM (50) TO (90) SERVER {server}")

    error = database.refusal(UnsafeTarget, Append("t"), ROWS)

    assert "the partition public.far of t is a foreign table" in str(error)
    database.run("ALTER TABLE high DETACH PARTITION far")
    assert database.write(Append("t"), ROWS) == 1


@pytest.mark.behaviour("SINK-18")
def test_a_partition_that_is_attached_while_rows_are_on_their_way_is_met(database: Database) -> None:
    """The lock on the table does not hold ATTACH off. What the batch has for it would be in it when it commits."""
    database.run(TREE)
    database.run("CREATE UNLOGGED TABLE late (id bigint NOT NULL UNIQUE, n bigint)")
    rows = batch({"id": [60], "n": [1]})

    def batches() -> Iterator[pa.RecordBatch]:
        yield ROWS  # with which the table is locked and its partitions are looked at
        database.run("ALTER TABLE high ATTACH PARTITION late FOR VALUES FROM (50) TO (90)")
        yield rows

    with (
        pytest.raises(UnsafeTarget, match=r"the partition public\.late of t is UNLOGGED"),
        database.engine.begin() as c,
    ):
        Upsert("t", key=["id"], add=["n"]).write(work_on(c), batches())
    assert database.rows("SELECT * FROM t") == []


@pytest.mark.behaviour("SINK-20")
@each_writer
@pytest.mark.parametrize(
    "move",
    [
        "SET LOCAL search_path = other, public",
        "CREATE TEMPORARY TABLE t (id bigint PRIMARY KEY, n bigint) ON COMMIT DROP",
    ],
    ids=["search_path", "temporary table"],
)
def test_a_table_that_was_found_once_is_kept_to(
    database: Database, writer: Callable[[], Append | Upsert], move: str
) -> None:
    """Also by the key's constraints, by the temporary table, and in another process."""
    database.run("DROP SCHEMA IF EXISTS other CASCADE; CREATE SCHEMA other")
    database.run("CREATE TABLE t (id bigint PRIMARY KEY, n bigint); CREATE TABLE other.t (LIKE public.t)")
    given = writer()
    with database.engine.begin() as connection:
        given.resolve_table(connection)
        resolved = pickle.loads(pickle.dumps(given))  # noqa: S301 - our own
        connection.exec_driver_sql(move)
        resolved.check(connection, ROWS.schema)
        resolved.write(work_on(connection), [ROWS])
    assert "public.t" in repr(resolved)
    assert database.rows("SELECT * FROM public.t") == [(1, 1)]
    assert database.rows("SELECT * FROM other.t") == []
    database.run("DROP TABLE public.t; CREATE TABLE public.t (id bigint PRIMARY KEY, n bigint)")
    assert database.write(resolved, ROWS) == 1


@pytest.mark.behaviour("SINK-20")
def test_a_table_that_is_not_there_yet_is_looked_for_again(database: Database) -> None:
    writer = Append("t")
    assert table(database, writer) == "t"
    with pytest.raises(ColumnMismatch, match="there is no table t"):
        database.write(writer, ROWS)
    database.run("CREATE TABLE t (id bigint, n bigint)")
    assert table(database, writer) == "public.t"


def table(database: Database, writer: Append) -> str:
    """As a sink resolves it."""
    with database.engine.begin() as connection:
        writer.resolve_table(connection)
    return str(writer.table)


def test_a_type_that_changes_while_the_writer_waits_is_noticed(database: Database) -> None:
    """A binary COPY would put the eight bytes of a bigint into the numeric, as another number."""
    database.run("CREATE TABLE t (n bigint)")
    with ThreadPoolExecutor(1) as pool:
        with database.engine.begin() as migration:
            migration.exec_driver_sql("ALTER TABLE t ALTER COLUMN n TYPE numeric")
            writing = pool.submit(database.write, Append("t"), batch({"n": [4711]}))
            wait_until(lambda: database.rows("SELECT 1 FROM pg_locks WHERE NOT granted"))
        writing.result(timeout=30)
    assert database.rows("SELECT n::text FROM t") == [("4711",)]


def test_a_dropped_and_an_added_column_are_noticed_in_the_next_batch(database: Database) -> None:
    database.run("CREATE TABLE t (old text, n bigint)")
    writer = Append("t")
    database.write(writer, batch({"n": [1]}))
    database.run("ALTER TABLE t DROP COLUMN old, ADD COLUMN new text")
    database.write(writer, batch({"n": [2], "new": ["x"]}))
    assert database.rows("SELECT n, new FROM t ORDER BY n") == [(1, None), (2, "x")]


def test_an_upserts_key_that_is_no_longer_unique_is_noticed_in_the_next_batch(database: Database) -> None:
    database.run("CREATE TABLE t (id bigint CONSTRAINT once UNIQUE, n bigint)")
    writer = Upsert("t", key=["id"], add=["n"])
    database.write(writer, batch({"id": [1], "n": [1]}))
    database.run("ALTER TABLE t DROP CONSTRAINT once")
    with pytest.raises(ColumnMismatch, match="no unique constraint or index on exactly the key"):
        database.write(writer, batch({"id": [1], "n": [2]}))
    assert database.rows("SELECT id, n FROM t") == [(1, 1)]

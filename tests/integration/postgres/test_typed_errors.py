"""What goes wrong in the database ends in an error that says what to do; one of each family."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from sqlalchemy import MetaData, Table
from sqlalchemy.exc import DBAPIError

from offsetstore import Append, Claim, OffsetRange, OffsetStore, Retries, Transaction, Upsert
from offsetstore.errors import (
    ColumnMismatch,
    ConfigurationError,
    InvalidText,
    OffsetStoreError,
    RowsRefused,
    SchemaError,
    SchemaMissing,
    StoreUnavailable,
    TargetRefused,
)
from offsetstore.postgres.url import make_engine
from offsetstore.testing import StaticBroker
from tests.integration.conftest import Query
from tests.integration.transacting import GROUP, P0, lock
from tests.integration.writers.writing import batch
from tests.support.shown import shown

pytestmark = pytest.mark.behaviour("SINK-25")

ROW = batch({"id": [4711], "n": [2]})
UPSERT = Upsert("t", key=["id"], add=["n"])
CANARY = "4711"


@pytest.fixture
def store(offsetstore_database: str) -> Iterator[OffsetStore]:
    with OffsetStore.connect(offsetstore_database, retries=Retries(attempts=2, shortest=0.01)) as connected:
        yield connected


@pytest.fixture
def claim(store: OffsetStore) -> Claim:
    return store.claim(GROUP, StaticBroker.with_topics({"payments": 1}, end=100))


@pytest.fixture
def write(store: OffsetStore, claim: Claim) -> Callable[[Append | Upsert], None]:
    def run(writer: Append | Upsert, rows: pa.RecordBatch = ROW) -> None:
        def work(tx: Transaction) -> None:
            left = lock(tx, P0, range_=OffsetRange(0, 3))
            writer.write(tx, [rows])
            tx.advance(left)

        claim.read(lambda session: writer.resolve_table(session.connection))
        store.run(claim, work)

    return run


def is_refused_by_the_server(query: Query) -> bool:
    """PostgreSQL's later versions alone look at the replica identity for ON CONFLICT DO UPDATE."""
    try:
        query("EXPLAIN INSERT INTO t VALUES (1) ON CONFLICT (id) DO UPDATE SET n = 1")
        query("INSERT INTO t VALUES (1, 1) ON CONFLICT (id) DO UPDATE SET n = 1")
    except psycopg.errors.ObjectNotInPrerequisiteState:
        return True
    return False


@pytest.mark.parametrize("is_partitioned", [False, True])
def test_no_replica_identity(query: Query, write: Callable[..., None], *, is_partitioned: bool) -> None:
    query(f"CREATE TABLE t (id bigint UNIQUE, n bigint) {'PARTITION BY HASH (id)' if is_partitioned else ''}")
    if is_partitioned:
        query("CREATE TABLE t1 PARTITION OF t FOR VALUES WITH (MODULUS 1, REMAINDER 0)")
    query("CREATE PUBLICATION all_of_t FOR TABLE t")
    if not is_refused_by_the_server(query):
        write(UPSERT)
        return
    with pytest.raises((RowsRefused, TargetRefused), match=r"55000.*REPLICA IDENTITY USING INDEX") as caught:
        write(UPSERT)
    assert isinstance(caught.value, RowsRefused) == is_partitioned, "of partitions the server tells with the first row"


TRIGGERS = {
    "P0001": "RAISE EXCEPTION 'no %', NEW.id",
    "42501": "RAISE insufficient_privilege USING MESSAGE = 'no ' || NEW.id",
    "23514": "RAISE check_violation USING MESSAGE = 'no ' || NEW.id, TABLE = 't', SCHEMA = 'public'",
}


@pytest.mark.parametrize("sqlstate", TRIGGERS)
@pytest.mark.parametrize("writer", [Append("t"), UPSERT], ids=["append", "upsert"])
def test_what_a_trigger_raises(query: Query, write: Callable[..., None], writer: Append, sqlstate: str) -> None:
    query("CREATE TABLE t (id bigint PRIMARY KEY, n bigint)")
    body = f"BEGIN {TRIGGERS[sqlstate]}; END"
    query(f"CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ {body} $$")
    query("CREATE TRIGGER refuse BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION refuse()")
    with pytest.raises(RowsRefused, match="raised by a function or trigger of the database") as caught:
        write(writer)
    assert caught.value.sqlstate == sqlstate
    assert "PostgreSQL's log has its message" in caught.value.next_step
    assert CANARY not in shown(caught.value)


def test_no_partition_for_a_row(query: Query, write: Callable[..., None]) -> None:
    query("CREATE TABLE t (id bigint, n bigint CHECK (n < 5)) PARTITION BY RANGE (id)")
    query("CREATE TABLE t1 PARTITION OF t FOR VALUES FROM (0) TO (10)")
    with pytest.raises(RowsRefused, match=r"23514.*fits no partition of public\.t\b") as caught:
        write(Append("t"))
    assert 'CREATE TABLE ... PARTITION OF "public"."t" ...' in caught.value.next_step
    with pytest.raises(RowsRefused, match=r"fits no partition of public\.t1, or not into public\.t1 itself") as caught:
        write(Append("t1"))
    assert "name its parent" in caught.value.next_step
    with pytest.raises(RowsRefused, match="constraint t_n_check") as caught:
        write(Append("t"), batch({"id": [1], "n": [7]}))
    assert "partition" not in str(caught.value)


@pytest.mark.parametrize(
    ("table", "translate", "instead"),
    [
        ("t", {None: "tenant"}, "tenant.t"),
        (Table("t", MetaData(), schema="per_user"), {"per_user": "tenant"}, "tenant.t"),
    ],
    ids=["default", "named"],
)
def test_a_schema_translate_map(
    offsetstore_database: str, query: Query, table: Any, translate: dict[str | None, str], instead: str
) -> None:
    query("CREATE SCHEMA tenant; CREATE TABLE tenant.t (id bigint, n bigint); CREATE TABLE t (LIKE tenant.t)")
    engine = make_engine(offsetstore_database)
    mapped, named = engine.execution_options(schema_translate_map=translate), Append(instead)
    with OffsetStore.connect(mapped) as store, store.claim(GROUP, topics=["payments"]) as claim:
        with pytest.raises(ConfigurationError, match="schema_translate_map is not applied") as caught:
            claim.read(lambda session: Append(table).resolve_table(session.connection))
        assert f'"{instead}"' in caught.value.next_step
        claim.read(lambda session: named.resolve_table(session.connection))
    engine.dispose()


@pytest.mark.parametrize("change", ["RENAME TO other", "SET SCHEMA elsewhere", "RENAME n TO amount"])
def test_a_target_that_is_changed_in_mid_run(query: Query, write: Callable[..., None], change: str) -> None:
    query("CREATE SCHEMA elsewhere; CREATE TABLE t (id bigint, n bigint)")
    writer = Append("t")
    write(writer, batch({"id": [1], "n": [1]}))
    query(f"ALTER TABLE t {change}")
    with pytest.raises(ColumnMismatch, match=r"no table public\.t.*it was renamed or dropped|n is not in the table"):
        write(writer)


@pytest.mark.parametrize(
    ("change", "kind", "found"),
    [
        (
            "ALTER TABLE kafka_partitions RENAME TO partitions",
            SchemaMissing,
            r'"public\.kafka_partitions" does not exist',
        ),
        ("ALTER TABLE kafka_partitions RENAME next_offset TO stored", SchemaError, "next_offset.*does not exist"),
        ("ALTER TABLE consumer_groups ADD CHECK (epoch < 2)", SchemaError, "consumer_groups_epoch_check"),
    ],
)
@pytest.mark.parametrize("ask", ["offsets", "claim"])
def test_our_own_tables_that_are_changed_in_mid_run(
    store: OffsetStore, claim: Claim, query: Query, *, change: str, kind: type[SchemaError], found: str, ask: str
) -> None:
    query(change)
    asked = {"offsets": lambda: store.offsets(GROUP), "claim": lambda: store.claim(GROUP, topics=claim.topics)}
    if ask == "offsets" and "CHECK" in change:
        assert asked[ask]()
        return
    with pytest.raises(kind, match=f"not as its migrations made them.*{found}") as caught:
        asked[ask]()
    assert "Undo what was changed" in caught.value.next_step


def test_a_statement_timeout_of_the_role(offsetstore_database: str, query: Query) -> None:
    """What the store does at connect, too."""
    [(name,)] = query("SELECT current_database()")
    with psycopg.connect(offsetstore_database) as holder:
        holder.execute("LOCK TABLE offsetstore_version")
        query(f"ALTER DATABASE \"{name}\" SET statement_timeout = '50ms'")
        with pytest.raises(StoreUnavailable, match=r"cancelled a statement.*statement_timeout.*ALTER ROLE") as caught:
            OffsetStore.connect(offsetstore_database)
    assert "can't be reached" not in str(caught.value)


@pytest.mark.parametrize(("name", "found"), [("a\0b", "a NUL, character 2 of 3"), ("\udcff", "a lone surrogate")])
def test_a_read_of_a_name_that_nothing_can_have(store: OffsetStore, name: str, found: str) -> None:
    reads: list[Callable[[], object]] = [
        lambda: store.offsets(name),
        lambda: store.history(name),
        lambda: store.letters(name),
        lambda: store.group_state(name),
        lambda: store.lag([name], StaticBroker.with_topics({})),
        lambda: store.find_metadata(GROUP, name, 0),
    ]
    for read in reads:
        with pytest.raises(ValueError, match=f"(group|groups|topic) can't be stored.*{found}") as caught:
            read()
        assert isinstance(caught.value, InvalidText)


def test_what_a_commit_refuses_and_what_follows_a_swallowed_error_is_ours(
    store: OffsetStore, claim: Claim, query: Query
) -> None:
    """What the job's own statements raise is the database's, without the row."""
    query("CREATE TABLE t (id bigint UNIQUE DEFERRABLE INITIALLY DEFERRED, n bigint CHECK (n < 5))")

    def work(n: int) -> Callable[[Transaction], None]:
        def run(tx: Transaction) -> None:
            left = lock(tx, P0, range_=OffsetRange(0, 3))
            for _ in range(2):
                with suppress(DBAPIError):  # that is the mistake
                    tx.connection.exec_driver_sql("INSERT INTO t VALUES (%s, %s)", (int(CANARY), n))
            tx.advance(left)

        return run

    with pytest.raises(RowsRefused, match=r"23505.*t_id_key of public\.t") as refused:
        store.run(claim, work(1))
    assert CANARY not in shown(refused.value)
    with pytest.raises(OffsetStoreError, match="swallowed an error of the database"):
        store.run(claim, work(9))

"""What goes wrong in the database: typed, with what to do, repeated where that helps, and no record's fault."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any, cast

import psycopg
import pyarrow as pa
import pytest
from sqlalchemy import MetaData, Table
from sqlalchemy.exc import IntegrityError

from offsetstore import Append, Claim, OffsetRange, OffsetStore, Retries, Transaction, Upsert
from offsetstore.errors import (
    ColumnMismatch,
    ConfigurationError,
    InvalidText,
    LockTimeout,
    OffsetStoreError,
    RowsRefused,
    SchemaError,
    SchemaMissing,
    StoreUnavailable,
    TargetRefused,
    TransactionLost,
)
from offsetstore.postgres.url import make_engine
from offsetstore.store.sessions import transaction
from offsetstore.testing import StaticBroker
from tests.integration.conftest import Query
from tests.integration.transacting import GROUP, P0, apply, driver, lock, write
from tests.integration.writers.writing import batch
from tests.support.background import in_background
from tests.support.server_errors import OF_SERVER, held
from tests.support.shown import shown

RANGE = OffsetRange(0, 3)
CANARY = "canary-4111"
CANCELLED = r"cancelled a statement.*57014.*canceling statement due to"
READ_ONLY = r"accepts no writes.*25006.*read-only"


@pytest.fixture
def store(offsetstore_database: str) -> Iterator[OffsetStore]:
    retries = Retries(attempts=3, shortest=0.01, longest=0.02)
    with OffsetStore.connect(offsetstore_database, retries=retries) as connected:
        yield connected


@pytest.fixture
def claim(store: OffsetStore, results: str) -> Claim:
    assert results
    return store.claim(GROUP, StaticBroker.with_topics({"payments": 1}, end=100))


def cancel(tx: Transaction) -> None:
    driver(tx).execute("SET LOCAL statement_timeout = 20; SELECT pg_sleep(30)")


@pytest.mark.behaviour("TX-12", "DLQ-6")
def test_a_cancelled_statement_repeats_the_whole_function(store: OffsetStore, claim: Claim, query: Query) -> None:
    """As often as any other trouble; then the error says so."""
    attempts: list[int] = []

    def work(tx: Transaction) -> None:
        attempts.append(1)
        left = lock(tx, P0, range_=RANGE)
        write(tx, [0, 1, 2])
        if len(attempts) != 2:
            cancel(tx)
        tx.advance(left)

    store.run(claim, work)
    assert len(attempts) == 2
    with pytest.raises(StoreUnavailable, match=CANCELLED + r".*statement_timeout.*pg_cancel_backend"):
        store.run(claim, work)
    assert len(attempts) == 2 + 3
    assert query("SELECT record FROM results ORDER BY 1") == [(0,), (1,), (2,)]


@pytest.mark.behaviour("DLQ-6")
def test_a_read_a_reset_and_a_claim_that_are_cancelled_say_so(
    store: OffsetStore, claim: Claim, offsetstore_database: str
) -> None:
    questions: list[Callable[[], object]] = [
        lambda: store.offsets(GROUP),
        lambda: store.reset(GROUP, {P0: 1}, reason="a test"),
        lambda: store.claim(GROUP, StaticBroker.with_topics({"payments": 1}, end=100)),
    ]
    with psycopg.connect(offsetstore_database) as holder, psycopg.connect(offsetstore_database, autocommit=True) as eye:
        holder.execute("LOCK TABLE kafka_partitions")
        for ask in questions:
            waiting = in_background(ask)
            while not waiting.done():
                eye.execute("SELECT pg_cancel_backend(pid) FROM pg_locks WHERE NOT granted")
            with pytest.raises(StoreUnavailable, match=CANCELLED):
                waiting.result()
    assert claim.token == store.owner(GROUP).token  # type: ignore[union-attr] - it has one


@pytest.mark.behaviour("TX-12", "DLQ-6")
def test_a_database_that_became_read_only_is_left_for_a_new_connection(
    store: OffsetStore, claim: Claim, query: Query
) -> None:
    """As at a failover: the connections that are open stay with what is the standby now."""
    [(name,)] = query("SELECT current_database()")
    query(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')
    store.database.engine.dispose()  # type: ignore[attr-defined] - it is PostgreSQL's
    attempts: list[Any] = []

    def work(tx: Transaction) -> None:
        attempts.append(tx)
        apply(tx, P0, range_=RANGE)

    with pytest.raises(StoreUnavailable, match=READ_ONLY + r".*target_session_attrs"):
        store.run(claim, work)
    assert len(attempts) == 3
    with pytest.raises(StoreUnavailable, match=READ_ONLY):
        store.reset(GROUP, {P0: 1}, reason="a test")
    with pytest.raises(StoreUnavailable, match=READ_ONLY):
        store.claim(GROUP, StaticBroker.with_topics({"payments": 1}, end=100))

    def meanwhile(tx: Transaction) -> None:
        if len(attempts) == 3:
            query("SET default_transaction_read_only = off")
            query(f'ALTER DATABASE "{name}" RESET default_transaction_read_only')
        work(tx)

    store.run(claim, meanwhile)
    assert len(attempts) == 5
    assert query("SELECT record FROM results ORDER BY 1") == [(0,), (1,), (2,)]


STATES = {
    "lock": ("55P03", LockTimeout),
    "cancelled": ("57014", StoreUnavailable),
    "full": ("53400", StoreUnavailable),
    "terminated": ("57P01", TransactionLost),
}


@pytest.mark.behaviour("OPS-7")
@pytest.mark.parametrize("deferred", [False, True], ids=["at once", "at commit"])
@pytest.mark.parametrize("state", STATES)
def test_what_became_ours_was_raised_from_nothing_that_quotes_a_row(
    store: OffsetStore,
    claim: Claim,
    query: Query,
    caplog: pytest.LogCaptureFixture,
    *,
    offsetstore_database: str,
    state: str,
    deferred: bool,
) -> None:
    sqlstate, kind = STATES[state]
    query("CREATE TABLE people (name text, address inet)")
    body = f"{OF_SERVER[sqlstate]} RETURN NEW;"
    query(f"CREATE FUNCTION meet() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {body} END $$")
    when = "CONSTRAINT TRIGGER meet AFTER INSERT ON people DEFERRABLE INITIALLY DEFERRED"
    query(f"CREATE {when if deferred else 'TRIGGER meet BEFORE INSERT ON people'} FOR EACH ROW EXECUTE FUNCTION meet()")
    rows = [batch({"name": [CANARY], "address": ["10.0.0.1"]})]

    def work(tx: Transaction) -> None:
        left = lock(tx, P0, range_=RANGE)
        Append("people").write(tx, rows)
        tx.advance(left)

    caplog.set_level(logging.DEBUG)
    with psycopg.connect(offsetstore_database) as other, held(other), pytest.raises(OffsetStoreError) as caught:
        store.run(claim, work)
    logging.getLogger("test").error("it failed", exc_info=caught.value)

    assert isinstance(caught.value, kind)
    assert CANARY not in shown(caught.value)
    assert CANARY not in caplog.text
    assert "it failed" in caplog.text


@pytest.mark.behaviour("OPS-7")
def test_what_sql_in_a_transaction_of_the_store_s_raises_quotes_no_row(store: OffsetStore, query: Query) -> None:
    query("CREATE TABLE people (name text UNIQUE)")
    insert = "INSERT INTO people VALUES (%s), (%s)"
    with pytest.raises(IntegrityError) as caught, transaction(store.database, name="a test") as session:
        cast("Any", session).connection.exec_driver_sql(insert, (CANARY, CANARY))
    assert "people_name_key" in shown(caught.value)
    assert CANARY not in shown(caught.value)


# -- one of each family of what else goes wrong in the database


ROW = batch({"id": [4711], "n": [2]})
UPSERT = Upsert("t", key=["id"], add=["n"])


@pytest.fixture
def write_to(store: OffsetStore, claim: Claim) -> Callable[[Append | Upsert], None]:
    def run(writer: Append | Upsert, rows: pa.RecordBatch = ROW) -> None:
        def work(tx: Transaction) -> None:
            left = lock(tx, P0, range_=OffsetRange(0, 3))
            writer.write(tx, [rows])
            tx.advance(left)

        claim.read(lambda session: writer.resolve_table(session.connection))
        store.run(claim, work)

    return run


@pytest.mark.behaviour("SINK-25")
@pytest.mark.parametrize("is_partitioned", [False, True])
def test_no_replica_identity(query: Query, write_to: Callable[..., None], *, is_partitioned: bool) -> None:
    query(f"CREATE TABLE t (id bigint UNIQUE, n bigint) {'PARTITION BY HASH (id)' if is_partitioned else ''}")
    if is_partitioned:
        query("CREATE TABLE t1 PARTITION OF t FOR VALUES WITH (MODULUS 1, REMAINDER 0)")
    query("CREATE PUBLICATION all_of_t FOR TABLE t")
    with pytest.raises((RowsRefused, TargetRefused), match=r"55000.*REPLICA IDENTITY USING INDEX") as caught:
        write_to(UPSERT)
    assert isinstance(caught.value, RowsRefused) == is_partitioned, "of partitions the server tells with the first row"


@pytest.mark.behaviour("SINK-25")
def test_no_partition_for_a_row(query: Query, write_to: Callable[..., None]) -> None:
    query("CREATE TABLE t (id bigint, n bigint CHECK (n < 5)) PARTITION BY RANGE (id)")
    query("CREATE TABLE t1 PARTITION OF t FOR VALUES FROM (0) TO (10)")
    with pytest.raises(RowsRefused, match=r"23514.*fits no partition of public\.t\b") as caught:
        write_to(Append("t"))
    assert 'CREATE TABLE ... PARTITION OF "public"."t" ...' in caught.value.next_step
    with pytest.raises(RowsRefused, match=r"fits no partition of public\.t1, or not into public\.t1 itself") as caught:
        write_to(Append("t1"))
    assert "name its parent" in caught.value.next_step
    with pytest.raises(RowsRefused, match="constraint t_n_check") as caught:
        write_to(Append("t"), batch({"id": [1], "n": [7]}))
    assert "partition" not in str(caught.value)


@pytest.mark.behaviour("SINK-25")
@pytest.mark.parametrize("table", ["t", Table("t", MetaData(), schema="per_user")], ids=["default", "named"])
def test_a_schema_translate_map(offsetstore_database: str, query: Query, table: Any) -> None:
    query("CREATE SCHEMA tenant; CREATE TABLE tenant.t (id bigint, n bigint); CREATE TABLE t (LIKE tenant.t)")
    engine = make_engine(offsetstore_database)
    mapped = engine.execution_options(schema_translate_map={getattr(table, "schema", None): "tenant"})
    with OffsetStore.connect(mapped) as store, store.claim(GROUP, topics=["payments"]) as claim:
        with pytest.raises(ConfigurationError, match="schema_translate_map is not applied") as caught:
            claim.read(lambda session: Append(table).resolve_table(session.connection))
        assert '"tenant.t"' in caught.value.next_step
        claim.read(lambda session: Append("tenant.t").resolve_table(session.connection))
    engine.dispose()


@pytest.mark.behaviour("SINK-25")
@pytest.mark.parametrize("change", ["RENAME TO other", "SET SCHEMA elsewhere", "RENAME n TO amount"])
def test_a_target_that_is_changed_in_mid_run(query: Query, write_to: Callable[..., None], change: str) -> None:
    query("CREATE SCHEMA elsewhere; CREATE TABLE t (id bigint, n bigint)")
    writer = Append("t")
    write_to(writer, batch({"id": [1], "n": [1]}))
    query(f"ALTER TABLE t {change}")
    with pytest.raises(ColumnMismatch, match=r"no table public\.t.*it was renamed or dropped|n is not in the table"):
        write_to(writer)


@pytest.mark.behaviour("SINK-25")
@pytest.mark.parametrize(
    ("change", "kind", "found"),
    [
        ("kafka_partitions RENAME TO partitions", SchemaMissing, r'"public\.kafka_partitions" does not exist'),
        ("kafka_partitions RENAME next_offset TO stored", SchemaError, "next_offset.*does not exist"),
        ("consumer_groups ADD CHECK (epoch < 2)", SchemaError, "consumer_groups_epoch_check"),
    ],
)
def test_our_own_tables_that_are_changed_in_mid_run(
    store: OffsetStore, claim: Claim, query: Query, *, change: str, kind: type[SchemaError], found: str
) -> None:
    query(f"ALTER TABLE {change}")
    asked: list[Callable[[], object]] = [lambda: store.claim(GROUP, topics=claim.topics)]
    asked += [] if "CHECK" in change else [lambda: store.offsets(GROUP)]
    for ask in asked:
        with pytest.raises(kind, match=f"not as its migrations made them.*{found}") as caught:
            ask()
        assert "Undo what was changed" in caught.value.next_step


@pytest.mark.behaviour("SINK-25")
def test_a_statement_timeout_of_the_role(offsetstore_database: str, query: Query) -> None:
    """What the store does at connect, too."""
    [(name,)] = query("SELECT current_database()")
    with psycopg.connect(offsetstore_database) as holder:
        holder.execute("LOCK TABLE offsetstore_version")
        query(f"ALTER DATABASE \"{name}\" SET statement_timeout = '50ms'")
        with pytest.raises(StoreUnavailable, match=r"cancelled a statement.*statement_timeout.*ALTER ROLE") as caught:
            OffsetStore.connect(offsetstore_database)
    assert "can't be reached" not in str(caught.value)


@pytest.mark.behaviour("SINK-25")
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

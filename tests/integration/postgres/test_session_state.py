"""What the user's own SQL leaves in its session, which no later transaction may meet; and what sessions share."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pytest
from sqlalchemy import Engine, create_engine, event, text
from sqlalchemy.pool import StaticPool

from offsetstore import Append, Execute, OffsetRange, OffsetStore, Transaction
from offsetstore.errors import ConfigurationError
from offsetstore.postgres.migrate import upgrade
from offsetstore.protocol.ports import Work, Writer
from offsetstore.spark.executors.connect import ExecutorStore
from offsetstore.store import heartbeat
from offsetstore.store.identity import ClaimInfo, TaskClaim
from offsetstore.testing import StaticBroker
from tests.integration.conftest import Query
from tests.integration.transacting import GROUP, P0, lock
from tests.support.pooler import Pooler
from tests.support.waiting import wait_until

RECORDS: Any = pa.RecordBatch.from_pydict({"record": [1]})
ADVISORY = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = 4711"


def leave_much_behind(work: Work, _: Iterable[pa.RecordBatch]) -> None:
    for statement in (
        "SET search_path = elsewhere, public",
        "CREATE TEMPORARY TABLE results (record bigint)",
        "SELECT pg_advisory_lock(4711)",
    ):
        work.connection.exec_driver_sql(statement)


def fail_afterwards(work: Work, batches: Iterable[pa.RecordBatch]) -> None:
    leave_much_behind(work, batches)
    raise LookupError


def write_with(store: OffsetStore, claim: ClaimInfo, writer: Writer, number: int) -> None:
    """One transaction of one record, as the sink and its tasks have it."""
    with store.transaction(claim) as tx:
        left = lock(tx, P0, range_=OffsetRange(number, number + 1))
        writer.write(tx, [RECORDS])
        tx.advance(left)


def ask(store: OffsetStore, claim: ClaimInfo, statement: str) -> object:
    """In a transaction with the pool's only connection."""

    def work(tx: Transaction) -> object:
        tx.lock({})
        return tx.connection.exec_driver_sql(statement).scalar()

    return store.run(claim, work)


@pytest.fixture
def tenant(offsetstore_database: str, query: Query, results: str) -> Iterator[OffsetStore]:
    """A store on an application's own engine of one connection, whose listener leads to the schema ``tenant``."""
    query("CREATE SCHEMA elsewhere; CREATE TABLE elsewhere.results (record bigint)")
    query("CREATE SCHEMA tenant; CREATE TABLE tenant.results (record bigint)")
    url = offsetstore_database.replace("postgresql://", "postgresql+psycopg://")
    engine = create_engine(url, pool_size=1, max_overflow=0)

    @event.listens_for(engine, "connect")
    def lead_to_tenant(connection: Any, _: object) -> None:  # pyright: ignore[reportUnusedFunction] - SQLAlchemy calls it
        connection.execute("SET search_path = tenant, public")
        connection.commit()

    with OffsetStore.connect(engine) as store:
        yield store
    engine.dispose()


@pytest.mark.behaviour("SINK-20")
@pytest.mark.parametrize("function", [leave_much_behind, fail_afterwards])
def test_nothing_of_the_session_comes_to_the_next_transaction(
    tenant: OffsetStore, query: Query, function: Callable[..., None]
) -> None:
    claim = tenant.claim(GROUP, StaticBroker.with_topics({"payments": 1}, end=100))
    number = 0 if function is fail_afterwards else 1
    with suppress(LookupError):
        write_with(tenant, claim, Execute(function), 0)

    # What the application's own listener has set is there again: DISCARD ALL would have undone that too.
    assert ask(tenant, claim, "SHOW search_path") == "tenant, public"
    write_with(tenant, claim, Append("results"), number)
    assert query("SELECT count(*) FROM tenant.results") == [(1,)]
    wait_until(lambda: query(ADVISORY) == [(0,)])
    # Without SQL of the user's, the connection is kept.
    before = ask(tenant, claim, "SELECT pg_backend_pid()")
    write_with(tenant, claim, Append("results"), number + 1)
    assert ask(tenant, claim, "SELECT pg_backend_pid()") == before


@pytest.mark.behaviour("SINK-20")
def test_nor_does_it_to_the_next_task_of_an_executor(store: OffsetStore, query: Query, results: str) -> None:
    query("CREATE SCHEMA elsewhere; CREATE TABLE elsewhere.results (record bigint)")
    claim = store.claim(GROUP, StaticBroker.with_topics({"payments": 1}, end=100))
    address = pickle.loads(pickle.dumps(ExecutorStore.of(store)))  # noqa: S301 - our own
    task = TaskClaim.of(claim)
    with address.open(dict) as remote:
        write_with(remote, task, Execute(leave_much_behind), 0)
        write_with(remote, task, Append("results"), 1)
    assert query("SELECT count(*) FROM public.results") == [(1,)]
    wait_until(lambda: query(ADVISORY) == [(0,)])


@pytest.mark.behaviour("SINK-20", "TX-16")
def test_behind_a_pooler_a_connection_is_closed_and_the_next_one_works(
    offsetstore_database: str, query: Query, results: str
) -> None:
    def insert(work: Work, _: Iterable[pa.RecordBatch]) -> None:
        work.connection.exec_driver_sql("SET LOCAL search_path = public, elsewhere")
        work.connection.exec_driver_sql("INSERT INTO results VALUES (1)")

    with Pooler(offsetstore_database) as pooler, OffsetStore.connect(pooler.url) as pooled:
        claim = pooled.claim(GROUP, StaticBroker.with_topics({"payments": 1}, end=100))
        for number in range(12):
            write_with(pooled, claim, Execute(insert), number)
            assert ask(pooled, claim, "SHOW search_path") == '"$user", public'
    assert query("SELECT count(*) FROM results") == [(12,)]


# -- what is shared, and not too far


def test_a_busy_pool_does_not_silence_the_heartbeat(tenant: OffsetStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "INTERVAL", 0.1)
    with tenant.transaction(tenant.claim(GROUP, topics=["payments"])) as tx:
        tx.lock({})
        beat = text("SELECT beat_at FROM heartbeats")
        first = tx.connection.execute(beat).scalar_one()
        wait_until(lambda: tx.connection.execute(beat).scalar_one() > first)


def test_a_search_path_that_is_left_behind_leads_to_no_other_tables(store: OffsetStore, engine: Engine) -> None:
    broker = StaticBroker.with_topics({"payments": 1}, end=100)
    with engine.begin() as connection:
        upgrade(connection, schema="tenant")
    with store.transaction(store.claim("billing", broker)) as tx:
        plan = tx.lock({P0: OffsetRange(0, 10)})
        tx.connection.execute(text("SET search_path TO tenant"))
        tx.advance({P0: plan[P0].remaining})
    assert store.offsets("billing")[P0].next_offset == 10
    again = store.claim("billing", broker)
    assert again.starting is not None
    assert again.starting.offsets[P0] == 10


def test_each_transaction_has_a_name_of_its_own(store: OffsetStore) -> None:
    claim = store.claim("a group with a long name " * 10, topics=["payments"])
    names: set[str] = set()
    for _ in range(2):
        with store.transaction(claim) as tx:
            tx.lock({})
            names.add(tx.connection.execute(text("SHOW application_name")).scalar_one())
    assert (len(names), all(name.startswith(claim.name) for name in names)) == (2, True)


def test_an_engine_that_shares_one_connection_is_refused(offsetstore_database: str) -> None:
    url = offsetstore_database.replace("postgresql://", "postgresql+psycopg://")
    engine = create_engine(url, poolclass=StaticPool)
    with pytest.raises(ConfigurationError, match="one connection to several"):
        OffsetStore.connect(engine)
    engine.dispose()


@pytest.mark.behaviour("META-4", "META-11")
def test_a_megabyte_that_is_kept_stays_where_it_is(store: OffsetStore, query: Query) -> None:
    claim = store.claim("billing", StaticBroker.with_topics({"payments": 1}, end=1000), mirror_every=None)
    toast = "SELECT pg_relation_size(reltoastrelid) FROM pg_class WHERE oid = 'kafka_partitions'::regclass"
    # Random enough that it can't be compressed to much less.
    kept = "".join(chr(0x4E00 + number * 7919 % 20_000) for number in range(340_000))
    sizes: list[int] = []
    for until in range(1, 101):
        with store.transaction(claim) as tx:
            tx.lock({P0: OffsetRange(until - 1, until)})
            if until == 1:
                tx.advance(tx.ranges, metadata=kept)
            else:
                tx.finish(tx.ranges)
        if until in {2, 100}:
            sizes += [size for (size,) in query(toast)]

    assert sizes[0] == sizes[1] > 100_000
    assert query("SELECT next_offset, length(metadata) FROM kafka_partitions") == [(100, len(kept) + 2)]

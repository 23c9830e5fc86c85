"""Roles and databases with other settings than PostgreSQL's own: the same bytes, or a refusal by name."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any, TypeAlias
from uuid import uuid4

import psycopg
import pyarrow as pa
import pytest
from sqlalchemy import create_engine

from offsetstore import Append, Claim, Execute, LetterError, OffsetRange, OffsetStore, Transaction, Upsert, Work
from offsetstore.errors import ConfigurationError, LockTimeout
from offsetstore.local.postgres import PostgresServer
from offsetstore.postgres.migrate import upgrade
from offsetstore.postgres.url import make_engine
from offsetstore.protocol.letters import NewLetter, Payload
from offsetstore.spark.executors.connect import ExecutorStore
from offsetstore.store.identity import TaskClaim
from offsetstore.testing import StaticBroker
from offsetstore.testing.fixtures import copy_database
from tests.integration.conftest import Query
from tests.integration.transacting import GROUP, P0, lock
from tests.integration.writers.writing import Database, batch, kafka
from tests.support.hostile import HOSTILE, set_defaults
from tests.support.pooler import Pooler

BYTES = b"\\x41\\\x00\xff'\"\n"
TEXT = "größe, 値, \\ and 'quotes'"
WRONG = LetterError(TEXT, TEXT, traceback=TEXT)
HEADERS = (("имя", BYTES), ("größe", None), ("plain", b"\\"))
INSTANT = dt.datetime(2026, 3, 4, 5, 6, 7, 89, tzinfo=dt.UTC)

# `inet` and the numeric from a double go as text, and with them their whole row.
TABLE = """
CREATE TABLE {} (id bigint PRIMARY KEY, value bytea, list bytea[], word text, words text[], ratio double precision,
                 exact numeric, small real, day date, wall timestamp, at timestamptz, clock time, span interval,
                 document jsonb, address inet)
"""
ROWS = batch(
    {
        "id": [1, 2],
        "value": [BYTES, None],
        "list": [[BYTES, None, b"NULL"], None],
        "word": [TEXT, None],
        "words": [[TEXT, None, "NULL"], []],
        "ratio": [0.1 + 0.2, None],
        "exact": [0.1 + 0.2, None],
        "small": [0.1, None],
        "day": [dt.date(2026, 3, 4), None],
        "wall": [dt.datetime(2026, 3, 4, 5, 6, 7, 89), None],  # noqa: DTZ001 - the column has no zone
        "at": [INSTANT, None],
        "clock": [dt.time(5, 6, 7, 89), None],
        "span": [-dt.timedelta(days=3, hours=4, microseconds=5), None],
        "document": ['{"größe": "\\\\値"}', None],
        "address": ["192.168.0.1", None],
        "_kafka": kafka(("payments", 0, 0), ("payments", 0, 1)),
    },
    {"small": pa.float32(), "at": pa.timestamp("us", "UTC")},
)
AS_BINARY = ROWS.select(["id", "value", "list", "word", "words", "ratio", "day", "wall", "at", "span", "_kafka"])
Ask: TypeAlias = Callable[[str], list[tuple[Any, ...]]]
TABLES = ("appended", "appended_as_text", "upserted", "executed")


def insert(work: Work, batches: Iterable[pa.RecordBatch]) -> None:
    for one in batches:
        for row in one.to_pylist():
            work.connection.exec_driver_sql(
                "INSERT INTO public.executed (id, value, list, word, words, at, span) "
                "VALUES (%(id)s, %(value)s, %(list)s, %(word)s, %(words)s, %(at)s, %(span)s)",
                row,
            )


def write_everything(store: OffsetStore, claim: Claim | TaskClaim) -> None:
    """All writers, letters, failures, metadata and lines of the history, in a job's transactions."""
    upsert = Upsert("public.upserted", key=["id"], version="at")
    with store.transaction(claim) as tx:
        left = lock(tx, P0, range_=OffsetRange(0, 10))
        Append("public.appended").write(tx, [AS_BINARY])
        Append("public.appended_as_text").write(tx, [ROWS])
        upsert.write(tx, [ROWS])
        Execute(insert).write(tx, [AS_BINARY])
        tx.letters.write(
            [
                NewLetter(P0, 1, "refused", WRONG, 1, BYTES, Payload(BYTES, BYTES, None, None, None)),
                NewLetter(P0, 2, "refused", WRONG, 1, None, Payload(None, b"", HEADERS, 0, 0)),
                NewLetter(P0, 3, "refused", LetterError("E", ""), 1, None, None),
            ]
        )
        tx.letters.note_skipped({(P0, 4): TEXT})
        tx.advance(left, metadata={"note": TEXT})


def fingerprints(query: Ask) -> list[object]:
    """The bytes of all rows, as a connection with PostgreSQL's own settings sees them."""
    tables = [f"public.{name}" for name in TABLES]
    letters = "(SELECT record_offset AS id, key, value, headers, error_text, traceback, sequence FROM dead_letters)"
    history = "(SELECT id, event, reason FROM offset_history WHERE event = 'skip')"
    notes = "(SELECT partition AS id, next_offset, metadata FROM kafka_partitions)"
    rows: list[object] = []
    for table in [*tables, letters, history, notes]:
        rows += query(f"SELECT encode(record_send(t), 'hex') FROM {table} AS t ORDER BY t.id")
    return rows


def read_everything(store: OffsetStore) -> list[object]:
    """What the store reads of it; times come in the role's zone, but are equal."""
    store.request_replay(GROUP, store.letter(GROUP, P0, 1).key, reason=TEXT)
    paused = store.pause(GROUP, reason=TEXT, until=INSTANT.replace(year=2100)).after
    return [
        [(one.error, one.payload, one.sequence) for one in store.letters(GROUP, contents=True).letters],
        [(one.event, one.reason) for one in store.history(GROUP, since=INSTANT) if one.event in ("skip", "pause")],
        store.metadata(GROUP),
        [one.error_class for one in store.letter_errors(GROUP)],
        paused and paused.until,
    ]


def outcome(store: OffsetStore, query: Ask, task: TaskClaim | None = None) -> object:
    """The bytes that are stored and what is read of them, or the error with which that ended."""
    try:
        write_everything(store, task or claimed(store))
        return fingerprints(query), read_everything(store)
    except Exception as error:  # noqa: BLE001 - it is compared
        return repr(error)


def make_tables(query: Callable[[str], object]) -> None:
    query("CREATE SCHEMA elsewhere")
    for name in TABLES:
        query(TABLE.format(name))


def claimed(store: OffsetStore) -> Claim:
    return store.claim(GROUP, StaticBroker.with_topics({"payments": 1}, end=100), mirror_every=None)


@pytest.fixture(scope="module")
def expected(offsetstore_postgres: PostgresServer, offsetstore_template: str) -> Iterator[object]:
    """The bytes with PostgreSQL's own settings, and what is read of them."""
    name = f"test_{uuid4().hex[:12]}"
    url = copy_database(offsetstore_postgres, name, template=offsetstore_template)
    engine = make_engine(url)
    database = Database(engine)
    make_tables(database.run)
    with OffsetStore.connect(url) as store:
        found = outcome(store, database.rows)
    engine.dispose()
    assert isinstance(found, tuple), found
    yield found
    offsetstore_postgres.drop_database(name)


@pytest.fixture
def role(query: Query, offsetstore_database: str) -> Iterator[str]:
    """The URL of the database for a role that no other test has."""
    make_tables(query)
    name = f"hostile_{uuid4().hex[:8]}"
    query(f"CREATE ROLE {name} SUPERUSER LOGIN")
    yield offsetstore_database.replace("postgres@", f"{name}@", 1)
    query(f"DROP OWNED BY {name}; DROP ROLE {name}")


@contextmanager
def own_engine(url: str) -> Generator[OffsetStore]:
    """A store on an application's engine, whose connections have the role's encoding."""
    engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    try:
        with OffsetStore.connect(engine) as store:
            yield store
    finally:
        engine.dispose()


@contextmanager
def pooled(url: str) -> Generator[OffsetStore]:
    with Pooler(url) as pooler, OffsetStore.connect(pooler.url) as store:
        yield store


@pytest.mark.behaviour("TX-16", "TX-19")
@pytest.mark.parametrize(
    ("connect", "whose"),
    [(OffsetStore.connect, "ROLE"), (own_engine, "ROLE"), (pooled, "DATABASE")],
)
def test_no_default_of_a_role_or_database_changes_a_byte_however_the_store_is_connected(
    role: str, query: Query, expected: object, whose: str, connect: Callable[[str], Any]
) -> None:
    set_defaults(role, whose, HOSTILE)
    with connect(role) as store:
        assert outcome(store, query) == expected


@pytest.mark.behaviour("TX-19")
def test_nor_on_an_executor(role: str, query: Query, expected: object) -> None:
    set_defaults(role, "ROLE", HOSTILE)
    with OffsetStore.connect(role) as store:
        task = TaskClaim.of(claimed(store))
        with ExecutorStore.of(store).open(dict) as remote:
            assert outcome(remote, query, task) == expected


PINNED = {
    "standard_conforming_strings": "on",
    "bytea_output": "hex",
    "extra_float_digits": "1",
    "array_nulls": "on",
    "client_encoding": "UTF8",
    "xmloption": "content",
    "lc_monetary": "C",
}


@pytest.mark.behaviour("TX-19")
def test_triggers_and_own_sql_live_with_the_role_s_path_and_styles_and_all_else_is_postgresql_s(role: str) -> None:
    set_defaults(role, "ROLE", HOSTILE)
    with own_engine(role) as store:
        claim = claimed(store)

        def show(tx: Transaction) -> dict[str, object]:
            tx.lock({})
            return {name: tx.connection.exec_driver_sql(f"SHOW {name}").scalar_one() for name in HOSTILE}

        found = store.run(claim, show)
    kept = {name: HOSTILE[name] for name in ("search_path", "TimeZone", "DateStyle", "IntervalStyle")}
    assert found == {**HOSTILE, **kept, **PINNED}


@pytest.mark.behaviour("TX-19", "DLQ-20")
def test_the_names_of_a_group_and_of_a_locked_target_may_have_letters_that_the_role_s_encoding_has_not(
    role: str, query: Query
) -> None:
    query('CREATE TABLE public."値" (id bigint)')
    set_defaults(role, "ROLE", HOSTILE)
    group = "größe 値 \\ '"
    with own_engine(role) as store:
        claim = store.claim(group, StaticBroker.with_topics({"payments": 1}, end=100))

        def write() -> None:
            with store.transaction(claim, lock_timeout=0.1) as tx:
                lock(tx, P0, range_=OffsetRange(0, 2))
                Append("public.値").write(tx, [batch({"id": [1]})])

        with store.transaction(claim) as holder, ThreadPoolExecutor(1) as pool:
            left = lock(holder, P0, range_=OffsetRange(0, 1))
            error = pool.submit(write).exception()
            holder.advance(left)
        assert isinstance(error, LockTimeout)
        assert "held by pid" in str(error.found)
        with psycopg.connect(role, client_encoding="UTF8") as other:
            other.execute('LOCK TABLE public."値"')
            with pytest.raises(LockTimeout, match=r"値.* held by pid"):
                write()
        assert [one.group for one in store.groups()] == [group]


@pytest.mark.behaviour("TX-19")
@pytest.mark.parametrize(("setting", "value"), [("session_replication_role", "replica"), ("row_security", "off")])
def test_a_role_whose_writes_would_pass_over_triggers_or_policies_is_refused_by_name(
    role: str, query: Query, setting: str, value: str
) -> None:
    with OffsetStore.connect(role) as store:
        claim = claimed(store)
        set_defaults(role, "ROLE", {setting: value})
        store.database.close()  # so that its connections are new ones
        with pytest.raises(ConfigurationError, match=f"{setting}={value}"):
            store.claim(GROUP, topics=["payments"])
        with pytest.raises(ConfigurationError, match=f"{setting}={value}"), store.transaction(claim) as tx:
            tx.lock({P0: OffsetRange(0, 1)})
        with pytest.raises(ConfigurationError, match=f"{setting}={value}, with which .* don't apply"):
            store.offsets(GROUP)
        assert query("SELECT count(*) FROM kafka_partitions WHERE next_offset > 0") == [(0,)]
        assert query("SELECT epoch FROM consumer_groups") == [(claim.token.epoch,)]


@pytest.mark.behaviour("TX-19")
def test_so_is_a_session_in_which_own_sql_has_left_that_setting(store: OffsetStore, query: Query) -> None:
    claim = claimed(store)
    with store.transaction(claim) as tx:
        left = lock(tx, P0, range_=OffsetRange(0, 1))
        tx.connection.exec_driver_sql("SET session_replication_role = replica")
        tx.advance(left)

    def lock_anyway() -> None:
        with store.transaction(claim) as tx, suppress(ConfigurationError):
            tx.lock({P0: OffsetRange(1, 2)})

    with pytest.raises(ConfigurationError, match="session_replication_role=replica"):
        lock_anyway()
    assert query("SELECT next_offset FROM kafka_partitions") == [(1,)]


@pytest.mark.behaviour("TX-19")
@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
def test_a_database_that_is_not_in_utf_8_is_refused_by_name(
    offsetstore_postgres: PostgresServer, encoding: str
) -> None:
    name = f"test_{uuid4().hex[:12]}"
    offsetstore_postgres.sql(f"CREATE DATABASE {name} ENCODING '{encoding}' LOCALE 'C' TEMPLATE template0")
    url = offsetstore_postgres.database_url(name)
    engine = make_engine(url)
    try:
        with pytest.raises(ConfigurationError, match=encoding), engine.begin() as connection:
            upgrade(connection)
        with pytest.raises(ConfigurationError, match=encoding):
            OffsetStore.connect(url)
    finally:
        engine.dispose()
        offsetstore_postgres.drop_database(name)

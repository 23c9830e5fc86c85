"""An application without a claim puts records into the outbox: with each kind of connection, or not at all."""

from __future__ import annotations

import asyncio
import re
import shlex
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeAlias, cast

import httpx
import psycopg
import pytest
from click.testing import CliRunner
from fastapi import Depends, FastAPI
from psycopg.rows import dict_row
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, scoped_session, sessionmaker

from offsetstore import Broker, OffsetStore, Relay, errors
from offsetstore.cli.commands import cli
from offsetstore.operations.people import ask
from offsetstore.outbox import OutboxRecord, put
from offsetstore.postgres.outbox import Portions, Reader
from tests.integration.conftest import Query
from tests.support.outbox import numbered
from tests.support.relayed import FakeKafka

pytestmark = pytest.mark.behaviour("OUT-14")

BYTES = bytes(range(256))
RECORDS = [
    OutboxRecord("events", BYTES, BYTES, (("trace", BYTES), ("trace", None), ("größe", b""))),
    OutboxRecord("events", None, None),
    OutboxRecord("other.events", b"", b"NULL"),
]
DOCS = Path(__file__).parents[3] / "docs"
ORDER = "INSERT INTO orders (item) VALUES ('lamp')"
Run: TypeAlias = Callable[[str], object]
Work: TypeAlias = Callable[[Any, Run], object]


class Django:
    """The part of ``django.db.connection`` that counts: in autocommit mode, but for ``atomic``."""

    def __init__(self, url: str) -> None:
        self.connection: psycopg.Connection[Any] | None = None
        self.in_atomic_block = False
        self.url = url

    def connect(self) -> psycopg.Connection[Any]:
        self.connection = psycopg.connect(self.url, autocommit=True, cursor_factory=psycopg.ClientCursor)
        return self.connection

    @contextmanager
    def atomic(self) -> Generator[None]:
        with self.connection or self.connect() as driver:
            driver.autocommit, self.in_atomic_block = False, True
            yield


def sqlalchemy(url: str) -> str:
    return url.replace("postgresql://", "postgresql+psycopg://")


def of_psycopg(url: str, work: Work) -> None:
    connected: Any = psycopg.connect(url, row_factory=dict_row)  # pyright: ignore[reportArgumentType]
    with connected as connection:
        work(connection, lambda sql: connection.execute(sql.encode()))


def of_a_cursor(url: str, work: Work) -> None:
    with psycopg.connect(url) as connection, connection.cursor() as cursor:
        work(cursor, lambda sql: cursor.execute(sql.encode()))


def of_a_block(url: str, work: Work) -> None:
    with psycopg.connect(url, autocommit=True) as connection, connection.transaction():
        work(connection, lambda sql: connection.execute(sql.encode()))


@contextmanager
def engine_of(url: str, **options: Any) -> Generator[Engine]:
    engine = create_engine(sqlalchemy(url), **options)
    try:
        yield engine
    finally:
        engine.dispose()


def of_sqlalchemy(url: str, work: Work) -> None:
    with engine_of(url) as engine, engine.begin() as connection:
        work(connection, lambda sql: connection.execute(text(sql)))


def of_a_session(url: str, work: Work) -> None:
    with engine_of(url) as engine, Session(engine) as session:
        work(session, lambda sql: session.execute(text(sql)))
        session.commit()


def of_a_scoped_session(url: str, work: Work) -> None:
    with engine_of(url) as engine:
        session = scoped_session(sessionmaker(engine))
        try:
            work(session, lambda sql: session.execute(text(sql)))
            session.commit()
        finally:
            session.remove()


def of_an_async_session(url: str, work: Work) -> None:
    async def run() -> None:
        engine = create_async_engine(sqlalchemy(url))
        try:
            async with AsyncSession(engine) as session:
                await session.run_sync(lambda session: work(session, lambda sql: session.execute(text(sql))))
                await session.commit()
        finally:
            await engine.dispose()

    asyncio.run(run())


def of_an_async_connection(url: str, work: Work) -> None:
    async def run() -> None:
        engine = create_async_engine(sqlalchemy(url))
        try:
            async with engine.begin() as connection:
                await connection.run_sync(lambda one: work(one, lambda sql: one.execute(text(sql))))
        finally:
            await engine.dispose()

    asyncio.run(run())


def of_django(url: str, work: Work) -> None:
    django = Django(url)
    with django.atomic():
        work(django, lambda sql: cast("Any", django.connection).execute(sql.encode()))


KINDS = [
    of_psycopg, of_a_cursor, of_a_block, of_sqlalchemy, of_a_session, of_a_scoped_session, of_an_async_session,
    of_an_async_connection, of_django,
]  # fmt: skip


@pytest.fixture(autouse=True)
def orders(query: Query) -> None:
    query("CREATE TABLE orders (item text)")


def left(store: OffsetStore) -> list[tuple[Any, ...]]:
    """What a relay reads."""
    found = Reader(lambda asked: ask(store.database, asked), Portions(), largest=1_000_000).look("{}", 100)
    return [row[1:5] for row in found]


class Stop(Exception):
    """The application fails."""


def put_and_stop(connection: psycopg.Connection[Any]) -> None:
    put(connection, numbered("events", [2]), source="shop")
    raise Stop


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_records_are_committed_with_the_application_s_rows_or_rolled_back_with_them(
    kind: Callable[[str, Work], None], store: OffsetStore, offsetstore_database: str, query: Query
) -> None:
    def fail(connection: object, run: Run) -> None:
        run(ORDER)
        assert put(cast("Any", connection), RECORDS, source="shop") == len(RECORDS)
        raise Stop

    def work(connection: Any, run: Run) -> None:
        run(ORDER)
        assert put(connection, iter(RECORDS[:2]), source="shop", schema="public") == 2
        assert put(connection, [tuple(RECORDS[2]), ("events", "a key", "größer")], source="shop") == 2
        assert put(connection, [], source="shop") == 0
        assert (left(store), query("SELECT * FROM orders")) == ([], []), "nothing is committed by it"

    with pytest.raises(Stop):
        kind(offsetstore_database, fail)
    assert (left(store), query("SELECT * FROM orders")) == ([], [])
    kind(offsetstore_database, work)

    assert left(store) == [*map(tuple, RECORDS), ("events", b"a key", "größer".encode(), None)]
    assert query("SELECT DISTINCT consumer_group FROM outbox") == [("shop",)]
    assert query("SELECT * FROM orders") == [("lamp",)]


def test_a_savepoint_takes_its_records_along_and_rows_without_any_key_are_written(
    store: OffsetStore, offsetstore_database: str
) -> None:
    with psycopg.connect(offsetstore_database) as connection:
        put(connection, numbered("events", [1]), source="shop")
        with pytest.raises(Stop), connection.transaction():
            put_and_stop(connection)
        put(connection, [OutboxRecord("events", None, None)] * 2, source="shop")
    assert left(store) == [tuple(numbered("events", [1])[0]), *[("events", None, None, None)] * 2]


@pytest.mark.behaviour("OUT-3")
def test_the_commit_wakes_the_relay_which_sends_the_rows_in_the_order_of_the_commits(
    store: OffsetStore, offsetstore_database: str
) -> None:
    kafka = FakeKafka()
    with psycopg.connect(offsetstore_database, autocommit=True) as listening:
        listening.execute("LISTEN offsetstore_outbox")
        for number in range(3):
            with psycopg.connect(offsetstore_database) as connection:
                put(connection, numbered("events", [2 * number, 2 * number + 1]), source="shop")
        payloads = {told.payload for told in listening.notifies(timeout=5, stop_after=3)}
    assert payloads == {'"public".'}, "the one for which the relay waits"
    Relay(store, cast("Broker", kafka)).drain()
    assert kafka.values() == [*range(6)]
    assert left(store) == []


@pytest.mark.parametrize("setting", ["array_nulls = off", "standard_conforming_strings = off", "bytea_output = escape"])
def test_records_arrive_as_they_are_whatever_the_session_is_set_to(
    setting: str, store: OffsetStore, offsetstore_database: str
) -> None:
    with psycopg.connect(offsetstore_database) as connection:
        connection.execute(f"SET {setting}".encode())
        put(connection, RECORDS, source="größe\\'")
    assert left(store) == [*map(tuple, RECORDS)]


KILLED = """
import sys, time, psycopg
from offsetstore.outbox import put
with psycopg.connect(sys.argv[1]) as connection:
    connection.execute("INSERT INTO orders (item) VALUES ('lamp')")
    put(connection, [("events", b"k", b"1")], source="shop")
    if sys.argv[2] == "after":
        connection.commit()
    print("here", flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize(("when", "expected"), [("before", 0), ("after", 1)])
def test_a_kill_before_the_commit_leaves_nothing_and_after_it_each_record_once(
    when: str, expected: int, store: OffsetStore, offsetstore_database: str, query: Query
) -> None:
    command = [sys.executable, "-c", KILLED, offsetstore_database, when]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as application:
        assert application.stdout is not None
        assert application.stdout.readline() == "here\n"
        application.kill()
    kafka = FakeKafka()
    for _ in range(2):
        Relay(store, cast("Broker", kafka)).drain()
    assert kafka.values() == [1] * expected
    assert len(query("SELECT * FROM orders")) == expected


REFUSED: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "no name": ({"source": ""}, errors.ConfigurationError, "source must be a name"),
    "no text": ({"source": 7}, errors.InvalidText, "source must be a text"),
    "NUL": ({"source": "a\0b"}, errors.InvalidText, "source can't be stored"),
    "long": ({"source": "x" * 256}, errors.InvalidText, "source is too long"),
    "schema": ({"schema": "a\0b"}, errors.InvalidText, "schema can't be stored"),
    "one record": ({"records": RECORDS[0]}, errors.ConfigurationError, "not a record; found builtins.str"),
    "parts": ({"records": [("events", b"")]}, errors.ConfigurationError, "not a record; found 2 parts"),
    "topic": ({"records": [("no topic", None, b"")]}, errors.RowsRefused, "the name of the topic is not valid"),
    "value": ({"records": [("events", None, 7)]}, errors.RowsRefused, "the value is neither bytes nor text"),
    "tables": ({"schema": "nowhere"}, errors.SchemaMissing, "Name it: schema='public'"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_can_t_be_put_is_refused_and_the_transaction_goes_on(
    case: str, store: OffsetStore, offsetstore_database: str
) -> None:
    changed, kind, said = REFUSED[case]
    with psycopg.connect(offsetstore_database) as connection:
        put(connection, RECORDS[1:2], source="shop")
        with pytest.raises(kind, match=re.escape(said)):
            put(connection, **cast("Any", {"records": RECORDS, "source": "shop", **changed}))
    assert left(store) == [tuple(RECORDS[1])]


def connections(url: str) -> Iterator[tuple[object, str, str]]:
    """Connections that are refused, what is found, and what to do."""
    with psycopg.connect(url, autocommit=True) as connection:
        yield connection, "psycopg.Connection, in autocommit mode", "Use with connection.transaction()"
        yield connection.cursor(), "psycopg.Cursor, in autocommit mode", "Use with connection.transaction()"
        django = SimpleNamespace(connection=connection, in_atomic_block=False)
        yield django, "in autocommit mode", "Use with transaction.atomic()"
        yield Django(url), "in autocommit mode", "Use with transaction.atomic()"
    with (
        engine_of(url, isolation_level="AUTOCOMMIT") as engine,
        engine.connect() as plain,
        Session(engine) as session,
    ):
        yield plain, "Connection, in autocommit mode", "isolation level is not AUTOCOMMIT"
        yield session, "in autocommit mode", "isolation level is not AUTOCOMMIT"
        yield engine, "sqlalchemy.engine.base.Engine", ""
    with engine_of("sqlite://") as lite, lite.connect() as plain:
        yield plain, "on sqlite3.Connection", ""
        yield (
            SimpleNamespace(connection=cast("Any", plain.connection).driver_connection, in_atomic_block=True),
            "on",
            "",
        )
    yield url, "found builtins.str", ""
    yield None, "found builtins.NoneType", ""
    other = sqlite3.connect(":memory:")
    yield other, "sqlite3.Connection", ""
    other.close()
    asynchronous = create_async_engine(sqlalchemy(url))
    yield AsyncSession(asynchronous), "AsyncSession", "await session.run_sync"
    yield asynchronous.connect(), "AsyncConnection", "await session.run_sync"
    yield psycopg.AsyncConnection.__new__(psycopg.AsyncConnection), "psycopg.AsyncConnection", "await session.run_sync"


def test_a_connection_outside_of_a_transaction_an_async_one_and_another_one_are_refused_by_name(
    offsetstore_database: str, query: Query
) -> None:
    for connection, found, step in connections(offsetstore_database):
        with pytest.raises(errors.ConfigurationError) as caught:
            put(cast("Any", connection), RECORDS, source="shop")
        assert found in str(caught.value)
        assert "expected" in str(caught.value)
        assert step in (caught.value.next_step or "")
    assert query("SELECT id FROM outbox") == []


KEEP = """CREATE FUNCTION leave_out() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {} END $$;
CREATE TRIGGER leave_out BEFORE INSERT ON outbox FOR EACH ROW EXECUTE FUNCTION leave_out()"""
CANARY = [OutboxRecord("events", b"canary", b"canary", (("canary", b"canary"),)), *RECORDS]
OF_THE_DATABASE: dict[str, tuple[str, type[Exception], str]] = {
    "a trigger": (
        KEEP.format("IF NEW.key IS NULL THEN RETURN NULL; END IF; RETURN NEW;"),
        errors.SinkError,
        "not all records could be put into the outbox: roll the transaction back; found 3 records; expected 4",
    ),
    "a trigger's error": (
        KEEP.format("RAISE EXCEPTION 'no %', encode(NEW.value, 'escape');"), errors.SchemaError, "P0001"
    ),
    "a constraint": ("ALTER TABLE outbox ADD CHECK (key <> 'canary')", errors.SchemaError, "23514"),
    "no outbox": ("DROP TABLE outbox", errors.SchemaMissing, "Run `offsetstore migrate`."),
    "no tables": (
        "DROP SCHEMA public CASCADE; CREATE SCHEMA public", errors.SchemaMissing, "Run `offsetstore migrate`."
    ),
    "an error before": ("", errors.SinkError, "takes no statement"),
}  # fmt: skip


@pytest.mark.behaviour("OPS-7")
@pytest.mark.parametrize("kind", [of_psycopg, of_a_session, of_an_async_session], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("case", OF_THE_DATABASE)
def test_an_error_of_the_database_is_ours_and_quotes_nothing(
    case: str, kind: Callable[[str, Work], None], offsetstore_database: str, query: Query
) -> None:
    change, expected, said = OF_THE_DATABASE[case]
    query(change or "SELECT 1")

    def work(connection: Any, run: Run) -> None:
        if not change:
            with pytest.raises(Exception, match="nothing"):
                run("SELECT * FROM nothing")
        put(connection, CANARY, source="shop")

    with pytest.raises(expected) as caught:
        kind(offsetstore_database, work)
    assert said in str(caught.value)
    shown: BaseException | None = caught.value
    while shown is not None:
        assert "canary" not in f"{shown} {shown!r} {vars(shown)}"
        shown = shown.__cause__
    if "no " not in case:
        assert query("SELECT id FROM outbox") == []


def test_a_connection_that_is_gone_is_said_to_be_lost(offsetstore_database: str) -> None:
    connection = psycopg.connect(offsetstore_database)
    connection.close()
    with pytest.raises(errors.ConnectionLost):
        put(connection, RECORDS, source="shop")


@pytest.mark.behaviour("OPS-8")
def test_the_printed_grants_are_all_that_it_needs_and_a_role_without_them_is_told(
    offsetstore_database: str, query: Query, store: OffsetStore
) -> None:
    """The application's own table `outbox` comes first in its search path."""
    [(database,)] = query("SELECT current_database()")
    role = f"shop of {database}"
    query(
        f'CREATE ROLE "{role}" LOGIN; CREATE SCHEMA shop AUTHORIZATION "{role}"; CREATE TABLE shop.outbox (n int);'
        f'ALTER ROLE "{role}" SET search_path = shop, public'
    )
    url = offsetstore_database.replace("postgres@", f"{role.replace(' ', '%20')}@")
    try:
        for kind in (of_psycopg, of_sqlalchemy):
            with pytest.raises(errors.MissingPrivilege) as caught:
                kind(url, lambda connection, _: put(connection, RECORDS, source="shop"))
            [command] = re.findall("`(.*)`", caught.value.next_step)
            assert command == f"offsetstore grants --outbox-role {shlex.quote(role)}"
        printed = CliRunner().invoke(cli, shlex.split(command)[1:])
        assert printed.exit_code == 0
        query(printed.stdout)
        of_psycopg(url, lambda connection, _: put(connection, RECORDS, source="shop"))
        assert left(store) == [*map(tuple, RECORDS)]
        with psycopg.connect(url, autocommit=True) as connection:
            for forbidden in (
                "SELECT id FROM public.outbox",
                "DELETE FROM public.outbox",
                "INSERT INTO public.outbox (consumer_group, topic, created_at) VALUES ('shop', 'events', now())",
                "SELECT * FROM consumer_groups",
            ):
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    connection.execute(forbidden.encode())
    finally:
        query(f'DROP OWNED BY "{role}" CASCADE; DROP ROLE "{role}"')


class Base(DeclarativeBase):
    """The tables of the page's application."""


class Order(Base):
    """As the page has it."""

    __tablename__ = "orders"
    item: Mapped[str] = mapped_column(primary_key=True)


DJANGO = """
import sys
import django
from django.conf import settings
from psycopg.conninfo import conninfo_to_dict

given = conninfo_to_dict(sys.argv[1])
place = {"NAME": given["dbname"], **{name.upper(): given[name] for name in ("host", "port", "user") if name in given}}
settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.postgresql", **place}})
django.setup()
from offsetstore.outbox import OutboxRecord, put

exec(compile(sys.argv[2], "docs/outbox-application.md", "exec"))
order_in_django("vase")
"""


def run_page(block: str, **names: Any) -> dict[str, Any]:
    """Run a block of the page, which imports what it needs of ours in its first one; return its names."""
    given: dict[str, Any] = {"put": put, "OutboxRecord": OutboxRecord, "Order": Order, "Session": Session, **names}
    exec(compile(block, "docs/outbox-application.md", "exec"), given)  # noqa: S102 - the page's own words
    return given


def test_the_examples_of_the_page_put_their_records(
    store: OffsetStore, offsetstore_database: str, query: Query
) -> None:
    query("CREATE TABLE stock (item text, pieces int); INSERT INTO stock VALUES ('lamp', 3)")
    page = (DOCS / "outbox-application.md").read_text("utf-8")
    for_fastapi, for_async, for_psycopg, for_django = re.findall(
        r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE
    )

    app = FastAPI()
    with engine_of(offsetstore_database) as engine:

        def session_of() -> Generator[Session]:
            with Session(engine) as session:
                yield session

        run_page(for_fastapi, app=app, Depends=Depends, session_of=session_of)

        async def post() -> int:
            transport = httpx.ASGITransport(app=app)
            async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
                return (await client.post("/orders", params={"item": "lamp"})).status_code

        assert asyncio.run(post()) == 200

    async def order_async() -> None:
        engine = create_async_engine(sqlalchemy(offsetstore_database))
        try:
            async with AsyncSession(engine) as session:
                await run_page(for_async, AsyncSession=AsyncSession)["order_async"]("rug", session)
        finally:
            await engine.dispose()

    asyncio.run(order_async())
    run_page(for_psycopg.replace('"dbname=shop"', repr(offsetstore_database)), psycopg=psycopg)
    subprocess.run([sys.executable, "-c", DJANGO, offsetstore_database, for_django], check=True, timeout=60)

    assert query("SELECT item FROM orders ORDER BY item") == [("lamp",), ("rug",), ("vase",)]
    assert query("SELECT pieces FROM stock") == [(2,)]
    assert [row[:2] for row in left(store)] == [
        ("orders", b"lamp"), ("orders", b"rug"), ("stock", b"lamp"), ("orders", b"vase")
    ]  # fmt: skip
    prose = re.sub(r"^```.*?^```$", "", page, flags=re.DOTALL | re.MULTILINE)
    assert len(prose.split()) <= 230

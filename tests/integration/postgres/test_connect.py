"""Connecting: credentials, refusals, and servers that don't answer."""

from __future__ import annotations

import socket
import time
import traceback
from collections.abc import Iterator
from urllib.parse import quote

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from sqlalchemy import create_engine, event

from offsetstore import OffsetRange, OffsetStore
from offsetstore.cli.consume_process import end_after
from offsetstore.errors import StoreUnavailable, Unadvanced
from offsetstore.local.postgres import PostgresServer, find_binaries
from offsetstore.local.servers import free_port
from offsetstore.postgres.migrate import upgrade
from offsetstore.postgres.url import make_engine
from tests.integration.conftest import Query
from tests.integration.transacting import P0, process

SECRET = "s3cret @/:%#"
HIDDEN = "hidden-one"


@pytest.fixture(scope="module")
def guarded(request: pytest.FixtureRequest) -> Iterator[PostgresServer]:
    """A server that asks for a password, with our tables."""
    binaries = find_binaries(str(request.config.getoption("--offsetstore-postgres")))
    with PostgresServer(binaries, password=SECRET, durability="none") as server:
        engine = make_engine(server.url)
        with engine.begin() as connection:
            upgrade(connection)
        engine.dispose()
        yield server


def told(error: BaseException) -> str:
    """All that a log could show of an error and its causes."""
    return "".join(traceback.format_exception(error))


def test_every_form_connects(guarded: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    secret, port = quote(SECRET, safe=""), guarded.port
    here = f"127.0.0.1:{port}"
    monkeypatch.setenv("OFFSETSTORE_URL", guarded.url)
    for url in (
        None,
        guarded.url.replace(here, f"127.0.0.1:{free_port()},{here}"),  # the second of two hosts
        guarded.url,
        f"postgresql+psycopg2://postgres:{secret}@127.0.0.1:{port}/postgres",
        f"jdbc:postgresql://127.0.0.1:{port}/postgres?user=postgres&password={secret}&reWriteBatchedInserts=true",
        f"host=127.0.0.1 port={port} dbname=postgres user=postgres password='{SECRET}'",
    ):
        with OffsetStore.connect(url) as store:
            assert store.offsets("billing") == {}


@pytest.mark.behaviour("START-16", "CONS-16")
@pytest.mark.parametrize(
    ("change", "is_refused"),
    [
        ({"password": HIDDEN}, True),
        ({"password": ""}, True),
        ({"user": "nobody"}, True),
        ({"dbname": "nowhere"}, True),
        ({"user": "limited"}, False),
        ({"port": None}, False),
    ],
)
def test_a_server_that_refuses_who_asks_is_told_from_one_that_is_away_or_full(
    guarded: PostgresServer, change: dict[str, str | None], *, is_refused: bool
) -> None:
    with psycopg.connect(guarded.url, autocommit=True) as connection:
        connection.execute("DROP ROLE IF EXISTS limited")
        connection.execute(f"CREATE ROLE limited LOGIN PASSWORD '{SECRET}' CONNECTION LIMIT 0")
    given = {"host": "127.0.0.1", "port": str(guarded.port), "dbname": "postgres", "user": "postgres"}
    given |= {"password": SECRET} | {
        name: str(free_port()) if value is None else value for name, value in change.items()
    }
    with pytest.raises(StoreUnavailable) as caught:
        OffsetStore.connect(make_conninfo("", **given))
    assert HIDDEN not in told(caught.value)
    assert not is_refused or "OFFSETSTORE_URL" in caught.value.next_step
    ends = {has_joined: end_after(caught.value, has_joined=has_joined).restart for has_joined in (False, True)}
    assert ends == {False: "repeats" if is_refused else "helps", True: "helps"}


@pytest.mark.behaviour("START-16")
def test_a_server_that_never_answers_is_given_up_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port, began = silent.getsockname()[1], time.monotonic()
        with pytest.raises(StoreUnavailable, match="timeout") as caught:
            OffsetStore.connect(f"postgresql://me:{HIDDEN}@127.0.0.1:{port}/sales?connect_timeout=2")
    assert 2 <= time.monotonic() - began < 8
    assert HIDDEN not in told(caught.value)


@pytest.mark.behaviour("START-16")
def test_of_several_hosts_that_fail_each_is_named_at_once_without_the_password() -> None:
    one, two = free_port(), free_port()
    began = time.monotonic()

    with pytest.raises(StoreUnavailable, match="refused") as caught:
        OffsetStore.connect(f"postgresql://me:{HIDDEN}@127.0.0.1:{one},127.0.0.1:{two}/sales")

    assert time.monotonic() - began < 5
    assert [port for port in (one, two) if str(port) not in str(caught.value)] == []
    assert HIDDEN not in told(caught.value)


def test_credentials_are_asked_for_each_new_connection(guarded: PostgresServer) -> None:
    asked: list[int] = []

    def credentials() -> str:
        asked.append(1)
        return SECRET

    url = f"postgresql://postgres:expired@127.0.0.1:{guarded.port}/postgres"
    with OffsetStore.connect(url, credentials=credentials) as store:
        first = store.database.begin(name="first")
        second = store.database.begin(name="second")
        first.rollback()
        second.rollback()
        store.offsets("billing")

    assert len(asked) == 2

    def away() -> str:
        raise OSError("the token service is away")

    with pytest.raises(StoreUnavailable, match="could not get the credentials; found OSError"):
        OffsetStore.connect(url, credentials=away)


def test_a_users_engine_with_hooks_and_settings_of_its_own(
    offsetstore_database: str, query: Query, results: str
) -> None:
    engine = create_engine(
        offsetstore_database.replace("postgresql:", "postgresql+psycopg:"), isolation_level="AUTOCOMMIT", pool_size=2
    )
    seen: list[str] = []

    @event.listens_for(engine, "before_cursor_execute", retval=True)
    def _(*arguments: object) -> tuple[str, object]:  # pyright: ignore[reportUnusedFunction] - SQLAlchemy calls it
        statement, parameters = arguments[2], arguments[3]
        assert isinstance(statement, str)
        seen.append(statement)
        return f"/* job 7 */ {statement}", parameters

    with OffsetStore.connect(engine) as store:
        claim = store.claim("billing", topics=["payments"])
        process(store, claim, P0, range_=OffsetRange(0, 1))
        with pytest.raises(Unadvanced), store.transaction(claim) as tx:
            tx.lock({P0: OffsetRange(1, 2)})
    engine.dispose()

    assert query(f"SELECT record FROM {results}") == [(0,)]
    assert query("SELECT next_offset FROM kafka_partitions") == [(1,)]
    assert seen


def test_pools_survive_a_restart_and_an_outage_of_the_database(private_postgres: PostgresServer) -> None:
    engine = create_engine(private_postgres.url.replace("postgresql:", "postgresql+psycopg:"))
    with OffsetStore.connect(private_postgres.url) as store, OffsetStore.connect(engine) as of_user:
        claim = store.claim("billing", topics=["payments"])
        sessions = [store.database.begin(name="test") for _ in range(3)]
        for session in sessions:
            session.rollback()
        private_postgres.restart("immediate")
        assert store.offsets("billing") == of_user.offsets("billing") == {}  # which is not retried
        with store.transaction(claim) as tx:
            tx.lock({})

        private_postgres.stop("immediate")
        with pytest.raises(StoreUnavailable), claim.transaction() as tx:
            tx.lock({})
        with pytest.raises(StoreUnavailable):
            store.offsets("billing")
        private_postgres.start()
        with claim.transaction() as tx:
            assert tx.lock({}) == {}
    engine.dispose()

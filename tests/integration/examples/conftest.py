"""What each example runs on: the test's Kafka and PostgreSQL, and the test run's Spark or the built wheel."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from offsetstore.kafka import admin
from offsetstore.local.kafka import KafkaBroker
from tests.packaging.building import Distributions
from tests.support.examples import Examples, install
from tests.support.postgres import Database

TOPICS = ("payments", "refunds")


@pytest.fixture(scope="session")
def installed_wheel(distributions: Distributions, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory for PYTHONPATH that holds the wheel and nothing else of ours."""
    return install(distributions.wheel, tmp_path_factory.mktemp("wheel"))


@pytest.fixture
def database(offsetstore_database: str) -> Iterator[Database]:
    """A database with our tables."""
    database = Database(offsetstore_database)
    yield database
    database.close()


@pytest.fixture
def examples(offsetstore_kafka: KafkaBroker, offsetstore_database: str, tmp_path: Path) -> Iterator[Examples]:
    """The examples with the topics that they name, which are this test's own."""
    servers = offsetstore_kafka.bootstrap_servers
    for topic in TOPICS:
        admin.create_topic(servers, topic)
    yield Examples(tmp_path, offsetstore_database, servers)
    for topic in TOPICS:
        admin.delete_topic(servers, topic)

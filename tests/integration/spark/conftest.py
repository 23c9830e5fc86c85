"""The world of each test of the sink."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from offsetstore import OffsetStore
from offsetstore.local.kafka.server import KafkaBroker
from offsetstore.store import mirror
from tests.support.postgres import Database
from tests.support.world import World


@pytest.fixture(autouse=True)
def last_copies_have_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A claim that is closed has copied its offsets to Kafka, however busy all is."""
    monkeypatch.setattr(mirror, "LAST_COMMIT", 60.0)


@pytest.fixture
def world(
    offsetstore_spark: SparkSession,
    offsetstore_kafka: KafkaBroker,
    offsetstore_database: str,
    offsetstore_group: str,
    tmp_path: Path,
) -> Iterator[World]:
    world = World(
        offsetstore_spark,
        offsetstore_kafka,
        Database(offsetstore_database),
        OffsetStore.connect(offsetstore_database),
        offsetstore_group,
        str(tmp_path / "checkpoints"),
    )
    yield world
    world.close()


@pytest.fixture
def nothing_persisted(offsetstore_spark: SparkSession) -> None:
    """Have Spark keep nothing of earlier tests.

    If a query is stopped in mid batch, Spark may interrupt its thread while that lets go of what it has persisted.
    """
    context: Any = offsetstore_spark.sparkContext
    for rdd in context._jsc.getPersistentRDDs().values():
        rdd.unpersist(True)  # noqa: FBT003 - Java

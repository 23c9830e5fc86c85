"""The world of each test of the sink."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from offsetstore import OffsetStore
from offsetstore.local.kafka.server import KafkaBroker
from tests.support.postgres import Database
from tests.support.world import World


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

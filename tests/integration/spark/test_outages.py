"""A database that is away for a moment, while a job runs."""

from __future__ import annotations

from threading import Thread

import pytest
from pyspark.sql import DataFrame

from offsetstore import Append
from offsetstore.local.postgres.server import PostgresServer
from tests.support.postgres import Database
from tests.support.transforms import events
from tests.support.world import World


@pytest.mark.behaviour("TX-12")
def test_a_batch_outlasts_a_restart_of_the_database(world: World, offsetstore_postgres: PostgresServer) -> None:
    topic = world.events_topic(["a", "b", "c", "d"])
    claim = world.claim(topic)
    starts: list[Thread] = []

    def transform(batch: DataFrame) -> DataFrame:
        if not starts:
            offsetstore_postgres.stop("immediate")
            starts.append(Thread(target=offsetstore_postgres.start))
            starts[0].start()
        return events(batch)

    world.run(claim, transform, Append("events"), maxOffsetsPerTrigger="2")

    starts[0].join()
    after = Database(world.database.url)
    assert after.column("SELECT value FROM events ORDER BY value") == ["a", "b", "c", "d"]
    after.close()
    assert world.stored(topic) == {0: 4}

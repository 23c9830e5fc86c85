"""Where rows go when a name has no schema: to the table that the driver found, from wherever they are written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame
from sqlalchemy import create_engine, event, text

from offsetstore import Append, Execute, OffsetStore
from offsetstore.protocol.work import Work
from tests.support.transforms import EVENTS, traced
from tests.support.world import World

COUNTS = "SELECT (SELECT count(*) FROM public.events), (SELECT count(*) FROM tenant_a.events)"


def steal_the_name(work: Work, batches: Iterable[pa.RecordBatch]) -> None:
    """What a careless Execute does; it runs before the other output of its batch."""
    for _ in batches:
        work.connection.execute(text("SET search_path = public"))
        work.connection.execute(text("CREATE TEMPORARY TABLE IF NOT EXISTS events (topic text)"))


@pytest.fixture
def of_tenant_a(world: World) -> Iterator[World]:
    """The same world, on an application's engine whose listener leads to ``tenant_a``. Executors do not have it."""
    world.database.execute(EVENTS)
    world.database.execute("CREATE SCHEMA tenant_a")
    world.database.execute("CREATE TABLE tenant_a.events (LIKE public.events)")
    engine = create_engine(world.database.url.replace("postgresql://", "postgresql+psycopg://"))

    @event.listens_for(engine, "connect")
    def lead_to_tenant_a(connection: Any, _: object) -> None:  # pyright: ignore[reportUnusedFunction] - SQLAlchemy calls it
        connection.execute("SET search_path = tenant_a, public")
        connection.commit()

    world.store.close()
    world.store = OffsetStore.connect(engine)
    yield world
    world.store.close()
    engine.dispose()


@pytest.mark.behaviour("SINK-20")
def test_executors_write_to_the_table_that_the_driver_has_found(of_tenant_a: World) -> None:
    world = of_tenant_a
    topic = world.topic(["a", "b"], ["c"])
    into = Append("events")

    world.run(world.claim(topic), traced, into, atomicity="partition")

    assert world.database.rows(COUNTS) == [(0, 3)]
    # The writer is as it was: another store finds its own.
    assert repr(into) == "Append('events')"
    with OffsetStore.connect(world.database.url) as other:
        claim = other.claim(f"{world.group}-other", world.broker(topic))
        world.run(claim, traced, into, atomicity="partition")
    assert world.database.rows(COUNTS) == [(3, 3)]


@pytest.mark.behaviour("SINK-20")
def test_sql_of_the_users_moves_no_target_of_its_batch_or_of_the_next(of_tenant_a: World) -> None:
    world = of_tenant_a
    topic = world.topic(["a", "b", "c"])

    def transform(batch: DataFrame) -> dict[str, DataFrame]:
        return {"own": traced(batch), "events": traced(batch)}

    into = {"own": Execute(steal_the_name), "events": Append("events")}
    query = world.run(world.claim(topic), transform, into, maxOffsetsPerTrigger="1")

    assert world.database.rows(COUNTS) == [(0, 3)]
    assert len(query.recentProgress) >= 3

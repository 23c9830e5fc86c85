"""Several outputs of one batch agree on what they share, also on what Spark would compute otherwise a second time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias
from uuid import uuid4

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from offsetstore import Append
from offsetstore.spark import collecting
from offsetstore.testing.fixtures import NewTopic
from tests.support.blocks import lose_blocks
from tests.support.world import SECONDS, World, counts, made_unchecked

pytestmark = pytest.mark.usefixtures("nothing_persisted")

Outputs: TypeAlias = "dict[str, DataFrame]"

new_id: Any = F.udf(lambda: str(uuid4()))  # which says of itself that it is deterministic, as each does by default

TABLES = (
    "CREATE TABLE orders (name text, id text, uuid text, number double precision, at timestamptz, apart timestamptz)",
    "CREATE TABLE lines (item int, id text, uuid text, number double precision, at timestamptz, apart timestamptz)",
)
INTO = {"orders": Append("orders"), "lines": Append("lines")}
JOINED = "SELECT count(*) FROM orders JOIN lines USING (id, uuid, number, at)"


def orders_and_lines(batch: DataFrame) -> Outputs:
    """One line for each order, with all that may come out differently when it is computed again; each looks at the
    clock too.
    """
    orders = batch.select(
        F.col("value").cast("string").alias("name"),
        new_id().alias("id"),
        F.expr("uuid() AS uuid"),
        F.rand().alias("number"),
        F.current_timestamp().alias("at"),
    )
    lines = orders.select(F.explode(F.array(F.lit(1))).alias("item"), "id", "uuid", "number", "at")
    return {
        "orders": orders.withColumn("apart", F.current_timestamp()),
        "lines": lines.selectExpr("*", "now() AS apart"),
    }


def run(world: World, topic: str, transform: Callable[[DataFrame], Outputs], *, keep: bool = False, **more: Any) -> Any:
    claim = world.claim(topic)
    sink = made_unchecked(claim, transform, into=INTO, **more)
    query = world.start(sink, world.read(claim), checkpoint=claim.checkpoint(world.checkpoints, keep=keep))
    assert query.awaitTermination(SECONDS)
    assert sink.error is None
    return query


@pytest.fixture
def topic(world: World, offsetstore_topic: NewTopic) -> str:
    """Ten records in two partitions."""
    for statement in TABLES:
        world.database.execute(statement)
    name = offsetstore_topic(2)
    for partition in range(2):
        world.produce(name, [f"order {number}" for number in range(5)], partition=partition)
    return name


@pytest.mark.behaviour("SINK-19")
@pytest.mark.parametrize("keep", [False, True], ids=["disposable checkpoint", "kept checkpoint"])
def test_each_line_has_an_order(world: World, topic: str, *, keep: bool) -> None:
    query = run(world, topic, orders_and_lines, keep=keep)
    assert [world.database.one(f"SELECT count(*) FROM {table}") for table in ("orders", "lines")] == [10, 10]
    assert world.database.one(JOINED) == 10
    assert world.database.one("SELECT count(DISTINCT (id, number)) FROM orders") == 10
    assert world.database.one("SELECT count(*) FROM orders JOIN lines USING (apart)") == 100
    assert counts(query) == [10], "Kafka was read once"
    context: Any = world.spark.sparkContext
    assert list(context._jsc.getPersistentRDDs()) == []


@pytest.mark.behaviour("SINK-19")
def test_a_lost_part_of_what_is_shared_is_not_computed_again_for_one_output_alone(
    world: World, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    collect: Any = collecting.collect
    lost: list[int] = []

    def losing(frame: DataFrame) -> collecting.Rows:
        rows = collect(frame)
        if not lost:
            lost.extend(lose_blocks(world.spark))
        return rows

    monkeypatch.setattr(collecting, "collect", losing)
    run(world, topic, orders_and_lines)
    assert lost, "nothing was persisted"
    assert world.database.one(JOINED) == 10
    assert world.database.one("SELECT count(*) FROM lines") == 10

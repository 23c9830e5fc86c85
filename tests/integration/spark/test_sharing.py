"""Several outputs of one batch agree on what they share, also on what Spark would compute otherwise a second time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias
from uuid import uuid4

import pytest
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from offsetstore import Append
from offsetstore.processing.unit import PlanOutdated
from offsetstore.spark import collecting
from offsetstore.spark.plans.sharing import _Sharing, computed_once  # pyright: ignore[reportPrivateUsage]
from offsetstore.testing.fixtures import NewTopic
from tests.support.blocks import lose_blocks
from tests.support.world import World

pytestmark = pytest.mark.usefixtures("nothing_persisted")

Outputs: TypeAlias = "dict[str, DataFrame]"

new_id: Any = F.udf(lambda: str(uuid4()))  # which says of itself that it is deterministic, as each does by default


class Given:
    """A batch without Kafka, and what becomes of the outputs that are made of it."""

    def __init__(self, session: SparkSession) -> None:
        self.session: Any = session
        rows = session.sparkContext.parallelize([(number, f"value {number}") for number in range(10)], 2)
        self.batch = session.createDataFrame(rows, "k int, v string")
        self.frames: Outputs = {}
        self.rows: dict[str, list[tuple[Any, ...]]] = {}

    def compute(self, outputs: Outputs) -> None:
        """Compute each output, as the sink does."""
        with computed_once(self.batch, StorageLevel.MEMORY_AND_DISK_DESER) as sharing:
            self.frames = sharing(outputs)
            self.rows = {name: [tuple(row) for row in frame.collect()] for name, frame in self.frames.items()}

    def persisted(self) -> int:
        """How many RDDs Spark keeps now."""
        context: Any = self.session.sparkContext
        return len(context._jsc.getPersistentRDDs())


@pytest.fixture
def given(offsetstore_spark: SparkSession) -> Given:
    return Given(offsetstore_spark)


def from_a_function(given: Given) -> Outputs:
    orders = given.batch.select("k", new_id().alias("id"))
    return {"a": orders.select("id"), "b": orders.select("id", "k")}


def in_a_subquery(given: Given) -> Outputs:
    orders = given.batch.select("k", new_id().alias("id"))
    orders.createOrReplaceTempView("orders")
    first = "SELECT newest FROM range(1), (SELECT max(id) AS newest FROM orders)"
    return {"a": given.session.sql(first), "b": given.session.sql(f"SELECT ({first}) AS id FROM range(1)")}


def with_a_correlated_subquery(given: Given) -> Outputs:
    given.batch.createOrReplaceTempView("batch")
    sql = "SELECT k, uuid() AS id FROM batch b WHERE EXISTS (SELECT 1 FROM range(20) r WHERE r.id = b.k)"
    orders = given.session.sql(sql)
    return {"a": orders.select("id"), "b": orders.select("id", "k")}


def above_a_with(given: Given) -> Outputs:
    given.batch.createOrReplaceTempView("batch")
    orders = given.session.sql("WITH t AS (SELECT k FROM batch) SELECT k FROM t").select(new_id().alias("id"), "k")
    return {"a": orders.select("id"), "b": orders}


def one_in_another(given: Given) -> Outputs:
    inner = given.batch.select("k", new_id().alias("id"))
    outer = inner.select("id", new_id().alias("other"))
    return {"a": outer.select("id", "other"), "b": outer.where("other <> ''").select("id"), "c": inner.select("id")}


def of_an_rdd(given: Given) -> Outputs:
    made: Any = given.batch.rdd.map(lambda row: (str(uuid4()), row.k))
    orders = given.session.createDataFrame(made, "id string, k int")
    return {"a": orders.select("id"), "b": orders.select("id", "k")}


def of_other_data(given: Given) -> Outputs:
    lookup = given.session.range(10).select(F.col("id").cast("int").alias("k"), new_id().alias("id"))
    return {"a": lookup.select("id"), "b": given.batch.join(lookup, "k").select("id", "k")}


def planned_before(given: Given) -> Outputs:
    orders = given.batch.select(new_id().alias("id"), "k")
    lines = orders.select("id")
    orders.collect()
    lines.collect()
    return {"a": lines, "b": orders}


def persisted_by_the_transform(given: Given) -> Outputs:
    orders = given.batch.select(new_id().alias("id"), "k").persist()
    return {"a": orders.select("id"), "b": orders}


def let_go_by_the_transform(given: Given) -> Outputs:
    given.batch.persist().count()
    given.batch.unpersist()
    orders = given.batch.select(new_id().alias("id"), "k")
    return {"a": orders.select("id"), "b": orders, "c": given.batch.join(orders, "k").select("id")}


def any_three(given: Given) -> Outputs:
    chosen = given.batch.repartition(4).orderBy(F.rand()).limit(3).select(F.col("v").alias("id"))
    return {"a": chosen, "b": chosen.select("id", F.lit(1))}


@pytest.mark.behaviour("SINK-19")
@pytest.mark.parametrize(
    "outputs",
    [
        from_a_function,
        in_a_subquery,
        with_a_correlated_subquery,
        above_a_with,
        one_in_another,
        of_an_rdd,
        of_other_data,
        planned_before,
        persisted_by_the_transform,
        let_go_by_the_transform,
        any_three,
    ],
)
def test_what_outputs_share_is_computed_once(given: Given, outputs: Callable[[Given], Outputs]) -> None:
    given.compute(outputs(given))
    ids = [{row[0] for row in rows} for rows in given.rows.values()]
    assert ids[0]
    assert all(one == ids[0] for one in ids), ids
    assert given.persisted() == (1 if outputs is persisted_by_the_transform else 0), "ours alone is let go"
    given.session.catalog.clearCache()


def test_what_the_user_keeps_over_batches_can_be_computed_again(given: Given) -> None:
    lookup = given.session.range(10).select(F.col("id").cast("int").alias("k"), new_id().alias("id")).persist()
    for _ in range(2):
        given.compute({"a": lookup.select("id"), "b": given.batch.join(lookup, "k").select("id", "k")})
        assert {row[0] for row in given.rows["a"]} == {row[0] for row in given.rows["b"]}
        assert lose_blocks(given.session)
    lookup.unpersist()


def test_what_has_no_rows_is_not_lost(given: Given) -> None:
    orders = given.batch.where("k > 100").select("k", new_id().alias("id"))
    with computed_once(given.batch, StorageLevel.DISK_ONLY) as sharing:
        frames = sharing({"a": orders, "b": orders.select("id"), "c": given.batch.where("k > 100")})
        assert [frame.collect() for frame in frames.values()] == [[], [], []]


@pytest.mark.behaviour("SINK-19")
@pytest.mark.parametrize("is_lost", [True, False], ids=["lost", "there twice"])
def test_a_block_that_is_lost_or_there_twice_makes_the_outputs_outdated(
    given: Given, monkeypatch: pytest.MonkeyPatch, *, is_lost: bool
) -> None:
    orders = given.batch.select("k", new_id().alias("id"))
    blocks: Any = _Sharing._shared_blocks

    def with_twins(sharing: _Sharing) -> list[str]:
        """As after a speculative copy of each task."""
        real: list[str] = blocks(sharing)
        return sorted([*real, *(f"{block.partition(' ')[0]} of another executor" for block in real)])

    def compute() -> None:
        with computed_once(given.batch, StorageLevel.DISK_ONLY) as sharing:
            sharing({"a": orders, "b": orders.select("id")})
            assert not is_lost or lose_blocks(given.session)

    if not is_lost:
        monkeypatch.setattr(_Sharing, "_shared_blocks", with_twins)
    with pytest.raises(PlanOutdated):
        compute()
    assert given.persisted() == 0


# -- in a sink

TABLES = (
    "CREATE TABLE orders (name text, id text, uuid text, number double precision, at timestamptz, apart timestamptz)",
    "CREATE TABLE lines (item int, id text, uuid text, number double precision, at timestamptz, apart timestamptz)",
)


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


@pytest.mark.behaviour("SINK-19")
def test_each_line_has_an_order_also_when_executors_lose_a_part_of_what_is_shared(
    world: World, offsetstore_topic: NewTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    for statement in TABLES:
        world.database.execute(statement)
    topic = offsetstore_topic(2)
    for partition in range(2):
        world.produce(topic, [f"order {number}" for number in range(5)], partition=partition)
    collect: Any = collecting.collect
    lost: list[int] = []

    def losing(frame: DataFrame) -> collecting.CollectedRows:
        rows = collect(frame)
        if not lost:
            lost.extend(lose_blocks(world.spark))
        return rows

    monkeypatch.setattr(collecting, "collect", losing)
    world.run(world.claim(topic), orders_and_lines, {"orders": Append("orders"), "lines": Append("lines")})

    assert lost, "nothing was persisted"
    assert [world.database.one(f"SELECT count(*) FROM {table}") for table in ("orders", "lines")] == [10, 10]
    assert world.database.one("SELECT count(*) FROM orders JOIN lines USING (id, uuid, number, at)") == 10
    assert world.database.one("SELECT count(DISTINCT (id, number)) FROM orders") == 10
    assert world.database.one("SELECT count(*) FROM orders JOIN lines USING (apart)") == 100
    context: Any = world.spark.sparkContext
    assert list(context._jsc.getPersistentRDDs()) == []

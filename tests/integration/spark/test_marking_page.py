"""The blocks of docs/marking.md, flush.md and tick.md, each on a topic and a group of its own."""

from __future__ import annotations

import threading
from typing import Any

import psycopg
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it
from pyspark.sql.streaming.query import StreamingQuery
from sqlalchemy import Column, MetaData, Table, insert, text

from offsetstore import Append, Tick, TopicPartition, TransactionalSink, Upsert, Work
from offsetstore.errors import LockTimeout
from offsetstore.testing.fixtures import NewTopic
from tests.integration.spark.conftest import execute_block
from tests.support.server_errors import OF_SERVER, held
from tests.support.transforms import EVENTS, traced
from tests.support.waiting import wait_until
from tests.support.world import SECONDS, World

FLUSH, TICK = ("flush.md", 0), ("tick.md", 0)
MANUAL, WITHOUT_SPARK, RESET = (("marking.md", number) for number in range(3))

FAIL_ONCE = f"""
CREATE SEQUENCE calls;
CREATE FUNCTION fail_once() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    IF nextval('calls') = 1 THEN {OF_SERVER["55P03"]} END IF;
    RETURN NEW;
END $$;
CREATE CONSTRAINT TRIGGER fail_once AFTER INSERT ON events DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION fail_once()
"""
"""The first transaction fails when its function has ended, as it may at COMMIT."""


def run(block: tuple[str, int], world: World, topic: str, **names: Any) -> dict[str, Any]:
    """Execute a block with the topic, group and tables of the test; return its names."""
    replaced = {
        'Append("payments")': 'Append("events")',
        '"payments"': repr(topic),
        '"billing"': repr(world.group),
        '"audit"': repr(world.group),
        '"/checkpoints"': repr(world.checkpoints),
        "every=5": "every=0.2",
        "seconds=10": "seconds=600",
    }
    names = {"store": world.store, "spark": world.spark, "insert": insert, "text": text, **names}
    return execute_block(*block, replaced, **names)


def table(*columns: str) -> Table:
    """The table `EVENTS`, or these columns of it."""
    found: list[Any] = [Column(name) for name in columns or ("topic", "partition", "offset", "value")]
    return Table("events", MetaData(), *found)


def written(world: World) -> list[str]:
    return world.database.column('SELECT value FROM events ORDER BY partition, "offset"')


@pytest.fixture
def topic(world: World, offsetstore_topic: NewTopic) -> str:
    world.database.execute(EVENTS)
    return offsetstore_topic(2)


@pytest.mark.behaviour("MARK-4")
def test_what_a_flush_keeps_is_written_together_at_the_end_of_the_claims_block(world: World, topic: str) -> None:
    world.produce(topic, list("abcd"))

    names = run(FLUSH, world, topic, kafka=world.options(topic, maxOffsetsPerTrigger="1"), parse=traced)

    assert names["claim"].is_closed
    assert [one["numInputRows"] for one in names["query"].recentProgress if one["numInputRows"]] == [1, 1, 1, 1]
    assert written(world) == list("abcd")
    assert world.database.one("SELECT count(DISTINCT xmin::text) FROM events") == 1
    assert world.stored(topic)[0] == 4


def lines(batch: DataFrame) -> DataFrame:
    """The last line of an order ends with a full stop; a dash is no line."""
    return traced(batch).withColumn("last", F.col("value").endswith(".")).where("value <> '-'")


@pytest.mark.behaviour("MARK-1", "MARK-2")
def test_whole_orders_are_written_once_also_after_a_rollback(world: World, topic: str) -> None:
    world.database.execute("ALTER TABLE events ADD last boolean")
    world.database.execute(FAIL_ONCE)
    world.produce(topic, ["a", "b.", "c", "-", "d.", "e"])
    orders = {"order_lines": table("topic", "partition", "offset", "value", "last"), "parse": lines}

    def start() -> tuple[StreamingQuery, TransactionalSink]:
        claim = world.claim(topic)
        sink = run(MANUAL, world, topic, claim=claim, **orders)["sink"]
        stream = world.read(claim, maxOffsetsPerTrigger="1")  # the dash is a batch without rows
        return world.start(sink, stream, checkpoint=claim.checkpoint(world.checkpoints)), sink

    with psycopg.connect(world.database.url) as other, held(other):
        assert isinstance(world.failure(*start()).error, LockTimeout)
    assert written(world) == []
    assert start()[0].awaitTermination(SECONDS)
    assert written(world) == ["a", "b.", "c", "d."]
    assert world.stored(topic)[0] == 5
    assert world.store.find_metadata(world.group, topic, 0) == {"waiting": 0}

    world.produce(topic, ["f", "g.", "h"])
    world.produce(topic, ["1."], partition=1)
    assert start()[0].awaitTermination(SECONDS)
    assert written(world) == ["a", "b.", "c", "d.", "e", "f", "g.", "1."]
    assert world.stored(topic) == {0: 8, 1: 1}


@pytest.mark.behaviour("MARK-1", "MARK-2")
def test_a_mark_without_spark_is_stored_and_the_next_range_is_no_gap(world: World, topic: str) -> None:
    names = run(WITHOUT_SPARK, world, topic, checked=table("offset"))

    assert world.database.column('SELECT "offset" FROM events ORDER BY 1') == [0, 1, 2, 3]
    assert world.stored(topic) == {0: 4}
    assert names["audit"].delivered == {TopicPartition(topic, 0): 4}


@pytest.mark.behaviour("MARK-3")
def test_after_a_reset_one_partition_is_read_again_and_its_rows_are_replaced(world: World, topic: str) -> None:
    world.database.execute('CREATE UNIQUE INDEX ON events (topic, partition, "offset")')
    into = Upsert("events", key=["topic", "partition", "offset"])
    world.produce(topic, list("abc"))
    world.produce(topic, ["d"], partition=1)
    world.run(world.claim(topic), traced, into)

    run(RESET, world, topic)
    assert world.stored(topic) == {0: 1, 1: 1}

    world.run(world.claim(topic), lambda batch: traced(batch).withColumn("value", F.upper("value")), into)
    assert written(world) == ["a", "B", "C", "d"]
    assert world.stored(topic) == {0: 3, 1: 1}
    [reset] = [event for event in world.store.history(world.group) if event.event == "reset"]
    assert (reset.from_offset, reset.to_offset, reset.reason) == (3, 1, "wrong rates, ticket 17")


@pytest.mark.behaviour("OPS-6")
def test_idle_work_expires_reservations_until_the_job_is_taken_over(world: World, topic: str) -> None:
    database = world.database
    database.execute("CREATE TABLE reservations (until timestamptz)")
    expired = "INSERT INTO reservations VALUES (now() - interval '1 minute')"
    database.execute(expired)
    database.execute("INSERT INTO reservations VALUES (now() + interval '1 hour')")
    world.produce(topic, ["a"])

    with world.claim(topic) as claim:
        sink = run(TICK, world, topic, claim=claim, parse=traced)["sink"]
        trigger = {"processingTime": "0 seconds"}
        place = claim.checkpoint(world.checkpoints)
        query = world.start(sink, world.read(claim), checkpoint=place, trigger=trigger)
        wait_until(lambda: written(world) == ["a"])
        database.execute(expired)
        wait_until(lambda: database.one("SELECT count(*) FROM reservations") == 1)
        assert query.isActive

        world.claim(topic)
        wait_until(lambda: claim.is_lost)
        database.execute(expired)
        query.stop()
    assert database.one("SELECT count(*) FROM reservations") == 2


@pytest.mark.behaviour("OPS-6")
def test_idle_work_may_stop_the_query(world: World, topic: str) -> None:
    queries: list[StreamingQuery] = []
    is_there = threading.Event()

    def stop(_: Work) -> None:
        assert is_there.wait(SECONDS)
        queries[0].stop()

    claim = world.claim(topic)
    sink = TransactionalSink(claim, traced, into=Append("events"), tick=Tick(stop, every=1))
    stream, checkpoint = world.read(claim), claim.checkpoint(world.checkpoints)
    queries.append(world.start(sink, stream, checkpoint=checkpoint, trigger={"processingTime": "0 seconds"}))
    is_there.set()
    assert queries[0].awaitTermination(SECONDS)
    assert sink.error is None

"""Where a job begins to read, also one that plain Spark began, and what keeps it from going on."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from offsetstore import Append, Claim, StartPolicy, TopicPartition, TransactionalSink, resolve_starting_offsets
from offsetstore.errors import ClaimInUse, ConfigurationError, GroupBusy, OffsetOutOfRange, StaleClaim, TopicRecreated
from offsetstore.kafka import admin
from offsetstore.protocol import runs as protocol_runs
from offsetstore.spark.checkpoints import HadoopFiles, prune
from offsetstore.spark.sink import SparkTransform
from offsetstore.store import heartbeat
from offsetstore.store.adoption import LocalFiles, read
from offsetstore.testing.fixtures import NewTopic
from tests.support.gate import Gate
from tests.support.transforms import EVENTS, events
from tests.support.waiting import wait_until
from tests.support.windows import rows, windows
from tests.support.world import SECONDS, World, made_unchecked

VALUES = "SELECT value FROM events ORDER BY value"


def decisions(world: World, topic: str) -> list[tuple[Any, ...]]:
    """The history of the topic's offsets: event, from, to."""
    history = world.store.history(world.group)
    return [
        (event.event, event.from_offset, event.to_offset)
        for event in history
        if event.topic_partition is not None and event.topic_partition.topic == topic
    ]


@pytest.mark.behaviour("START-7")
def test_records_that_were_removed_before_they_were_read_end_the_job_and_stop_the_start_unless_that_is_accepted(
    world: World,
) -> None:
    topic = world.events_topic(["a", "b"])
    first = world.claim(topic)
    world.advance(first, {TopicPartition(topic, 0): 2})
    first = world.claim(topic)
    world.produce(topic, ["c", "d", "e"])
    admin.delete_records(world.kafka.bootstrap_servers, topic, {0: 4})

    world.run_to_failure(first, events, Append("events"))  # while it stood still: no silent skip
    with pytest.raises(OffsetOutOfRange, match=r"\[2, 4\)") as error:
        world.claim(topic)
    assert error.value.topic_partition == TopicPartition(topic, 0)
    owner = world.store.owner(world.group)
    assert owner is not None
    assert owner.token == first.token
    assert (world.database.column(VALUES), world.stored(topic)) == ([], {0: 2})

    world.run(world.claim(topic, policy=StartPolicy(on_data_loss="earliest")), events, Append("events"))
    assert world.database.column(VALUES) == ["e"]
    assert decisions(world, topic)[-1] == ("skip", 2, 4)


@pytest.mark.behaviour("START-23", "START-5")
def test_the_resolver_alone_gives_json_that_spark_reads_from_and_writes_nothing(
    world: World, offsetstore_topic: NewTopic
) -> None:
    world.database.execute(EVENTS)
    topic, fresh = offsetstore_topic(2), offsetstore_topic(1)
    world.produce(topic, ["a", "b"])
    claim = world.claim(topic)
    world.advance(claim, {TopicPartition(topic, 0): 2})
    world.produce(topic, ["c"])
    world.produce(topic, ["d"], partition=1)
    world.produce(fresh, ["e", "f"])
    before = world.database.rows("SELECT * FROM kafka_partitions ORDER BY partition")

    start = resolve_starting_offsets(world.broker(topic, fresh), group=world.group, store=world.store)

    options = world.options(topic, fresh, startingOffsets=start.json())
    batch = world.spark.read.format("kafka").options(**options).load()
    assert sorted(row.value for row in events(batch).collect()) == ["c", "d", "e", "f"]
    assert f"{topic}-0" in start.explain()
    assert world.database.rows("SELECT * FROM kafka_partitions ORDER BY partition") == before
    assert claim.token == world.store.offsets(world.group)[TopicPartition(topic, 0)].token


@pytest.mark.behaviour("TX-10", "START-11")
def test_a_partition_that_is_added_while_the_job_runs_is_read_from_its_beginning(world: World) -> None:
    topic = world.events_topic(["a"])
    claim = world.claim(topic, policy=StartPolicy(auto_offset_reset="latest"))
    sink = TransactionalSink(claim, events, into=Append("events"))
    stream = world.read(claim, **{"kafka.metadata.max.age.ms": "100"})
    query = world.start(
        sink, stream, checkpoint=claim.checkpoint(world.checkpoints), trigger={"processingTime": "100 milliseconds"}
    )
    world.produce(topic, ["b"])
    wait_until(lambda: world.stored(topic) == {0: 2}, timeout=SECONDS)

    admin.create_partitions(world.kafka.bootstrap_servers, topic, total=2)
    world.produce(topic, ["c", "d"], partition=1)
    wait_until(lambda: world.stored(topic) == {0: 2, 1: 2}, timeout=SECONDS)
    query.stop()

    assert sink.error is None
    assert world.database.column(VALUES) == ["b", "c", "d"]
    assert decisions(world, topic)[-1] == ("adopt", None, 0)


def commit_by_java(world: World, topic: str, texts: Mapping[int, str]) -> None:
    """Commit offset 1 with a text, by partition, as a Java program does: texts do not end with a zero byte."""
    context: Any = world.spark.sparkContext
    java, kafka = context._jvm.java, context._jvm.org.apache.kafka
    settings, offsets = java.util.HashMap(), java.util.HashMap()
    settings.put("bootstrap.servers", world.kafka.bootstrap_servers)
    for partition, text in texts.items():
        committed = kafka.clients.consumer.OffsetAndMetadata(1, text)
        offsets.put(kafka.common.TopicPartition(topic, partition), committed)
    admin = kafka.clients.admin.Admin.create(settings)
    admin.alterConsumerGroupOffsets(world.group, offsets).all().get()
    admin.close()


def test_texts_of_other_programs_do_not_stop_a_start(world: World, offsetstore_topic: NewTopic) -> None:
    topic = offsetstore_topic(60)
    # librdkafka keeps them without an end: for some lengths, what follows in memory is no text.
    commit_by_java(world, topic, {partition: "x" * partition for partition in range(60)})
    committed = world.broker(topic).view(world.group, [topic]).committed
    assert {tp.partition for tp in committed} == set(range(60))
    assert {offset.next_offset for offset in committed.values()} == {1}


OLD = ["old-a", "old-b", "old-c"]
LONGER = ["new-a", "new-b", "new-c", "new-d", "new-e"]


@pytest.mark.behaviour("START-8")
def test_a_topic_that_is_recreated_ends_the_job_before_a_record_of_the_new_log_is_written_and_stops_the_next_start(
    world: World,
) -> None:
    """The new log is longer, so that Spark reads it as if nothing had happened. A shorter one, Spark refuses."""
    topic = world.events_topic(OLD, ["old-p1"])
    claim = world.claim(topic)
    sink = TransactionalSink(claim, events, into=Append("events"))
    # The trigger is long, so that the topic is gone and there again between two looks of Spark at it.
    query = world.start(
        sink,
        world.read(claim, **{"kafka.metadata.max.age.ms": "100"}),
        checkpoint=claim.checkpoint(world.checkpoints),
        trigger={"processingTime": "3 seconds"},
    )
    wait_until(lambda: world.stored(topic) == {0: 3, 1: 1}, timeout=SECONDS)

    admin.delete_topic(world.kafka.bootstrap_servers, topic)
    admin.create_topic(world.kafka.bootstrap_servers, topic, partitions=2)
    world.produce(topic, LONGER)
    world.produce(topic, ["new-p1"] * 2, partition=1)
    failed = world.failure(query, sink)

    assert isinstance(failed.error, TopicRecreated)
    assert "TopicRecreated" in failed.text
    assert world.database.column(VALUES) == [*OLD, "old-p1"]
    assert world.stored(topic) == {0: 3, 1: 1}

    with pytest.raises(TopicRecreated, match=topic):
        world.claim(topic)
    owner = world.store.owner(world.group)
    assert owner is not None
    assert owner.token == claim.token

    world.run(world.claim(topic, policy=StartPolicy(on_recreated="restart")), events, Append("events"))

    assert world.database.column(VALUES) == [*LONGER, *["new-p1"] * 2, *OLD, "old-p1"]
    assert world.stored(topic) == {0: len(LONGER), 1: 2}
    restarts = [event for event in world.store.history(world.group) if event.event == "restart"]
    assert [(event.from_offset, event.to_offset) for event in restarts] == [(3, 0), (1, 0)]


def run_on(world: World, claim: Claim, transform: SparkTransform) -> tuple[StreamingQuery, TransactionalSink]:
    """Start a job that goes on until it is stopped."""
    sink = made_unchecked(claim, transform, into=Append("events"))
    query = world.start(
        sink,
        world.read(claim, **{"kafka.metadata.max.age.ms": "100"}),
        checkpoint=claim.checkpoint(world.checkpoints),
        trigger={"processingTime": "100 milliseconds"},
    )
    return query, sink


@pytest.mark.behaviour("START-14", "OPS-25")
def test_the_first_jobs_next_batch_ends_with_stale_claim_and_writes_nothing(world: World) -> None:
    topic = world.events_topic(["a"], partitions=2)
    query, sink = run_on(world, world.claim(topic), events)
    wait_until(lambda: world.stored(topic) == {0: 1, 1: 0}, timeout=SECONDS)

    second = world.claim(topic)
    world.produce(topic, ["b"], partition=1)
    failed = world.failure(query, sink)

    assert isinstance(failed.error, StaleClaim)
    assert failed.error.topic_partition == TopicPartition(topic, 1)
    assert "StaleClaim" in failed.text
    assert "claimed, reset or renamed since" in failed.text
    assert f"claimed by {second.owner}, {second.token}, since " in failed.text
    assert world.database.column(VALUES) == ["a"]
    world.run(second, events, Append("events"))
    assert world.database.column(VALUES) == ["a", "b"]
    assert world.stored(topic) == {0: 1, 1: 1}


@pytest.mark.behaviour("START-22")
def test_a_second_query_on_one_claim_is_refused_and_one_that_has_ended_keeps_the_claim_alive_no_longer(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a driver that goes on."""
    monkeypatch.setattr(heartbeat, "INTERVAL", 0.1)
    topic = world.events_topic(["a"])
    claim = world.claim(topic)
    query, sink = run_on(world, claim, events)
    wait_until(lambda: world.stored(topic) == {0: 1}, timeout=SECONDS)

    failed = world.run_to_failure(claim, events, Append("events"), checkpoint=f"{world.checkpoints}/second")
    assert isinstance(failed.error, ClaimInUse)
    assert "ClaimInUse" in failed.text
    with pytest.raises(GroupBusy):  # the first is idle, and runs
        world.claim(topic, takeover="wait", takeover_timeout=2)
    world.produce(topic, ["b"])
    wait_until(lambda: world.stored(topic) == {0: 2}, timeout=SECONDS)
    assert world.database.column(VALUES) == ["a", "b"]

    monkeypatch.setattr(protocol_runs, "LIVE", timedelta(seconds=1))
    query.stop()
    assert sink.error is None
    assert world.claim(topic, takeover="wait", takeover_timeout=SECONDS).token.epoch == claim.token.epoch + 1


@pytest.mark.behaviour("START-15")
def test_old_checkpoints_are_pruned_after_the_first_committed_batch(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    topic = world.events_topic(["a"])
    group = f"{world.group}/b .. %41 ☃"
    claims = [world.claim(topic, group=group) for _ in range(4)]
    made = [Path(claim.checkpoint(world.checkpoints)) for claim in claims]
    for directory in made:
        directory.mkdir(parents=True)  # as Spark does it
    # What is not a claim's own checkpoint is nobody's to remove, and nothing goes before something is committed.
    (notes := made[0].parent / "1-notes").mkdir()
    gate = Gate(events)
    claim = claims[-1]
    sink = made_unchecked(claim, gate, into=Append("events"))
    query = world.start(sink, world.read(claim), checkpoint=claim.checkpoint(world.checkpoints))
    gate.wait_until_reached()
    assert {*notes.parent.iterdir()} == {*made, notes}
    gate.open()
    query.awaitTermination(60)

    assert {*notes.parent.iterdir()} == {*made[1:], notes}
    assert world.stored(topic, group=group) == {0: 1}
    # A base that can't be listed costs a warning, and not the job.
    prune(world.spark, "nowhere://bucket/checkpoints", epoch=9, retain=3)
    assert "old checkpoints under nowhere://bucket" in caplog.text


class OldJob:
    """What people write without us: its results in one transaction, its offsets in Spark's checkpoint."""

    def __init__(self, world: World, url: str, checkpoint: Path, *topics: str) -> None:
        self.world, self.url, self.checkpoint, self.topics = world, url, checkpoint, topics

    def write(self, batch: DataFrame, _: int) -> None:
        rows: list[Any] = [tuple(row) for row in events(batch).collect()]
        with psycopg.connect(self.url) as connection:
            connection.cursor().executemany("INSERT INTO events VALUES (%s, %s, %s, %s)", rows)

    def run(self) -> None:
        options = self.world.options(*self.topics, startingOffsets="earliest", maxOffsetsPerTrigger="4")
        stream = self.world.spark.readStream.format("kafka").options(**options).load()
        writer = stream.writeStream.foreachBatch(self.write).option("checkpointLocation", str(self.checkpoint))
        query = writer.trigger(availableNow=True).start()
        assert query.awaitTermination(120)


@pytest.mark.behaviour("START-20")
def test_a_job_that_was_stopped_goes_on_where_it_was(
    world: World, offsetstore_topic: NewTopic, offsetstore_database: str, tmp_path: Path
) -> None:
    world.database.execute(EVENTS)
    one, two = offsetstore_topic(2), offsetstore_topic(1)
    old = OldJob(world, offsetstore_database, tmp_path / "old job", one, two)
    world.produce(one, ["a", "b", "c"])
    world.produce(two, ["d"])
    old.run()
    world.produce(one, ["e"], partition=1)
    old.run()
    world.produce(one, ["f"])
    world.produce(two, ["g"])

    claim = world.claim(one, two, adopt_checkpoint=str(old.checkpoint))
    assert json.loads(claim.starting_offsets) == {one: {"0": 3, "1": 1}, two: {"0": 1}}
    world.run(claim, events, Append("events"))

    assert world.database.column(VALUES) == ["a", "b", "c", "d", "e", "f", "g"]
    adopted = [event for event in world.store.history(world.group) if event.event == "adopt"]
    assert [event.to_offset for event in adopted if event.topic_partition == TopicPartition(one, 0)] == [3]
    assert all(event.reason.endswith(f"{old.checkpoint}, batch 1") for event in adopted)
    # The same line of code from now on: the store has the offsets.
    claim = world.claim(one, two, adopt_checkpoint=str(old.checkpoint))
    assert json.loads(claim.starting_offsets) == {one: {"0": 4, "1": 1}, two: {"0": 2}}
    assert [event.event for event in world.store.history(world.group)].count("adopt") == len(adopted)


@pytest.mark.behaviour("START-20")
def test_the_newer_form_of_a_checkpoints_offsets_is_read_too_and_by_sparks_own_file_systems(
    world: World, offsetstore_database: str, tmp_path: Path
) -> None:
    setting = "spark.sql.streaming.offsetLog.formatVersion"
    topic = world.events_topic(["a", "b"])
    old = OldJob(world, offsetstore_database, tmp_path / "old", topic)
    world.spark.conf.set(setting, "2")
    try:
        old.run()
    finally:
        world.spark.conf.unset(setting)
    assert (old.checkpoint / "offsets" / "0").read_text().startswith("v2\n")
    location = f"file://{old.checkpoint}"
    files = HadoopFiles(world.spark, location)

    assert read(files) == read(LocalFiles(location))
    assert files.names("nothing") == []
    with pytest.raises(ConfigurationError, match="offsets/7 of the checkpoint can't be read"):
        files.read("offsets/7")
    claim = world.claim(topic, adopt_checkpoint=files)
    assert json.loads(claim.starting_offsets) == {topic: {"0": 2}}


@pytest.mark.behaviour("START-20", "SINK-6")
def test_its_state_comes_along_where_its_checkpoint_is_copied(
    world: World, offsetstore_topic: NewTopic, offsetstore_database: str, tmp_path: Path
) -> None:
    world.database.execute("CREATE TABLE windows (second int, records bigint)")
    topic = offsetstore_topic(1)
    written: list[Any] = []
    stream = world.spark.readStream.format("kafka").options(**world.options(topic, startingOffsets="earliest")).load()
    world.produce(topic, ["1", "2", "11"])
    writer = windows(stream).writeStream.foreachBatch(lambda batch, _: written.extend(rows(batch).collect()))
    old = writer.option("checkpointLocation", str(tmp_path / "old")).trigger(availableNow=True).start()
    assert old.awaitTermination(120)
    assert [tuple(row) for row in written] == [(0, 2)]
    world.produce(topic, ["12", "21"])

    claim = world.claim(topic, adopt_checkpoint=str(tmp_path / "old"))
    kept = claim.checkpoint(world.checkpoints, keep=True)
    shutil.copytree(tmp_path / "old", kept)
    world.run(claim, rows, Append("windows"), stream=windows(world.read(claim)), checkpoint=kept)

    assert world.database.rows("SELECT * FROM windows") == [(10, 2)]

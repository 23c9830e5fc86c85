"""Batches that a sink keeps in memory, and writes together."""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pytest
from sqlalchemy import text

from offsetstore import Append, Execute, Flush, OffsetStore, TopicPartition, TransactionalSink, Upsert, Work
from offsetstore.errors import CommitUnknown, ConfigurationError, ProtocolMisuse, RowsRefused, SinkError, StaleClaim
from offsetstore.protocol.events import BatchEnded, FlushEnded
from offsetstore.spark import BatchInfo
from offsetstore.testing.fixtures import NewTopic
from tests.support.proxy import CommitProxy, Lost
from tests.support.recorder import Recorder
from tests.support.transforms import EVENTS, traced
from tests.support.waiting import wait_until
from tests.support.world import SECONDS, World

LATER = Flush(rows=1_000, seconds=600)
"""Nothing in these tests reaches its limits."""


@pytest.fixture
def topic(world: World, offsetstore_topic: NewTopic) -> str:
    """Two partitions with six records each."""
    world.database.execute(EVENTS)
    name = offsetstore_topic(2)
    for partition, values in enumerate(["abcdef", "ghijkl"]):
        world.produce(name, list(values), partition=partition)
    return name


def written(world: World) -> list[str]:
    return sorted(world.database.column("SELECT value FROM events"))


def transactions(world: World) -> object:
    return world.database.one("SELECT count(DISTINCT xmin::text) FROM events")


def execute(work: Work, batches: Iterable[pa.RecordBatch]) -> None:
    rows = [row for batch in batches for row in batch.to_pylist()]
    work.connection.execute(text("INSERT INTO events VALUES (:topic, :partition, :offset, :value)"), rows)


INTO: dict[str, Any] = {
    "append": Append("events"),
    "upsert": Upsert("events", key=["topic", "partition", "offset"]),
    "execute": Execute(execute),
}


@pytest.mark.behaviour("MARK-4")
@pytest.mark.parametrize("into", INTO)
def test_batches_are_written_together_at_a_number_of_rows_and_the_rest_at_the_end(
    world: World, topic: str, into: str
) -> None:
    if into == "upsert":
        world.database.execute('CREATE UNIQUE INDEX ON events (topic, partition, "offset")')
    recorder = Recorder()
    with OffsetStore.connect(world.database.url, observers=[recorder]) as store:
        claim = store.claim(world.group, world.broker(topic), mirror_every=None)
        world.run(claim, traced, INTO[into], flush=Flush(rows=6, seconds=600), maxOffsetsPerTrigger="4")

        assert world.stored(topic) == {0: 4, 1: 4}
        assert claim.delivered == {TopicPartition(topic, 0): 6, TopicPartition(topic, 1): 6}
        assert len(written(world)) == 8
        assert transactions(world) == 1
        claim.close()

    assert "".join(written(world)) == "abcdefghijkl"
    assert transactions(world) == 2
    assert world.stored(topic) == {0: 6, 1: 6}
    assert [event.batch for event in recorder.of(BatchEnded, "kept")] == [0, 1, 2]
    assert [event.batches for event in recorder.of(FlushEnded, "written")] == [(0, 1), (2, 2)]
    assert [dict(event.rows) for event in recorder.of(FlushEnded, "written")] == [{"": 8}, {"": 4}]


@pytest.mark.behaviour("MARK-4")
def test_a_number_of_bytes_is_a_limit_too(world: World, topic: str) -> None:
    world.run(world.claim(topic), traced, Append("events"), flush=Flush(seconds=600, bytes=1), maxOffsetsPerTrigger="4")

    assert transactions(world) == 3


@pytest.mark.behaviour("MARK-4")
def test_batches_are_written_when_their_time_is_up_without_another_batch(world: World, topic: str) -> None:
    claim = world.claim(topic)
    sink = TransactionalSink(claim, traced, into=Append("events"), flush=Flush(rows=1_000, seconds=2))
    query = world.start(
        sink, world.read(claim), checkpoint=claim.checkpoint(world.checkpoints), trigger={"processingTime": "0 seconds"}
    )
    wait_until(lambda: claim.delivered)
    assert written(world) == []

    wait_until(lambda: len(written(world)) == 12)
    assert query.isActive
    query.stop()
    assert world.stored(topic) == {0: 6, 1: 6}


@pytest.mark.behaviour("MARK-4")
def test_what_a_job_that_was_taken_over_keeps_is_read_again_by_the_next(world: World, topic: str) -> None:
    claim = world.claim(topic)
    world.run(claim, traced, Append("events"), flush=LATER)

    successor = world.claim(topic)
    with pytest.raises(StaleClaim):
        claim.close()
    assert written(world) == []
    world.run(successor, traced, Append("events"), flush=LATER)
    successor.close()

    assert "".join(written(world)) == "abcdefghijkl"


@pytest.mark.behaviour("MARK-4")
def test_a_job_that_knows_of_the_takeover_closes_quietly(world: World, topic: str) -> None:
    claim = world.claim(topic)
    world.run(claim, traced, Append("events"), flush=LATER)
    world.claim(topic)
    claim.lose()

    claim.close()

    assert written(world) == []


@pytest.mark.behaviour("MARK-4")
def test_a_query_that_is_started_again_on_the_same_sink_goes_on_with_what_it_keeps(world: World, topic: str) -> None:
    claim = world.claim(topic)
    sink = TransactionalSink(claim, traced, into=Append("events"), flush=LATER)
    checkpoint = claim.checkpoint(world.checkpoints)
    for more in ("mn", "op", ""):
        assert world.start(sink, world.read(claim), checkpoint=checkpoint).awaitTermination(SECONDS)
        world.produce(topic, list(more))
    assert written(world) == []

    claim.close()

    assert "".join(written(world)) == "abcdefghijklmnop"
    assert world.stored(topic) == {0: 10, 1: 6}


@pytest.mark.behaviour("MARK-4")
def test_a_batch_that_fails_is_not_kept_twice(world: World, topic: str) -> None:
    claim = world.claim(topic)
    broken = [True]

    def note(_: BatchInfo) -> object:
        if broken:
            raise ZeroDivisionError
        return "flushed"

    sink = TransactionalSink(claim, traced, into=Append("events"), flush=Flush(rows=8, seconds=600), metadata=note)
    checkpoint = claim.checkpoint(world.checkpoints)
    options = {"maxOffsetsPerTrigger": "4"}
    failed = world.failure(world.start(sink, world.read(claim, **options), checkpoint=checkpoint), sink)
    assert isinstance(failed.error, ZeroDivisionError)
    assert set(claim.delivered.values()) == {2}
    broken.clear()

    assert world.start(sink, world.read(claim, **options), checkpoint=checkpoint).awaitTermination(SECONDS)
    claim.close()

    assert "".join(written(world)) == "abcdefghijkl"
    assert set(world.store.metadata(world.group).values()) == {"flushed"}


@pytest.mark.behaviour("MARK-4")
@pytest.mark.parametrize(
    ("refused", "stored"),
    [("b", {0: 0, 1: 0}), ("d", {0: 2, 1: 2}), ("e", {0: 4, 1: 4}), ("f", {0: 5, 1: 4})],
    ids=["in the first", "in the second", "in the last", "in the last, behind another"],
)
def test_of_refused_rows_the_batches_before_them_are_written(
    world: World, topic: str, refused: str, stored: dict[int, int]
) -> None:
    world.database.execute(f"ALTER TABLE events ADD CHECK (value <> '{refused}')")
    claim = world.claim(topic)

    flush = Flush(rows=12, seconds=600)
    failed = world.run_to_failure(claim, traced, Append("events"), flush=flush, maxOffsetsPerTrigger="4")

    assert isinstance(failed.error, RowsRefused)
    assert world.stored(topic) == stored
    assert len(written(world)) == sum(stored.values())
    with suppress(RowsRefused):  # what it still keeps
        claim.close()
    claim.lose()
    assert world.stored(topic) == stored
    world.database.execute("ALTER TABLE events DROP CONSTRAINT events_value_check")
    with world.claim(topic) as again:
        world.run(again, traced, Append("events"), flush=LATER)
    assert "".join(written(world)) == "abcdefghijkl"


@pytest.mark.behaviour("MARK-4")
def test_several_outputs_and_metadata_are_flushed_together(world: World, topic: str) -> None:
    world.database.execute("CREATE TABLE copies (LIKE events)")
    infos: list[BatchInfo] = []

    def note(info: BatchInfo) -> object:
        infos.append(info)
        return {tp: {"until": range_.until} for tp, range_ in info.ranges.items()}

    def transform(batch: Any) -> Any:
        return {"events": traced(batch), "copies": traced(batch).where("value < 'd'")}

    with world.claim(topic) as claim:
        into = {"events": Append("events"), "copies": Append("copies")}
        world.run(claim, transform, into, flush=LATER, metadata=note, maxOffsetsPerTrigger="4")
        assert infos == []

    assert len(written(world)) == 12
    assert world.database.one("SELECT count(*) FROM copies") == 3
    assert [(info.number, dict(info.rows or {})) for info in infos] == [(2, {"events": 12, "copies": 3})]
    assert set(map(str, world.store.metadata(world.group).values())) == {"{'until': 6}"}


@pytest.mark.behaviour("MARK-4")
def test_an_offset_that_something_else_moved_ends_the_job(world: World, topic: str) -> None:
    claim = world.claim(topic)
    world.run(claim, traced, Append("events"), flush=LATER)
    world.advance(claim, {TopicPartition(topic, 0): 3})

    with pytest.raises(SinkError, match="something else"):
        claim.close()

    claim.lose()
    assert written(world) == []


@pytest.mark.behaviour("MARK-4")
def test_closing_after_an_error_does_not_hide_it(world: World, topic: str, caplog: pytest.LogCaptureFixture) -> None:
    claim = world.claim(topic)
    world.run(claim, traced, Append("events"), flush=LATER)
    world.claim(topic)

    with pytest.raises(KeyError), claim:
        raise KeyError

    assert "while closing after KeyError" in caplog.text


@pytest.mark.behaviour("MARK-4")
def test_the_first_records_of_a_new_partition_are_not_forgotten_with_the_buffer(world: World, topic: str) -> None:
    """Without a broker, the row alone says where its partition begins."""
    claim = world.store.claim(world.group, topics=[topic])
    stream = world.spark.readStream.format("kafka").options(**world.options(topic, startingOffsets="earliest")).load()
    world.run(claim, traced, Append("events"), flush=LATER, stream=stream)

    assert (world.stored(topic), written(world)) == ({0: 0, 1: 0}, [])
    claim.close()


@pytest.mark.behaviour("MARK-4")
def test_a_flush_by_the_clock_that_fails_is_told_once_and_raised_by_the_next_batch(world: World, topic: str) -> None:
    world.database.execute("ALTER TABLE events ADD CHECK (value <> 'c')")
    recorder = Recorder()
    with OffsetStore.connect(world.database.url, observers=[recorder]) as store:
        claim = store.claim(world.group, world.broker(topic), mirror_every=None)
        sink = TransactionalSink(claim, traced, into=Append("events"), flush=Flush(rows=1_000, seconds=0.4))
        stream, checkpoint = world.read(claim), claim.checkpoint(world.checkpoints)
        query = world.start(sink, stream, checkpoint=checkpoint, trigger={"processingTime": "0 seconds"})
        wait_until(lambda: recorder.of(FlushEnded, "failed"))
        time.sleep(1.5)
        assert [type(event.error) for event in recorder.of(FlushEnded, "failed")] == [RowsRefused]
        world.produce(topic, ["m"])

        assert isinstance(world.failure(query, sink).error, RowsRefused)
        with pytest.raises(RowsRefused, match="without flush="):
            claim.close()
        world.database.execute("ALTER TABLE events DROP CONSTRAINT events_value_check")
        claim.close()  # it tries again

    assert "".join(written(world)) == "abcdefghijkl"


@pytest.mark.behaviour("MARK-4", "OPS-2")
def test_what_is_kept_at_the_end_of_a_paused_job_is_read_again(
    world: World, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    claim = world.claim(topic)
    world.run(claim, traced, Append("events"), flush=LATER)
    world.store.pause(world.group, reason="maintenance")
    claim.close()
    assert "read again by the next start" in caplog.text
    assert written(world) == []

    world.store.resume(world.group, reason="done")
    with world.claim(topic) as again:
        world.run(again, traced, Append("events"), flush=LATER)
    assert "".join(written(world)) == "abcdefghijkl"


@pytest.mark.behaviour("MARK-4")
def test_a_claim_that_is_closed_by_the_transform_keeps_nothing_more(world: World, topic: str) -> None:
    claim = world.claim(topic)

    def transform(batch: Any) -> Any:
        if claim.delivered:
            claim.close()
        return traced(batch)

    failed = world.run_to_failure(claim, transform, Append("events"), flush=LATER, maxOffsetsPerTrigger="4")

    assert isinstance(failed.error, ProtocolMisuse)
    assert world.stored(topic) == {0: 2, 1: 2}
    assert len(written(world)) == 4


@pytest.mark.behaviour("MARK-4", "TX-11")
def test_after_an_unknown_commit_nothing_more_is_kept_or_written(world: World, topic: str) -> None:
    with CommitProxy(world.database.url) as proxy, OffsetStore.connect(proxy.url) as store:
        claim = store.claim(world.group, world.broker(topic), mirror_every=None)
        world.run(claim, traced, Append("events"), flush=LATER)

        def rename() -> None:
            world.store.rename_group(world.group, f"{world.group}-2", reason="while its answer is lost")

        with proxy.losing(Lost.ANSWER, then=rename), pytest.raises(CommitUnknown):
            claim.close()
        with pytest.raises(SinkError, match="CommitUnknown"):
            claim.close()
        claim.lose()

    assert "".join(written(world)) == "abcdefghijkl"


@pytest.mark.behaviour("MARK-4")
@pytest.mark.parametrize("limits", [{"rows": 0}, {"seconds": 0}, {"bytes": -1}], ids=str)
def test_limits_are_above_zero(limits: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        Flush(**limits)

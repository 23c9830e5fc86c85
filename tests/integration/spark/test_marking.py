"""Manual marking and idle work of a sink."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from sqlalchemy import text

from offsetstore import Append, Claim, Execute, Flush, OffsetStore, Tick, TopicPartition, TransactionalSink, Work
from offsetstore.errors import (
    ConfigurationError,
    UnsupportedQuery,
)
from offsetstore.testing.fixtures import NewTopic
from tests.support.recorder import Recorder
from tests.support.transforms import EVENTS, traced
from tests.support.world import SECONDS, World

MANUAL: dict[str, Any] = {"marking": "manual"}


@pytest.fixture
def topic(world: World, offsetstore_topic: NewTopic) -> str:
    """One partition with ten records."""
    world.database.execute(EVENTS)
    name = offsetstore_topic(1)
    world.produce(name, list("abcdefghij"))
    return name


def written(world: World) -> str:
    return "".join(world.database.column('SELECT value FROM events ORDER BY "offset"'))


def in_fours(rows: list[dict[str, Any]]) -> Callable[[Work, Iterable[pa.RecordBatch]], None]:
    """Keep ``rows``, and write and mark them four at a time."""

    def write(work: Work, batches: Iterable[pa.RecordBatch]) -> None:
        rows.extend(row for batch in batches for row in batch.to_pylist())
        while len(rows) >= 4:
            done, rows[:] = rows[:4], rows[4:]
            work.connection.execute(text("INSERT INTO events VALUES (:topic, :partition, :offset, :value)"), done)
            work.mark(TopicPartition(done[-1]["topic"], done[-1]["partition"]), done[-1]["offset"] + 1)

    return write


@pytest.mark.behaviour("MARK-4")
def test_records_kept_over_several_batches_are_marked_by_a_batch_of_another_partition(
    world: World, offsetstore_topic: NewTopic
) -> None:
    world.database.execute(EVENTS)
    topic = offsetstore_topic(2)
    ends = {TopicPartition(topic, 0): 3, TopicPartition(topic, 1): 1}

    def mark_all(work: Work, _: object) -> None:
        if TopicPartition(topic, 1) in work.ranges:
            for tp, until in ends.items():
                work.mark(tp, until)

    claim = world.claim(topic)
    sink = TransactionalSink(claim, traced, into=Execute(mark_all), marking="manual")
    checkpoint = claim.checkpoint(world.checkpoints)
    stored: list[dict[int, int]] = []
    for partition, values in enumerate(["abc", "d"]):
        world.produce(topic, list(values), partition=partition)
        assert world.start(sink, world.read(claim), checkpoint=checkpoint).awaitTermination(SECONDS)
        stored.append(world.stored(topic))

    assert stored == [{0: 0, 1: 0}, {0: 3, 1: 1}]
    assert claim.delivered == ends


@pytest.mark.behaviour("MARK-1")
def test_a_query_that_is_started_again_on_the_same_sink_delivers_nothing_twice(world: World, topic: str) -> None:
    rows: list[dict[str, Any]] = []
    seen: list[str] = []
    write = in_fours(rows)

    def note(work: Work, batches: Iterable[pa.RecordBatch]) -> None:
        batches = list(batches)
        write(work, batches)
        seen.extend(row["value"] for batch in batches for row in batch.to_pylist())

    claim = world.claim(topic)
    sink = TransactionalSink(claim, traced, into=Execute(note), marking="manual")
    checkpoint = claim.checkpoint(world.checkpoints)
    for more in ("klm", ""):
        assert world.start(sink, world.read(claim), checkpoint=checkpoint).awaitTermination(SECONDS)
        world.produce(topic, list(more))

    assert "".join(seen) == "abcdefghijklm"
    assert (written(world), world.stored(topic)) == ("abcdefghijkl", {0: 12})


def any_function(_work: Work, _batches: object) -> None: ...


@pytest.mark.behaviour("MARK-1", "MARK-4")
@pytest.mark.parametrize(
    ("into", "arguments", "found"),
    [
        (Append("events"), MANUAL, "Append"),
        (Execute(any_function), {**MANUAL, "metadata": any_function}, "metadata="),
        (Execute(any_function), {**MANUAL, "flush": Flush()}, "flush="),
        (Execute(any_function), {**MANUAL, "atomicity": "partition"}, "atomicity="),
        (Append("events"), {"flush": Flush(), "atomicity": "partition"}, "atomicity="),
        (Append("events"), {"marking": "sometimes"}, "sometimes"),
    ],
    ids=["no function", "metadata", "flush", "partition", "flush by partition", "another word"],
)
def test_what_does_not_go_together_is_refused_by_name(
    world: World, topic: str, into: Any, arguments: Any, found: str
) -> None:
    claim = world.claim(topic)
    with pytest.raises(ConfigurationError, match=found):
        TransactionalSink(claim, traced, into=into, **arguments)

    TransactionalSink(claim, traced, into=Execute(any_function), **MANUAL)  # the claim is free still


@pytest.mark.behaviour("MARK-1", "MARK-4")
@pytest.mark.parametrize(
    ("arguments", "checkpoint"), [(MANUAL, "own"), ({"flush": Flush()}, "kept")], ids=["manual", "flush"]
)
def test_a_checkpoint_that_outlives_the_claim_is_refused(
    world: World, topic: str, arguments: Any, checkpoint: str
) -> None:
    claim = world.claim(topic)
    place = claim.checkpoint(world.checkpoints, keep=True) if checkpoint == "kept" else f"{world.checkpoints}/own"

    failed = world.run_to_failure(claim, traced, Execute(any_function), checkpoint=place, **arguments)

    assert isinstance(failed.error, UnsupportedQuery)
    assert "outlives its claim" in str(failed.error)


# -- idle work


@pytest.fixture
def claim(world: World, topic: str, recorder: Recorder) -> Iterator[Claim]:
    """A claim whose events are recorded."""
    with OffsetStore.connect(world.database.url, observers=[recorder]) as store:
        yield store.claim(world.group, world.broker(topic), mirror_every=None)


@pytest.mark.behaviour("OPS-6")
def test_idle_work_may_stop_the_query(world: World, topic: str, claim: Claim) -> None:
    """Even while a batch is waiting for it."""
    queries: list[Any] = []

    def stop(_: Work) -> None:
        world.produce(topic, ["k"])
        threading.Event().wait(2)
        queries[0].stop()

    sink = TransactionalSink(claim, traced, into=Append("events"), tick=Tick(stop, every=3))
    stream, checkpoint = world.read(claim), claim.checkpoint(world.checkpoints)
    queries.append(world.start(sink, stream, checkpoint=checkpoint, trigger={"processingTime": "0 seconds"}))
    assert queries[0].awaitTermination(SECONDS)

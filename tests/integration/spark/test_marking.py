"""Manual marking and idle work of a sink."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from sqlalchemy import text

from offsetstore import Append, Claim, Execute, Flush, OffsetStore, Tick, TopicPartition, TransactionalSink, Work
from offsetstore.errors import (
    ClaimInUse,
    ConfigurationError,
    LockTimeout,
    MarkBackwards,
    MarkBeyondDelivered,
    ProtocolMisuse,
    RowsRefused,
    SinkError,
    StaleClaim,
    UnsupportedQuery,
)
from offsetstore.protocol.events import IdleWorkFailed
from offsetstore.testing.fixtures import NewTopic
from tests.support.recorder import Recorder
from tests.support.server_errors import OF_SERVER, held
from tests.support.transforms import EVENTS, traced
from tests.support.waiting import wait_until
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


@pytest.mark.behaviour("MARK-1", "MARK-2")
def test_the_offsets_follow_the_marks_and_the_next_job_reads_what_was_not_marked(world: World, topic: str) -> None:
    rows: list[dict[str, Any]] = []
    claim = world.claim(topic)
    world.run(claim, traced, Execute(in_fours(rows)), maxOffsetsPerTrigger="3", **MANUAL)

    assert (written(world), world.stored(topic)) == ("abcdefgh", {0: 8})
    assert claim.delivered == {TopicPartition(topic, 0): 10}
    assert [row["value"] for row in rows] == ["i", "j"]

    world.produce(topic, ["k", "l", "m"])
    rows.clear()
    world.run(world.claim(topic), traced, Execute(in_fours(rows)), maxOffsetsPerTrigger="3", **MANUAL)
    assert (written(world), world.stored(topic)) == ("abcdefghijkl", {0: 12})


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


@pytest.mark.behaviour("MARK-1", "MARK-2")
def test_a_function_that_keeps_rows_is_not_called_again(world: World, topic: str) -> None:
    """A rollback does not undo what it has done to its own memory."""
    rows: list[dict[str, Any]] = []
    calls: list[int] = []
    write = in_fours(rows)

    def lock_timeout(work: Work, batches: Iterable[pa.RecordBatch]) -> None:
        write(work, batches)
        calls.append(1)
        if len(calls) == 2:
            work.connection.execute(text(f"DO $$ BEGIN {OF_SERVER['55P03']} END $$"))

    claim = world.claim(topic)
    sink = TransactionalSink(claim, traced, into=Execute(lock_timeout), marking="manual")
    checkpoint = claim.checkpoint(world.checkpoints)
    options: dict[str, Any] = {"maxOffsetsPerTrigger": "3"}
    with psycopg.connect(world.database.url) as other, held(other):
        failed = world.failure(world.start(sink, world.read(claim, **options), checkpoint=checkpoint), sink)
    assert isinstance(failed.error, LockTimeout)
    failed = world.failure(world.start(sink, world.read(claim, **options), checkpoint=checkpoint), sink)
    assert isinstance(failed.error, SinkError)
    assert (len(calls), written(world), world.stored(topic)) == (2, "", {0: 0})

    world.run(world.claim(topic), traced, Execute(in_fours([])), **MANUAL, **options)
    assert (written(world), world.stored(topic)) == ("abcdefgh", {0: 8})


@pytest.mark.behaviour("MARK-1", "MARK-3")
@pytest.mark.parametrize(("mark", "refused"), [(0, MarkBackwards), (11, MarkBeyondDelivered)])
def test_a_mark_out_of_range_ends_the_query_with_nothing_written(
    world: World, topic: str, mark: int, refused: type[Exception]
) -> None:
    def write(work: Work, _: object) -> None:
        work.connection.execute(text("INSERT INTO events (value) VALUES ('x')"))
        work.mark(TopicPartition(topic, 0), mark)

    failed = world.run_to_failure(world.claim(topic), traced, Execute(write), **MANUAL)

    assert isinstance(failed.error, refused)
    assert (written(world), world.stored(topic)) == ("", {0: 0})


@pytest.mark.behaviour("MARK-1")
def test_refused_rows_are_not_searched_for(world: World, topic: str) -> None:
    world.database.execute("ALTER TABLE events ADD CHECK (value <> 'c')")
    calls: list[int] = []

    def write(work: Work, batches: Iterable[pa.RecordBatch]) -> None:
        calls.append(1)
        in_fours([])(work, batches)

    failed = world.run_to_failure(world.claim(topic), traced, Execute(write), **MANUAL)

    assert isinstance(failed.error, RowsRefused)
    assert (len(calls), written(world)) == (1, "")


@pytest.mark.behaviour("MARK-1")
def test_a_job_that_was_taken_over_marks_nothing(world: World, topic: str) -> None:
    claim = world.claim(topic)
    world.claim(topic)

    failed = world.run_to_failure(claim, traced, Execute(in_fours([])), **MANUAL)

    assert isinstance(failed.error, StaleClaim)
    assert written(world) == ""


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
@pytest.mark.parametrize("arguments", [MANUAL, {"flush": Flush()}], ids=["manual", "flush"])
@pytest.mark.parametrize("checkpoint", ["own", "kept"])
def test_a_checkpoint_that_outlives_the_claim_is_refused(
    world: World, topic: str, arguments: Any, checkpoint: str
) -> None:
    claim = world.claim(topic)
    place = claim.checkpoint(world.checkpoints, keep=True) if checkpoint == "kept" else f"{world.checkpoints}/own"

    failed = world.run_to_failure(claim, traced, Execute(any_function), checkpoint=place, **arguments)

    assert isinstance(failed.error, UnsupportedQuery)
    assert "outlives its claim" in str(failed.error)


@pytest.mark.behaviour("MARK-1", "MARK-4")
@pytest.mark.parametrize("arguments", [MANUAL, {"flush": Flush()}], ids=["manual", "flush"])
def test_a_second_sink_on_the_claim_is_refused(world: World, topic: str, arguments: Any) -> None:
    claim = world.claim(topic)
    TransactionalSink(claim, traced, into=Execute(any_function), **arguments)
    with pytest.raises(ClaimInUse):
        TransactionalSink(claim, traced, into=Execute(any_function), **arguments)

    used = world.claim(topic)
    world.run(used, traced, Append("events"))
    with pytest.raises(ClaimInUse):
        TransactionalSink(used, traced, into=Execute(any_function), **arguments)


# -- idle work


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def claim(world: World, topic: str, recorder: Recorder) -> Iterator[Claim]:
    """A claim whose events are recorded."""
    with OffsetStore.connect(world.database.url, observers=[recorder]) as store:
        yield store.claim(world.group, world.broker(topic), mirror_every=None)


def tick(work: Work) -> None:
    assert work.ranges == {}
    work.connection.execute(text("INSERT INTO events (value) VALUES ('tick')"))


def ticks(world: World) -> Any:
    return world.database.one("SELECT count(*) FROM events WHERE value = 'tick'")


@pytest.mark.behaviour("OPS-6")
def test_idle_work_runs_before_the_first_batch_and_between_batches(world: World, topic: str, claim: Claim) -> None:
    sink = TransactionalSink(claim, traced, into=Append("events"), tick=Tick(tick, every=0.2))
    wait_until(lambda: ticks(world) >= 2)
    query = world.start(
        sink, world.read(claim), checkpoint=claim.checkpoint(world.checkpoints), trigger={"processingTime": "0 seconds"}
    )
    wait_until(lambda: world.stored(topic) == {0: 10})
    before = ticks(world)
    wait_until(lambda: ticks(world) >= before + 2)
    query.stop()
    assert sink.error is None
    threading.Event().wait(0.5)  # for one that was under way

    ended = ticks(world)
    threading.Event().wait(1)
    assert ticks(world) == ended


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


@pytest.mark.behaviour("OPS-6")
def test_idle_work_may_close_the_claim_and_ends_with_it(world: World, claim: Claim) -> None:
    calls: list[int] = []

    def close(_: Work) -> None:
        calls.append(1)
        claim.close()

    TransactionalSink(claim, traced, into=Append("events"), tick=Tick(close, every=0.1))
    wait_until(lambda: claim.is_closed)
    threading.Event().wait(0.5)

    assert calls == [1]
    with pytest.raises(ProtocolMisuse):
        TransactionalSink(claim, traced, into=Append("events"), tick=Tick(close, every=0.1))
    del world


@pytest.mark.behaviour("OPS-2", "OPS-6")
def test_idle_work_waits_for_a_paused_group(world: World, claim: Claim) -> None:
    world.store.pause(world.group, reason="maintenance")
    TransactionalSink(claim, traced, into=Append("events"), tick=Tick(tick, every=0.1))
    threading.Event().wait(1)
    assert ticks(world) == 0

    world.store.resume(world.group, reason="done")
    wait_until(lambda: ticks(world))


@pytest.mark.behaviour("OPS-6")
def test_idle_work_waits_for_a_batch(world: World, claim: Claim) -> None:
    inside, go = threading.Event(), threading.Event()

    def write(work: Work, batches: Iterable[pa.RecordBatch]) -> None:
        del work
        for _ in batches:
            pass
        inside.set()
        assert go.wait(SECONDS)

    sink = TransactionalSink(claim, traced, into=Execute(write), tick=Tick(tick, every=0.5))
    query = world.start(sink, world.read(claim), checkpoint=claim.checkpoint(world.checkpoints))
    assert inside.wait(SECONDS)
    before = ticks(world)
    threading.Event().wait(1.5)
    assert ticks(world) == before

    go.set()
    assert query.awaitTermination(SECONDS)


@pytest.mark.behaviour("OPS-6")
def test_idle_work_that_fails_is_rolled_back_and_called_again(world: World, claim: Claim, recorder: Recorder) -> None:
    calls: list[int] = []

    def fail_once(work: Work) -> None:
        tick(work)
        calls.append(1)
        if len(calls) == 1:
            raise ZeroDivisionError

    TransactionalSink(claim, traced, into=Append("events"), tick=Tick(fail_once, every=0.1))
    wait_until(lambda: ticks(world) >= 1)

    [failed] = recorder.of(IdleWorkFailed)
    assert isinstance(failed.error, ZeroDivisionError)
    claim.close()
    assert ticks(world) == len(calls) - 1


@pytest.mark.behaviour("OPS-6")
def test_idle_work_of_a_stale_claim_writes_nothing_and_ends(world: World, topic: str, claim: Claim) -> None:
    world.claim(topic)
    calls: list[int] = []

    def work(_: Work) -> None:
        calls.append(1)

    TransactionalSink(claim, traced, into=Append("events"), tick=Tick(work, every=0.1))
    wait_until(lambda: claim.is_lost)
    wait_until(lambda: not any(thread.name == "offsetstore-between-batches" for thread in threading.enumerate()))

    assert calls == []


@pytest.mark.behaviour("OPS-6")
def test_the_time_between_two_calls_is_above_zero() -> None:
    with pytest.raises(ConfigurationError):
        Tick(tick, every=0)

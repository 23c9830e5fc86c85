"""Manual marking and idle work of a sink."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import text

from offsetstore import Append, Execute, Flush, OffsetStore, Tick, TopicPartition, TransactionalSink
from offsetstore.errors import (
    ClaimInUse,
    ConfigurationError,
    MarkBackwards,
    MarkBeyondDelivered,
    RowsRefused,
    StaleClaim,
    UnsupportedQuery,
)
from offsetstore.protocol.events import IdleWorkFailed
from tests.support.recorder import Recorder
from tests.support.transforms import EVENTS, traced
from tests.support.waiting import wait_until
from tests.support.world import SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import pyarrow as pa

    from offsetstore import Claim, Work
    from offsetstore.testing.fixtures import NewTopic
    from tests.support.world import World

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
        if seen == list("abcdef"):
            seen.append("|")
            raise ZeroDivisionError

    claim = world.claim(topic)
    sink = TransactionalSink(claim, traced, into=Execute(note), marking="manual")
    checkpoint = claim.checkpoint(world.checkpoints)
    stream = world.read(claim, maxOffsetsPerTrigger="3")
    failed = world.failure(world.start(sink, stream, checkpoint=checkpoint), sink)
    assert isinstance(failed.error, ZeroDivisionError)
    assert world.stored(topic) == {0: 0}  # the first batch marked nothing, the second was rolled back
    rows[:] = [{"topic": topic, "partition": 0, "offset": number, "value": "abc"[number]} for number in range(3)]

    stream = world.read(claim, maxOffsetsPerTrigger="3")
    assert world.start(sink, stream, checkpoint=checkpoint).awaitTermination(SECONDS)

    assert "".join(seen) == "abcdef|defghij"
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
    ("into", "arguments"),
    [
        (Append("events"), MANUAL),
        (Execute(any_function), {**MANUAL, "metadata": any_function}),
        (Execute(any_function), {**MANUAL, "flush": Flush()}),
        (Execute(any_function), {**MANUAL, "atomicity": "partition"}),
        (Append("events"), {"flush": Flush(), "atomicity": "partition"}),
        (Append("events"), {"marking": "sometimes"}),
    ],
    ids=["no function", "metadata", "flush", "partition", "flush by partition", "another word"],
)
def test_what_does_not_go_together_is_refused_by_name(world: World, topic: str, into: Any, arguments: Any) -> None:
    with pytest.raises(ConfigurationError):
        TransactionalSink(world.claim(topic), traced, into=into, **arguments)


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

    ended = ticks(world)
    wait_until(lambda: not query.isActive)
    claim.close()
    assert ticks(world) <= ended + 1


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

    assert calls == []


@pytest.mark.behaviour("OPS-6")
def test_the_time_between_two_calls_is_above_zero() -> None:
    with pytest.raises(ConfigurationError):
        Tick(tick, every=0)

"""The transaction of one Kafka partition as a task does it, on a store in memory, with rows handed in by the test."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, cast

import pyarrow as pa
import pytest
from psycopg.errors import CheckViolation

from offsetstore import Claim, OffsetRange, TopicPartition
from offsetstore.errors import FunctionEnded, OffsetStoreError, SinkError, StaleClaim
from offsetstore.protocol.replay import decide
from offsetstore.spark.executors.task import InputCutOff, TaskEnding, TaskResult, Tasks
from offsetstore.store.identity import TaskClaim
from offsetstore.testing import InMemoryOffsetStore, StaticBroker
from tests.support.work import here

P0, P1 = (TopicPartition("payments", number) for number in range(2))
OTHER = TopicPartition("refunds", 0)
PLANNED = OffsetRange(0, 4)


@dataclass
class Keep:
    """A writer that keeps the records' offsets, of at most so many of its batches."""

    takes: int = 99

    def check(self, connection: Any, schema: pa.Schema) -> None:
        """Whatever comes, fits."""

    def write(self, work: Any, batches: Iterable[pa.RecordBatch]) -> int:
        for _, batch in zip(range(self.takes), batches, strict=False):
            work.connection.extend("results", [row["_kafka"]["offset"] for row in batch.to_pylist()])
        return 0


@pytest.fixture
def claim(store: InMemoryOffsetStore) -> Claim:
    return store.claim("billing", StaticBroker.with_topics({"payments": 2, "refunds": 1}, end=100), mirror_every=None)


def without_topic(*coordinates: tuple[int | None, int]) -> pa.RecordBatch:
    """Rows of one topic's partitions and offsets."""
    rows = [{"_kafka": {"partition": partition, "offset": offset}} for partition, offset in coordinates]
    return cast("Any", pa).RecordBatch.from_pylist(rows)


def records(*coordinates: tuple[TopicPartition, int]) -> pa.RecordBatch:
    rows = [{"topic": tp.topic, "partition": tp.partition, "offset": offset} for tp, offset in coordinates]
    return cast("Any", pa).RecordBatch.from_pydict({"_kafka": rows})


def advance(store: InMemoryOffsetStore, claim: Claim, until: int) -> None:
    with store.transaction(claim) as tx:
        plan = tx.lock({P0: OffsetRange(0, until)})
        tx.advance({P0: plan[P0].remaining})


def perform(store: InMemoryOffsetStore, claim: Claim, batches: Iterable[pa.RecordBatch], **more: Any) -> TaskResult:
    """Run the only task of a batch that was planned where nothing was stored yet; all ``batches`` arrive."""
    return perform_with(store, claim, [*batches, None], **more)


def perform_with(
    store: InMemoryOffsetStore, claim: Claim, received: Iterable[pa.RecordBatch | None], **more: Any
) -> TaskResult:
    writer: Any = more.get("writer") or Keep()
    tasks = Tasks(here(store), TaskClaim.of(claim), writer, [decide(0, PLANNED)], [P0], None, 1.0)
    return tasks.perform(0, iter(received))


def assert_untouched(store: InMemoryOffsetStore) -> None:
    assert store.rows("results") == []
    assert store.offsets("billing")[P0].next_offset == 0


@pytest.mark.behaviour("TX-1")
def test_rows_and_offset_are_stored_together(store: InMemoryOffsetStore, claim: Claim) -> None:
    result = perform(store, claim, [records((P0, 0)), records((P0, 1), (P0, 3))])

    assert (result.ending, result.rows) == (TaskEnding.WRITTEN, 3)
    assert store.rows("results") == [0, 1, 3]
    assert store.offsets("billing")[P0].next_offset == 4


@pytest.mark.parametrize(
    "stray",
    [
        pytest.param(records((P1, 1)), id="another partition"),
        pytest.param(records((OTHER, 1)), id="another topic"),
        pytest.param(records((P0, 4)), id="beyond the range"),
        pytest.param(records((P0, 1), (P1, 2)), id="one of several"),
    ],
)
@pytest.mark.behaviour("SINK-7")
def test_rows_of_other_records_write_nothing(store: InMemoryOffsetStore, claim: Claim, stray: pa.RecordBatch) -> None:
    """The proof from Spark's plan should keep them away; were it wrong, its last witness are the rows."""
    result = perform(store, claim, [records((P0, 0)), stray])

    assert result.ending is TaskEnding.FAILED
    assert isinstance(result.why(), SinkError)
    assert_untouched(store)


@pytest.mark.behaviour("SINK-7")
def test_the_topic_may_be_left_out_and_is_no_excuse_for_the_rest(store: InMemoryOffsetStore, claim: Claim) -> None:
    assert perform(store, claim, [without_topic((0, 4))]).ending is TaskEnding.FAILED
    assert perform(store, claim, [without_topic((1, 0))]).ending is TaskEnding.FAILED
    assert perform(store, claim, [without_topic((None, 0), (0, 1))]).ending is TaskEnding.FAILED
    assert_untouched(store)
    assert perform(store, claim, [without_topic((0, 0), (0, 3))]).ending is TaskEnding.WRITTEN


def cut_off(*batches: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    yield from batches
    raise InputCutOff


@dataclass
class Careless(Keep):
    """A writer that takes an error of the rows for their end."""

    def write(self, work: Any, batches: Iterable[pa.RecordBatch]) -> int:
        with suppress(InputCutOff):
            super().write(work, batches)
        return 0


@pytest.mark.behaviour("TX-2")
@pytest.mark.parametrize("writer", [Keep(), Careless()], ids=["the writer fails", "the writer ignores it"])
def test_rows_that_were_cut_off_write_nothing(store: InMemoryOffsetStore, claim: Claim, writer: Keep) -> None:
    with pytest.raises(InputCutOff):
        perform_with(store, claim, cut_off(records((P0, 0))), writer=writer)
    with pytest.raises(InputCutOff):  # nothing came at all, which looks as if a filter had dropped everything
        perform_with(store, claim, cut_off(), writer=writer)
    with pytest.raises(InputCutOff):  # the same, from a worker that takes it for the end of the rows
        perform_with(store, claim, [], writer=writer)
    assert_untouched(store)


@pytest.mark.behaviour("TX-15")
def test_a_partition_that_has_moved_since_it_was_planned_is_left_to_a_new_plan(
    store: InMemoryOffsetStore, claim: Claim
) -> None:
    advance(store, claim, 2)

    assert perform(store, claim, [records((P0, 0), (P0, 1), (P0, 2), (P0, 3))]).ending is TaskEnding.OUTDATED
    assert store.rows("results") == []
    assert store.offsets("billing")[P0].next_offset == 2


@pytest.mark.behaviour("TX-4")
def test_a_partition_that_another_attempt_has_written_is_skipped(store: InMemoryOffsetStore, claim: Claim) -> None:
    advance(store, claim, 4)

    assert perform(store, claim, [records((P0, 0))]).ending is TaskEnding.SKIPPED
    assert store.rows("results") == []


@pytest.mark.behaviour("START-14")
def test_a_task_of_a_job_that_was_taken_over_writes_nothing(store: InMemoryOffsetStore, claim: Claim) -> None:
    store.claim("billing", topics=["payments"])

    assert isinstance(perform(store, claim, [records((P0, 0))]).why(), StaleClaim)
    assert_untouched(store)


@pytest.mark.behaviour("SINK-7")
def test_rows_that_the_writer_leaves_are_looked_at_all_the_same(store: InMemoryOffsetStore, claim: Claim) -> None:
    result = perform(store, claim, [records((P0, 0)), records((P1, 1))], writer=Keep(takes=1))

    assert result.ending is TaskEnding.FAILED
    assert_untouched(store)


class Quoting(Exception):
    """An error of a writer's own that does not pickle, and quotes a value."""

    def __reduce__(self) -> str:
        return "no such thing"


@dataclass
class Fail(Keep):
    """A writer that fails with an error of its own, or of the database."""

    error: Exception = field(default_factory=Quoting)

    def write(self, work: Any, batches: Iterable[pa.RecordBatch]) -> int:  # noqa: ARG002 - the Protocol's
        raise self.error


@pytest.mark.behaviour("OPS-7")
def test_an_error_that_can_t_be_sent_does_not_become_one_of_ours_whose_text_is_logged(
    store: InMemoryOffsetStore, claim: Claim
) -> None:
    error = perform(store, claim, [records((P0, 0))], writer=Fail(error=Quoting("canary"))).why()

    assert not isinstance(error, OffsetStoreError)
    assert "Quoting: canary" in str(error)


class Leave(Keep):
    """A writer that ends programs."""

    def write(self, work: Any, batches: Iterable[pa.RecordBatch]) -> int:  # noqa: ARG002 - the Protocol's
        sys.exit(3)


class Unsendable(Exception):
    """One whose own methods end what calls them."""

    def __str__(self) -> str:
        raise SystemExit

    def __reduce__(self) -> str:
        raise SystemExit


@pytest.mark.behaviour("CONS-15")
def test_what_is_no_error_is_told_with_its_class_and_place_and_a_class_that_cant_be_shown_ends_no_task(
    store: InMemoryOffsetStore, claim: Claim
) -> None:
    error = perform(store, claim, [records((P0, 0))], writer=Leave()).why()
    assert (type(error), str(error)) == (FunctionEnded, "it raised SystemExit")
    assert "in write" in "".join(error.__notes__)

    error = perform(store, claim, [records((P0, 0))], writer=Fail(error=Unsendable())).why()
    assert "Unsendable: it can't be shown: SystemExit" in str(error)


@pytest.mark.behaviour("OPS-7")
def test_an_error_of_the_database_is_sent_without_what_quotes_a_row(store: InMemoryOffsetStore, claim: Claim) -> None:
    raised = CheckViolation("not so\nDETAIL:  Failing row contains (canary)")
    result = perform(store, claim, [records((P0, 0))], writer=Fail(error=raised))

    assert b"canary" not in (result.error or b"")
    assert isinstance(result.why(), CheckViolation)
    assert str(result.why()) == "not so"

"""What a Spark task does with ``atomicity="partition"``: it reads its rows, and writes them with their offset.

It happens once or not at all: after the task's rows are consumed, nothing is retried in place. The task returns how it
ended, errors included, so Spark does not retry it either; the driver may, from Kafka. Spark retries only a task that
died; the new attempt sees from the stored offset whether the old one committed.

The rows come as Arrow record batches. Spark's JVM makes them, as it does to collect rows on the driver, and sends their
bytes to the Python worker. ``mapInArrow`` takes half a core-second more for 500,000 rows: it wraps each row in a struct
first.

An executor may be killed, or a query stopped, while rows are being sent. PySpark's own serializers take that for the
end of the rows, and a commit would lose the rest. The same holds for the tasks' results, on their way to the driver.
"""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import chain
from typing import Any, Final, Self, TypeVar, cast

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import RDD, SparkContext, cloudpickle
from pyspark.serializers import Serializer, SpecialLengths
from pyspark.sql import DataFrame

from offsetstore.errors import OffsetStoreError, SinkError, as_raised
from offsetstore.offsets import TopicPartition
from offsetstore.postgres.errors import stripped
from offsetstore.processing.unit import UNNAMED, Once, PlanOutdated, Unit, commit
from offsetstore.protocol.marking import Marking
from offsetstore.protocol.metadata import Text
from offsetstore.protocol.ports import Work, Writer
from offsetstore.protocol.replay import Decision
from offsetstore.protocol.retries import may_pass
from offsetstore.runtime import failpoints
from offsetstore.runtime.functions import as_texts, call, without_frames
from offsetstore.spark.columns import none_rejected
from offsetstore.spark.executors.connect import ExecutorStore
from offsetstore.spark.executors.preflight import check_again
from offsetstore.store.identity import TaskClaim
from offsetstore.store.transaction import Transaction
from offsetstore.writers.arrow.batches import KAFKA, drop_kafka

_T = TypeVar("_T")
_pickler: Any = cloudpickle

_LENGTH: Final = 4
_RECORDS: Final = 2_000
"""In a record batch: 2,000 of Kafka's largest records, by default of 1 MiB, stay below Arrow's limit of 2 GiB.

``toArrowBatchRdd`` does not limit a batch's bytes (decision 0017).
"""

_LIMIT: Final = "spark.sql.execution.arrow.maxRecordsPerBatch"


class InputCutOff(ConnectionError):
    """The task or its executor ended before all rows were sent; mostly no process is left to report this to.

    Like any `ConnectionError` it blames no record.
    """

    def __init__(self) -> None:
        super().__init__("the task ended before all rows had arrived in its Python worker; nothing was written")


@dataclass(frozen=True, slots=True)
class Parts:
    """A DataFrame's rows, in the parts that Spark's tasks compute: anew each time that `run` is called.

    :param rdd: the JVM's RDD of record batches, one byte array each.
    """

    rdd: Any
    schema: pa.Schema
    context: SparkContext

    @classmethod
    def of(cls, frame: DataFrame) -> Self:
        """Plan the DataFrame."""
        java: Any = frame._jdf  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - Spark's own, like all that is used here
        plan = java.queryExecution().executedPlan()
        conf = frame.sparkSession.conf
        limit = str(conf.get(_LIMIT))
        conf.set(_LIMIT, min(int(limit), _RECORDS) if int(limit) > 0 else _RECORDS)
        try:
            rdd = java.toArrowBatchRdd(plan)
        finally:
            conf.set(_LIMIT, limit)
        return cls(rdd, _schema(frame), frame.sparkSession.sparkContext)

    def run(self, task: Callable[[int, Iterable[pa.RecordBatch | None]], _T]) -> list[_T]:
        """Call ``task`` in a Python worker for each part; return what the calls return, in the parts' order.

        :param task: gets the part's number and its record batches; after the last one ``None``, if all rows arrived.
        :raises SinkError: results are missing.
        """
        batches: RDD[Any] = RDD(self.rdd.toJavaRDD(), self.context, RecordBatches(self.schema))
        try:
            results = batches.mapPartitionsWithIndex(lambda number, rows: [task(number, rows)]).collect()
        except Exception:
            check_again(self.context)
            raise
        expected = self.rdd.getNumPartitions()
        if len(results) != expected:
            raise SinkError(
                "the tasks' results did not all arrive",
                found=f"{len(results)} results",
                expected=f"{expected}",
                next_step="Start the query again: it continues from the stored offsets.",
            )
        return results


class RecordBatches(Serializer):
    """Reads the record batches that Spark sends to a Python worker.

    :param schema: theirs.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema

    def load_stream(self, stream: Any) -> Iterator[pa.RecordBatch | None]:
        """Yield each batch, and ``None`` after the last one.

        :raises InputCutOff: rows are missing.
        """
        while (length := int.from_bytes(_read(stream, _LENGTH), signed=True)) != SpecialLengths.END_OF_DATA_SECTION:
            yield pa.ipc.read_record_batch(pa.py_buffer(_read(stream, length)), self._schema)
        yield None


def _read(stream: Any, length: int) -> bytes:
    data: bytes = stream.read(length)
    if len(data) != length:
        raise InputCutOff
    return data


def _schema(frame: DataFrame) -> pa.Schema:
    """The schema that Spark's JVM writes the batches with: read with another one, their values would be wrong."""
    java: Any = frame._jdf  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - as above
    jvm: Any = frame.sparkSession.sparkContext._jvm  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - as above
    is_large = java.sparkSession().sessionState().conf().arrowUseLargeVarTypes()  # as the JVM reads it: " TRUE" is true
    schema = jvm.org.apache.spark.sql.util.ArrowUtils.toArrowSchema(java.schema(), "UTC", False, is_large)  # noqa: FBT003
    return pa.ipc.read_schema(pa.py_buffer(schema.serializeAsMessage()))


class TaskEnding(Enum):
    """How a task ended. Unless ``WRITTEN``, it has written nothing."""

    WRITTEN = "written"
    SKIPPED = "skipped"
    """All rows were already in the results: another attempt at this task was faster."""
    EMPTY = "empty"
    """There were no rows, and the offset has not moved."""
    OUTDATED = "outdated"
    """The stored offset has changed since the plan was made."""
    AGAIN = "again"
    """The database failed in a way that a retry may solve."""
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class TaskResult:
    """How the task of a partition ended. ``error`` is pickled; `why` loads it."""

    topic_partition: TopicPartition
    ending: TaskEnding
    rows: int = 0
    error: bytes | None = None

    @property
    def is_stored(self) -> bool:
        """Whether the partition's offset has moved, by this attempt or an earlier one."""
        return self.ending in {TaskEnding.WRITTEN, TaskEnding.SKIPPED}

    def why(self) -> Exception:
        """The task's error, or a `SinkError` if that can't be loaded here."""
        try:
            return pickle.loads(self.error or b"")  # noqa: S301 - from our own task
        except Exception as error:  # noqa: BLE001 - loading may raise anything
            return SinkError(
                "a task failed with an error that can't be loaded on the driver",
                topic_partition=self.topic_partition,
                found=type(error).__qualname__,
            )


@dataclass(frozen=True, slots=True)
class Tasks:
    """The tasks of one action. It is the same for all of them, so Spark sends it once per executor.

    :param tasks: the decisions, by Spark's number of the task.
    :param failpoint: the driver's setting of `failpoints`, which applies to the tasks too.
    :param lock_timeout: in seconds.
    :param metadata: the new texts of some partitions.
    :param keeps_kafka: whether the writer gets ``_kafka``; otherwise the column is only there for the task's check.
    """

    store: ExecutorStore
    claim: TaskClaim
    writer: Writer
    tasks: Sequence[Decision]
    partitions: Sequence[TopicPartition]
    failpoint: str | None
    lock_timeout: float
    keeps_kafka: bool = True
    metadata: Mapping[TopicPartition, Text] = field(default_factory=dict[TopicPartition, "Text"])

    def __call__(self, number: int, batches: Iterable[pa.RecordBatch | None]) -> TaskResult:
        """Run a task; for `Parts.run`."""
        failpoints.follow(self.failpoint)
        return self.perform(number, batches)

    def perform(self, number: int, batches: Iterable[pa.RecordBatch | None]) -> TaskResult:
        """Write the rows of one partition, with its offset.

        :raises InputCutOff: rows are missing; nothing was written.
        """
        tp, decision = self.partitions[number], self.tasks[number]
        rows = _Rows(self.writer, tp, decision, batches, keeps_kafka=self.keeps_kafka)
        try:
            # Open no transaction before the first row: a filter may run for long, and drop all rows.
            if not rows.begin():
                return TaskResult(tp, TaskEnding.EMPTY)
            # Rows that are used up can't be written again: the driver repeats, from a new plan (decision 0065).
            commit(self, Unit({tp: decision}, {UNNAMED: Once(rows)}, metadata=self.metadata))
        except InputCutOff:
            raise  # the executor reads no result
        except PlanOutdated as outdated:
            return TaskResult(tp, TaskEnding.SKIPPED if outdated.is_stored else TaskEnding.OUTDATED)
        except Exception as error:  # noqa: BLE001 - the driver raises it
            ending = TaskEnding.AGAIN if may_pass(error) else TaskEnding.FAILED
            why = _pickled(cast("Exception", stripped(error)), tp)
            without_frames(error)  # the worker lives on
            return TaskResult(tp, ending, error=why)
        return TaskResult(tp, TaskEnding.WRITTEN, rows.count)

    def run(
        self,
        work: Callable[[Transaction], _T],
        *,
        marking: Marking = "automatic",
        retry_if: Callable[[Exception], bool] = may_pass,  # noqa: ARG002 - the driver decides
    ) -> _T:
        """Run ``work`` in one transaction of the task: repeating it is the driver's part."""
        transaction = self.store.connect().transaction(self.claim, lock_timeout=self.lock_timeout, marking=marking)
        with transaction as tx:
            return work(tx)


class _Rows:
    """The task's rows, each record batch checked to be of the task's partition; can be written once.

    ``count`` is the number of rows that the writer got.
    """

    def __init__(
        self,
        writer: Writer,
        tp: TopicPartition,
        decision: Decision,
        batches: Iterable[pa.RecordBatch | None],
        *,
        keeps_kafka: bool,
    ) -> None:
        self.count = 0
        self._writer = writer
        self._tp = tp
        self._decision = decision
        self._keeps_kafka = keeps_kafka
        self._is_whole = False
        self._filled = (self._checked(batch) for batch in self._received(batches) if batch.num_rows)

    def begin(self) -> bool:
        """Whether there are any rows; takes none out."""
        for first in self._filled:
            self._filled = chain([first], self._filled)
            return True
        self._check_whole()
        return False

    def write(self, work: Work) -> int:
        """Write the rows, read those that the writer left, and check that all rows arrived.

        :raises InputCutOff: rows are missing.
        """
        self._writer.write(work, self._filled)
        for _ in self._filled:
            pass
        self._check_whole()
        return self.count

    def _received(self, batches: Iterable[pa.RecordBatch | None]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if batch is None:
                self._is_whole = True
            else:
                yield batch

    def _check_whole(self) -> None:
        """Check, after the last row, that all rows arrived: the writer may have ignored the error that says so."""
        if not self._is_whole:
            raise InputCutOff

    def _checked(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the writer's batch if its rows belong to the range that the transaction has locked.

        :raises SinkError: they don't: Spark has distributed the rows in an unexpected way.
        """
        compute: Any = pc
        kafka: Any = cast("Any", batch).column(KAFKA)
        partition, offset = (compute.struct_field(kafka, name) for name in ("partition", "offset"))
        has_topic = kafka.type.get_field_index("topic") >= 0  # the driver leaves it out if the batch has one topic
        bounds = compute.min_max(offset).as_py()
        expected = self._decision.remaining
        ours = (
            kafka.null_count == partition.null_count == 0
            and (
                not has_topic
                or compute.all(compute.equal(compute.struct_field(kafka, "topic"), self._tp.topic)).as_py()
            )
            and compute.all(compute.equal(partition, self._tp.partition)).as_py()
            and expected.from_ <= bounds["min"] <= bounds["max"] < expected.until
        )
        if not ours:
            raise SinkError(
                "a partition's task received rows of other records; nothing of the partition was written",
                topic_partition=self._tp,
                found=f"offsets {bounds['min']} to {bounds['max']}",
                expected=f"rows of {self._tp} {expected}",
                next_step='Use atomicity="batch", which does not depend on how rows are distributed.',
            )
        self.count += batch.num_rows
        batch = none_rejected(batch)
        return batch if self._keeps_kafka else drop_kafka(batch)


def _pickled(error: Exception, tp: TopicPartition) -> bytes:
    """Pickle the error for `TaskResult.why`; its cause is lost with that."""
    raised = as_raised(error)
    try:
        if isinstance(error, OffsetStoreError):
            error.locate(tp)
        else:
            # Where it was raised, without the values of variables there.
            error.add_note(f"in the task of {tp}:\n{''.join(traceback.format_tb(raised.__traceback__))}")
        pickled: bytes = call(_pickler.dumps, error)
        call(pickle.loads, pickled)  # some errors pickle, but can't be loaded
    except Exception:  # noqa: BLE001 - the user's own class may raise anything
        # Not one of our errors, whose text the sink logs: this text may quote a row.
        stand_in = RuntimeError(f"a task of {tp} failed with {type(raised).__qualname__}: {as_texts(error)[0]}")
        return pickle.dumps(stand_in)
    return pickled

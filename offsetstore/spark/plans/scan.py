"""Give each Spark task the rows of one Kafka partition: proven from the RDD that will run, or else by a repartition.

Spark runs one task per Kafka partition by default, but does not guarantee it: ``[0, 400)`` can arrive as three tasks
(``minPartitions``, ``maxRecordsPerPartition``), and counting tasks proves nothing. So the RDD is followed down to
Kafka's scan, over one-to-one dependencies, and that same RDD is then run, without being planned again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from py4j.protocol import Py4JError  # pyright: ignore[reportMissingTypeStubs] - it has none
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from offsetstore.errors import SinkError
from offsetstore.offsets import OffsetRange, TopicPartition
from offsetstore.spark.columns import by_partition
from offsetstore.spark.executors.task import Parts
from offsetstore.spark.plans import each, simple_name
from offsetstore.writers.arrow.batches import KAFKA

_ONE_TO_ONE: Final = "org.apache.spark.OneToOneDependency"
_SCAN: Final = "DataSourceRDD"
_SHUFFLED: Final = "ShuffledRowRDD"
_SHUFFLE_PARTITION: Final = "CoalescedPartitionSpec"


@dataclass(frozen=True, slots=True)
class Placed:
    """Rows in tasks: task ``i`` has exactly the rows of partition ``tasks[i]``.

    ``moved`` tells why the rows had to be repartitioned, ``None`` if they were not.
    """

    parts: Parts
    tasks: Sequence[TopicPartition]
    moved: str | None = None


class _Unproven(Exception):
    """Why the tasks can't be proven to be Kafka's partitions."""


def place(
    frame: DataFrame, ranges: Mapping[TopicPartition, OffsetRange], remaining: Sequence[TopicPartition]
) -> Placed:
    """Make sure that each task has the rows of one Kafka partition, and all of them.

    If ``frame`` needs a shuffle, it is computed here, once.

    :param frame: with the column ``_kafka``.
    :param ranges: all that the batch reads.
    :param remaining: the partitions that may have rows, for a repartition.
    :raises SinkError: the rows could not be repartitioned either.
    """
    # This very RDD is run: a proof about one plan says nothing about another one that Spark makes (decision 0017).
    parts = Parts.of(frame)
    try:
        return Placed(parts, _proven(parts.rdd, ranges))
    except _Unproven as reason:
        return Placed(_repartitioned(_computed_once(frame), remaining), remaining, str(reason))


def is_in_order(frame: DataFrame, ranges: Mapping[TopicPartition, OffsetRange]) -> bool:
    """Whether each task is proven to have the records of one Kafka partition, in order.

    :param ranges: all that the batch reads.
    """
    try:
        _proven(Parts.of(frame).rdd, ranges)
    except _Unproven:
        return False
    return True


def _proven(rdd: Any, ranges: Mapping[TopicPartition, OffsetRange]) -> list[TopicPartition]:
    scan = _narrow_root(rdd)
    if simple_name(scan) != _SCAN:
        raise _Unproven(f"the rows come from a {simple_name(scan)}, not straight from Kafka's scan")
    read = [_scanned(partition) for partition in scan.partitions()]
    if len(read) != rdd.getNumPartitions():
        raise _Unproven("the number of tasks differs from the number of parts of Kafka's scan")
    by_topic_partition = dict(read)
    if len(by_topic_partition) != len(read):
        raise _Unproven(f"{len(read)} tasks read {len(by_topic_partition)} Kafka partitions")
    if by_topic_partition != dict(ranges):
        raise _Unproven("the tasks read other ranges than the batch")
    return [tp for tp, _ in read]


def _narrow_root(rdd: Any) -> Any:
    """Go down as long as each partition is made only from the one with the same number."""
    while True:
        dependencies = list(each(rdd.dependencies()))
        if len(dependencies) != 1 or dependencies[0].getClass().getName() != _ONE_TO_ONE:
            return rdd
        rdd = dependencies[0].rdd()


def _scanned(partition: Any) -> tuple[TopicPartition, OffsetRange]:
    try:
        found = partition.inputPartition()
    except Py4JError:  # Spark 4.0 and 4.1 have a list of them
        found = partition.inputPartitions()
    inputs = list(each(found))
    if len(inputs) != 1 or simple_name(inputs[0]) != "KafkaBatchInputPartition":
        raise _Unproven("a task reads other input than one part of a Kafka partition")
    scanned = inputs[0].offsetRange()
    topic_partition = scanned.topicPartition()
    return (
        TopicPartition(topic_partition.topic(), topic_partition.partition()),
        OffsetRange(scanned.fromOffset(), scanned.untilOffset()),
    )


def _repartitioned(frame: DataFrame, tasks: Sequence[TopicPartition]) -> Parts:
    numbers = dict(zip(tasks, _hashed_to(frame, len(tasks)), strict=True))
    coordinates, topics = F.col(KAFKA), {tp.topic for tp in tasks}
    topic = F.lit(tasks[0].topic) if len(topics) == 1 else coordinates["topic"]
    number = by_partition(numbers, topic, coordinates["partition"]).cast("int")  # hashed as `_hashed_to` does
    moved = Parts.of(frame.repartition(len(tasks), number))
    root = _narrow_root(moved.rdd)
    reads = [simple_name(root)]
    if reads == [_SHUFFLED]:
        reads = [_reads_of_shuffle(partition) for partition in root.partitions()]
    expected = [_shuffle_partition(number) for number in range(len(tasks))]
    if reads != expected:
        raise SinkError(
            "Spark did not repartition the rows as requested",
            found=", ".join(reads),
            expected=f"{len(tasks)} tasks, one for each Kafka partition",
            next_step='Use atomicity="batch", which does not depend on how rows are distributed.',
        )
    return moved


def _hashed_to(frame: DataFrame, count: int) -> list[int]:
    """For each task, an integer that Spark's hash partitioning sends to it.

    Spark computes them without a job, since they depend on no row.
    """
    candidates = 16 * count
    numbers: dict[int, int] = {}
    while len(numbers) < count:
        candidates *= 2
        hashes = f"transform(sequence(0, {candidates}), number -> pmod(hash(number), {count})) AS hashes"
        [row] = frame.sparkSession.range(1).selectExpr(hashes).collect()
        numbers = {task: number for number, task in enumerate(row.hashes)}
    return [numbers[task] for task in range(count)]


def _reads_of_shuffle(partition: Any) -> str:
    spec = partition.spec()
    if simple_name(spec) != _SHUFFLE_PARTITION or spec.endReducerIndex() != spec.startReducerIndex() + 1:
        return spec.toString()
    return _shuffle_partition(spec.startReducerIndex())


def _shuffle_partition(number: int) -> str:
    return f"shuffle partition {number}"


def _computed_once(frame: DataFrame) -> DataFrame:
    """A DataFrame of the same rows, planned already, as Spark itself makes one to call ``foreachBatch``."""
    java: Any = frame._jdf  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - Spark's own, like all that is used here
    session: Any = frame.sparkSession
    rdd = java.queryExecution().toRdd()
    return DataFrame(session._jsparkSession.internalCreateDataFrame(rdd, java.schema(), False), session)  # noqa: FBT003, SLF001

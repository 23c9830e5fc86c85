"""A micro-batch as a delivery: its rows are computed by Spark, and collected on the driver as Arrow."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Final

from pyspark import StorageLevel
from pyspark.sql import DataFrame

from offsetstore.errors import FunctionFailed
from offsetstore.offsets import OffsetRange, TopicPartition, count_offsets
from offsetstore.processing.handling import HandlerFailed
from offsetstore.processing.unit import Coordinates, Ranges
from offsetstore.protocol.letters import Headers
from offsetstore.spark.careful import Careful, OfRanges, computed_carefully
from offsetstore.spark.collecting import LARGE, OnDriver, on_driver
from offsetstore.spark.columns import headers_of, within
from offsetstore.spark.function_errors import function_failed, is_out_of_range
from offsetstore.spark.handlers import Handled
from offsetstore.spark.outputs import SparkOutputs
from offsetstore.spark.plans import execution
from offsetstore.spark.plans.lineage import is_deterministic
from offsetstore.spark.plans.query import RunningQuery
from offsetstore.spark.plans.sharing import computed_once
from offsetstore.store.claim import Claim
from offsetstore.store.term import Terms

_UNREADABLE: Final = (
    "Spark's source can't read a record: its timestamp is out of range. Start with maxOffsetsPerTrigger=1: then what "
    "comes before the record is stored, and the error names it, with the command that skips it."
)


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """A micro-batch, with the exact ranges that it reads; see `Delivery`.

    :param or_by_partition: whether rows that exceed Spark's limit are collected partition by partition.
    :param handled: the records with the outcomes of a handler, if there is one.
    """

    frame: DataFrame = field(repr=False)
    number: int
    query: RunningQuery
    ranges: dict[TopicPartition, OffsetRange]
    claim: Claim = field(repr=False)
    outputs: SparkOutputs = field(repr=False)
    or_by_partition: bool = True
    handled: Handled | None = None

    @property
    def terms(self) -> Terms:
        # A job has one term for each partition; only members of a fleet read in several.
        return {}

    def part(self, part: Ranges, without: Collection[Coordinates] = ()) -> DataFrame:
        if self.handled is not None:
            return self.handled.part(part, without)
        # A filter costs time: a batch of which nothing is stored gets none (decision 0066).
        return self.frame if part == self.ranges and not without else within(self.frame, part, without)

    def rows(self, part: Ranges, without: Collection[Coordinates] = ()) -> dict[str, OnDriver]:
        return self.rows_of(self.outputs.given(self.part(part, without)), count_offsets(part))

    def rows_of(self, given: DataFrame, offsets: int) -> dict[str, OnDriver]:
        """Compute all outputs of the transform.

        :param given: what the transform gets.
        :param offsets: the number of its offsets.
        """
        writers = self.outputs.writers
        # A large batch is on disk alone, so that no heap grows with it (decision 0015).
        level = StorageLevel.DISK_ONLY if offsets > LARGE else StorageLevel.MEMORY_AND_DISK_DESER
        # Spark computes each output anew, and what they share must agree (decision 0027).
        with computed_once(given, level) if len(writers) > 1 else nullcontext(dict) as share:
            frames = share(self.outputs.transform(given))
            made = {
                name: on_driver(writer, frames[name], or_by_partition=self.or_by_partition)
                for name, writer in writers.items()
            }
        if self.handled is not None:
            # A handler's failures are values in its rows (decision 0086): they are raised before a transaction begins.
            for rows in made.values():
                rows.check()
        return made

    def careful(
        self,
        part: Ranges,
        *,
        suspects: Mapping[Coordinates, FunctionFailed | None],
        has_sequences: bool,
        seconds: float,
    ) -> AbstractContextManager[Careful]:
        return computed_carefully(
            self.outputs,
            self.part(part),
            OfRanges(part),
            has_sequences=has_sequences,
            suspects=suspects,
            seconds=seconds,
            check=lambda: self.sleep(0),
        )

    def sleep(self, seconds: float) -> None:
        """Sleep as `RunningQuery.sleep` does.

        :raises Py4JJavaError: the query is being stopped.
        :raises ProtocolMisuse: the claim was closed meanwhile.
        """
        self.query.sleep(seconds)
        self.claim.require_open()

    def failed(self, error: Exception) -> FunctionFailed | None:
        if isinstance(error, HandlerFailed):
            return error.failed
        return function_failed(error, has_handler=self.handled is not None)

    def unreadable(self) -> str | None:
        """See `Delivery`.

        :raises Exception: Spark's own: it can't read the records, for a reason that is in none of them.
        """
        try:
            # The frame's own count() would read no columns, and so convert no timestamp.
            execution(self.frame).toRdd().count()
        except Exception as error:
            if not is_out_of_range(error):
                raise
            return _UNREADABLE
        return None

    def headers(self, limit: int) -> list[Headers]:
        """See `Delivery`. Spark reads them from Kafka, one partition after the other, until it has enough."""
        return [headers_of(row["headers"]) for row in self.frame.select("headers").take(limit)]

    def repeats(self) -> bool:
        return all(map(is_deterministic, self.outputs.transform(self.outputs.given(self.frame)).values()))

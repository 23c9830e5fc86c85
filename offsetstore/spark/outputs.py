"""What the user's transform returns, checked against the writers and their tables before anything is computed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict
from typing import Any, TypeAlias

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame

from offsetstore.errors import as_raised
from offsetstore.processing.handling import Handler
from offsetstore.processing.outputs import CheckedOutputs
from offsetstore.processing.unit import Ranges
from offsetstore.protocol.events import HandlerCalled
from offsetstore.protocol.letters import Letter
from offsetstore.protocol.ports import TableWriter, Writer
from offsetstore.runtime.functions import call
from offsetstore.spark.columns import KAFKA, rename_reject, with_coordinates, without_reject
from offsetstore.spark.handlers import Handled, HandlerTransform, TopicIds
from offsetstore.spark.plans.lineage import check_row_by_row
from offsetstore.spark.schemas import arrow_schema, table_schema, variants_as_json
from offsetstore.store.claim import Claim

SparkTransform: TypeAlias = Callable[[DataFrame], "DataFrame | Mapping[str, DataFrame]"]

_log = logging.getLogger(__name__)


class SparkOutputs(CheckedOutputs):
    """The transform and its writers; see `CheckedOutputs`.

    :param can_reject: whether ``transform`` may return ``_reject``; see `offsetstore.spark.columns`. Each row
        must then be made from one record.
    :param propagate: the names of the headers that follow a record, into a handler's calls and to writers that take
        them.
    :raises ConfigurationError: ``into`` has no writer, or ``transform`` is not a function.
    """

    def __init__(
        self,
        claim: Claim,
        transform: SparkTransform | Handler,
        into: Writer | Mapping[str, Writer],
        *,
        can_reject: bool = False,
        propagate: Collection[str] = (),
    ) -> None:
        super().__init__(transform, into, takes="DataFrame", propagate=propagate)
        if isinstance(transform, Handler):
            transform = HandlerTransform(transform, propagate)
        self._claim = claim
        self._transform = transform
        self.handler = transform if isinstance(transform, HandlerTransform) else None
        self._can_reject = can_reject
        self._has_lineage = False

    def handled(self, records: DataFrame) -> DataFrame:
        """Add a handler's outcomes to the records, if there is a handler; nothing is computed yet."""
        return records if self.handler is None else self.handler.handled(records)

    def handled_letters(self, records: DataFrame, letters: Sequence[Letter]) -> DataFrame:
        """The same for the records of letters, whose topics may have been created again since."""
        if self.handler is None:
            return records
        ids = {
            (letter.topic_partition.topic, letter.topic_partition.partition, letter.offset): letter.topic_id
            for letter in letters
        }
        return self.handler.handled(records, topic_ids=TopicIds(self.handler.topic_ids, ids))

    def given(self, records: DataFrame) -> DataFrame:
        """What `transform` takes: the records with their coordinates, and a handler's outcomes if there is one."""
        return with_coordinates(self.handled(records), self.names)

    @contextmanager
    def keeping_handled(self, batch: DataFrame, ranges: Ranges) -> Generator[Handled | None]:
        """Keep a batch's records with their outcomes until the block ends, if there is a handler."""
        if self.handler is None:
            yield None
            return
        with self.telling_calls(), closing(Handled(self.handler, batch, ranges)) as handled:
            yield handled

    @contextmanager
    def telling_calls(self) -> Generator[None]:
        """Tell the observers at the end of the block what the handler was called for, if there is one."""
        try:
            yield
        finally:
            if self.handler is not None and (figures := self.handler.figures()).calls:
                self._claim.observers.on(HandlerCalled(group=self._claim.group, **asdict(figures)))

    def transform(self, batch: DataFrame, *, keep_kafka: bool = False) -> dict[str, DataFrame]:
        """Call the transform, and check what it returns.

        :param keep_kafka: keep ``_kafka`` even if the writer does not use it.
        :raises SinkError: the names are not the writers', or a value is not a DataFrame.
        :raises ColumnMismatch, KafkaColumnsMissing: the columns don't fit the tables; nothing was written.
        :raises UnsupportedQuery: with ``can_reject``, a row is not made from one record.
        :raises UnsafeTarget: a table does not survive a crash, or commits separately; nothing was written.
        """
        return self._checked_outputs(batch, call(self._transform, batch), keep_kafka=keep_kafka)

    def check(self, batch: DataFrame) -> None:
        """Compare what the transform makes of an empty batch with the tables, before there is a query.

        An exception of the transform is only logged: the query's batches may have other columns, and rows.

        :param batch: has the columns that Kafka's source has.
        :raises SinkError, ColumnMismatch, KafkaColumnsMissing, UnsupportedQuery, UnsafeTarget: as `transform`.
        """
        try:
            result = call(self._transform, batch)
        except Exception as error:  # noqa: BLE001 - the user's own function
            # Spark's analysis names columns; other texts may contain values.
            text = f": {str(error).partition(chr(10))[0]}" if isinstance(error, AnalysisException) else ""
            what = (
                "transform failed on an empty batch with Kafka's columns; tables are checked at the first batch: %s%s"
            )
            _log.warning(what, type(as_raised(error)).__name__, text)
            return
        # Nobody writes all of Kafka's columns: such a query selects its own before the sink (decision 0060).
        if isinstance(result, DataFrame) and {*batch.columns} - {KAFKA} <= {*result.columns}:
            return
        self._checked_outputs(batch, result)
        # This plan is of the empty batch: the query's own is still to be checked.
        self._has_lineage = False

    def _checked_outputs(self, batch: DataFrame, result: Any, *, keep_kafka: bool = False) -> dict[str, DataFrame]:
        frames = self.by_name(result, DataFrame)
        if self._can_reject:
            if not self._has_lineage:
                for frame in frames.values():
                    check_row_by_row(batch, frame, needed_by="dead_letters=")
                self._has_lineage = True
            frames = {name: rename_reject(frame) for name, frame in frames.items()}
        # isEmpty() runs a job: only where there are no columns to check.
        filled = {name: frame for name, frame in frames.items() if frame.columns or not frame.isEmpty()}
        schemas = {
            name: without_reject(
                table_schema(frame) if isinstance(self.writers[name], TableWriter) else arrow_schema(frame)
            )
            for name, frame in filled.items()
        }
        self.check_tables(self._claim, schemas)
        return {
            name: variants_as_json(
                frame if keep_kafka or self.uses_kafka(name) else frame.drop(KAFKA), schemas.get(name, pa.schema([]))
            )
            for name, frame in frames.items()
        }

"""Which of a sink's settings go with which, and with which query; and settings with which Spark reads Kafka faster."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from pyspark.sql import SparkSession

from offsetstore.errors import ConfigurationError, KafkaColumnsMissing, UnsupportedQuery
from offsetstore.processing.handling import Handler
from offsetstore.processing.runner import RunnerSettings
from offsetstore.protocol.marking import check_marking
from offsetstore.protocol.ports import Writer, declares
from offsetstore.spark.columns import KAFKA_COLUMNS
from offsetstore.store.claim import Claim

Atomicity: TypeAlias = Literal["batch", "partition"]

READER: Final = {
    # Kafka holds a fetch at the end of the log for 500 ms, and Spark's next request waits behind it (decision 0031).
    "kafka.fetch.max.wait.ms": "10",
    # More is no faster, and each executor keeps the last polled records of up to 64 consumers (decision 0031).
    "kafka.max.poll.records": "5000",
    "kafka.max.partition.fetch.bytes": str(4 << 20),
    "kafka.receive.buffer.bytes": str(1 << 20),
    # Without it, the first batch of a long topic is all of it.
    "maxOffsetsPerTrigger": "2000000",
}
"""Options of the Kafka source: those that make it faster, and one that limits a batch.

See "The recommended settings" in docs/performance.md, and docs/decisions/0031-recommended-settings.md.
"""

MANAGER: Final = "spark.sql.streaming.checkpointFileManagerClass"
"""A setting of the session: it would apply to its other queries, so `tuned` leaves it alone (decision 0052)."""


@dataclass(frozen=True, slots=True)
class SinkSettings(RunnerSettings):
    """The sink's settings that depend on each other; see `TransactionalSink`."""

    atomicity: Atomicity = "batch"

    def check(self, writers: Iterable[Writer], handler: Handler | None = None) -> None:
        """Check what can be checked without a query.

        :raises ConfigurationError: naming two settings that do not go together.
        """
        listed = list(writers)
        if self.atomicity not in {"batch", "partition"}:
            raise ConfigurationError('atomicity must be "batch" or "partition"', found=repr(self.atomicity))
        check_marking(self.marking)
        self._check_unstored(listed)
        self.check_dead_letters(listed)
        self.check_handler(handler)

    def check_query(
        self, claim: Claim, columns: Collection[str], checkpoint: str, *, has_handler: bool = False
    ) -> None:
        """Check a query that has just started or was restarted.

        :param columns: of its source.
        :param checkpoint: where it keeps its checkpoint.
        :raises UnsupportedQuery, KafkaColumnsMissing: it does not go with a setting.
        """
        if self.has_unstored and (claim.keeps_checkpoint or not checkpoint.rstrip("/").endswith(claim.checkpoint_name)):
            raise UnsupportedQuery(
                "the query's checkpoint outlives its claim; the next start would begin there, above what is stored",
                found=checkpoint,
                expected="claim.checkpoint(base) without keep=True, with a flush or manual marking",
            )
        self._check_columns(columns)
        if not claim.keeps_checkpoint:
            self._check_headers(columns)
            return
        if has_handler:
            raise UnsupportedQuery(
                "a Handler takes Kafka's records, and a query that has state makes other rows",
                found="claim.checkpoint(base, keep=True)",
                expected="claim.checkpoint(base)",
                next_step="Call the service in the transform, or let a query without state handle the records.",
            )
        if self.propagate:
            raise UnsupportedQuery(
                "propagate= follows Kafka's records, and a query that has state makes other rows",
                found="claim.checkpoint(base, keep=True)",
                expected="claim.checkpoint(base)",
            )
        if self.dead_letters is not None:
            raise UnsupportedQuery(
                "dead_letters= does not go with a query that has state: a record left out would still be in it",
                found="claim.checkpoint(base, keep=True)",
                expected="claim.checkpoint(base)",
            )
        if self.atomicity == "partition":
            raise UnsupportedQuery(
                "the claim keeps its checkpoint for a query with state, whose rows belong to no single partition",
                found='atomicity="partition"',
                expected='atomicity="batch"',
                next_step="If the query has no state, use claim.checkpoint(base) without keep=True.",
            )

    def _check_unstored(self, writers: list[Writer]) -> None:
        if not self.has_unstored:
            return
        name = "flush=" if self.flush is not None else 'marking="manual"'
        if self.flush is not None and self.marking == "manual":
            raise ConfigurationError(
                "a flush moves the offsets to the end of what it writes, and manual marking to where the code says",
                found='flush= and marking="manual"',
                expected="one of them",
            )
        if self.atomicity == "partition":
            raise ConfigurationError(
                f'{name} needs atomicity="batch": what is not stored yet is in the driver\'s memory',
                found=f'atomicity="partition", {name}',
                expected="one of them",
            )
        others = [str(writer) for writer in writers if not declares(writer, "marks")]
        if self.marking == "manual" and others:
            raise ConfigurationError(
                'marking="manual" needs a function that marks: rows of records that are not marked are written again',
                found=", ".join(others),
                expected="Execute(fn), whose fn calls work.mark",
            )
        if self.marking == "manual" and len(writers) > 1:
            raise ConfigurationError(
                'marking="manual" needs one function: the last mark counts, whatever another one has not done',
                found=f"{len(writers)} writers: {', '.join(map(str, writers))}",
                expected="one Execute, and one output: a union, with a column that tells the rows apart",
            )
        if self.marking == "manual" and self.metadata is not None:
            raise ConfigurationError(
                "metadata= describes the end of a batch, and manual marking stores other offsets",
                found='metadata= and marking="manual"',
                expected="work.mark(topic_partition, next_offset, metadata=...)",
            )

    def _check_columns(self, columns: Collection[str]) -> None:
        if self.dead_letters is None:
            return
        # A letter keeps the record as Kafka had it, and is replayed with these columns (decision 0036).
        is_read = self.dead_letters.keep == "all" or self.propagate
        needed = ("key", "value", "timestampType") if is_read else ("key",)
        missing = [name for name in needed if name not in columns]
        others = [name for name in columns if name not in KAFKA_COLUMNS]
        if missing or others:
            raise KafkaColumnsMissing(
                "dead letters are replayed with the columns of the Kafka source, and the query has others",
                found=", ".join(columns),
                expected=", ".join(KAFKA_COLUMNS),
                next_step="Give foreachBatch the DataFrame that load() returned; the rest belongs in transform.",
            )

    def _check_headers(self, columns: Collection[str]) -> None:
        if self.propagate and "headers" not in columns:
            raise KafkaColumnsMissing(
                "propagate= names headers of the records, and the query has not read them",
                found=", ".join(columns),
                expected="the column headers",
                next_step='Give the reader the option includeHeaders="true".',
            )


def tuned(spark: SparkSession, options: Mapping[str, Any]) -> dict[str, Any]:  # noqa: ARG001 - callers give it
    """Add the recommended options to the Kafka source's: it reads faster, in batches of at most 2,000,000 records.

    What you have set yourself stays as it is. With ``minOffsetsPerTrigger``, batches are not limited. An executor needs
    up to 10 MiB more for each partition that it reads.

    ::

        spark.readStream.format("kafka").options(**tuned(spark, kafka))

    :param spark: the session. It stays unchanged: other queries may run in it.
    :param options: the source's, ``kafka.bootstrap.servers`` and so on.
    """
    chosen = {name.lower() for name in options}
    if "minoffsetspertrigger" in chosen:
        # Spark refuses a maximum below the minimum (decision 0068).
        chosen.add("maxoffsetspertrigger")
    return {name: value for name, value in READER.items() if name.lower() not in chosen} | dict(options)

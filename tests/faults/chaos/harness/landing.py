"""What the job does to a micro-batch: each record is appended, and added to its key's sum."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from offsetstore.protocol.ports import Work, Writer
from offsetstore.writers import Append, Execute, Upsert
from tests.faults.chaos.harness.gate import pass_gate

_VALUE = "seq bigint, key string, amount bigint"


def rows(batch: DataFrame) -> DataFrame:
    """Each record with its coordinates and its ``_kafka``."""
    value = F.from_json(F.col("value").cast("string"), _VALUE)
    parsed = batch.withColumn("value", value)
    return parsed.select("topic", "partition", "offset", "value.seq", "value.key", "value.amount", "_kafka")


def outputs(parsed: DataFrame) -> dict[str, DataFrame]:
    """The records, and what they add up to in this batch."""
    added = parsed.groupBy("key").agg(F.count("*").alias("records"), F.sum("amount").alias("total"))
    return {"landed": parsed.drop("_kafka"), "sums": added}


def rows_or_rejects(batch: DataFrame) -> DataFrame:
    """As `rows`; records with an amount below 0 are rejected."""
    return rows(batch).withColumn("_reject", F.when(F.col("amount") < 0, F.lit("the amount is below 0")))


def living_rows(batch: DataFrame) -> DataFrame:
    """As `rows`, of a compacted topic: a tombstone says that its key is gone, and is no record."""
    return rows(batch.where(F.col("value").isNotNull()))


def outputs_by_record(parsed: DataFrame) -> dict[str, DataFrame]:
    """As `outputs`, but each row comes from one record."""
    added = parsed.select("key", F.lit(1).cast("long").alias("records"), F.col("amount").alias("total"), "_kafka")
    return {"landed": parsed, "sums": added}


def gated(transform: Callable[[DataFrame], Any], gate: str | None) -> Callable[[DataFrame], Any]:
    """The same transform, whose tasks read their records in Python and through a gate, if there is one."""
    if gate is None:
        return transform
    udf: Any = F.udf

    # Without types, from which Spark would guess another kind of function.
    through = udf(lambda value: pass_gate(gate, "reading") or value, "binary")  # pyright: ignore[reportUnknownLambdaType]
    return lambda batch: transform(batch.withColumn("value", through("value")))


def writers() -> Mapping[str, Writer]:
    return {"landed": Append("landed"), "sums": _sums()}


def one_writer(gate: str | None = None) -> Writer:
    """For `rows`, in each partition's own transaction."""
    return Execute(partial(land, gate=gate))


class Landing(Append):
    """Writes as `one_writer` does, where that can't be an `Execute`."""

    def __init__(self, gate: str | None = None) -> None:
        super().__init__("landed")
        self.gate = gate

    def write(self, work: Work, batches: Iterable[pa.RecordBatch]) -> int:
        return land(work, batches, gate=self.gate)


def land(work: Work, batches: Iterable[pa.RecordBatch], *, gate: str | None = None) -> int:
    """Write both tables from one pass over the records; return the number of these."""
    pass_gate(gate, "begun")
    parts: list[pa.Table] = []
    written = Append("landed").write(work, _kept(batches, parts))
    if not parts:
        return written
    table: Any = pa.concat_tables(parts)
    added = table.group_by("key").aggregate([("records", "sum"), ("total", "sum")])
    _sums().write(work, added.rename_columns(["key", "records", "total"]).to_batches())
    pass_gate(gate, "written")
    return written


def _kept(batches: Iterable[pa.RecordBatch], parts: list[pa.Table]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        found: Any = batch
        ones = pa.repeat(1, batch.num_rows)
        parts.append(pa.table({"key": found["key"], "records": ones, "total": found["amount"]}))
        yield batch


def _sums() -> Upsert:
    return Upsert("sums", key=["key"], add=["records", "total"])

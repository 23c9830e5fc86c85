"""What the job does to a micro-batch: each record is appended, and added to its key's sum."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from offsetstore.writers import Append, Execute, Upsert

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pyspark.sql import DataFrame
    from sqlalchemy import Connection

    from offsetstore.ports import Writer

_VALUE = "seq bigint, key string, amount bigint"


def rows(batch: DataFrame) -> DataFrame:
    """Each record with its coordinates and its ``_kafka``."""
    value = F.from_json(F.col("value").cast("string"), _VALUE)
    parsed = batch.withColumn("value", value)
    return parsed.select("topic", "partition", "offset", "value.seq", "value.key", "value.amount", "_kafka")


def outputs(batch: DataFrame) -> dict[str, DataFrame]:
    """The records, and what they add up to in this batch."""
    parsed = rows(batch)
    added = parsed.groupBy("key").agg(F.count("*").alias("records"), F.sum("amount").alias("total"))
    return {"landed": parsed.drop("_kafka"), "sums": added}


def writers() -> Mapping[str, Writer]:
    """For `outputs`."""
    return {"landed": Append("landed"), "sums": _sums()}


def one_writer() -> Writer:
    """For `rows`, in each partition's own transaction."""
    return Execute(land)


def land(connection: Connection, batches: Iterable[pa.RecordBatch]) -> None:
    """Write both tables from one pass over the records."""
    parts: list[pa.Table] = []
    Append("landed").write(connection, _kept(batches, parts))
    table: Any = pa.concat_tables(parts)
    added = table.group_by("key").aggregate([("records", "sum"), ("total", "sum")])
    _sums().write(connection, added.rename_columns(["key", "records", "total"]).to_batches())


def _kept(batches: Iterable[pa.RecordBatch], parts: list[pa.Table]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        found: Any = batch
        ones = pa.repeat(1, batch.num_rows)
        parts.append(pa.table({"key": found["key"], "records": ones, "total": found["amount"]}))
        yield batch


def _sums() -> Upsert:
    return Upsert("sums", key=["key"], add=["records", "total"])

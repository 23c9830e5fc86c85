"""Collect a large batch's rows on the driver, in a temporary file: Python's memory does not grow with the batch."""

from __future__ import annotations

import tempfile
from typing import TYPE_CHECKING, Any, Final
from weakref import finalize

import pyarrow as pa
from pyspark.errors.exceptions.captured import unwrap_spark_exception
from pyspark.sql.pandas.serializers import ArrowCollectSerializer
from pyspark.util import _load_from_socket  # pyright: ignore[reportPrivateUsage] - as toArrow() does

from offsetstore.spark.outputs import arrow_schema

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql import DataFrame

IN_MEMORY: Final = 64 << 20
"""The bytes of Arrow data that stay in memory."""

_LIMIT: Final = "spark.driver.maxResultSize"


class Rows:
    """Record batches that can be read again and again: those of the first `IN_MEMORY` bytes from memory."""

    def __init__(self, batches: Iterable[pa.RecordBatch]) -> None:
        self._kept: list[pa.RecordBatch] = []
        self._file: Any = None
        size = 0
        writer: Any = None
        for batch in batches:
            size += batch.nbytes
            if size <= IN_MEMORY:
                self._kept.append(batch)
                continue
            if writer is None:
                self._file = tempfile.TemporaryFile()  # noqa: SIM115 - it has no name, and is closed with the rows
                finalize(self, self._file.close)
                writer = pa.ipc.new_stream(self._file, batch.schema)
            writer.write_batch(batch)
        if writer is not None:
            writer.close()

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        yield from self._kept
        if self._file is not None:
            self._file.seek(0)
            yield from pa.ipc.open_stream(self._file)


def collect(frame: DataFrame) -> Rows:
    """Run the DataFrame's job, and keep its rows, in no particular order.

    :raises Exception: Spark's own, if the job fails; see `is_over_limit`.
    """
    classic: Any = frame
    load: Any = _load_from_socket
    schema = arrow_schema(frame)
    port, secret, server = classic._jdf.collectAsArrowToPython()  # noqa: SLF001 - as toArrow() does
    try:
        with load((port, secret), ArrowCollectSerializer()) as stream:
            # At the end comes a list of numbers, with which the batches could be put in order.
            return Rows(_as(schema, batch) for batch in stream if isinstance(batch, pa.RecordBatch))
    finally:
        with unwrap_spark_exception():
            server.getResult()  # raises the job's error


def is_over_limit(error: BaseException) -> bool:
    """Whether Spark has refused to collect so many bytes; nothing else is wrong with the batch."""
    return _LIMIT in str(error)


def _as(schema: pa.Schema, batch: pa.RecordBatch) -> pa.RecordBatch:
    if batch.schema.equals(schema):
        return batch
    [same] = pa.Table.from_batches([batch]).cast(schema).combine_chunks().to_batches() or [batch]
    return same

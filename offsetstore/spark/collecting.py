"""Rows on the driver; those of a large batch in a temporary file: Python's memory does not grow with the batch."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final
from weakref import finalize

import pyarrow as pa
from pyspark import util as spark_util
from pyspark.errors.exceptions.captured import unwrap_spark_exception
from pyspark.sql import DataFrame
from pyspark.sql.pandas.serializers import ArrowCollectSerializer

from offsetstore.errors import SinkError
from offsetstore.protocol.ports import Writer
from offsetstore.protocol.work import Work
from offsetstore.spark.rejects import none_rejected
from offsetstore.spark.schemas import arrow_schema

IN_MEMORY: Final = 64 << 20
"""The bytes of Arrow data that stay in memory."""

SMALL: Final = 500_000
"""In offsets: the collected rows of a batch that has at most as many stay in memory."""


class Rows:
    """Record batches of one schema that can be read again and again; those beyond `IN_MEMORY` bytes are in a file.

    :raises SinkError: the file can't be written, or, when it is read, is shorter than what was written.
    """

    def __init__(self, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
        self._schema = schema
        self._file: Any = None
        self._size = 0
        self._places: list[pa.RecordBatch | tuple[int, int]] = []  # in the file: position and size
        self.num_rows = self.nbytes = 0
        for batch in batches:
            self.num_rows += batch.num_rows
            self.nbytes += batch.nbytes
            self._places.append(batch if self.nbytes <= IN_MEMORY else self._written(batch))

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for place in self._places:
            yield place if isinstance(place, pa.RecordBatch) else self._read(*place)

    def put_in_order(self, order: Sequence[int]) -> None:
        """Set the order in which batches are read, by their numbers, from 0, in the order in which they arrived."""
        self._places = [self._places[number] for number in order]

    def _written(self, batch: pa.RecordBatch) -> tuple[int, int]:
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - it has no name, and is closed with the rows
                finalize(self, self._file.close)
            position, written = self._size, self._write(memoryview(batch.serialize()))
        except OSError as error:
            raise SinkError(
                "could not write the rows of a large batch to a temporary file; nothing was written to the database",
                found=f"{error.strerror} in {tempfile.gettempdir()}",
                next_step="Free space there, set TMPDIR, or make batches smaller with maxOffsetsPerTrigger.",
            ) from None
        self._size += written
        return position, written

    def _write(self, message: memoryview) -> int:
        written = 0
        while written < len(message):
            written += self._file.write(message[written:])
        return written

    def _read(self, position: int, size: int) -> pa.RecordBatch:
        found = os.pread(self._file.fileno(), size, position)
        if len(found) != size:
            raise SinkError(
                "the temporary file with the rows of a large batch is cut off; nothing was committed",
                found=f"{len(found)} bytes at {position}",
                expected=f"{size}",
                next_step="Start the query again: it reads the batch again.",
            )
        return pa.ipc.read_record_batch(pa.py_buffer(found), self._schema)


def collect(frame: DataFrame) -> Rows:
    """Run the DataFrame's job, and keep its rows, in Spark's order.

    :raises SinkError: the temporary file can't be written.
    :raises Exception: Spark's own, if the job fails.
    """
    classic: Any = frame
    schema = arrow_schema(frame, as_collected=True)
    port, secret, server = classic._jdf.collectAsArrowToPython()  # noqa: SLF001 - as toArrow() does, also below
    try:
        rows = _received(schema, port, secret)
    except SinkError:
        with suppress(Exception):  # it fails, because the connection is closed
            server.getResult()
        raise
    except BaseException:
        with unwrap_spark_exception():
            server.getResult()  # raises the job's error, if that was the cause
        raise
    with unwrap_spark_exception():
        server.getResult()
    return rows


@dataclass(frozen=True, slots=True)
class OnDriver:
    """Rows that were collected on the driver; ``batches`` can be read again and again."""

    writer: Writer
    batches: Rows | Sequence[pa.RecordBatch]

    @property
    def rows(self) -> int:
        """Their number."""
        return self.batches.num_rows if isinstance(self.batches, Rows) else sum(b.num_rows for b in self.batches)

    @property
    def bytes(self) -> int:
        """Their size."""
        return self.batches.nbytes if isinstance(self.batches, Rows) else sum(b.nbytes for b in self.batches)

    def write(self, work: Work) -> int:
        """Write the rows; return their number.

        :raises RowsRefused: also if transform has rejected one.
        """
        return self.writer.write(work, map(none_rejected, self.batches))


def on_driver(writer: Writer, frame: DataFrame, offsets: int) -> OnDriver:
    """Compute the rows of so many offsets, and collect them."""
    return OnDriver(writer, collect(frame) if offsets > SMALL else frame.toArrow().to_batches())


def _received(schema: pa.Schema, port: Any, secret: Any) -> Rows:
    order: list[int] = []

    def batches(stream: Iterable[Any]) -> Iterator[pa.RecordBatch]:
        for found in stream:
            if isinstance(found, pa.RecordBatch):
                yield _as(schema, found)
            else:  # the last
                order.extend(found)

    util: Any = spark_util
    serializer: Any = ArrowCollectSerializer()
    file, socket = util.local_connect_and_auth(port, secret)
    with socket, file:
        socket.settimeout(None)  # a job has no time limit
        rows = Rows(schema, batches(serializer.load_stream(file)))
    rows.put_in_order(order)
    return rows


def _as(schema: pa.Schema, batch: pa.RecordBatch) -> pa.RecordBatch:
    if batch.schema.equals(schema):
        return batch
    same = pa.Table.from_batches([batch]).cast(schema).combine_chunks().to_batches()
    return same[0] if same else pa.RecordBatch.from_pylist([], schema=schema)

"""Rows on the driver, those beyond 64 MiB in a temporary file: Python's memory does not grow with the batch.

Spark computes and sends all of them in one job, if spark.driver.maxResultSize allows. Otherwise executors keep what
they compute on their disks, from where it is fetched one partition at a time. What they lose is never computed again:
it could differ from what was fetched before.
"""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from itertools import groupby
from operator import attrgetter
from typing import Any, Final
from weakref import finalize

import pyarrow as pa
from pyspark import StorageLevel
from pyspark import util as spark_util
from pyspark.errors.exceptions.captured import unwrap_spark_exception
from pyspark.sql import DataFrame
from pyspark.sql.pandas.serializers import ArrowCollectSerializer

from offsetstore.errors import SinkError
from offsetstore.processing.outputs import ArrowRows
from offsetstore.processing.unit import PlanOutdated
from offsetstore.protocol.ports import Work, Writer
from offsetstore.spark.columns import none_rejected
from offsetstore.spark.executors.task import Parts
from offsetstore.spark.function_errors import causes, function_failed, is_over_limit
from offsetstore.spark.schemas import arrow_schema

IN_MEMORY: Final = 64 << 20
"""The bytes of Arrow data that stay in memory."""

LARGE: Final = 2_000_000
"""In offsets: what the outputs of a larger batch share is kept on disk alone, off the JVM's heap."""

_LENGTH: Final = 4  # bytes before each record batch that Spark sends
_CHUNK: Final = 1 << 20

_log = logging.getLogger(__name__)


class CollectedRows:
    """Record batches of one schema that can be read again and again; those beyond `IN_MEMORY` bytes are in a file.

    :param schema: batches that Spark made with another one are cast to it.
    :raises SinkError: the file can't be written, or, when it is read, is shorter than what was written.
    """

    def __init__(self, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
        self._schema = schema
        self._file: Any = None
        self._size = 0
        self._places: list[pa.RecordBatch | tuple[int, int]] = []  # in the file: position and size
        self.num_rows = self.nbytes = 0
        for batch in batches:
            fitting = batch
            if not batch.schema.equals(schema):
                same = pa.Table.from_batches([batch]).cast(schema).combine_chunks().to_batches()
                fitting = same[0] if same else pa.RecordBatch.from_pylist([], schema=schema)
            self.num_rows += fitting.num_rows
            self.nbytes += fitting.nbytes
            self._places.append(fitting if self.nbytes <= IN_MEMORY else self._written(fitting))

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for place in self._places:
            yield place if isinstance(place, pa.RecordBatch) else self._read(*place)

    def put_in_order(self, order: Sequence[int]) -> None:
        """Set the order of reading: the numbers, from 0, that batches got as they arrived."""
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
        data = os.pread(self._file.fileno(), size, position)
        if len(data) != size:
            raise SinkError(
                "the temporary file with the rows of a large batch is cut off; nothing was committed",
                found=f"{len(data)} bytes at {position}",
                expected=f"{size}",
                next_step="Start the query again: it reads the batch again.",
            )
        return pa.ipc.read_record_batch(pa.py_buffer(data), self._schema)


def collect(frame: DataFrame) -> CollectedRows:
    """Run the DataFrame's job, and keep its rows, in Spark's order.

    :raises SinkError: the temporary file can't be written.
    :raises Exception: Spark's own, if the job fails.
    """
    classic: Any = frame
    schema = arrow_schema(frame, as_collected=True)
    serializer: Any = ArrowCollectSerializer()
    order: list[int] = []

    def batches(stream: Iterable[Any]) -> Iterator[pa.RecordBatch]:
        for item in stream:
            if isinstance(item, pa.RecordBatch):
                yield item
            else:  # the last: numbers of the batches, in Spark's order
                order.extend(item)

    port, secret, server = classic._jdf.collectAsArrowToPython()  # noqa: SLF001 - as toArrow() does, also below
    try:
        with _connected(port, secret) as file:
            rows = CollectedRows(schema, batches(serializer.load_stream(file)))
        rows.put_in_order(order)
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


def collect_by_partition(frame: DataFrame) -> CollectedRows:
    """Compute the DataFrame's rows, and fetch them one of Spark's partitions after the other, in order.

    :raises SinkError: Spark can compute the rows, but could not at the first try, when executors were to keep them; or
        the temporary file can't be written.
    :raises PlanOutdated: executors have lost rows that were not fetched yet.
    :raises Exception: Spark's own, if it can't compute them.
    """
    parts = Parts.of(frame)
    context: Any = parts.context
    # What is computed once is never computed again: a lost part could come back with other rows (decision 0068).
    parts.rdd.persist(context._getJavaStorageLevel(StorageLevel.DISK_ONLY))  # noqa: SLF001 - as RDD.persist() does
    try:
        try:
            count = parts.rdd.count()
        except Exception as error:
            if function_failed(error) is None:
                raise
            # A full disk raises the same class as many a decoder: only a trial without keeping tells (decision 0078).
            parts.rdd.unpersist(False)  # noqa: FBT003 - Java
            parts.rdd.count()  # fails again if a record can't be computed
            raise SinkError(
                "Spark computed the rows of a large batch only when they were not kept, or at the second try; "
                "nothing was written",
                found=causes(error)[-1].name,
                expected="rows that can be computed each time, and space for them in spark.local.dir until the driver "
                "has fetched them",
                next_step="If a function fails now and then, correct it. Otherwise free space there, make batches "
                'smaller with maxOffsetsPerTrigger, let tasks write with atomicity="partition", or raise '
                "spark.driver.maxResultSize.",
            ) from error
        with closing(_by_partition(parts, count)) as batches:
            return CollectedRows(arrow_schema(frame, as_collected=True), batches)
    finally:
        parts.rdd.unpersist(False)  # noqa: FBT003 - Java


def _by_partition(parts: Parts, count: int) -> Generator[pa.RecordBatch]:
    """Read the blocks that executors keep; nothing is computed.

    :param count: how many record batches there are.
    """
    context: Any = parts.context
    jvm = context._jvm  # noqa: SLF001 - py4j's gateway
    spark = jvm.org.apache.spark
    manager, tag = spark.SparkEnv.get().blockManager(), parts.rdd.elementClassTag()
    for number in range(parts.rdd.getNumPartitions()):
        block = manager.get(spark.storage.RDDBlockId(parts.rdd.id(), number), tag)
        if block.isEmpty():
            raise PlanOutdated("executors have lost rows that they had computed")
        # A stream: a task's result would go through the heaps of executor and driver as a whole (decision 0068).
        port, secret, server = jvm.PythonRDD.serveIterator(block.get().data(), "rows of a batch")
        with _connected(port, secret) as file:
            try:
                while length := file.read(_LENGTH):
                    size = int.from_bytes(length)
                    if len(data := file.read(size)) < size:  # Spark's own error is raised below, if it has one
                        break
                    yield pa.ipc.read_record_batch(pa.py_buffer(data), parts.schema)
                    count -= 1
            finally:
                while file.read(_CHUNK):  # at its end, the block can be removed
                    pass
        server.getResult()
    if count:
        raise PlanOutdated(f"{count} record batches did not arrive")


class OnDriver(ArrowRows):
    """Rows that were collected on the driver."""

    __slots__ = ()

    def check(self) -> None:
        """Look at all rows.

        :raises RowsRefused, HandlerFailed: see `none_rejected`.
        """
        for batch in self.batches():
            none_rejected(batch)

    def write(self, work: Work) -> int:
        """Write the rows; return their number.

        :raises RowsRefused: also if transform has rejected one.
        """
        return self.writer.write(work, map(none_rejected, self.batches()))

    def joined(self, later: Sequence[ArrowRows]) -> ArrowRows:
        return _Joined(self.writer, [part for rows in (self, *later) for part in rows.parts])


class _Joined(OnDriver):
    """One output's rows of several batches, in order."""

    __slots__ = ()

    def write(self, work: Work) -> int:
        """Write the rows, those with the same columns at once; return their number."""
        batches = (none_rejected(batch) for batch in self.batches() if batch.num_rows)
        return sum(self.writer.write(work, alike) for _, alike in groupby(batches, key=attrgetter("schema")))


def on_driver(writer: Writer, frame: DataFrame, *, or_by_partition: bool = True) -> OnDriver:
    """Compute the rows, and collect them.

    :param or_by_partition: whether to collect them partition by partition if all of them exceed Spark's limit.
    :raises SinkError, PlanOutdated: as `collect_by_partition`.
    """
    try:
        return OnDriver(writer, [collect(frame)])
    except Exception as error:
        if not (or_by_partition and is_over_limit(error)):
            raise
    _log.info("the rows of a batch exceed spark.driver.maxResultSize: they are collected partition by partition")
    return OnDriver(writer, [collect_by_partition(frame)])


@contextmanager
def _connected(port: Any, secret: Any) -> Generator[Any]:
    """Connect to a server of Spark's driver, and yield what it sends."""
    util: Any = spark_util
    file, socket = util.local_connect_and_auth(port, secret)
    with socket, file:
        socket.settimeout(None)  # a job has no time limit
        yield file

"""Hand a task's rows to Python as Arrow record batches, and tell whether all of them arrived.

Spark's JVM makes the batches, as it does to collect rows on the driver, and sends their bytes to the Python worker.
``mapInArrow`` takes half a core-second more for 500,000 rows: it wraps each row in a struct first.

An executor may be killed, or a query stopped, while rows are being sent. PySpark's own serializers take that for the
end of the rows, and a commit would lose the rest. The same holds for the tasks' results, on their way to the driver.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Self, TypeVar

import pyarrow as pa
from pyspark import RDD, SparkContext
from pyspark.serializers import Serializer, SpecialLengths
from pyspark.sql import DataFrame, SparkSession

from offsetstore.errors import SinkError
from offsetstore.spark.executors.preflight import check_again

_T = TypeVar("_T")

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
        with _small_batches(frame.sparkSession):
            rdd = java.toArrowBatchRdd(plan)
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


@contextmanager
def _small_batches(session: SparkSession) -> Generator[None]:
    """Limit the number of records in the batches of an RDD that is made in the block."""
    before = str(session.conf.get(_LIMIT))
    session.conf.set(_LIMIT, min(int(before), _RECORDS) if int(before) > 0 else _RECORDS)
    try:
        yield
    finally:
        session.conf.set(_LIMIT, before)


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

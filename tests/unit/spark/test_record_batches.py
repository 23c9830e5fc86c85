"""What a Python worker reads of a task's rows, byte by byte as Spark's JVM sends them."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any, cast

import pyarrow as pa
import pytest

from offsetstore.errors import SinkError
from offsetstore.spark.executors import task
from offsetstore.spark.executors.task import InputCutOff, Parts, RecordBatches

SCHEMA = pa.schema([("id", pa.int64())])
FIRST, SECOND = (cast("Any", pa).RecordBatch.from_pydict({"id": ids}, schema=SCHEMA) for ids in ([1, 2], [3]))
END_OF_DATA = b"\xff\xff\xff\xff"
END_OF_STREAM = b"\xff\xff\xff\xfc"


def sent(*batches: pa.RecordBatch) -> bytes:
    messages = [bytes(memoryview(batch.serialize())) for batch in batches]
    return b"".join(len(message).to_bytes(4, "big") + message for message in messages)


def received(stream: io.BytesIO) -> list[pa.RecordBatch | None]:
    return list(RecordBatches(SCHEMA).load_stream(stream))


@pytest.mark.parametrize("batches", [(), (FIRST,), (FIRST, SECOND)], ids=len)
def test_the_last_batch_is_followed_by_the_sign_that_all_have_come(batches: tuple[pa.RecordBatch, ...]) -> None:
    stream = io.BytesIO(sent(*batches) + END_OF_DATA + END_OF_STREAM)

    assert received(stream) == [*batches, None]
    assert stream.read() == END_OF_STREAM  # the worker itself reads it


@pytest.mark.behaviour("TX-2")
@pytest.mark.parametrize("length", range(len(sent(FIRST, SECOND)) + len(END_OF_DATA)))
def test_an_end_anywhere_else_is_none(length: int) -> None:
    stream = io.BytesIO((sent(FIRST, SECOND) + END_OF_DATA)[:length])

    with pytest.raises(InputCutOff):
        received(stream)


@dataclass
class CutOff:
    """Spark's RDD, of whose results only the first arrives."""

    parts: int = 2

    def toJavaRDD(self) -> None:  # noqa: N802 - the JVM's
        pass

    def getNumPartitions(self) -> int:  # noqa: N802
        return self.parts

    def mapPartitionsWithIndex(self, task: Any) -> CutOff:  # noqa: N802
        self.first = task(0, iter([None]))
        return self

    def collect(self) -> list[Any]:
        return self.first


@pytest.mark.behaviour("SINK-8", "TX-2")
def test_results_that_did_not_arrive_are_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a task has written would not be counted."""
    rdd = CutOff()
    context: Any = object()

    def made(*_: object) -> CutOff:
        return rdd

    monkeypatch.setattr(task, "RDD", made)
    parts = Parts(rdd, SCHEMA, context)

    with pytest.raises(SinkError, match="did not all arrive"):
        parts.run(lambda number, _: number)
    rdd.parts = 1
    assert parts.run(lambda number, _: number) == [0]

"""What a Python worker reads of a task's rows, byte by byte as Spark's JVM sends them."""

from __future__ import annotations

import io
from typing import Any, cast

import pyarrow as pa
import pytest

from offsetstore.spark.executors.record_batches import InputCutOff, RecordBatches

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

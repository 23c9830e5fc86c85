"""What is said of a transform that raises, or returns something else than rows; without a record's values."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NoReturn

import pyarrow as pa
import pytest

from offsetstore import Append, TopicPartition
from offsetstore.consumer.delivery import ConsumerOutputs, TransformRaised, split
from offsetstore.consumer.records import ConsumedRecord
from offsetstore.errors import FunctionEnded, FunctionFailed, SinkError
from offsetstore.protocol.letters import Payload

pytestmark = pytest.mark.behaviour("CONS-1")
RECORDS = [ConsumedRecord(TopicPartition("payments", 0), 0, Payload(None, b"secret", (), 0, 0))]
CLAIM: Any = None  # nothing is written


def inner(records: pa.RecordBatch) -> pa.RecordBatch:
    records["value"].cast(pa.string()).cast(pa.int64())
    return records


def outer(records: pa.RecordBatch) -> pa.RecordBatch:
    return inner(records)


def number(_: pa.RecordBatch) -> Any:
    return 1


def while_handling(error: Exception, work: Callable[[], object]) -> None:
    try:
        raise error  # noqa: TRY301 - a caller's
    except Exception:  # noqa: BLE001 - any
        work()


def named(records: pa.RecordBatch) -> dict[str, pa.RecordBatch]:
    return {"a": records}


def failure(transform: Any) -> FunctionFailed:
    with pytest.raises(TransformRaised) as raised:
        ConsumerOutputs(transform, Append("payments")).made(CLAIM, RECORDS)
    failed = raised.value.failed()
    assert failed is not None
    return failed


def test_the_error_of_a_transform_names_the_line_of_its_file_if_it_has_one_and_no_value() -> None:
    failed = failure(outer)
    line = inner.__code__.co_firstlineno + 1
    assert failed.what == f"transform raised ArrowInvalid at test_outputs.py:{line}"
    assert "secret" not in str(failed)
    assert "secret" in failed.text
    assert failure(int).what == "transform raised TypeError"


@pytest.mark.behaviour("DLQ-1")
def test_a_reason_that_is_no_utf_8_is_shown() -> None:
    """As Spark makes one of bytes, without a look at them."""
    reasons: Any = pa.array([None, b"no: \xff"], pa.binary()).view(pa.string())
    rows, rejected = split(pa.record_batch({"id": [1, 2], "_reject": reasons}))
    assert rejected is not None
    assert (rows.schema.names, rejected.error.text) == (["id"], "no: \ufffd")


@pytest.mark.behaviour("DLQ-1")
def test_the_traceback_of_a_transform_has_its_own_frames_and_errors_alone() -> None:
    """Also if it was called since a larger part had failed, which Python tells as the error's context."""

    def reads(_: pa.RecordBatch) -> pa.RecordBatch:
        amounts: dict[str, pa.RecordBatch] = {}
        try:
            return amounts["amount"]
        except KeyError as error:
            raise ValueError("no amount") from error

    outputs = ConsumerOutputs(reads, Append("payments"))
    with pytest.raises(TransformRaised) as whole:
        outputs.made(CLAIM, RECORDS * 2)
    with pytest.raises(TransformRaised) as alone:
        while_handling(whole.value, lambda: outputs.made(CLAIM, RECORDS))
    for raised in (whole, alone):
        failed = raised.value.failed()
        assert failed is not None
        trace = failed.traceback or ""
        assert [line.strip().split(",")[0] for line in trace.splitlines() if line.startswith("  File ")] == [
            f'File "{__file__}"'
        ] * 2
        assert [line for line in trace.splitlines() if line and not line.startswith(" ")] == [
            "Traceback (most recent call last):",
            "KeyError: 'amount'",
            "The above exception was the direct cause of the following exception:",
            "Traceback (most recent call last):",
            "ValueError: no amount",
        ]


def test_an_outage_that_we_handle_is_none_of_the_next_call_s_error() -> None:
    outputs = ConsumerOutputs(inner, Append("payments"))
    with pytest.raises(TransformRaised) as raised:
        while_handling(ConnectionError("an earlier call's"), lambda: outputs.made(CLAIM, RECORDS))
    assert raised.value.failed() is not None


@pytest.mark.behaviour("CONS-15")
@pytest.mark.parametrize("method", ["check", "uses_kafka_column"])
def test_a_writer_that_leaves_while_it_looks_at_its_table_ends_its_call_alone(method: str) -> None:
    def leave(*_: object) -> NoReturn:
        sys.exit(3)

    def read(work: Callable[[Any], object]) -> object:
        return work(SimpleNamespace(connection=None))

    def nothing(*_: object) -> None: ...

    claim: Any = SimpleNamespace(read=read)
    writer: Any = SimpleNamespace(write=leave, check=nothing, uses_kafka_column=nothing)
    setattr(writer, method, leave)
    with pytest.raises((FunctionEnded, SystemExit)) as ended:
        ConsumerOutputs(number, writer).check_tables(claim, {"": pa.schema([])})
    assert isinstance(ended.value, FunctionEnded)


def test_what_is_no_record_batch_is_refused_in_the_words_of_into() -> None:
    with pytest.raises(SinkError, match="found int; expected one RecordBatch"):
        ConsumerOutputs(number, Append("payments")).made(CLAIM, RECORDS)
    with pytest.raises(SinkError, match="found 'a': RecordBatch; expected 'b': RecordBatch"):
        ConsumerOutputs(named, {"b": Append("payments")}).made(CLAIM, RECORDS)

"""Records handed to a transform and its writers, on the store in memory; on PostgreSQL, the examples' tests do."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pytest

from offsetstore import BatchInfo, DeadLetters, Execute, Handler, Record, TopicPartition, Work
from offsetstore.errors import ConfigurationError, FunctionFailed, StaleClaim
from offsetstore.testing import FailpointReached, InMemoryOffsetStore, StaticBroker, deliver, failpoint

P0, P1 = (TopicPartition("payments", number) for number in range(2))


def parse(records: Any) -> pa.RecordBatch:
    numbers: Any = pa.array([int(value) for value in records["value"].to_pylist()], pa.int64())
    return pa.record_batch({"number": numbers})


def write(work: Work, batches: Iterable[pa.RecordBatch]) -> None:
    for batch in batches:
        work.connection.extend("payments", [row["number"] for row in batch.to_pylist()])


def records(*values: bytes, partition: int = 0, begin: int = 0) -> list[Record]:
    return [Record("payments", partition, begin + n, value=value) for n, value in enumerate(values)]


def test_rows_and_offsets_are_written_together_and_a_replay_is_cropped() -> None:
    with InMemoryOffsetStore() as store:
        claim = store.claim("billing", topics=["payments"])
        with failpoint("before_commit"), pytest.raises(FailpointReached):
            deliver(claim, records(b"0", b"1"), parse, Execute(write))
        assert (store.rows("payments"), store.offsets("billing")) == ([], {})

        deliver(claim, records(b"0", b"1"), parse, Execute(write))
        deliver(claim, [*records(b"7", partition=1), *records(b"0", b"1", b"2")], parse, Execute(write))
        deliver(claim, records(b"4", begin=5), parse, Execute(write))  # after a hole, as of an aborted transaction
        deliver(claim, [], parse, Execute(write))

        assert store.rows("payments") == [0, 1, 2, 7, 4]
        assert {tp: row.next_offset for tp, row in store.offsets("billing").items()} == {P0: 6, P1: 1}


def test_the_note_of_each_batch_and_letters_are_stored_as_the_consumer_stores_them() -> None:
    def note(batch: BatchInfo) -> object:
        return {"batch": batch.number, "rows": batch.rows}

    with InMemoryOffsetStore() as store:
        claim = store.claim("billing", topics=["payments"])
        into = Execute(write, splittable=True)
        letters = DeadLetters(max_retries=0)
        deliver(claim, records(b"0", b"bad", b"2"), parse, into, metadata=note, dead_letters=letters, number=5)

        assert store.rows("payments") == [0, 2]
        assert store.find_metadata("billing", "payments", 0) == {"batch": 5, "rows": {"": 2}}
        [letter] = store.dead_letters("billing")
        assert (letter.offset, letter.payload and letter.payload.value) == (1, b"bad")
        with pytest.raises(FunctionFailed, match="transform raised ValueError"):
            deliver(claim, records(b"bad", begin=3), parse, into)
        with pytest.raises(ConfigurationError, match="splittable=True"):
            deliver(claim, records(b"3", begin=3), parse, Execute(write), dead_letters=letters)


def test_a_handler_is_called_for_each_record_that_is_not_stored() -> None:
    called: list[int] = []

    def handle(record: Record) -> dict[str, int]:
        called.append(record.offset)
        return {"number": int(record.value or b"")}

    with InMemoryOffsetStore() as store:
        claim = store.claim("billing", topics=["payments"])
        for batch in (records(b"0", b"1"), records(b"1", b"2", begin=1)):
            deliver(claim, batch, Handler(handle, "number long"), Execute(write))
        assert store.rows("payments") == [0, 1, 2]
        assert called == [0, 1, 2]


def test_a_handler_s_record_has_the_id_that_it_has_in_the_consumer() -> None:
    ids: list[str] = []
    with InMemoryOffsetStore() as store:
        claim = store.claim("billing", StaticBroker.with_topics({"payments": 1}))
        deliver(claim, records(b"0"), Handler(lambda record: ids.append(record.id), "number long"), Execute(write))
    assert ids == ["payments/payments-id/0/0"]


def test_an_outage_ends_it_with_the_transform_s_own_error() -> None:
    def down(_: Any) -> pa.RecordBatch:
        raise ConnectionRefusedError("the service is down")

    with InMemoryOffsetStore() as store:
        claim = store.claim("billing", topics=["payments"])
        with pytest.raises(ConnectionRefusedError, match="the service is down"):
            deliver(claim, records(b"0"), down, Execute(write))


@pytest.mark.parametrize("offsets", [(0, 0), (1, 0)])
def test_offsets_that_don_t_ascend_are_refused(offsets: tuple[int, int]) -> None:
    given = [Record("payments", 0, offset, value=b"1") for offset in offsets]
    with InMemoryOffsetStore() as store:
        claim = store.claim("billing", topics=["payments"])
        with pytest.raises(ConfigurationError, match="the offsets of payments-0 don't ascend"):
            deliver(claim, given, parse, Execute(write))
        assert store.rows("payments") == []


def test_a_claim_that_another_one_has_replaced_writes_nothing() -> None:
    with InMemoryOffsetStore() as store:
        stale = store.claim("billing", topics=["payments"])
        deliver(stale, records(b"0"), parse, Execute(write))
        store.claim("billing", topics=["payments"])
        with pytest.raises(StaleClaim):
            deliver(stale, records(b"1", begin=1), parse, Execute(write))
        assert store.rows("payments") == [0]

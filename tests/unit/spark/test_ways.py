"""The ways of a micro-batch that need no Spark: what their transactions do if tasks, or the query, computed nothing."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock
from uuid import uuid4

import pytest

from offsetstore import KEEP, Append, Claim, Execute, OffsetRange, TopicPartition, TransactionalSink
from offsetstore.errors import ConfigurationError, MetadataError, StaleClaim
from offsetstore.processing.plan import BatchMetadata
from offsetstore.processing.unit import UNNAMED, Stored
from offsetstore.spark import partition, stateful
from offsetstore.testing import InMemoryOffsetStore

P0, P1 = (TopicPartition("payments", number) for number in range(2))
RANGES = {P0: OffsetRange(0, 3), P1: OffsetRange(0, 5)}


def outputs() -> Any:
    return SimpleNamespace(writers={UNNAMED: Append("results")})


@pytest.mark.behaviour("META-6")
def test_partitions_without_rows_take_their_metadata_along(
    store: InMemoryOffsetStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition.ExecutorStore, "of", Mock())
    monkeypatch.setattr(partition.PerPartition, "_run", Mock(return_value=[]))
    claim = store.claim("billing", topics=["payments"])
    metadata = BatchMetadata(claim, lambda batch: {tp: f"until {end.until}" for tp, end in batch.ranges.items()})
    batch: Any = SimpleNamespace(number=0, ranges=RANGES)

    partition.PerPartition(claim, outputs(), metadata, threshold=0).write(batch, Stored())

    assert {tp: row.next_offset for tp, row in store.offsets("billing").items()} == {P0: 3, P1: 5}
    assert store.metadata("billing") == {P0: "until 3", P1: "until 5"}


def test_a_function_that_cant_be_sent_to_executors_is_refused(claim: Claim, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition.ExecutorStore, "of", Mock())
    lock = threading.Lock()

    def write(*_: object) -> None:
        lock.release()

    with pytest.raises(ConfigurationError, match="can't be sent to Spark's executors"):
        TransactionalSink(claim, lambda batch: batch, into=Execute(write), atomicity="partition")


@pytest.mark.behaviour("META-4", "META-8")
def test_metadata_are_for_all_partitions_or_for_those_that_are_named_and_others_are_refused(
    store: InMemoryOffsetStore,
) -> None:
    claim = store.claim("billing", topics=["payments"])

    def texts(returned: object) -> dict[TopicPartition, Any]:
        return BatchMetadata(claim, lambda _: returned).texts(0, RANGES, None)

    assert texts(7) == dict.fromkeys(RANGES, "7")
    assert texts({P0: 7, P1: KEEP}) == {P0: "7"}
    assert texts(KEEP) == {}
    with pytest.raises(MetadataError, match="payments-7"):
        texts({TopicPartition("payments", 7): 7})
    with pytest.raises(ZeroDivisionError):
        BatchMetadata(claim, lambda _: 1 // 0).texts(0, RANGES, None)


@pytest.mark.behaviour("START-14")
def test_a_stale_query_with_state_computes_nothing(store: InMemoryOffsetStore, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("admit_stateful", "_check_output_mode", "_check_file_manager"):
        monkeypatch.setattr(stateful, name, Mock())
    claim = store.claim("billing", topics=["payments"])
    with store.transaction(claim) as tx:
        tx.advance({tp: decision.remaining for tp, decision in tx.lock(RANGES).items()})
    store.claim("billing", topics=["payments"])
    started: Any = SimpleNamespace(execution=None)
    way = stateful.Stateful(claim, outputs(), BatchMetadata(claim, None), query=started, columns=[])
    # It has no DataFrame, and nobody who could be asked where the query is.
    query = SimpleNamespace(query_id=str(uuid4()))
    batch: Any = SimpleNamespace(number=1, ranges={P0: OffsetRange(3, 6)}, query=query, failed=Mock(return_value=None))

    with pytest.raises(StaleClaim):
        way.write(batch, Stored())

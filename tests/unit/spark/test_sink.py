"""What the sink refuses before it looks at a batch; without Spark."""

from __future__ import annotations

from typing import Any

import pytest

from offsetstore import Append, TopicPartition, TransactionalSink
from offsetstore.errors import LogTruncated
from offsetstore.spark import sink as module
from offsetstore.testing import InMemoryOffsetStore


@pytest.mark.behaviour("START-25", "START-26")
def test_no_batch_begins_once_the_mirror_has_seen_that_a_log_lost_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """The transactions of tasks don't look, so that the sink has to."""

    class Begun:
        @classmethod
        def of(cls, _batch: object) -> None:
            pytest.fail("the batch has begun")

    monkeypatch.setattr(module, "RunningQuery", Begun)
    batch: Any = object()
    with InMemoryOffsetStore() as store:
        claim = store.claim("billing", topics=["payments"])
        sink = TransactionalSink(claim, lambda frame: frame, into=Append("events"))
        claim.note_lost({TopicPartition("payments", 0): "the log parts at offset 35, below the stored offset 40"})
        with pytest.raises(LogTruncated, match=r"payments-0.*parts at offset 35"):
            sink(batch, 0)

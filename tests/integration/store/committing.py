"""A job behind a proxy that can lose one COMMIT, or the answer to it."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from uuid import UUID

import pytest

from offsetstore import Claim, OffsetRange, OffsetStore, Retries, Timeouts, TopicPartition, Transaction
from tests.integration.store.meeting import GROUP, broker
from tests.support.proxy import CommitProxy, Lost

QUERY = UUID(int=1)
MARK = b"batch_marks AS m"
"""Marks a transaction that marks a batch."""

RECORDS = "SELECT count(*), count(DISTINCT record) FROM results"

BOTH = pytest.mark.parametrize("lost", [Lost.COMMIT, Lost.ANSWER], ids=lambda lost: lost.name)


@dataclass
class Job:
    """A store whose connections go through a proxy, with its claim; and how often its work was run."""

    proxy: CommitProxy
    store: OffsetStore
    claim: Claim
    runs: int = 0

    def work(self, *partitions: TopicPartition, until: int = 40) -> Callable[[Transaction], None]:
        """Write one result a record, and advance."""

        def run(tx: Transaction) -> None:
            self.runs += 1
            tx.lock(dict.fromkeys(partitions, OffsetRange(0, until)))
            for left in tx.ranges.values():
                tx.connection.exec_driver_sql(
                    f"INSERT INTO results SELECT generate_series({left.from_}, {left.until - 1})"
                )
            tx.advance(tx.ranges)

        return run

    def transaction(self, *partitions: TopicPartition) -> None:
        """The same without retry."""
        with self.store.transaction(self.claim) as tx:
            self.work(*partitions)(tx)


@contextmanager
def started(url: str) -> Generator[Job]:
    with (
        CommitProxy(url) as proxy,
        OffsetStore.connect(
            proxy.url, timeouts=Timeouts(commit=5), retries=Retries(shortest=0.01, longest=0.1)
        ) as store,
    ):
        yield Job(proxy, store, store.claim(GROUP, broker(2)))


def write_marked(tx: Transaction, batch_id: int) -> bool:
    """Write one result for a batch without ranges."""
    tx.lock({})
    if tx.marks.mark_batch(QUERY, batch_id):
        tx.connection.exec_driver_sql("INSERT INTO results VALUES (1)")
        return True
    return False

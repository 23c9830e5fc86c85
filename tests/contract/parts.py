"""What the parts of the contract share: fixtures, helpers, names."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Protocol

import pytest

from offsetstore.offset_store import OffsetStore
from offsetstore.offsets import OffsetRange, TopicPartition
from offsetstore.protocol.replay import Decision, Outcome
from offsetstore.store.claim import Claim
from offsetstore.store.transaction import Transaction
from offsetstore.testing.broker import StaticBroker

GROUP = "billing"
P0, P1, P2 = (TopicPartition("payments", number) for number in range(3))
NEW = TopicPartition("payments", 7)
"""A partition that no claim of these tests knows."""

HUGE = 2**62
WAIT = 60
"""Seconds after which a thread that should have gone on has failed."""


class Write(Protocol):
    """Adds results in the transaction."""

    def __call__(self, tx: Transaction, numbers: Iterable[int]) -> None:
        """Write the numbers, in order."""
        ...


class Read(Protocol):
    """Reads results outside of any transaction."""

    def __call__(self) -> list[int]:
        """Return what is committed, sorted."""
        ...


class Give(Protocol):
    """Processes a range as a job does: writes each offset that is left as a number, and advances."""

    def __call__(self, claim: Claim, ranges: dict[TopicPartition, OffsetRange]) -> dict[TopicPartition, Decision]:
        """Return the plan it went by."""
        ...


class Stop(Exception):
    """An error of user code."""


class ContractParts:
    """The fixtures that all parts of the contract share; the first three are to be overridden."""

    @pytest.fixture
    def store(self) -> OffsetStore:
        """To be overridden: an `OffsetStore` on empty tables."""
        raise NotImplementedError

    @pytest.fixture
    def write(self) -> Write:
        """To be overridden: add results in the transaction."""
        raise NotImplementedError

    @pytest.fixture
    def read(self) -> Read:
        """To be overridden: read what is committed."""
        raise NotImplementedError

    @pytest.fixture
    def broker(self) -> StaticBroker:
        """Three partitions with a hundred records each."""
        return StaticBroker.with_topics({"payments": 3}, end=100)

    @pytest.fixture
    def claim(self, store: OffsetStore, broker: StaticBroker) -> Claim:
        """A claim that knows `P0` to `P2`, each stored at 0."""
        return store.claim(GROUP, broker)

    @pytest.fixture
    def give(self, store: OffsetStore, write: Write) -> Give:
        """Process ranges as a job does."""

        def give(claim: Claim, ranges: dict[TopicPartition, OffsetRange]) -> dict[TopicPartition, Decision]:
            def work(tx: Transaction) -> dict[TopicPartition, Decision]:
                plan = tx.lock(ranges)
                for decision in plan.values():
                    write(tx, range(decision.remaining.from_, decision.remaining.until))
                left = {tp: one.remaining for tp, one in plan.items() if one.outcome is not Outcome.SKIP}
                tx.advance(left)
                return plan

            return store.run(claim, work)

        return give


def write_in_pieces(store: OffsetStore, claim: Claim, write: Write) -> Generator[int]:
    """Write three results, one a step, in one transaction."""
    with store.transaction(claim) as tx:
        plan = tx.lock({P0: OffsetRange(0, 3)})
        for number in range(3):
            write(tx, [number])
            yield number
        tx.advance({P0: plan[P0].remaining})


def assert_untouched(store: OffsetStore, read: Read) -> None:
    """Nothing was written: no result, and each stored offset still at 0."""
    assert read() == []
    assert {row.next_offset for row in store.offsets(GROUP).values()} == {0}


class held:  # noqa: N801 - reads as the context manager that it is
    """Hold a partition's lock from another thread, which rolls back at the end."""

    def __init__(self, store: OffsetStore, claim: Claim, partition: TopicPartition) -> None:
        self._store = store
        self._claim = claim
        self._partition = partition
        self._has = threading.Event()
        self._go = threading.Event()
        self._pool = ThreadPoolExecutor(1)

    def _hold(self) -> None:
        with suppress(Stop), self._store.transaction(self._claim) as tx:
            tx.lock({self._partition: OffsetRange(0, 1)})
            self._has.set()
            self._go.wait(2 * WAIT)
            raise Stop

    def __enter__(self) -> None:
        self._done = self._pool.submit(self._hold)
        assert self._has.wait(WAIT)

    def __exit__(self, *_: object) -> None:
        self._go.set()
        self._done.result(WAIT)
        self._pool.shutdown()

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


class Stop(Exception):
    """An error of user code."""


class ContractParts:
    """What all parts of the contract share: a test has its store, and what belongs to it, as attributes.

    A subclass overrides the fixtures ``store``, ``write`` and ``read``, each by a method with another name.
    """

    store: OffsetStore
    """On empty tables."""

    broker: StaticBroker
    """Three partitions with a hundred records each."""

    write: Write
    read: Read

    @pytest.fixture(name="broker")
    def make_broker(self) -> StaticBroker:
        return StaticBroker.with_topics({"payments": 3}, end=100)

    @pytest.fixture(autouse=True)
    def furnished(self, store: OffsetStore, broker: StaticBroker, write: Write, read: Read) -> None:
        self.store, self.broker, self.write, self.read = store, broker, write, read

    @pytest.fixture
    def claim(self) -> Claim:
        """A claim that knows `P0` to `P2`, each stored at 0."""
        return self.store.claim(GROUP, self.broker)

    def give(self, claim: Claim, ranges: dict[TopicPartition, OffsetRange]) -> dict[TopicPartition, Decision]:
        """Process ranges as a job does: write each offset that is left as a number, advance, and return the plan."""

        def work(tx: Transaction) -> dict[TopicPartition, Decision]:
            plan = tx.lock(ranges)
            for decision in plan.values():
                self.write(tx, range(decision.remaining.from_, decision.remaining.until))
            left = {tp: one.remaining for tp, one in plan.items() if one.outcome is not Outcome.SKIP}
            tx.advance(left)
            return plan

        return self.store.run(claim, work)


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

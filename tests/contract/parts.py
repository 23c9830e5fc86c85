"""What the parts of the contract share: fixtures, helpers, names."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, Literal, Protocol, TypeAlias

import pytest

from offsetstore.offset_store import OffsetStore
from offsetstore.offsets import OffsetRange, TopicPartition
from offsetstore.operations.group_state import GroupState
from offsetstore.protocol.database import GroupRow, Session
from offsetstore.protocol.letters import Letter, LetterKey, NewLetter
from offsetstore.protocol.metadata import KEEP
from offsetstore.protocol.replay import Decision
from offsetstore.store.claim import Claim
from offsetstore.store.sessions import transaction
from offsetstore.store.transaction import Transaction
from offsetstore.testing.broker import StaticBroker

GROUP = "billing"
P0, P1, P2 = (TopicPartition("payments", number) for number in range(3))
NEW = TopicPartition("payments", 7)
"""A partition that no claim of these tests knows."""

HUGE = 2**62
WAIT = 60
"""Seconds after which a thread that should have gone on has failed."""


Write: TypeAlias = Callable[[Transaction, Iterable[int]], None]
"""Adds results in the transaction, in order."""
Read: TypeAlias = Callable[[], list[int]]
"""Reads the results that are committed, sorted."""


class Letters(Protocol):
    """Dead letters, as a person sees them and decides about them."""

    def dead_letters(self, group: str) -> list[Letter]:
        """The group's letters, in the order in which they are replayed."""
        ...

    def decide_letters(
        self,
        group: str,
        state: Literal["requested", "discarded"],
        keys: Collection[LetterKey] | None = None,
        *,
        forced: bool = False,
    ) -> object:
        """Have letters replayed, or give them up; by default all for which that is possible."""
        ...


class Stop(Exception):
    """An error of user code."""


class ContractParts:
    """What all parts of the contract share: a test has its store, and what belongs to it, as attributes.

    A subclass overrides the fixtures ``store``, ``write``, ``read`` and ``letters``, each by a method of another name.
    """

    store: OffsetStore
    """On empty tables."""

    broker: StaticBroker
    """Three partitions with a hundred records each."""

    write: Write
    read: Read
    letters: Letters

    @pytest.fixture(name="broker")
    def make_broker(self) -> StaticBroker:
        return StaticBroker.with_topics({"payments": 3}, end=100)

    @pytest.fixture(autouse=True)
    def furnished(self, store: OffsetStore, broker: StaticBroker, write: Write, read: Read, letters: Letters) -> None:
        self.store, self.broker, self.write, self.read, self.letters = store, broker, write, read, letters

    @pytest.fixture
    def claim(self) -> Claim:
        """A claim that knows `P0` to `P2`, each stored at 0."""
        return self.store.claim(GROUP, self.broker)

    def again(self, **how: Any) -> Claim:
        """The next start, which copies nothing to Kafka."""
        return self.store.claim(GROUP, self.broker, mirror_every=None, **how)

    def give(
        self,
        claim: Claim,
        ranges: dict[TopicPartition, OffsetRange],
        *letters: NewLetter,
        metadata: object = KEEP,
    ) -> dict[TopicPartition, Decision]:
        """Process ranges as a job does, and return the plan: write each offset that is left as a number or a letter."""
        bad = {(letter.topic_partition, letter.offset) for letter in letters}

        def work(tx: Transaction) -> dict[TopicPartition, Decision]:
            plan = tx.lock(ranges)
            for tp, decision in plan.items():
                left = range(decision.remaining.from_, decision.remaining.until)
                self.write(tx, [offset for offset in left if (tp, offset) not in bad])
            tx.letters.write(letters)
            tx.advance(tx.ranges, metadata=metadata)
            return plan

        return self.store.run(claim, work)

    def stored(self, group: str = GROUP) -> dict[TopicPartition, int]:
        """The group's offsets."""
        return {tp: row.next_offset for tp, row in self.store.offsets(group).items()}

    def owner(self, group: str = GROUP) -> GroupRow:
        """Who has the group."""
        found = self.store.owner(group)
        assert found is not None
        return found

    def group_state(self, group: str = GROUP) -> GroupState:
        """How the group is, as people read it."""
        found = self.store.group_state(group)
        assert found is not None
        return found

    def assert_untouched(self) -> None:
        """Nothing was written: no result, and each stored offset still at 0."""
        assert self.read() == []
        assert {*self.stored().values()} == {0}

    @contextmanager
    def held(self, claim: Claim, partition: TopicPartition) -> Generator[None]:
        """Hold a partition's lock from another thread, which rolls back at the end."""
        has, go = threading.Event(), threading.Event()

        def hold() -> None:
            with suppress(Stop), self.store.transaction(claim) as tx:
                tx.lock({partition: OffsetRange(0, 1)})
                has.set()
                go.wait(2 * WAIT)
                raise Stop

        with ThreadPoolExecutor(1) as pool:
            done = pool.submit(hold)
            try:
                assert has.wait(WAIT)
                yield
            finally:
                go.set()
            done.result(WAIT)

    def session(self, lock_timeout: float = WAIT) -> AbstractContextManager[Session]:
        """A transaction of someone else."""
        return transaction(self.store.database, name="someone-else", lock_timeout=lock_timeout)


def starts(claim: Claim) -> dict[TopicPartition, int]:
    """Where the claim starts."""
    assert claim.starting is not None
    return claim.starting.offsets

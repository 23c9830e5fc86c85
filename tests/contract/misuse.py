"""The order of things inside a transaction, and what is refused by name. See `tests.contract.suite`."""
# ruff: noqa: PT012 - these are tests: the name is the docstring, numbers and order are the point

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, NamedTuple, TypeAlias
from uuid import UUID

import pytest

from offsetstore.errors import (
    AdvanceMismatch,
    ConfigurationError,
    LockedTwice,
    LockFirst,
    LockInSavepoint,
    MarkBackwards,
    MarkBeyondDelivered,
    NestedTransaction,
    OffsetGap,
    ProtocolMisuse,
    Unadvanced,
    UnexpectedCommit,
)
from offsetstore.offsets import OffsetRange
from offsetstore.protocol.letters import LetterError, NewLetter
from offsetstore.protocol.marking import Marking
from offsetstore.store.claim import Claim
from offsetstore.store.transaction import Transaction
from tests.contract.parts import GROUP, NEW, P0, P1, ContractParts, Stop, Write

RANGE = OffsetRange(0, 3)
LETTER = NewLetter(P0, 0, "refused", LetterError("E", "refused"), 1, None, None)


Use: TypeAlias = Callable[[Transaction], object]
Job: TypeAlias = Callable[[Transaction, Write], object]


class Refused(NamedTuple):
    """What code does in a transaction, and how that ends."""

    error: type[Exception]
    work: Job
    words: str | None = None
    marking: Marking = "automatic"


def before(use: Use) -> Job:
    return lambda tx, _: use(tx)


def locked(use: Use) -> Job:
    """Lock `P0` and `P1` before, and write."""

    def job(tx: Transaction, write: Write) -> None:
        tx.lock({P0: RANGE, P1: RANGE})
        write(tx, [0, 1, 2])
        use(tx)

    return job


def finished(use: Use) -> Job:
    """Lock and write before, and finish."""

    def job(tx: Transaction, write: Write) -> None:
        plan = tx.lock({P0: RANGE})
        write(tx, [0, 1, 2])
        tx.finish({P0: plan[P0].remaining})
        use(tx)

    return job


def lock_in_a_savepoint(tx: Transaction) -> None:
    tx.lock({})
    with tx.connection.begin_nested():
        tx.lock({P0: RANGE})


def advance_and_take_back(tx: Transaction) -> None:
    tx.advance({P0: RANGE})
    savepoint = tx.connection.begin_nested()
    tx.advance({P1: RANGE})
    savepoint.rollback()


def take_back_and_advance(tx: Transaction) -> None:
    savepoint = tx.connection.begin_nested()
    tx.advance({P0: RANGE})
    savepoint.rollback()
    tx.advance({P1: RANGE})


def swallow(ending: str, last: str) -> Use:
    def use(tx: Transaction) -> None:
        with suppress(Exception):
            getattr(tx.connection, ending)()
        getattr(tx, last)({P0: RANGE, P1: RANGE})

    return use


def swallow_a_gap(tx: Transaction) -> None:
    with suppress(OffsetGap):
        tx.lock({P0: OffsetRange(1, 3), NEW: RANGE})


USES: Final[dict[str, Use]] = {
    "the connection": lambda tx: tx.connection,
    "advance": lambda tx: tx.advance({P0: RANGE}),
    "mark": lambda tx: tx.mark(P0, 1),
    "mark a batch": lambda tx: tx.marks.mark_batch(UUID(int=1), 0),
    "letters": lambda tx: tx.letters.write([LETTER]),
    "produce": lambda tx: tx.produce("events", None, b""),
    "write_metadata": lambda tx: tx.write_metadata(P0, "early"),
}
REFUSED: Final[dict[str, Refused]] = {
    **{
        f"{name} before the lock": Refused(LockFirst, before(use), None, "manual" if name == "mark" else "automatic")
        for name, use in USES.items()
    },
    "results after the finish": Refused(ProtocolMisuse, finished(USES["the connection"]), r"after tx\.finish"),
    "letters after the finish": Refused(ProtocolMisuse, finished(USES["letters"]), r"after tx\.finish"),
    "records after the finish": Refused(ProtocolMisuse, finished(USES["produce"]), r"after tx\.finish"),
    "lock in a savepoint": Refused(LockInSavepoint, before(lock_in_a_savepoint)),
    "lock again": Refused(LockedTwice, locked(lambda tx: tx.lock({P0: RANGE}))),
    "a gap that is swallowed": Refused(OffsetGap, before(swallow_a_gap)),
    "unadvanced": Refused(Unadvanced, locked(lambda tx: tx.advance({P0: RANGE})), "payments-1"),
    "another end": Refused(AdvanceMismatch, locked(lambda tx: tx.advance({P0: OffsetRange(0, 2)})), r"\[0, 2\)"),
    "beyond the end": Refused(AdvanceMismatch, locked(lambda tx: tx.advance({P0: OffsetRange(0, 4)}))),
    "another beginning": Refused(AdvanceMismatch, locked(lambda tx: tx.advance({P0: OffsetRange(1, 3)}))),
    "not locked": Refused(AdvanceMismatch, locked(lambda tx: tx.advance({P0: RANGE, NEW: RANGE}))),
    "twice": Refused(AdvanceMismatch, locked(lambda tx: (tx.advance({P0: RANGE}), tx.advance({P0: RANGE})))),
    "metadata elsewhere": Refused(AdvanceMismatch, locked(lambda tx: tx.write_metadata(NEW, "x")), "was not locked"),
    "an advance that was taken back": Refused(UnexpectedCommit, locked(advance_and_take_back)),
    "one that a later one hides": Refused(UnexpectedCommit, locked(take_back_and_advance)),
    **{
        f"{ending}, swallowed, {last}": Refused(UnexpectedCommit, locked(swallow(ending, last)))
        for ending in ("commit", "rollback")
        for last in ("advance", "finish")
    },
    "a mark of what is not locked": Refused(AdvanceMismatch, locked(lambda tx: tx.mark(NEW, 1)), marking="manual"),
    "a mark at the stored offset": Refused(MarkBackwards, locked(lambda tx: tx.mark(P0, 0)), "reset", "manual"),
    "a mark beyond": Refused(MarkBeyondDelivered, locked(lambda tx: tx.mark(P0, 4)), marking="manual"),
    "advance with manual marking": Refused(ProtocolMisuse, locked(USES["advance"]), r"tx\.mark", "manual"),
    "mark with automatic marking": Refused(ProtocolMisuse, locked(USES["mark"]), "automatic"),
    "a letter with manual marking": Refused(
        ProtocolMisuse, locked(lambda tx: tx.dead_letter(P0, 0, "why")), "manual", "manual"
    ),
    "a reason that is no text": Refused(
        ConfigurationError, locked(lambda tx: tx.dead_letter(P0, 0, KeyError())), "must be a text"  # pyright: ignore[reportArgumentType]
    ),
}  # fmt: skip


class MisuseContract(ContractParts):
    """The order of things inside a transaction, and what is refused by name."""

    @pytest.mark.behaviour("TX-3", "TX-6", "MARK-3")
    @pytest.mark.parametrize("name", REFUSED)
    def test_what_a_transaction_refuses_leaves_nothing(self, claim: Claim, name: str) -> None:
        row = REFUSED[name]

        def job() -> None:
            with self.store.transaction(claim, marking=row.marking) as tx:
                row.work(tx, self.write)

        with pytest.raises(row.error, match=row.words):
            job()
        self.assert_untouched()
        assert NEW not in self.stored()
        assert self.letters.dead_letters(GROUP) == []
        assert set(self.store.metadata(GROUP).values()) == {None}

    @pytest.mark.behaviour("TX-3")
    def test_a_transaction_without_partitions_writes_its_results_and_an_empty_one_is_fine(self, claim: Claim) -> None:
        with self.store.transaction(claim):
            pass
        with self.store.transaction(claim) as tx:
            assert tx.lock({}) == {}
            self.write(tx, [5])
        assert self.read() == [5]

    @pytest.mark.behaviour("TX-3")
    def test_a_transaction_inside_a_transaction_is_refused_and_the_next_one_works(self, claim: Claim) -> None:
        with pytest.raises(NestedTransaction), self.store.transaction(claim) as tx:
            tx.lock({P0: RANGE})
            self.write(tx, [0])
            with self.store.transaction(claim):
                pass

        self.assert_untouched()
        self.give(claim, {P0: OffsetRange(0, 2)})
        assert self.read() == [0, 1]

    @pytest.mark.behaviour("TX-3")
    def test_a_transaction_is_used_in_its_block_and_begun_once(self, claim: Claim) -> None:
        tx = self.store.transaction(claim)
        with pytest.raises(LockFirst):
            tx.lock({P0: RANGE})
        with tx:
            tx.lock({})
        with pytest.raises(LockFirst):
            _ = tx.connection
        with pytest.raises(ProtocolMisuse, match="only once"), tx:
            pass
        wrong: Any = "sometimes"
        with pytest.raises(ConfigurationError):
            self.store.transaction(claim, marking=wrong)

    @pytest.mark.behaviour("TX-3")
    def test_results_that_a_savepoint_took_back_are_the_only_ones_missing(self, claim: Claim) -> None:
        with self.store.transaction(claim) as tx:
            tx.lock({P0: RANGE})
            with pytest.raises(Stop), tx.connection.begin_nested():
                self.write(tx, [666])
                raise Stop
            with tx.connection.begin_nested():
                self.write(tx, [0, 1, 2])
                tx.advance(tx.ranges)

        assert (self.read(), self.stored()[P0]) == ([0, 1, 2], 3)

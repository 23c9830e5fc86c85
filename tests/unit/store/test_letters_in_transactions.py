"""Letters in a transaction: only of records that it passes, and of all of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from offsetstore import Claim, OffsetRange, TopicPartition, Transaction
from offsetstore.errors import AdvanceMismatch, LockFirst, ProtocolMisuse
from offsetstore.protocol.letters import LetterError, NewLetter
from offsetstore.testing import InMemoryOffsetStore

P0, P1 = (TopicPartition("payments", number) for number in range(2))


@pytest.fixture
def claim() -> Iterator[Claim]:
    with InMemoryOffsetStore() as store:
        yield store.claim("billing", topics=["payments"])


def letter(offset: int, tp: TopicPartition = P0) -> NewLetter:
    return NewLetter(tp, offset, "refused", LetterError("RowsRefused", "refused"), 1, None, None)


@pytest.mark.behaviour("DLQ-2")
@pytest.mark.parametrize(("tp", "offset"), [(P0, 1), (P0, 5), (P1, 3)])
def test_a_letter_is_of_a_record_that_is_passed(claim: Claim, tp: TopicPartition, offset: int) -> None:
    def write(tx: Transaction) -> None:
        tx.lock({P0: OffsetRange(0, 5)})
        tx.write_letters([letter(offset, tp)])

    claim.run(lambda tx: tx.advance({one: plan.remaining for one, plan in tx.lock({P0: OffsetRange(0, 2)}).items()}))
    with pytest.raises(AdvanceMismatch, match="does not pass"):
        claim.run(write)


def test_letters_are_written_between_lock_and_finish(claim: Claim) -> None:
    def write(tx: Transaction) -> None:
        tx.lock({P0: OffsetRange(0, 5)})
        tx.finish({P0: OffsetRange(0, 5)})
        tx.write_letters([letter(0)])

    with pytest.raises(LockFirst):
        claim.run(lambda tx: tx.write_letters([letter(0)]))
    with pytest.raises(ProtocolMisuse, match="was called after"):
        claim.run(write)

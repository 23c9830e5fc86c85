"""Records that wait behind a dead one of their key, as the job writes them; the store is in memory."""

from __future__ import annotations

from collections.abc import Collection, Generator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import Mock

import pytest

from offsetstore import Claim, DeadLetters, LetterKey, OffsetRange, TopicPartition, Transaction
from offsetstore.errors import CommitUnknown, RowsRefused
from offsetstore.processing.letters import Recovery
from offsetstore.processing.plan import BatchMetadata
from offsetstore.processing.unit import Ranges
from offsetstore.protocol.letters import digest
from offsetstore.protocol.starting import StartPolicy
from offsetstore.store.claim import ClaimRequest
from offsetstore.store.fleet import join
from offsetstore.testing.broker import StaticBroker
from offsetstore.testing.memory import InMemoryOffsetStore
from tests.support.careful_part import FakePart, Records, Row, written
from tests.unit.processing.conftest import Losing

GROUP = "billing"
P0 = TopicPartition("payments", 0)
LOG = ["k 0", "j 1", "k 2", "- 3", "k 4", "j 5", "k 6", "k 7"]
"""Each record's key and number; ``-`` is no key, and 6 makes no row, but waits like any other."""


def write_rows(work: Any, rows: Sequence[Row]) -> None:
    work.connection.extend("results", [LOG[offset] for _, offset in rows])


class Job:
    """Writes batches of the log carefully."""

    def __init__(self, claim: Claim, *bad: str, sequence: Any = "key", compacted: Collection[int] = ()) -> None:
        self.bad = bad
        self.compacted = compacted
        self.recovery = Recovery(claim, DeadLetters(sequence=sequence), BatchMetadata(claim, None))

    def is_careful(self) -> bool:
        return self.recovery.is_careful({P0: OffsetRange(0, len(LOG))})

    def write(self, begin: int, end: int) -> None:
        records = Records(
            rejects={(0, offset): "bad" for offset, text in enumerate(LOG) if text in self.bad},
            rowless=[(0, 6)],
            missing=[(0, offset) for offset in self.compacted],
        )

        @contextmanager
        def compute(ranges: Ranges, *, suspects: Collection[Any] = ()) -> Generator[FakePart]:
            [range_] = ranges.values()
            keys: Any = {
                number: digest(P0, LOG[range_.from_ + number].split()[0].encode())
                for number in range(range_.size)
                if not LOG[range_.from_ + number].startswith("-")
            }
            yield FakePart(ranges, write_rows, records, keys)

        written(self.recovery, 0, {P0: OffsetRange(begin, end)}, compute)


def letters(store: InMemoryOffsetStore) -> dict[int, str]:
    return {letter.offset: letter.cause for letter in store.dead_letters(GROUP)}


@pytest.mark.behaviour("DLQ-11")
def test_later_records_of_a_dead_one_s_key_wait_and_no_others(store: InMemoryOffsetStore, claim: Claim) -> None:
    Job(claim, "k 2", "- 3").write(0, 8)
    assert store.rows("results") == ["k 0", "j 1", "j 5"]
    assert letters(store) == {2: "rejected", 3: "rejected", 4: "sequence", 6: "sequence", 7: "sequence"}


@pytest.mark.behaviour("DLQ-11")
def test_they_wait_in_later_batches_and_after_a_restart_too(store: InMemoryOffsetStore, claim: Claim) -> None:
    job = Job(claim, "k 0")
    job.write(0, 1)
    assert job.is_careful()
    job.write(1, 3)
    restarted = Job(store.claim(GROUP, topics=["payments"]))
    assert restarted.is_careful()
    restarted.write(3, 8)
    assert store.rows("results") == ["j 1", "- 3", "j 5"]
    assert letters(store) == {0: "rejected", 2: "sequence", 4: "sequence", 6: "sequence", 7: "sequence"}


@pytest.mark.behaviour("DLQ-11")
def test_they_wait_until_the_last_letter_of_the_key_is_settled(store: InMemoryOffsetStore, claim: Claim) -> None:
    job = Job(claim, "k 0")
    job.write(0, 3)
    store.decide_letters(GROUP, "discarded", [LetterKey(P0, 0)])
    job.write(3, 5)
    assert letters(store) == {0: "rejected", 2: "sequence", 4: "sequence"}, "2 is the head now"
    store.decide_letters(GROUP, "discarded")
    job.write(5, 8)
    assert store.rows("results") == ["j 1", "- 3", "j 5", "k 7"]


@pytest.mark.behaviour("DLQ-11", "DLQ-10")
def test_a_reset_before_the_dead_record_opens_its_key_again(store: InMemoryOffsetStore, claim: Claim) -> None:
    Job(claim, "k 2").write(0, 8)
    store.reset(GROUP, {P0: 1}, reason="it is mended")
    again = Job(store.claim(GROUP, topics=["payments"]))
    assert again.is_careful(), "for the letters of records that Kafka may have lost"
    again.write(1, 8)
    assert store.rows("results")[-5:] == ["k 2", "- 3", "k 4", "j 5", "k 7"]
    assert [one.state for one in store.dead_letters(GROUP)] == ["superseded"] * 4


@pytest.mark.behaviour("DLQ-11", "DLQ-14")
@pytest.mark.parametrize("until", [4, 5])
def test_after_a_reset_a_letter_whose_record_was_compacted_away_stays_and_its_key_waits(
    store: InMemoryOffsetStore, claim: Claim, until: int
) -> None:
    Job(claim, "k 2").write(0, until)
    store.reset(GROUP, {P0: 0}, reason="it is mended")
    again = Job(store.claim(GROUP, topics=["payments"]), compacted=[2])
    again.write(0, until)
    assert store.rows("results") == ["k 0", "j 1", "- 3", "k 0", "j 1", "- 3"], "what comes before it does not wait"
    again.write(until, 8)
    assert store.rows("results")[-1:] == ["j 5"]
    assert letters(store) == {2: "rejected", 4: "sequence", 6: "sequence", 7: "sequence"}
    assert {one.state for one in store.dead_letters(GROUP)} == {"dead"}


@pytest.mark.behaviour("DLQ-17")
@pytest.mark.parametrize("sequence", [None, "no dead letters"])
def test_letters_are_overtaken_by_a_run_for_which_nothing_waits(
    store: InMemoryOffsetStore, claim: Claim, sequence: str | None
) -> None:
    def in_sequence() -> dict[int, bool]:
        return {one.offset: one.is_in_sequence for one in store.dead_letters(GROUP)}

    Job(claim, "k 0").write(0, 3)
    job = Job(store.claim(GROUP, topics=["payments"]))
    assert job.is_careful()
    job.write(3, 4)
    assert in_sequence() == {0: True, 2: True}

    without = store.claim(GROUP, topics=["payments"])
    if sequence is None:
        Job(without, sequence=None).write(4, 5)
    else:
        without.run(lambda tx: tx.advance({P0: tx.lock({P0: OffsetRange(4, 5)})[P0].remaining}))
    assert in_sequence() == {0: False, 2: False}

    restarted = Job(store.claim(GROUP, topics=["payments"]))
    assert not restarted.is_careful(), "nothing waits behind them any longer"
    restarted.write(5, 8)
    assert store.rows("results")[-2:] == ["j 5", "k 7"]


@pytest.mark.behaviour("DLQ-17")
def test_a_transaction_of_the_job_s_own_overtakes_letters_of_the_same_run(
    store: InMemoryOffsetStore, claim: Claim
) -> None:
    Job(claim, "k 0").write(0, 3)

    def refused(tx: Transaction) -> None:
        tx.lock({P0: OffsetRange(3, 4)})
        raise RowsRefused("rolled back")

    with pytest.raises(RowsRefused):
        claim.run(refused)
    assert {one.is_in_sequence for one in store.dead_letters(GROUP)} == {True}
    claim.run(lambda tx: tx.advance({P0: tx.lock({P0: OffsetRange(3, 4)})[P0].remaining}))
    assert {one.is_in_sequence for one in store.dead_letters(GROUP)} == {False}


@pytest.mark.behaviour("DLQ-11")
def test_a_new_run_of_the_query_knows_the_letters_of_a_commit_without_an_answer(
    store: InMemoryOffsetStore, claim: Claim, losing: Losing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The look-up has found out nothing, and the query has ended; it is started again in the same process."""
    job = Job(claim, "k 0")
    assert not job.is_careful()
    with claim.transaction() as tx:
        tx.lock({P0: OffsetRange(0, 0)})  # so that the batch has one COMMIT
    unknown = Mock(side_effect=CommitUnknown("no look-up succeeded"))
    monkeypatch.setattr("offsetstore.store.transaction.resolve_commit", unknown)
    losing.next(happens=True)
    with pytest.raises(CommitUnknown):
        job.write(0, 1)

    job.recovery.forget()
    assert job.is_careful()
    job.write(1, 3)
    assert letters(store) == {0: "rejected", 2: "sequence"}


@pytest.mark.behaviour("CONS-3", "DLQ-11")
def test_a_letter_that_another_member_has_written_keeps_later_records_of_its_key_waiting(
    store: InMemoryOffsetStore,
) -> None:
    broker = StaticBroker.with_topics({"payments": 1}, end=100)
    request = ClaimRequest(GROUP, broker, ("payments",), StartPolicy(), "refuse", 30.0, GROUP)
    one, other = join(store, request), join(store, request)
    job = Job(one)
    one.assign([P0])
    job.write(0, 2)
    other.assign([P0])
    Job(other, "k 2").write(2, 4)
    one.assign([P0])

    assert job.is_careful()
    job.write(4, 8)

    assert store.rows("results") == ["k 0", "j 1", "- 3", "j 5"]
    assert sorted(letter.offset for letter in store.dead_letters(GROUP)) == [2, 4, 6, 7]
    one.close()
    other.close()

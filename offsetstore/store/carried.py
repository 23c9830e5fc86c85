"""What a transaction may carry beside results: dead letters, and records for the outbox."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from offsetstore.errors import AdvanceMismatch, ProtocolMisuse, SinkError
from offsetstore.offsets import TopicPartition
from offsetstore.protocol.arguments import as_offset
from offsetstore.protocol.database import HistoryEvent
from offsetstore.protocol.letters import (
    ChosenLetter,
    Failed,
    FailedReplay,
    Letter,
    LetterKey,
    NewLetter,
    Payload,
    check_reject,
    rejected,
    writable,
)
from offsetstore.protocol.outbox import OutboxRecord
from offsetstore.store.locking import Locks


class Letters:
    """The dead letters of one transaction, and the records that it passes over.

    :param sequences: letters for which later records of their keys wait.
    """

    def __init__(self, locks: Locks) -> None:
        self._locks = locks
        self.sequences: list[tuple[TopicPartition, int]] = []

    def write(self, letters: Sequence[NewLetter]) -> None:
        """Keep these records as dead letters, in this transaction, which passes over them.

        :raises LockFirst: before the lock.
        :raises AdvanceMismatch: a record that is not in what remains of its partition.
        :raises ProtocolMisuse: after the transaction's `finish`.
        :raises SinkError: the database refuses them, or a trigger has left one out.
        """
        locks = self._locks
        session, ranges = locks.writing("tx.letters.write"), locks.remaining
        for letter in letters:
            range_ = ranges.get(letter.topic_partition)
            if range_ is None or not range_.from_ <= letter.offset < range_.until:
                raise AdvanceMismatch(
                    "a dead letter names a record that this transaction does not pass",
                    topic_partition=letter.topic_partition,
                    found=f"offset {letter.offset}",
                    expected=str(range_ or "no record of this partition"),
                )
        if not letters:
            return
        locks.has_written = True
        self.sequences += [(letter.topic_partition, letter.offset) for letter in letters if letter.sequence is not None]
        written = session.write_letters(locks.claim.group, letters)
        _check_count("not all dead letters could be written", written, len(letters), "letters", "dead_letters")

    def dead_letter(
        self, tp: TopicPartition, offset: int, reason: str, code: str | None, payload: Payload | None
    ) -> None:
        """Keep a record that a user's function names as a dead letter; see `Work.dead_letter`."""
        self._locks.locked("tx.dead_letter")
        if self._locks.is_manual:
            raise ProtocolMisuse(
                "tx.dead_letter was called with manual marking, which may not pass the record",
                topic_partition=tp,
                next_step="Use automatic marking.",
            )
        self._locks.outside_savepoint(
            "tx.dead_letter", "Call it after the savepoint, whose rollback would take the letter along."
        )
        check_reject(tp, reason, code)
        error = rejected(reason, code)
        self.write([NewLetter(tp, as_offset("offset", offset), "rejected", error, 0, None, payload)])

    def lock(self, letters: Sequence[Letter]) -> bool:
        """Lock letters that are to be replayed; return whether all of them are as they were read."""
        session = self._locks.locked("tx.letters.lock")
        self._locks.is_replay = True
        locked = session.lock_letters(self._locks.claim.group, [letter.key for letter in letters])
        # A person may have decided about a letter since it was read: the replay is then planned again (decision 0036).
        return all(locked.get(letter.key) == ChosenLetter.of(letter) for letter in letters)

    def settle(self, replayed: Sequence[Letter], failed: Mapping[LetterKey, FailedReplay]) -> None:
        """Mark locked letters: as replayed if their rows are written, as dead again if not.

        :raises SinkError: not all of them could be marked.
        """
        session, claim = self._locks.locked("tx.letters.settle"), self._locks.claim
        done = (
            session.mark_replayed(claim.group, [letter.key for letter in replayed], actor=claim.owner)
            if replayed
            else 0
        )
        back = session.return_letters(claim.group, failed, actor=claim.owner) if failed else 0
        if (done, back) != (len(replayed), len(failed)):
            raise SinkError(
                "not all dead letters could be marked; nothing was written",
                found=f"{done} and {back}",
                expected=f"{len(replayed)} replayed, {len(failed)} dead again",
                next_step="Look for a trigger or a rule on the table dead_letters.",
            )

    def write_failures(self, failures: Mapping[tuple[TopicPartition, int], Failed]) -> None:
        """Write the failed attempts at records that are not stored yet. The counts are absolute: a retry is safe."""
        session = self._locks.locked("tx.letters.write_failures")
        session.write_failures(self._locks.claim.group, failures)
        for tp, offset in failures:
            self._locks.terms[tp].note_failure(offset)

    def note_skipped(self, reasons: Mapping[tuple[TopicPartition, int], str]) -> None:
        """Write to the history that this transaction passes over these records and keeps nothing of them."""
        session, claim = self._locks.locked("tx.letters.note_skipped"), self._locks.claim
        events = [
            HistoryEvent("skip", tp, offset, offset + 1, claim.token, claim.owner, writable(reason))
            for (tp, offset), reason in sorted(reasons.items())
        ]
        session.append_history(claim.group, events)


def put_into_outbox(locks: Locks, records: Sequence[OutboxRecord]) -> int:
    """Put a transaction's records into the outbox, in their order; return how many. See `Work.produce`."""
    session = locks.writing("tx.produce")
    if not records:
        return 0
    locks.has_written = True
    written = session.write_outbox(locks.claim.group, records)
    _check_count("not all records could be put into the outbox", written, len(records), "records", "outbox")
    return written


def _check_count(what: str, written: int, expected: int, of: str, table: str) -> None:
    # A trigger may leave out what is inserted, without an error.
    if written != expected:
        raise SinkError(
            f"{what}; nothing was written",
            found=f"{written} {of}",
            expected=f"{expected}",
            next_step=f"Look for a trigger or a rule on the table {table}.",
        )

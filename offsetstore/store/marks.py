"""What a transaction marks: offsets with manual marking, batches of a stateful query, and turns in a fleet."""

from __future__ import annotations

from typing import Final
from uuid import UUID

from offsetstore.errors import AdvanceMismatch, ProtocolMisuse
from offsetstore.offsets import OffsetRange, TopicPartition
from offsetstore.protocol.marking import Position, check_mark
from offsetstore.protocol.metadata import KEEP, Keep, Text, dump
from offsetstore.protocol.replay import Decision, Outcome
from offsetstore.store.locking import Locks

_IN_A_FLEET: Final = (
    "A consumer stores the end of each flush. Keep nothing in memory for a later one, since partitions come and go: "
    "write it to a table of your own, with work.connection."
)


class Marks:
    """The marks of one transaction.

    ``offsets`` are those to store at its end, ``texts`` their metadata, and ``batch`` the query and batch that it has
    marked, or found marked.
    """

    def __init__(self, locks: Locks) -> None:
        self._locks = locks
        self.offsets: dict[TopicPartition, int] = {}
        self.texts: dict[TopicPartition, Text] = {}
        self.batch: tuple[UUID, int] | None = None

    def mark(self, tp: TopicPartition, next_offset: int, *, metadata: object | Keep = KEEP) -> None:
        """Store this offset when the block ends; see `Work.mark`."""
        locks = self._locks
        session = locks.locked("tx.mark")
        if not locks.is_manual:
            raise ProtocolMisuse(
                "tx.mark was called with automatic marking",
                next_step=_IN_A_FLEET
                if locks.claim.is_member
                else 'Make the transaction or the sink with marking="manual", or call tx.advance.',
            )
        locks.writing("tx.mark")
        if tp not in locks.decisions:
            raise AdvanceMismatch(
                "tx.mark names a partition that was not locked",
                topic_partition=tp,
                expected=", ".join(map(str, locks.decisions)) or "no partition: none was locked",
                next_step="Lock it in tx.lock; an empty range at the end of what was delivered will do.",
            )
        earlier = self.offsets.get(tp)
        # The stored offset itself is refused: whoever marks the last offset instead of the next finds out at the first
        # record (decision 0034).
        above = locks.rows[tp].next_offset if earlier is None else earlier - 1
        next_offset = check_mark(tp, next_offset, above=above, delivered=_delivered(locks.decisions[tp]))
        if not isinstance(metadata, Keep):
            self.texts |= dump(locks.claim.formats, [tp], metadata)
        else:
            self.texts.pop(tp, None)  # it was given for an earlier mark
        # ROLLBACK TO takes the count back with the results: such a block ends in UnexpectedCommit (decision 0034).
        session.count_mark()
        self.offsets[tp] = next_offset

    def ranges(self) -> dict[TopicPartition, OffsetRange]:
        """The ranges that end at the marks.

        A partition without a mark is advanced by nothing: if the answer to COMMIT is lost, its row shows the outcome.
        """
        ranges: dict[TopicPartition, OffsetRange] = {}
        for tp, decision in self._locks.decisions.items():
            if tp in self.offsets or decision.outcome is not Outcome.SKIP:
                stored = self._locks.rows[tp].next_offset
                ranges[tp] = OffsetRange(stored, self.offsets.get(tp, stored))
        return ranges

    def positions(self) -> dict[TopicPartition, Position]:
        """How far the job has come, once the transaction is committed."""
        rows = self._locks.rows
        return {
            tp: Position(self.offsets.get(tp, rows[tp].next_offset), _delivered(decision))
            for tp, decision in self._locks.decisions.items()
        }

    def mark_batch(self, query_id: UUID, batch_id: int) -> bool:
        """Record that this transaction holds a stateful query's results of a batch, even if the batch has no ranges.

        :return: ``False`` if the results already hold this batch or a later one of that query: write nothing then.
        :raises LockFirst: before the lock.
        :raises LockInSavepoint: ``ROLLBACK TO`` would drop the mark and keep the advance.
        """
        session = self._locks.locked("tx.marks.mark_batch")
        self._locks.outside_savepoint("tx.marks.mark_batch", "Call it right after tx.lock.")
        self.batch = (query_id, batch_id)
        return session.mark_batch(self._locks.claim.group, query_id, batch_id)

    def take_turn(self, name: UUID, every: float) -> bool:
        """Whether this transaction does what the members of a fleet do in turn, once in ``every`` seconds.

        :param name: what is done.
        :return: ``False`` if another member is doing it, or has done it less than ``every`` seconds ago.
        :raises LockFirst: before the lock.
        """
        return self._locks.locked("tx.marks.take_turn").take_turn(self._locks.claim.group, name, every)


def _delivered(decision: Decision) -> int:
    """The end of the records that the job has been given of the partition, if the block ends well."""
    return max(decision.stored, decision.range.until)

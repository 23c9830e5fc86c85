"""What remains of a batch: read from the stored offsets with nothing locked, before anything is computed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from offsetstore.errors import TopicRecreated
from offsetstore.offsets import OffsetRange
from offsetstore.protocol.replay import Decision, Outcome, decide

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from offsetstore.offsets import StoredOffset, TopicPartition
    from offsetstore.store.claim import Claim

Plan: TypeAlias = "dict[TopicPartition, Decision]"
Ranges: TypeAlias = "Mapping[TopicPartition, OffsetRange]"


class PlanOutdated(Exception):
    """What was planned or computed no longer holds: the transaction is rolled back, and the batch planned again."""

    def __init__(self, why: str = "the stored offsets changed") -> None:
        super().__init__(why)


@dataclass(frozen=True, slots=True)
class Planned:
    """The rows as they were read without a lock, and what follows from them for each range.

    A partition without a row gets one that starts at its range.
    """

    rows: dict[TopicPartition, StoredOffset]
    plan: Plan

    @classmethod
    def of(cls, claim: Claim, ranges: Mapping[TopicPartition, OffsetRange]) -> Planned:
        """Read the stored offsets, and plan."""
        rows = claim.offsets()
        plan = {
            tp: decide(rows[tp].next_offset if tp in rows else range_.from_, range_) for tp, range_ in ranges.items()
        }
        return cls(rows, plan)

    def remaining(self) -> dict[TopicPartition, OffsetRange]:
        """What is still to be written of each partition; those of which nothing is, are left out."""
        return {tp: decision.remaining for tp, decision in self.plan.items() if decision.outcome is not Outcome.SKIP}

    def up_to(self, part: Mapping[TopicPartition, OffsetRange]) -> Planned:
        """Plan the first records alone, ``part`` of what remains; partitions of which it has none are left out."""
        plan = {
            tp: decide(self.plan[tp].stored, OffsetRange(self.plan[tp].range.from_, range_.until))
            for tp, range_ in part.items()
        }
        return Planned(self.rows, plan)

    def is_to_be_computed(self, claim: Claim) -> bool:
        """Whether there is a point in computing: not for a stale claim, a gap, or where nothing is left.

        The transaction has the last word on each of these.
        """
        ours = all(tp not in self.rows or self.rows[tp].token == claim.token for tp in self.plan)
        outcomes = {decision.outcome for decision in self.plan.values()}
        return ours and Outcome.GAP not in outcomes and outcomes != {Outcome.SKIP}


def create_rows(claim: Claim, planned: Planned) -> None:
    """Make the rows of partitions that the claim did not know, each at its range's beginning.

    Then no task has to share the group's row, and a partition whose first record is refused can be reset.
    """
    unknown = {tp: decision.range.from_ for tp, decision in planned.plan.items() if tp not in planned.rows}
    if unknown:
        # Nothing is left of an empty range, so that there is nothing to advance.
        empty = {tp: OffsetRange(offset, offset) for tp, offset in unknown.items()}
        claim.run(lambda tx: tx.lock(empty))


def check_topics(
    claim: Claim, rows: Mapping[TopicPartition, StoredOffset], partitions: Iterable[TopicPartition]
) -> None:
    """Compare the topics' ids with the stored ones, once a batch.

    A topic that was recreated in mid run has other records under the same offsets. Asked after computing, when
    everything was read, and before BEGIN, so that no lock waits for Kafka.

    :raises TopicRecreated: nothing was written.
    """
    if claim.broker is None:
        return
    # A partition that was created in mid run has no id in its row; the others of its topic have.
    topics = {tp.topic for tp in partitions}
    known = {tp.topic: row.topic_id for tp, row in rows.items() if tp.topic in topics and row.topic_id}
    for topic, found in claim.broker.topic_ids(sorted(known)).items():
        if found and known[topic] != found:
            raise TopicRecreated(
                f"topic {topic!r} was deleted and created again while the query ran; nothing was written",
                found=f"topic id {found}",
                expected=f"topic id {known[topic]}",
            )

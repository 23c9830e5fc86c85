"""What remains to be written of a batch: planned from the stored offsets, before anything is locked or computed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from offsetstore.errors import TopicRecreated
from offsetstore.offsets import OffsetRange, StoredOffset, TopicPartition
from offsetstore.processing.pause import read_offsets
from offsetstore.processing.unit import Decisions, Stopwatch, Unit, Written, commit, only_locks
from offsetstore.protocol import failpoints
from offsetstore.protocol.replay import Outcome, decide
from offsetstore.store.claim import Claim


@dataclass(frozen=True, slots=True)
class Plan:
    """The stored offsets, read without a lock, and the decision for each range.

    A partition without a row is planned from the beginning of its range.
    """

    stored: dict[TopicPartition, StoredOffset]
    decisions: Decisions

    @classmethod
    def of(
        cls,
        claim: Claim,
        ranges: Mapping[TopicPartition, OffsetRange],
        delivered: Mapping[TopicPartition, int] | None = None,
    ) -> Plan:
        """Read the stored offsets, and plan.

        :param delivered: where it differs from what is stored, with manual marking or a buffer.
        :raises GroupPaused: the group is paused.
        """
        stored = read_offsets(claim)
        bases = {tp: row.next_offset for tp, row in stored.items()} | dict(delivered or {})
        decisions = {tp: decide(bases.get(tp, range_.from_), range_) for tp, range_ in ranges.items()}
        return cls(stored, decisions)

    def remaining(self) -> dict[TopicPartition, OffsetRange]:
        """The range still to be written of each partition that has any."""
        return {
            tp: decision.remaining for tp, decision in self.decisions.items() if decision.outcome is not Outcome.SKIP
        }

    def up_to(self, part: Mapping[TopicPartition, OffsetRange]) -> Plan:
        """Limit the plan to ``part``, the first of the remaining records; partitions not in it are left out."""
        decisions = {
            tp: decide(self.decisions[tp].stored, OffsetRange(self.decisions[tp].range.from_, range_.until))
            for tp, range_ in part.items()
        }
        return Plan(self.stored, decisions)

    def is_worth_computing(self, claim: Claim) -> bool:
        """Whether to compute at all: not for a stale claim, after a gap, or if nothing remains.

        The transaction has the last word on each of these.
        """
        ours = all(tp not in self.stored or self.stored[tp].token == claim.token for tp in self.decisions)
        outcomes = {decision.outcome for decision in self.decisions.values()}
        return ours and Outcome.GAP not in outcomes and outcomes != {Outcome.SKIP}


def create_rows(claim: Claim, plan: Plan) -> None:
    """Create the missing rows of partitions, each at the beginning of its range.

    Then no task needs a share lock on the group's row, and a partition whose first record is refused can be reset.
    """
    unknown = {tp: decision.range.from_ for tp, decision in plan.decisions.items() if tp not in plan.stored}
    if unknown:
        commit(claim, Unit(only_locks(unknown)))


def commit_plan(claim: Claim, plan: Plan, unit: Unit, watch: Stopwatch) -> Written | None:
    """Do a unit's work for a batch, after a last look at the topics.

    :raises TopicRecreated: see `check_topics`.
    :raises PlanOutdated, RowsRefused: see `commit`.
    """
    if unit.rows is not None:
        check_topics(claim, plan.stored, plan.decisions)
        watch.lap("compute")
    failpoints.reach("before_lock")
    return commit(claim, unit, watch)


def check_topics(
    claim: Claim, stored: Mapping[TopicPartition, StoredOffset], partitions: Iterable[TopicPartition]
) -> None:
    """Compare the topics' ids with the stored ones, once per batch.

    A topic recreated while the job runs has other records at the same offsets. Call this after computing, when
    everything has been read, and before BEGIN, so no lock waits for Kafka.

    :raises TopicRecreated: a topic has another id; nothing was written.
    """
    if claim.broker is None:
        return
    # The row of a partition created while the job runs has no id; the other rows of its topic have one.
    topics = {tp.topic for tp in partitions}
    known = {tp.topic: row.topic_id for tp, row in stored.items() if tp.topic in topics and row.topic_id}
    for topic, found in claim.broker.topic_ids(sorted(known)).items():
        if found and known[topic] != found:
            raise TopicRecreated(
                f"topic {topic!r} was deleted and created again while the query ran; nothing was written",
                found=f"topic id {found}",
                expected=f"topic id {known[topic]}",
            )

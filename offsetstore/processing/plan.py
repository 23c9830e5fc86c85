"""The plan of a batch: what remains to be written, decided before anything is locked or computed; and its metadata.

The plan of a paused group waits, with no transaction open and nothing locked.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Final, TypeAlias, TypeVar, cast

from offsetstore.errors import MetadataError, OffsetStoreError, TopicRecreated
from offsetstore.offsets import OffsetRange, Pause, StoredOffset, TopicPartition
from offsetstore.processing.delivery import CountedRows
from offsetstore.processing.unit import Decisions, Ranges, Stopwatch, Unit, Written, commit, only_locks
from offsetstore.protocol.database import GroupRow
from offsetstore.protocol.events import PauseChanged
from offsetstore.protocol.metadata import Keep, Text, dump
from offsetstore.protocol.replay import Outcome, decide
from offsetstore.runtime import failpoints
from offsetstore.runtime.functions import call, without_frames
from offsetstore.store.claim import Claim
from offsetstore.store.sessions import deciding, end_pause, read
from offsetstore.store.term import Terms

INTERVAL: Final = 1.0
"""Seconds between two looks at a paused group."""

# The clocks of the database and of this process may differ.
_GRACE: Final = timedelta(minutes=1)
_WARN: Final = 60.0
"""Seconds between two warnings that the database does not answer."""

_T = TypeVar("_T")

_log = logging.getLogger("offsetstore")


class GroupPaused(Exception):
    """The group is paused: nothing was computed or written."""

    def __init__(self, pause: Pause) -> None:
        super().__init__(str(pause))
        self.pause = pause


def read_unless_paused(claim: Claim) -> dict[TopicPartition, StoredOffset]:
    """Read the group's rows, and whether it is paused.

    :raises GroupPaused: it is paused.
    :raises StaleClaim: the group was renamed.
    """
    # One round trip, since each batch asks: so a pause costs nothing (decision 0035).
    owner, rows = claim.read(lambda session: session.read_group(claim.group))
    if owner is None or owner.token != claim.group_token:
        # Only a rename leaves no rows; after any other takeover, the rows' tokens show that the claim is stale.
        if not rows:
            commit(claim, Unit())  # raises StaleClaim, or else the read was outdated
        return rows
    if owner.ended is not None:
        _record_end(claim)
    if owner.pause is not None:
        raise GroupPaused(owner.pause)
    return rows


def is_paused(claim: Claim) -> bool:
    """Whether the group is paused and still belongs to the claim; asked once, without retries."""
    owner = _own_row(claim)
    return owner is not None and owner.pause is not None


def when_not_paused(claim: Claim, work: Callable[[], _T], sleep: Callable[[float], None]) -> _T:
    """Call ``work``; if the group is paused, wait until it is resumed, and call ``work`` again.

    The wait also ends if the claim is stale: ``work`` then raises `StaleClaim`. While the database can't be reached, or
    lacks our tables, the wait goes on; if `Pause.until` is set, until a minute after that.

    :param work: raises `GroupPaused` before it computes anything.
    :param sleep: sleeps this many seconds; raises if the job is being stopped.
    """
    while True:
        try:
            return work()
        except GroupPaused as paused:
            pause = without_frames(paused).pause
        _wait(claim, pause, sleep)


def _wait(claim: Claim, pause: Pause, sleep: Callable[[float], None]) -> None:
    claim.observers.on(PauseChanged(group=claim.group, pause=pause))
    warned = -math.inf
    while True:
        sleep(INTERVAL)
        try:
            owner = _own_row(claim)
        # The group may be paused because the database is restarted, moved or restored: an outage ends no wait.
        except Exception as error:  # noqa: BLE001
            without_frames(error)
            if pause.until is not None and datetime.now(UTC) > pause.until + _GRACE:
                claim.observers.on(PauseChanged(group=claim.group, pause=None))
                return  # the batch meets the error, and has retries
            if time.monotonic() > warned + _WARN:
                warned = time.monotonic()
                _log.warning("group %r is paused, and the database does not answer: %s", claim.group, _name(error))
            continue
        if owner is None:
            return
        if owner.pause is None:
            claim.observers.on(PauseChanged(group=claim.group, pause=None))
            return


def _own_row(claim: Claim) -> GroupRow | None:
    """The group's row, read without retries; ``None`` if the claim is stale.

    If its pause has ended by itself, the history gets its line.
    """
    owner = read(claim.database, lambda session: session.group(claim.group))
    if owner is None or owner.token != claim.group_token:
        return None
    if owner.ended is not None:
        _record_end(claim)
    return owner


def _name(error: Exception) -> str:
    return str(error) if isinstance(error, OffsetStoreError) else type(error).__name__


def _record_end(claim: Claim) -> None:
    """Record in the history that the pause ended by itself; if that fails, the next look tries again."""
    # Reads write nothing, so the history gets its line from the first one that looks and may write (decision 0061).
    group, again = claim.group, "The next batch tries again."
    try:
        with deciding(claim.database, group, name="pause", lock_timeout=INTERVAL, again=again) as session:
            session.lock_group(group)
            end_pause(session, group, session.group(group), claim.owner)
    except Exception as error:  # noqa: BLE001 - a missing line in the history must not stop the batch
        _log.warning("could not record that the pause of group %r has ended: %s", group, _name(without_frames(error)))


@dataclass(frozen=True, slots=True)
class DeliveryPlan:
    """The stored offsets, read without a lock, and the decision for each range.

    A partition without a row is planned from the beginning of its range.

    :param terms: the claim's terms, replaced by those in which the records were read. The transaction writes only if
        they are still the partitions' terms.
    """

    stored: dict[TopicPartition, StoredOffset]
    decisions: Decisions
    terms: Terms

    @classmethod
    def of(
        cls,
        claim: Claim,
        ranges: Mapping[TopicPartition, OffsetRange],
        terms: Terms | None = None,
        delivered: Callable[[Terms], Mapping[TopicPartition, int]] = lambda _: {},
    ) -> DeliveryPlan:
        """Read the stored offsets, and plan.

        :param terms: see `Delivery`.
        :param delivered: the next offset of each partition where the job is ahead of what is stored.
        :raises GroupPaused: the group is paused.
        """
        known = {**claim.terms, **(terms or {})}
        stored = read_unless_paused(claim)
        bases = {tp: row.next_offset for tp, row in stored.items()} | dict(delivered(known))
        decisions = {tp: decide(bases.get(tp, range_.from_), range_) for tp, range_ in ranges.items()}
        return cls(stored, decisions, known)

    def remaining(self) -> dict[TopicPartition, OffsetRange]:
        """The range of each partition that remains to be written."""
        return {
            tp: decision.remaining for tp, decision in self.decisions.items() if decision.outcome is not Outcome.SKIP
        }

    def at(self, part: Mapping[TopicPartition, OffsetRange]) -> DeliveryPlan:
        """Plan all of ``part``, and nothing else: each range begins where its partition will be stored by then."""
        return replace(self, decisions={tp: decide(range_.from_, range_) for tp, range_ in part.items()})

    def is_worth_computing(self, claim: Claim) -> bool:
        """Whether to compute at all: not for a stale claim, after a gap, or if nothing remains."""
        # Read without a lock, so this only saves the work: the transaction decides, and raises.
        ours = all(tp not in self.stored or self.stored[tp].token == claim.token for tp in self.decisions)
        outcomes = {decision.outcome for decision in self.decisions.values()}
        return ours and Outcome.GAP not in outcomes and outcomes != {Outcome.SKIP}


def create_rows(claim: Claim, plan: DeliveryPlan) -> None:
    """Create the missing rows of partitions, each at the beginning of its range."""
    # With all rows there, no task shares the group's row, and a partition whose first record is refused can be reset.
    unknown = {tp: decision.range.from_ for tp, decision in plan.decisions.items() if tp not in plan.stored}
    if unknown:
        commit(claim, Unit(only_locks(unknown), terms=plan.terms))


def commit_plan(claim: Claim, plan: DeliveryPlan, unit: Unit, watch: Stopwatch) -> Written | None:
    """Commit a batch's unit, after checking that its topics were not recreated.

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
    everything was read, and before BEGIN, so that no lock waits for Kafka.

    :raises TopicRecreated: a topic has another id; nothing was written.
    """
    if claim.broker is None:
        return
    # A partition that was created while the job runs has no id in its row, so another row of its topic gives it.
    topics = {tp.topic for tp in partitions}
    known = {tp.topic: row.topic_id for tp, row in stored.items() if tp.topic in topics and row.topic_id}
    if not known:
        return
    for topic, found in call(claim.broker.topic_ids, sorted(known)).items():
        if found and known[topic] != found:
            raise TopicRecreated(
                f"topic {topic!r} was deleted and created again while the job ran; nothing was written",
                found=f"topic id {found}",
                expected=f"topic id {known[topic]}",
            )


@dataclass(frozen=True, slots=True)
class BatchInfo:
    """A batch whose rows are computed but not written yet.

    :param number: of the batch: Spark's, or the consumer's count of its flushes.
    :param ranges: the ranges to be written; their ends are the offsets that will be stored.
    :param rows: the number of rows of each output (``""`` if there is only one); ``None`` if tasks compute them, with
        ``atomicity="partition"``.
    """

    number: int
    ranges: Mapping[TopicPartition, OffsetRange]
    rows: Mapping[str, int] | None


MetadataFunction: TypeAlias = Callable[[BatchInfo], object]


class BatchMetadata:
    """Calls the metadata function, and serializes what it returns.

    :param function: ``None`` keeps the stored metadata.
    """

    def __init__(self, claim: Claim, function: MetadataFunction | None) -> None:
        self._claim = claim
        self._function = function

    def texts(self, number: int, ranges: Ranges, rows: Mapping[str, CountedRows] | None) -> dict[TopicPartition, Text]:
        """The texts to write; other partitions keep theirs.

        :param number, ranges, rows: see `BatchInfo`.
        :raises MetadataError: the claim does not know a partition, or the serializer fails.
        :raises Exception: the function's own.
        """
        if self._function is None or not ranges:
            return {}
        counts = None if rows is None else {name: output.rows for name, output in rows.items()}
        returned = call(self._function, BatchInfo(number, ranges, counts))
        if isinstance(returned, Keep):
            return {}
        formats = self._claim.formats
        if not _is_by_partition(returned):
            return dump(formats, ranges, returned)
        by_partition = cast("Mapping[TopicPartition, object]", returned)
        unknown = sorted(by_partition.keys() - ranges.keys() - self._claim.partitions)
        # A member may have given a partition back, and the function may still remember it.
        if self._claim.is_member:
            unknown = [tp for tp in unknown if tp.topic not in self._claim.topics]
        if unknown:
            raise MetadataError(
                "the metadata function names a partition that the claim does not know",
                topic_partition=unknown[0],
                expected=", ".join(map(str, ranges)),
            )
        texts: dict[TopicPartition, Text] = {}
        for tp, value in by_partition.items():
            if tp in ranges and not isinstance(value, Keep):
                texts |= dump(formats, [tp], value)
        return texts


def _is_by_partition(returned: object) -> bool:
    if not isinstance(returned, Mapping):
        return False
    return all(isinstance(key, TopicPartition) for key in cast("Mapping[object, object]", returned))

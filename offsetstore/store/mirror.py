"""Stored offsets copied to Kafka's group, so that Kafka's own tools show the job's lag.

The copy follows the store and never leads it: only what is committed in the database is copied, with the stamp by
which the next start knows it for a copy. Nothing that goes wrong here concerns the job. Three things end it for good:
another claim; a row that is below what was copied from it, since the database was restored then, and the copy is all
that shows it; and another application that uses the group, whose offsets are not ours to overwrite. It is known by
members of the group, or by an offset that is neither what the claim has read nor a copy of ours: Kafka is asked before
each commit. It can't compare and commit at once, so a commit of another's in between the two is overwritten.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from offsetstore.errors import BrokerError, BrokerRefused, GroupHasMembers, MetadataRefused
from offsetstore.offsets import CommittedOffset
from offsetstore.protocol import failpoints
from offsetstore.protocol.background import Background
from offsetstore.protocol.database import HistoryEvent
from offsetstore.protocol.stamp import Stamp
from offsetstore.store.sessions import read, transaction

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from offsetstore.offsets import StoredOffset, TopicPartition
    from offsetstore.protocol.database import Database, Session
    from offsetstore.protocol.ports import BrokerOffsets
    from offsetstore.store.identity import ClaimInfo

INTERVAL: Final = 5.0
"""Seconds from one commit to the next, unless the claim is told otherwise."""

LAST_COMMIT = 5.0
"""Seconds that the end of a job may wait for the last commit."""

# Kafka forgets what nobody commits for a week (offsets.retention.minutes), and a stale job's last commit can come late.
_ALL_AGAIN = 600.0
# Where Kafka says no, asking at every turn would fill its log, and could lock the account.
_PATIENCE: Final = 12
_LOCK_SECONDS: Final = 1.0
_SHOWN: Final = 5

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class MirrorTarget:
    """Where a claim's offsets are copied to, and how often.

    ``ignored`` are partitions whose rows the claim found and Kafka does not show to it: vanished ones, and those that
    Spark's ``assign`` leaves out. ``found`` is what Kafka had when the claim decided where to start: it may be
    overwritten. ``has_members``: then, the group had members.
    """

    broker: BrokerOffsets
    kafka_group: str
    every: float
    ignored: frozenset[TopicPartition]
    found: Mapping[TopicPartition, CommittedOffset]
    has_members: bool


class Mirror:
    """Copies from a daemon thread until it is closed, or has ended for good.

    ``failures`` counts the commits that failed, ``last_success`` is the time of the last one that did not (or found
    nothing to copy), ``ended`` says why nothing is copied any more, ``None`` while it is.
    """

    def __init__(self, database: Database, claim: ClaimInfo, stamp: Stamp, target: MirrorTarget) -> None:
        self.failures = 0
        self.last_success: datetime | None = None
        self.ended: str | None = None
        self._database = database
        self._claim = claim
        self._stamp = stamp
        self._target = target
        self._pause = target.every
        self._bare = False
        self._is_out = False
        self._copied: dict[TopicPartition, CommittedOffset] = {}
        self._highest: dict[TopicPartition, int] = {}
        self._found = dict(target.found)
        self._unrecorded: Mapping[TopicPartition, CommittedOffset] | None = None
        self._all_at = time.monotonic() + _ALL_AGAIN
        self._given_up = False
        self._copies = Background("offsetstore-mirror", self._turn, self._wait, at_end=self._last)

    def close(self) -> None:
        """Copy what is left, for at most `LAST_COMMIT` seconds, and end."""
        if not self._copies.stop(LAST_COMMIT) and not self._given_up:
            self._given_up = True
            _log.warning("group %r ends without its last commit to Kafka, which does not answer", self._claim.group)

    @property
    def is_idle(self) -> bool:
        """Whether it has ended, and waits for no answer of Kafka's."""
        return not self._copies.is_alive

    def _wait(self) -> float:
        is_contested_at_once = self._target.has_members and self.ended is None
        return 0.0 if is_contested_at_once else self._pause

    def _turn(self) -> bool:
        """Return whether there is more to do."""
        if self.ended is None and self._target.has_members:
            self._contest({})
        elif self._unrecorded is None:
            self._copy()
        else:
            self._record(self._unrecorded)
        return self._has_work

    def _last(self) -> None:
        if self._has_work and not self._given_up:
            self._turn()
            self.ended = self.ended or "the claim was closed"

    @property
    def _has_work(self) -> bool:
        return self.ended is None or self._unrecorded is not None

    def _copy(self) -> None:
        try:
            found = read(
                self._database,
                lambda session: session.read_partitions(self._claim.group),
                name=self._claim.name,
                dedicated=True,
            )
        except Exception as error:  # noqa: BLE001 - a database that is away is the transactions' business
            _log.debug("the mirror could not read: %s", type(error).__name__)
            return
        rows = {tp: row for tp, row in found.items() if self._is_ours(tp)}
        if any(row.token != self._claim.token for row in rows.values()):
            self.ended = "the claim has been taken over"
            return
        if any(row.next_offset < self._highest.get(tp, 0) for tp, row in rows.items()):
            self._end_with_warning("its database is older than what was copied from it")
            return
        if self._commit(rows) and not self._given_up:
            self._unpin([tp for tp, row in rows.items() if row.pinned or row.contested])

    def _is_ours(self, tp: TopicPartition) -> bool:
        return tp.topic in self._claim.topics and tp not in self._target.ignored

    def _commit(self, rows: Mapping[TopicPartition, StoredOffset]) -> bool:
        try:
            if rows and self._is_taken(rows):
                return False
            self._commit_changed(rows)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is not the job's business
            self._note_failure(error)
            return False
        self._note_success()
        return self.ended is None

    def _is_taken(self, partitions: Collection[TopicPartition]) -> bool:
        """Whether Kafka has what another claim or another application has committed; then it is at an end here."""
        there = self._target.broker.committed_offsets(self._target.kafka_group, partitions)
        stamps = {tp: Stamp.of(copy) for tp, copy in there.items()}
        ours = {
            tp: stamp for tp, stamp in stamps.items() if stamp and stamp.is_of(self._stamp.store_id, self._stamp.group)
        }
        if any(stamp.epoch > self._stamp.epoch for stamp in ours.values()):
            self.ended = "the claim has been taken over"
        # Of an earlier claim of ours, it is one that came late.
        foreign = {tp: copy for tp, copy in there.items() if tp not in ours and not _is_same(copy, self._found.get(tp))}
        if foreign:
            self._contest(foreign)
        return self.ended is not None

    def _commit_changed(self, rows: Mapping[TopicPartition, StoredOffset]) -> None:
        if time.monotonic() >= self._all_at:
            self._copied.clear()
            self._all_at = time.monotonic() + _ALL_AGAIN
        changed = self._changed(rows)
        try:
            self._send(changed)
        except MetadataRefused:
            if self._bare:
                raise
            self._bare = True  # this broker takes less than most do: from now on the stamp goes alone
            self._send(self._changed(rows))

    def _changed(self, rows: Mapping[TopicPartition, StoredOffset]) -> dict[TopicPartition, CommittedOffset]:
        texts = {tp: self._stamp.text(None if self._bare else row.metadata) for tp, row in rows.items()}
        copies = {tp: CommittedOffset(row.next_offset, texts[tp]) for tp, row in rows.items()}
        return {tp: copy for tp, copy in copies.items() if self._copied.get(tp) != copy}

    def _send(self, copies: Mapping[TopicPartition, CommittedOffset]) -> None:
        if not copies:
            return
        # Before: where the answer is lost, Kafka may have them all the same.
        self._highest |= {tp: copy.next_offset for tp, copy in copies.items()}
        failpoints.reach("before_mirror")
        self._target.broker.commit(self._target.kafka_group, copies)
        failpoints.reach("after_mirror")
        self._copied |= copies
        for tp in copies:  # overwritten: the same offset is another commit, if it comes again
            self._found.pop(tp, None)

    def _note_failure(self, error: Exception) -> None:
        self.failures += 1
        if isinstance(error, MetadataRefused):
            self._end_with_warning(f"Kafka does not take its mark with an offset ({error.what})")
            return
        if isinstance(error, GroupHasMembers):
            self._contest({})
            return
        if isinstance(error, BrokerRefused):
            self._pause = _PATIENCE * self._target.every
        if not self._is_out:
            self._is_out = True
            _log.warning(
                "the stored offsets of group %r can't be copied to Kafka; the job goes on, and so do the attempts: %s",
                self._claim.group,
                error if isinstance(error, BrokerError) else type(error).__name__,
            )

    def _note_success(self) -> None:
        self.last_success = datetime.now(UTC)
        self._pause = self._target.every
        if self._is_out:
            self._is_out = False
            _log.warning("the stored offsets of group %r are copied to Kafka again", self._claim.group)

    def _end_with_warning(self, why: str) -> None:
        self.ended = why
        _log.warning("group %r is not copied to Kafka any more: %s", self._claim.group, why)

    def _contest(self, foreign: Mapping[TopicPartition, CommittedOffset]) -> None:
        """Copy nothing any more: another application uses the group, by these offsets, or by members without any."""
        group = self._target.kafka_group
        seen = ", ".join(f"{tp} at {copy.next_offset}" for tp, copy in sorted(foreign.items())[:_SHOWN])
        more = f" and {len(foreign) - _SHOWN} more" if len(foreign) > _SHOWN else ""
        saw = f"it has committed {seen}{more}" if foreign else "the group has members"
        self._end_with_warning(
            f"another application uses the group {group!r} there ({saw}), and its offsets are not overwritten; "
            "give this job a group of its own in Kafka (kafka_group=)"
        )
        self._pause = min(self._pause, INTERVAL)
        self._unrecorded = foreign
        self._record(foreign)

    def _record(self, foreign: Mapping[TopicPartition, CommittedOffset]) -> None:
        """Tell the next start: it must not adopt what the other application commits."""
        claim, kafka_group = self._claim, self._target.kafka_group

        def write(session: Session) -> None:
            rows = {tp: row for tp, row in session.lock_partitions(claim.group, None).items() if self._is_ours(tp)}
            if foreign.keys() - rows.keys() or any(row.token != claim.token for row in rows.values()):
                return  # renamed, or taken over
            session.contest(claim.group, claim.token, rows)
            what = f"another application uses the group {kafka_group!r} in Kafka"
            events = [
                HistoryEvent("contested", tp, at, at, claim.token, claim.owner, f"{what}: it has committed {there}")
                for tp, copy in sorted(foreign.items())
                for at, there in [(rows[tp].next_offset, copy.next_offset)]
            ]
            members = HistoryEvent("contested", None, None, None, claim.token, claim.owner, f"{what}: it has members")
            session.append_history(claim.group, events or [members])

        if self._write(write):
            self._unrecorded = None

    def _unpin(self, decided: Collection[TopicPartition]) -> None:
        """Kafka has the copy now: what an operator has set need not be held against it any longer."""

        def write(session: Session) -> None:
            session.lock_partitions(self._claim.group, decided)
            session.unpin(self._claim.group, self._claim.token, decided)

        if decided:
            self._write(write)

    def _write(self, write: Callable[[Session], None]) -> bool:
        """Whether it was written; if not, the next turn tries again."""
        try:
            with transaction(
                self._database, name=self._claim.name, lock_timeout=_LOCK_SECONDS, dedicated=True
            ) as session:
                write(session)
        except Exception as error:  # noqa: BLE001 - a database that is away is the transactions' business
            _log.debug("the mirror could not write: %s", type(error).__name__)
            return False
        return True


def _is_same(copy: CommittedOffset, found: CommittedOffset | None) -> bool:
    """Whether it is the commit that was found before, by what two reads of one commit have in common.

    Of a text that another client has written, each read may tell something else (decision 0010).
    """
    return found is not None and (copy.next_offset, Stamp.of(copy)) == (found.next_offset, Stamp.of(found))

"""Copies stored offsets to the group in Kafka, so that Kafka's own tools show the job's lag.

The copy follows the store and never leads it: only offsets that are committed in the database are copied, with a stamp
that identifies them as copies. Failures here do not affect the job. Four things end the mirror for good: another
claim; a row below its own copy, because the database was restored and only the copy shows that; another application
that uses the group, because its offsets must not be overwritten; and a copy of the database, in which the group was
claimed. Members of the group reveal the application, and so does an offset that is neither a copy of ours nor what the
claim read; but members may be consumers that had the group before, and are given time to leave. The stamp of a later
claim reveals the copy of the database, if our rows, read after it, are still ours.
Kafka is asked before each commit. It can't compare and commit at once, so a foreign commit in between is overwritten.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from offsetstore.errors import BrokerError, BrokerRefused, GroupHasMembers, MetadataRefused, as_raised
from offsetstore.offsets import CommittedOffset, StoredOffset, TopicPartition
from offsetstore.protocol.database import HistoryEvent, Session
from offsetstore.protocol.events import MirrorTried
from offsetstore.protocol.observers import Observers
from offsetstore.protocol.ports import BrokerOffsets
from offsetstore.protocol.store_facts import Stamp
from offsetstore.runtime import failpoints
from offsetstore.runtime.background import Background
from offsetstore.runtime.functions import call, without_frames
from offsetstore.store.identity import ClaimInfo
from offsetstore.store.sessions import ClaimRows
from offsetstore.text import logger

INTERVAL: Final = 5.0
"""Seconds from one commit to the next, by default."""

LEAVING = 60.0
"""Seconds for which consumers that had the group may be members in Kafka: until a killed member's session times out.

librdkafka's default of ``session.timeout.ms`` is 45 s.
"""

LAST_COMMIT = 5.0
"""Seconds to wait for the last commit when a claim is closed."""

# Kafka removes offsets that are not committed for a week (offsets.retention.minutes), and a stale job's last commit can
# arrive late.
_FULL_COPY_SECONDS = 600.0
# If Kafka refuses a commit, trying at every interval would fill its log, and could lock the account.
_INTERVALS_AFTER_REFUSAL: Final = 12
_SHOWN: Final = 5

_log = logger(__name__)


@dataclass(frozen=True, slots=True)
class MirrorTarget:
    """Where a claim's offsets are copied to, and how often.

    ``found`` are Kafka's offsets when the claim decided where to start: they may be overwritten.
    ``has_members``: whether the group had members then. ``after_fleet``: whether the last fleet that had the group was
    one of this group in Kafka, so that members may be its consumers, which have not left yet.
    """

    broker: BrokerOffsets
    kafka_group: str
    every: float
    found: Mapping[TopicPartition, CommittedOffset]
    has_members: bool
    after_fleet: bool


@dataclass(frozen=True, slots=True)
class _Contest:
    """Who else uses the group in Kafka, for the history; ``foreign`` are offsets that it has committed."""

    foreign: Mapping[TopicPartition, CommittedOffset]
    what: str


class Mirror:
    """Copies in a daemon thread until it is closed or ends for good.

    ``ended`` says why the mirror no longer copies, ``None`` while it does.
    """

    def __init__(
        self, claim: ClaimInfo, rows: ClaimRows, stamp: Stamp, target: MirrorTarget, observers: Observers
    ) -> None:
        self.ended: str | None = None
        self._claim = claim
        self._rows = rows
        self._stamp = stamp
        self._observers = observers
        self._target = target
        self._pause = target.every
        self._stamp_only = False
        self._copied: dict[TopicPartition, CommittedOffset] = {}
        self._highest: dict[TopicPartition, int] = {}
        self._found = dict(target.found)
        self._unrecorded: _Contest | None = None
        self._full_copy_at = time.monotonic() + _FULL_COPY_SECONDS
        self._leave_by = time.monotonic() + LEAVING if target.after_fleet else 0.0
        self._given_up = False
        self._copies = Background("offsetstore-mirror", self._turn, self._wait, at_end=self._last)
        self._copies.start()

    def close(self) -> None:
        """Copy the last offsets, for at most `LAST_COMMIT` seconds, and end."""
        if not self._copies.stop(LAST_COMMIT) and not self._given_up:
            self._given_up = True
            _log.warning(
                "the claim of group %r was closed without its last commit to Kafka: no answer", self._claim.group
            )

    @property
    def is_idle(self) -> bool:
        """Whether its thread has ended, and so waits for no answer from Kafka."""
        return not self._copies.is_alive

    def _wait(self) -> float:
        if self._found_others and self.ended is None:
            return 0.0  # contested at once
        return self._pause

    def _turn(self) -> bool:
        """Return whether there is more to do."""
        # Members are going to commit: the mirror does not wait until they have left (decision 0022).
        if self.ended is None and self._found_others:
            self._contest_members()
        elif self._unrecorded is None:
            self._copy()
        else:
            self._record(self._unrecorded)
        return self._has_work

    @property
    def _found_others(self) -> bool:
        """Whether the claim found members that can't be a former fleet's."""
        return self._target.has_members and not self._target.after_fleet

    def _last(self) -> None:
        if self._has_work and not self._given_up:
            self._turn()
            self.ended = self.ended or "the claim was closed"

    @property
    def _has_work(self) -> bool:
        return self.ended is None or self._unrecorded is not None

    def _copy(self) -> None:
        try:
            rows = self._rows.read()
        except Exception as error:  # noqa: BLE001 - the job's transactions report an unavailable database
            _log.debug("the mirror could not read: %s", type(without_frames(error)).__name__)
            return
        if any(row.token != self._claim.token for row in rows.values()):
            self.ended = "the claim has been taken over"
            return
        # Within one claim only a restore moves a row back, and the copy is then the only evidence (decision 0018).
        if any(row.next_offset < self._highest.get(tp, 0) for tp, row in rows.items()):
            self._end_with_warning("its database is older than the copy in Kafka")
            return
        if self._commit(rows) and not self._given_up:
            self._unpin([tp for tp, row in rows.items() if row.pinned or row.contested])

    def _commit(self, rows: Mapping[TopicPartition, StoredOffset]) -> bool:
        try:
            if rows and self._is_used_by_others(rows):
                return False
            copies = self._commit_changed(rows)
        except Exception as error:  # noqa: BLE001 - a failed copy must not affect the job
            self._note_failure(error)
            return False
        self._pause = self._target.every
        offsets = {tp: copy.next_offset for tp, copy in copies.items()}
        self._observers.on(MirrorTried(group=self._claim.group, offsets=offsets))
        return self.ended is None

    def _is_used_by_others(self, partitions: Collection[TopicPartition]) -> bool:
        """Whether another claim, a copy of the database or another application has committed; then the mirror ends."""
        there = call(self._target.broker.committed_offsets, self._target.kafka_group, partitions)
        stamps = {tp: Stamp.of(copy) for tp, copy in there.items()}
        ours = {
            tp: stamp for tp, stamp in stamps.items() if stamp and stamp.is_of(self._stamp.store_id, self._stamp.group)
        }
        latest = max((stamp.epoch for stamp in ours.values()), default=0)
        if latest > self._stamp.epoch:
            self._end_at_later_claim(latest)
        # The stamp of an earlier claim of ours is a late commit: only what has no stamp of ours is foreign.
        foreign = {tp: copy for tp, copy in there.items() if tp not in ours and not _is_same(copy, self._found.get(tp))}
        if foreign and self.ended is None:
            seen = ", ".join(f"{tp} at {copy.next_offset}" for tp, copy in sorted(foreign.items())[:_SHOWN])
            more = f" and {len(foreign) - _SHOWN} more" if len(foreign) > _SHOWN else ""
            self._contest_application(f"it has committed {seen}{more}", _Contest(foreign, self._other))
        return self.ended is not None

    def _end_at_later_claim(self, epoch: int) -> None:
        """End the mirror: a later claim copies its offsets to the same group in Kafka."""
        # A claim writes its token to the rows before it copies. If the rows, read after its copy, have our token, it
        # was made in another database: a copy of this one, or this one before a restore or a failover (decision 0050).
        rows = self._rows.read()
        if not rows or any(row.token != self._claim.token for row in rows.values()):
            self.ended = "the claim has been taken over"
            return
        group = self._target.kafka_group
        what = (
            f"a copy of this database, or this one before it was restored, has claimed the group (epoch {epoch}) and "
            f"copies its offsets to group {group!r} in Kafka"
        )
        self._contest(
            f"{what}; they are not overwritten, and the job goes on; give the copy an id (offsetstore store new-id) "
            "and a kafka_group= of its own",
            _Contest({}, what),
        )

    def _commit_changed(self, rows: Mapping[TopicPartition, StoredOffset]) -> dict[TopicPartition, CommittedOffset]:
        if time.monotonic() >= self._full_copy_at:
            self._copied.clear()
            self._full_copy_at = time.monotonic() + _FULL_COPY_SECONDS
        changed = self._changed(rows)
        try:
            self._send(changed)
        except MetadataRefused as refused:
            if self._stamp_only:
                raise
            without_frames(refused)
            self._stamp_only = True  # this broker accepts less than most: commit only the stamp from now on
            changed = self._changed(rows)
            self._send(changed)
        return changed

    def _changed(self, rows: Mapping[TopicPartition, StoredOffset]) -> dict[TopicPartition, CommittedOffset]:
        bare = self._stamp.text()
        texts = {} if self._stamp_only else {tp: row.metadata for tp, row in rows.items() if row.metadata}
        copies = {
            tp: CommittedOffset(row.next_offset, self._stamp.text(texts[tp]) if tp in texts else bare)
            for tp, row in rows.items()
        }
        return {tp: copy for tp, copy in copies.items() if self._copied.get(tp) != copy}

    def _send(self, copies: Mapping[TopicPartition, CommittedOffset]) -> None:
        if not copies:
            return
        # Before the commit: if its answer is lost, Kafka may have the offsets.
        self._highest |= {tp: copy.next_offset for tp, copy in copies.items()}
        failpoints.reach("before_mirror")
        call(self._target.broker.commit, self._target.kafka_group, copies)
        failpoints.reach("after_mirror")
        self._copied |= copies
        for tp in copies:  # overwritten: if the same offset appears again, it is another commit
            self._found.pop(tp, None)

    def _note_failure(self, error: Exception) -> None:
        without_frames(error)
        if isinstance(error, MetadataRefused):
            self._end_with_warning(f"Kafka does not accept its stamp ({error.what})")
            return
        if isinstance(error, GroupHasMembers) and time.monotonic() >= self._leave_by:
            self._contest_members()
            return
        if isinstance(error, GroupHasMembers):
            why = "consumers that had the group before it was claimed may still be members of Kafka's group"
            self._tell_failure(why, is_over=False, error=error)
            return
        if isinstance(error, BrokerRefused):
            self._pause = _INTERVALS_AFTER_REFUSAL * self._target.every
        reason = str(error) if isinstance(error, BrokerError) else type(as_raised(error)).__name__
        self._tell_failure(reason, is_over=False, error=error)

    def _end_with_warning(self, why: str) -> None:
        self.ended = why
        self._tell_failure(why, is_over=True)

    def _tell_failure(self, reason: str, *, is_over: bool, error: Exception | None = None) -> None:
        self._observers.on(MirrorTried(group=self._claim.group, reason=reason, is_over=is_over, error=error))

    def _contest_members(self) -> None:
        self._contest_application("the group has members", _Contest({}, f"{self._other}: it has members"))

    def _contest_application(self, saw: str, contest: _Contest) -> None:
        """End the mirror: another application uses the group, by its offsets or by its members."""
        self._contest(
            f"another application uses group {self._target.kafka_group!r} in Kafka ({saw}); its offsets are not "
            "overwritten; give this job a group of its own in Kafka (kafka_group=)",
            contest,
        )

    @property
    def _other(self) -> str:
        return f"another application uses the group {self._target.kafka_group!r} in Kafka"

    def _contest(self, why: str, contest: _Contest) -> None:
        self._end_with_warning(why)
        # However seldom it copies: the next start must not adopt the others' offsets.
        self._pause = min(self._pause, INTERVAL)
        self._unrecorded = contest
        self._record(contest)

    def _record(self, contest: _Contest) -> None:
        """Record the contest for the next start."""
        claim, foreign = self._claim, contest.foreign

        def write(session: Session) -> None:
            rows = {tp: row for tp, row in session.lock_group_partitions(claim.group).items() if self._rows.has(tp)}
            if foreign.keys() - rows.keys() or any(row.token != claim.token for row in rows.values()):
                return  # renamed, or taken over
            # All rows of the claim: the other application goes on to commit, in other partitions too (decision 0022).
            session.contest(claim.group, claim.token, rows)
            events = [
                HistoryEvent(
                    "contested", tp, at, at, claim.token, claim.owner, f"{contest.what}: it has committed {there}"
                )
                for tp, copy in sorted(foreign.items())
                for at, there in [(rows[tp].next_offset, copy.next_offset)]
            ]
            whole = HistoryEvent("contested", None, None, None, claim.token, claim.owner, contest.what)
            session.append_history(claim.group, events or [whole])

        if self._rows.write(write):
            self._unrecorded = None

    def _unpin(self, decided: Collection[TopicPartition]) -> None:
        """Clear the pins: Kafka has the copy now, so its offset need not be ignored any longer."""

        def write(session: Session) -> None:
            session.lock_partitions(self._claim.group, decided)
            session.unpin(self._claim.group, self._claim.token, decided)

        if decided:
            self._rows.write(write)


def _is_same(copy: CommittedOffset, before: CommittedOffset | None) -> bool:
    """Whether it is the commit that was read before."""
    # Metadata that another client wrote may differ from read to read (decision 0010).
    return before is not None and (copy.next_offset, Stamp.of(copy)) == (before.next_offset, Stamp.of(before))

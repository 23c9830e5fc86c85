"""A `Session` in memory: groups, partitions, marks, history, heartbeats and runs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from offsetstore.offsets import NO_CLAIM, EpochPair, Pause, StoredOffset, Suspect, Token, TopicPartition
from offsetstore.protocol.database import (
    Advance,
    GroupRow,
    HistoryEvent,
    LockedRow,
    MetadataRow,
    NewOffset,
)
from offsetstore.protocol.metadata import Text
from offsetstore.protocol.outbox import OutboxRecord
from offsetstore.protocol.runs import KEPT, LIVE, Ending, FleetMember, JobError, NewRun, RunStatus
from offsetstore.protocol.store_facts import StoreIdentity
from offsetstore.testing.memory.letters import LetterMemory

GROUPS = "consumer_groups"
PARTITIONS = "kafka_partitions"
_MARKS = "batch_marks"
_TURNS = "turns"
_HISTORY = "offset_history"
_BEATS = "heartbeats"
_MEMBERS = "group_members"
_ENDINGS = "endings"
OUTBOX = "outbox"
STORE = "store"


@dataclass(frozen=True, slots=True)
class Group:
    """One row of ``consumer_groups``."""

    token: Token
    owner: str
    claimed_at: datetime
    pause: Pause | None = None
    fleet: str | None = None
    last_fleet: str | None = None


@dataclass(frozen=True, slots=True)
class MemberRow:
    """One row of ``group_members``."""

    fleet_id: UUID
    owner: str
    joined_at: datetime
    beat_at: datetime


class MemorySession(LetterMemory):
    """See the module."""

    # -- groups

    def lock_group(self, group: str) -> Token:
        with self.statement():
            self.lock(GROUPS, group)
            if self._group(group) is None:
                self.put(GROUPS, (group,), Group(NO_CLAIM, "", self._clock()))
            return self.get(GROUPS, group).token

    def share_group(self, group: str) -> Token | None:
        with self.statement():
            if self._group(group) is None:
                return None
            self.lock(GROUPS, group, share=True)
            row = self._group(group)
            return None if row is None else row.token

    def group(self, group: str) -> GroupRow | None:
        with self.statement():
            row = self._group(group)
            if row is None or row.token.epoch == 0:
                return None
            now = self._clock()
            # A heartbeat far in the future is from before the clock was set back (decision 0026).
            beats = (member.beat_at for member in self._members(group, row.token.claim_id).values())
            of_members = [at for at in beats if at < now + LIVE]
            beat = self.get(_BEATS, row.token.claim_id) or max(of_members, default=None)
            [ending] = self.get(_ENDINGS, row.token.claim_id) or [None]
            is_over = row.pause is not None and row.pause.until is not None and row.pause.until <= now
            return GroupRow(
                row.token,
                row.owner,
                row.claimed_at,
                None if beat is None else now - beat,
                *((None, row.pause) if is_over else (row.pause, None)),
                ending,
                row.fleet,
                row.last_fleet,
            )

    def names_of_groups(self) -> list[str]:
        return [name for (name,) in sorted(self.table(GROUPS)) if self.rows(name)]

    def write_group(self, group: str, token: Token, owner: str, *, fleet: str | None = None) -> None:
        with self.statement():
            before = self._group(group)
            if before is not None:
                self._write_beat(before.token.claim_id, None)
            pause, last = (None, None) if before is None else (before.pause, before.last_fleet)
            self.put(GROUPS, (group,), Group(token, owner, self._clock(), pause, fleet, fleet or last))
            for tp in self.rows(group):
                self.lock(PARTITIONS, group, tp)
                self._set(group, tp, token=token)
            if fleet is None:
                self._write_beat(token.claim_id, self._clock())

    def write_pause(self, group: str, pause: Pause | None) -> None:
        self.put(GROUPS, (group,), replace(self.get(GROUPS, group), pause=pause))

    def _group(self, group: str) -> Group | None:
        return self.get(GROUPS, group)

    # -- the store

    def expect_grants(self) -> None:
        """There are no roles."""

    def identity(self) -> StoreIdentity:
        store_id, home = self.get(STORE)
        return StoreIdentity(store_id, home, self._shared.here)

    def now(self) -> datetime:
        with self.statement():
            return self._clock()

    # -- partitions

    def lock_group_partitions(self, group: str) -> dict[TopicPartition, StoredOffset]:
        return self._lock_rows(group, None)

    def lock_partitions(self, group: str, partitions: Collection[TopicPartition]) -> dict[TopicPartition, LockedRow]:
        rows = self._lock_rows(group, partitions)
        return {tp: LockedRow(row.next_offset, row.token, row.transaction_id) for tp, row in rows.items()}

    def _lock_rows(
        self, group: str, partitions: Collection[TopicPartition] | None
    ) -> dict[TopicPartition, StoredOffset]:
        with self.statement():
            # The rows that the statement saw when it began; what they hold, once they are locked.
            asked = [tp for tp in self.rows(group) if partitions is None or tp in partitions]
            for tp in asked:
                self.lock(PARTITIONS, group, tp)
            rows = self.rows(group)
            return {tp: rows[tp] for tp in asked}

    def read_partitions(
        self, group: str, partitions: Collection[TopicPartition] | None = None
    ) -> dict[TopicPartition, StoredOffset]:
        rows = self.rows(group)
        return rows if partitions is None else {tp: row for tp, row in rows.items() if tp in set(partitions)}

    def read_group(self, group: str) -> tuple[GroupRow | None, dict[TopicPartition, StoredOffset]]:
        return self.group(group), self.rows(group)

    def insert_partitions(self, group: str, token: Token, offsets: dict[TopicPartition, int]) -> set[TopicPartition]:
        inserted: set[TopicPartition] = set()
        with self.statement():
            for tp, offset in sorted(offsets.items()):
                had = self.has_lock(PARTITIONS, group, tp)
                self.lock(PARTITIONS, group, tp)
                if self.get(PARTITIONS, group, tp) is None:
                    row = StoredOffset(offset, token, updated_at=self._clock())
                    self.put(PARTITIONS, (group, tp), row)
                    inserted.add(tp)
                elif not had:
                    # ON CONFLICT DO NOTHING waits for others that insert the same, and locks nothing.
                    self.unlock(PARTITIONS, group, tp)
        return inserted

    def set_partitions(self, group: str, token: Token, offsets: dict[TopicPartition, NewOffset]) -> None:
        with self.statement():
            self.drop_failures(group, offsets)
            for tp, new in sorted(offsets.items()):
                self.lock(PARTITIONS, group, tp)
                now = self._clock()
                row: StoredOffset = self.get(PARTITIONS, group, tp) or StoredOffset(
                    new.next_offset, token, updated_at=now
                )
                is_same = row.next_offset == new.next_offset
                row = replace(
                    row,
                    next_offset=new.next_offset,
                    metadata=row.metadata if is_same else None,
                    topic_id=new.topic_id,
                    cluster_id=new.cluster_id,
                    pinned=new.pinned,
                    contested=new.contested,
                    pinned_epoch=token.epoch if new.pinned or new.contested else row.pinned_epoch,
                    pair=new.pair,
                    suspect=new.suspect,
                    updated_at=row.updated_at if is_same else now,
                )
                self.put(PARTITIONS, (group, tp), row)

    def advance(self, move: Advance) -> int:
        moved = 0
        with self.statement():
            for tp, range_ in sorted(move.ranges.items()):
                row: StoredOffset | None = self.get(PARTITIONS, move.group, tp)
                if row is None or row.next_offset != range_.from_ or row.token != move.token:
                    continue
                self.lock(PARTITIONS, move.group, tp)
                self._set(
                    move.group,
                    tp,
                    next_offset=range_.until,
                    metadata=move.metadata.get(tp, row.metadata),
                    transaction_id=move.transaction_id,
                    updated_at=self._clock() if range_.until != range_.from_ else row.updated_at,
                )
                moved += 1
            self.count_mark(moved)
        return moved

    def finish(self, move: Advance) -> tuple[int, bool]:
        return self.advance(move), self.is_whole()

    def read_metadata(self, group: str, topic: str, partition: int | None) -> dict[TopicPartition, MetadataRow]:
        return {
            tp: MetadataRow(row.metadata, row.token)
            for tp, row in self.rows(group).items()
            if tp.topic == topic and partition in {None, tp.partition}
        }

    def write_metadata(self, group: str, token: Token, metadata: Mapping[TopicPartition, Text]) -> int:
        with self.statement():
            ours = self._ours(group, token, metadata)
            for tp in ours:
                self.lock(PARTITIONS, group, tp)
                self._set(group, tp, metadata=metadata[tp])
            return len(ours)

    def unpin(self, group: str, token: Token, partitions: Collection[TopicPartition]) -> None:
        for tp in self._ours(group, token, partitions):
            self._set(group, tp, pinned=False, contested=False)

    def contest(self, group: str, token: Token, partitions: Collection[TopicPartition]) -> None:
        for tp in self._ours(group, token, partitions):
            self._set(group, tp, contested=True, pinned_epoch=token.epoch)

    def write_pairs(self, group: str, token: Token, pairs: Mapping[TopicPartition, EpochPair]) -> int:
        with self.statement():
            ours = [tp for tp in self._ours(group, token, pairs) if self.is_free(PARTITIONS, group, tp)]
            for tp in ours:
                self.lock(PARTITIONS, group, tp)
                self._set(group, tp, pair=pairs[tp])
            return len(ours)

    def write_suspects(self, group: str, token: Token, found: Mapping[TopicPartition, str]) -> set[TopicPartition]:
        with self.statement():
            rows = self.rows(group)
            new = {tp for tp in self._ours(group, token, found) if rows[tp].suspect is None}
            for tp in new:
                self._set(group, tp, suspect=Suspect(found[tp], self._clock()))
            return new

    def _ours(self, group: str, token: Token, partitions: Collection[TopicPartition]) -> list[TopicPartition]:
        return [tp for tp, row in self.rows(group).items() if tp in partitions and row.token == token]

    def _set(self, group: str, tp: TopicPartition, **values: Any) -> None:
        self.put(PARTITIONS, (group, tp), replace(self.get(PARTITIONS, group, tp), **values))

    # -- marks of batches

    def batch_mark(self, group: str, query_id: UUID) -> int | None:
        return self.get(_MARKS, group, query_id)

    def mark_batch(self, group: str, query_id: UUID, batch_id: int) -> bool:
        with self.statement():
            self.lock(_MARKS, group, query_id)
            before = self.batch_mark(group, query_id)
            if is_new := before is None or before < batch_id:
                self.put(_MARKS, (group, query_id), batch_id)
            return is_new

    def take_turn(self, group: str, name: UUID, every: float) -> bool:
        with self.statement():
            if not self.is_free(_TURNS, group, name):
                return False
            self.lock(_TURNS, group, name)
            now, last = self._clock(), self.get(_TURNS, group, name)
            if has_turn := last is None or last <= now - timedelta(seconds=every):
                self.put(_TURNS, (group, name), now)
            return has_turn

    # -- the history

    def append_history(self, group: str, events: Sequence[HistoryEvent]) -> None:
        with self.statement():
            self.append(_HISTORY, group, [replace(event, at=self._clock()) for event in events])

    def history(
        self,
        group: str,
        *,
        since: datetime | None = None,
        events: Collection[str] = (),
        topic_partition: TopicPartition | None = None,
        limit: int | None = None,
        before: int | None = None,
    ) -> list[HistoryEvent]:
        lines = [
            replace(line, id=number)
            for (name, number), line in self.table(_HISTORY).items()
            if name == group
            and (before is None or number < before)
            and (since is None or line.at >= since)
            and (not events or line.event in events)
            and topic_partition in {None, line.topic_partition}
        ]
        return lines if limit is None else lines[-limit:]

    def deleted_epochs(self, group: str) -> dict[str | None, int]:
        lines = self.history(group, events=["delete", "delete-topic"])  # in order of their epochs
        return {line.topic_partition and line.topic_partition.topic: line.token.epoch for line in lines}

    # -- heartbeats

    def beat(self, claim_id: UUID) -> bool:
        with self.statement():
            if self.get(_BEATS, claim_id) is None:
                return False
            self.lock(_BEATS, claim_id)
            if self.get(_BEATS, claim_id) is None:  # a new claim may have removed it while we waited
                return False
            self.put(_BEATS, (claim_id,), self._clock())
            return True

    def end_beat(self, claim_id: UUID) -> None:
        with self.statement():
            self._write_beat(claim_id, None)

    def _write_beat(self, claim_id: UUID, at: datetime | None) -> None:
        self.lock(_BEATS, claim_id)
        self.put(_BEATS, (claim_id,), at)

    # -- fleets

    def take_partitions(self, group: str, token: Token, partitions: Collection[TopicPartition]) -> None:
        with self.statement():
            for tp in sorted(self.rows(group).keys() & set(partitions)):
                self.lock(PARTITIONS, group, tp)
                self._set(group, tp, token=token)

    def add_member(self, group: str, fleet: Token, member_id: UUID, owner: str) -> None:
        with self.statement():
            self.lock(_MEMBERS, group, member_id)
            now = self._clock()
            before: MemberRow | None = self.get(_MEMBERS, group, member_id)
            joined_at = now if before is None else before.joined_at
            self.put(_MEMBERS, (group, member_id), MemberRow(fleet.claim_id, owner, joined_at, now))

    def trim_members(self, group: str, fleet_id: UUID) -> None:
        with self.statement():
            old = self._clock() - timedelta(days=1)
            for name, member_id in sorted(self.table(_MEMBERS)):
                row: MemberRow = self.get(_MEMBERS, name, member_id)
                is_old = name == group and (row.fleet_id != fleet_id or row.beat_at < old)
                if is_old and self.is_free(_MEMBERS, group, member_id):
                    self.drop_member(group, member_id)

    def beat_member(self, group: str, fleet: Token, member_id: UUID) -> bool:
        with self.statement():
            has_group = self._group(group)
            self.lock(_MEMBERS, group, member_id)
            row: MemberRow | None = self.get(_MEMBERS, group, member_id)
            if row is None or has_group is None or has_group.token != fleet or row.fleet_id != fleet.claim_id:
                return False
            self.put(_MEMBERS, (group, member_id), replace(row, beat_at=self._clock()))
            return True

    def drop_member(self, group: str, member_id: UUID) -> None:
        with self.statement():
            self.lock(_MEMBERS, group, member_id)
            self.put(_MEMBERS, (group, member_id), None)

    def members(self, group: str) -> list[FleetMember]:
        with self.statement():
            owner = self._group(group)
            if owner is None or owner.fleet is None:
                return []
            members = [
                FleetMember(member_id, row.owner, row.joined_at, self._clock() - row.beat_at)
                for member_id, row in self._members(group, owner.token.claim_id).items()
            ]
            return sorted(members, key=lambda member: (member.joined_at, member.member_id))

    def _members(self, group: str, fleet_id: UUID) -> dict[UUID, MemberRow]:
        rows: dict[tuple[str, UUID], MemberRow] = self.table(_MEMBERS)
        return {member_id: row for (name, member_id), row in rows.items() if name == group and row.fleet_id == fleet_id}

    # -- the outbox, which no relay reads

    def write_outbox(self, group: str, records: Sequence[OutboxRecord]) -> int:
        with self.statement():
            self.append(OUTBOX, group, records)
        return len(records)

    # -- runs, of which only the ending is kept, by claim: the rest is for people alone

    def begin_run(self, group: str, token: Token, run: NewRun, *, of_member: bool = False) -> None:  # noqa: ARG002
        self.put(_ENDINGS, (token.claim_id,), (None,))

    def write_run(
        self,
        group: str,  # noqa: ARG002
        token: Token,
        status: RunStatus,  # noqa: ARG002
        ending: Ending | None,
        *,
        of_member: bool = False,  # noqa: ARG002
    ) -> None:
        if self.get(_ENDINGS, token.claim_id) is not None:
            self.put(_ENDINGS, (token.claim_id,), (ending,))

    def append_errors(self, group: str, token: Token, errors: Sequence[JobError], *, keep: int = KEPT) -> None:
        """Nobody reads them."""

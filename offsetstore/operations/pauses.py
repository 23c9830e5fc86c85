"""Pauses, and the metadata of a stored offset: decisions that leave a group's job and its token as they are."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime

from offsetstore.errors import ConfigurationError
from offsetstore.offsets import Pause, Token, TopicPartition
from offsetstore.operations.operation import By, History, Operation, Plan, digest_of, expect_group, known, unknown_group
from offsetstore.operations.resets import unknown_partition
from offsetstore.protocol.database import Database, GroupRow, Session
from offsetstore.protocol.metadata import Text
from offsetstore.store.identity import name_prefix
from offsetstore.store.sessions import end_pause
from offsetstore.text import LAST_TIME


@dataclass(frozen=True, slots=True)
class PauseDecided(Plan):
    """What a pause or a resume did; for a dry run, what it would do now.

    :param before: the pause that is replaced or ended; ``None`` if the group was not paused.
    :param after: the new pause; ``None`` if the group is resumed.
    :param owner: the last claim.
    """

    group: str
    before: Pause | None
    after: Pause | None
    owner: GroupRow

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to resume."""
        return self.before is None and self.after is None


class _OfGroup(Operation[PauseDecided]):
    """A decision under the lock of the group's row."""

    group: str

    @contextmanager
    def begin(self, database: Database, by: By) -> Generator[Session]:
        # Members of a fleet share the row while they take partitions. A member that is frozen then is terminated, and
        # nobody else (decision 0090), before the wait for the lock ends.
        frozen = f"{name_prefix(self.group)}assign"
        with super().begin(database, by) as session:
            with database.unblocking(session, after=by.lock_timeout / 2, older_than=frozen):
                session.lock_group(self.group)
            yield session

    def locked(self, session: Session) -> Iterator[PauseDecided]:
        yield self.plan(session)


@dataclass(frozen=True)
class PauseGroup(_OfGroup):
    """Pause the group; see `OffsetStore.pause`."""

    group: str
    reason: str
    until: datetime | None = None

    def __post_init__(self) -> None:
        expect_group(self.group)
        if self.until is not None and self.until.tzinfo is None:
            raise ConfigurationError(
                "the end of a pause is a time without a zone",
                found=self.until.isoformat(),
                expected="a datetime with tzinfo, such as UTC",
            )

    def plan(self, session: Session) -> PauseDecided:
        owner, until = known(session, self.group), self.until
        now = session.now()
        if until is not None and until > LAST_TIME:
            raise ConfigurationError(
                "the end of a pause is too far away",
                found=until.isoformat(),
                expected=f"a time until {LAST_TIME.isoformat()}",
                next_step="Name no end, and resume the group yourself.",
            )
        if until is not None and until <= now:
            raise ConfigurationError(
                "the end of a pause has passed; the group is not paused by it",
                found=until.isoformat(),
                expected=f"a time after {now.isoformat(timespec='seconds')}, by the database's clock",
                next_step="Name a later time; or none, and resume the group yourself.",
            )
        digest = digest_of("pause", self.group, _identity(owner.pause), until)
        return PauseDecided(self.group, owner.pause, Pause(now, until, self.reason), owner, digest=digest)

    def write(self, session: Session, plan: PauseDecided, by: By) -> History:
        # A pause that has ended by itself gets its line before the new one overwrites it (decision 0061).
        end_pause(session, self.group, plan.owner, by.who)
        session.write_pause(self.group, plan.after)
        reason = by.reason if self.until is None else f"until {self.until.isoformat()}: {by.reason}"
        return {self.group: [by.event("pause", plan.owner.token, reason)]}


@dataclass(frozen=True)
class ResumeGroup(_OfGroup):
    """End the group's pause; see `OffsetStore.resume`."""

    group: str

    def __post_init__(self) -> None:
        expect_group(self.group)

    def plan(self, session: Session) -> PauseDecided:
        owner = known(session, self.group)
        digest = digest_of("resume", self.group, _identity(owner.pause))
        return PauseDecided(self.group, owner.pause, None, owner, digest=digest)

    def write(self, session: Session, plan: PauseDecided, by: By) -> History:
        session.write_pause(self.group, None)
        return {self.group: [by.event("resume", plan.owner.token)]}


def _identity(pause: Pause | None) -> object:
    # The time tells a pause from another one with the same end and reason.
    return None if pause is None else [pause.at, pause.until]


@dataclass(frozen=True, slots=True)
class MetadataDecided(Plan):
    """The stored offset whose metadata is rewritten, and the token of its row."""

    offset: int
    token: Token


@dataclass(frozen=True)
class WriteMetadata(Operation[MetadataDecided]):
    """Rewrite a partition's metadata; see `OffsetStore.write_metadata`."""

    group: str
    topic_partition: TopicPartition
    text: Text

    def __post_init__(self) -> None:
        expect_group(self.group)

    def plan(self, session: Session) -> MetadataDecided:
        rows = session.read_partitions(self.group)
        if not rows:
            raise unknown_group(session, self.group, "offsets of group")
        if (row := rows.get(self.topic_partition)) is None:
            raise unknown_partition(self.group, rows, self.topic_partition)
        digest = digest_of("metadata", self.group, self.topic_partition, row.next_offset, self.text)
        return MetadataDecided(row.next_offset, row.token, digest=digest)

    def locked(self, session: Session) -> Iterator[MetadataDecided]:
        # The group's row comes before any partition's, as in every decision; no claim can be made meanwhile.
        session.share_group(self.group)
        session.lock_partitions(self.group, [self.topic_partition])
        yield self.plan(session)

    def write(self, session: Session, plan: MetadataDecided, by: By) -> History:
        session.write_metadata(self.group, plan.token, {self.topic_partition: self.text})
        line = by.event("metadata", plan.token, of=self.topic_partition, offsets=(plan.offset, plan.offset))
        return {self.group: [line]}

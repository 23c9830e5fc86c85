"""A group's names: copy its offsets to another name, rename it, or delete it.

A copy leaves the group and its job alone. A rename and a delete fence the job; the old name keeps its row, so that
nothing comes back under it (decision 0040).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final
from uuid import uuid4

from offsetstore.errors import ConfigurationError, LettersOpen, MissingPrivilege, NextStep
from offsetstore.offsets import StoredOffset, Suspect, Token, TopicPartition
from offsetstore.operations.operation import (
    By,
    Fencing,
    History,
    Operation,
    OwnedPlan,
    digest_of,
    expect_group,
    held_by,
    known,
    unknown_group,
    write_token,
)
from offsetstore.operations.people import people, read_runs
from offsetstore.operations.resets import pinned
from offsetstore.operations.samples import LOCK_SAMPLES, RENAME_SAMPLES
from offsetstore.operations.stored_letters import count_letters
from offsetstore.postgres.session import PostgresSession
from offsetstore.protocol.arguments import check_new_name, check_text
from offsetstore.protocol.database import EventName, GroupRow, HistoryEvent, NewOffset, Session
from offsetstore.protocol.letters import OPEN, LetterState
from offsetstore.protocol.starting import similar_names
from offsetstore.store.sessions import end_pause
from offsetstore.text import did_you_mean

_TABLES: Final = ("kafka_partitions", "batch_marks", "dead_letters", "failures", "samples")
"""The tables that hold a group's rows. Its own row, its history, its runs and their errors stay with the name."""

_TABLES_OF_TOPICS: Final = ("kafka_partitions", "dead_letters", "failures")

RENAME_IN: Final = "UPDATE {s}%s SET consumer_group = :new WHERE consumer_group = :group"
DELETE_FROM: Final = "DELETE FROM {s}%s WHERE consumer_group = :group"
DELETE_TOPICS_FROM: Final = DELETE_FROM + " AND topic = ANY (CAST(:topics AS text[]))"
COUNT_LETTERS_OF_TOPICS: Final = """
SELECT state, count(*) AS count FROM {s}dead_letters
WHERE consumer_group = :group AND topic = ANY (CAST(:topics AS text[])) GROUP BY state
"""
NOT_DELETABLE: Final = """
SELECT name FROM unnest(CAST(:tables AS text[])) WITH ORDINALITY AS of_group (name, number)
WHERE NOT has_table_privilege(:place || name, 'DELETE') ORDER BY number
"""


@dataclass(frozen=True, slots=True)
class NewName(OwnedPlan):
    """The offsets of a group that were, or would be, given another name.

    :param is_copy: whether the group keeps its offsets, and its job.
    :param open_letters: how many of the group's dead letters are to be decided about, or to be replayed. A rename takes
        them along; a copy leaves them, since in both groups they would be replayed twice (decision 0061).
    """

    group: str
    new: str
    rows: Mapping[TopicPartition, StoredOffset] = field(repr=False)
    open_letters: int
    is_copy: bool

    @property
    def offsets(self) -> dict[TopicPartition, int]:
        """The stored offsets."""
        return {tp: row.next_offset for tp, row in self.rows.items()}


def _plan(session: Session, event: str, group: str, new: str, met: GroupRow | None = None) -> NewName:
    """Check that the group has offsets, and that the new name has neither offsets nor dead letters.

    :raises UnknownGroup: the group has no offsets.
    :raises ConfigurationError: the new name is taken.
    """
    # One statement reads all rows, so that a batch of several partitions is in them whole, or not at all.
    owner, rows, taken = met or session.group(group), session.read_partitions(group), session.read_partitions(new)
    if not rows:
        raise unknown_group(session, group, "offsets of group")
    if taken:
        raise ConfigurationError(
            f"a group {new!r} already exists", found=f"{len(taken)} partitions", expected="a name without offsets"
        )
    if letters := sum(count_letters(people(session), new).values()):
        raise ConfigurationError(
            f"a group {new!r} has left dead letters", found=letters, expected="a name without dead letters"
        )
    held = held_by(owner, {tp: row.next_offset for tp, row in rows.items()})
    letters = sum(count_letters(people(session), group, OPEN).values())
    digest = digest_of(event, group, new, held)
    return NewName(group, new, rows, letters, event == "copy", owner=owner, digest=digest)


def _expect_names(group: str, new: str) -> None:
    expect_group(group)
    expect_group(new)
    check_new_name("new", new)
    if group == new:
        raise ConfigurationError("the group has that name already", found=repr(new), expected="another name")


@dataclass(frozen=True)
class CopyGroup(Operation[NewName]):
    """Give another name the same offsets; see `OffsetStore.copy_group`. Only the new name's rows are locked."""

    copied: str
    group: str

    def __post_init__(self) -> None:
        _expect_names(self.copied, self.group)

    def plan(self, session: Session) -> NewName:
        return _plan(session, "copy", self.copied, self.group)

    def locked(self, session: Session) -> Iterator[NewName]:
        session.lock_group(self.group)
        session.lock_group_partitions(self.group)
        yield self.plan(session)

    def write(self, session: Session, plan: NewName, by: By) -> History:
        token = Token(session.lock_group(self.group).epoch + 1, uuid4())
        write_token(session, self.group, token, by.who)
        new = {tp: _same_offset(row, keep_contested=False) for tp, row in plan.rows.items()}
        session.set_partitions(self.group, token, new)
        session.write_metadata(self.group, token, {tp: row.metadata for tp, row in plan.rows.items()})
        history = {self.group: _arrivals(by, "copy", plan, token)}
        if plan.owner is not None:
            history[self.copied] = [by.event("copy", plan.owner.token, f"to {self.group!r}: {by.reason}")]
        return history


@dataclass(frozen=True, kw_only=True)
class RenameGroup(Fencing[NewName]):
    """Move a group's rows to another name; see `OffsetStore.rename_group`."""

    new: str

    def __post_init__(self) -> None:
        super().__post_init__()
        _expect_names(self.group, self.new)

    def plan(self, session: Session) -> NewName:
        return _plan(session, "rename", self.group, self.new, self.met)

    @property
    def names(self) -> Sequence[str]:
        return sorted((self.group, self.new))

    def write(self, session: Session, plan: NewName, by: By) -> History:
        group, new, owner = self.group, self.new, plan.owner
        # Above both groups' epochs: it is no job's, and no copy in Kafka has it.
        token = Token(max(session.lock_group(name).epoch for name in (group, new)) + 1, uuid4())
        # A pause that has ended by itself gets its line under the old name, and does not move to the new one.
        end_pause(session, group, owner, by.who)
        # `new` has no rows, and all rows of both groups are locked.
        operator = people(session)
        operator.rows(LOCK_SAMPLES, group=group)
        for table in _TABLES:
            operator.run(RENAME_SAMPLES if table == "samples" else RENAME_IN % table, group=group, new=new)
        session.write_pause(new, owner.pause if owner is not None else None)
        session.write_pause(group, None)
        # The old name keeps its row, so that a job that still runs under it is stale and creates nothing.
        for name in (group, new):
            write_token(session, name, token, by.who)
        # Pinned, so that the copies in Kafka do not count. A rename decides nothing about other applications.
        rows = {tp: _same_offset(row, keep_contested=True) for tp, row in plan.rows.items()}
        session.set_partitions(new, token, rows)
        left = by.event("rename", token, f"to {new!r}: {by.reason}")
        return {group: [left], new: _arrivals(by, "rename", plan, token)}


@dataclass(frozen=True, slots=True)
class DeletedGroup(OwnedPlan):
    """What was deleted of a group; for a dry run, what would have been.

    :param topics: ``None`` for the whole group.
    :param offsets: the stored offsets; the history keeps them.
    :param letters: how many dead letters, by state.
    :param contested: whether another application used the group in Kafka while the job ran. A new job of that name
        starts at the offsets that it committed, as for any name without a stored offset.
    :param losses: evidence that logs lost records below the stored offsets; it is deleted with them.
    :param last_read: the deleted topics that the last job read: started again as it is, it reads them anew.
    """

    group: str
    topics: tuple[str, ...] | None
    offsets: Mapping[TopicPartition, int]
    letters: Mapping[LetterState, int]
    contested: bool
    losses: Mapping[TopicPartition, Suspect]
    last_read: tuple[str, ...] = ()

    @property
    def open_letters(self) -> int:
        """How many dead letters still had to be decided about, or to be replayed."""
        return sum(self.letters.get(state, 0) for state in OPEN)

    @property
    def settled_letters(self) -> int:
        """How many dead letters were replayed, discarded or superseded."""
        return sum(self.letters.values()) - self.open_letters


@dataclass(frozen=True, kw_only=True)
class DeleteGroup(Fencing[DeletedGroup]):
    """Delete a group's rows, or those of some of its topics; see `OffsetStore.delete_group`."""

    topics: tuple[str, ...] | None = None
    discard_letters: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.topics == ():
            raise ConfigurationError("topics names none", expected="topics, or None for the whole group")
        for topic in self.topics or ():
            check_text("topics", topic)

    def plan(self, session: Session) -> DeletedGroup:
        """Read what would be deleted, and check that it may be.

        :raises UnknownGroup, GroupRenamed: there is nothing to delete under this name.
        :raises ConfigurationError: the group has no offsets of a topic, or none of any other topic.
        :raises LettersOpen: there are open letters, and they are not to be discarded.
        :raises MissingPrivilege: the role may not delete.
        """
        # The right is checked first, so that a role without it fences no job (decision 0040).
        _expect_delete(people(session))
        owner, rows = self.met or known(session, self.group), session.read_partitions(self.group)
        if self.topics is not None:
            rows = self._of_topics(session, rows)
        offsets = {tp: row.next_offset for tp, row in rows.items()}
        contested = any(row.contested for row in rows.values())
        losses = {tp: row.suspect for tp, row in rows.items() if row.suspect is not None}
        letters = self._letters(people(session))
        # No letter goes before it is pruned, so the numbers show whether any was added or changed (decision 0051).
        held = held_by(owner, offsets)
        digest = digest_of("delete", self.group, held, contested, sorted(letters.items()), sorted(losses.items()))
        found = DeletedGroup(
            self.group,
            self.topics,
            offsets,
            letters,
            contested,
            losses,
            self._last_read(people(session)),
            owner=owner,
            digest=digest,
        )
        if found.open_letters and not self.discard_letters:
            whose = f"the group {self.group!r} has dead letters{' of these topics' if self.topics else ''}"
            raise LettersOpen(
                f"{whose} that are still open; nothing was written",
                found=found.open_letters,
                expected="none",
                next_step=NextStep.DISCARD_LETTERS if self.topics else NextStep.SETTLE_LETTERS,
            )
        return found

    def write(self, session: Session, plan: DeletedGroup, by: By) -> History:
        assert plan.owner is not None
        # Above the job's epoch, so that it is stale, and above those of its copies in Kafka, which then do not count
        # (decision 0040).
        token = Token(plan.owner.token.epoch + 1, uuid4())
        if self.topics is None:
            end_pause(session, self.group, plan.owner, by.who)
            session.write_pause(self.group, None)
        _delete(people(session), self.group, self.topics)
        write_token(session, self.group, token, by.who)
        letters = f"with {plan.open_letters} open and {plan.settled_letters} settled dead letters: "
        why = f"{letters if plan.letters else ''}{by.reason}"
        offsets = plan.offsets.items()
        if self.topics is not None:
            gone = [by.event("delete-topic", token, why, of=tp, offsets=(at, None)) for tp, at in offsets]
            return {self.group: gone}
        gone = [by.event("delete", token, of=tp, offsets=(at, None)) for tp, at in offsets]
        return {self.group: [by.event("delete", token, why), *gone]}

    def _of_topics(
        self, session: Session, rows: Mapping[TopicPartition, StoredOffset]
    ) -> dict[TopicPartition, StoredOffset]:
        assert self.topics is not None
        has = {tp.topic for tp in rows}
        if not has:
            raise unknown_group(session, self.group, "offsets of group")
        if missing := sorted(set(self.topics) - has):
            near = sorted({close for topic in missing for close in similar_names(topic, has)} - set(self.topics))
            raise ConfigurationError(
                f"the group {self.group!r} has no offsets of these topics; nothing was written",
                found=", ".join(missing),
                expected=f"of {', '.join(sorted(has))}",
                next_step=did_you_mean(near) + "Correct the topics." if near else None,
            )
        # Deleting the whole group is another decision, and is not taken by naming all of its topics (decision 0040).
        if has <= set(self.topics):
            raise ConfigurationError(
                f"the group {self.group!r} has offsets of no other topics; nothing was written",
                found=", ".join(sorted(has)),
                expected="topics that the job no longer reads",
                next_step="If it is given up, delete the whole group, and name no topic.",
            )
        return {tp: row for tp, row in rows.items() if tp.topic in self.topics}

    def _last_read(self, session: PostgresSession) -> tuple[str, ...]:
        if self.topics is None:
            return ()
        runs = read_runs(session, self.group, limit=1)
        return tuple(topic for run in runs for topic in run.topics if topic in self.topics)

    def _letters(self, session: PostgresSession) -> dict[LetterState, int]:
        if self.topics is None:
            return count_letters(session, self.group)
        rows = session.rows(COUNT_LETTERS_OF_TOPICS, group=self.group, topics=[*self.topics])
        return {row.state: row.count for row in rows}


def _same_offset(row: StoredOffset, *, keep_contested: bool) -> NewOffset:
    """Return the row's offset for another name, with the evidence about the log below it."""
    new = pinned(row, row.next_offset, keep_contested=keep_contested)
    return new._replace(pair=row.pair, suspect=row.suspect)


def _arrivals(by: By, event: EventName, plan: NewName, token: Token) -> list[HistoryEvent]:
    why = f"from {plan.group!r}: {by.reason}"
    arrived = [by.event(event, token, why, of=tp, offsets=(None, offset)) for tp, offset in plan.offsets.items()]
    return [by.event(event, token, why), *arrived]


def _expect_delete(session: PostgresSession) -> None:
    if rows := session.rows(NOT_DELETABLE, tables=[*_TABLES], place=session.place):
        tables = ", ".join(row.name for row in rows)
        raise MissingPrivilege("the role may not delete a group; nothing was written", found=f"no DELETE on {tables}")


def _delete(session: PostgresSession, group: str, topics: Sequence[str] | None) -> None:
    """Delete the group's rows, or those of these topics. Needs the locks of the group and of the rows."""
    if topics is not None:
        for table in _TABLES_OF_TOPICS:
            session.run(DELETE_TOPICS_FROM % table, group=group, topics=[*topics])
        return
    session.rows(LOCK_SAMPLES, group=group)
    for table in _TABLES:
        session.run(DELETE_FROM % table, group=group)

"""A group's names: the same offsets under another name, another name for the same offsets, and a name given up.

A copy leaves the group and its job alone. A rename and a delete fence the job, as a claim does: its open transaction is
waited for, and its token is then stale; the old name keeps its row, so that nothing comes back under it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from uuid import uuid4

from offsetstore.errors import ConfigurationError, LettersOpen, UnknownGroup
from offsetstore.offsets import StoredOffset, Suspect, Token, TopicPartition
from offsetstore.operations.admin import (
    AGAIN,
    Decided,
    expect_decision,
    expect_group,
    expect_takeover,
    expect_timeout,
    known,
    refuse_live,
    same_offset,
    write_token,
)
from offsetstore.operations.plans import digest_of, expect_plan, held_by
from offsetstore.protocol.database import Database, GroupRow, HistoryEvent, Session
from offsetstore.protocol.letters import OPEN, State
from offsetstore.protocol.texts import check_new_name
from offsetstore.store.identity import this_process
from offsetstore.store.sessions import deciding, end_pause, fencing, read


@dataclass(frozen=True, slots=True)
class NewName:
    """Offsets that a group has under a name that had none, or would have.

    :param executed: whether anything was written.
    :param owner: of the group before, ``None`` if it was never claimed.
    :param open_letters: how many of the group's dead letters are to be decided about, or to be replayed. A rename takes
        them along; a copy leaves them, since with both groups they would be replayed twice.
    :param digest: for ``if_plan``.
    """

    group: str
    new: str
    offsets: Mapping[TopicPartition, int]
    owner: GroupRow | None
    open_letters: int
    executed: bool
    digest: str


@dataclass(frozen=True, slots=True)
class Naming:
    """A decision to give a group's offsets to another name.

    :param event: ``"copy"`` or ``"rename"``.
    """

    event: str
    group: str
    new: str
    reason: str
    actor: str | None
    dry_run: bool
    if_plan: str | None

    def __post_init__(self) -> None:
        """Refuse invalid arguments, before the database is asked.

        :raises ConfigurationError: naming the argument.
        """
        expect_group(self.group)
        expect_group(self.new)
        check_new_name("new", self.new)
        expect_decision(self.reason, self.actor)
        if self.group == self.new:
            raise ConfigurationError("the group has that name already", found=repr(self.new), expected="another name")

    @property
    def who(self) -> str:
        """The actor, by default this process."""
        return self.actor or this_process()

    def look(
        self,
        session: Session,
        owner: GroupRow | None,
        rows: Mapping[TopicPartition, StoredOffset],
        taken: Collection[TopicPartition],
    ) -> NewName:
        """See that the group has offsets, and the new name neither these nor dead letters.

        :param owner: the group's, as ``rows``.
        :param taken: the partitions of the new name.
        :raises UnknownGroup, ConfigurationError: it is not so.
        """
        if not rows:
            raise UnknownGroup(
                f"the store has no offsets of group {self.group!r}",
                next_step="Correct the name; `offsetstore groups list` shows all groups.",
            )
        if taken:
            raise ConfigurationError(
                f"a group {self.new!r} already exists",
                found=f"{len(taken)} partitions",
                expected="a name without offsets",
            )
        if letters := sum(session.count_letters(self.new).values()):
            raise ConfigurationError(
                f"a group {self.new!r} has left dead letters", found=letters, expected="a name without dead letters"
            )
        offsets = {tp: row.next_offset for tp, row in rows.items()}
        digest = digest_of(self.event, self.group, self.new, held_by(owner, offsets))
        letters = sum(session.count_letters(self.group, OPEN).values())
        return NewName(self.group, self.new, offsets, owner, letters, executed=False, digest=digest)

    def plan(self, session: Session) -> NewName:
        """Look at what would be done now, without the partitions' locks."""
        owner, rows = session.read_group(self.group)
        return self.look(session, owner, rows, session.read_partitions(self.new))

    def expect(self, plan: NewName, takeover: Decided) -> None:
        """Refuse a rename that was not asked for.

        :raises PlanChanged: it is not the plan that was shown.
        :raises GroupBusy: a job is live, and is not to be fenced.
        """
        expect_plan(plan, self.if_plan)
        refuse_live(self.group, takeover, plan.owner)


def copy_group(database: Database, naming: Naming, lock_timeout: float) -> NewName:
    """Give another name the same offsets; see `OffsetStore.copy_group`."""
    if naming.dry_run:
        return expect_plan(read(database, naming.plan), naming.if_plan)
    group, new = naming.group, naming.new
    with deciding(database, new, name="admin", lock_timeout=lock_timeout, again=AGAIN) as session:
        # One statement reads all rows, so that a batch of several partitions is in them whole, or not at all.
        before, taken = session.lock_group(new), session.lock_group_partitions(new)
        owner, rows = session.group(group), session.read_partitions(group)
        done = naming.look(session, owner, rows, taken)
        expect_plan(done, naming.if_plan)
        token = Token(before.epoch + 1, uuid4())
        write_token(session, new, token, naming.who)
        session.set_partitions(new, token, {tp: same_offset(row, keep_contested=False) for tp, row in rows.items()})
        session.write_metadata(new, token, {tp: row.metadata for tp, row in rows.items()})
        why = f"from {group!r}: {naming.reason}"
        session.append_history(new, _arrivals("copy", rows, token, naming.who, why))
        if owner is not None:
            line = HistoryEvent("copy", None, None, None, owner.token, naming.who, f"to {new!r}: {naming.reason}")
            session.append_history(group, [line])
    return replace(done, executed=True)


def rename_group(database: Database, naming: Naming, *, takeover: Decided, takeover_timeout: float) -> NewName:
    """Move a group's rows to another name; see `OffsetStore.rename_group`."""
    expect_timeout(takeover_timeout)
    expect_takeover(takeover)
    planned = read(database, naming.plan)
    if naming.dry_run:
        return expect_plan(planned, naming.if_plan)
    group, new, reason = naming.group, naming.new, naming.reason
    # A live job's transaction is not waited for, nor ended, if the job is not to be fenced.
    naming.expect(planned, takeover)
    with fencing(database, group, takeover_timeout, name="admin", again=AGAIN) as session:
        tokens = {name: session.lock_group(name) for name in sorted((group, new))}
        before = session.group(group)
        naming.expect(naming.plan(session), takeover)
        held = {name: session.lock_group_partitions(name) for name in sorted((group, new))}
        rows = held[group]
        done = naming.look(session, before, rows, held[new])
        naming.expect(done, takeover)
        # Above both, so that it is no job's, and no copy in Kafka has this epoch.
        token, who = Token(max(one.epoch for one in tokens.values()) + 1, uuid4()), naming.who
        end_pause(session, group, before, who)
        session.rename_group(group, new)
        session.write_pause(new, before.pause if before is not None else None)
        session.write_pause(group, None)
        # The old name keeps its row, so that a job that still runs under it is stale and creates nothing.
        for name in (group, new):
            write_token(session, name, token, who)
        # Pinned, so that what Kafka has under the old name does not count. It decides nothing about other applications.
        session.set_partitions(
            new,
            token,
            {tp: same_offset(row, keep_contested=True) for tp, row in rows.items()},
        )
        session.append_history(group, [HistoryEvent("rename", None, None, None, token, who, f"to {new!r}: {reason}")])
        session.append_history(new, _arrivals("rename", rows, token, who, f"from {group!r}: {reason}"))
    return replace(done, executed=True)


@dataclass(frozen=True, slots=True)
class DeletedGroup:
    """What was deleted with a group; for a dry run, what would have been.

    :param offsets: the stored ones; the history keeps them.
    :param letters: how many dead letters, by state.
    :param contested: whether another application used the group in Kafka while the job ran. What it has committed
        there is where a new job of that name starts, as for any name without a stored offset.
    :param losses: evidence that logs lost records below the stored offsets; it goes with them.
    :param owner: of the group before.
    :param digest: for ``if_plan``.
    :param executed: whether anything was deleted.
    """

    group: str
    offsets: Mapping[TopicPartition, int]
    letters: Mapping[State, int]
    contested: bool
    losses: Mapping[TopicPartition, Suspect]
    owner: GroupRow
    digest: str
    executed: bool = False

    @property
    def open_letters(self) -> int:
        """How many dead letters were still to be decided about, or to be replayed."""
        return sum(self.letters.get(state, 0) for state in OPEN)

    @property
    def settled_letters(self) -> int:
        """How many were replayed, discarded or superseded."""
        return sum(self.letters.values()) - self.open_letters


@dataclass(frozen=True, slots=True)
class Deletion:
    """A decision to delete a group."""

    group: str
    reason: str
    actor: str | None
    discard_letters: bool
    if_plan: str | None

    def __post_init__(self) -> None:
        """Refuse invalid arguments, before the database is asked.

        :raises ConfigurationError: naming the argument.
        """
        expect_group(self.group)
        expect_decision(self.reason, self.actor)

    def look(self, session: Session) -> DeletedGroup:
        """See what there is, and that it may be deleted.

        :raises UnknownGroup, GroupRenamed: there is nothing to delete under this name.
        :raises LettersOpen: there are open letters, and they are not to be discarded.
        """
        owner, rows = known(session, self.group), session.read_partitions(self.group)
        offsets = {tp: row.next_offset for tp, row in rows.items()}
        contested = any(row.contested for row in rows.values())
        losses = {tp: row.suspect for tp, row in rows.items() if row.suspect is not None}
        letters = session.count_letters(self.group)
        # No letter of a group goes before it is pruned, so their numbers show whether any has come or changed.
        held = held_by(owner, offsets)
        digest = digest_of("delete", self.group, held, contested, sorted(letters.items()), sorted(losses.items()))
        found = DeletedGroup(self.group, offsets, letters, contested, losses, owner, digest)
        if found.open_letters and not self.discard_letters:
            raise LettersOpen(
                f"the group {self.group!r} has dead letters that are still open; nothing was written",
                found=found.open_letters,
                expected="none",
            )
        return found

    def expect(self, plan: DeletedGroup, takeover: Decided) -> None:
        """Refuse what was not asked for.

        :raises PlanChanged: it is not the plan that was shown.
        :raises GroupBusy: a job is live, and is not to be fenced.
        """
        expect_plan(plan, self.if_plan)
        refuse_live(self.group, takeover, plan.owner)


def delete_group(
    database: Database, deletion: Deletion, *, takeover: Decided, takeover_timeout: float, dry_run: bool
) -> DeletedGroup:
    """Delete all that belongs to a group; see `OffsetStore.delete_group`."""
    expect_timeout(takeover_timeout)
    expect_takeover(takeover)
    group = deletion.group

    def plan(session: Session) -> DeletedGroup:
        session.expect_delete()
        return deletion.look(session)

    planned = read(database, plan)
    if dry_run:
        return expect_plan(planned, deletion.if_plan)
    deletion.expect(planned, takeover)
    with fencing(database, group, takeover_timeout, name="admin", again=AGAIN) as session:
        before = session.lock_group(group)
        deletion.expect(deletion.look(session), takeover)
        session.lock_group_partitions(group)
        found = deletion.look(session)
        deletion.expect(found, takeover)
        # Above the job's, so that it is stale, and above those of all copies in Kafka, which then no longer count.
        token, who = Token(before.epoch + 1, uuid4()), deletion.actor or this_process()
        end_pause(session, group, found.owner, who)
        session.delete_group(group)
        session.write_pause(group, None)
        write_token(session, group, token, who)
        letters = f"with {found.open_letters} open and {found.settled_letters} settled dead letters: "
        why = f"{letters if found.letters else ''}{deletion.reason}"
        rows = [HistoryEvent("delete", tp, at, None, token, who, deletion.reason) for tp, at in found.offsets.items()]
        session.append_history(group, [HistoryEvent("delete", None, None, None, token, who, why), *rows])
    return replace(found, executed=True)


def _arrivals(
    event: str, rows: Mapping[TopicPartition, StoredOffset], token: Token, who: str, why: str
) -> list[HistoryEvent]:
    arrived = [HistoryEvent(event, tp, None, row.next_offset, token, who, why) for tp, row in rows.items()]
    return [HistoryEvent(event, None, None, None, token, who, why), *arrived]

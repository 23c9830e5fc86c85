"""What people decide, in one form: plan, compare under the locks, write, history.

An `Operation` is one decision. `plan_of` shows what it would do and locks nothing; `carry_out` does it. It plans again
under the locks, with the same code, and compares: what was shown is what is done, or nothing is.
"""

from __future__ import annotations

import hashlib
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import ClassVar, Final, Generic, Literal, Self, TypeAlias, TypeVar, get_args

from offsetstore.errors import ConfigurationError, GroupBusy, GroupRenamed, NextStep, PlanChanged, UnknownGroup
from offsetstore.offsets import Token, TopicPartition
from offsetstore.protocol.arguments import MOST_ACTOR, MOST_REASON, check_seconds, check_text
from offsetstore.protocol.database import Database, EventName, GroupRow, HistoryEvent, Session, deleted, renamed
from offsetstore.protocol.starting import similar_names
from offsetstore.store.identity import this_process
from offsetstore.store.sessions import deciding, fencing, read
from offsetstore.text import did_you_mean

AGAIN: Final = "Check the group's history; if it does not show this change, repeat it."

Decided: TypeAlias = Literal["fence", "refuse"]
"""What a decision does if a job is live."""

History: TypeAlias = Mapping[str, Sequence[HistoryEvent]]
"""The lines that a decision adds, by group."""

_LENGTH: Final = 16
_NAMED: Final = 5  # groups that an error names
_DIGEST: Final = re.compile(rf"[0-9a-f]{{{_LENGTH}}}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a decision would do, or has done.

    :param digest: for ``if_plan``, see `digest_of`.
    :param executed: whether anything was written.
    :param history: the lines that were added to the history; none for a dry run.
    """

    digest: str
    executed: bool = False
    history: tuple[HistoryEvent, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do: then nothing is written."""
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnedPlan(Plan):
    """The plan of a decision about a group's offsets. ``owner`` is the last claim before it, ``None`` without one."""

    owner: GroupRow | None

    @property
    def met_live_owner(self) -> bool:
        """Whether a job was live: with ``takeover="refuse"``, only a dry run gets that far."""
        return self.owner is not None and self.owner.is_live


_P = TypeVar("_P", bound=Plan)
_O = TypeVar("_O", bound=OwnedPlan)


@dataclass(frozen=True, slots=True)
class By:
    """Who decides, and why.

    :param actor: by default this process.
    :param lock_timeout: as for `Timeouts`; a decision that fences has its own, ``takeover_timeout``.
    """

    reason: str
    actor: str | None = None
    lock_timeout: float = field(default=30.0, kw_only=True)

    def __post_init__(self) -> None:
        check_text("reason", self.reason, most=MOST_REASON)
        if self.actor is not None:
            check_text("actor", self.actor, most=MOST_ACTOR)
        if not self.reason.strip():
            raise ConfigurationError(
                "a decision needs a reason, which the history records", found=repr(self.reason), expected="a sentence"
            )

    @property
    def who(self) -> str:
        return self.actor or this_process()

    def event(
        self,
        name: EventName,
        token: Token,
        reason: str | None = None,
        *,
        of: TopicPartition | None = None,
        offsets: tuple[int | None, int | None] = (None, None),
    ) -> HistoryEvent:
        return HistoryEvent(name, of, *offsets, token, self.who, self.reason if reason is None else reason)


class Operation(ABC, Generic[_P]):
    """One decision, with all its arguments except who decides and why.

    Invalid arguments are refused when it is made, before the database is asked: a `ConfigurationError` names them.
    """

    group: str
    """The group whose rows it locks: a later claim terminates its transaction if it does not end."""
    fences: ClassVar[bool] = False
    """Whether it takes the group away from its job."""

    def asked(self, database: Database) -> Self:  # noqa: ARG002 - most need no more than the database
        """Return the same decision with Kafka's answers, which nobody should wait for under locks."""
        return self

    @abstractmethod
    def plan(self, session: Session) -> _P:
        """Return what would be done now."""

    @abstractmethod
    def locked(self, session: Session) -> Iterator[_P]:
        """Take the locks, and plan with the code of `plan`; the last plan is the one that is carried out.

        An earlier one is compared, too, before the next lock is waited for.
        """

    @abstractmethod
    def write(self, session: Session, plan: _P, by: By) -> History:
        """Carry the plan out, and return the lines of the history."""

    def expect(self, plan: _P) -> None:
        """Refuse to carry out a plan that may only be shown."""

    def begin(self, database: Database, by: By) -> AbstractContextManager[Session]:
        return deciding(database, self.group, name="admin", lock_timeout=by.lock_timeout, again=AGAIN)


@dataclass(frozen=True, kw_only=True)
class Fencing(Operation[_O]):
    """A decision that takes the group away from its job, as a claim does: its token is then stale.

    A live job's transaction is waited for, and then terminated, but not before the plan stands.

    :param takeover: ``"fence"`` a live job, or ``"refuse"``.
    :param takeover_timeout: seconds to wait for a job's transaction.
    """

    fences: ClassVar[bool] = True

    group: str
    takeover: Decided = "fence"
    takeover_timeout: float = 30.0
    met: GroupRow | None = field(default=None, repr=False)
    """The owner under the group's lock. While its transaction is waited for, it may end, or seem to."""

    def __post_init__(self) -> None:
        expect_group(self.group)
        check_seconds("takeover_timeout", self.takeover_timeout, or_zero=True)
        if self.takeover not in get_args(Decided):
            raise ConfigurationError('takeover must be "fence" or "refuse"', found=repr(self.takeover))

    @property
    def names(self) -> Sequence[str]:
        """The groups to lock, in the order in which all decisions lock them."""
        return (self.group,)

    def locked(self, session: Session) -> Iterator[_O]:
        # While the group's row is locked, no job can claim the group.
        for name in self.names:
            session.lock_group(name)
        # Compared before any transaction is terminated: it may be that of a newer job than was shown (decision 0051).
        yield (plan := self.plan(session))
        for name in self.names:
            session.lock_group_partitions(name)
        yield replace(self, met=plan.owner).plan(session)

    def expect(self, plan: _O) -> None:
        """Refuse to fence a live job, unless that is asked for.

        :raises GroupBusy: a job is live, and ``takeover`` is ``"refuse"``.
        """
        if self.takeover == "refuse" and plan.owner is not None and plan.owner.is_live:
            raise GroupBusy(
                f"a job of group {self.group!r} is live; nothing was written",
                found=plan.owner.in_words(),
                next_step=NextStep.STOP_OR_FENCE,
            )

    def begin(self, database: Database, by: By) -> AbstractContextManager[Session]:  # noqa: ARG002 - see `By`
        return fencing(database, self.group, self.takeover_timeout, name="admin", again=AGAIN)


def plan_of(database: Database, operation: Operation[_P], *, if_plan: str | None = None) -> _P:
    """Return what the operation would do now. Nothing is locked or written.

    :raises PlanChanged: the plan is not ``if_plan``: a dry run must not say, either, that it would be carried out.
    """
    return expect_plan(read(database, operation.asked(database).plan), if_plan)


def carry_out(
    database: Database, operation: Operation[_P], by: By, *, dry_run: bool = False, if_plan: str | None = None
) -> _P:
    """Carry out the operation, and return its plan.

    :param dry_run: do `plan_of` instead.
    :param if_plan: the digest of the plan that was shown; ``None`` to accept any plan.
    :raises PlanChanged: the plan is no longer the one that was shown; nothing was written.
    """
    if dry_run:
        return plan_of(database, operation, if_plan=if_plan)
    operation = operation.asked(database)
    # A decision that will be refused must neither wait for a job's transaction nor terminate it (decision 0063).
    if operation.fences:
        _compared(operation, read(database, operation.plan), if_plan)
    with operation.begin(database, by) as session:
        [*_, plan] = [_compared(operation, plan, if_plan) for plan in operation.locked(session)]
        if plan.is_empty:
            return plan
        history = operation.write(session, plan, by)
        for group, lines in history.items():
            session.append_history(group, lines)
    return replace(plan, executed=True, history=tuple(line for lines in history.values() for line in lines))


def _compared(operation: Operation[_P], plan: _P, if_plan: str | None) -> _P:
    expect_plan(plan, if_plan)
    operation.expect(plan)
    return plan


def digest_of(decision: str, group: str, *facts: object) -> str:
    """Return the digest of a plan: two plans that do the same to the same state have the same one.

    :param facts: what is done and what it rests on, in a fixed order, as JSON and datetimes. What changes by itself is
        left out, or no plan could ever be carried out: the present, ages, and the end of the log (decision 0051).
    """
    text = json.dumps([decision, group, *facts], default=_plain, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:_LENGTH]


def held_by(owner: GroupRow | None, offsets: Mapping[TopicPartition, int]) -> object:
    """Return what the plan of a decision about a group's offsets rests on: who has the group, and what is stored."""
    if owner is None:
        return sorted(offsets.items())
    token = [owner.token.epoch, str(owner.token.claim_id)]
    # A live job goes on storing offsets; its token alone shows that it is still the job that was shown (decision 0051).
    return ["live", token, sorted(offsets)] if owner.is_live else ["not live", token, sorted(offsets.items())]


def expect_plan(plan: _P, if_plan: str | None) -> _P:
    """Return the plan, if it is the one that was shown.

    :param plan: what would be done; under the locks, this is final.
    :param if_plan: the digest of the plan that was shown; ``None`` to accept any plan.
    :raises ConfigurationError: ``if_plan`` is no digest.
    :raises PlanChanged: the plan is another one.
    """
    if if_plan is not None and not _DIGEST.fullmatch(if_plan):
        raise ConfigurationError(
            "not the digest of a plan; nothing was done",
            found=repr(if_plan),
            expected=f"{_LENGTH} hexadecimal digits, as a plan shows them",
        )
    if if_plan is not None and plan.digest != if_plan:
        raise PlanChanged(
            "the plan has changed since it was shown, or the digest is another command's; nothing was done",
            found=plan.digest,
            expected=if_plan,
            plan=plan,
        )
    return plan


def _plain(value: object) -> float:
    # A timestamp is the same whatever the session's TimeZone is.
    if isinstance(value, datetime):
        return value.timestamp()
    raise TypeError(f"not a fact of a plan: {type(value).__name__}")


def expect_group(group: str) -> None:
    check_text("group", group)
    if not group:
        raise ConfigurationError("not a consumer group", found=repr(group), expected="a name")


def known(session: Session, group: str) -> GroupRow:
    """Read the group's row.

    :raises UnknownGroup: it was never claimed, or not since it was deleted.
    :raises GroupRenamed: it has another name now.
    """
    owner = session.group(group)
    if owner is None:
        raise unknown_group(session, group)
    # A name that was given up keeps its row (decision 0040), but no partitions.
    if not session.read_partitions(group):
        history = session.history(group)
        if (last := renamed(history)) is not None:
            what = f"the group {group!r} was renamed"
            raise GroupRenamed(what, found=last.reason, expected="its new name", next_step="Use that name.")
        if (last := deleted(history)) is not None:
            what = f"the group {group!r} was deleted, and no job has claimed it since"
            raise UnknownGroup(what, found=last.reason, next_step="Correct the name, or start its job.")
    return owner


def unknown_group(session: Session, group: str, what: str = "group") -> UnknownGroup:
    """Make the error for a group that does not exist. It names groups with similar names, or else some others.

    :param what: what the store does not have.
    """
    others = [name for name in session.names_of_groups() if name != group]
    near = similar_names(group, others)
    some = ", ".join(map(repr, others[:_NAMED])) + (" and others" if len(others) > _NAMED else "")
    return UnknownGroup(
        f"the store has no {what} {group!r}",
        found=None if near else some or "no groups with offsets",
        next_step=did_you_mean(near) + UnknownGroup.default_next_step,
    )


def write_token(session: Session, group: str, token: Token, who: str) -> None:
    """Fence the group's owner."""
    # No job runs with the new token, so it has no heartbeat.
    session.write_group(group, token, who)
    session.end_beat(token.claim_id)

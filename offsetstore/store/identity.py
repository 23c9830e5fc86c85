"""Who writes: what transactions need of a claim, the names that operators see, and who took a group from whom."""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol
from uuid import UUID

from offsetstore.errors import ConfigurationError, OffsetStoreError
from offsetstore.offsets import Token, TopicPartition
from offsetstore.protocol.database import TAKING, GroupRow, Session
from offsetstore.protocol.metadata import Formats
from offsetstore.protocol.store_facts import digest
from offsetstore.store.term import Term, Terms


class ClaimInfo(Protocol):
    """Who writes, and with which token: a `Claim`, or a task's copy of it."""

    @property
    def group(self) -> str:
        """The consumer group."""
        ...

    @property
    def token(self) -> Token:
        """The token in the partitions' rows: every write is checked against it."""
        ...

    @property
    def group_token(self) -> Token:
        """The token of the group's row; it differs only for a fleet's member, see `offsetstore.store.fleet`."""
        ...

    @property
    def is_member(self) -> bool:
        """Whether others share the group."""
        ...

    @property
    def owner(self) -> str:
        """The claim's process, for people."""
        ...

    @property
    def topics(self) -> Sequence[str]:
        """The topics that were claimed."""
        ...

    @property
    def name(self) -> str:
        """The prefix of its transactions' ``application_name``."""
        ...

    @property
    def terms(self) -> Terms:
        """What is kept of each partition that it has or has begun. The mapping is replaced, never changed."""
        ...

    @property
    def formats(self) -> Formats:
        """How metadata are read and written."""
        ...

    def new_terms(self, partitions: Collection[TopicPartition]) -> Terms:
        """Return `terms`, in which each of these partitions has one: it begins here if the partition has no row."""
        ...

    def no_term(self, tp: TopicPartition) -> OffsetStoreError | None:
        """The error for a partition that has no term; ``None`` if it just means that nothing is kept of it."""
        ...

    def lose(self, lost: Terms | None = None, *, by: str | None = None) -> None:
        """Record that another claim has taken over, or that the group was reset or renamed.

        :param lost: if only partitions are lost, to other members of the fleet: their terms. A term that has begun
            since then goes on.
        :param by: who has the group now; see `offsetstore.store.identity`.
        """
        ...

    def unblock(self, partitions: Collection[TopicPartition]) -> None:
        """End another member's assignment that has held the rows of these partitions for too long."""
        ...

    def require_log(self) -> None:
        """Refuse to go on in a log that is known to have lost records.

        :raises LogTruncated: the claim has seen it.
        """
        ...


@dataclass(frozen=True, slots=True)
class TaskClaim:
    """A task's copy of a claim: it can be pickled, sends no heartbeats and has no starting offsets."""

    group: str
    token: Token
    owner: str
    topics: tuple[str, ...]
    name: str
    formats: Formats
    terms: dict[TopicPartition, Term]

    @classmethod
    def of(cls, claim: ClaimInfo, partitions: Collection[TopicPartition] | None = None) -> TaskClaim:
        """Copy what tasks need.

        :param partitions: the tasks' partitions, all of them known to have rows; by default the claim's.
        """
        known = claim.terms
        terms = {tp: replace(known.get(tp) or Term()) for tp in (known if partitions is None else partitions)}
        return cls(claim.group, claim.token, claim.owner, tuple(claim.topics), claim.name, claim.formats, terms)

    @property
    def group_token(self) -> Token:
        """The claim's token: members of a fleet have no tasks."""
        return self.token

    @property
    def is_member(self) -> bool:
        return False

    def new_terms(self, partitions: Collection[TopicPartition]) -> Terms:
        for tp in partitions:
            self.terms.setdefault(tp, Term(has_row=False))
        return self.terms

    def no_term(self, tp: TopicPartition) -> OffsetStoreError:
        return ConfigurationError(
            "a task has the cached metadata of its batch's partitions only",
            topic_partition=tp,
            expected=", ".join(map(str, sorted(self.terms))),
            next_step="Read it from the table: cache=False.",
        )

    def lose(self, lost: Terms | None = None, *, by: str | None = None) -> None:
        """Do nothing: the task's `StaleClaim` tells the driver."""

    def unblock(self, partitions: Collection[TopicPartition]) -> None:
        """Do nothing: nobody shares the partitions of a job."""

    def require_log(self) -> None:
        """Do nothing: the driver has looked before it sent the task."""


def name_prefix(group: str) -> str:
    """The prefix of the ``application_name`` of a group's transactions; PostgreSQL keeps 63 bytes of the name."""
    return f"offsetstore:{digest(group)}:"


def this_process() -> str:
    """Describe this process, for people: user, host and process id."""
    try:
        user = getpass.getuser()
    # A uid without a name, as containers have: KeyError, and OSError since Python 3.13.
    except (OSError, KeyError):
        user = f"uid {os.getuid()}"
    return f"{user}@{socket.gethostname()}:{os.getpid()}"


_NAMED: Final = 5  # members of a fleet


def taken_by(session: Session, group: str) -> str:
    """Who has the group now, and how it was taken: for the job that no longer has it."""
    owner = session.group(group)
    if owner is None:
        return "no row of the group"
    # Not "copy": that is also a line of a group that keeps its owner.
    events = ["claim", *(event for event in TAKING if event != "copy")]
    last = session.history(group, events=events, limit=1)
    event = last[-1].event if last and last[-1].token == owner.token else None
    how = "claimed" if event == "claim" else TAKING.get(event or "", "taken")
    return f"{how} by {owner.in_words()}"


def fenced_by_claim(session: Session, group: str, owner: GroupRow | None, claim_id: UUID) -> str | None:
    """Whom a claim fences; ``None`` if nobody is known to run.

    :param owner: the group's row under its lock.
    :param claim_id: the claim's own: its COMMIT may have happened, and its answer been lost.
    """
    if owner is None or owner.token.claim_id == claim_id or owner.alive_for is None:
        return None
    # A silent owner may be frozen, or cut off from the database: its next write fails all the same.
    if owner.state not in {"live", "silent"}:
        return None
    who = f"{owner.state}: {owner.in_words()}"
    members = [member.owner for member in session.members(group)] if owner.fleet is not None else []
    if not members:
        return who
    more = f" and {len(members) - _NAMED} more" if len(members) > _NAMED else ""
    return f"{who}; its members: {', '.join(members[:_NAMED])}{more}"


def replaced_since(session: Session, group: str, epoch: int) -> bool:
    """Whether, after ``epoch``, the group was renamed or deleted, or another group was given its name.

    Or whether the offsets of one of its topics were deleted.
    """
    last = session.history(group, events=["rename", "delete", "delete-topic"], limit=1)  # epochs of a group only grow
    return bool(last) and last[-1].token.epoch > epoch

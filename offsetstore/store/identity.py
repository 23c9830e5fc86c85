"""Who writes: the part of a claim that transactions need, and the names that operators see."""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from offsetstore.offsets import Token, TopicPartition
from offsetstore.protocol.marking import Position
from offsetstore.protocol.stamp import digest
from offsetstore.store.ahead import Ahead
from offsetstore.store.claim_metadata import ClaimMetadata


class ClaimInfo(Protocol):
    """Who writes, and with which token: a `Claim`, or a task's copy of it."""

    @property
    def group(self) -> str:
        """The consumer group."""
        ...

    @property
    def token(self) -> Token:
        """The token that every write is checked against: that of the partitions' rows."""
        ...

    @property
    def group_token(self) -> Token:
        """The token of the group's row: another one only for a fleet's member, see `offsetstore.store.fleet`."""
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
    def partitions(self) -> set[TopicPartition]:
        """The partitions known to have rows; a transaction adds those that it creates. A member's: those it has."""
        ...

    @property
    def positions(self) -> dict[TopicPartition, Position]:
        """How far the job has come in memory; a transaction with manual marking moves them when it is committed."""
        ...

    @property
    def ahead(self) -> Ahead:
        """Letters and failed attempts of records that the job has still to read."""
        ...

    @property
    def claim_metadata(self) -> ClaimMetadata:
        """How metadata are read and written, and what was stored for the next advances."""
        ...

    def term(self, tp: TopicPartition) -> object:
        """What tells one time that the claim has the partition from the next; a job has all of them once."""
        ...

    def lose(self, partitions: Collection[TopicPartition] = ()) -> None:
        """Record that another claim has taken over, or that the group was reset or renamed.

        :param partitions: those that other members of the fleet have taken, if it is not that.
        """
        ...

    def require_log(self) -> None:
        """Refuse to go on in a log that is known to have lost records.

        :raises LogTruncated: the claim's mirror has seen it.
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
    partitions: set[TopicPartition]
    claim_metadata: ClaimMetadata
    ahead: Ahead = field(default_factory=Ahead)
    positions: dict[TopicPartition, Position] = field(default_factory=dict[TopicPartition, Position])

    @classmethod
    def of(cls, claim: ClaimInfo, partitions: Collection[TopicPartition] | None = None) -> TaskClaim:
        """Copy what tasks need.

        :param partitions: those of the tasks, all of them known to have rows; by default the claim's.
        """
        known = set(claim.partitions if partitions is None else partitions)
        copied = claim.claim_metadata.of_task(known)
        return cls(
            claim.group, claim.token, claim.owner, tuple(claim.topics), claim.name, known, copied, claim.ahead.of(known)
        )

    @property
    def group_token(self) -> Token:
        """The claim's: members of a fleet have no tasks."""
        return self.token

    def term(self, tp: TopicPartition) -> object:  # noqa: ARG002 - see above
        """The only one."""
        return None

    def lose(self, partitions: Collection[TopicPartition] = ()) -> None:
        """Do nothing: the task's `StaleClaim` tells the driver."""

    def require_log(self) -> None:
        """Do nothing: the driver has looked before it sent the task."""


def name_prefix(group: str) -> str:
    """The prefix of the ``application_name`` of a group's transactions; PostgreSQL keeps 63 bytes of the name."""
    return f"offsetstore:{digest(group)}:"


def this_process() -> str:
    """Describe this process, for people: user, host and process id."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):
        user = f"uid {os.getuid()}"
    return f"{user}@{socket.gethostname()}:{os.getpid()}"

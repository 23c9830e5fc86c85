"""Who writes: the part of a claim that transactions need, and the names that operators see."""

from __future__ import annotations

import getpass
import os
import socket
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from offsetstore.protocol.stamp import digest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from offsetstore.offsets import Token, TopicPartition


class ClaimInfo(Protocol):
    """Who writes, and with which token: a `Claim`, or a task's copy of it."""

    @property
    def group(self) -> str:
        """The consumer group."""
        ...

    @property
    def token(self) -> Token:
        """The token that every write is checked against."""
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
        """The partitions known to have rows; a transaction adds those that it creates."""
        ...


@dataclass(frozen=True, slots=True)
class TaskClaim:
    """A task's copy of a claim: it can be pickled, sends no heartbeats and has no starting offsets."""

    group: str
    token: Token
    owner: str
    topics: tuple[str, ...]
    name: str
    partitions: set[TopicPartition] = field(default_factory=set["TopicPartition"])

    @classmethod
    def of(cls, claim: ClaimInfo) -> TaskClaim:
        """Copy what a task needs."""
        return cls(claim.group, claim.token, claim.owner, tuple(claim.topics), claim.name, set(claim.partitions))


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

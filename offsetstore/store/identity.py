"""What a transaction asks of a claim, so that a task on another machine can hold a copy of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from offsetstore.offsets import Token, TopicPartition


class ClaimInfo(Protocol):
    """Who writes, by which token: a `Claim`, or a task's copy of it."""

    @property
    def group(self) -> str:
        """The consumer group."""
        ...

    @property
    def token(self) -> Token:
        """What every write is checked against."""
        ...

    @property
    def owner(self) -> str:
        """Who it is, for people."""
        ...

    @property
    def topics(self) -> Sequence[str]:
        """The topics that were claimed."""
        ...

    @property
    def name(self) -> str:
        """How the ``application_name`` of its transactions begins."""
        ...

    @property
    def partitions(self) -> set[TopicPartition]:
        """The partitions whose rows it knows to exist; a transaction adds those that it makes."""
        ...


@dataclass(frozen=True, slots=True)
class TaskClaim:
    """A claim as a task holds it: it pickles, beats no heart and can't be asked where to start."""

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

"""Fleets: several processes, the *members*, share a group's claim, and Kafka distributes the partitions among them.

The group's row has the fleet's token, as it would have a claim's: a claim, a reset or another fleet takes the group
away by replacing it, and needs nothing else. A partition's row has the token of the member that took it last, with the
fleet's epoch. A member writes to rows that have its own token, until it gives the partition back.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol
from uuid import UUID

from offsetstore.offsets import Token, TopicPartition
from offsetstore.protocol.runs import is_live


def fleet_name(cluster_id: str | None, kafka_group: str) -> str:
    """Name the fleet of a process: all members of one group in one cluster, among which Kafka distributes partitions.

    :param cluster_id: ``None`` if the broker does not tell it.
    """
    return json.dumps([cluster_id, kafka_group])


def may_share(found: str | None, fleet: str, *, is_live: bool, decides: bool = False) -> bool:
    """Whether a process joins the group's claim; otherwise it founds a fleet, which fences the present owner.

    :param found: the fleet that has the group, ``None`` if a claim has it or nobody.
    :param is_live: whether any of its members is.
    :param decides: whether the policy decides where a partition starts: to read a recreated topic again, or to trust a
        restored database.
    """
    # A copy of the database has the fleet's row too, without live members: its processes found a fleet, and get an
    # epoch that tells their stamps in Kafka apart. A policy's decision holds for all partitions and needs an epoch
    # above all that Kafka has seen, so no single member makes it (decision 0090).
    return found == fleet and is_live and not decides


@dataclass(frozen=True, slots=True)
class FleetMember:
    """One member of a group's fleet. ``alive_for`` is the time since its last heartbeat."""

    member_id: UUID
    owner: str
    joined_at: datetime
    alive_for: timedelta

    @property
    def is_live(self) -> bool:
        return is_live(self.alive_for)


class FleetSession(Protocol):
    """The part of a `Session` for fleets. It has no heartbeat itself: a fleet is live while one of its members is."""

    def take_partitions(self, group: str, token: Token, partitions: Collection[TopicPartition]) -> None:
        """Write a member's token to these rows. Needs their locks."""
        ...

    def add_member(self, group: str, fleet: Token, member_id: UUID, owner: str) -> None:
        """Write a member's row, with a first heartbeat.

        :param fleet: the fleet's token, which is that of the group.
        """
        ...

    def trim_members(self, group: str, fleet_id: UUID) -> None:
        """Remove members of other fleets, and members that have been silent for a day. Rows that are locked stay.

        Only under the group's lock: without it, the members of a fleet that takes the group meanwhile would go.
        """
        ...

    def beat_member(self, group: str, fleet: Token, member_id: UUID) -> bool:
        """Write a member's heartbeat; return ``False`` if it has no row, or if the fleet no longer has the group."""
        ...

    def drop_member(self, group: str, member_id: UUID) -> None:
        """Remove a member that has left."""
        ...

    def members(self, group: str) -> list[FleetMember]:
        """The members of the fleet that has the group, the oldest first; none if a claim has it."""
        ...

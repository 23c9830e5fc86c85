"""Fleets: a group's claim that several processes share, its *members*, as Kafka deals out the partitions among them.

The group's row has the fleet's token, as it would have that of a claim: whatever takes the group away, a claim, a reset
or another fleet, replaces it, and is stopped by nothing else. A partition's row has the token of the member that took
it last, with the fleet's epoch. A member writes where a row has its own token and it has not given the partition back.
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
    """What makes processes one fleet: they are members of one group of one cluster, so that Kafka deals out to them.

    :param cluster_id: ``None`` if the broker does not say it.
    """
    return json.dumps([cluster_id, kafka_group])


def may_share(found: str | None, fleet: str, *, is_live: bool, decides: bool = False) -> bool:
    """Whether a process joins the claim that the group has; otherwise it founds a fleet, which fences what it finds.

    :param found: the fleet that has the group, ``None`` if that is none.
    :param is_live: whether any of its members is. Otherwise there is nobody to share with; and a copy of the database
        has the fleet's row too, but its processes must not have the fleet's epoch: that is what tells them apart.
    :param decides: whether the policy decides where a partition starts: to read a recreated topic again, or to trust a
        restored database. That holds for all partitions and takes an epoch of its own, so no single member may do it.
    """
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
        """Whether it sends heartbeats; see `offsetstore.protocol.runs.is_live`."""
        return is_live(self.alive_for)


class FleetSession(Protocol):
    """The part of a `Session` for fleets. The members' heartbeats are the fleet's: it is live while one of them is."""

    def take_partitions(self, group: str, token: Token, partitions: Collection[TopicPartition]) -> None:
        """Write a member's token to rows. Needs their locks."""
        ...

    def add_member(self, group: str, fleet: Token, member_id: UUID, owner: str) -> None:
        """Write a member's row, with a first heartbeat.

        :param fleet: its token, which the group has.
        """
        ...

    def trim_members(self, group: str, fleet_id: UUID) -> None:
        """Remove members of other fleets, and those that have been silent for a day; it waits for nobody.

        Only under the group's lock: a heartbeat would remove the members of a fleet that takes the group meanwhile.
        """
        ...

    def beat_member(self, group: str, fleet: Token, member_id: UUID) -> bool:
        """Write a member's heartbeat; return ``False`` if it has no row, or the group is no longer the fleet's."""
        ...

    def drop_member(self, group: str, member_id: UUID) -> None:
        """Remove a member, which has left."""
        ...

    def members(self, group: str) -> list[FleetMember]:
        """The members of the fleet that has the group, the oldest first; none if a claim has it."""
        ...

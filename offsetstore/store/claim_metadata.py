"""The metadata of a claim's partitions, as their rows have it now; what a claim keeps of it is in its terms."""

from __future__ import annotations

from offsetstore.errors import PartitionLost, StaleClaim
from offsetstore.offsets import Token, TopicPartition
from offsetstore.protocol.database import Session
from offsetstore.protocol.metadata import Text
from offsetstore.store.takeover import taken_by


def read_own(
    session: Session, group: str, token: Token, topic: str, partition: int | None, *, group_token: Token | None = None
) -> dict[TopicPartition, Text]:
    """Read the metadata of one partition, or of all the topic's partitions that have rows, for the owner of the group.

    :param group_token: that of the group's row, where it is another one: a fleet's.
    :raises StaleClaim: the group's row has another token, if a row has, or there are none.
    :raises PartitionLost: a row has that of another member of the fleet.
    """
    rows = session.read_metadata(group, topic, partition)
    stale = next((tp for tp, row in rows.items() if row.token != token), None)
    if rows and stale is None:
        return {tp: row.text for tp, row in rows.items()}
    owner, expected = session.group(group), group_token or token
    if owner is None or owner.token != expected or (stale is not None and expected == token):
        raise StaleClaim(
            f"group {group!r} has been claimed, reset or renamed; its metadata belongs to another job",
            topic_partition=stale if partition is None else TopicPartition(topic, partition),
            found=taken_by(session, group),
            expected=str(expected),
        )
    if stale is not None:
        raise PartitionLost("metadata of a partition that another member of the fleet has", topic_partition=stale)
    return {}

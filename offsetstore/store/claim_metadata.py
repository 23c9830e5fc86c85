"""A claim's metadata: as it was when the claim was made, and what its next advances will write."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

from offsetstore.errors import ConfigurationError, StaleClaim
from offsetstore.offsets import Token, TopicPartition
from offsetstore.protocol.database import Session
from offsetstore.protocol.metadata import Formats, Metadata, Text, format_of, load

_changing: Final = threading.Lock()


class ForNextAdvance(NamedTuple):
    """A text that was stored for a partition's next advance. ``number`` tells it from the same text stored again."""

    text: Text
    number: int


class ClaimMetadata:
    """Threads may share it; it can be pickled if the formats can.

    :param formats: how metadata becomes text.
    :param cached: the texts as they were when the group was claimed.
    :param partitions: those of a task's copy, which has no others; ``None`` for the claim itself.
    """

    def __init__(
        self,
        formats: Formats,
        cached: Mapping[TopicPartition, Text],
        partitions: Collection[TopicPartition] | None = None,
    ) -> None:
        self.formats = formats
        self._cached = {tp: text for tp, text in cached.items() if text is not None}
        self._partitions = None if partitions is None else frozenset(partitions)
        self._next: dict[TopicPartition, ForNextAdvance] = {}
        self._number = 0

    def format(self, tp: TopicPartition) -> Metadata:
        """How the partition's metadata becomes text."""
        return format_of(self.formats, tp.topic)

    def is_cached(self, tp: TopicPartition, *, cache: bool | None) -> bool:
        """Whether a read with this ``cache`` takes the value from when the group was claimed."""
        return self.format(tp).cache if cache is None else cache

    def cached(self, tp: TopicPartition) -> object:
        """The value from when the group was claimed.

        :raises ConfigurationError: the partition is not one of the task's batch.
        :raises MetadataError: the deserializer fails.
        """
        if self._partitions is not None and tp not in self._partitions:
            raise ConfigurationError(
                "a task has the cached metadata of its batch's partitions only",
                topic_partition=tp,
                expected=", ".join(map(str, sorted(self._partitions))),
                next_step="Read it from the table: cache=False.",
            )
        return load(self.formats, tp, self._cached.get(tp))

    def store(self, partitions: Collection[TopicPartition], value: object) -> None:
        """Keep the value for the next advance of each partition; it is serialized now, since it may change later.

        :raises MetadataError: the serializer fails.
        """
        texts = self.dump(partitions, value)
        with _changing:
            self._number += 1
            self._next |= {tp: ForNextAdvance(text, self._number) for tp, text in texts.items()}

    def dump(self, partitions: Collection[TopicPartition], value: object) -> dict[TopicPartition, Text]:
        """Return the value's text for each partition.

        :raises MetadataError: the serializer fails.
        """
        by_topic = {topic: format_of(self.formats, topic).dump(value) for topic in {tp.topic for tp in partitions}}
        return {tp: by_topic[tp.topic] for tp in partitions}

    def next(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, ForNextAdvance]:
        """What was stored for the next advance of these partitions."""
        with _changing:
            return {tp: self._next[tp] for tp in partitions if tp in self._next} if self._next else {}

    def forget(self, used: Mapping[TopicPartition, ForNextAdvance]) -> None:
        """Forget what an advance has used, once it is known to be committed; what was stored since then stays."""
        with _changing:
            for tp, stored in used.items():
                if tp in self._next and self._next[tp].number == stored.number:
                    del self._next[tp]

    def replace(self, partitions: Collection[TopicPartition], found: Mapping[TopicPartition, Text]) -> None:
        """Forget all of these partitions, also what is stored for their next advances; take over what was found."""
        with _changing:
            for tp in partitions:
                self._cached.pop(tp, None)
                self._next.pop(tp, None)
            self._cached |= {tp: text for tp in partitions if (text := found.get(tp)) is not None}

    def of_task(self, partitions: Collection[TopicPartition]) -> ClaimMetadata:
        """A task's copy, for these partitions."""
        cached = {tp: self._cached[tp] for tp in partitions if tp in self._cached}
        copy = ClaimMetadata(self.formats, cached, partitions)
        copy._next = self.next(partitions)
        return copy


def read_own(
    session: Session, group: str, token: Token, topic: str, partition: int | None
) -> dict[TopicPartition, Text]:
    """Read the metadata of one partition, or of all the topic's partitions that have rows, for the owner of the group.

    :raises StaleClaim: the rows have another token; or there are none, and the group has.
    """
    rows = session.read_metadata(group, topic, partition)
    stale = next((tp for tp, row in rows.items() if row.token != token), None)
    if stale is not None or not rows:
        owner = session.group(group)
        if stale is not None or owner is None or owner.token != token:
            raise StaleClaim(
                f"group {group!r} has been claimed, reset or renamed; its metadata belongs to another job",
                topic_partition=stale if partition is None else TopicPartition(topic, partition),
                found="no such group" if owner is None else owner.in_words(),
                expected=str(token),
            )
    return {tp: row.text for tp, row in rows.items()}

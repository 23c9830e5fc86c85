"""A claim's metadata: as they were when it was made, and what its next advances will write."""

from __future__ import annotations

from typing import TYPE_CHECKING

from offsetstore.protocol.metadata import KEEP, Formats, Keep, Metadata, Text, format_of

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from offsetstore.offsets import TopicPartition


class ClaimMetadata:
    """Threads may share it; it can be pickled if the formats can.

    :param formats: how metadata become text.
    :param cached: the texts as they were when the group was claimed.
    """

    def __init__(self, formats: Formats, cached: Mapping[TopicPartition, Text]) -> None:
        self.formats = formats
        self._cached = cached
        self._next: dict[TopicPartition, Text] = {}

    def format(self, tp: TopicPartition) -> Metadata:
        """How the partition's metadata become text."""
        return format_of(self.formats, tp.topic)

    def is_cached(self, tp: TopicPartition, cache: bool | None) -> bool:  # noqa: FBT001 - a read's argument
        """Whether a read with this ``cache`` takes the value from when the group was claimed."""
        return self.format(tp).cache if cache is None else cache

    def cached(self, tp: TopicPartition) -> object:
        """The value from when the group was claimed.

        :raises MetadataError: the deserializer fails.
        """
        return self.format(tp).load(self._cached.get(tp))

    def store(self, partitions: Collection[TopicPartition], value: object) -> None:
        """Keep the value for the next advance of each partition; it is serialized now, since it may change later.

        :raises MetadataError: the serializer fails.
        """
        self._next |= self.dump(partitions, value)

    def dump(self, partitions: Collection[TopicPartition], value: object) -> dict[TopicPartition, Text]:
        """Return the value's text for each partition.

        :raises MetadataError: the serializer fails.
        """
        by_topic = {topic: format_of(self.formats, topic).dump(value) for topic in {tp.topic for tp in partitions}}
        return {tp: by_topic[tp.topic] for tp in partitions}

    def next(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Text]:
        """What was stored for the next advance of these partitions."""
        found: dict[TopicPartition, Text | Keep] = {tp: self._next.get(tp, KEEP) for tp in partitions if self._next}
        return {tp: text for tp, text in found.items() if not isinstance(text, Keep)}

    def forget(self, written: Mapping[TopicPartition, Text]) -> None:
        """Forget what an advance has written, once it is known to be committed; what was stored since then stays."""
        for tp, text in written.items():
            if tp in self._next and self._next[tp] is text:
                self._next.pop(tp, None)

    def of_task(self, partitions: Collection[TopicPartition]) -> ClaimMetadata:
        """A task's copy, for these partitions."""
        copy = ClaimMetadata(self.formats, {tp: self._cached[tp] for tp in partitions if tp in self._cached})
        copy._next = self.next(partitions)
        return copy

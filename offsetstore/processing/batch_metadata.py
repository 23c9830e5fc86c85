"""What a sink's ``metadata=`` function gives each batch to take along."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias, cast

from offsetstore.errors import MetadataError
from offsetstore.offsets import OffsetRange, TopicPartition
from offsetstore.protocol.metadata import Keep, Text
from offsetstore.store.claim import Claim


@dataclass(frozen=True, slots=True)
class BatchInfo:
    """A batch whose rows are computed, and not written yet.

    :param number: Spark's number of the batch.
    :param ranges: the ranges to be written; their ends are the offsets that will be stored.
    :param rows: the number of rows of each output (``""`` if there is only one); ``None`` if tasks compute them, with
        ``atomicity="partition"``.
    """

    number: int
    ranges: Mapping[TopicPartition, OffsetRange]
    rows: Mapping[str, int] | None


MetadataFunction: TypeAlias = Callable[[BatchInfo], object]


class BatchMetadata:
    """Calls the function, and serializes what it returns.

    :param function: ``None`` for none: the metadata are kept.
    """

    def __init__(self, claim: Claim, function: MetadataFunction | None) -> None:
        self._claim = claim
        self._function = function

    def texts(self, info: BatchInfo) -> dict[TopicPartition, Text]:
        """The texts to write; partitions that are missing keep theirs.

        :raises MetadataError: a partition that the claim does not know, or the serializer fails.
        :raises Exception: the function's own.
        """
        if self._function is None or not info.ranges:
            return {}
        returned = self._function(info)
        if isinstance(returned, Keep):
            return {}
        dump = self._claim.claim_metadata.dump
        if not _is_by_partition(returned):
            return dump(info.ranges, returned)
        by_partition = cast("Mapping[TopicPartition, object]", returned)
        unknown = sorted(by_partition.keys() - info.ranges.keys() - self._claim.partitions)
        if unknown:
            raise MetadataError(
                "the sink's metadata function names a partition that the claim does not know",
                topic_partition=unknown[0],
                expected=", ".join(map(str, info.ranges)),
            )
        texts: dict[TopicPartition, Text] = {}
        for tp, value in by_partition.items():
            if tp in info.ranges and not isinstance(value, Keep):
                texts |= dump([tp], value)
        return texts


def _is_by_partition(returned: object) -> bool:
    if not isinstance(returned, Mapping):
        return False
    return all(isinstance(key, TopicPartition) for key in cast("Mapping[object, object]", returned))

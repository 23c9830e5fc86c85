"""The stamp, which distinguishes our copies of stored offsets in Kafka from other commits.

It is the beginning of the metadata that Kafka keeps with a committed offset; the job's own metadata follows if both
fit. It names the store, the group and the epoch of the claim that wrote it. So a copy that is older than a reset is
recognized, and so is a copy by another group that shares the group in Kafka. Stamps of version 1 lack the group.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final
from uuid import UUID

from offsetstore.offsets import CommittedOffset

MAX_BYTES: Final = 4095
"""The longest metadata that a broker accepts by default, in bytes of UTF-8.

Kafka's ``offset.metadata.max.bytes`` is 4,096, and librdkafka adds a zero byte of its own.
"""

# Leaves later claims room within 64 bits: a claim's epoch is above each that it has seen.
_MAX_EPOCH: Final = 2**62
# It ends at a semicolon: librdkafka reads until a zero byte, so that what others have committed can have anything after
# its end (decision 0010).
_FORM = re.compile(r"offsetstore:(?:1|2:(?P<group>[0-9a-f]{12})):(?P<store>[0-9a-f-]{36}):(?P<epoch>\d{1,19})(?:;|$)")


def digest(group: str) -> str:
    """Shorten a group's name, for places that limit its length or its characters."""
    return hashlib.sha256(group.encode()).hexdigest()[:12]


@dataclass(frozen=True, slots=True)
class Stamp:
    """The store, group and epoch that copied the offset.

    ``group`` is the `digest` of the group's name in the store, ``None`` in a stamp of version 1.
    """

    store_id: UUID
    epoch: int
    group: str | None = None

    def __str__(self) -> str:
        return f"store {self.store_id}, epoch {self.epoch}"

    def is_of(self, store_id: UUID | None, group: str | None) -> bool:
        """Whether this store made the copy, for this group (its `digest`) if both groups are known."""
        # A stamp of version 1 lacks the group, and counts as any group's of its store (decision 0022).
        return self.store_id == store_id and (self.group is None or group is None or self.group == group)

    def text(self, metadata: str | None = None) -> str:
        """The text to commit: the stamp, followed by the metadata if both fit into `MAX_BYTES`."""
        version = "1" if self.group is None else f"2:{self.group}"
        stamp = f"offsetstore:{version}:{self.store_id}:{self.epoch};"
        whole = stamp + (metadata or "")
        return whole if len(whole.encode()) <= MAX_BYTES else stamp

    @staticmethod
    def of(committed: CommittedOffset | None) -> Stamp | None:
        """Read the stamp of a committed offset; ``None`` if no store made the commit."""
        found = _FORM.match(committed.metadata or "") if committed is not None else None
        return None if found is None else _read(found["store"], found["epoch"], found["group"])


# The copies of one claim have one stamp: a claim of 10,000 partitions parses and makes it once (decision 0073).
@lru_cache
def _read(store: str, epoch: str, group: str | None) -> Stamp | None:
    try:
        stamp = Stamp(UUID(store), int(epoch), group)
    except ValueError:
        return None
    return stamp if stamp.epoch <= _MAX_EPOCH else None


def latest_epoch(committed: Iterable[CommittedOffset], store_id: UUID) -> int:
    """The latest epoch of the store's own stamps, 0 if there is none.

    A claim's epoch is above it: a restored database would else use epochs again, and its copies could not be told from
    those of the lost one (decision 0018).
    """
    stamps = filter(None, map(Stamp.of, committed))
    return max((stamp.epoch for stamp in stamps if stamp.store_id == store_id), default=0)

"""Which store this is: its database, the revision of its tables, and the stamp of its copies in Kafka.

The stamp distinguishes our copies of stored offsets from other commits. It is the beginning of the metadata that Kafka
keeps with a committed offset; the job's own metadata follows if both fit. It names the store, the group and the epoch
of the claim that wrote it. So a copy that is older than a reset is recognized, and so is a copy by another group that
shares the group in Kafka. Stamps of version 1 lack the group.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final
from uuid import UUID

from offsetstore.errors import StoreMoved
from offsetstore.offsets import CommittedOffset
from offsetstore.text import command

_REVISION: Final = re.compile(r"(?:([0-9]+)\.)?([0-9]{4})")


def runs_on(code: str, tables: str | None) -> bool:
    """Whether code that was written for one revision runs on tables of another."""
    # Later revisions of a series only add to the earlier ones; what contracts begins a new series (decision 0056).
    (series, number), (found_series, found) = _parts(code), _parts(tables)
    return series == found_series and number <= found


def is_earlier(revision: str, than: str) -> bool:
    """Whether one revision comes before the other; a text that is not a revision is never earlier."""
    return _parts(revision)[1] < _parts(than)[1]


def _parts(revision: str | None) -> tuple[str, float]:
    """The series and the number: 1 and 10 for ``"1.0010"``; ``"0008"`` is of the first series."""
    found = _REVISION.fullmatch(revision or "")
    # Without a revision there is no series, so no code runs on the tables; and the number is later than any other.
    return ("", float("inf")) if found is None else (found[1] or "0", int(found[2]))


@dataclass(frozen=True, slots=True)
class StoreIdentity:
    """Which store this is, and in which database (decision 0050).

    A copy that PostgreSQL makes row by row (TEMPLATE, dump and restore, logical replication), and ``pg_upgrade``, keep
    ``home`` and change ``here``; a copy of the server's files changes neither.

    :param store_id: the id in the stamps of this store's copies in Kafka.
    :param home: the database that the offsets belong to, ``None`` if it was unknown when this was written.
    :param here: the current database, ``None`` if the role may not know it.
    """

    store_id: UUID
    home: str | None
    here: str | None

    @property
    def is_compared(self) -> bool:
        return self.home is not None and self.here is not None

    @property
    def is_elsewhere(self) -> bool:
        return self.is_compared and self.home != self.here

    def __str__(self) -> str:
        return f"store {self.store_id}" + ("" if self.here is None else f" in database {self.here}")

    def may_be(self, other: StoreIdentity) -> bool:
        """Whether it is the same store in the same database, or its physical standby, as far as both are known."""
        # Two roles may look at one store, and only one of them may know the database (decision 0050).
        return self.store_id == other.store_id and (None in {self.here, other.here} or self.here == other.here)

    def expect_home(self, schema: str | None) -> None:
        """Refuse to go on in another database than the store's home.

        :param schema: of the tables, for the commands that the error names.
        :raises StoreMoved: it is another database.
        """
        if self.is_elsewhere:
            raise StoreMoved(
                "the store's tables are in another database than before: they were moved, upgraded or restored, or "
                "this is a copy",
                found=f"database {self.here} (the server's system identifier, and the database's oid)",
                expected=f"{self.home}, the home of store {self.store_id}",
                next_step="If the store was moved, or restored in place, and no job runs on the other database any "
                f"more: `{command('store', 'moved', '--reason', '...', schema=schema)}`. If this is a copy, and the "
                f"original goes on: `{command('store', 'new-id', '--reason', '...', schema=schema)}`, and give each "
                "job of the copy a kafka_group= of its own.",
            )


MAX_COMMITTED_BYTES: Final = 4095
"""The longest metadata that a broker accepts by default, in bytes of UTF-8.

Kafka's ``offset.metadata.max.bytes`` is 4,096, and librdkafka adds a zero byte of its own.
"""

# Leaves later claims room within 64 bits: a claim's epoch is above each that it has seen.
_MAX_EPOCH: Final = 2**62
# It ends at a semicolon: librdkafka reads until a zero byte, so that what others have committed can have anything after
# its end (decision 0010).
_STAMP_FORM = re.compile(
    r"offsetstore:(?:1|2:(?P<group>[0-9a-f]{12})):(?P<store>[0-9a-f-]{36}):(?P<epoch>\d{1,19})(?:;|$)"
)


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
        """The text to commit: the stamp, followed by the metadata if both fit into `MAX_COMMITTED_BYTES`."""
        version = "1" if self.group is None else f"2:{self.group}"
        stamp = f"offsetstore:{version}:{self.store_id}:{self.epoch};"
        whole = stamp + (metadata or "")
        return whole if len(whole.encode()) <= MAX_COMMITTED_BYTES else stamp

    @staticmethod
    def of(committed: CommittedOffset | None) -> Stamp | None:
        """Read the stamp of a committed offset; ``None`` if no store made the commit."""
        found = _STAMP_FORM.match(committed.metadata or "") if committed is not None else None
        return None if found is None else _stamp(found["store"], found["epoch"], found["group"])


# The copies of one claim have one stamp: a claim of 10,000 partitions parses and makes it once (decision 0073).
@lru_cache
def _stamp(store: str, epoch: str, group: str | None) -> Stamp | None:
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

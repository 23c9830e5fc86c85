"""Which store this is, in which database, and at which revision of its tables."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from offsetstore.errors import StoreMoved
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

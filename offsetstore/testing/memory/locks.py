"""Row locks for the in-memory database: FOR UPDATE, FOR SHARE, ``lock_timeout``, and who is in the way."""

from __future__ import annotations

import time
from enum import Enum
from typing import TYPE_CHECKING, Protocol, TypeAlias

from offsetstore.errors import LockTimeout

if TYPE_CHECKING:
    import threading

Key: TypeAlias = tuple[object, ...]
"""A row: the table's name and the primary key. It can be locked before it is there, as by a unique index."""


class Mode(Enum):
    """How strong a lock is; two shares go together, nothing else does."""

    SHARE = "FOR SHARE"
    UPDATE = "FOR UPDATE"


class Owner(Protocol):
    """What has locks: a session."""

    name: str
    lock_timeout: float | None
    terminates: tuple[float, str] | None
    """From which `time.monotonic` on it ends what blocks it, and how the names of those begin."""

    def check_alive(self) -> None:
        """Raise ConnectionLost if it was ended by somebody."""
        ...

    def die(self) -> None:
        """End it from outside, as ``pg_terminate_backend`` does."""
        ...


class RowLocks:
    """All locks of one database. Everything here is called with ``changed`` held.

    Two sessions that lock in opposite orders are not told apart from a long wait: ``lock_timeout`` ends it.
    """

    def __init__(self, changed: threading.Condition) -> None:
        self._changed = changed
        self._held: dict[Key, dict[Owner, Mode]] = {}

    def take(self, owner: Owner, key: Key, mode: Mode) -> None:
        """Wait for the lock and take it; kept until `release`.

        :raises LockTimeout: it was not had within the owner's ``lock_timeout``.
        :raises ConnectionLost: the owner was ended while it waited.
        """
        end = None if owner.lock_timeout is None else time.monotonic() + owner.lock_timeout
        while in_the_way := self._in_the_way(owner, key, mode):
            now = time.monotonic()
            if owner.terminates is not None and now >= owner.terminates[0]:
                doomed = [other for other in in_the_way if other.name.startswith(owner.terminates[1])]
                for other in doomed:
                    other.die()
                if doomed:
                    continue
            if end is not None and now >= end:
                raise LockTimeout(
                    "could not acquire a lock within lock_timeout",
                    found=f"{key} is locked by {', '.join(other.name for other in in_the_way)}",
                )
            self._wait(owner, now, end)
            owner.check_alive()
        modes = self._held.setdefault(key, {})
        if modes.get(owner) is not Mode.UPDATE:
            modes[owner] = mode

    def _wait(self, owner: Owner, now: float, end: float | None) -> None:
        wakes = [] if end is None else [end]
        if owner.terminates is not None and owner.terminates[0] > now:
            wakes.append(owner.terminates[0])
        self._changed.wait(min(wakes) - now if wakes else None)

    def has(self, owner: Owner, key: Key) -> bool:
        """Whether the owner has a lock on the row, of whatever strength."""
        return owner in self._held.get(key, {})

    def holder(self, key: Key) -> Owner | None:
        """Who has the row FOR UPDATE."""
        return next((owner for owner, mode in self._held.get(key, {}).items() if mode is Mode.UPDATE), None)

    def give_back(self, owner: Owner, key: Key) -> None:
        """Let go of one lock, before the end."""
        self._held.get(key, {}).pop(owner, None)
        self._changed.notify_all()

    def release(self, owner: Owner) -> None:
        """Let go of all that the owner has."""
        for key in [key for key, modes in self._held.items() if owner in modes]:
            del self._held[key][owner]
            if not self._held[key]:
                del self._held[key]
        self._changed.notify_all()

    def _in_the_way(self, owner: Owner, key: Key, mode: Mode) -> list[Owner]:
        others = {other: theirs for other, theirs in self._held.get(key, {}).items() if other is not owner}
        if mode is Mode.SHARE:
            return [other for other, theirs in others.items() if theirs is Mode.UPDATE]
        return list(others)

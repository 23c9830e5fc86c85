"""Row locks for the in-memory database: FOR UPDATE, FOR SHARE, ``lock_timeout``, and which session blocks another."""

from __future__ import annotations

import threading
import time
from enum import Enum
from typing import Protocol, TypeAlias

from offsetstore.errors import LockTimeout

Key: TypeAlias = tuple[object, ...]
"""A row: the table's name and the primary key. It can be locked before it exists, as by a unique index."""


class Mode(Enum):
    """The strength of a lock; only two shares are compatible."""

    SHARE = "FOR SHARE"
    UPDATE = "FOR UPDATE"


class Owner(Protocol):
    """An owner of locks: a session."""

    name: str
    lock_timeout: float | None
    terminates: tuple[float, str] | None
    """The `time.monotonic` from which it ends the sessions that block it, and the prefix of their names."""

    def check_alive(self) -> None:
        """Raise ConnectionLost if another session has ended it."""
        ...

    def die(self) -> None:
        """End it from outside, as ``pg_terminate_backend`` does."""
        ...


class RowLocks:
    """All locks of one database. Everything here is called with ``changed`` held.

    A deadlock is not distinguished from a long wait: ``lock_timeout`` ends both.
    """

    def __init__(self, changed: threading.Condition) -> None:
        self._changed = changed
        self._held: dict[Key, dict[Owner, Mode]] = {}

    def take(self, owner: Owner, key: Key, mode: Mode) -> None:
        """Wait for the lock and take it; kept until `release`.

        :raises LockTimeout: could not acquire it within the owner's ``lock_timeout``.
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
        """Whether the owner has a lock on the row, of either strength."""
        return owner in self._held.get(key, {})

    def is_free(self, owner: Owner, key: Key) -> bool:
        """Whether the owner could lock the row FOR UPDATE now."""
        return not self._in_the_way(owner, key, Mode.UPDATE)

    def holder(self, key: Key) -> Owner | None:
        """The owner that has locked the row FOR UPDATE."""
        return next((owner for owner, mode in self._held.get(key, {}).items() if mode is Mode.UPDATE), None)

    def give_back(self, owner: Owner, key: Key) -> None:
        """Release one lock before the transaction ends."""
        self._held.get(key, {}).pop(owner, None)
        self._changed.notify_all()

    def release(self, owner: Owner) -> None:
        """Release all locks of the owner."""
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

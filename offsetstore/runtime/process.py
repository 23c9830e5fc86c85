"""What a process inherits from its parent and must leave alone, and how often it was asked to end.

Connections, clients and threads belong to the process that made them. A child that sends anything on an inherited
connection, even the goodbye that closes it, ends or extends what the parent is doing there. So an object refuses to be
used in another process than its own (`expect_own`). The sockets are also taken from a child (`keep_from_children`),
since code that is not ours may use them there: a pool's finalizer, an exit handler, the application's own SQL (decision
0053).
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Protocol
from weakref import WeakSet

from offsetstore.errors import ConfigurationError

_STORE: Final = "this store was made before a fork, and its connections belong to the other process"
_CONNECT: Final = "Connect in this process, or start processes with the spawn method."


class HasSocket(Protocol):
    """A connection that has a socket."""

    def fileno(self) -> int:
        """The socket's file descriptor; raises if there is none."""
        ...


_kept: WeakSet[HasSocket] = WeakSet()
_nowhere: list[socket.socket] = []


def is_own(pid: int) -> bool:
    return os.getpid() == pid


def expect_own(pid: int, what: str = _STORE, next_step: str = _CONNECT) -> None:
    """Raise unless `is_own`.

    :raises ConfigurationError: this process is a fork of the process that made the object.
    """
    if (own := os.getpid()) != pid:
        raise ConfigurationError(what, found=f"process {own}", expected=f"process {pid}", next_step=next_step)


def keep_from_children(connection: HasSocket) -> None:
    """Give processes that are forked from now on a socket that leads nowhere, in place of the connection's.

    :raises OSError: this process may open no more files.
    """
    # Made here, since a child that can't make the socket would keep the parent's.
    if not _nowhere:
        nowhere, other = socket.socketpair()
        other.close()
        _nowhere.append(nowhere)
    _kept.add(connection)


def _take_sockets() -> None:
    """In a child: what is sent fails, and what is read has ended. The parent's socket stays open."""
    for connection in list(_kept):
        # An error means that it is closed, or was never connected. ``dup2``, since closing it is not safe: libpq's
        # memory may be in the middle of another thread's call (decision 0053).
        with suppress(Exception):
            os.dup2(_nowhere[0].fileno(), connection.fileno(), inheritable=False)


# Where processes can fork.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_take_sockets)


APART: Final = 1.0
"""Seconds. `timeout` signals its program and then the program's group; others signal a group and each process in it."""


class StopRequests:
    """Counts the requests to end. A request within a second of one that counted is the same request.

    A signal handler may use it: it holds no lock.

    :param clock: in seconds; it must hold no lock either.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.count = 0
        self._clock = clock
        self._counted_at = 0.0

    def add(self) -> bool:
        """Return whether this is another request."""
        now = self._clock()
        if self.count and now - self._counted_at < APART:
            return False
        self._counted_at = now
        self.count += 1
        return True

"""What a forked child inherits and must leave alone: connections, clients and threads are those of its parent.

A child that sends anything on an inherited connection, even the goodbye with which it is closed, ends or extends what
the parent is doing there. So an object refuses to be used in another process than its own (`expect_own`); and the
sockets are taken from a child (`keep_from_children`), since code that is not ours may use them there: a pool's
finalizer, an exit handler, SQL of the application's own.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from typing import Final, Protocol
from weakref import WeakSet

from offsetstore.errors import ConfigurationError

_STORE: Final = "this store was made before a fork, and its connections belong to the other process"
_CONNECT: Final = "Connect in this process, or start processes with the spawn method."


class HasSocket(Protocol):
    """A connection that can say which socket it has."""

    def fileno(self) -> int:
        """The socket's number; raises if there is none."""
        ...


_kept: WeakSet[HasSocket] = WeakSet()
_nowhere: list[socket.socket] = []


def is_own(pid: int) -> bool:
    """Whether an object that was made in the process ``pid`` may be used here."""
    return os.getpid() == pid


def expect_own(pid: int, what: str = _STORE, next_step: str = _CONNECT) -> None:
    """Raise unless `is_own`.

    :raises ConfigurationError: this process is a fork of the one in which the object was made.
    """
    if not is_own(pid):
        raise ConfigurationError(what, found=f"process {os.getpid()}", expected=f"process {pid}", next_step=next_step)


def keep_from_children(connection: HasSocket) -> None:
    """Let processes that are forked from now on have a socket in its place that leads nowhere.

    :raises OSError: this process may open no more files. A child that can't make the socket would keep this one's.
    """
    if not _nowhere:
        nowhere, other = socket.socketpair()
        other.close()
        _nowhere.append(nowhere)
    _kept.add(connection)


def _take_sockets() -> None:
    """In a child: what is sent fails, and what is read has ended. The parent's socket stays open."""
    for connection in list(_kept):
        with suppress(Exception):  # it is closed, or was never connected
            os.dup2(_nowhere[0].fileno(), connection.fileno(), inheritable=False)


if hasattr(os, "register_at_fork"):  # where processes can fork
    os.register_at_fork(after_in_child=_take_sockets)

"""What all proxies of the tests share: a port that accepts connections, and what they read from them."""

from __future__ import annotations

import socket
import struct
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit


class Proxy(ABC):
    """Stands before a host and port, while its block runs.

    :param port: where it listens; a free one if not given.
    """

    def __init__(self, target: tuple[str, int], *, port: int = 0) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", port))
        self.port: int = self._listener.getsockname()[1]
        self._guard = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        self._accepting = self._in_thread(self._accept)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop_accepting()
        for one in self._open_sockets():
            self.close(one)

    def _stop_accepting(self) -> None:
        """Listen no more; what was accepted until then is among the open sockets afterwards."""
        self.close(self._listener)
        self._accepting.join(10)

    @abstractmethod
    def _serve(self, client: socket.socket) -> None:
        """Start the threads of a new connection."""

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                self._serve(self._keep(self._listener.accept()[0]))

    def _connect(self) -> socket.socket:
        return self._keep(socket.create_connection(self._target))

    def _connect_for(self, client: socket.socket) -> socket.socket | None:
        """Connect to the server; where it is down, the client's connection is closed."""
        try:
            return self._connect()
        except OSError:
            self.close(client)
            return None

    def _in_thread(self, function: Callable[..., object], *arguments: object) -> threading.Thread:
        thread = threading.Thread(target=function, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()
        return thread

    def close(self, one: socket.socket) -> None:
        """Close a connection; a thread that reads from it gets its end."""
        self._forget(one)
        with suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
        one.close()

    def _keep(self, one: socket.socket) -> socket.socket:
        # Or each piece that is passed on waits for the answer to the one before.
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self._guard:
            self._sockets.add(one)
        return one

    def _forget(self, one: socket.socket) -> None:
        with self._guard:
            self._sockets.discard(one)

    def _open_sockets(self) -> list[socket.socket]:
        with self._guard:
            return list(self._sockets)


def server_of(url: str) -> tuple[str, int]:
    """The host and port of a URL."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    assert parts.port is not None
    return parts.hostname, parts.port


def url_at(url: str, port: int, *, query: str = "") -> str:
    """The same database without its password, at a port of this machine."""
    parts = urlsplit(url)
    return parts._replace(netloc=f"{parts.username}@127.0.0.1:{port}", query=query).geturl()


def read_frame(connection: socket.socket) -> bytes:
    """One message of PostgreSQL's protocol: a type byte, a length that counts itself, a body.

    :raises EOFError: the other side has closed.
    """
    head = read_exactly(connection, 5)
    return head + read_exactly(connection, struct.unpack("!i", head[1:])[0] - 4)


def read_startup(client: socket.socket) -> bytes:
    """A connection's first message, which has no type byte.

    :raises EOFError: the other side has closed.
    """
    length = read_exactly(client, 4)
    return length + read_exactly(client, struct.unpack("!i", length)[0] - 4)


def read_exactly(connection: socket.socket, count: int) -> bytes:
    """Read so many bytes.

    :raises EOFError: the other side has closed.
    """
    data = b""
    while len(data) < count:
        part = connection.recv(count - len(data))
        if not part:
            raise EOFError
        data += part
    return data

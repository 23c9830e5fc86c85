"""A pooler with the limits of PgBouncer's transaction mode: what a client leaves in a session is not there next time.

A server's connection is a client's for one transaction. It then goes to the end of the queue, so that with two of
them a client's next transaction is always on another connection, unless others have them all; PgBouncer does that with
``server_round_robin``. As there, named prepared statements and SET without LOCAL stay behind on the connection, for
whoever gets it next; startup parameters that are not known are refused; a client that leaves within a transaction
takes the server's connection along; and one that the server ends takes its client along.

Unlike PgBouncer it doesn't carry a client's application_name and four other settings over: the store must not need
that. No TLS, no passwords, no cancel requests.
"""

from __future__ import annotations

import select
import socket
import struct
import threading
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from urllib.parse import urlsplit

from tests.support.tcp import Proxy, read_frame, read_startup, server_of, url_at

_PROTOCOL = 3 << 16
_CANCEL = (1234 << 16) + 5678
_ASKS_FOR_ENCRYPTION = {(1234 << 16) + 5679, (1234 << 16) + 5680}
_KNOWN = {
    "user",
    "database",
    "application_name",
    "client_encoding",
    "datestyle",
    "timezone",
    "standard_conforming_strings",
}
_IDLE = b"I"
_HEAD = 5  # a frame's kind and length


class Pooler(Proxy):
    """Stands before the server of a URL; a context manager.

    :param size: connections to the server, all opened at the start: two at least, or none ever changes.
    """

    def __init__(self, url: str, *, size: int = 6) -> None:
        super().__init__(server_of(url))
        self.url = url_at(url, self.port)
        parts = urlsplit(url)
        self._startup = _startup_message({"user": str(parts.username), "database": parts.path.strip("/")})
        self._free: deque[_Server] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._welcome = b""
        for _ in range(size):
            self._free.append(self._log_in())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        super().__exit__(kind, error, traceback)
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive()
        for one in self._open_sockets():  # that a thread has opened since
            self.close(one)

    @property
    def welcome(self) -> bytes:
        """What the server told at the start of a connection, for a client that gets none yet."""
        with self._changed:
            return self._welcome

    def take(self) -> _Server:
        """The connection that has waited longest; where the server has ended it, a new one instead.

        :raises EOFError: the pooler is closed.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self._free or self._closed, 60) or self._closed:
                raise EOFError
            server = self._free.popleft()
        if not select.select([server.socket], [], [], 0)[0]:
            return server
        self.close(server.socket)
        return self._log_in()

    def give_back(self, server: _Server) -> None:
        """To the end of the queue."""
        with self._changed:
            self._free.append(server)
            self._changed.notify()

    def replace(self, server: _Server) -> None:
        """The connection is gone, or in a state in which nobody may get it."""
        self.close(server.socket)
        with suppress(OSError, EOFError):
            self.give_back(self._log_in())

    def _log_in(self) -> _Server:
        if self._closed:
            raise EOFError
        server = self._connect()
        server.sendall(self._startup)
        welcome = b""
        while True:
            frame = read_frame(server)
            assert frame[:1] in b"RSKZN", frame
            if frame[:1] in b"RSKZ":
                welcome += frame
            if frame[:1] == b"Z":
                break
        self._welcome = welcome
        return _Server(server)

    def _serve(self, client: socket.socket) -> None:
        self._in_thread(_Client(self, client).serve)


@dataclass(eq=False)
class _Server:
    """A connection to the server; ``asked`` counts the answers that it owes, ``begun`` is a part of one."""

    socket: socket.socket
    begun: bytes = b""
    asked: int = 0
    extended: bool = False


class _Client:
    """One client, and the server's connection that it has for the time of a transaction."""

    def __init__(self, pooler: Pooler, client: socket.socket) -> None:
        self._pooler = pooler
        self._client = client
        self._server: _Server | None = None

    def serve(self) -> None:
        """Until it leaves, or its server's connection ends."""
        with suppress(OSError, EOFError, ValueError):
            if self._greet():
                while True:
                    self._step()
        self._pooler.close(self._client)
        if self._server is not None:
            self._pooler.replace(self._server)

    def _greet(self) -> bool:
        while True:
            message = read_startup(self._client)
            [code], body = struct.unpack("!i", message[4:8]), message[8:]
            if code not in _ASKS_FOR_ENCRYPTION:
                break
            self._client.sendall(b"N")
        if code == _CANCEL:
            return False
        assert code == _PROTOCOL, code
        names = body.rstrip(b"\0").split(b"\0")[::2]
        unknown = [name.decode() for name in names if name.decode().lower() not in _KNOWN]
        if unknown:
            self._client.sendall(_fatal(f"unsupported startup parameter: {unknown[0]}"))
            return False
        self._client.sendall(self._pooler.welcome)
        return True

    def _step(self) -> None:
        sockets = [self._client, *([self._server.socket] if self._server else [])]
        readable = select.select(sockets, [], [])[0]
        if self._server is not None and self._server.socket in readable:
            self._answer(self._server)
        else:
            self._ask(read_frame(self._client))

    def _ask(self, frame: bytes) -> None:
        kind = frame[:1]
        if kind == b"X":
            raise EOFError
        if self._server is None:
            self._server = self._pooler.take()
        if kind in b"QSF":
            self._server.asked += 1
            self._server.extended = kind == b"S"
        self._server.socket.sendall(frame)

    def _answer(self, server: _Server) -> None:
        """Forward what has come; the rest of a frame may be kept back until the client sends more."""
        more = server.socket.recv(1 << 16)
        if not more:
            raise EOFError
        server.begun += more
        while len(server.begun) >= _HEAD:
            size = 1 + struct.unpack_from("!i", server.begun, 1)[0]
            if len(server.begun) < size:
                return
            frame, server.begun = server.begun[:size], server.begun[size:]
            self._client.sendall(frame)
            if frame[:1] == b"G" and server.extended:
                server.asked -= 1  # the server ignores a Sync that was sent before a COPY's data
            if frame[:1] == b"Z":
                server.asked -= 1
                if server.asked == 0 and frame[5:] == _IDLE:
                    self._server = None
                    self._pooler.give_back(server)
                    return


def _startup_message(parameters: dict[str, str]) -> bytes:
    body = struct.pack("!i", _PROTOCOL) + b"".join(
        name.encode() + b"\0" + value.encode() + b"\0" for name, value in parameters.items()
    )
    return struct.pack("!i", len(body) + 5) + body + b"\0"


def _fatal(message: str) -> bytes:
    body = b"SFATAL\0VFATAL\0C08P01\0M" + message.encode() + b"\0\0"
    return b"E" + struct.pack("!i", len(body) + 4) + body

"""A proxy before PostgreSQL that counts round trips, and can make each of them slower."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from offsetstore.postgres import statements
from tests.support.tcp import Proxy, read_frame, read_startup, server_of, url_at

_HEARTBEAT = b"heartbeats SET beat_at"
_AWAITED = frozenset(b"QSc")
"""The types of the messages after which a client waits for the server: Query, Sync and CopyDone."""


@dataclass
class _Connection:
    """Counts the client's waits. ``beats``: whether it carries heartbeats, which come at any time."""

    trips: int = 0
    beats: bool = False


class TripCounter(Proxy):
    """Forwards to the server of a URL; a context manager.

    :param delay: seconds that each round trip takes in addition.
    """

    def __init__(self, url: str, *, delay: float = 0.0) -> None:
        super().__init__(server_of(url))
        # Without encryption, or a heartbeat could not be told from anything else.
        self.url = url_at(url, self.port, query="sslmode=disable&gssencmode=disable")
        self._delay = delay
        self._counting = threading.Lock()
        self._connections: list[_Connection] = []

    @property
    def trips(self) -> int:
        """The round trips until now, without heartbeats."""
        with self._counting:
            return sum(one.trips for one in self._connections if not one.beats)

    @contextmanager
    def counting(self) -> Generator[list[int]]:
        """Yield a list, to which the number of round trips in the block is appended."""
        counted: list[int] = []
        before = self.trips
        yield counted
        counted.append(self.trips - before)

    def _serve(self, client: socket.socket) -> None:
        server = self._connect_for(client)
        if server is not None:
            one = _Connection()
            with self._counting:
                self._connections.append(one)
            self._in_thread(self._ask, client, server, one)
            self._in_thread(self._answer, server, client)

    def _ask(self, client: socket.socket, server: socket.socket, one: _Connection) -> None:
        with suppress(OSError, EOFError):
            server.sendall(read_startup(client))
            while True:
                frame = read_frame(client)
                is_awaited = frame[0] in _AWAITED
                with self._counting:
                    one.trips += is_awaited
                    one.beats |= _HEARTBEAT in frame
                if is_awaited and self._delay:
                    time.sleep(self._delay)
                server.sendall(frame)
        self.close(server)

    def _answer(self, server: socket.socket, client: socket.socket) -> None:
        with suppress(OSError):
            while data := server.recv(1 << 16):
                client.sendall(data)
        self.close(client)


@contextmanager
def sent_statements() -> Generator[list[str]]:
    """Collect the statements that the stores of this thread send inside the block: heartbeats come at any time."""
    sent: list[str] = []
    text: Any = statements.for_psycopg
    here = threading.get_ident()

    def note(statement: str, place: str) -> str:
        if threading.get_ident() == here:
            sent.append(statement)
        return text(statement, place)

    with patch.object(statements, "for_psycopg", note):
        yield sent

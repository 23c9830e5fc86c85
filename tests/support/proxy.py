"""A TCP proxy that knows PostgreSQL's protocol well enough to lose one COMMIT, or the answer to one.

It stands between a client and the real server, frame by frame. Armed with `CommitProxy.losing`, it breaks the first
COMMIT of a transaction in which a given statement was sent, and fails the test if there was none.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum

from tests.support.tcp import Proxy, read_frame, read_startup, server_of, url_at

ADVANCE = b"SET next_offset = n.until_offset"
"""Marks a transaction that advances offsets; heartbeats and claims pass."""

CLAIM = b"SET epoch = "
"""Marks a claim's transaction, and that of a member that takes partitions."""

JOIN = b"group_members (consumer_group, member_id"
"""Marks the transaction of a process that joins a fleet."""


class Lost(Enum):
    """What is lost, and who notices."""

    COMMIT = "COMMIT never reaches the server, and both connections are closed"
    ANSWER = "the server commits; its answer never reaches the client, and both connections are closed"
    CONNECTION = "COMMIT never reaches the server; the client's connection is closed, the server is not told"


def _nothing() -> None:
    return None


@dataclass
class _Fault:
    lost: Lost
    after: bytes
    then: Callable[[], object] = _nothing
    fired: threading.Event = field(default_factory=threading.Event)
    error: BaseException | None = None

    def fire(self) -> None:
        """Run what shall happen between the loss and the client's noticing it."""
        try:
            self.then()
        except BaseException as error:  # noqa: BLE001 - it is raised in the test's own thread
            self.error = error
        self.fired.set()


class CommitProxy(Proxy):
    """Forwards to the server of a URL; a context manager."""

    def __init__(self, url: str) -> None:
        super().__init__(server_of(url))
        # Without encryption, or there would be nothing to read.
        self.url = url_at(url, self.port, query="sslmode=disable&gssencmode=disable")
        self._fault: _Fault | None = None

    @contextmanager
    def losing(
        self, lost: Lost, *, after: bytes = ADVANCE, then: Callable[[], object] = _nothing
    ) -> Generator[threading.Event]:
        """Lose one inside the block; ``then`` runs before the client notices.

        :param after: part of a statement that the transaction must have sent.
        """
        fault = _Fault(lost, after, then)
        self._fault = fault
        try:
            yield fault.fired
        finally:
            self._fault = None
        assert fault.fired.is_set(), "no COMMIT was lost"
        if fault.error is not None:
            raise fault.error

    def _serve(self, client: socket.socket) -> None:
        server = self._connect_for(client)
        if server is not None:
            link = _Link(self, client, server)
            self._in_thread(link.forward)
            self._in_thread(link.backward)

    def take_fault(self, sent: bytes) -> _Fault | None:
        """The fault, if it is for the transaction that has sent this, and no other has taken it."""
        with self._guard:
            fault = self._fault
            if fault is None or fault.after not in sent:
                return None
            self._fault = None
            return fault


class _Link:
    """One client's connection and the server's."""

    def __init__(self, proxy: CommitProxy, client: socket.socket, server: socket.socket) -> None:
        self._proxy = proxy
        self._client = client
        self._server = server
        self._swallowing: _Fault | None = None
        self._losing: _Fault | None = None

    def forward(self) -> None:
        """Client to server."""
        with suppress(OSError, EOFError):
            self._server.sendall(read_startup(self._client))
            sent = b""
            while True:
                frame = read_frame(self._client)
                sent += frame
                if _is_commit(frame):
                    fault = self._proxy.take_fault(sent)
                    sent = b""
                    if fault is not None and fault.lost is Lost.ANSWER:
                        self._swallowing = fault
                    elif fault is not None:
                        self._losing = fault
                        if fault.lost is Lost.COMMIT:
                            self._proxy.close(self._server)
                        fault.fire()
                        self._proxy.close(self._client)
                        return
                self._server.sendall(frame)
        # A client that leaves takes the server's connection along.
        self._proxy.close(self._server)

    def backward(self) -> None:
        """Server to client."""
        with suppress(OSError, EOFError):
            swallowed = b""
            while True:
                frame = read_frame(self._server)
                if self._swallowing is None:
                    self._client.sendall(frame)
                    continue
                swallowed += frame
                if frame[:1] == b"Z":  # ReadyForQuery: all of the answer was here
                    assert b"COMMIT\0" in swallowed
                    self._proxy.close(self._server)
                    self._swallowing.fire()
                    break
        if self._losing is not None:  # the client shall not notice before what happens in between has happened
            self._losing.fired.wait(60)
        self._proxy.close(self._client)


def _is_commit(frame: bytes) -> bool:
    """Whether a simple Query, or the Parse of an extended one (after the statement's name), is a COMMIT."""
    kind, body = frame[:1], frame[5:]
    if kind == b"P":
        body = body.partition(b"\0")[2].partition(b"\0")[0]
    return kind in {b"Q", b"P"} and body.strip(b"\0 ;").upper() == b"COMMIT"

"""Where our servers listen, and whom they answer; and the small server for probes and metrics. See decision 0102."""

from __future__ import annotations

import asyncio
import gzip
import logging
import re
import resource
import selectors
import socket
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from email.message import Message
from functools import lru_cache
from http import HTTPStatus
from http.client import HTTPException, parse_headers
from io import BytesIO
from ipaddress import ip_address
from threading import Thread
from typing import Final, NamedTuple, TypeAlias
from urllib.parse import unquote

from offsetstore.errors import ConfigurationError
from offsetstore.protocol.arguments import check_whole
from offsetstore.runtime.background import meanwhile

SHORTEST_TOKEN: Final = 32
"""Characters."""

MAKE_A_TOKEN: Final = 'Make one: python -c "import secrets; print(secrets.token_urlsafe(32))".'  # noqa: S105 - advice

LOCAL: Final = ("localhost", "127.0.0.1", "[::1]")

HEAD_SECONDS: Final = 10.0
"""For the whole head of a request, and not for each read: a byte now and then must not keep a connection for ever."""

QUEUE: Final = 1_024
"""Connections that the kernel keeps: if there is no place, a client tries again after a second."""

# For the whole answer. A Prometheus usually waits for no longer.
_ANSWER_SECONDS: Final = 60.0
_LONGEST_HEAD: Final = 16_384  # bytes
_MOST: Final = 128  # connections
# A flood may take an eighth of the files that the process may open: the rest is for its work.
_SHARE: Final = 8
_AGAIN: Final = 0.1  # seconds until a connection is taken again, once this process could open no more files
_SELDOM: Final = 60.0  # seconds between two log records of one line of code
_BLANK_LINE: Final = re.compile(rb"\r?\n\r?\n")
_PLAIN: Final = {"Content-Type": "text/plain"}
_SENDABLE: Final = re.compile(r"[!-~]+")
_HOST: Final = re.compile(r"(\[[0-9a-f:.]+\]|[^:\[\]@/]+)(?::[0-9]{1,5})?", re.IGNORECASE)


class Seldom(logging.Filter):
    """Lets each line of code log once a minute, with the number of records left out: a stranger must fill no disk."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._logged: dict[tuple[str, int], float] = {}
        self._kept: dict[tuple[str, int], int] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        line, now = (record.pathname, record.lineno), self._clock()
        if now - self._logged.get(line, -_SELDOM) < _SELDOM:
            self._kept[line] = self._kept.get(line, 0) + 1
            return False
        self._logged[line] = now
        if kept := self._kept.pop(line, 0):
            record.msg, record.args = f"{record.getMessage()} (and {kept} more like it since the last such line)", ()
        return True


_log = logging.getLogger(__name__)
_log.addFilter(Seldom())


def most_connections() -> int:
    """How many connections a server may keep at a time. Above that, a new one takes the place of the oldest."""
    files, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST if files == resource.RLIM_INFINITY else max(1, min(_MOST, files // _SHARE))


def is_loopback(host: str) -> bool:
    """Whether only this machine can connect to the address."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def family(host: str) -> socket.AddressFamily:
    """The address's family, IPv4 for a name."""
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def url_host(host: str) -> str:
    """The address as a URL has it."""
    return f"[{host}]" if ":" in host else host


def own_names(host: str) -> tuple[str, ...]:
    """Return the names by which a server on this address is asked from its own machine.

    A browser sends the name in the page's address: a foreign page whose name resolves to this server (DNS rebinding)
    sends another one.
    """
    return (*LOCAL, url_host(host.lower()))


def host_name(host: str) -> str | None:
    """The host without its port; ``None`` if it is not a valid host."""
    found = _HOST.fullmatch(host)
    return None if found is None else found[1].lower()


@contextmanager
def listening(what: str, host: str, port: int) -> Generator[None]:
    """Begin to listen in the block.

    :param what: what is served, for the message.
    :raises ConfigurationError: it can't listen there.
    """
    check_whole("port", port, most=65535)
    try:
        yield
    except OSError as error:
        raise ConfigurationError(
            f"{what} can't be served there",
            found=f"{host}:{port}, {error}",
            expected="a free port and an address of this machine",
            next_step="Choose another one; 0 takes any free port.",
        ) from None


def check_token(token: str | None) -> None:
    """Refuse a token that can be guessed, or that can't be sent.

    :raises ConfigurationError: it is too short, or has characters that a header can't have.
    """
    if token is not None and len(token) < SHORTEST_TOKEN:
        raise ConfigurationError(
            "the token is too short",
            found=f"{len(token)} characters",
            expected=f"at least {SHORTEST_TOKEN}",
            next_step=MAKE_A_TOKEN,
        )
    if token is not None and not _SENDABLE.fullmatch(token):
        raise ConfigurationError(
            "the token has characters that can't be sent in a header",
            expected="ASCII letters, digits and punctuation, without blanks",
            next_step=MAKE_A_TOKEN,
        )


class Request(NamedTuple):
    """What a client asks for."""

    method: str
    path: str
    query: str
    headers: Message


Answer: TypeAlias = tuple[HTTPStatus, bytes, Mapping[str, str]]
"""The body and its headers."""


class Server:
    """Answers in a thread of its own. It listens at once, and answers from `start` on: earlier requests wait.

    Requests are short, so the client's part has limits: see `most_connections` and `HEAD_SECONDS`. On a loopback
    address it answers to `own_names` alone. Elsewhere it goes by any name, as probes ask by the address of a pod.

    :param answer: returns at once, except for ``/metrics``.
    :param host: the address to listen on.
    :param port: 0 for any free one; see ``port``.
    :raises ConfigurationError: it can't listen there.
    """

    def __init__(self, answer: Callable[[Request], Answer], *, host: str, port: int) -> None:
        self._answer = answer
        with listening("metrics", host, port):
            self._listener = socket.create_server((host, port), family=family(host), backlog=QUEUE)
            # poll, since a forked child would share an epoll.
            self._loop = asyncio.SelectorEventLoop(selectors.PollSelector())
        self._listener.settimeout(0)
        address, self.port, *_ = self._listener.getsockname()
        self._names = own_names(host) if ip_address(address).is_loopback else None
        self._opened: dict[asyncio.Task[None], bool] = {}  # the oldest first, and whether its head is complete
        self._rendering: asyncio.Future[bytes] | None = None
        self._is_ending = False
        self._thread = Thread(target=self._run, name="offsetstore-metrics", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Stop listening."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
        self._listener.close()
        # In a forked child the loop seems to run for ever, though nothing runs it.
        if not self._loop.is_running():
            self._loop.close()

    def _run(self) -> None:
        self._listen()
        self._loop.run_forever()
        self._loop.run_until_complete(self._end())

    async def _end(self) -> None:
        self._is_ending = True
        self._loop.remove_reader(self._listener)
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        # Now the callbacks of the ended tasks run, and close their connections.
        await asyncio.sleep(0)

    def _listen(self) -> None:
        if not self._is_ending:
            self._loop.add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        """Take one connection; the loop calls this again while there are others."""
        try:
            connection, _address = self._listener.accept()
        except OSError:
            # This process may open no more files: a connection is given back below.
            self._loop.remove_reader(self._listener)
            self._loop.call_later(_AGAIN, self._listen)
            is_full = bool(self._opened)
        else:
            connection.setblocking(False)  # noqa: FBT003 - Python's own
            task = self._loop.create_task(self._serve(connection))
            self._opened[task] = False
            task.add_done_callback(lambda ended: (self._opened.pop(ended, None), connection.close()))
            is_full = len(self._opened) > most_connections()
        # The oldest whose head is incomplete: an honest request comes in one piece. To refuse the newest would silence
        # the kubelet (decision 0102).
        if is_full:
            oldest = min(self._opened, key=self._opened.__getitem__)
            del self._opened[oldest]
            oldest.cancel()

    async def _serve(self, connection: socket.socket) -> None:
        # What ends one connection ends no other.
        with suppress(Exception):
            async with asyncio.timeout(HEAD_SECONDS) as limit:
                head = b""
                while len(head) < _LONGEST_HEAD and not _BLANK_LINE.search(head):
                    if not (part := await self._loop.sock_recv(connection, _LONGEST_HEAD - len(head))):
                        return
                    head += part
                limit.reschedule(self._loop.time() + _ANSWER_SECONDS)
                if (task := asyncio.current_task()) in self._opened:
                    self._opened[task] = True
                await self._loop.sock_sendall(connection, await self._respond(_read(head)))

    async def _respond(self, request: Request) -> bytes:
        if not request.path.startswith("/metrics"):
            return self._call(request)
        # In another thread, one at a time: metrics may come from the collectors of others, for which no probe may wait.
        while self._rendering is not None and not self._rendering.done():
            await asyncio.wait([self._rendering])
        work = meanwhile("offsetstore-scrape", lambda: self._call(request))
        self._rendering = asyncio.wrap_future(work, loop=self._loop)
        return await asyncio.shield(self._rendering)

    def _call(self, request: Request) -> bytes:
        # A request without a host passes: a browser always sends one.
        hosts = request.headers.get_all("Host", [])
        if not request.method:
            status, body, more = HTTPStatus.BAD_REQUEST, b"", _PLAIN
        elif self._names is not None and not all(host_name(host) in self._names for host in hosts):
            status, body, more = HTTPStatus.MISDIRECTED_REQUEST, b"ask for localhost, or 127.0.0.1\n", _PLAIN
        elif request.method not in {"GET", "HEAD"}:
            status, body, more = HTTPStatus.METHOD_NOT_ALLOWED, b"", {**_PLAIN, "Allow": "GET, HEAD"}
        else:
            try:
                status, body, more = self._answer(request)
            except Exception:  # noqa: BLE001 - the collectors may be anyone's
                _log.exception("a request failed")
                status, body, more = HTTPStatus.INTERNAL_SERVER_ERROR, b"", _PLAIN
        if "gzip" in request.headers.get("Accept-Encoding", ""):
            body, more = _packed(body), {**more, "Content-Encoding": "gzip"}
        headers = {**more, "Content-Length": len(body), "Connection": "close"}
        lines = [f"HTTP/1.1 {status.value} {status.phrase}", *(f"{name}: {text}" for name, text in headers.items())]
        return "\r\n".join([*lines, "", ""]).encode() + (b"" if request.method == "HEAD" else body)


# The exporter's text stays the same until its next refresh.
@lru_cache(1)
def _packed(body: bytes) -> bytes:
    return gzip.compress(body, 1)


def _read(head: bytes) -> Request:
    """Parse a request's head. If it is not one, the method is empty."""
    line, _, rest = head.partition(b"\n")
    with suppress(ValueError, HTTPException):
        method, target, _version = line.decode("ascii").split()
        path, _, query = target.partition("?")
        if _BLANK_LINE.search(head):
            return Request(method, unquote(path), query, parse_headers(BytesIO(rest)))
    return Request("", "", "", Message())


def serving_text(text: Callable[[], bytes]) -> Callable[[Request], Answer]:
    """Serve at ``/metrics`` a text that was rendered before."""

    def answer(request: Request) -> Answer:
        if request.path != "/metrics":
            return HTTPStatus.NOT_FOUND, b"metrics are at /metrics\n", _PLAIN
        return HTTPStatus.OK, text(), {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}

    return answer

"""Where our servers listen, the token that remote clients need, and a small server for metrics."""

from __future__ import annotations

import gzip
import re
import socket
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from ipaddress import ip_address
from socketserver import ThreadingMixIn
from threading import Thread
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from offsetstore.errors import ConfigurationError
from offsetstore.protocol.numbers import check_whole

SHORTEST_TOKEN: Final = 32
"""Characters."""

MAKE_A_TOKEN: Final = 'Make one: python -c "import secrets; print(secrets.token_urlsafe(32))".'  # noqa: S105 - advice


_SENDABLE: Final = re.compile(r"[!-~]+")
_SECONDS: Final = 30  # for one request; a client that says nothing must not keep its thread
_FASTEST: Final = 1
_LOOK: Final = 0.1  # seconds until it notices that it is to end


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


@contextmanager
def listening(what: str, host: str, port: int) -> Generator[None]:
    """Begin to listen in the block.

    :param what: is served, for the message.
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

    :raises ConfigurationError: it is too short, or has other characters than a header can have.
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


class Server:
    """Answers in threads of its own. It listens at once, and answers from `start` on: earlier requests wait.

    :param application: answers each request.
    :param host: the address to listen on.
    :param port: 0 for any free one; see ``port``.
    :raises ConfigurationError: it can't listen there.
    """

    def __init__(self, application: WSGIApplication, *, host: str, port: int) -> None:
        server = type("Server", (_Server,), {"address_family": family(host)})
        with listening("metrics", host, port):
            self._server = make_server(host, port, application, server, _Handler)
        self._thread = Thread(target=self._server.serve_forever, args=(_LOOK,), name="offsetstore-metrics", daemon=True)

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return self._server.server_port

    def start(self) -> None:
        """Answer."""
        self._thread.start()

    def close(self) -> None:
        """Stop listening."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a client that has gone away."""


class _Handler(WSGIRequestHandler):
    timeout = _SECONDS

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name for it
        """Log no requests."""


def answered(
    start_response: StartResponse, status: str, body: bytes, headers: Mapping[str, str], *, is_head: bool = False
) -> Iterable[bytes]:
    """Answer a request."""
    start_response(status, [*headers.items(), ("Content-Length", str(len(body)))])
    return [] if is_head else [body]


def serving_text(text: Callable[[], bytes]) -> WSGIApplication:
    """Serve a text at ``/metrics`` that was rendered before it is asked for; each is compressed once."""
    packed = b"", b""

    def answer(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        nonlocal packed
        plain, method = {"Content-Type": "text/plain"}, environ["REQUEST_METHOD"]
        if method not in {"GET", "HEAD"}:
            return answered(start_response, "405 Method Not Allowed", b"", {**plain, "Allow": "GET, HEAD"})
        if environ["PATH_INFO"] != "/metrics":
            return answered(start_response, "404 Not Found", b"metrics are at /metrics\n", plain)
        found = text()
        headers = {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
        if "gzip" in environ.get("HTTP_ACCEPT_ENCODING", ""):
            if packed[0] is not found:
                packed = found, gzip.compress(found, _FASTEST)
            found, headers["Content-Encoding"] = packed[1], "gzip"
        return answered(start_response, "200 OK", found, headers, is_head=method == "HEAD")

    return answer

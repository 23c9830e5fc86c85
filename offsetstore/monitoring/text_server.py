"""Serves a text at ``/metrics`` that was rendered before it is asked for."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, Final

from offsetstore.monitoring.addresses import family, listening
from offsetstore.monitoring.exposition import CONTENT_TYPE

_SECONDS: Final = 30  # for one request; a client that says nothing must not keep its thread
_FASTEST: Final = 1


class TextServer:
    """Listens from the start, and answers from `start` on: requests that come in between wait.

    :param text: returns the text; it is compressed once for each new one.
    :param host: the address to listen on.
    :param port: 0 for any free one; see ``port``.
    :raises ConfigurationError: it can't listen there.
    """

    def __init__(self, text: Callable[[], bytes], *, host: str, port: int) -> None:
        handler = type("Handler", (_Handler,), {"texts": _Texts(text)})
        server = type("Server", (_Server,), {"address_family": family(host)})
        with listening("metrics", host, port):
            self._server = server((host, port), handler)
        self._thread = Thread(target=self._server.serve_forever, name="offsetstore-metrics", daemon=True)

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


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a client that has gone away."""


class _Texts:
    """The latest text, and the same compressed."""

    def __init__(self, text: Callable[[], bytes]) -> None:
        self._text = text
        self._compressed = (b"", b"")

    def latest(self, *, compressed: bool) -> bytes:
        """Return it."""
        text = self._text()
        if not compressed:
            return text
        before, packed = self._compressed
        if before is not text:
            packed = gzip.compress(text, _FASTEST)
            self._compressed = (text, packed)
        return packed


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "offsetstore"
    sys_version = ""
    timeout = _SECONDS
    texts: _Texts

    def do_GET(self) -> None:
        """Send the text."""
        path = self.path.partition("?")[0]
        if path != "/metrics":
            self._send(404, b"metrics are at /metrics\n", {"Content-Type": "text/plain"})
            return
        is_packed = "gzip" in self.headers.get("Accept-Encoding", "")
        headers = {"Content-Type": CONTENT_TYPE, **({"Content-Encoding": "gzip"} if is_packed else {})}
        self._send(200, self.texts.latest(compressed=is_packed), headers)

    def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - http.server's name
        """Log no requests."""

"""What strangers send to the dashboard's port: it ends no session, keeps nobody from signing in, and fills no log."""

from __future__ import annotations

import logging
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from http.client import HTTPConnection
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from urllib.parse import urlsplit

import pytest

from offsetstore.errors import StoreUnavailable
from offsetstore.monitoring.dashboard import serving
from offsetstore.monitoring.dashboard.serving import DashboardServer, DashboardSettings
from tests.support.background import in_background
from tests.support.waiting import wait_until
from tests.unit.monitoring.test_web import drip

pytestmark = pytest.mark.behaviour("OPS-27")

ROOT = Path(__file__).parents[3]
TOKEN = "t0ken-" * 6
FILES = 240

FLOODED = f"""\
import resource
from tests.unit.monitoring.test_dashboard_port import make_server

resource.setrlimit(resource.RLIMIT_NOFILE, ({FILES}, {FILES}))
server = make_server()
print(server.url, flush=True)
server.run()
"""


def make_server() -> DashboardServer:
    """A dashboard whose database does not answer: its first page says so."""

    def lag(*_: object, **__: object) -> None:
        raise StoreUnavailable("the database does not answer")

    store: Any = SimpleNamespace(lag=lag, database=SimpleNamespace(schema="public"))
    return DashboardServer(store, cast("Any", None), DashboardSettings(port=0, token=TOKEN))


class Client:
    def __init__(self, url: str, server: Any = None) -> None:
        self.server = server
        self.address = cast("str", urlsplit(url).hostname), cast("int", urlsplit(url).port)
        self.origin = url.rstrip("/")

    def connect(self, sent: str = "") -> socket.socket:
        connection = socket.create_connection(self.address, timeout=60)
        connection.sendall(sent.encode())
        return connection

    def ask(self, method: str, path: str, body: str = "", **headers: str) -> tuple[int, str]:
        """The status, and the cookie."""
        connection = HTTPConnection(*self.address, timeout=60)
        try:
            sent = {"Content-Type": "application/x-www-form-urlencoded", "Origin": self.origin, **headers}
            connection.request(method, path, body, sent)
            answer = connection.getresponse()
            answer.read()
            return answer.status, (answer.headers["set-cookie"] or "").partition(";")[0]
        finally:
            connection.close()

    def sign_in(self, token: str = TOKEN) -> tuple[int, str]:
        return self.ask("POST", "/login", f"token={token}")

    def head(self, line: str) -> str:
        return f"{line}\r\nHost: {urlsplit(self.origin).netloc}\r\nOrigin: {self.origin}\r\n"


def took(work: Callable[[], object]) -> float:
    began = time.monotonic()
    work()
    return time.monotonic() - began


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    monkeypatch.setattr(serving, "_PAUSE", 0.3)
    with make_server() as server:
        wait_until(lambda: server._server.started)
        yield Client(server.url, server._server)


def test_a_flood_ends_no_session_keeps_nobody_from_signing_in_and_fills_no_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with (
        log.open("w") as opened,
        subprocess.Popen(
            [sys.executable, "-c", FLOODED], cwd=ROOT, stdout=subprocess.PIPE, stderr=opened, text=True
        ) as process,
        ExitStack() as flood,
    ):
        try:
            assert process.stdout is not None
            client = Client(process.stdout.readline().strip())
            _, cookie = client.sign_in()
            # Half requests, whole ones that stay, what is no request at all, and wrong tokens.
            for number in range(2 * FILES):
                flood.enter_context(client.connect(client.head("GET / HTTP/1.1") + "\r\n" * (number % 2)))
                flood.enter_context(client.connect("\x01\r\n\r\n"))
            wrong = f"{client.head('POST /login HTTP/1.1')}Content-Length: 7\r\n\r\ntoken=x"
            until = time.monotonic() + 2

            def guess() -> None:
                while time.monotonic() < until:
                    with client.connect(wrong), suppress(ConnectionError):
                        client.ask("GET", "/", Authorization="Bearer wrong")

            guessing = [in_background(guess) for _ in range(8)]
            waits = list[float]()
            while time.monotonic() < until:
                waits.append(took(lambda: _expect(client.ask("GET", "/", Cookie=cookie)[0], 200)))
                waits.append(took(lambda: _expect(client.sign_in()[0], 303)))
            for one in guessing:
                one.result(60)
            # A wrong token waits for a second, and nobody with the right one behind it.
            assert min(waits[::2]) < 1, waits
            assert min(waits[1::2]) < 1, waits
        finally:
            process.terminate()
    text = log.read_text()
    assert 0 < len(text) < 2_000, text
    assert text.count("a wrong token was sent") == 1


def _expect(found: int, expected: int) -> None:
    assert found == expected


def test_wrong_tokens_wait_in_small_numbers_and_the_right_one_does_not(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        tried = [in_background(lambda: client.sign_in("wrong")[0]) for _ in range(40)]
        assert client.sign_in()[0] == 303
        found = [one.result(60) for one in tried]
        assert client.sign_in()[0] == 303
    assert set(found) == {403, 429}
    assert found.count(403) >= 16
    logged = [one.getMessage() for one in caplog.records if one.name.endswith("security.access")]
    assert len(logged) <= 2  # of each kind; an earlier test may have used this minute's


def test_a_head_an_unread_body_and_an_answer_have_their_seconds(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "HEAD_SECONDS", 0.5)
    with client.connect("GET / HTTP/1.1\r\nX: ") as connection:
        assert 0.3 < drip(connection) < 10
    # Of the next request of a connection, too.
    with client.connect(client.head("GET /login HTTP/1.1") + "\r\n") as connection:
        assert connection.recv(100).startswith(b"HTTP/1.1 200 ")
        connection.sendall(b"GET / HTTP/1.1\r\nX: ")
        assert 0.3 < drip(connection) < 10
    with client.connect(client.head("POST /none HTTP/1.1") + "Content-Length: 1000000\r\n\r\n") as connection:
        assert drip(connection) < 10
    monkeypatch.setattr(serving, "_ANSWER_SECONDS", 0.2)
    with client.connect(client.head("POST /login HTTP/1.1") + "Content-Length: 100\r\n\r\ntoken=") as connection:
        assert drip(connection) < 5  # a form has ten


def test_a_head_has_its_length(client: Client) -> None:
    sent = 0
    with client.connect("GET / HTTP/1.1\r\n") as connection, suppress(ConnectionError):
        while sent < 10_000_000:
            connection.sendall(b"X: " + b"y" * 10_000 + b"\r\n")
            sent += 10_000
    assert sent < 10_000_000


def test_who_is_at_work_keeps_the_place(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of four places, those of strangers go first, also if they are younger."""
    monkeypatch.setattr(serving, "most_connections", lambda: 4)
    _, cookie = client.sign_in()
    monkeypatch.setattr(serving, "_PAUSE", 1.0)
    slow = client.head("POST /login HTTP/1.1") + f"Cookie: {cookie}\r\nContent-Length: 7\r\n\r\ntoken="
    with client.connect(slow) as working, ExitStack() as flood:
        wait_until(lambda: any(one.is_at_work for one in client.server.server_state.connections))
        for _ in range(20):
            flood.enter_context(client.connect(client.head("POST /login HTTP/1.1") + "Content-Length: 9\r\n\r\n"))
        working.sendall(b"x")
        assert working.recv(100).startswith(b"HTTP/1.1 403 ")
        assert client.ask("GET", "/", Cookie=cookie)[0] == 200

"""The server of the small ports: what a stranger sends there keeps neither the job's files nor a probe's answer."""

from __future__ import annotations

import gc
import json
import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager, suppress
from http import HTTPStatus
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from offsetstore.monitoring import web
from offsetstore.monitoring.web import Answer, Request, Seldom, Server, most_connections
from tests.support.forking import in_new_process, run_forked
from tests.support.waiting import PATIENCE, wait_until

pytestmark = pytest.mark.behaviour("OPS-27")

ROOT = Path(__file__).parents[3]
FILES = 160  # that the flooded process may open
MOST = 4


def answer(request: Request) -> Answer:
    body = json.dumps([request.method, request.path, request.query]).encode()
    return HTTPStatus.OK, body, {"Content-Type": "application/json"}


@contextmanager
def serving(answer: Callable[[Request], Answer] = answer, host: str = "127.0.0.1") -> Generator[Server]:
    server = Server(answer, host=host, port=0)
    server.start()
    try:
        yield server
    finally:
        server.close()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(web, "_MOST", MOST)
    with serving() as made:
        yield made


def connect(port: int, sent: bytes = b"") -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), timeout=60)
    connection.sendall(sent)
    return connection


def read(connection: socket.socket) -> bytes:
    """All that comes until the server closes the connection, or drops it."""
    found = b""
    try:
        while part := connection.recv(65_536):
            found += part
    except ConnectionResetError:
        pass
    return found


def status(port: int, path: str = "/livez", *, method: str = "GET") -> int:
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(method, path)
        return connection.getresponse().status
    finally:
        connection.close()


def drip(connection: socket.socket) -> float:
    """Send a byte now and then; return after how many seconds that is refused."""
    began = time.monotonic()
    with suppress(ConnectionError):
        while time.monotonic() - began < 30:
            connection.sendall(b"x")
            time.sleep(0.05)
    return time.monotonic() - began


@contextmanager
def half_requests(port: int, count: int) -> Generator[list[socket.socket]]:
    with ExitStack() as opened:
        yield [opened.enter_context(connect(port, b"GET /livez HTTP/1.1\r\nHost: x")) for _ in range(count)]


# --- floods --------------------------------------------------------------------------------------------------------

FLOODED = """\
import resource, sys, threading
from offsetstore.monitoring.processes import Supervisor
from offsetstore.monitoring.whole import WholeMonitoring
from tests.unit.monitoring.test_processes import reporting

resource.setrlimit(resource.RLIMIT_NOFILE, ({files}, {files}))
supervisor = Supervisor(1, lambda number: reporting("ready wait"), say=lambda text: None)
monitoring = WholeMonitoring(supervisor, 0, host="0.0.0.0", token=None)
print(monitoring.port, flush=True)

def told(word):
    process = supervisor.places[0].process
    if word == "pid":
        return process.pid if process is not None and process.was_ready else 0
    if word == "threads":
        return threading.active_count()
    if word == "kill":
        return process.kill() or 0
    try:
        while word == "fill":
            kept.append(open("/dev/null"))
    except OSError:
        return len(kept)
    while kept:
        kept.pop().close()
    return 0

def follow():
    try:
        for line in sys.stdin:
            print(told(line.strip()), flush=True)
    finally:
        supervisor.stop()

kept = []
threading.Thread(target=follow).start()
supervisor.run()
monitoring.close()
"""


def test_a_flood_takes_a_process_neither_its_files_nor_its_probes_nor_its_restarts() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", FLOODED.format(files=FILES)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        sent, told = process.stdin, process.stdout

        def ask(word: str) -> int:
            sent.write(f"{word}\n")
            sent.flush()
            return int(told.readline())

        port = int(told.readline())
        first = wait_until(lambda: ask("pid"))
        threads, files = ask("threads"), ask("fill")
        ask("free")
        with half_requests(port, 2 * FILES):
            began = time.monotonic()
            assert status(port) == 200
            assert time.monotonic() - began < PATIENCE
            assert ask("threads") == threads
            assert ask("fill") >= files - FILES // 8 - 3, "a flood takes an eighth"
            # Now it may open no more: it neither gives up nor spins, and gives back what strangers hold.
            used = ticks(process.pid)
            assert status(port) == 200
            time.sleep(1)
            assert ticks(process.pid) - used < 60
            ask("free")
            ask("kill")
            assert wait_until(lambda: ask("pid") not in {0, first})
            assert status(port) == 200
        sent.close()
        assert process.wait(60) == 0


def test_connections_that_come_while_it_closes_are_closed_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """No coroutine is left that never ran, and no socket."""
    left: list[str] = []

    def note(found: Any) -> None:
        left.append(repr(found.exc_value))

    monkeypatch.setattr(sys, "unraisablehook", note)
    for _ in range(20):
        server = Server(lambda _: (HTTPStatus.OK, b"", {}), host="127.0.0.1", port=0)
        server.start()
        with half_requests(server.port, 30):
            server.close()
        del server
        gc.collect()
    assert left == []


def ticks(pid: int) -> int:
    """Hundredths of a second that a process has computed."""
    words = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return int(words[11]) + int(words[12])


@pytest.mark.parametrize("count", [0, MOST - 1, MOST, MOST + 1, 10 * MOST])
def test_after_any_number_of_half_requests_a_probe_is_answered_within_a_second(server: Server, count: int) -> None:
    with half_requests(server.port, count) as halves:
        began = time.monotonic()
        assert status(server.port) == 200
        assert time.monotonic() - began < PATIENCE
        wait_until(lambda: len(server._opened) <= MOST)
        for kept in halves[max(0, count + 1 - MOST) :]:  # the newest, but for one that the probe has replaced
            kept.sendall(b"\r\n\r\n")
            assert b" 421 " in read(kept)


def test_half_requests_take_no_place_of_those_that_are_being_answered(server: Server) -> None:
    go_on = threading.Event()

    def wait(request: Request) -> Answer:
        go_on.wait(60)
        return answer(request)

    with patch.object(server, "_answer", wait):
        scrape = connect(server.port, b"GET /metrics HTTP/1.1\r\n\r\n")
        wait_until(lambda: any(server._opened.values()))
        with half_requests(server.port, 10 * MOST):
            wait_until(lambda: len(server._opened) == MOST)
            go_on.set()
            assert b"/metrics" in read(scrape)
    scrape.close()


def test_a_request_has_its_seconds_as_a_whole(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """A byte now and then keeps nothing open."""
    monkeypatch.setattr(web, "HEAD_SECONDS", 0.5)
    with connect(server.port, b"GET / HTTP/1.1\r\n") as connection:
        assert 0.4 < drip(connection) < 10


def test_an_answer_that_is_not_read_has_its_seconds_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "_ANSWER_SECONDS", 0.5)
    large = HTTPStatus.OK, b"x" * 100_000_000, dict[str, str]()
    with serving(lambda _: large) as server, connect(server.port, b"GET / HTTP/1.1\r\n\r\n") as connection:
        wait_until(lambda: server._opened)
        wait_until(lambda: not server._opened)
        assert len(read(connection)) < 100_000_000


def test_a_head_has_its_length_and_what_is_no_request_is_told_so(server: Server) -> None:
    sent = 0
    with connect(server.port) as connection, suppress(ConnectionError):
        while sent < 100_000_000:
            connection.sendall(b"X: " + b"y" * 10_000 + b"\r\n")
            sent += 10_000
    assert sent < 100_000_000
    for head in (b"\r\n\r\n", b"GET\r\n\r\n", b"\xff / HTTP/1.1\r\n\r\n", b"X" * 20_000):
        with connect(server.port, head) as connection:
            assert read(connection).startswith(b"HTTP/1.1 400 ") or len(head) > 16_384
    assert status(server.port) == 200


def test_the_answer_is_http(server: Server) -> None:
    assert status(server.port, "/livez?verbose") == status(server.port, method="HEAD") == 200
    assert status(server.port, method="POST") == 405
    with connect(server.port, b"GET /%C3%A4?a=b HTTP/1.0\n\n") as connection:  # without a name, as no browser does
        head, _, body = read(connection).partition(b"\r\n\r\n")
        assert json.loads(body) == ["GET", "/ä", "a=b"]
        assert f"Content-Length: {len(body)}".encode() in head


def test_what_an_answer_raises_ends_that_answer(caplog: pytest.LogCaptureFixture) -> None:
    with serving(lambda _: _fail()) as server, caplog.at_level(logging.ERROR):
        assert [status(server.port) for _ in range(20)] == [500] * 20
    assert len(caplog.records) == 1


def _fail() -> Answer:
    raise ZeroDivisionError


def test_metrics_that_hang_hold_up_no_probe_and_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "_ANSWER_SECONDS", 0.3)
    go_on = threading.Event()

    def hang(request: Request) -> Answer:
        if request.path == "/metrics":
            go_on.wait(60)
        return answer(request)

    with serving(hang) as server:
        before = threading.active_count()
        for _ in range(3):
            with connect(server.port, b"GET /metrics HTTP/1.1\r\n\r\n") as scrape:
                assert status(server.port) == 200
                assert read(scrape) == b""
        assert threading.active_count() <= before + 1
        go_on.set()
        wait_until(lambda: threading.active_count() <= before)
        assert status(server.port, "/metrics") == 200


def fork_and_close() -> None:
    with serving() as server:

        def close_in_child() -> None:
            if os.fork() == 0:
                server.close()

        told = [str(status(server.port)), run_forked(close_in_child), str(status(server.port))]
        sys.stdout.write(" ".join(told))


def test_a_forked_child_that_closes_it_leaves_its_parent_s_alone() -> None:
    assert in_new_process(fork_and_close).split() == ["200", "returned", "200"]


def test_few_of_the_files_that_a_process_may_open_are_for_strangers(monkeypatch: pytest.MonkeyPatch) -> None:
    for files, most in [(web.resource.RLIM_INFINITY, 128), (1_000_000, 128), (1_024, 128), (256, 32), (4, 1)]:
        monkeypatch.setattr(web.resource, "getrlimit", {web.resource.RLIMIT_NOFILE: (files, files)}.__getitem__)
        assert most_connections() == most


# --- names ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("listens", "own", "foreign"),
    [
        (
            "127.0.0.1",
            ("localhost", "LOCALHOST:9464", "127.0.0.1:1", "[::1]:9464"),
            ("evil.example", "localhost.evil.example:9464", "evil.example@localhost", "10.0.0.7:9464", ""),
        ),
        ("localhost", (), ("evil.example",)),
        ("127.0.0.2", ("127.0.0.2",), ("127.0.0.3",)),
        ("0.0.0.0", ("10.0.0.7:9464", "evil.example"), ()),  # noqa: S104 - a probe asks by the address of its pod
    ],
)
def test_on_loopback_foreign_names_are_refused(listens: str, own: tuple[str, ...], foreign: tuple[str, ...]) -> None:
    address = "127.0.0.1" if listens == "0.0.0.0" else listens  # noqa: S104
    with serving(host=listens) as server:
        for host in (*own, *foreign, *(f"{one}\r\nHost: {other}" for one in own[:1] for other in foreign[:1])):
            with socket.create_connection((address, server.port), timeout=60) as connection:
                connection.sendall(f"GET /none HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
                assert (b" 200 " if host in own else b" 421 ") in read(connection)[:20], host


# --- logs ----------------------------------------------------------------------------------------------------------


def test_each_line_of_code_logs_once_a_minute_and_counts_what_it_did_not() -> None:
    now = 100.0
    seldom = Seldom(lambda: now)

    def log(line: int, text: str) -> str | None:
        record = logging.LogRecord("x", logging.WARNING, "x.py", line, "%s came", (text,), None)
        return record.getMessage() if seldom.filter(record) else None

    assert log(1, "a") == "a came"
    assert log(2, "b") == "b came"
    assert [log(1, str(number)) for number in range(1000)] == [None] * 1000
    now += 59.9
    assert log(1, "c") is None
    now += 0.1
    assert log(1, "d") == "d came (and 1001 more like it since the last such line)"
    now += 60
    assert log(1, "e") == "e came"

"""The probes over HTTP, what they show to whom, and what a supervisor is told."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen
from uuid import uuid4

import pytest
from prometheus_client.parser import text_string_to_metric_families

from offsetstore import Token
from offsetstore.errors import ConfigurationError, ExitCode, StoreUnavailable
from offsetstore.monitoring import Limits, Monitoring
from offsetstore.monitoring.health import Code, Finding, Verdict
from offsetstore.monitoring.supervision import Supervision
from offsetstore.offsets import Pause
from offsetstore.protocol.events import BatchStarted, ClaimEnded, ClaimTaken, DatabaseAsked, PauseChanged
from offsetstore.store import heartbeat
from tests.support.signals import wait_until_it_stands
from tests.support.waiting import wait_until

pytestmark = pytest.mark.behaviour("OPS-4")

ROOT = Path(__file__).parents[3]
GROUP = "billing"
SECRET = "0123456789abcdef0123456789abcdef"
TOKEN = Token(7, uuid4())
TAKEN = ClaimTaken(group=GROUP, token=TOKEN, owner="host", starting=None)


def get(monitoring: Monitoring, path: str, token: str | None = None) -> tuple[int, dict[str, Any]]:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    try:
        with urlopen(Request(f"http://127.0.0.1:{monitoring.port}{path}", headers=headers), timeout=10) as answer:
            return answer.status, json.load(answer)
    except HTTPError as refused:
        with refused:
            return refused.code, json.load(refused)


@pytest.fixture
def monitoring() -> Iterator[Monitoring]:
    with Monitoring(port=0) as made:
        yield made


@pytest.mark.behaviour("OPS-5")
def test_the_probes_follow_the_job_and_no_slash_query_or_method_makes_a_dead_one_live(monitoring: Monitoring) -> None:
    starting = {"live": True, "ready": False, "codes": ["starting"]}
    status, found = get(monitoring, "/livez")
    assert (status, {key: found[key] for key in starting}) == (200, starting)
    assert get(monitoring, "/readyz")[0] == 503

    monitoring.on(TAKEN)
    well: dict[str, Any] = {"live": True, "ready": True, "codes": [], "reasons": []}
    assert get(monitoring, "/livez") == get(monitoring, "/readyz") == (200, well)

    monitoring.on(ClaimEnded(outcome="fenced", group=GROUP, token=TOKEN))
    lost = {
        "live": False,
        "ready": False,
        "codes": ["claim-lost"],
        "reasons": [{"code": "claim-lost", "group": GROUP, "text": "billing: another claim has taken over"}],
    }
    assert get(monitoring, "/readyz") == (503, lost)
    for path in ("/livez", "/livez/", "/livez?verbose", "/livez/?verbose"):
        assert get(monitoring, path) == (500, lost)
        for method, status in (("HEAD", 500), ("POST", 405)):
            request = Request(f"http://127.0.0.1:{monitoring.port}{path}", method=method)
            with pytest.raises(HTTPError) as refused, urlopen(request, timeout=10):  # noqa: S310 - it is http
                pass
            with refused.value:
                assert refused.value.code == status
    for path in ("/healthz", "/live", "/livezz", "/livez/x", "/ready", "/Livez", "/"):
        assert get(monitoring, path) == (404, {"paths": ["/livez", "/readyz", "/metrics"]})
    for path in ("/metrics", "/metrics/"):
        with urlopen(f"http://127.0.0.1:{monitoring.port}{path}", timeout=10) as answer:
            families = {family.name for family in text_string_to_metric_families(answer.read().decode())}
        assert {"offsetstore_batches", "offsetstore_claim_held"} <= families


def test_an_outage_is_told_by_readyz_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "INTERVAL", 0.1)
    with Monitoring(port=0, limits=Limits(unreachable=0.2)) as monitoring:
        monitoring.on(TAKEN)
        monitoring.on(DatabaseAsked(group=GROUP, error=StoreUnavailable("no")))
        wait_until(lambda: get(monitoring, "/readyz")[0] == 503)
        assert get(monitoring, "/readyz")[1]["codes"] == ["database-unreachable"]
        assert get(monitoring, "/livez")[0] == 200


@pytest.mark.behaviour("OPS-7")
def test_no_text_of_an_error_or_of_a_person_gets_into_an_answer(monitoring: Monitoring) -> None:
    monitoring.on(TAKEN)
    monitoring.on(BatchStarted(group=GROUP, batch=1, ranges={}))
    monitoring.on(PauseChanged(group=GROUP, pause=Pause(datetime.now(UTC), None, "canary")))
    monitoring.on(DatabaseAsked(group=GROUP, error=StoreUnavailable("canary", found="canary")))
    status, found = get(monitoring, "/readyz")
    assert (status, found["codes"]) == (200, ["paused"])
    assert "canary" not in json.dumps(found)


@pytest.mark.behaviour("OPS-7")
@pytest.mark.parametrize(
    ("host", "token", "sent"),
    [
        ("127.0.0.1", None, {None: True}),
        ("127.0.0.1", SECRET, {None: False, SECRET: True}),
        ("0.0.0.0", None, {None: False}),  # noqa: S104
        ("0.0.0.0", SECRET, {None: False, SECRET[:-1]: False, "\xe4" * 32: False, SECRET: True}),  # noqa: S104
    ],
)
def test_on_another_address_details_need_the_token(host: str, token: str | None, sent: dict[str | None, bool]) -> None:
    with Monitoring(port=0, host=host, token=token) as monitoring:
        monitoring.on(TAKEN)
        monitoring.on(ClaimEnded(outcome="fenced", group=GROUP, token=TOKEN))
        for given, has_details in sent.items():
            status, found = get(monitoring, "/livez", given)
            assert (status, found["codes"]) == (500, ["claim-lost"])
            assert (GROUP in json.dumps(found)) == has_details


def test_settings_that_can_t_be_are_refused_and_leave_nothing_behind(monitoring: Monitoring) -> None:
    wrong: list[dict[str, Any]] = [
        {"port": 0, "token": "x" * 31},
        {"port": 0, "on_dead": "restart"},
        {"port": 70_000},
        {"port": monitoring.port},
        {"port": 0, "limits": Limits(unreachable=9)},
    ]
    for given in wrong:
        with pytest.raises(ConfigurationError) as caught:
            Monitoring(**given)
        assert "xxx" not in str(caught.value)
    monitoring.close()
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", monitoring.port), timeout=5)


def test_it_listens_on_ipv6_too() -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        with pytest.raises(ConfigurationError):
            Monitoring(port=0, host="::1")
        return
    with Monitoring(port=0, host="::1") as monitoring, urlopen(f"http://[::1]:{monitoring.port}/livez") as answer:
        assert json.load(answer)["reasons"]


DEAD = Verdict((Finding(Code.JVM_GONE, GROUP, "billing: no answer"),))
PAUSED = Verdict((Finding(Code.PAUSED, GROUP, "billing: paused", is_live=True, is_ready=True),))
STARTING = Verdict((Finding(Code.STARTING, GROUP, "billing: starts", is_live=True),))


@pytest.mark.parametrize("is_abstract", [False, True])
def test_systemd_hears_of_readiness_once_and_of_life_only_while_there_is_any_and_its_end_harms_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_abstract: bool
) -> None:
    name = f"health-{uuid4().hex[:8]}"  # a path of a socket has 107 bytes at most
    verdicts, turns = [STARTING, Verdict(), Verdict(), DEAD, DEAD, PAUSED], list[int]()

    def judge() -> Verdict:
        turns.append(0)
        return verdicts.pop(0) if len(verdicts) > 1 else verdicts[0]

    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.settimeout(20)
        systemd.bind(f"\0{name}" if is_abstract else str(tmp_path / name))
        monkeypatch.setenv("NOTIFY_SOCKET", f"@{name}" if is_abstract else str(tmp_path / name))
        supervision = Supervision(judge, time.monotonic, None)
        monkeypatch.setattr("offsetstore.monitoring.supervision.INTERVAL", 0.01)
        heard = [systemd.recv(1000).decode().split("\n") for _ in range(6)]
    until_its_end = len(turns)
    wait_until(lambda: len(turns) > until_its_end + 2)
    supervision.close()

    assert heard == [
        ["STATUS=starting", "WATCHDOG=1"],
        ["STATUS=ok", "WATCHDOG=1", "READY=1"],
        ["WATCHDOG=1"],
        ["STATUS=jvm-gone"],
        ["STATUS=paused", "WATCHDOG=1"],
        ["WATCHDOG=1"],
    ]


PROGRAM = """\
import os, signal, time
from offsetstore.monitoring import Limits, Monitoring, supervision
from offsetstore.protocol.events import (ClaimEnded)
from offsetstore.testing import InMemoryOffsetStore

def hangs_for_ever():
    time.sleep(600)

supervision._LONGEST = 1.0
monitoring = Monitoring(port=0, on_dead={on_dead!r}, limits=Limits(starting={starting}, exit=0.5))
with InMemoryOffsetStore(observers=[monitoring]) as store:
    if {fenced}:
        store.claim("billing", topics=["payments"]).lose()
    print(monitoring.port, flush=True)
    if {stands}:
        os.kill(os.getpid(), signal.SIGSTOP)
    hangs_for_ever()
"""


@contextmanager
def run(
    *, on_dead: str | None, fenced: bool = False, stands: bool = False, starting: float = 600
) -> Generator[subprocess.Popen[str]]:
    """At the end of the block it is killed, even if it stands."""
    program = PROGRAM.format(on_dead=on_dead, fenced=fenced, stands=stands, starting=starting)
    with subprocess.Popen(
        [sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("fenced", "code", "reason"),
    [(True, ExitCode.FENCED, "claim-lost: billing: "), (False, ExitCode.DEAD, "starting: no group was claimed yet")],
)
def test_a_dead_job_shows_its_stacks_and_ends(*, fenced: bool, code: ExitCode, reason: str) -> None:
    with run(on_dead="exit", fenced=fenced, starting=0.5) as process:
        _, told = process.communicate(timeout=60)
    assert process.returncode == code
    assert f"the job is not live, and ends with exit code {int(code)}\n  {reason}" in told
    assert "in hangs_for_ever" in told
    assert told.lower().count("thread 0x") >= 3


def test_a_dead_job_goes_on_unless_it_is_told_to_end() -> None:
    with run(on_dead=None, fenced=True) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        deadline = time.monotonic() + 1.5  # after 0.5 s it would end
        while time.monotonic() < deadline:
            with pytest.raises(HTTPError) as refused:
                urlopen(f"http://127.0.0.1:{port}/livez", timeout=10)
            with refused.value:
                assert refused.value.code == 500
            time.sleep(0.2)
        assert process.poll() is None


def test_a_job_that_was_stopped_is_live_when_it_goes_on() -> None:
    with run(on_dead="exit", stands=True, starting=3) as process:
        assert process.stdout is not None
        connection = HTTPConnection("127.0.0.1", int(process.stdout.readline()), timeout=60)
        try:
            wait_until_it_stands(process.pid)  # it stops itself
            connection.request("GET", "/livez")  # it waits there, and is answered as soon as the job goes on
            time.sleep(3.5)  # of which 1 s counts
        finally:
            os.kill(process.pid, signal.SIGCONT)
        assert json.load(connection.getresponse())["live"]
        connection.close()
        assert process.wait(60) == ExitCode.DEAD, "its time has run on since"

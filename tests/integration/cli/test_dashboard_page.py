"""docs/dashboard.md and dashboard-access.md: their commands serve the pages, to those whom it says they are for."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from functools import partial
from uuid import uuid4

import httpx
import pytest

from offsetstore import OffsetStore
from offsetstore.local.kafka import KafkaBroker
from offsetstore.postgres.grants import grant_dashboard, grant_runtime
from offsetstore.postgres.schema import quoted
from tests.integration.cli.conftest import blocks
from tests.integration.conftest import Query

[SHOW], [ACT, PROXY] = ([text for _, text in blocks(page, "bash")] for page in ("dashboard.md", "dashboard-access.md"))
get = partial(httpx.get, timeout=60)  # the first answer waits for the first snapshot


@pytest.fixture
def urls(offsetstore_database: str, query: Query) -> Iterator[dict[str, str]]:
    """The database for a role that looks and one that decides, as the page says that they are made."""
    found: dict[str, str] = {}
    for name, grant in (("viewer", grant_dashboard), ("decider", grant_runtime)):
        role = f"{name}_{uuid4().hex}"
        query(f"CREATE ROLE {role} LOGIN")
        for statement in grant(role, schema="public"):
            query(statement)
        found[name] = offsetstore_database.replace("postgres@", f"{role}@")
    yield found
    for url in found.values():
        role = quoted(url.split("//")[1].split("@")[0])
        query(f"DROP OWNED BY {role}; DROP ROLE {role}")


@contextmanager
def served(block: str, kafka: KafkaBroker, urls: dict[str, str]) -> Generator[tuple[str, str]]:
    """Run a block of the page, on a free port; yield the address and the token that it set."""
    command = f"exec {sys.executable} -c 'from offsetstore.cli.main import main; main()' "
    words = {
        "offsetstore dashboard": f'echo "${{OFFSETSTORE_DASHBOARD_TOKEN:-none}}"\n{command} dashboard',
        "localhost:9092": f"{kafka.bootstrap_servers} --port 0",
        "postgresql://decider@localhost/results": urls["decider"],
    }
    for name, instead in words.items():
        block = block.replace(name, instead)
    with subprocess.Popen(
        ["bash", "-ec", block],
        env={**os.environ, "OFFSETSTORE_URL": urls["viewer"]},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            token = process.stdout.readline().strip()
            yield process.stdout.readline().split()[-1], token
        finally:
            process.terminate()


@pytest.mark.behaviour("DASH-1", "DASH-3")
@pytest.mark.parametrize(("block", "acts"), [(SHOW, False), (ACT, True)], ids=["show", "act"])
def test_one_can_decide_only_if_its_command_says_so(
    offsetstore_kafka: KafkaBroker, offsetstore_database: str, urls: dict[str, str], block: str, *, acts: bool
) -> None:
    with OffsetStore.connect(offsetstore_database) as store:
        store.claim("billing", topics=["payments"], mirror_every=None)
    with served(block, offsetstore_kafka, urls) as (url, _):
        assert "billing" in get(url).text
        assert ("Reset offsets" in get(f"{url}group?group=billing").text) is acts
        assert get(f"{url}actions/pause?group=billing").status_code == (200 if acts else 404)


@pytest.mark.behaviour("DASH-3")
def test_behind_its_proxy_the_token_is_needed_and_the_cookie_is_for_https(
    offsetstore_kafka: KafkaBroker, urls: dict[str, str]
) -> None:
    with served(PROXY, offsetstore_kafka, urls) as (url, token):
        passed_on = {"Host": "offsets.example.com", "Accept": "text/html"}
        assert get(url, headers={"Host": "another.example.com"}).status_code == 421
        asked = get(url, headers=passed_on)
        assert (asked.status_code, asked.headers["location"]) == (303, "/login")
        entered = {**passed_on, "Origin": "https://offsets.example.com"}
        answer = httpx.post(f"{url}login", headers=entered, data={"token": token}, timeout=60)
        cookie = answer.headers["set-cookie"]
        assert "Secure" in cookie
        assert "HttpOnly" in cookie
        assert get(url, headers={**passed_on, "Cookie": cookie.split(";")[0]}).status_code == 200

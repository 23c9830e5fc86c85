"""``offsetstore health``: what it prints, and how it exits."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from uuid import uuid4

import pytest
from click.testing import Result

from offsetstore import OffsetRange, OffsetStore, Token, TopicPartition
from offsetstore.monitoring import Monitoring
from offsetstore.protocol.events import ClaimEnded, ClaimTaken

Run = Callable[..., Result]

pytestmark = pytest.mark.behaviour("OPS-4")

TOKEN = Token(1, uuid4())
SECRET = "s" * 32
P0 = TopicPartition("payments", 0)


@pytest.fixture
def monitoring() -> Iterator[Monitoring]:
    with Monitoring(port=0, token=SECRET) as made:
        yield made


def test_the_process_is_asked_whether_it_is_live_or_ready(run: Run, monitoring: Monitoring) -> None:
    port = str(monitoring.port)
    starting = run("health", "--port", port)
    assert (starting.exit_code, starting.stdout) == (0, "The job is live and not ready.\nstarting\n")
    assert run("health", "--port", port, "--ready").exit_code == 1

    monitoring.on(ClaimTaken(group="billing", token=TOKEN, owner="host", starting=None))
    well = run("health", "--port", port, "--ready")
    assert (well.exit_code, well.stdout) == (0, "The job is live and ready.\n")

    monitoring.on(ClaimEnded(outcome="fenced", group="billing", token=TOKEN))
    lost = run("health", "--port", port, "--token", SECRET)
    reason = "claim-lost: billing: another claim has taken over"
    assert (lost.exit_code, lost.stdout) == (1, f"The job is not live and not ready.\n{reason}\n")
    document = run("health", "--port", port, "--format", "json")
    assert (document.exit_code, json.loads(document.stdout)) == (
        1,
        {"live": False, "ready": False, "codes": ["claim-lost"]},
    )


def test_where_no_job_listens_none_is_well(run: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    result = run("health", "--port", str(port))
    assert (result.exit_code, result.stderr) == (
        1,
        f"No answer from a job at 127.0.0.1:{port}: ConnectionRefusedError.\n",
    )


@pytest.mark.parametrize("arguments", [(), ("--port", "1", "-g", "billing"), ("-g", "billing", "--max-lag", "5")])
def test_wrong_usage(run: Run, arguments: tuple[str, ...]) -> None:
    assert run("health", *arguments).exit_code == 2


def test_a_group_is_well_while_a_live_job_owns_it(run: Run, store: OffsetStore) -> None:
    claim = store.claim("billing", topics=["payments"])
    well = run("health", "-g", "billing")
    assert (well.exit_code, well.stdout) == (0, "Group billing is well.\n")
    claim.close()
    left = run("health", "-g", "billing")
    assert (left.exit_code, left.stdout) == (1, "Group billing is not well.\nno-live-job: no live job owns it\n")


def test_a_group_may_be_so_far_behind_and_a_paused_one_as_far_as_it_likes(run: Run, store: OffsetStore) -> None:
    claim = store.claim("billing", topics=["payments"])
    with store.transaction(claim) as tx:
        tx.advance({P0: tx.lock({P0: OffsetRange(0, 4)})[P0].remaining})
    behind = ("health", "-g", "billing", "-b", "kafka:9092", "--format", "json", "--max-lag")
    assert run(*behind, "6").exit_code == 0
    result = run(*behind, "5")
    found = json.loads(result.stdout)
    assert found.pop("behind_seconds") >= 0
    document = {"group": "billing", "well": False, "problems": ["lag-too-high"], "paused": None, "lag": 6}
    assert (result.exit_code, found) == (1, document)
    store.pause("billing", reason="ticket 17")
    paused = run(*behind, "5")
    assert paused.exit_code == 0
    assert json.loads(paused.stdout)["paused"]["reason"] == "ticket 17"


def test_a_lag_that_can_t_be_told_is_not_within_a_limit(run: Run, store: OffsetStore) -> None:
    store.claim("audit", topics=["gone"])
    result = run("health", "-g", "audit", "-b", "kafka:9092", "--max-lag", "5")
    assert result.exit_code == 1
    assert "lag-unknown" in result.stdout

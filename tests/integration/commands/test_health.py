"""``offsetstore health``: what it prints, and how it exits."""

from __future__ import annotations

import json
import socket
from uuid import uuid4

import pytest

from offsetstore import OffsetStore, Token, TopicPartition
from offsetstore.monitoring import Monitoring
from offsetstore.protocol.events import ClaimEnded, ClaimTaken
from tests.integration.cli.conftest import advance
from tests.integration.commands.conftest import Run

pytestmark = pytest.mark.behaviour("OPS-4")


def test_the_process_is_asked_whether_it_is_live_or_ready(run: Run) -> None:
    token, secret = Token(1, uuid4()), "s" * 32

    def told(*options: str) -> tuple[int, str]:
        result = run("health", "--port", str(monitoring.port), *options)
        return result.exit_code, result.stdout

    with Monitoring(port=0, token=secret) as monitoring:
        assert told() == (0, "The job is live and not ready.\nstarting\n")
        assert told("--ready")[0] == 1
        monitoring.on(ClaimTaken(group="billing", token=token, owner="host", starting=None))
        assert told("--ready") == (0, "The job is live and ready.\n")
        monitoring.on(ClaimEnded(outcome="fenced", group="billing", token=token))
        reason = "claim-lost: billing: another claim has taken over"
        assert told("--token", secret) == (1, f"The job is not live and not ready.\n{reason}\n")
        code, document = told("--format", "json")
        assert (code, json.loads(document)) == (1, {"live": False, "ready": False, "codes": ["claim-lost"]})


def test_where_no_job_listens_none_is_well_and_wrong_usage_is_told(run: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    told = f"No answer from a job at 127.0.0.1:{port}: ConnectionRefusedError."
    assert run.fail(1, "health", "--port", str(port)) == told
    for arguments in ((), ("--port", "1", "-g", "billing"), ("-g", "billing", "--max-lag", "5")):
        run.fail(2, "health", *arguments)


def test_a_group_is_well_while_a_live_job_owns_it_that_is_not_too_far_behind_unless_it_is_paused(
    run: Run, store: OffsetStore
) -> None:
    health = ("health", "-g", "billing")
    behind = (*health, "-b", "kafka:9092", "--max-lag")
    with store.claim("billing", topics=["payments"]) as claim:
        advance(store, claim, {TopicPartition("payments", 0): 4})
        assert run.lines(*health) == ["Group billing is well."]
        assert run.json(*behind, "6")["well"] is True
        result = run(*behind, "5", "--format", "json")
        found = json.loads(result.stdout)
        assert found.pop("behind_seconds") >= 0
        document = {"group": "billing", "well": False, "problems": ["lag-too-high"], "paused": None, "lag": 6}
        assert (result.exit_code, found) == (1, document)
        store.pause("billing", reason="ticket 17")
        assert run.json(*behind, "5")["paused"]["reason"] == "ticket 17"
    store.resume("billing", reason="ticket 17")
    left = run(*health)
    assert (left.exit_code, left.stdout) == (1, "Group billing is not well.\nno-live-job: no live job owns it\n")

    store.claim("audit", topics=["gone"])
    unknown = run("health", "-g", "audit", "-b", "kafka:9092", "--max-lag", "5")
    assert (unknown.exit_code, "lag-unknown" in unknown.stdout) == (1, True)

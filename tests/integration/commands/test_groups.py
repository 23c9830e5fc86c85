"""What ``groups`` prints, and what it takes; what it does is the store's contract."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from click.testing import Result

from offsetstore import Claim, LetterError, OffsetRange, OffsetStore, TopicPartition
from offsetstore.protocol.letters import NewLetter
from offsetstore.testing import StaticBroker

P0 = TopicPartition("payments", 0)
REASON = ("--reason", "ticket 17")


@pytest.fixture(autouse=True)
def claim(store: OffsetStore, broker: StaticBroker) -> Claim:
    claim = store.claim("billing", broker, mirror_every=None)
    with store.transaction(claim) as tx:
        tx.advance({P0: tx.lock({P0: OffsetRange(0, 5)})[P0].remaining})
    return claim


def lines(result: Result) -> list[str]:
    assert result.exit_code == 0, result.output
    return result.stdout.splitlines()


@pytest.mark.behaviour("OPS-3")
def test_all_groups_are_listed_with_their_state(run: Callable[..., Result], store: OffsetStore, claim: Claim) -> None:
    store.claim("audit", topics=["refunds"]).close()
    store.pause("audit", reason="maintenance", until=datetime(2100, 1, 1, tzinfo=UTC))
    head, audit, billing = [line.split() for line in lines(run("groups", "list"))]
    assert head == ["group", "state", "epoch", "partitions", "changed", "letters", "topics"]
    assert audit == ["audit", "paused,", "no", "job", "1", "0", "-", "0"]
    assert billing[:4] == ["billing", "live", "1", "3"]
    assert billing[-2:] == ["0", "payments"]

    found: dict[str, Any] = json.loads(run("groups", "list", "--format", "json").stdout)
    first, second = found["groups"]
    assert (first["group"], first["state"], first["paused"]["reason"]) == ("audit", "ended", "maintenance")
    assert (first["partitions"], first["topics"], first["changed_seconds_ago"]) == (0, [], None)
    assert (second["owner"], second["topics"], second["partitions"]) == (claim.owner, ["payments"], 3)
    assert second["heartbeat_age_seconds"] >= 0
    assert second["changed_seconds_ago"] >= 0


@pytest.mark.behaviour("OPS-3")
def test_a_delete_needs_execute_and_says_what_stays_in_kafka(
    run: Callable[..., Result], store: OffsetStore, claim: Claim
) -> None:
    delete = ("groups", "delete", "-g", "billing", *REASON)
    plan = lines(run(*delete))
    assert plan[1].split() == ["payments-0", "5"]
    assert plan[4] == "billing would be deleted: the offsets of 3 partitions."
    assert plan[6] == "  kafka-consumer-groups.sh --bootstrap-server HOST:PORT --delete --group billing"
    assert plan[7].startswith("A job is live: ")
    assert plan[8:-1] == ["Stop it first, or fence it with --force.", "Nothing was written."]
    refused = run(*delete, "--execute")
    assert (refused.exit_code, "is live; nothing was written" in refused.stderr) == (1, True)

    error = LetterError("ValueError", "not a number")
    with store.transaction(claim) as tx:
        left = tx.lock({P0: OffsetRange(5, 9)})[P0].remaining
        tx.write_letters([NewLetter(P0, 6, "raised", error, 1, None, None)])
        tx.advance({P0: left})
    refused = run(*delete, "--execute", "--force")
    assert (refused.exit_code, "delete them with the group: --discard-letters." in refused.stderr) == (1, True)
    assert store.offsets("billing")[P0].next_offset == 9

    done = json.loads(run(*delete, "--execute", "--force", "--discard-letters", "--format", "json").stdout)
    assert {key: done[key] for key in ("group", "executed", "live", "contested", "dead_letters")} == {
        "group": "billing",
        "executed": True,
        "live": True,
        "contested": False,
        "dead_letters": {"open": 1, "settled": 0},
    }
    assert done["offsets"][0] == {"topic": "payments", "partition": 0, "stored": 9}
    assert store.offsets("billing") == {}
    assert "deleted by" in run("status", "-g", "billing").stdout
    again = run(*delete, "--execute")
    assert (again.exit_code, "was deleted, and no job has claimed it since" in again.stderr) == (1, True)


@pytest.mark.behaviour("OPS-3")
def test_of_a_topic_that_the_job_no_longer_reads_the_offsets_are_deleted(
    run: Callable[..., Result], store: OffsetStore, claim: Claim
) -> None:
    claim.close()
    refunds = TopicPartition("refunds", 0)
    with store.claim("billing", topics=["refunds"]) as old, store.transaction(old) as tx:
        tx.advance({refunds: tx.lock({refunds: OffsetRange(0, 3)})[refunds].remaining})
    delete = ("groups", "delete", "-g", "billing", *REASON, "--topic")
    plan = lines(run(*delete, "refunds"))
    assert "What billing has of refunds would be deleted: the offsets of 1 partition." in plan
    done = json.loads(run(*delete, "refunds", "--execute", "--format", "json").stdout)
    assert (done["topics"], done["offsets"]) == (["refunds"], [{"topic": "refunds", "partition": 0, "stored": 3}])
    assert {tp.topic for tp in store.offsets("billing")} == {"payments"}
    assert "deleted in part by" in run("status", "-g", "billing").stdout
    for topic, what in (("refunds", "has no offsets of these topics"), ("payments", "has offsets of no other topics")):
        refused = run(*delete, topic, "--execute")
        assert (refused.exit_code, what in refused.stderr) == (2, True)
    assert run(*delete, "").exit_code == 2

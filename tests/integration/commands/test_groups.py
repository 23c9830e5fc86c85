"""What ``groups`` prints, and what it takes; what it does is the store's contract."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from offsetstore import Claim, LetterError, OffsetRange, OffsetStore, TopicPartition
from offsetstore.protocol.letters import NewLetter
from offsetstore.testing import StaticBroker
from tests.integration.cli.conftest import advance
from tests.integration.commands.conftest import Run

pytestmark = pytest.mark.behaviour("OPS-3")

P0 = TopicPartition("payments", 0)
DELETE = ("groups", "delete", "-g", "billing", "--reason", "ticket 17")


@pytest.fixture(autouse=True)
def claim(store: OffsetStore, broker: StaticBroker) -> Claim:
    claim = store.claim("billing", broker, mirror_every=None)
    advance(store, claim, {P0: 5})
    return claim


def test_all_groups_are_listed_with_their_state(run: Run, store: OffsetStore, claim: Claim) -> None:
    store.claim("audit", topics=["refunds"]).close()
    store.pause("audit", reason="maintenance", until=datetime(2100, 1, 1, tzinfo=UTC))
    head, audit, billing = [line.split() for line in run.lines("groups", "list")]
    assert head == ["group", "state", "epoch", "partitions", "changed", "letters", "topics"]
    assert audit == ["audit", "paused,", "no", "job", "1", "0", "-", "0"]
    assert (billing[:4], billing[-2:]) == (["billing", "live", "1", "3"], ["0", "payments"])

    first, second = run.json("groups", "list")["groups"]
    assert (first["group"], first["state"], first["paused"]["reason"]) == ("audit", "paused", "maintenance")
    assert (first["partitions"], first["topics"], first["changed_seconds_ago"]) == (0, [], None)
    assert (second["owner"], second["topics"], second["partitions"]) == (claim.owner, ["payments"], 3)
    assert min(second["heartbeat_age_seconds"], second["changed_seconds_ago"]) >= 0


def test_a_delete_needs_execute_and_says_what_stays_in_kafka(run: Run, store: OffsetStore, claim: Claim) -> None:
    plan = run.lines(*DELETE)
    assert plan[1].split() == ["payments-0", "5"]
    assert plan[4] == "billing would be deleted: the offsets of 3 partitions."
    assert plan[6] == "  kafka-consumer-groups.sh --bootstrap-server HOST:PORT --delete --group billing"
    assert plan[7].startswith("A job is live: ")
    assert plan[8:-1] == ["Stop it first, or fence it with --force.", "Nothing was written."]
    assert "is live; nothing was written" in run.fail(1, *DELETE, "--execute")

    error = LetterError("ValueError", "not a number")
    with store.transaction(claim) as tx:
        left = tx.lock({P0: OffsetRange(5, 9)})[P0].remaining
        tx.letters.write([NewLetter(P0, 6, "raised", error, 1, None, None)])
        tx.advance({P0: left})
    refused = run.fail(1, *DELETE, "--execute", "--force")
    assert "delete them with the group: --discard-letters." in refused
    assert store.offsets("billing")[P0].next_offset == 9

    done = run.json(*DELETE, "--execute", "--force", "--discard-letters")
    assert (done["group"], done["executed"], done["live"], done["contested"]) == ("billing", True, True, False)
    assert done["dead_letters"] == {"open": 1, "settled": 0}
    assert done["offsets"][0] == {"topic": "payments", "partition": 0, "stored": 9}
    assert store.offsets("billing") == {}
    assert "deleted by" in run.lines("status", "-g", "billing")[0]
    assert "was deleted, and no job has claimed it since" in run.fail(1, *DELETE, "--execute")


def test_of_a_topic_that_the_job_no_longer_reads_the_offsets_are_deleted(
    run: Run, store: OffsetStore, claim: Claim
) -> None:
    claim.close()
    refunds = TopicPartition("refunds", 0)
    with store.claim("billing", topics=["refunds"]) as old:
        advance(store, old, {refunds: 3})
    told = "What billing has of refunds would be deleted: the offsets of 1 partition."
    assert told in run.lines(*DELETE, "--topic", "refunds")
    done = run.json(*DELETE, "--topic", "refunds", "--execute")
    assert (done["topics"], done["offsets"]) == (["refunds"], [{"topic": "refunds", "partition": 0, "stored": 3}])
    assert {tp.topic for tp in store.offsets("billing")} == {"payments"}
    assert "deleted in part by" in run.lines("status", "-g", "billing")[0]
    for topic, what in {
        "refunds": "has no offsets of these topics",
        "payments": "has offsets of no other topics",
        "": "a name must not be empty",
    }.items():
        assert what in run.fail(2, *DELETE, "--topic", topic, "--execute")

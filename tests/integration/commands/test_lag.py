"""What ``lag`` prints, and when it fails; how lags are measured: tests/integration/operations/test_lag.py."""

from __future__ import annotations

import json
import time
from operator import itemgetter

import pytest

from offsetstore import OffsetStore, TopicPartition
from offsetstore.cli import health as command
from offsetstore.errors import BrokerUnavailable
from offsetstore.testing import StaticBroker
from tests.integration.cli.conftest import advance
from tests.integration.commands.conftest import Run
from tests.integration.conftest import Query
from tests.support.waiting import time_with

P0, P1 = TopicPartition("payments", 0), TopicPartition("payments", 1)
HOUR = 3_600
LAG = ("lag", "-g", "billing", "-b", "kafka:9092")


@pytest.fixture(autouse=True)
def stored(store: OffsetStore, broker: StaticBroker) -> None:
    """Four of ten records are stored of one partition, all of another; the records came in the last ten hours."""
    now = int(time.time() * 1000)
    for tp in (P0, P1):
        broker.records[tp] = {offset: now - (10 - offset) * HOUR * 1000 for offset in range(10)}
    with store.claim("billing", topics=["payments"]) as claim:
        advance(store, claim, {P0: 4, P1: 10})
    store.claim("audit", topics=["refunds"])


@pytest.mark.behaviour("OPS-1", "OPS-12")
def test_each_topic_or_partition_has_a_line_and_the_document_holds_all_and_the_help_names_each_key(run: Run) -> None:
    assert [line.split() for line in run.lines(*LAG)[:2]] == [
        ["group", "state", "topic", "partitions", "lag", "behind", "headroom"],
        ["billing", "ended", "payments", "3", "6", "6h", "4"],
    ]
    assert run.lines(*LAG)[2:] == ["billing, payments: no stored offset of 1 partition."]
    assert [line.split() for line in run.lines("lag", "--all", "--partitions", *LAG[3:])[:-1]] == [
        ["group", "partition", "stored", "end", "lag", "behind", "headroom"],
        ["billing", "payments-0", "4", "10", "6", "6h", "4"],
        ["billing", "payments-1", "10", "10", "0", "0s", "-"],
        ["billing", "payments-2", "-", "10", "-", "-", "-"],
    ]

    [group] = run.json(*LAG)["groups"]
    assert (group["group"], group["state"], group["live"], group["lag"]) == ("billing", "ended", False, 6)
    assert group["paused"] is None
    assert group["behind_seconds"] == pytest.approx(6 * HOUR, rel=0.02)
    [topic] = group["topics"]
    assert (topic["headroom"], topic["without_offset"], topic["error"]) == (4, 1, None)
    partitions = [(one["stored"], one["end"], one["lag"]) for one in topic["partitions"]]
    assert partitions == [(4, 10, 6), (10, 10, 0), (None, 10, None)]
    text = "".join(run.lines("lag", "--help"))
    assert [key for one in (group, topic, topic["partitions"][0]) for key in one if key not in text] == []


@pytest.mark.behaviour("OPS-16")
def test_an_offset_beyond_the_end_is_told_and_fails_above_any_limit(run: Run, broker: StaticBroker) -> None:
    broker.set_log(P1, 0, 8)
    result = run(*LAG, "--partitions", "--fail-above", "1000000")
    assert result.exit_code == 1
    assert ["billing", "payments-1", "10", "8", "-", "-", "-"] in [line.split() for line in result.stdout.splitlines()]
    assert "billing, payments-1: the stored offset is 2 beyond the end of the log." in result.stdout


@pytest.mark.behaviour("OPS-16")
def test_evidence_of_loss_is_told_also_where_the_log_has_grown_again(run: Run, store: OffsetStore) -> None:
    session = store.database.begin(name="test")
    token = session.read_partitions("billing")[P1].token
    session.write_suspects("billing", token, {P1: "the log ended at 8, below the stored offset 10"})
    session.commit()
    told = "billing, payments-1: the log lost records that had been read, and each start is refused until a reset."
    assert told in run.lines(*LAG)


@pytest.mark.behaviour("OPS-12")
def test_it_fails_above_a_limit_and_where_it_cant_be_told_but_not_for_a_paused_group(
    run: Run, store: OffsetStore, broker: StaticBroker
) -> None:
    limits = {"6": 0, "5": 1, "0": 1, "7h": 0, "5h": 1, "5m": 1, "1d": 0, "90s": 1}
    assert {limit: run(*LAG, "--fail-above", limit).exit_code for limit in limits} == limits
    broker.records.clear()
    broker.may_read = False
    assert [run(*LAG, "--fail-above", limit).exit_code for limit in ("100", "5m")] == [0, 1]
    store.pause("billing", reason="ticket 17")
    assert "paused, no job" in "".join(run.lines(*LAG, "--fail-above", "0"))


def test_without_a_group_it_is_of_all_and_with_a_topic_of_that_topic_alone(run: Run, store: OffsetStore) -> None:
    """The state stays that of the whole group, and a typo in a check never looks well."""
    with store.claim("invoicing", topics=["payments", "refunds"]) as claim:
        advance(store, claim, {P0: 10, TopicPartition("refunds", 0): 3})
    key = itemgetter("group", "state", "lag")
    of_all = run.json("lag", *LAG[3:])
    assert [*map(key, of_all["groups"])] == [*map(key, run.json("lag", "--all", *LAG[3:])["groups"])]
    assert [group["group"] for group in of_all["groups"]] == ["audit", "billing", "invoicing"]

    of_topic = run.json("lag", "-t", "payments", *LAG[3:])["groups"]
    assert [(group["group"], group["lag"]) for group in of_topic] == [("billing", 6), ("invoicing", 0)]
    states = {group["group"]: group["state"] for group in of_all["groups"]}
    assert all(group["state"] == states[group["group"]] for group in of_topic)
    assert [line.split()[:3] for line in run.lines(*LAG, "-t", "payments")[1:2]] == [["billing", "ended", "payments"]]
    assert run("lag", "-t", "payments", "--fail-above", "5", *LAG[3:]).exit_code == 1
    assert run("lag", "-g", "invoicing", "-t", "payments", "--fail-above", "5", *LAG[3:]).exit_code == 0

    told = run.fail(1, "lag", "-t", "paymnts", "--fail-above", "5", *LAG[3:])
    assert "no offsets of topic 'paymnts' for any group" in told
    assert "Did you mean 'payments'?" in told
    assert "for group 'billing'" in run.fail(1, *LAG, "-t", "refunds")


def test_what_is_stored_is_shown_if_kafka_does_not_answer_and_wrong_usage_is_told(
    run: Run, broker: StaticBroker
) -> None:
    broker.error = BrokerUnavailable("no answer")
    result = run(*LAG, "--partitions", "--fail-above", "0")
    assert (result.exit_code, "no answer" in result.stderr) == (4, True)
    assert result.stdout.splitlines()[1].split() == ["billing", "payments-0", "4", "-", "-", "-", "-"]
    for wrong in (
        ("-g", "billing", "--all"),
        ("-g", "billing", "--fail-above", "5 m"),
        ("--all", "--kafka-group", "x"),
        ("--kafka-group", "x"),
    ):
        run.fail(2, "lag", "-b", "kafka:9092", *wrong)


@pytest.mark.behaviour("OPS-1")
def test_it_looks_again_until_it_is_interrupted(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(command, "time", time_with(sleep))
    result = run(*LAG, "--watch", "2.5", "--format", "json")

    assert (result.exit_code, waits) == (130, [2.5] * 3)
    assert [json.loads(line)["groups"][0]["lag"] for line in result.stdout.splitlines()] == [6] * 3


@pytest.mark.behaviour("CONS-20")
def test_a_partition_that_stands_is_named(run: Run, store: OffsetStore, query: Query) -> None:
    with store.claim("billing", topics=["payments"]):
        query("UPDATE consumer_groups SET claimed_at = now() - interval '9 hours'")
        query("UPDATE kafka_partitions SET updated_at = now() - interval '2 hours' WHERE partition = 0")
        told = run.lines(*LAG)
    assert "billing, payments-0: has stood for 2h, with unread records, while others advanced." in told

"""What ``lag`` prints, and when it fails; how lags are measured: tests/integration/operations/test_lag.py."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from click.testing import Result

from offsetstore import OffsetRange, OffsetStore, TopicPartition
from offsetstore.cli import lag as command
from offsetstore.errors import BrokerUnavailable
from offsetstore.testing import StaticBroker
from tests.integration.conftest import Query
from tests.support.waiting import time_with

Run = Callable[..., Result]

P0, P1 = TopicPartition("payments", 0), TopicPartition("payments", 1)
HOUR = 3_600
BROKER = ("-b", "kafka:9092")


@pytest.fixture(autouse=True)
def stored(store: OffsetStore, broker: StaticBroker) -> None:
    """Four of ten records are stored of one partition, all of another; the records came in the last ten hours."""
    now = int(time.time() * 1000)
    for tp in (P0, P1):
        broker.records[tp] = {offset: now - (10 - offset) * HOUR * 1000 for offset in range(10)}
    ranges = {P0: OffsetRange(0, 4), P1: OffsetRange(0, 10)}
    with store.claim("billing", topics=["payments"]) as claim, store.transaction(claim) as tx:
        tx.lock(ranges)
        tx.advance(ranges)
    store.claim("audit", topics=["refunds"])


def lines(result: Result) -> list[list[str]]:
    assert result.exit_code == 0, result.output
    return [line.split() for line in result.stdout.splitlines()]


@pytest.mark.behaviour("OPS-1", "OPS-12")
def test_each_topic_has_a_line(run: Run) -> None:
    head, billing, left_out = lines(run("lag", "-g", "billing", *BROKER))

    assert head == ["group", "state", "topic", "partitions", "lag", "behind", "headroom"]
    assert billing == ["billing", "ended", "payments", "3", "6", "6h", "4"]
    assert " ".join(left_out) == "billing, payments: no stored offset of 1 partitions."


@pytest.mark.behaviour("OPS-12")
def test_each_partition_has_a_line_if_asked(run: Run) -> None:
    head, *rows, _ = lines(run("lag", "--all", "--partitions", *BROKER))

    assert head == ["group", "partition", "stored", "end", "lag", "behind", "headroom"]
    assert rows == [
        ["billing", "payments-0", "4", "10", "6", "6h", "4"],
        ["billing", "payments-1", "10", "10", "0", "0s", "-"],
        ["billing", "payments-2", "-", "10", "-", "-", "-"],
    ]


@pytest.mark.behaviour("OPS-16")
def test_an_offset_beyond_the_end_is_told_and_fails_above_any_limit(run: Run, broker: StaticBroker) -> None:
    broker.set_log(P1, 0, 8)
    result = run("lag", "-g", "billing", "--partitions", "--fail-above", "1000000", *BROKER)
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
    assert told in run("lag", "-g", "billing", *BROKER).stdout.splitlines()


@pytest.mark.behaviour("OPS-1", "OPS-12")
def test_as_json_it_holds_all_and_the_help_names_each_key(run: Run) -> None:
    result = run("lag", "-g", "billing", "--format", "json", *BROKER)
    [group] = json.loads(result.stdout)["groups"]

    assert (group["group"], group["live"], group["paused"], group["lag"]) == ("billing", False, False, 6)
    assert group["behind_seconds"] == pytest.approx(6 * HOUR, rel=0.02)
    [topic] = group["topics"]
    assert (topic["headroom"], topic["without_offset"], topic["error"]) == (4, 1, None)
    assert [(one["stored"], one["end"], one["lag"]) for one in topic["partitions"]] == [
        (4, 10, 6),
        (10, 10, 0),
        (None, 10, None),
    ]
    text = run("lag", "--help").stdout
    assert [key for one in (group, topic, topic["partitions"][0]) for key in one if key not in text] == []


@pytest.mark.behaviour("OPS-12")
@pytest.mark.parametrize(
    ("limit", "code"), [("6", 0), ("5", 1), ("7h", 0), ("5h", 1), ("5m", 1), ("1d", 0), ("90s", 1), ("0", 1)]
)
def test_it_fails_above_a_limit(run: Run, limit: str, code: int) -> None:
    assert run("lag", "-g", "billing", "--fail-above", limit, *BROKER).exit_code == code


def test_a_paused_group_may_be_behind_as_far_as_it_likes(run: Run, store: OffsetStore) -> None:
    store.pause("billing", reason="ticket 17")
    result = run("lag", "-g", "billing", "--fail-above", "0", *BROKER)

    assert result.exit_code == 0
    assert "paused, no job" in result.stdout


def test_what_is_stored_is_shown_if_kafka_does_not_answer(
    run: Run, broker: StaticBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_groups: Mapping[str, Any]) -> None:
        raise BrokerUnavailable("no answer")

    monkeypatch.setattr(broker, "snapshot", refuse)
    result = run("lag", "-g", "billing", "--partitions", "--fail-above", "0", *BROKER)

    assert (result.exit_code, "no answer" in result.stderr) == (4, True)
    assert result.stdout.splitlines()[1].split() == ["billing", "payments-0", "4", "-", "-", "-", "-"]


@pytest.mark.behaviour("OPS-1")
def test_it_looks_again_until_it_is_interrupted(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(command, "time", time_with(sleep))
    result = run("lag", "--all", "--watch", "2.5", "--format", "json", *BROKER)

    assert (result.exit_code, waits) == (130, [2.5] * 3)
    assert [json.loads(line)["groups"][1]["lag"] for line in result.stdout.splitlines()] == [6] * 3


@pytest.mark.parametrize(
    "arguments",
    [(), ("-g", "billing", "--all"), ("-g", "billing", "--fail-above", "5 m"), ("--all", "--kafka-group", "x")],
)
def test_wrong_usage(run: Run, arguments: tuple[str, ...]) -> None:
    assert run("lag", *arguments, *BROKER).exit_code == 2


def test_what_can_t_be_told_is_not_within_a_limit(run: Run, broker: StaticBroker) -> None:
    broker.records.clear()
    broker.may_read = False

    assert run("lag", "-g", "billing", "--fail-above", "100", *BROKER).exit_code == 0
    assert run("lag", "-g", "billing", "--fail-above", "5m", *BROKER).exit_code == 1


@pytest.mark.behaviour("CONS-20")
def test_a_partition_that_stands_is_named(run: Run, store: OffsetStore, query: Query) -> None:
    with store.claim("billing", topics=["payments"]):
        query("UPDATE consumer_groups SET claimed_at = now() - interval '9 hours'")
        query("UPDATE kafka_partitions SET updated_at = now() - interval '2 hours' WHERE partition = 0")
        result = run("lag", "-g", "billing", *BROKER)
    assert "billing, payments-0: has stood for 2h, with unread records, while others advanced." in result.stdout

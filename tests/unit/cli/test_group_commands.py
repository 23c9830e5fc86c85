"""What ``status``, ``reset`` and ``resolve`` print of what the library decides; real servers are the integration's."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from offsetstore import OffsetRange, TopicPartition
from offsetstore.errors import BrokerUnavailable
from offsetstore.offsets import CommittedOffset

if TYPE_CHECKING:
    from collections.abc import Callable

    from click.testing import Result

    from offsetstore import Claim
    from offsetstore.testing import InMemoryOffsetStore, StaticBroker

P0, P1, P2 = (TopicPartition("payments", number) for number in range(3))
REASON = ("--reason", "ticket 17")


@pytest.fixture
def claim(store: InMemoryOffsetStore, broker: StaticBroker) -> Claim:
    """A live job of `billing` that has stored 4, 5 and 0."""
    claim = store.claim("billing", broker, mirror_every=None)
    ranges = {P0: OffsetRange(0, 4), P1: OffsetRange(0, 5)}
    with store.transaction(claim) as tx:
        tx.lock(ranges)
        tx.advance(ranges)
    broker.current = replace(broker.current, committed={P0: CommittedOffset(2), P1: CommittedOffset(8)})
    return claim


def mark(store: InMemoryOffsetStore, claim: Claim) -> None:
    """Contest partitions 0 and 1, and pin partition 0."""
    session = store.memory.begin(name="test")
    session.contest("billing", claim.token, [P0, P1])
    session.commit()
    store.reset("billing", 4, partitions={"payments": [0]}, from_offset=4, reason="ticket 17", actor="alice")


def test_status_shows_what_is_pinned_and_what_is_contested(
    run: Callable[..., Result], store: InMemoryOffsetStore, claim: Claim
) -> None:
    mark(store, claim)
    head, columns, *lines = run("status", "-g", "billing", "-b", "kafka:1").stdout.splitlines()
    assert head.startswith("Group billing: epoch 2, reset by alice ")
    assert columns.split() == ["partition", "stored", "committed", "end", "lag", "epoch", "age"]
    assert [line.split()[:-1] for line in lines[:-1]] == [
        ["payments-0", "4", "(pinned,", "contested)", "2", "10", "6", "2"],
        ["payments-1", "5", "(contested)", "8", "10", "5", "2"],
        ["payments-2", "0", "-", "10", "10", "2"],
    ]
    assert lines[-1] == "Lag 21 in 3 partitions."
    found: dict[str, Any] = json.loads(run("status", "-g", "billing", "--format", "json").stdout)
    assert [(one["pinned"], one["contested"]) for one in found["partitions"]] == [
        (True, True),
        (False, True),
        (False, False),
    ]


def test_status_shows_what_is_stored_although_kafka_does_not_answer(
    run: Callable[..., Result], broker: StaticBroker, claim: Claim
) -> None:
    broker.error = BrokerUnavailable("no answer from Kafka")
    result = run("status", "-g", "billing", "-b", "kafka:1")
    assert result.exit_code == 4
    assert result.stdout.splitlines()[2].split()[:-1] == ["payments-0", "4", "-", "-", "-", "1"]
    assert result.stderr.startswith("Error: no answer from Kafka\n")


@pytest.mark.parametrize(
    ("to", "told"),
    [
        (["-t", "payments", "--to-earliest"], "would read 9 offsets again, in 3 partitions."),
        (["-t", "payments:0", "--to-offset", "3"], "would read 1 offset again, in 1 partition."),
        (["-t", "payments", "--to-offset", "1"], "would read 7 offsets again and pass over 1, in 3 partitions."),
        (["-t", "payments:2", "--to-offset", "1"], "would pass over 1 offset, in 1 partition."),
        (["-t", "payments", "--shift-by", "0"], "is already there, in 3 partitions."),
    ],
)
def test_reset_says_what_the_next_start_would_read(
    run: Callable[..., Result], claim: Claim, to: list[str], told: str
) -> None:
    claim.close()
    result = run("reset", "-g", "billing", *to, "-b", "kafka:1", *REASON)
    assert result.exit_code == 0, result.output
    [said] = [line for line in result.stdout.splitlines() if line.startswith("billing ")]
    assert said == f"billing {told}"
    assert ("Remove their results" in result.stdout) is ("again" in told)


def test_reset_asks_for_brokers_where_only_kafka_knows_the_target(run: Callable[..., Result], claim: Claim) -> None:
    result = run("reset", "-g", "billing", "-t", "payments", "--to-latest", *REASON)
    assert result.exit_code == 2
    assert "  next step: Name its brokers with --bootstrap-servers.\n" in result.stderr


def test_reset_needs_a_reason(run: Callable[..., Result], claim: Claim) -> None:
    result = run("reset", "-g", "billing", "-t", "payments", "--to-offset", "1", "--reason", " ")
    assert result.exit_code == 2
    assert "a decision needs a reason" in result.stderr


def test_resolve_counts_what_the_job_would_read(run: Callable[..., Result], claim: Claim) -> None:
    result = run("resolve", "-g", "billing", "-t", "payments", "-b", "kafka:1")
    assert result.stdout.splitlines()[-2:] == [
        "Would skip 3 offsets that the store has not seen: payments-1 [5, 8).",
        "billing would start with 18 offsets to read in 3 partitions.",
    ]

"""What ``status``, ``reset`` and ``resolve`` print of what the library decides; real servers are the integration's."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from offsetstore import Claim, OffsetRange, OffsetStore, TopicPartition
from offsetstore.errors import BrokerUnavailable
from offsetstore.offsets import CommittedOffset
from offsetstore.testing import StaticBroker

P0, P1, P2 = (TopicPartition("payments", number) for number in range(3))
REASON = ("--reason", "ticket 17")


@pytest.fixture
def claim(store: OffsetStore, broker: StaticBroker) -> Claim:
    """A live job of `billing` that has stored 4, 5 and 0."""
    claim = store.claim("billing", broker, mirror_every=None)
    ranges = {P0: OffsetRange(0, 4), P1: OffsetRange(0, 5)}
    with store.transaction(claim) as tx:
        tx.lock(ranges)
        tx.advance(ranges)
    broker.current = replace(broker.current, committed={P0: CommittedOffset(2), P1: CommittedOffset(8)})
    return claim


def mark(store: OffsetStore, claim: Claim) -> None:
    """Contest partitions 0 and 1, and pin partition 0."""
    session = store.database.begin(name="test")
    session.contest("billing", claim.token, [P0, P1])
    session.commit()
    store.reset("billing", 4, partitions={"payments": [0]}, from_offset=4, reason="ticket 17", actor="alice")


def test_status_shows_what_is_pinned_and_what_is_contested(
    run: Callable[..., Result], store: OffsetStore, claim: Claim
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


@pytest.mark.behaviour("OPS-16")
def test_status_tells_of_an_offset_beyond_the_end_and_of_evidence_of_loss_and_of_no_lag(
    run: Callable[..., Result], store: OffsetStore, broker: StaticBroker, claim: Claim
) -> None:
    session = store.database.begin(name="test")
    session.write_suspects("billing", claim.token, {P1: "the log ended at 3, below the stored offset 5"})
    session.commit()
    broker.set_log(P0, 0, 3)
    found = run("status", "-g", "billing", "-b", "kafka:1").stdout.splitlines()
    assert [line.split()[:-1] for line in found[2:4]] == [
        ["payments-0", "4", "2", "3", "-", "1"],
        ["payments-1", "5", "(suspect)", "8", "10", "5", "1"],
    ]
    assert found[5:] == [
        "payments-0: the stored offset is 1 beyond the end of the log.",
        "payments-1: the log lost records that had been read, and each start is refused until a reset.",
        "payments-1: the log ended at 3, below the stored offset 5",
    ]
    document: dict[str, Any] = json.loads(run("status", "-g", "billing", "-b", "kafka:1", "--format", "json").stdout)
    assert document["lag"] is None
    assert [(one["lag"], one["beyond_end"], one["suspect"]) for one in document["partitions"]] == [
        (None, 1, None),
        (5, 0, "the log ended at 3, below the stored offset 5"),
        (10, 0, None),
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
    ("named", "lines"),
    [
        (
            "payment:0",
            [
                "Error: the store has no offsets of topic 'payment' for group 'billing'",
                "  expected:  payments",
                "  next step: Did you mean payments? Correct the topic; a claim makes its rows.",
            ],
        ),
        (
            "payments:1,7,9",
            [
                "Error: payments-7: the store has no offset of this partition for group 'billing'",
                "  expected:  payments-0, payments-1, payments-2",
                "  next step: Correct the partition; it gets its row from a claim.",
            ],
        ),
    ],
)
def test_a_reset_of_what_the_group_does_not_have_says_what_it_has(
    run: Callable[..., Result], claim: Claim, named: str, lines: list[str]
) -> None:
    result = run("reset", "-g", "billing", "-t", named, "--to-offset", "0", *REASON)
    assert (result.exit_code, result.stderr.splitlines()) == (2, lines)


@pytest.mark.behaviour("OPS-1", "OPS-10")
def test_the_plan_of_a_duration_is_repeated_with_the_time_that_it_has_led_to(
    run: Callable[..., Result], store: OffsetStore, broker: StaticBroker, claim: Claim
) -> None:
    claim.close()
    reset = ("reset", "-g", "billing", "-t", "payments", "-b", "kafka:1", *REASON)
    planned = run(*reset, "--by-duration", "PT1H").stdout
    [(time, digest)] = re.findall(r"leads to (\S+): .*\n.*\nPlan (\w+)", planned)
    broker.set_log(P0, 0, 20)
    assert datetime.now(UTC) - datetime.fromisoformat(time) >= timedelta(hours=1)
    assert json.loads(run(*reset, "--to-datetime", time, "--format", "json").stdout)["to_datetime"] == time
    assert run(*reset, "--to-datetime", time, "--execute", "--if-plan", digest).exit_code == 0
    assert store.offsets("billing")[P0].next_offset == 20


@pytest.mark.behaviour("OPS-1")
def test_reset_reads_and_prints_the_csv_of_kafkas_tool(
    run: Callable[..., Result], store: OffsetStore, claim: Claim, tmp_path: Path
) -> None:
    claim.close()
    reset = ("reset", "-g", "billing", *REASON)
    exported = run(*reset, "-t", "payments:0,1", "--shift-by", "2", "--format", "csv")
    assert (exported.exit_code, exported.stdout) == (0, "payments,0,6\npayments,1,7\n")
    file = tmp_path / "offsets.csv"
    file.write_text(exported.stdout)
    assert run(*reset, "--from-file", str(file), "--execute").exit_code == 0
    assert [row.next_offset for row in store.offsets("billing").values()] == [6, 7, 0]

    file.write_text('\ufeff"billing", payments , 0,1\n\nother,payments,0,9\n', encoding="utf-8")
    done = run(*reset, "--from-file", str(file), "--execute", "--format", "csv")
    assert (done.stdout, done.stderr) == ("payments,0,1\n", "Left out 1 line of other groups.\n")
    assert store.offsets("billing")[P0].next_offset == 1


@pytest.mark.behaviour("OPS-1")
@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"payments,0\n", "Line 1 of --from-file is not topic,partition,offset"),
        (b"payments,0,1\n\na,billing,payments,0,1\n", "Line 3 of --from-file is not"),
        (b"payments,0,first\n", "Line 1 of --from-file is not"),
        (b"payments,-1,1\n", "Line 1 of --from-file is not"),
        (b"payments,0,1\npayments,0,2\n", "Line 2 of --from-file names payments-0 again"),
        (b"payments,0,-1\n", "must be from 0 to 9223372036854775807"),
        (b"payments,7,1\n", "payments-7"),
        (b"other,payments,0,1\n", "--from-file has no offsets of group billing"),
        (b"", "--from-file has no offsets of group billing"),
        (b"\xff\xfe", "not a CSV file in UTF-8"),
    ],
)
def test_reset_refuses_a_file_that_is_not_as_it_should_be(
    run: Callable[..., Result], store: OffsetStore, claim: Claim, tmp_path: Path, *, content: bytes, told: str
) -> None:
    claim.close()
    (tmp_path / "offsets.csv").write_bytes(content)
    result = run("reset", "-g", "billing", "--from-file", str(tmp_path / "offsets.csv"), *REASON, "--execute")
    assert (result.exit_code, told in " ".join(result.stderr.split())) == (2, True), result.output
    assert [row.next_offset for row in store.offsets("billing").values()] == [4, 5, 0]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--to-current"], "either with --topic, or --all-topics"),
        (["-t", "payments", "--all-topics", "--to-current"], "either with --topic, or --all-topics"),
        (["-t", "payments", "--from-file", "/dev/null"], "--from-file has no offsets"),
        (["--all-topics", "--to-current", "--shift-by", "0"], "found --to-current, --shift-by"),
        (["-t", "payments"], "Name one of --to-earliest"),
        (["-t", "payments:x", "--to-offset", "1"], "is not TOPIC or TOPIC:0,2"),
        (["--all-topics", "--by-duration", "P1M"], "not a duration such as P1DT2H"),
        (["--all-topics", "--by-duration", "P999999D"], "before the year 1"),
    ],
)
def test_reset_says_what_does_not_go_together(run: Callable[..., Result], options: list[str], told: str) -> None:
    result = run("reset", "-g", "billing", *options, *REASON)
    assert (result.exit_code, told in " ".join(result.stderr.split())) == (2, True), result.output


@pytest.mark.behaviour("START-29")
@pytest.mark.usefixtures("claim")
def test_resolve_warns_of_a_group_that_the_store_does_not_know(
    run: Callable[..., Result], broker: StaticBroker
) -> None:
    arguments = ("resolve", "-g", "biling", "-t", "payments", "-b", "kafka:1")
    found = json.loads(run(*arguments, "--format", "json").stdout)["warning"]
    assert found.startswith("group 'biling' is taken over at its committed offsets in Kafka, but there are none for ")
    assert "groups rename" not in found
    broker.current = replace(broker.current, committed={})
    found = json.loads(run(*arguments, "--format", "json").stdout)["warning"]
    assert found.startswith("the store has no offsets of group 'biling', which is right for a new job: ")
    assert "'billing'" in found
    assert f"A warning: {found}" in run(*arguments).stdout.splitlines()


@pytest.mark.parametrize(
    ("to", "told"),
    [
        (["-t", "payments", "--to-earliest"], "would read 9 offsets again, in 3 partitions."),
        (["-t", "payments:0", "--to-offset", "3"], "would read 1 offset again, in 1 partition."),
        (["--all-topics", "--to-current"], "is already there, in 3 partitions."),
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

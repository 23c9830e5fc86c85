"""What ``status``, ``reset`` and ``resolve`` print of what the library decides; real servers are the integration's."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from offsetstore import Claim, OffsetStore, TopicPartition
from offsetstore.errors import BrokerError, BrokerRefused, BrokerUnavailable, TopicMissing
from offsetstore.offsets import CommittedOffset
from offsetstore.testing import StaticBroker
from tests.integration.cli.conftest import advance
from tests.integration.commands.conftest import Run

P0, P1, P2 = (TopicPartition("payments", number) for number in range(3))
KAFKA = ("-b", "kafka:1")
STATUS = ("status", "-g", "billing")
RESET = ("reset", "-g", "billing", "--reason", "ticket 17")


@pytest.fixture
def claim(store: OffsetStore, broker: StaticBroker) -> Claim:
    """A live job of `billing` that has stored 4, 5 and 0."""
    claim = store.claim("billing", broker, mirror_every=None)
    advance(store, claim, {P0: 4, P1: 5})
    broker.current = replace(broker.current, committed={P0: CommittedOffset(2), P1: CommittedOffset(8)})
    return claim


def test_status_shows_what_is_pinned_and_what_is_contested_also_if_kafka_does_not_answer(
    run: Run, store: OffsetStore, broker: StaticBroker, claim: Claim
) -> None:
    session = store.database.begin(name="test")
    session.contest("billing", claim.token, [P0, P1])
    session.commit()
    store.reset("billing", 4, partitions={"payments": [0]}, from_offset=4, reason="ticket 17", actor="alice")
    head, columns, *lines = run.lines(*STATUS, *KAFKA)
    assert head.startswith("Group billing: epoch 2, reset by alice ")
    assert columns.split() == ["partition", "stored", "committed", "end", "lag", "epoch", "age"]
    assert [line.split()[:-1] for line in lines[:-1]] == [
        ["payments-0", "4", "(pinned,", "contested)", "2", "10", "6", "2"],
        ["payments-1", "5", "(contested)", "8", "10", "5", "2"],
        ["payments-2", "0", "-", "10", "10", "2"],
    ]
    assert lines[-1] == "Lag 21 in 3 partitions."
    marks = [(one["pinned"], one["contested"]) for one in run.json(*STATUS)["partitions"]]
    assert marks == [(True, True), (False, True), (False, False)]

    broker.error = BrokerUnavailable("no answer from Kafka")
    result = run(*STATUS, *KAFKA)
    assert result.exit_code == 4
    assert result.stdout.splitlines()[3].split()[:-1] == ["payments-1", "5", "(contested)", "-", "-", "-", "2"]
    assert result.stderr.startswith("Error: no answer from Kafka\n")


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (BrokerRefused("no DESCRIBE of the group billing"), ["-", "10", "6"]),
        (TopicMissing("Kafka has no topic payments"), ["2", "-", "-"]),
    ],
)
def test_status_shows_what_kafka_tells_although_it_does_not_tell_all(
    run: Run, broker: StaticBroker, claim: Claim, error: BrokerError, shown: list[str]
) -> None:
    broker.unanswered = {error.what.rpartition(" ")[2]: error}
    result = run(*STATUS, *KAFKA)
    assert (result.exit_code, result.stderr.splitlines()[0]) == (4, f"Error: {error.what}")
    assert result.stdout.splitlines()[2].split()[:-1] == ["payments-0", "4", *shown, "1"]


@pytest.mark.behaviour("OPS-16")
def test_status_tells_of_an_offset_beyond_the_end_and_of_evidence_of_loss_and_of_no_lag(
    run: Run, store: OffsetStore, broker: StaticBroker, claim: Claim
) -> None:
    loss = "the log ended at 3, below the stored offset 5"
    session = store.database.begin(name="test")
    session.write_suspects("billing", claim.token, {P1: loss})
    session.commit()
    broker.set_log(P0, 0, 3)
    found = run.lines(*STATUS, *KAFKA)
    assert [line.split()[:-1] for line in found[2:4]] == [
        ["payments-0", "4", "2", "3", "-", "1"],
        ["payments-1", "5", "(suspect)", "8", "10", "5", "1"],
    ]
    assert found[5:] == [
        "payments-0: the stored offset is 1 beyond the end of the log.",
        "payments-1: the log lost records that had been read, and each start is refused until a reset.",
        f"payments-1: {loss}",
    ]
    document = run.json(*STATUS, *KAFKA)
    assert document["lag"] is None
    rows = [(one["lag"], one["beyond_end"], one["suspect"]) for one in document["partitions"]]
    assert rows == [(None, 1, None), (5, 0, loss), (10, 0, None)]


@pytest.mark.behaviour("OPS-1", "OPS-10")
def test_the_plan_of_a_duration_is_repeated_with_the_time_that_it_has_led_to(
    run: Run, store: OffsetStore, broker: StaticBroker, claim: Claim
) -> None:
    claim.close()
    reset = (*RESET, "-t", "payments", *KAFKA)
    planned = "\n".join(run.lines(*reset, "--by-duration", "PT1H"))
    [(time, digest)] = re.findall(r"leads to (\S+): .*\n.*\nPlan (\w+)", planned)
    broker.set_log(P0, 0, 20)
    assert datetime.now(UTC) - datetime.fromisoformat(time) >= timedelta(hours=1)
    assert run.json(*reset, "--to-datetime", time)["to_datetime"] == time
    run.lines(*reset, "--to-datetime", time, "--execute", "--if-plan", digest)
    assert store.offsets("billing")[P0].next_offset == 20


@pytest.mark.behaviour("OPS-1")
def test_a_file_may_be_as_kafkas_tool_or_a_spreadsheet_writes_it(
    run: Run, store: OffsetStore, claim: Claim, tmp_path: Path
) -> None:
    claim.close()
    assert run.lines(*RESET, "-t", "payments:0,1", "--shift-by", "2", "--format", "csv") == [
        *("payments,0,6", "payments,1,7")
    ]
    file = tmp_path / "offsets.csv"
    file.write_text('\ufeff"billing", payments , 0,1\n\nother,payments,0,9\n', encoding="utf-8")
    done = run(*RESET, "--from-file", str(file), "--execute", "--format", "csv")
    assert (done.stdout, done.stderr) == ("payments,0,1\n", "Left out 1 line of other groups.\n")
    assert store.offsets("billing")[P0].next_offset == 1


@pytest.mark.behaviour("OPS-1")
def test_reset_refuses_what_cant_be_meant(run: Run, store: OffsetStore, claim: Claim, tmp_path: Path) -> None:
    file = tmp_path / "offsets.csv"
    claim.close()
    for content, told in {
        b"payments,0\n": "Line 1 of --from-file is not topic,partition,offset",
        b"payments,0,1\n\na,billing,payments,0,1\n": "Line 3 of --from-file is not",
        b"payments,0,first\n": "Line 1 of --from-file is not",
        b"payments,-1,1\n": "Line 1 of --from-file is not",
        b"payments,0,1\npayments,0,2\n": "Line 2 of --from-file names payments-0 again",
        b"payments,0,-1\n": "must be from 0 to 9223372036854775807",
        b"payments,7,1\n": "payments-7",
        b"other,payments,0,1\n": "--from-file has no offsets of group billing",
        b"": "--from-file has no offsets of group billing",
        b"\xff\xfe": "not a CSV file in UTF-8",
    }.items():
        file.write_bytes(content)
        assert told in run.fail(2, *RESET, "--from-file", str(file), "--execute")
    for options, told in {
        "--to-current": "either with --topic, or --all-topics",
        "-t payments --all-topics --to-current": "either with --topic, or --all-topics",
        "-t payments --from-file /dev/null": "--from-file has no offsets",
        "--all-topics --to-current --shift-by 0": "found --to-current, --shift-by",
        "-t payments": "Name one of --to-earliest",
        "-t payments:x --to-offset 1": "is not TOPIC or TOPIC:0,2",
        "-t payments:1,7,9 --to-offset 1": "payments-7: the store has no offset of this partition for group 'billing'",
        "--all-topics --by-duration P1M": "not a duration such as 90s",
        "--all-topics --by-duration P999999D": "before the year 1",
    }.items():
        assert told in run.fail(2, *RESET, *options.split(), "--execute")
    assert [row.next_offset for row in store.offsets("billing").values()] == [4, 5, 0]


@pytest.mark.behaviour("START-29")
@pytest.mark.usefixtures("claim")
def test_resolve_warns_of_a_group_that_the_store_does_not_know(run: Run, broker: StaticBroker) -> None:
    resolve = ("resolve", "-g", "biling", "-t", "payments", *KAFKA)
    found = run.json(*resolve)["warning"]
    assert found.startswith("group 'biling' is taken over at its committed offsets in Kafka, but there are none for ")
    assert "groups rename" not in found
    broker.current = replace(broker.current, committed={})
    found = run.json(*resolve)["warning"]
    assert found.startswith("the store has no offsets of group 'biling', which is right for a new job: ")
    assert "'billing'" in found
    assert f"A warning: {found}" in run.lines(*resolve)

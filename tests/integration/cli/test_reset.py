from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from offsetstore import Broker, OffsetRange, OffsetStore, TopicPartition
from offsetstore.kafka.admin import delete_records
from offsetstore.local.kafka.server import KafkaBroker
from tests.integration.cli.conftest import Run
from tests.support.consumer_groups import consumer_groups_tool, reset_by_tool

REASON = ("--reason", "ticket 17")


@pytest.fixture
def servers(offsetstore_kafka: KafkaBroker) -> str:
    return offsetstore_kafka.bootstrap_servers


@pytest.fixture
def stopped(offsetstore_database: str, servers: str, payments: str, offsetstore_group: str) -> str:
    """A group whose job has stopped at 4, 5 and 0 of `payments`."""
    with OffsetStore.connect(offsetstore_database) as store:
        claim = store.claim(
            offsetstore_group, Broker({"bootstrap.servers": servers}), topics=[payments], mirror_every=None
        )
        ranges = {TopicPartition(payments, 0): OffsetRange(0, 4), TopicPartition(payments, 1): OffsetRange(0, 5)}
        with store.transaction(claim) as tx:
            tx.lock(ranges)
            tx.advance(ranges)
    return offsetstore_group


def stored(url: str, group: str) -> list[int]:
    with OffsetStore.connect(url) as store:
        return [row.next_offset for _, row in sorted(store.offsets(group).items())]


def test_without_execute_it_prints_the_plan_and_writes_nothing(
    run: Run, stopped: str, payments: str, offsetstore_database: str, servers: str
) -> None:
    arguments = ["reset", "-g", stopped, "-t", payments, "--to-earliest", *REASON]
    result = run(*arguments, url=offsetstore_database, brokers=servers)
    assert result.exit_code == 0, result.output
    table, rest = result.stdout.splitlines()[:4], result.stdout.splitlines()[4:]
    assert [line.split() for line in table] == [
        ["partition", "stored", "new", "moves", "beginning", "end"],
        [f"{payments}-0", "4", "0", "-4", "0", "10"],
        [f"{payments}-1", "5", "0", "-5", "0", "10"],
        [f"{payments}-2", "0", "0", "+0", "0", "10"],
    ]
    assert rest[:-1] == [
        f"{stopped} would read 9 offsets again, in 3 partitions.",
        "Remove their results before you start the job, or they will be stored twice.",
        "Nothing was written. Add --execute to do it.",
    ]
    assert stored(offsetstore_database, stopped) == [4, 5, 0]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--to-latest"], [10, 5, 10]),
        (["--to-datetime", "2100-01-01T00:00+01:00"], [10, 5, 10]),
        (["--by-duration", "PT1H"], [2, 5, 0]),
    ],
    ids=lambda value: "" if isinstance(value[0], int) else " ".join(value),
)
def test_it_moves_the_partitions_named_to_where_it_was_told(
    run: Run,
    stopped: str,
    payments: str,
    offsetstore_database: str,
    servers: str,
    *,
    options: list[str],
    expected: list[int],
) -> None:
    delete_records(servers, payments, {0: 2})
    arguments = ["reset", "-g", stopped, "-t", f"{payments}:0,2", *options, *REASON, "--execute"]
    result = run(*arguments, url=offsetstore_database, brokers=servers)
    assert result.exit_code == 0, result.output
    assert "\nDone: " in result.stdout
    assert stored(offsetstore_database, stopped) == expected


@pytest.mark.behaviour("OPS-1")
def test_kafkas_own_tool_and_this_one_read_each_others_csv(
    run: Run, stopped: str, offsetstore_database: str, offsetstore_kafka: KafkaBroker, tmp_path: Path
) -> None:
    ours, theirs = tmp_path / "ours.csv", tmp_path / "theirs.csv"
    command = ("reset", "-g", stopped, *REASON)
    ours.write_text(
        run(*command, "--all-topics", "--shift-by", "1", "--format", "csv", url=offsetstore_database).stdout
    )
    reset_by_tool(offsetstore_kafka, stopped, "--from-file", str(ours), "--execute")
    shown = consumer_groups_tool(offsetstore_kafka, stopped)
    assert {number: row["CURRENT-OFFSET"] for (_, number), row in shown.items()} == {"0": "5", "1": "6", "2": "1"}
    theirs.write_text(reset_by_tool(offsetstore_kafka, stopped, "--all-topics", "--shift-by", "2", "--export"))
    done = run(*command, "--from-file", str(theirs), "--execute", url=offsetstore_database)
    assert done.exit_code == 0, done.output
    assert stored(offsetstore_database, stopped) == [7, 8, 3]


def test_what_was_decided_is_in_the_history_and_pinned(
    run: Run, stopped: str, payments: str, offsetstore_database: str
) -> None:
    arguments = ["reset", "-g", stopped, "-t", payments, "--shift-by", "-0", *REASON, "--execute", "--format", "json"]
    found: dict[str, Any] = json.loads(run(*arguments, url=offsetstore_database).stdout)
    keys = {"group", "reason", "executed", "plan", "live", "fenced", "replayed_letters", "to_datetime", "partitions"}
    assert found.keys() == keys
    assert (found["executed"], found["live"], found["fenced"]) == (True, False, None)
    first = {"topic": payments, "partition": 0, "stored": 4, "new": 4, "beginning": None, "end": None, "suspect": None}
    assert found["partitions"][0] == first
    with OffsetStore.connect(offsetstore_database) as store:
        assert {line.reason for line in store.history(stopped) if line.event == "reset"} == {"ticket 17"}
        assert all(row.pinned for row in store.offsets(stopped).values())


def test_a_live_job_is_not_fenced_unless_it_is_forced(
    run: Run, billing: str, payments: str, offsetstore_database: str, servers: str
) -> None:
    arguments = ["reset", "-g", billing, "-t", payments, "--to-offset", "0", *REASON]
    plan = run(*arguments, url=offsetstore_database, brokers=servers)
    assert plan.exit_code == 1
    assert "Stop it first, or fence it with --force.\nNothing was written.\nPlan " in plan.stdout
    forced_plan = run(*arguments, "--force", url=offsetstore_database, brokers=servers)
    assert forced_plan.exit_code == 0
    assert "A job is live: " in forced_plan.stdout
    assert "start it again" in forced_plan.stdout
    assert "\nNothing was written. Add --execute" in forced_plan.stdout
    refused = run(*arguments, "--execute", url=offsetstore_database, brokers=servers)
    assert refused.exit_code == 1
    assert "is live; nothing was written" in refused.stderr
    assert stored(offsetstore_database, billing) == [4, 5, 0]
    forced = run(*arguments, "--execute", "--force", url=offsetstore_database, brokers=servers)
    assert forced.exit_code == 0, forced.output
    assert "Fenced the live job: " in forced.stdout
    assert stored(offsetstore_database, billing) == [0, 0, 0]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--to-offset", "11"], ["the log does not hold offset 11", "from 0 to 10", "--to-latest"]),
        (["--shift-by", "-6"], ["the shift goes below offset 0", "-2", "Shift by less"]),
    ],
    ids=["beyond", "shifted below 0"],
)
def test_an_offset_outside_of_the_log_is_refused_with_what_the_log_holds(
    run: Run, stopped: str, payments: str, offsetstore_database: str, servers: str, *, options: list[str],
    words: list[str],
) -> None:  # fmt: skip
    arguments = ["reset", "-g", stopped, "-t", f"{payments}:0", *options, *REASON, "--execute"]
    result = run(*arguments, url=offsetstore_database, brokers=servers)
    assert result.exit_code == 1
    assert f"{payments}-0" in result.stderr
    assert [word for word in words if word not in result.stderr] == []
    assert stored(offsetstore_database, stopped) == [4, 5, 0]

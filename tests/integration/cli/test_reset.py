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


def test_it_prints_the_plan_and_with_execute_moves_the_partitions_named_to_where_it_was_told(
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

    for options, words in (
        (["--to-offset", "11"], ["the log does not hold offset 11", "from 0 to 10", "--to-latest"]),
        (["--shift-by", "-6"], ["the shift goes below offset 0", "-2", "Shift by less"]),
    ):
        command = ["reset", "-g", stopped, "-t", f"{payments}:0", *options, *REASON, "--execute"]
        refused = run(*command, url=offsetstore_database, brokers=servers)
        assert refused.exit_code == 1
        assert [word for word in (f"{payments}-0", *words) if word not in refused.stderr] == []
    assert stored(offsetstore_database, stopped) == [4, 5, 0]

    delete_records(servers, payments, {0: 2})
    for options, expected in (
        (["--to-latest"], [10, 5, 10]),
        (["--by-duration", "PT1H"], [2, 5, 0]),
        (["--to-datetime", "2100-01-01T00:00+01:00"], [10, 5, 10]),
    ):
        command = ["reset", "-g", stopped, "-t", f"{payments}:0,2", *options, *REASON, "--execute"]
        done = run(*command, url=offsetstore_database, brokers=servers)
        assert done.exit_code == 0, done.output
        assert "\nDone: " in done.stdout
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

    arguments = (*command, "--all-topics", "--to-current", "--format", "json")
    found: dict[str, Any] = json.loads(run(*arguments, url=offsetstore_database).stdout)
    keys = {"group", "reason", "executed", "plan", "live", "fenced", "replayed_letters", "to_datetime", "partitions"}
    assert found.keys() == keys
    assert (found["executed"], found["live"], found["fenced"]) == (False, False, None)
    assert found["partitions"][0].keys() == {"topic", "partition", "stored", "new", "beginning", "end", "suspect"}

"""docs/operations.md, history.md, groups.md, kafka-consumer-groups.md: what is in their blocks and tables happens.

One test runs the commands that need no Kafka, page by page; the others run those with an address of one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import click
import pytest

from offsetstore import Broker, OffsetRange, OffsetStore, TopicPartition
from offsetstore.cli.commands import cli
from offsetstore.testing import StaticBroker
from tests.integration.cli.conftest import DOCS, Here, advance, blocks, commit, words
from tests.integration.conftest import Query
from tests.support.consumer_groups import options_of_tool

OPTIONS = (DOCS / "kafka-consumer-groups.md").read_text(encoding="utf-8")
PAGES = ("operations.md", "history.md", "groups.md")
KAFKA = "localhost:9092"
GROUP = "billing"


@pytest.mark.behaviour("OPS-1", "OPS-2", "OPS-11", "META-4")
def test_what_the_page_says_is_so(here: Here, offsetstore_database: str) -> None:
    tp, refunds = TopicPartition("payments", 0), TopicPartition("refunds", 0)
    with OffsetStore.connect(offsetstore_database) as store:
        advance(store, store.claim(GROUP, topics=["payments"]), {tp: 4})
        names: dict[str, Any] = {
            "store": store,
            "broker": StaticBroker.with_topics({"payments": 1}, end=10),
            "TopicPartition": TopicPartition,
            "datetime": datetime,
            "timedelta": timedelta,
            "UTC": UTC,
        }
        printed = ""
        for language, text in (block for page in PAGES for block in blocks(page, "python", "console")):
            if language == "python":
                exec(text, names)  # noqa: S102 - the page's own words
                continue
            for line in text.splitlines():
                if KAFKA in line:
                    continue
                digests = re.findall(r"^Plan (\w+):", printed, re.MULTILINE)
                arguments = words(line.replace("DIGEST", ["", *digests][-1]))
                if "refunds" in arguments:
                    with store.claim("invoicing", topics=["refunds"]) as claim:
                        advance(store, claim, {refunds: 4})
                printed += here(*arguments)

        assert "payments,0,4\n" in printed
        assert "until 2030-03-01T06:00:00+00:00: nightly load, ticket 18" in printed
        assert [line.event for line in names["decisions"]] == ["pause", "pause", "resume", "pause", "resume"]
        assert next(names["following"]).event == "copy"
        assert store.find_metadata(GROUP, "payments", 0) == {"checked": True}
        assert {one.group: one.owner.pause for one in store.groups()}[GROUP] is None
        assert names["live"] == [GROUP]
        assert (names["last"].state, names["errors"]) == ("live", [])
        assert [(sample.stored, sample.lag) for sample in names["trend"][GROUP]] == [(4, 6)]
        assert names["planned"].offsets == {tp: 4}
        assert [(move.topic_partition, move.shift) for move in names["planned_reset"].moves] == [(tp, -2)]
        assert store.offsets(GROUP)[tp].next_offset == 4
        assert [store.offsets(name) for name in ("billing-v2", "invoicing")] == [{}, {}]
        assert [line.event for line in store.history("invoicing")] == [
            *("rename", "rename", "claim", "adopt", "delete-topic", "delete", "delete")
        ]


def lines_with_kafka(page: str, topic: str, group: str, servers: str) -> list[list[str]]:
    """The page's commands that ask Kafka, for this topic and group."""
    ours = {KAFKA: servers, "payments:0": f"{topic}:0", GROUP: group}
    lines = [line for _, block in blocks(page, "console") for line in block.splitlines() if KAFKA in line]
    return [[ours.get(word, word) for word in words(line)] for line in lines]


@pytest.mark.behaviour("OPS-1")
def test_after_the_steps_of_a_reset_no_record_s_result_is_missing_or_twice(
    here: Here, servers: str, payments: str, offsetstore_database: str, query: Query
) -> None:
    tp, broker, group = TopicPartition(payments, 0), Broker({"bootstrap.servers": servers}), f"billing-{payments}"
    query("CREATE TABLE results (number bigint)")

    def run_job() -> int:
        """Write the results of the records up to offset 4; return where it began."""
        with OffsetStore.connect(offsetstore_database) as store:
            claim = store.claim(group, broker, topics=[payments], mirror_every=None)
            start = json.loads(claim.starting_offsets)[payments]["0"]
            with store.transaction(claim) as tx:
                plan = tx.lock({tp: OffsetRange(start, 4)})
                for number in range(start, 4):
                    tx.connection.exec_driver_sql("INSERT INTO results VALUES (%s)", (number,))
                tx.advance({tp: plan[tp].remaining})
            return start

    assert run_job() == 0
    commit(servers, group, payments, {0: 4})
    plan, execute = lines_with_kafka("operations.md", payments, group, servers)
    [digest] = re.findall(r"^Plan (\w+):", here(*plan), re.MULTILINE)
    here(*[digest if word == "DIGEST" else word for word in execute])
    query("DELETE FROM results WHERE number >= 2")
    assert run_job() == 2
    assert query("SELECT number FROM results ORDER BY number") == [(0,), (1,), (2,), (3,)]


@pytest.mark.behaviour("OPS-2")
def test_the_commands_of_lag_tell_it_and_whether_it_is_too_large(
    here: Here, billing: str, payments: str, servers: str
) -> None:
    of_group, watched, checked = lines_with_kafka("history.md", payments, billing, servers)
    assert "21" in here(*of_group).split()
    assert watched.pop() == "--watch"
    assert billing in here(*watched)
    here(*checked)


def all_names(command: click.Command, context: click.Context) -> Iterator[str]:
    """Commands and options of a command, and of those below it."""
    for parameter in command.get_params(context):
        yield from parameter.opts
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            yield name
            if found := command.get_command(context, name):
                yield from all_names(found, context)


@pytest.mark.behaviour("OPS-1")
def test_the_table_has_each_option_of_kafkas_tool_once_and_names_commands_and_options_that_are_there() -> None:
    _, _, table = OPTIONS.partition("| `kafka-consumer-groups` | `offsetstore` |\n|---|---|\n")
    rows = [line.strip("|").split(" | ", 1) for line in table.splitlines()]
    theirs, ours = ([code for row in rows for code in re.findall(r"`([^`]+)`", row[side])] for side in (0, 1))
    assert sorted(theirs) == sorted(options_of_tool())

    known = {*all_names(cli, click.Context(cli)), "table", "json", "csv", "GROUP", "TOPIC", "HOST:PORT"}
    other = re.compile(r"payments:0,2|2025-03-01T00:00Z|OFFSETSTORE_(BOOTSTRAP_SERVERS|GROUP)")
    told = [word for code in ours if not other.fullmatch(code) for word in code.split()]
    assert [word for word in told if word not in known] == []
    assert {"reset", "groups", "--by-duration", "csv"} <= {*told}

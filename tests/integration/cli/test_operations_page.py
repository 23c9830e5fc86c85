"""docs/operations.md: its commands and its Python run as they stand there, and its table has all of Kafka's options."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import click
import pytest

from offsetstore import OffsetStore, TopicPartition
from offsetstore.cli.commands import cli
from offsetstore.testing import StaticBroker
from tests.integration.cli.conftest import DOCS, Here, advance, blocks, words
from tests.support.consumer_groups import options_of_tool

PAGE = (DOCS / "operations.md").read_text(encoding="utf-8")
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
        for language, text in blocks("operations.md", "python", "console"):
            if language == "python":
                exec(text, names)  # noqa: S102 - the page's own words
                continue
            for line in text.splitlines():
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
        assert store.offsets(GROUP)[tp].next_offset == 4
        assert [store.offsets(name) for name in ("billing-v2", "invoicing")] == [{}, {}]
        assert [line.event for line in store.history("invoicing")] == [
            *("rename", "rename", "claim", "adopt", "delete-topic", "delete", "delete")
        ]


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
    _, _, table = PAGE.partition("| `kafka-consumer-groups` | `offsetstore` |\n|---|---|\n")
    rows = [line.strip("|").split(" | ", 1) for line in table.partition("\n\n")[0].splitlines()]
    theirs, ours = ([code for row in rows for code in re.findall(r"`([^`]+)`", row[side])] for side in (0, 1))
    assert sorted(theirs) == sorted(options_of_tool())

    known = {*all_names(cli, click.Context(cli)), "table", "json", "csv", "GROUP", "TOPIC", "HOST:PORT"}
    other = re.compile(r"payments:0,2|2025-03-01T00:00Z|OFFSETSTORE_(BOOTSTRAP_SERVERS|GROUP)")
    told = [word for code in ours if not other.fullmatch(code) for word in code.split()]
    assert [word for word in told if word not in known] == []
    assert {"reset", "groups", "--by-duration", "csv"} <= {*told}

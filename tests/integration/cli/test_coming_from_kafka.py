"""docs/operations.md: the table of kafka-consumer-groups' options, against the tool and against our commands."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from offsetstore.cli.commands import cli
from tests.support.consumer_groups import options_of_tool

PAGE = Path(__file__).parents[3] / "docs" / "operations.md"


def rows() -> list[tuple[list[str], list[str]]]:
    """The code in each row's two cells."""
    _, _, table = PAGE.read_text(encoding="utf-8").partition("| `kafka-consumer-groups` | `offsetstore` |\n|---|---|\n")
    lines = [line.strip("|").split(" | ", 1) for line in table.partition("\n\n")[0].splitlines()]
    return [(re.findall(r"`([^`]+)`", theirs), re.findall(r"`([^`]+)`", ours)) for theirs, ours in lines]


def all_names(command: click.Command, context: click.Context) -> Iterator[str]:
    """Commands and options of a command, and of those below it."""
    for parameter in command.get_params(context):
        yield from parameter.opts
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield name
            yield from all_names(found, context)


@pytest.mark.behaviour("OPS-1")
def test_the_table_has_each_option_of_kafkas_tool_once() -> None:
    assert sorted(option for theirs, _ in rows() for option in theirs) == sorted(options_of_tool())


@pytest.mark.behaviour("OPS-1")
def test_the_commands_and_options_that_the_table_names_are_there() -> None:
    known = {*all_names(cli, click.Context(cli)), "table", "json", "csv", "GROUP", "TOPIC", "HOST:PORT"}
    other = re.compile(r"payments:0,2|2025-03-01T00:00Z|OFFSETSTORE_(BOOTSTRAP_SERVERS|GROUP)")
    told = [word for _, ours in rows() for code in ours if not other.fullmatch(code) for word in code.split()]
    assert [word for word in told if word not in known] == []
    assert {"reset", "groups", "--by-duration", "csv"} <= {*told}

from __future__ import annotations

from collections.abc import Iterator

import click
import pytest

from offsetstore.cli.commands import COMMANDS
from tests.support.cli_page import PAGE, text


def leaves(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    """The commands that do something, with what is typed."""
    if isinstance(command, click.Group):
        for name, sub in command.commands.items():
            yield from leaves(sub, f"{path} {name}")
    else:
        yield path, command


@pytest.mark.behaviour("OPS-1")
def test_the_page_of_commands_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == text(), "run `make commands`"


@pytest.mark.behaviour("OPS-1")
def test_it_has_every_command_and_option_and_each_that_prints_json_tells_its_keys() -> None:
    page = text()
    for name, lazy in COMMANDS.items():
        for path, command in leaves(lazy.load(), f"offsetstore {name}"):
            _, _, rest = page.partition(f" {path}\n\n```text\n{path} [OPTIONS]")
            section = rest.partition("\n## ")[0].partition("\n### ")[0]
            assert section, path
            options = {one for option in command.params for one in option.opts if one[0] == "-"}
            assert [one for one in options if one not in section] == []
            assert "--format" not in options or "Keys of --format json" in (command.help or ""), path

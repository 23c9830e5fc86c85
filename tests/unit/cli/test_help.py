from __future__ import annotations

import re
import subprocess
import sys
from itertools import pairwise

import click
from click.testing import CliRunner

from offsetstore.cli.commands import COMMANDS, cli
from offsetstore.errors import ExitCode

_HEAVY = ("pyspark", "confluent_kafka", "pyarrow", "rich", "offsetstore.local", "offsetstore.cli.resolve")


def _help(*command: str) -> str:
    result = CliRunner().invoke(cli, [*command, "--help"])
    assert result.exit_code == 0
    return result.output


def test_the_help_lists_every_command_with_the_first_sentence_of_its_own_help_and_every_exit_code() -> None:
    text = _help()
    for name, command in COMMANDS.items():
        assert f"  {command.name}" in text
        assert command.summary in text
        assert " ".join(_help(name).partition("\n\n")[2].partition("\n\n")[0].split()) == command.summary
    codes = re.findall(r"^ {2,6}(\d+)  \S", text.partition("Exit codes:")[2], re.MULTILINE)
    assert codes == [str(code.value) for code in ExitCode]


def _all_commands() -> list[tuple[str, ...]]:
    groups = {name: command for name in COMMANDS if isinstance(command := COMMANDS[name].load(), click.Group)}
    return [
        (),
        *((name,) for name in COMMANDS),
        *((name, sub) for name, group in groups.items() for sub in group.commands),
    ]


def test_each_help_has_examples_fits_a_terminal_and_shows_no_mark_of_a_paragraph_that_is_not_wrapped() -> None:
    commands = _all_commands()
    assert ("local", "up") in commands
    for command in commands:
        text = _help(*command)
        assert "\\b" not in text, command
        assert "\b" not in text, command
        assert max(map(len, text.splitlines())) <= 80, command
        # A command that goes on in the next line can be pasted.
        for line, following in pairwise(text.splitlines()):
            if re.match(r" +offsetstore ", line) and re.match(r" {6,}\S", following):
                assert line.endswith(("\\", "|")), (command, line)
        if "Commands:" in text:
            continue  # a group's
        assert "Example" in text or command[0] in {"local", "demo", "completion"}, command


def test_the_help_loads_no_command_no_driver_and_no_spark() -> None:
    code = (
        "import sys\n"
        "from offsetstore.cli.main import main\n"
        "sys.argv = ['offsetstore', '--help']\n"
        "try:\n"
        "    main()\n"
        "finally:\n"
        f"    print('loaded:', sorted(set({_HEAVY!r}) & sys.modules.keys()))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=180, check=True)
    assert done.stdout.splitlines()[-1] == "loaded: []"

from __future__ import annotations

import subprocess
import sys

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
    lines = [line.split()[0] for line in text.partition("Exit codes:")[2].splitlines() if line.strip()]
    assert lines == [str(code.value) for code in ExitCode]


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
        if "Commands:" in text:
            continue  # a group's
        assert "Example" in text or command[0] in {"local", "demo", "completion"}, command
        wide = [line for line in text.splitlines() if len(line) > 80]
        assert all(line.lstrip().startswith("offsetstore ") for line in wide), command  # an example is one line


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

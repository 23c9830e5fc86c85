from __future__ import annotations

import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from offsetstore.cli.commands import COMMANDS, cli
from offsetstore.errors import ExitCode

_HEAVY = ("pyspark", "confluent_kafka", "pyarrow", "rich", "offsetstore.local", "offsetstore.cli.resolve")


def _help(*command: str) -> str:
    result = CliRunner().invoke(cli, [*command, "--help"])
    assert result.exit_code == 0
    return result.output


def test_the_help_lists_every_command_with_what_it_is_for() -> None:
    text = _help()
    for command in COMMANDS.values():
        assert f"  {command.name}" in text
        assert command.summary in text


def test_the_help_lists_every_exit_code() -> None:
    lines = [line.split()[0] for line in _help().partition("Exit codes:")[2].splitlines() if line.strip()]
    assert lines == [str(code.value) for code in ExitCode]


@pytest.mark.parametrize("name", COMMANDS)
def test_the_line_in_the_list_is_the_first_sentence_of_the_commands_own_help(name: str) -> None:
    summary = " ".join(_help(name).partition("\n\n")[2].partition("\n\n")[0].split())
    assert summary == COMMANDS[name].summary


@pytest.mark.parametrize(
    ("name", "told"),
    [
        (
            "migrate",
            ["--url", "--schema", "--check", "--sql", "--since", "OFFSETSTORE_URL", "Exit code", "Example"],
        ),
        (
            "grants",
            ["--role", "--append", "--upsert", "--dashboard-role", "--relay-role", "--schema", "Example"],
        ),
        (
            "resolve",
            [
                "--group", "--topic", "--bootstrap-servers", "--broker-option", "--broker-config", "--url",
                "--no-store", "--prefer", "--auto-offset-reset", "--on-data-loss", "--on-recreated", "--format",
                "OFFSETSTORE_URL", "OFFSETSTORE_BOOTSTRAP_SERVERS", "Read-only", "Keys of --format json", "Example",
            ],
        ),
        (
            "adopt",
            [
                "--checkpoint", "--dry-run", "--on-uncertain", "--group", "--url", "--schema", "--format", "Read-only",
                "Exit code 1", "Exit code 2", "Keys of --format json", "Example", "adopt_checkpoint",
            ],
        ),
        (
            "reset",
            [
                "--group", "--topic", "--all-topics", "--to-earliest", "--to-latest", "--to-current", "--to-offset",
                "--to-datetime", "--by-duration", "--shift-by", "--from-file", "csv",
                "--reason", "--execute", "--force", "--format", "Exit code", "Keys of --format json", "Example",
            ],
        ),
        (
            "history",
            [
                "--group", "--since", "--event", "--limit", "--follow", "--format", "contested", "metadata", "130",
                "Keys of --format json", "Example",
            ],
        ),
        ("pause", ["--group", "--until", "--reason", "--format", "Exit code", "Keys of --format json", "Example"]),
        ("resume", ["--group", "--reason", "--format", "Exit code", "Keys of --format json", "Example"]),
        (
            "health",
            [
                "--port", "--host", "--ready", "--group", "--max-lag", "OFFSETSTORE_HEALTH_TOKEN", "Exit code",
                "Keys of --format json", "Examples",
            ],
        ),
        (
            "exporter",
            [
                "--port", "--host", "--interval", "--max-partition-series", "--kafka-group", "--timeout",
                "--broker-config", "9465", "127.0.0.1", "50000", "DESCRIBE", "Example",
            ],
        ),
        (
            "consume",
            [
                "MODULE:FUNCTION", "--processes", "--static", "--max-rss", "--drain", "--port", "--host",
                "OFFSETSTORE_HEALTH_TOKEN", "exit code", "Examples",
            ],
        ),
        (
            "relay",
            ["--bootstrap-servers", "--anchor", "--on-uncertain", "SIGTERM", "read_committed", "Exit code", "Example"],
        ),
        (
            "status",
            [
                "--group", "--format", "members[]", "OFFSETSTORE_URL", "OFFSETSTORE_BOOTSTRAP_SERVERS",
                "Keys of --format json", "age",
            ],
        ),
    ],
)  # fmt: skip
def test_a_commands_help_tells_what_it_takes_and_what_its_output_is(name: str, told: list[str]) -> None:
    text = _help(name)
    assert [word for word in told if word not in text] == []
    assert max(len(line) for line in text.splitlines()) <= 80


def _all_commands() -> list[tuple[str, ...]]:
    groups = {name: command for name in COMMANDS if isinstance(command := COMMANDS[name].load(), click.Group)}
    return [
        (),
        *((name,) for name in COMMANDS),
        *((name, sub) for name, group in groups.items() for sub in group.commands),
    ]


def test_no_help_shows_the_mark_of_a_paragraph_that_is_not_wrapped() -> None:
    commands = _all_commands()
    assert ("local", "up") in commands
    assert [command for command in commands if "\\b" in (text := _help(*command)) or "\b" in text] == []


def test_what_the_brokers_are_for_depends_on_the_command() -> None:
    words = {name: " ".join(_help(name).split()) for name in ("reset", "status")}
    assert "for --to-earliest, --to-latest, --to-datetime, --by-duration." in words["reset"]
    assert "without them, only the store is shown." in words["status"]
    assert "without them, only the store" not in words["reset"]


def test_the_version_is_the_packages() -> None:
    result = CliRunner().invoke(cli, ["--version"], prog_name="offsetstore")
    assert result.output.startswith("offsetstore 0.")


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


def test_an_unknown_command_is_a_usage_error() -> None:
    result = CliRunner().invoke(cli, ["resolv"])
    assert result.exit_code == ExitCode.USAGE
    assert "resolv" in result.stderr

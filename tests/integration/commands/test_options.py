from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from offsetstore import OffsetStore
from offsetstore.cli import options
from offsetstore.cli.commands import cli
from offsetstore.errors import ConfigurationError
from offsetstore.testing import StaticBroker


@click.command()
@click.option("--start", callback=options.start_time)
def _with_start(start: Any) -> None:
    click.echo(repr(start))


@pytest.mark.parametrize("word", ["earliest", "latest", "none"])
def test_a_start_is_one_of_three_words(word: str) -> None:
    assert CliRunner().invoke(_with_start, ["--start", word]).output == f"{word!r}\n"


def test_a_start_is_a_time_with_its_zone() -> None:
    expected = datetime(2025, 3, 1, tzinfo=UTC)
    assert CliRunner().invoke(_with_start, ["--start", "2025-03-01T00:00Z"]).output == f"{expected!r}\n"


@pytest.mark.parametrize(("word", "told"), [("newest", "earliest, latest, none"), ("2025-03-01", "no time zone")])
def test_anything_else_is_a_usage_error_that_names_what_can_be(word: str, told: str) -> None:
    result = CliRunner().invoke(_with_start, ["--start", word])
    assert result.exit_code == 2
    assert told in result.stderr


@click.command()
@click.option("--ago", callback=options.duration)
def _with_duration(ago: Any) -> None:
    click.echo(repr(ago))


@pytest.mark.behaviour("OPS-1")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("P1DT2H", timedelta(days=1, hours=2)),
        ("PT30M", timedelta(minutes=30)),
        ("p7d", timedelta(days=7)),
        ("PT1H2M3.5S", timedelta(hours=1, minutes=2, seconds=3.5)),
        ("PT0S", timedelta(0)),
    ],
)
def test_a_duration_is_of_days_to_seconds(text: str, expected: timedelta) -> None:
    assert CliRunner().invoke(_with_duration, ["--ago", text]).output == f"{expected!r}\n"


@pytest.mark.parametrize(
    "text", ["", "P", "PT", "P1DT", "1D", "P1M", "P1Y", "P1W", "-P1D", "P-1D", "P1.5D", "P9999999999D"]
)
def test_what_kafkas_tool_takes_for_no_duration_is_a_usage_error(text: str) -> None:
    result = CliRunner().invoke(_with_duration, ["--ago", text])
    assert (result.exit_code, "is not a duration" in result.stderr or "is too long" in result.stderr) == (2, True)


@pytest.mark.parametrize("arguments", [["-g", "", "-t", "payments"], ["-g", "billing", "-t", ""]])
def test_an_empty_name_is_a_usage_error(arguments: list[str]) -> None:
    result = CliRunner().invoke(cli, ["resolve", "-b", "localhost:1", *arguments])
    assert result.exit_code == 2
    assert "a name must not be empty" in result.stderr


@pytest.mark.parametrize("arguments", [["-g", "b\udcff", "-t", "payments"], ["-g", "billing", "-t", "b\udcff"]])
def test_a_byte_of_a_name_that_is_no_utf_8_is_a_usage_error(arguments: list[str]) -> None:
    """So Python passes on what the terminal's encoding does not have."""
    result = CliRunner().invoke(cli, ["resolve", "-b", "localhost:1", *arguments])
    assert result.exit_code == 2
    assert "a name can't have a lone surrogate, character 2 of 2" in result.stderr


@pytest.mark.parametrize("command", [["migrate"], ["resolve", "-g", "g", "-t", "t", "-b", "b:1"]])
def test_without_a_database_the_variable_and_the_option_are_named(command: list[str]) -> None:
    result = CliRunner(env={"OFFSETSTORE_URL": None}).invoke(cli, command)
    assert result.exit_code == 2
    assert "found:     neither --url nor OFFSETSTORE_URL\n" in result.stderr


@pytest.mark.behaviour("OPS-23")
def test_the_variable_names_the_group_where_nothing_else_says_whose_it_is(
    run: Callable[..., Result], store: OffsetStore, broker: StaticBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    for group in ("billing", "invoicing"):
        store.claim(group, broker, topics=["payments"], mirror_every=None)
    monkeypatch.setenv("OFFSETSTORE_GROUP", "billing")
    assert "invoicing" not in run("lag", "-b", "b:1").stdout
    assert "invoicing" in run("lag", "-b", "b:1", "-g", "invoicing").stdout
    assert "invoicing" in run("lag", "-b", "b:1", "--all").stdout
    assert run("health").stdout == "Group billing is well.\n"
    assert "No answer from a job at 127.0.0.1:1:" in run("health", "--port", "1").stderr
    assert run("health", "--port", "1", "-g", "billing").exit_code == 2


def test_broker_options_are_sparks_if_all_of_them_are() -> None:
    broker = options.make_broker("localhost:1", ["kafka.security.protocol=PLAINTEXT", "kafka.client.id=job"], None, 1)
    assert broker._settings.config["client.id"] == "job"


def test_broker_options_of_both_kinds_are_refused_by_key_alone() -> None:
    with pytest.raises(ConfigurationError) as refused:
        options.make_broker("localhost:1", ["kafka.client.id=job", "sasl.password=canary"], None, 1)
    assert refused.value.found == "sasl.password beside kafka.*"
    assert "canary" not in str(refused.value)


def test_a_file_holds_broker_options_and_the_command_line_wins(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("# who we are\n\nclient.id = file\nsasl.username=from=file\n", encoding="utf-8")
    broker = options.make_broker("localhost:1", ["client.id=line"], file, 1)
    assert broker._settings.config["client.id"] == "line"
    assert broker._settings.config["sasl.username"] == "from=file"


def test_an_option_without_its_key_is_refused_and_not_repeated() -> None:
    with pytest.raises(ConfigurationError, match="not KEY=VALUE") as refused:
        options.make_broker("localhost:1", ["canary"], None, 1)
    assert "canary" not in str(refused.value)

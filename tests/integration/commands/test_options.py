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
from tests.integration.commands.conftest import Run


def given(callback: Callable[..., Any], text: str) -> Result:
    """A command of one option that prints its value."""

    @click.command()
    @click.option("--value", callback=callback)
    def show(value: Any) -> None:
        click.echo(repr(value))

    return CliRunner().invoke(show, ["--value", text])


@pytest.mark.behaviour("OPS-1")
def test_a_start_is_a_word_or_a_time_with_its_zone_and_a_duration_is_of_days_to_seconds() -> None:
    start, duration = options.start_time, options.duration
    for callback, text, expected in (
        *((start, word, word) for word in ("earliest", "latest", "none")),
        (start, "2025-03-01T00:00Z", datetime(2025, 3, 1, tzinfo=UTC)),
        (duration, "90s", timedelta(seconds=90)),
        (duration, "5m", timedelta(minutes=5)),
        (duration, "1.5h", timedelta(hours=1.5)),
        (duration, "30d", timedelta(days=30)),
        (duration, "P1DT2H", timedelta(days=1, hours=2)),
        (duration, "PT30M", timedelta(minutes=30)),
        (duration, "p7d", timedelta(days=7)),
        (duration, "PT1H2M3.5S", timedelta(hours=1, minutes=2, seconds=3.5)),
        (duration, "PT0S", timedelta(0)),
    ):
        assert given(callback, text).output == f"{expected!r}\n"

    none = (
        "",
        "5",
        "5 m",
        "1w",
        "-5m",
        ".5h",
        "P",
        "PT",
        "P1DT",
        "1D",
        "P1M",
        "P1Y",
        "P1W",
        "-P1D",
        "P-1D",
        "P1.5D",
    )  # as for Kafka's own tool
    for callback, text, told in (
        (start, "newest", "earliest, latest, none"),
        (start, "2025-03-01", "no time zone"),
        (duration, "P9999999999D", "is too long"),
        (duration, "9999999999d", "is too long"),
        *((duration, text, "is not a duration") for text in none),
    ):
        result = given(callback, text)
        assert (result.exit_code, told in result.stderr) == (2, True), text


@pytest.mark.parametrize("option", ["-g", "-t"])
@pytest.mark.parametrize(
    ("name", "told"),
    # What the terminal's encoding does not have, Python passes on as a lone surrogate.
    [("", "a name must not be empty"), ("b\udcff", "a name can't have a lone surrogate, character 2 of 2")],
)
def test_a_name_that_nothing_can_have_is_a_usage_error(option: str, name: str, told: str) -> None:
    names = {"-g": "billing", "-t": "payments"} | {option: name}
    result = CliRunner().invoke(
        cli, ["resolve", "-b", "localhost:1", *(word for pair in names.items() for word in pair)]
    )
    assert (result.exit_code, told in result.stderr) == (2, True)


@pytest.mark.behaviour("OPS-23")
def test_the_variable_names_the_group_where_nothing_else_says_whose_it_is(
    run: Run, store: OffsetStore, broker: StaticBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    for group in ("billing", "invoicing"):
        store.claim(group, broker, topics=["payments"], mirror_every=None)
    monkeypatch.setenv("OFFSETSTORE_GROUP", "billing")
    for named, has_other in (((), False), (("-g", "invoicing"), True), (("--all",), True)):
        assert ("invoicing" in "".join(run.lines("lag", "-b", "b:1", *named))) is has_other
    assert run.lines("health") == ["Group billing is well."]
    assert "No answer from a job at 127.0.0.1:1:" in run.fail(1, "health", "--port", "1")
    run.fail(2, "health", "--port", "1", "-g", "billing")


def test_broker_options_are_sparks_if_all_of_them_are_and_the_command_line_wins_over_a_file(tmp_path: Path) -> None:
    (file := tmp_path / "client.properties").write_text("# who we are\n\nclient.id = file\nsasl.username=from=file\n")
    for broker_options, config, expected in (
        (["kafka.security.protocol=PLAINTEXT", "kafka.client.id=job"], None, {"client.id": "job"}),
        (["client.id=line"], file, {"client.id": "line", "sasl.username": "from=file"}),
    ):
        made = options.make_broker("localhost:1", broker_options, config, 1)._settings.config
        assert {key: made[key] for key in expected} == expected


@pytest.mark.parametrize(
    ("broker_options", "told"),
    [
        (["kafka.client.id=job", "sasl.password=canary"], r"found sasl\.password beside kafka\.\*"),
        (["canary"], "not KEY=VALUE"),
    ],
)
def test_broker_options_that_cant_be_meant_are_refused_by_key_alone(broker_options: list[str], told: str) -> None:
    with pytest.raises(ConfigurationError, match=told) as refused:
        options.make_broker("localhost:1", broker_options, None, 1)
    assert "canary" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("15", 15.0),
        (".5", 0.5),
        ("0.5", 0.5),
        ("2m", 120.0),
        ("PT90S", 90.0),
        ("0.4", None),
        ("2h", None),
        ("soon", None),
        ("nan", None),
        ("inf", None),
    ],
)
def test_seconds_are_a_number_or_a_duration_within_bounds(text: str, expected: float | None) -> None:
    kind = options.Seconds(0.5, 3600)
    if expected is None:
        with pytest.raises(click.BadParameter, match=r"not in the range|is not a .*number of seconds, or duration"):
            kind.convert(text, None, None)
    else:
        assert kind.convert(text, None, None) == expected

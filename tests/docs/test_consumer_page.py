"""docs/consumer.md: its example makes rows and a consumer, and it names each setting that is refused."""

from __future__ import annotations

import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from offsetstore.cli.commands import cli
from offsetstore.cli.consume import consume
from offsetstore.consumer import Consumer
from offsetstore.consumer.consumer import checked_settings
from offsetstore.consumer.records import Record, batch_of
from offsetstore.errors import ConfigurationError
from offsetstore.offsets import TopicPartition
from offsetstore.protocol.letters import Payload

PAGE = (Path(__file__).parents[2] / "docs" / "consumer.md").read_text(encoding="utf-8")


def test_the_example_makes_rows_of_records_and_a_consumer(
    offsetstore_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OFFSETSTORE_URL", offsetstore_database)
    monkeypatch.setenv("OFFSETSTORE_BOOTSTRAP_SERVERS", "localhost:9092")
    [block] = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    names: dict[str, Any] = {}
    exec(compile(block, "docs/consumer.md", "exec"), names)  # noqa: S102 - the page's own words
    records = [Record(TopicPartition("payments", 0), n, Payload(b"ada", b"1.50", (), 0, 0)) for n in range(2)]
    assert names["parse"](batch_of(records)).to_pylist() == [{"payer": "ada", "amount": Decimal("1.50")}] * 2
    assert names["parse"](batch_of([])).num_rows == 0
    made = names["consumer"]()
    assert isinstance(made, Consumer)
    made.store.close()


@pytest.mark.behaviour("CONS-9")
def test_each_setting_that_it_says_is_refused_is() -> None:
    table = PAGE.partition("## What is refused")[2].partition("\n## ")[0]
    settings = {name for row in table.splitlines() if "in `kafka=` |" in row for name in re.findall(r"`([\w.]+)`", row)}
    settings -= {"ConfigurationError"}
    assert len(settings) >= 7
    for name in settings:
        with pytest.raises(ConfigurationError, match=re.escape(name)) as refused:
            checked_settings({"bootstrap.servers": "localhost:1", name: "mine"})
        assert refused.value.expected


@pytest.mark.parametrize(("command", "said"), [("grants", "'billing'"), ("acls print", "--group billing")])
def test_what_a_deploy_prints_names_the_role_and_the_group(command: str, said: str) -> None:
    [line] = re.findall(rf"^\$ offsetstore ({command} .*)$", PAGE, re.MULTILINE)
    printed = CliRunner().invoke(cli, line.split())
    assert (printed.exit_code, said in printed.output) == (0, True), printed.output


def test_each_option_of_the_command_that_it_names_is_there() -> None:
    options = {name for option in consume.params for name in option.opts}
    assert {"--processes", "--static", "--max-rss", "--drain", "--port"} <= {
        *re.findall(r"`(--[\w-]+)", PAGE)
    } & options

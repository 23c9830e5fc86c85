"""The consumer's pages: the example makes rows and a consumer, and they name each setting that is refused."""

from __future__ import annotations

import re
import signal
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from click.testing import CliRunner

from offsetstore import Append, OffsetStore
from offsetstore.cli.commands import cli
from offsetstore.cli.consume import consume
from offsetstore.cli.consume_process import FINAL
from offsetstore.consumer import Consumer
from offsetstore.consumer.consumer import checked_settings
from offsetstore.consumer.filters import check_filters
from offsetstore.consumer.records import ConsumedRecord, batch_of
from offsetstore.errors import ConfigurationError, ExitCode
from offsetstore.local.kafka import KafkaBroker
from offsetstore.monitoring.page import Words
from offsetstore.monitoring.processes import Supervisor, _ended_by
from offsetstore.offsets import OffsetRange, TopicPartition
from offsetstore.processing.blame import skipping
from offsetstore.protocol.letters import Payload
from offsetstore.testing.fixtures import NewTopic
from tests.support.background import in_background
from tests.support.waiting import wait_until

PAGE, DEPLOY, EXITS, FILTERS, SETTINGS = (
    (Path(__file__).parents[2] / "docs" / f"consumer{part}.md").read_text(encoding="utf-8")
    for part in ("", "-deploy", "-exits", "-filters", "-tuning")
)


def example(topic: str = "payments", *, blocks: int = 1) -> dict[str, Any]:
    """The names that the first blocks of Python define, of a consumer of this topic."""
    names: dict[str, Any] = {}
    for block in re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)[:blocks]:
        code = block.replace('topics=["payments"]', f'topics=["{topic}"]')
        exec(compile(code, "docs/consumer.md", "exec"), names)  # noqa: S102 - the page's own words
    return names


def payments(*values: bytes | None) -> pa.RecordBatch:
    return batch_of(
        [
            ConsumedRecord(TopicPartition("payments", 0), number, Payload(b"ada", value, (), 0, 0))
            for number, value in enumerate(values)
        ]
    )


@pytest.mark.behaviour("DLQ-1")
def test_its_function_that_rejects_makes_a_reason_of_each_value_that_is_no_amount() -> None:
    parse = example(blocks=2)["parse"]
    made = parse(payments(b"1.50", b"", b"-3", b"1.505", None, b"\xff", b"12,50")).to_pylist()
    assert [row["amount"] for row in made] == [Decimal("1.50"), None, Decimal(-3), None, None, None, None]
    assert [row["_reject"] is None for row in made] == [row["amount"] is not None for row in made]
    assert parse(payments()).num_rows == 0


def test_its_commands_produce_a_record_and_show_its_row(
    offsetstore_kafka: KafkaBroker,
    offsetstore_topic: NewTopic,
    offsetstore_database: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("OFFSETSTORE_URL", offsetstore_database)
    monkeypatch.setenv("OFFSETSTORE_BOOTSTRAP_SERVERS", offsetstore_kafka.bootstrap_servers)
    topic = offsetstore_topic(1)
    with psycopg.connect(offsetstore_database) as connection:
        [table] = re.findall(r"psql .* -c '(CREATE TABLE .*)'$", PAGE, re.MULTILINE)
        connection.execute(table)
    produce, look = re.findall(r"^\$ python -c '\n(.*?)'$", PAGE, re.DOTALL | re.MULTILINE)
    [shown] = re.findall(r"^\('ana'.*$", PAGE, re.MULTILINE)
    made = example(topic)["consumer"]()

    def is_shown() -> bool:
        assert not consuming.done(), consuming.exception()
        exec(look, {})  # noqa: S102 - the page's own words
        return capfd.readouterr().out == f"{shown}\n"

    with made.store:
        consuming = in_background(made.run)
        exec(produce.replace('"payments"', repr(topic)), {})  # noqa: S102
        wait_until(is_shown, timeout=120)
        made.stop()
        consuming.result(timeout=60)


@pytest.mark.behaviour("CONS-9")
def test_each_setting_that_it_says_is_refused_is() -> None:
    table = SETTINGS.partition("## What is refused")[2].partition("\n## ")[0]
    settings = {name for row in table.splitlines() if "in `kafka=` |" in row for name in re.findall(r"`([\w.]+)`", row)}
    assert len(settings) >= 7
    for name in settings:
        with pytest.raises(ConfigurationError, match=re.escape(name)) as refused:
            checked_settings({"bootstrap.servers": "localhost:1", name: "mine"})
        assert refused.value.expected


def test_the_settings_that_it_lists_are_the_defaults(offsetstore_database: str) -> None:
    [block] = re.findall(r"^```python\n(.*?)^```$", SETTINGS, re.DOTALL | re.MULTILINE)
    with OffsetStore.connect(offsetstore_database) as store:
        names: dict[str, Any] = {"store": store, "parse": example()["parse"]}
        exec(compile(block, "docs/consumer-tuning.md", "exec"), names)  # noqa: S102 - the page's own words
        made: Consumer = names["made"]
        plain = Consumer(
            store,
            "billing",
            topics=["payments"],
            kafka={"bootstrap.servers": "localhost:9092"},
            transform=names["parse"],
            into=Append("payments"),
        )
    assert (made.flush, made.drain, made.request.takeover) == (plain.flush, plain.drain, plain.request.takeover)
    assert made.kafka == plain.kafka
    assert "isolation.level is read_committed" in block
    assert made.kafka["isolation.level"] == "read_committed"


@pytest.mark.parametrize("kind", ["systemd", "kubernetes"])
def test_a_deploy_writes_the_file_that_the_page_links(kind: str, tmp_path: Path) -> None:
    [line] = re.findall(rf"^\$ offsetstore (assets {kind} --out DIR)$", DEPLOY, re.MULTILINE)
    done = CliRunner().invoke(cli, line.replace("DIR", str(tmp_path)).split())
    assert done.exit_code == 0, done.output
    [linked] = re.findall(rf"\]\(\.\./offsetstore/assets/{kind}/([\w.-]+)\)", DEPLOY)
    assert (tmp_path / linked).exists()


def test_the_filters_that_it_lists_are_made_as_it_says() -> None:
    names: dict[str, Any] = {}
    [imports] = re.findall(r"`(from offsetstore\.consumer import [\w, ]+)`", FILTERS)
    exec(imports, names)  # noqa: S102 - the page's own words
    shown = re.findall(r"^- `(.*?)` ", FILTERS, re.MULTILINE)
    made = [eval(text.replace("…", "False"), names) for text in shown]  # noqa: S307 - as above
    assert [type(one).__name__ for one in check_filters(made)] == ["Throttle", "Delay", "Expire", "SkipIf"]


@pytest.mark.parametrize(("command", "said"), [("grants", "'billing'"), ("acls print", "--group billing")])
def test_what_a_deploy_prints_names_the_role_and_the_group(command: str, said: str) -> None:
    [line] = re.findall(rf"^\$ offsetstore ({command} .*)$", DEPLOY, re.MULTILINE)
    printed = CliRunner().invoke(cli, line.split())
    assert (printed.exit_code, said in printed.output) == (0, True), printed.output


@pytest.mark.behaviour("CONS-11")
def test_its_exit_codes_say_which_end_all_and_each_option_that_it_names_is_there() -> None:
    rows = re.findall(r"^\| (\d+) \| .* \| (.*) \|$", EXITS, re.MULTILINE)
    assert {int(code) for code, follows in rows if follows == "all end"} == FINAL
    others = {ExitCode.OK, ExitCode.DEAD, ExitCode.INTERRUPTED, ExitCode.UNREAD}
    assert {int(code) for code, _ in rows} == {*ExitCode} - others
    named = {*re.findall(r"`(--[\w-]+)", DEPLOY + EXITS)}
    options = {name for option in consume.params for name in option.opts} & named
    assert {"--processes", "--static", "--max-rss", "--drain", "--port"} <= options


def test_the_lines_that_it_shows_of_a_record_that_kills_processes_are_those_that_the_supervisor_says() -> None:
    said: list[str] = []
    supervisor = Supervisor(2, lambda _: [], say=said.append)
    first, second = TopicPartition("payments", 0), TopicPartition("payments", 1)
    claim: Any = SimpleNamespace(group="billing", is_member=True, database=SimpleNamespace(schema=None))
    one = OffsetRange(217, 218)
    deaths = [
        (0, {first: OffsetRange(0, 500), second: OffsetRange(0, 480)}, ""),
        (1, {first: OffsetRange(0, 430)}, ""),
        (0, {first: one}, skipping(claim, first, one)),
    ]
    for number, handled, skip in deaths:
        place, words = supervisor.places[number], Words(handled, skip=skip, has_written=True)
        how, step = supervisor._note_death(place, words, _ended_by(-signal.SIGSEGV, is_ours=False))
        supervisor._pause(place, f"has ended with {how}", 0.0, step)
    assert re.findall(r"^offsetstore: (process .*)$", EXITS, re.MULTILINE) == said

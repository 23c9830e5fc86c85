from __future__ import annotations

import logging
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner

from offsetstore.cli.commands import cli
from offsetstore.cli.dead_letters import _time_of
from offsetstore.cli.output import document, print_error, print_text
from offsetstore.cli.tables import Table
from offsetstore.local import stack
from offsetstore.local.stack import ServiceStatus
from offsetstore.offsets import OffsetRange, TopicPartition
from offsetstore.protocol.letters import Payload
from offsetstore.text import logger, visible
from tests.support.terminal import terminal

_COLUMNS = ("partition", "#start", "reason")
_ROWS = (("payments-0", 7, "stored"), ("payments-10", 123_456, None))


def test_in_a_pipe_a_table_is_aligned_text_with_as_many_words_in_each_line(capsys: pytest.CaptureFixture[str]) -> None:
    print_text(Table(_COLUMNS, _ROWS))
    assert capsys.readouterr().out == (
        "partition     start  reason\n"
        "payments-0        7  stored\n"
        "payments-10  123456  -\n"
    )  # fmt: skip
    print_text(Table(_COLUMNS, [("p" * 200, 1, "stored")]))
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_at_a_terminal_a_table_keeps_to_its_width_and_breaks_no_word(monkeypatch: pytest.MonkeyPatch) -> None:
    long, row = f"{'x' * 100}-0", ("stored", "why " * 20 + "`offsetstore lag -g billing`", "2" * 30)
    table = Table(("partition", "#start", "reason", "text", "?#epoch"), [(long, 123_456, *row), ("a-1", 7, *row)])
    with terminal(monkeypatch) as screen:
        print_text(table, "word " * 30, "  `a command` " + "x" * 80)
    lines = screen.lines
    assert [line for line in lines if len(line) > 80] == [long, "  `a command` " + "x" * 80], "whole, to be copied"
    assert lines[0].split() == ["partition", "start", "reason", "text"]
    assert lines[1] == long
    assert lines[2].split()[:2] == ["123456", "stored"], "a line of its own, and its row below it"
    assert "Left out: epoch; --wide shows all columns." in lines
    assert any(line.endswith("`offsetstore lag -g billing`") for line in lines), "a command is one word"
    codes = re.findall(r"\x1b\[([0-9;]*)m", screen.getvalue())
    assert set(codes) <= {"0", "1", "2"}, "NO_COLOR is heeded: bold and dim at most"
    with terminal(monkeypatch) as screen:
        print_text(table, wide=True)
    assert screen.lines[0].split() == ["partition", "start", "reason", "text", "epoch"]
    assert len(screen.lines) == 3


def test_at_a_terminal_times_are_ages_and_in_a_pipe_stamps(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = datetime.now(UTC).replace(microsecond=0)
    times = (now - timedelta(minutes=3), now + timedelta(seconds=20), now + timedelta(hours=1))
    table = Table(["at"], [(at,) for at in times])
    with terminal(monkeypatch) as screen:
        print_text(table)
    assert [line.strip() for line in screen.lines] == ["at", "3m ago", "0s ago", times[2].isoformat()]
    print_text(table)
    assert capsys.readouterr().out.split() == ["at", *(at.isoformat() for at in times)]


def test_a_table_of_wide_characters_and_of_the_narrowest_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    table = Table(("group", "state", "#lag"), [("支払い", "live", 7), ("billing", "live", 12)])
    with terminal(monkeypatch) as screen:
        print_text(table)
    assert screen.lines[1:] == ["支払い   live     7", "billing  live    12"]
    monkeypatch.setenv("COLUMNS", "10")
    for width in range(1, 30):
        text = table.fitted(width)
        assert all(word in text for word in ("支払い", "live", "billing", "12")), width


def test_at_a_terminal_an_error_is_wrapped_under_its_label_and_brackets_are_no_markup(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with terminal(monkeypatch) as screen:
        print_error("no", {"found": "word " * 30 + "a-topic-of-a-long-name" * 4, "next step": "Go."})
    lines = [line.rstrip() for line in screen.lines]
    assert [line.strip() for line in lines if len(line) > 80] == ["a-topic-of-a-long-name" * 4], "no word is broken"
    assert (lines[0], lines[-1]) == ("Error: no", "  next step: Go.")
    assert lines[1].startswith("  found:     word word")
    assert lines[2].startswith("             word word")

    with terminal(monkeypatch) as screen:
        print_text(Table(["group"], [("[bold]x[/bold]",)]), "[bold]y[/bold]")
    assert [line.strip() for line in screen.lines] == ["group", "[bold]x[/bold]", "[bold]y[/bold]"]


# Unicode's Default_Ignorable_Code_Point, and what is drawn as a blank.
UNSEEN = [
    *(0xAD, 0x34F, 0x61C, 0x115F, 0x1160, 0x17B4, 0x17B5, *range(0x180B, 0x1810), *range(0x200B, 0x2010)),
    *(*range(0x2028, 0x202F), *range(0x2060, 0x2070), 0x3164, *range(0xFE00, 0xFE10), 0xFEFF, 0xFFA0),
    *(*range(0xFFF0, 0xFFF9), *range(0x1BCA0, 0x1BCA4), *range(0x1D173, 0x1D17B), *range(0xE0000, 0xE1000)),
    *(0xA0, 0x2003, 0x2800, 0x3000, 0x16FE4, 0x1D159),
]


@pytest.mark.behaviour("OPS-27")
def test_what_is_not_drawn_is_shown_escaped() -> None:
    for code in UNSEEN:
        char = chr(code)
        assert visible(f"pay{char}ments") == f"pay{char.encode('unicode_escape').decode()}ments", hex(code)
    for drawn in ("支払い", "платежи", "दोहा", "ที่", "e\u0301", "🙂", "a b", "Größe"):
        assert visible(drawn) == drawn
    assert visible("a\x1b[2Jb\nc") == "a\\x1b[2Jb\\nc", "nor does a name steer the terminal"


@pytest.mark.behaviour("OPS-27")
def test_no_name_hides_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    job, other = logging.getLogger("offsetstore"), logger("offsetstore.test")
    for log in (job, other):
        log.warning("group %r: %s\nline two", "bil\u3164ling", "a\ufe0fb\x1b[2J")
        log.warning("100 % sure")
    lines = [record.getMessage() for record in caplog.records]
    assert lines == ["group 'bil\\u3164ling': a\\ufe0fb\\x1b[2J\nline two", "100 % sure"] * 2


def test_a_document_follows_paths_into_lists_and_mappings() -> None:
    value = {"a": {"b": 1}, "in": OffsetRange(2, 5), "no": None}
    value |= {"offsets": {TopicPartition("payments", 3): 7}, "moves": [OffsetRange(1, 2), OffsetRange(2, 3)]}
    keys = "b=a.b lost=no.b offsets[*@ stored=.] moves[number=from_] none=no[x] range=in[least=from_] given"
    assert document(value, keys, given=4) == {
        "b": 1,
        "lost": None,
        "offsets": [{"topic": "payments", "partition": 3, "stored": 7}],
        "moves": [{"number": 1}, {"number": 2}],
        "none": None,
        "range": {"least": 2},
        "given": 4,
    }


@pytest.mark.behaviour("DX-1")
def test_a_record_s_time_is_a_date_with_kafka_s_word_for_whose_it_is() -> None:
    for time, kind, shown in (
        (1_795_941_562_798, 0, "2026-11-29T08:39:22.798+00:00 (CreateTime)"),
        (0, 1, "1970-01-01T00:00:00.000+00:00 (LogAppendTime)"),
        (-1, -1, "1969-12-31T23:59:59.999+00:00"),
        (2**63 - 1, 0, "9223372036854775807 (CreateTime)"),
        (-(2**63), None, "-9223372036854775808"),
        (None, None, "none"),
    ):
        assert _time_of(Payload(None, None, (), time, kind)) == shown


def test_at_80_columns_neither_a_url_nor_a_path_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    host, directory = f"127.0.0.1:5432/{'sales' * 20}", Path("/caches") / ("deep" * 30)
    service = ServiceStatus(
        "PostgreSQL", running=True, address=f"postgresql://job:canary@{host}", pid=77, directory=directory
    )
    monkeypatch.setattr(stack, "status", lambda: [service])
    result = CliRunner(env={"COLUMNS": "80"}).invoke(cli, ["local", "status"])
    assert result.exit_code == 0
    assert result.stdout.splitlines() == ["PostgreSQL: running, pid 77", f"  postgresql://job@{host}", f"  {directory}"]

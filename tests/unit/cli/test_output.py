from __future__ import annotations

import io
import re
from collections.abc import Generator
from contextlib import contextmanager, redirect_stderr, redirect_stdout

import pytest

from offsetstore.cli.output import Table, document, print_error, print_text
from offsetstore.offsets import OffsetRange, TopicPartition
from offsetstore.text import visible

_COLUMNS = ("partition", "#start", "reason")
_ROWS = (("payments-0", 7, "stored"), ("payments-10", 123_456, None))


class _Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


@contextmanager
def _terminal(monkeypatch: pytest.MonkeyPatch) -> Generator[_Screen]:
    """Both streams on a terminal of 80 columns, whose user wants no colours."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("NO_COLOR", "1")
    screen = _Screen()
    with redirect_stdout(screen), redirect_stderr(screen):
        yield screen


def _lines(screen: _Screen) -> list[str]:
    """What is on it, without the codes for bold and dim."""
    return re.sub(r"\x1b\[[0-9;]*m", "", screen.getvalue()).splitlines()


def test_in_a_pipe_a_table_is_aligned_text_with_as_many_words_in_each_line(capsys: pytest.CaptureFixture[str]) -> None:
    print_text(Table(_COLUMNS, _ROWS))
    assert capsys.readouterr().out == (
        "partition     start  reason\n"
        "payments-0        7  stored\n"
        "payments-10  123456  -\n"
    )  # fmt: skip


def test_in_a_pipe_a_long_line_is_not_wrapped(capsys: pytest.CaptureFixture[str]) -> None:
    print_text(Table(_COLUMNS, [("p" * 200, 1, "stored")]))
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_at_a_terminal_a_table_keeps_to_its_width_and_cuts_nothing_off(monkeypatch: pytest.MonkeyPatch) -> None:
    with _terminal(monkeypatch) as screen:
        print_text(Table(_COLUMNS, [("x" * 100, 123_456, "stored")]))
    assert screen.getvalue().count("x") == 100
    assert len(_lines(screen)) > 2
    assert max(len(line) for line in _lines(screen)) <= 80


def test_no_color_is_heeded(monkeypatch: pytest.MonkeyPatch) -> None:
    with _terminal(monkeypatch) as screen:
        print_text(Table(_COLUMNS, _ROWS))
    codes = re.findall(r"\x1b\[([0-9;]*)m", screen.getvalue())
    assert set(codes) <= {"0", "1", "2"}  # bold and dim at most


def test_at_a_terminal_an_error_is_wrapped_under_its_label(monkeypatch: pytest.MonkeyPatch) -> None:
    with _terminal(monkeypatch) as screen:
        print_error("no", {"found": "word " * 30, "next step": "Go."})
    lines = [line.rstrip() for line in _lines(screen)]
    assert max(len(line) for line in lines) <= 80
    assert lines[0] == "Error: no"
    assert lines[1].startswith("  found:     word word")
    assert lines[2].startswith("             word word")
    assert lines[-1] == "  next step: Go."


def test_brackets_in_a_name_are_no_markup(monkeypatch: pytest.MonkeyPatch) -> None:
    with _terminal(monkeypatch) as screen:
        print_text(Table(["group"], [("[bold]x[/bold]",)]), "[bold]y[/bold]")
    assert [line.strip() for line in _lines(screen)] == ["group", "[bold]x[/bold]", "[bold]y[/bold]"]


def test_a_name_can_not_steer_the_terminal() -> None:
    assert visible("a\x1b[2Jb\nc") == "a\\x1b[2Jb\\nc"
    assert visible("Größe") == "Größe"


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

"""The figures that ``offsetstore relay`` prints: one line a minute while it sends, one at rest, and then nothing."""

from __future__ import annotations

import re
import threading
from pathlib import Path

import pytest

from offsetstore.cli.relay import SentLines
from offsetstore.protocol.events import OutboxRefused, OutboxRests, OutboxSent
from tests.support.clock import Clock

PAGE = Path(__file__).parents[3] / "docs" / "relay.md"


class Told:
    """Figures, what they have printed, and a clock."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.clock = Clock()
        self.figures = SentLines(self.lines.append, self.clock)

    def send(self, rows: int, *, seconds: float = 0.5) -> None:
        self.clock.now += seconds
        self.figures.on(OutboxSent(group="relay", rows=rows, seconds=0.5))

    def rest(self, *, blocked: int = 0) -> None:
        self.figures.on(OutboxRests(group="relay", blocked=blocked))


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.mark.behaviour("OUT-7")
def test_a_line_a_minute_is_printed_while_rows_are_sent_and_one_at_rest(told: Told) -> None:
    for _ in range(250):
        told.send(10_000)
    assert told.lines == ["1,200,000 rows sent in 60 s (20,000 a second)"] * 2
    told.figures.on(OutboxRefused(group="relay", errors={7: "too large", 8: "too large"}))
    told.clock.now += 60
    told.rest()
    assert told.lines[2:] == ["100,000 rows sent in 5 s (20,000 a second), 2 set aside; the outbox is empty"]
    told.clock.now += 600
    told.rest()
    assert len(told.lines) == 3


@pytest.mark.behaviour("OUT-7")
def test_the_lines_of_the_page_are_what_is_printed(told: Told) -> None:
    told.send(4_000)
    told.figures.on(OutboxRefused(group="relay", errors=dict.fromkeys((7, 8, 9), "too large")))
    told.send(1_200_000, seconds=59.5)
    told.send(14)
    told.send(80_100, seconds=3.5142)
    told.clock.now += 60
    told.rest()
    [printed] = re.findall(r"^```text\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    assert told.lines == printed.splitlines()


@pytest.mark.behaviour("OUT-7")
def test_a_few_rows_now_and_then_are_told_once_a_minute(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    timers: list[threading.Timer] = []

    def start(timer: threading.Timer) -> None:
        timers.append(timer)

    monkeypatch.setattr(threading.Timer, "start", start)
    told.send(1)
    told.rest(blocked=2)
    assert told.lines == ["1 row sent; rows of 2 topics wait"]
    for _ in range(20):
        told.send(1, seconds=1)
        told.rest()
    assert len(told.lines) == 1
    [timer] = timers
    assert timer.daemon
    assert timer.interval == pytest.approx(59, abs=1)
    told.clock.now += 40
    timer.function()
    assert told.lines[1:] == ["20 rows sent in 20 s (1 a second); the outbox is empty"]
    told.send(1, seconds=1)
    told.rest()
    told.send(1)
    timers[-1].function()  # more is being sent: its end tells
    assert len(told.lines) == 2

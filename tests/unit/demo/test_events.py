from __future__ import annotations

from typing import TYPE_CHECKING

from offsetstore.demo.events import Event, parse_event, tell

if TYPE_CHECKING:
    import pytest


def test_what_a_job_tells_can_be_read_back(capsys: pytest.CaptureFixture[str]) -> None:
    event = Event("begun", 3, {"flights-0": (10, 20), "flights-1": (0, 7)})
    tell(event)
    assert parse_event(capsys.readouterr().out) == event


def test_other_lines_are_not_events() -> None:
    assert parse_event("WARNING: Using incubator modules\n") is None
    assert parse_event('{"level": "error"}\n') is None

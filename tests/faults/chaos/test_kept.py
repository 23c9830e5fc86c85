"""Processes that are kept alive, and what is held against their rows: both tell what must not be."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.chaos.means.kept import Kept
from tests.faults.chaos.means.relays import differences
from tests.support.waiting import wait_until

_BEGUN = """
import json, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
print(json.dumps({"job": "begun", "at": 0}), flush=True)
"""
LIVES = f"{_BEGUN}time.sleep(600)"
FAILS = (
    f'{_BEGUN}print(json.dumps({{"job": "failed", "at": 0, "class_name": "StaleClaim", "text": "was"}})); sys.exit(6)'
)
BREAKS = f"{_BEGUN}sys.exit('broken')"


def test_a_process_that_is_killed_is_started_again_until_it_is_stopped(tmp_path: Path) -> None:
    with Kept(lambda: ["-c", LIVES], tmp_path / "log") as kept:
        first = kept.begin()
        assert kept.wait_until_begun() is first
        assert kept.kill() == first.pid
        second = kept.wait_until_begun()
        assert second is not first
        kept.stop(again=True)
        wait_until(lambda: kept.starts == 3, timeout=60)
        third = kept.wait_until_begun()
        kept.stop()
    assert [one.exit_status for one in (first, second, third)] == [-9, 0, 0]
    assert kept.starts == 3
    assert kept.ends == []


@pytest.mark.parametrize(("program", "end"), [(FAILS, "StaleClaim: was"), (BREAKS, "exit status 1: ")])
def test_an_end_that_nobody_has_caused_is_told(tmp_path: Path, program: str, end: str) -> None:
    programs = iter([program, LIVES])
    with Kept(lambda: ["-c", next(programs)], tmp_path / "log") as kept:
        kept.begin()
        wait_until(lambda: kept.starts == 2, timeout=60)
        kept.wait_until_begun()
        kept.stop()
    [told] = kept.ends
    assert told.startswith(end)
    assert kept.unexpected(["RelayFenced"]) == kept.ends
    assert kept.unexpected(["StaleClaim", "exit status 1"]) == []


@pytest.mark.parametrize(
    ("found", "told"),
    [
        ([0, 1, 2], []),
        ([0, 2], ["a: lost [1] and 0 more"]),
        ([0, 1, 1, 2], ["a: twice [1] and 0 more"]),
        ([0, 2, 1], ["a: out of order [1] and 0 more"]),
        ([0, 1, 2, 3], ["a: never committed [3] and 0 more"]),
    ],
)
def test_rows_that_a_reader_must_have_once_and_in_order(found: list[int], told: list[str]) -> None:
    assert differences({b"a": found, b"b": []}, {b"a": [0, 1, 2], b"b": []}) == told

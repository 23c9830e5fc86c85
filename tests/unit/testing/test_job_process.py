from __future__ import annotations

import io
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from offsetstore.offsets import OffsetRange, TopicPartition
from offsetstore.protocol.events import BatchEnded, BatchStarted
from offsetstore.runtime import failpoints
from offsetstore.testing.job_process import BatchPrinter, JobProcess, parse_event, print_event

RANGES = {TopicPartition("flights", 0): OffsetRange(10, 20), TopicPartition("flights", 1): OffsetRange(0, 7)}
JOB = """
import sys
from offsetstore.testing.job_process import print_event
print_event("ready")
print("heard", sys.stdin.readline(), file=sys.stderr, flush=True)
print_event("heard")
sys.stdin.readline()
"""


def test_the_observer_prints_when_a_batch_begins_and_when_it_is_done(capsys: pytest.CaptureFixture[str]) -> None:
    printer = BatchPrinter()
    printer.on(BatchStarted(group="g", batch=3, ranges=RANGES))
    printer.on(BatchEnded(outcome="written", group="g", batch=3, ranges=RANGES, rows={"flights": 17}, seconds={}))
    printer.on(BatchStarted(group="g", batch=4, ranges=RANGES))
    printer.on(BatchEnded(outcome="skipped", group="g", batch=4, ranges=RANGES))
    found = [event for line in capsys.readouterr().out.splitlines() if (event := parse_event(line))]
    assert [(event.kind, event.what["batch"]) for event in found] == [
        ("begun", 3),
        ("done", 3),
        ("begun", 4),
        ("done", 4),
    ]
    assert all(event.what["ranges"] == {"flights-0": [10, 20], "flights-1": [0, 7]} for event in found)


def test_a_job_is_spoken_to_and_killed(tmp_path: Path) -> None:
    with JobProcess(["-c", JOB], tmp_path / "log") as job:
        job.wait_for("ready")
        job.write("you")
        job.wait_for("heard")
        assert job.exit_status is None
    assert job.exit_status == -signal.SIGKILL
    assert "heard you" in job.end_of_log


def test_an_event_that_does_not_come_fails_with_the_end_of_the_log(tmp_path: Path) -> None:
    with (
        JobProcess(["-c", "raise SystemExit('no flights')"], tmp_path / "log") as job,
        pytest.raises(AssertionError, match=r"no 'ready' (.|\n)*no flights"),
    ):
        job.wait_for("ready")
    assert job.exit_status == 1


class Slow(io.StringIO):
    """Lets another thread write between two writes."""

    def write(self, text: str) -> int:
        written = super().write(text)
        time.sleep(0.001)
        return written


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_lines_that_threads_print_are_lines(stream: str, monkeypatch: pytest.MonkeyPatch) -> None:
    into = Slow()
    monkeypatch.setattr(sys, stream, into)

    def write(_: int) -> None:
        if stream == "stdout":
            print_event("begun")
        else:
            with pytest.raises(failpoints.FailpointReached):
                failpoints._fire("after_sink", "raise")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(40)))
    assert [event and event.kind for event in map(parse_event, into.getvalue().splitlines())] == [
        "begun" if stream == "stdout" else "reached"
    ] * 40

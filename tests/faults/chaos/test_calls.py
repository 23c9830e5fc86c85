"""Calls of a handler that should not have been are seen; those that kills explain are allowed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from offsetstore.testing.job_process import Event
from tests.faults.chaos.harness.calls import Call, Worked, called_again, most_at_once, read, wrong

OFFSETS = range(4)


def call(offset: int, at: float, outcome: str | None = "row", *, epoch: int = 1, pid: int = 10, task: int = 5) -> Call:
    """A call of a tenth of a second for a record, whose key is even or odd."""
    ended = None if outcome is None else at + 0.1
    return Call(epoch, pid, task, f"payments/an-id/0/{offset}", f"k{offset % 2}", at, ended, outcome)


CALLS = [call(0, 1.0), call(1, 1.0), call(2, 1.2), call(3, 1.3, "ValueError"), call(3, 1.5)]


def batch(begin: int, until: int, *, begun: float, done: float | None = None) -> list[Event]:
    ranges = {"ranges": {"payments-0": (begin, until)}}
    return [Event("begun", begun, ranges), *([] if done is None else [Event("done", done, ranges)])]


WHOLE = Worked(1, batch(0, 4, begun=0.9, done=2.0))
KILLED = Worked(1, batch(0, 2, begun=0.9, done=1.15) + batch(2, 4, begun=1.16), was_cut=True)


def check(calls: Sequence[Call], *jobs: Worked, topic_id: str = "an-id", concurrency: int = 2) -> list[str]:
    produced = [("payments", 0, offset) for offset in OFFSETS]
    return wrong(calls, produced, jobs or [WHOLE], topic_ids={"payments": topic_id}, concurrency=concurrency)


def test_each_record_was_called_for_once_or_until_it_succeeded() -> None:
    assert check(CALLS) == []
    assert called_again(CALLS) == set()
    assert most_at_once(CALLS) == 2


@pytest.mark.parametrize(
    ("calls", "said"),
    [
        (CALLS[1:], "no call for payments-0@0 has ended"),
        ([call(0, 1.0, None), *CALLS[1:2], *CALLS[3:]], "no call for payments-0@0 has ended"),
        ([*CALLS, call(4, 2.0)], "a call for payments-0@4, which nobody has produced"),
        ([*CALLS, call(0, 1.8)], "calls for payments-0@0 in task 5 have ended with ['row', 'row']"),
        ([*CALLS[:4], *(call(3, at, "ValueError") for at in (1.5, 1.7, 1.9))], "calls for payments-0@3 in task 5"),
        ([*CALLS, call(3, 1.9, task=6)], "job 1 has called for payments-0@3 in 2 tasks"),
        ([*CALLS, call(3, 1.9, pid=11)], "job 1 has called for payments-0@3 in 2 tasks"),
        ([CALLS[0], call(1, 1.0), call(2, 1.05), *CALLS[3:]], "calls for offsets 0 and 2 ran at once"),
        ([call(2, 1.0), call(1, 1.0), call(0, 1.2), *CALLS[3:]], "offset 0 was called for after 2"),
    ],
)
def test_what_must_not_be(calls: list[Call], said: str) -> None:
    assert [one for one in check(sorted(calls, key=lambda one: one.begun), concurrency=3) if said in one]


def test_another_id_and_too_many_at_once() -> None:
    assert len(check(CALLS, topic_id="another")) == len(CALLS)
    assert check(CALLS, concurrency=1) == ["2 calls ran at once in one task, with concurrency=1"]


@pytest.mark.parametrize(
    ("kills", "is_allowed"),
    [([], False), ([1.5], True), ([0.5], False), ([2.5], False)],
    ids=["none", "under way", "before it", "after it"],
)
def test_a_task_is_repeated_where_its_process_was_killed(kills: list[float], *, is_allowed: bool) -> None:
    calls = [*CALLS, call(3, 1.8, task=6, pid=11)]

    found = check(calls, replace(WHOLE, kills=kills))

    assert found == ([] if is_allowed else ["job 1 has called for payments-0@3 in 2 tasks"])


def test_one_kill_is_the_reason_for_one_more_task() -> None:
    calls = [*CALLS, call(3, 1.7, task=6, pid=11), call(3, 1.9, task=7, pid=11)]

    assert check(calls, replace(WHOLE, kills=[1.6])) == ["job 1 has called for payments-0@3 in 3 tasks"]
    assert check(calls, replace(WHOLE, kills=[1.6, 1.8])) == []


def test_a_later_job_calls_again_for_the_batch_that_was_under_way_and_no_other() -> None:
    second = Worked(2, batch(2, 4, begun=3.0, done=4.0))
    again = [call(offset, 3.1 + offset, epoch=2, pid=12, task=0) for offset in (2, 3)]

    assert check([*CALLS, *again], KILLED, second) == []
    assert called_again([*CALLS, *again]) == {("payments", 0, 2), ("payments", 0, 3)}
    stored = call(1, 3.0, epoch=2, pid=12, task=0)
    assert check([*CALLS, stored, *again], KILLED, second) == [
        "payments-0@1 was called for by job 1, and again by job 2"
    ]
    assert check([*CALLS, *again], replace(KILLED, was_cut=False), second) == [
        f"payments-0@{offset} was called for by job 1, and again by job 2" for offset in (2, 3)
    ]


def test_a_log_has_what_has_begun_and_a_line_that_is_being_written_waits(tmp_path: Path) -> None:
    log = tmp_path / "calls"
    assert read(log) == []
    begun = '{"call": "10-0", "begun": 1.0, "key": "k0", "epoch": 1, "pid": 10, "task": 5, "id": "payments/an-id/0/0"}'
    log.write_text(f'{begun}\n{{"call": "10-0", "ended": 1.1, "outco')
    assert read(log) == [Call(1, 10, 5, "payments/an-id/0/0", "k0", 1.0)]
    log.write_text(f'{begun}\n{{"call": "10-0", "ended": 1.1, "outcome": "row"}}\n')
    assert read(log) == [Call(1, 10, 5, "payments/an-id/0/0", "k0", 1.0, 1.1, "row")]

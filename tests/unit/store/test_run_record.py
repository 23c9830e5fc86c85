"""What a claim's observer keeps until it is saved."""

from __future__ import annotations

import logging
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Event
from typing import cast
from uuid import UUID

import pytest

from offsetstore.errors import MissingPrivilege, StaleClaim
from offsetstore.offsets import OffsetRange, Token, TopicPartition
from offsetstore.protocol.database import Session
from offsetstore.protocol.events import (
    BatchEnded,
    BatchStarted,
    ClaimEnded,
    MirrorTried,
    QueryStarted,
    Retried,
    SinkMade,
    WatchedQuery,
)
from offsetstore.protocol.runs import Ending, JobError, RunStatus
from offsetstore.store import heartbeat
from offsetstore.store.heartbeat import RunRecord

TOKEN = Token(4, UUID(int=4))
RANGES = {TopicPartition("payments", 0): OffsetRange(0, 40)}


@dataclass
class Tables:
    """A session that keeps what it is given, or raises."""

    runs: list[tuple[RunStatus, Ending | None]] = field(default_factory=list[tuple[RunStatus, "Ending | None"]])
    errors: list[JobError] = field(default_factory=list[JobError])
    trims: int = 0
    requested: bool = False
    failing: Exception | None = None

    @contextmanager
    def begin(self) -> Generator[Session]:
        """Begin, and fail at COMMIT if it is to."""
        before = len(self.runs), len(self.errors)
        yield cast("Session", self)
        if self.failing is not None:
            del self.runs[before[0] :], self.errors[before[1] :]
            raise self.failing

    def write_run(self, group: str, token: Token, status: RunStatus, ending: Ending | None, *, of_member: bool) -> None:
        assert (group, token, of_member) == ("billing", TOKEN, False)
        self.runs.append((status, ending))

    def has_requested(self, group: str) -> bool:
        assert group == "billing"
        return self.requested

    def append_errors(self, group: str, token: Token, errors: Sequence[JobError]) -> None:
        assert (group, token) == ("billing", TOKEN)
        self.errors += errors
        self.trims += 1


@pytest.fixture
def tables() -> Tables:
    return Tables()


@pytest.fixture
def record() -> RunRecord:
    return RunRecord("billing", TOKEN)


def retried(name: str) -> Retried:
    """An error of that class."""
    return Retried(group="billing", attempt=1, error=cast("Exception", type(name, (Exception,), {})()), wait=0.1)


@pytest.mark.behaviour("OPS-11")
def test_what_could_not_be_saved_is_saved_later_and_logged_once(
    record: RunRecord, tables: Tables, caplog: pytest.LogCaptureFixture
) -> None:
    tables.failing = MissingPrivilege("the role may not do that")
    record.on(retried("First"))
    with caplog.at_level(logging.WARNING):
        record.save(tables.begin)
        record.on(retried("Second"))
        record.on(retried("First"))
        record.save(tables.begin)
    [line] = caplog.records
    assert line.getMessage().startswith("could not record what the job does (logged once): MissingPrivilege: the role")
    assert (tables.runs, tables.errors) == ([], [])

    tables.failing = None
    record.save(tables.begin)
    assert [(one.error_class, one.times) for one in tables.errors] == [("Second", 1), ("First", 2)]

    record.save(tables.begin)
    assert len(tables.errors) == 2
    assert [status.counters for status, _ in tables.runs] == [{"retries": 3}] * 2
    assert tables.trims == 3, "at the first save, and with each error"


@pytest.mark.behaviour("OPS-11")
def test_a_query_whose_id_is_none_is_refused_when_it_is_told_and_the_rest_is_saved(
    record: RunRecord, tables: Tables
) -> None:
    with pytest.raises(ValueError, match="UUID"):
        record.on(QueryStarted(group="billing", query_id="7", run_id="", application_id="app-1", ui_url=None))
    record.save(tables.begin)
    assert [(status.query_id, status.application_id) for status, _ in tables.runs] == [(None, "app-1")]


@dataclass(frozen=True)
class Query:
    """A query of which nothing is known."""


@pytest.mark.behaviour("DLQ-19")
@pytest.mark.parametrize("replays", [True, False, None])
def test_a_job_without_dead_letters_says_that_it_replays_none_once_for_each_time_that_some_are_requested(
    record: RunRecord, tables: Tables, caplog: pytest.LogCaptureFixture, *, replays: bool | None
) -> None:
    if replays is not None:
        record.on(SinkMade(group="billing", token=TOKEN, query=cast("WatchedQuery", Query()), replays_letters=replays))
    with caplog.at_level(logging.WARNING):
        for requested in (False, True, True, False, True):
            tables.requested = requested
            record.save(tables.begin)
        record.save(tables.begin, is_over=True)
    lines = [line.getMessage() for line in caplog.records]
    assert len(lines) == (2 if replays is False else 0)
    assert all("this job replays none: its sink has no dead_letters=" in line for line in lines)
    assert {status.replays_letters for status, _ in tables.runs} == {replays}


def test_a_flood_of_different_errors_is_bounded(record: RunRecord, tables: Tables) -> None:
    for number in range(150):
        record.on(retried(f"E{number}"))
    record.save(tables.begin)

    assert [one.error_class for one in tables.errors] == [f"E{number}" for number in range(100)]
    assert tables.runs[0][0].counters == {"retries": 150, "errors_left_out": 50}


def test_an_end_is_saved_once_until_there_is_something_new(record: RunRecord, tables: Tables) -> None:
    for _ in range(3):
        record.save(tables.begin, is_over=True)
    assert [ending for _, ending in tables.runs] == ["closed"]

    record.on(BatchEnded(outcome="failed", group="billing", batch=1, ranges=RANGES, error=ValueError()))
    record.save(tables.begin, is_over=True)
    assert [ending for _, ending in tables.runs] == ["closed", "failed"]

    record.on(BatchStarted(group="billing", batch=1, ranges=RANGES))
    record.save(tables.begin)
    record.on(BatchEnded(outcome="written", group="billing", batch=1, ranges=RANGES, rows={"": 1}, seconds={}))
    record.save(tables.begin, is_over=True)
    assert [ending for _, ending in tables.runs] == ["closed", "failed", None, "closed"]


@pytest.mark.behaviour("OPS-11")
def test_one_that_is_lost_is_fenced_whatever_else_it_did(record: RunRecord, tables: Tables) -> None:
    record.on(ClaimEnded(outcome="fenced", group="billing", token=TOKEN))
    record.save(tables.begin)
    record.on(BatchEnded(outcome="failed", group="billing", batch=1, ranges=RANGES, error=StaleClaim("taken over")))
    record.save(tables.begin, is_over=True)

    assert [ending for _, ending in tables.runs] == ["fenced", "fenced"]
    assert [one.error_class for one in tables.errors] == ["StaleClaim"]


def test_the_mirrors_failure_is_one_error_until_it_copies_again(record: RunRecord, tables: Tables) -> None:
    for reason in ("no answer", "still none"):
        record.on(MirrorTried(group="billing", reason=reason, is_over=False))
        record.save(tables.begin)
    record.on(MirrorTried(group="billing", offsets={}))
    record.save(tables.begin)
    record.on(MirrorTried(group="billing", reason="again", is_over=False))
    record.save(tables.begin)

    assert [one.text for one in tables.errors] == ["no answer", "again"]
    assert [status.mirror_error for status, _ in tables.runs] == ["no answer", "still none", None, "again"]
    assert [status.mirror_age is None for status, _ in tables.runs] == [True, True, False, False]


def test_one_save_follows_the_other_and_does_not_wait_for_ever(
    record: RunRecord, tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeat, "_PATIENCE", 0.05)
    begun, go_on = Event(), Event()

    @contextmanager
    def hangs() -> Generator[Session]:
        begun.set()
        assert go_on.wait(20)
        yield cast("Session", tables)

    with ThreadPoolExecutor(1) as pool:
        hanging = pool.submit(record.save, hangs)
        assert begun.wait(20)
        record.save(tables.begin, is_over=True)
        assert tables.runs == []
        go_on.set()
        hanging.result(20)
    record.save(tables.begin, is_over=True)
    assert [ending for _, ending in tables.runs] == [None, "closed"]


@pytest.mark.behaviour("OPS-7")
def test_the_text_of_an_error_that_is_not_ours_is_left_out(record: RunRecord, tables: Tables) -> None:
    error = ValueError("card 4711")
    error.__cause__ = cast("Exception", type("Driver", (Exception,), {"sqlstate": "22P02"})("4711"))
    record.on(BatchEnded(outcome="failed", group="billing", batch=1, ranges=RANGES, error=error))
    record.save(tables.begin)

    [found] = tables.errors
    assert (found.error_class, found.text, found.sqlstate, found.batch) == ("ValueError", None, "22P02", 1)
    assert "4711" not in repr(found)

"""Each run records itself, how it ended and what it met. See `tests.contract.suite`."""
# ruff: noqa: PT012 - these are tests: the name is the docstring, numbers and order are the point

from __future__ import annotations

import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest

from offsetstore.errors import ConfigurationError, OffsetGap, StaleClaim
from offsetstore.offsets import OffsetRange
from offsetstore.operations.people import LastRun, StoreOverview, people, read_overview
from offsetstore.protocol.events import BatchEnded, BatchOutcome, BatchStarted, QueryStarted, Retried
from offsetstore.protocol.letters import LetterError, LetterKey, NewLetter, Payload
from offsetstore.protocol.runs import JobError, Run, RunStatus
from offsetstore.store import heartbeat
from offsetstore.store.claim import Claim
from offsetstore.store.sessions import read
from tests.contract.parts import GROUP, P0, P1, ContractParts

RANGES = {P0: OffsetRange(0, 40), P1: OffsetRange(3, 5)}
MINUTE = timedelta(minutes=1)


class RunContract(ContractParts):
    """Runs and errors, as the job writes them and as they are read."""

    @pytest.fixture(autouse=True)
    def without_heartbeats(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Each would write what the job itself knows of its run, over what a test has written."""
        monkeypatch.setattr(heartbeat, "INTERVAL", 3600)

    def last(self) -> Run:
        """The group's last run."""
        return self.store.runs(GROUP)[-1]

    def write_run(self, claim: Claim, status: RunStatus, *errors: JobError) -> None:
        """Do what a heartbeat does."""
        with self.session() as session:
            session.write_run(GROUP, claim.token, status, None)
            session.append_errors(GROUP, claim.token, errors)

    def begin(self, claim: Claim, batch: int = 7) -> None:
        claim.observers.on(BatchStarted(group=GROUP, batch=batch, ranges=RANGES))

    def end(self, claim: Claim, outcome: BatchOutcome, batch: int = 7, **other: Any) -> None:
        claim.observers.on(BatchEnded(outcome=outcome, group=GROUP, batch=batch, ranges=RANGES, **other))

    def overview(self) -> StoreOverview:
        return read(self.store.database, lambda session: read_overview(people(session), None))

    @pytest.mark.behaviour("OPS-11")
    def test_a_claim_is_a_run_from_its_first_moment_and_what_it_does_is_recorded_when_it_closes(
        self, claim: Claim
    ) -> None:
        run, query = self.last(), uuid4()
        assert (run.group, run.token, run.owner, run.topics) == (GROUP, claim.token, claim.owner, ("payments",))
        assert (run.state, run.ended_at, run.next_at, run.status.phase) == ("live", None, None, "starting")
        assert {"python", "offsetstore"} <= run.versions.keys()
        assert abs(datetime.now(UTC) - run.started_at) < MINUTE

        where: dict[str, Any] = {"run_id": str(uuid4()), "application_id": "app-1", "ui_url": "http://driver"}
        claim.observers.on(QueryStarted(group=GROUP, query_id=str(query), **where))
        for batch in (7, 8):
            self.begin(claim, batch)
            seconds = {"compute": 1.5, "commit": 0.25}
            self.end(claim, "written", batch, rows={"": 30, "audit": 1}, seconds=seconds)
        claim.close()

        run = self.last()
        status = run.status
        assert (run.state, run.ending, run.ended_at) == ("ended", "closed", run.seen_at)
        assert (status.phase, status.batch, status.batch_offsets) == ("idle", 8, 42)
        assert status.counters == {"written": 2, "offsets": 84, "rows": 62, "batch_milliseconds": 3_500}
        assert (status.query_id, status.application_id, status.ui_url) == (query, "app-1", "http://driver")
        assert 0 <= (status.last_batch_age or 0) < 60
        assert (status.memory or 0) > 1_000_000
        assert self.store.errors(GROUP) == []

    @pytest.mark.behaviour("OPS-11", "OPS-22")
    def test_a_run_that_failed_says_so_and_with_what_and_is_not_live_although_its_claim_is_open(
        self, claim: Claim
    ) -> None:
        def told() -> set[tuple[str | None, bool]]:
            listed = next(one.owner for one in self.store.groups() if one.group == GROUP)
            rows = (self.owner(), listed, self.overview().groups[GROUP])
            return {(row.ending, row.is_live) for row in rows}

        gap = OffsetGap("a gap", topic_partition=P1, found=3, expected=2)
        self.begin(claim)
        claim.record_run()
        assert told() == {(None, True)}
        self.end(claim, "failed", error=gap, stored={P0: OffsetRange(0, 7)}, rows={"": 5, "audit": 1})
        claim.record_run()
        assert told() == {("failed", False)}
        self.begin(claim)  # the query was started again
        claim.record_run()
        assert told() == {(None, True)}
        self.end(claim, "failed", error=gap)
        claim.observers.on(Retried(group=GROUP, attempt=1, error=ValueError("of a row: 4711"), wait=0.1))
        claim.close()

        run = self.last()
        assert (run.state, run.status.phase) == ("failed", "failed")
        assert run.status.counters == {"failed": 2, "offsets": 7, "rows": 6, "retries": 1}
        first, *_, retry = self.store.errors(GROUP)
        assert first.at is not None
        assert replace(first, at=None) == JobError(
            source="batch",
            error_class="OffsetGap",
            text=str(gap),
            topic_partition=P1,
            batch=7,
            ranges=f"{P0} {RANGES[P0]}, {P1} {RANGES[P1]}",
            epoch=claim.token.epoch,
        )
        assert (retry.source, retry.error_class, retry.text) == ("retry", "ValueError", None)

    @pytest.mark.behaviour("OPS-11")
    def test_a_run_that_was_fenced_says_so_once_it_knows_and_each_is_written_by_its_own_claim_alone(
        self, claim: Claim
    ) -> None:
        second = self.store.claim(GROUP, self.broker)
        with pytest.raises(StaleClaim):
            self.give(claim, {P0: OffsetRange(0, 4)})
        claim.close()
        with self.session() as session:
            session.write_run(GROUP, replace(second.token, claim_id=uuid4()), RunStatus(phase="batch"), "failed")
            session.write_run("other", second.token, RunStatus(phase="batch"), "failed")

        first, run = self.store.runs(GROUP)
        assert (first.state, first.ending, first.next_at) == ("fenced", "fenced", run.started_at)
        assert (run.state, run.token, run.status.phase) == ("live", second.token, "starting")
        assert self.store.runs("other") == []

    def test_ages_go_on(self, claim: Claim) -> None:
        claim.close()  # its heartbeats would write, too
        self.write_run(claim, RunStatus(phase="batch", phase_age=600, last_batch_age=601.5, mirror_age=7, batch=4))

        status = self.last().status
        assert (status.phase, status.batch) == ("batch", 4)
        for age, since in ((status.phase_age, 600), (status.last_batch_age, 601.5), (status.mirror_age, 7)):
            assert since <= (age or 0) < since + 30

    @pytest.mark.behaviour("OPS-11")
    def test_the_newest_runs_and_errors_are_kept_and_read_in_part(self) -> None:
        claims = [self.again() for _ in range(4)]
        sources = ("batch", "retry", "batch")
        errors = [JobError(source=source, error_class=f"E{number}") for number, source in enumerate(sources * 2)]
        self.write_run(claims[-1], RunStatus(), *errors)
        other = self.store.claim("other", self.broker, mirror_every=None)
        with self.session() as session:
            session.append_errors(GROUP, claims[-1].token, [], keep=3)

        assert [run.token for run in self.store.runs(GROUP)] == [one.token for one in claims[1:]]
        assert [run.token for run in self.store.runs("other")] == [other.token]
        assert [run.token for run in self.store.runs(GROUP, limit=2)] == [one.token for one in claims[2:]]
        assert self.store.runs(GROUP, limit=2)[0].next_at is not None
        assert [one.error_class for one in self.store.errors(GROUP)] == ["E3", "E4", "E5"]
        assert [one.error_class for one in self.store.errors(GROUP, limit=2)] == ["E4", "E5"]
        assert [one.error_class for one in self.store.errors(GROUP, sources=["batch"])] == ["E3", "E5"]
        assert self.store.errors(GROUP, since=datetime.now(UTC) + MINUTE) == []
        assert len(self.store.errors(GROUP, since=datetime.now(UTC) - MINUTE)) == 3
        with pytest.raises(ConfigurationError, match="no such sources"):
            self.store.errors(GROUP, sources=["batches"])  # pyright: ignore[reportArgumentType]
        with pytest.raises(ConfigurationError, match="1 or more"):
            self.store.runs(GROUP, limit=0)

    @pytest.mark.behaviour("OPS-5")
    def test_an_overview_tells_since_when_a_batch_has_been_in_flight(self) -> None:
        first = self.again()
        assert self.overview().runs[GROUP].batch_since is None
        first.close()
        second = self.again()
        self.begin(second)  # what a heartbeat would write, too
        self.write_run(second, RunStatus(phase="batch"))
        since = self.overview().runs[GROUP].batch_since
        assert since is not None
        assert abs(datetime.now(UTC) - since) < MINUTE
        self.store.reset(GROUP, {P0: 3}, reason="ticket 17")
        assert self.overview().runs == {}

    @pytest.mark.behaviour("OPS-5")
    def test_an_overview_has_the_run_of_the_last_claim_also_when_it_has_ended(self) -> None:
        self.again()
        claim = self.again()
        self.store.claim("other", self.broker, mirror_every=None)
        assert self.overview().runs == dict.fromkeys((GROUP, "other"), LastRun(None, None, {}, None, ("payments",)))
        claim.close()
        self.write_run(claim, RunStatus(counters={"written": 3, "letters": 1}, memory=2**40))
        assert self.overview().runs[GROUP] == LastRun(None, None, {"written": 3, "letters": 1}, 2**40, ("payments",))
        with self.session() as session:
            session.write_run(GROUP, claim.token, RunStatus(), "failed")
        assert self.overview().runs[GROUP] == LastRun(None, "failed", {}, None, ("payments",))
        self.store.reset(GROUP, {P0: 3}, reason="ticket 17")
        assert list(self.overview().runs) == ["other"]

    @pytest.mark.behaviour("DLQ-19")
    def test_whether_a_job_replays_letters_is_known_of_the_last_run(self) -> None:
        self.again()
        claim = self.again()
        self.write_run(claim, RunStatus(replays_letters=True))
        assert self.group_state().replays_letters is None, "nothing is requested"
        letter = NewLetter(P0, 2, "refused", LetterError("E", "refused"), 1, None, Payload(None, b"", None, None, None))
        self.give(claim, {P0: OffsetRange(0, 4)}, letter)
        self.store.request_replay(GROUP, LetterKey(P0, 2), reason="ticket 17")
        for replays in (None, False, True):
            self.write_run(claim, RunStatus(counters={"letters": 1}, replays_letters=replays))
            status = self.last().status
            assert (status.replays_letters, status.counters) == (replays, {"letters": 1})
            assert self.group_state().replays_letters is replays

        self.store.reset(GROUP, {P0: 4}, reason="ticket 17")
        assert self.group_state().replays_letters is None, "who has the group now is no job"
        self.again()
        assert self.group_state().replays_letters is None, "the new job has made no sink yet"

    @pytest.mark.behaviour("OPS-11")
    @pytest.mark.parametrize("how", ["raised", "given", "exit"])
    def test_an_error_that_no_batch_has_met_ends_the_run_as_failed(self, how: str) -> None:
        claim, error = self.again(), ValueError("of a row: 4711")
        if how == "given":
            claim.end_with(error)  # as the store does when an error leaves its block
            claim.close()
        else:
            with pytest.raises((ValueError, SystemExit)), claim:
                try:
                    raise error
                except ValueError:  # what awaitTermination() raises
                    if how == "raised":
                        raise
                    sys.exit(5)

        assert self.last().state == "failed"
        [found] = self.store.errors(GROUP)
        assert (found.source, found.error_class, found.text) == ("job", "ValueError", None)

    @pytest.mark.parametrize("end", [KeyboardInterrupt(), SystemExit(0), SystemExit()], ids=repr)
    def test_an_interrupted_job_has_not_failed(self, claim: Claim, end: BaseException) -> None:
        with pytest.raises(type(end)), claim:
            raise end

        assert self.last().state == "ended"

"""Each run records itself, how it ended and what it met. See `tests.contract.suite`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from offsetstore.errors import ConfigurationError, OffsetGap, StaleClaim
from offsetstore.offset_store import OffsetStore
from offsetstore.offsets import OffsetRange
from offsetstore.operations.people import LastRun, people, read_overview
from offsetstore.protocol.events import BatchEnded, BatchStarted, QueryStarted, Retried
from offsetstore.protocol.letters import LetterError, LetterKey, NewLetter, Payload
from offsetstore.protocol.runs import JobError, Run, RunStatus
from offsetstore.store import heartbeat
from offsetstore.store.claim import Claim
from offsetstore.store.sessions import read, transaction
from tests.contract.parts import GROUP, P0, P1, ContractParts

RANGES = {P0: OffsetRange(0, 40), P1: OffsetRange(3, 5)}
SECONDS = {"compute": 1.5, "commit": 0.25}


def last(store: OffsetStore) -> Run:
    """The group's last run."""
    return store.runs(GROUP)[-1]


def write(store: OffsetStore, claim: Claim, status: RunStatus, *errors: JobError) -> None:
    """Do what a heartbeat does."""
    with transaction(store.database, name="test") as session:
        session.write_run(GROUP, claim.token, status, None)
        session.append_errors(GROUP, claim.token, errors)


class RunContract(ContractParts):
    """Runs and errors, as the job writes them and as they are read."""

    @pytest.fixture(autouse=True)
    def without_heartbeats(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Each would write what the job itself knows of its run, over what a test has written."""
        monkeypatch.setattr(heartbeat, "INTERVAL", 3600)

    @pytest.mark.behaviour("OPS-11")
    def test_a_claim_is_a_run_from_its_first_moment(self, claim: Claim) -> None:
        run = last(self.store)

        assert (run.group, run.token, run.owner, run.topics) == (GROUP, claim.token, claim.owner, ("payments",))
        assert (run.state, run.ended_at, run.next_at, run.status.phase) == ("live", None, None, "starting")
        assert {"python", "offsetstore"} <= run.versions.keys()
        assert abs(datetime.now(UTC) - run.started_at) < timedelta(seconds=60)

    @pytest.mark.behaviour("OPS-11")
    def test_what_a_job_does_is_recorded_when_it_closes(self, claim: Claim) -> None:
        query, on = uuid4(), claim.observers.on
        on(
            QueryStarted(
                group=GROUP, query_id=str(query), run_id=str(uuid4()), application_id="app-1", ui_url="http://driver"
            )
        )
        for batch in (7, 8):
            on(BatchStarted(group=GROUP, batch=batch, ranges=RANGES))
            on(
                BatchEnded(
                    outcome="written",
                    group=GROUP,
                    batch=batch,
                    ranges=RANGES,
                    rows={"": 30, "audit": 1},
                    seconds=SECONDS,
                )
            )
        claim.close()

        run = last(self.store)
        status = run.status
        assert (run.state, run.ending, run.ended_at) == ("ended", "closed", run.seen_at)
        assert (status.phase, status.batch, status.batch_offsets) == ("idle", 8, 42)
        assert status.counters == {"written": 2, "offsets": 84, "rows": 62, "batch_milliseconds": 3_500}
        assert (status.query_id, status.application_id, status.ui_url) == (query, "app-1", "http://driver")
        assert status.last_batch_age is not None
        assert 0 <= status.last_batch_age < 60
        assert status.memory is not None
        assert status.memory > 1_000_000
        assert self.store.errors(GROUP) == []

    @pytest.mark.behaviour("OPS-11")
    def test_a_run_that_failed_says_so_and_with_what(self, claim: Claim) -> None:
        gap = OffsetGap("a gap", topic_partition=P1, found=3, expected=2)
        claim.observers.on(BatchStarted(group=GROUP, batch=7, ranges=RANGES))
        claim.observers.on(
            BatchEnded(
                outcome="failed",
                group=GROUP,
                batch=7,
                ranges=RANGES,
                error=gap,
                stored={P0: OffsetRange(0, 7)},
                rows={"": 5, "audit": 1},
            )
        )
        claim.observers.on(Retried(group=GROUP, attempt=1, error=ValueError("of a row: 4711"), wait=0.1))
        claim.close()

        run = last(self.store)
        assert (run.state, run.status.phase) == ("failed", "failed")
        assert run.status.counters == {"failed": 1, "offsets": 7, "rows": 6, "retries": 1}
        first, second = self.store.errors(GROUP)
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
        assert (second.source, second.error_class, second.text) == ("retry", "ValueError", None)

    @pytest.mark.behaviour("OPS-22")
    def test_a_job_whose_failure_is_recorded_is_not_live_although_its_claim_is_open(self, claim: Claim) -> None:
        def told() -> set[tuple[str | None, bool]]:
            listed = next(one.owner for one in self.store.groups() if one.group == GROUP)
            overview = read(self.store.database, lambda session: read_overview(people(session), [GROUP]))
            rows = (self.store.owner(GROUP), listed, overview.groups[GROUP])
            return {(row.ending, row.is_live) for row in rows if row is not None}

        claim.observers.on(BatchStarted(group=GROUP, batch=7, ranges=RANGES))
        claim.record_run()
        assert told() == {(None, True)}
        claim.observers.on(BatchEnded(outcome="failed", group=GROUP, batch=7, ranges=RANGES, error=OffsetGap("a gap")))
        claim.record_run()
        assert told() == {("failed", False)}
        claim.observers.on(BatchStarted(group=GROUP, batch=7, ranges=RANGES))  # the query was started again
        claim.record_run()
        assert told() == {(None, True)}

    @pytest.mark.behaviour("OPS-11")
    def test_a_run_that_was_fenced_says_so_once_it_knows(self, claim: Claim) -> None:
        second = self.store.claim(GROUP, self.broker)
        with pytest.raises(StaleClaim):
            self.give(claim, {P0: OffsetRange(0, 4)})
        claim.close()

        first, run = self.store.runs(GROUP)
        assert (first.state, first.ending, first.next_at) == ("fenced", "fenced", run.started_at)
        assert (run.state, run.token) == ("live", second.token)

    def test_a_run_is_written_by_its_own_claim_alone(self, claim: Claim) -> None:
        with transaction(self.store.database, name="test") as session:
            session.write_run(GROUP, replace(claim.token, claim_id=uuid4()), RunStatus(phase="batch"), "failed")
            session.write_run("other", claim.token, RunStatus(phase="batch"), "failed")

        assert (last(self.store).state, last(self.store).status.phase) == ("live", "starting")
        assert self.store.runs("other") == []

    def test_ages_go_on(self, claim: Claim) -> None:
        claim.close()  # its heartbeats would write, too
        write(self.store, claim, RunStatus(phase="batch", phase_age=600, last_batch_age=601.5, mirror_age=7, batch=4))

        status = last(self.store).status
        assert (status.phase, status.batch) == ("batch", 4)
        assert status.last_batch_age is not None
        assert status.mirror_age is not None
        assert 600 <= status.phase_age < 630
        assert 601.5 <= status.last_batch_age < 631.5
        assert 7 <= status.mirror_age < 37

    @pytest.mark.behaviour("OPS-11")
    def test_the_newest_runs_and_errors_are_kept(self) -> None:
        claims = [self.store.claim(GROUP, self.broker, mirror_every=None) for _ in range(4)]
        write(self.store, claims[-1], RunStatus(), *(JobError(source="retry", error_class=f"E{n}") for n in range(7)))
        other = self.store.claim("other", self.broker, mirror_every=None)
        with transaction(self.store.database, name="test") as session:
            session.trim_runs(GROUP, 3)

        assert [run.token for run in self.store.runs(GROUP)] == [one.token for one in claims[1:]]
        assert [one.error_class for one in self.store.errors(GROUP)] == ["E4", "E5", "E6"]
        assert [run.token for run in self.store.runs("other")] == [other.token]

    @pytest.mark.behaviour("OPS-5")
    def test_an_overview_tells_since_when_a_batch_has_been_in_flight(self) -> None:
        def batches() -> Mapping[str, datetime | None]:
            return read(self.store.database, lambda session: read_overview(people(session), None)).batches

        first = self.store.claim(GROUP, self.broker, mirror_every=None)
        assert batches() == {GROUP: None}
        first.close()
        assert batches() == {}
        second = self.store.claim(GROUP, self.broker, mirror_every=None)
        second.observers.on(BatchStarted(group=GROUP, batch=7, ranges=RANGES))  # what a heartbeat would write, too
        write(self.store, second, RunStatus(phase="batch"))
        since = batches()[GROUP]
        assert since is not None
        assert abs(datetime.now(UTC) - since) < timedelta(seconds=60)
        self.store.reset(GROUP, {P0: 3}, reason="ticket 17")
        assert batches() == {}

    @pytest.mark.behaviour("OPS-5")
    def test_an_overview_has_the_run_of_the_last_claim_also_when_it_has_ended(self) -> None:
        def runs() -> Mapping[str, LastRun]:
            return read(self.store.database, lambda session: read_overview(people(session), None)).runs

        self.store.claim(GROUP, self.broker, mirror_every=None)
        claim = self.store.claim(GROUP, self.broker, mirror_every=None)
        self.store.claim("other", self.broker, mirror_every=None)
        assert runs() == dict.fromkeys((GROUP, "other"), LastRun(None, None, {}, None))
        claim.close()
        write(self.store, claim, RunStatus(counters={"written": 3, "letters": 1}, memory=2**40))
        assert runs()[GROUP] == LastRun(None, None, {"written": 3, "letters": 1}, 2**40)
        with transaction(self.store.database, name="test") as session:
            session.write_run(GROUP, claim.token, RunStatus(), "failed")
        assert runs()[GROUP] == LastRun(None, "failed", {}, None)
        self.store.reset(GROUP, {P0: 3}, reason="ticket 17")
        assert list(runs()) == ["other"]

    @pytest.mark.behaviour("DLQ-19")
    @pytest.mark.parametrize("replays", [None, False, True])
    def test_whether_a_job_replays_letters_is_known_of_the_last_run(self, *, replays: bool | None) -> None:
        self.store.claim(GROUP, self.broker, mirror_every=None)
        claim = self.store.claim(GROUP, self.broker, mirror_every=None)
        write(self.store, claim, RunStatus(counters={"letters": 1}, replays_letters=replays))
        status = last(self.store).status
        assert (status.replays_letters, status.counters) == (replays, {"letters": 1})
        assert self.store.group_state(GROUP).replays_letters is None, "nothing is requested"
        with self.store.transaction(claim) as tx:
            remaining = {P0: tx.lock({P0: OffsetRange(0, 4)})[P0].remaining}
            payload = Payload(None, b"a value", None, None, None)
            tx.write_letters([NewLetter(P0, 2, "refused", LetterError("E", "refused"), 1, None, payload)])
            tx.advance(remaining)
        self.store.request_replay(GROUP, LetterKey(P0, 2), reason="ticket 17")
        assert self.store.group_state(GROUP).replays_letters is replays

        self.store.reset(GROUP, {P0: 4}, reason="ticket 17")
        assert self.store.group_state(GROUP).replays_letters is None, "who has the group now is no job"
        self.store.claim(GROUP, self.broker, mirror_every=None)
        assert self.store.group_state(GROUP).replays_letters is None, "the new job has made no sink yet"

    def test_what_is_read_can_be_limited(self) -> None:
        claims = [self.store.claim(GROUP, self.broker, mirror_every=None) for _ in range(3)]
        write(
            self.store,
            claims[-1],
            RunStatus(),
            JobError(source="batch", error_class="E1"),
            JobError(source="retry", error_class="E2"),
            JobError(source="batch", error_class="E3"),
        )

        assert [run.token for run in self.store.runs(GROUP, limit=2)] == [one.token for one in claims[1:]]
        assert self.store.runs(GROUP, limit=2)[0].next_at is not None
        assert [one.error_class for one in self.store.errors(GROUP, limit=2)] == ["E2", "E3"]
        assert [one.error_class for one in self.store.errors(GROUP, sources=["batch"])] == ["E1", "E3"]
        assert self.store.errors(GROUP, since=datetime.now(UTC) + timedelta(minutes=5)) == []
        assert len(self.store.errors(GROUP, since=datetime.now(UTC) - timedelta(minutes=5))) == 3
        with pytest.raises(ConfigurationError, match="no such sources"):
            self.store.errors(GROUP, sources=["batches"])  # pyright: ignore[reportArgumentType]
        with pytest.raises(ConfigurationError, match="1 or more"):
            self.store.runs(GROUP, limit=0)

    @pytest.mark.behaviour("OPS-11")
    @pytest.mark.parametrize("of_store", [False, True])
    def test_an_error_that_no_batch_has_met_ends_the_run_as_failed(self, *, of_store: bool) -> None:
        claim = self.store.claim(GROUP, self.broker, mirror_every=None)
        error = ValueError("of a row: 4711")
        if of_store:
            claim.end_with(error)  # as the store does when an error leaves its block
            claim.close()
        else:
            with pytest.raises(ValueError, match="4711"), claim:
                raise error

        assert last(self.store).state == "failed"
        [found] = self.store.errors(GROUP)
        assert (found.source, found.error_class, found.text) == ("job", "ValueError", None)

    @pytest.mark.parametrize("end", [KeyboardInterrupt(), SystemExit(0), SystemExit()], ids=repr)
    def test_an_interrupted_job_has_not_failed(self, claim: Claim, end: BaseException) -> None:
        with pytest.raises(type(end)), claim:
            raise end

        assert last(self.store).state == "ended"

    @pytest.mark.behaviour("OPS-11")
    def test_a_job_that_ends_with_an_exit_code_of_its_own_has_failed_with_what_it_was_for(self, claim: Claim) -> None:
        def work() -> None:
            try:
                raise ValueError  # noqa: TRY301 - what awaitTermination() raises
            except ValueError:
                sys.exit(5)

        with pytest.raises(SystemExit), claim:
            work()

        assert last(self.store).state == "failed"
        assert [one.error_class for one in self.store.errors(GROUP)] == ["ValueError"]

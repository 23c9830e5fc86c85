"""When a job looks for letters to be replayed, and what an error there does to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import pytest

from offsetstore import Append, Claim, DeadLetters, OffsetStore, TransactionalSink
from offsetstore.errors import CommitUnknown, LockTimeout, ProtocolMisuse, StaleClaim
from offsetstore.processing import put_back as module
from offsetstore.processing.put_back import ReplayRequests
from offsetstore.processing.unit import PlanOutdated
from offsetstore.testing import InMemoryOffsetStore


class Replays:
    """Stands where the sink's `PutBack` would: calls ``act`` with the sink's check."""

    def __init__(self) -> None:
        self.act: Callable[[Callable[[], None]], object] = lambda _: None
        self.runs = 0

    def __call__(self, *_: object) -> Replays:
        return self

    def run(self, check: Callable[[], None], *, seconds: float = 0) -> int:
        self.runs += 1
        self.act(check)
        return int(seconds)


@pytest.fixture
def claim() -> Iterator[Claim]:
    with InMemoryOffsetStore() as store, store.claim("billing", topics=["payments"]) as made:
        yield made


@pytest.fixture
def replays(monkeypatch: pytest.MonkeyPatch) -> Replays:
    made = Replays()
    monkeypatch.setattr(module, "PutBack", made)
    return made


@pytest.fixture
def requests(claim: Claim, replays: Replays) -> ReplayRequests:
    """As they are after a job's first batch."""
    made, compute = ReplayRequests(claim, DeadLetters()), object()
    made.compute = cast("Any", compute)
    return made


@pytest.mark.behaviour("DLQ-19")
@pytest.mark.parametrize("settings", [None, DeadLetters()])
def test_a_sink_tells_the_run_s_record_whether_it_looks_for_requests(
    offsetstore_database: str, settings: DeadLetters | None
) -> None:
    with OffsetStore.connect(offsetstore_database) as store:
        claim = store.claim("billing", topics=["payments"])
        TransactionalSink(claim, lambda batch: batch, into=Append("events"), dead_letters=settings)
        claim.close()
        assert store.runs("billing")[-1].status.replays_letters is (settings is not None)


def look(requests: ReplayRequests, check: Callable[[], None] = lambda: None) -> None:
    requests._next_look = 0
    requests.look(check)


@pytest.mark.behaviour("DLQ-7")
@pytest.mark.parametrize("error", [LockTimeout("no lock"), CommitUnknown("the answer was lost"), ValueError("secret")])
def test_a_replay_that_cant_be_done_now_does_not_end_the_job(
    requests: ReplayRequests, replays: Replays, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    replays.act = Mock(side_effect=error)
    look(requests)
    assert replays.runs == 1
    assert len(caplog.records) == 1
    assert "secret" not in caplog.text

    requests.look(lambda: None)
    assert replays.runs == 1, "it is not time to look again"


@pytest.mark.behaviour("DLQ-7", "HAND-7")
def test_replays_that_fail_each_time_are_tried_less_and_less_often(
    requests: ReplayRequests, replays: Replays, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: 1000.0))

    def pause() -> float:
        look(requests)
        return requests._next_look - 1000.0

    replays.act = Mock(side_effect=ValueError("a service is down"))
    pauses = [pause() for _ in range(9)]
    assert pauses == [10, 20, 40, 80, 160, 300, 300, 300, 300]
    requests._failed_in_a_row = 5_000  # half a week
    assert pause() == 300
    replays.act = lambda _: None
    assert pause() == 5


def test_a_claim_that_was_taken_over_and_a_stop_end_it(requests: ReplayRequests, replays: Replays) -> None:
    replays.act = Mock(side_effect=StaleClaim("taken over"))
    with pytest.raises(StaleClaim):
        look(requests)

    replays.act = Mock(side_effect=ValueError("Spark was interrupted"))
    with pytest.raises(InterruptedError):
        look(requests, Mock(side_effect=InterruptedError))


@pytest.mark.behaviour("DLQ-7")
def test_an_idle_job_replays_while_its_query_runs_and_its_claim_is_open(
    requests: ReplayRequests, replays: Replays, claim: Claim
) -> None:
    running = [True]
    outdated: list[str] = []

    def act(check: Callable[[], None]) -> None:
        check()
        running[0] = False
        with pytest.raises(PlanOutdated):
            check()
        running[0] = True
        claim.close()
        with pytest.raises(PlanOutdated):
            check()
        outdated.append("twice")

    replays.act = act
    requests.look_while_idle(lambda: running[0])
    assert outdated == ["twice"]


@pytest.mark.behaviour("DLQ-7")
def test_a_drain_leaves_nothing_behind_that_replays_later(
    requests: ReplayRequests, replays: Replays, claim: Claim
) -> None:
    """Its Spark may be stopped while the claim is still open."""
    compute: Any = object()
    requests.compute = None
    requests.drain(compute)
    assert replays.runs == 1
    look(requests)
    requests.look_while_idle(lambda: True)
    assert replays.runs == 1

    def closed(check: Callable[[], None]) -> None:
        claim.close()
        check()

    replays.act = closed
    with pytest.raises(ProtocolMisuse, match="closed"):
        requests.drain(compute)

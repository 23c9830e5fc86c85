"""How a job waits while its group is paused; the store is in memory, and each sleep does what the test wants."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from unittest.mock import Mock

import pytest

from offsetstore import Claim, OffsetRange, TopicPartition
from offsetstore.errors import LockTimeout, StoreUnavailable
from offsetstore.processing.plan import DeliveryPlan, when_not_paused
from offsetstore.protocol.events import PauseChanged
from offsetstore.testing import InMemoryOffsetStore
from offsetstore.testing.memory import MemoryDatabase
from tests.support.recorder import Recorder

GROUP = "billing"
RANGES = {TopicPartition("payments", 0): OffsetRange(0, 10)}
REASON = "ticket 17"
HOUR = timedelta(hours=1)


class Now:
    """The database's clock: time passes when a test says so."""

    def __init__(self) -> None:
        self.time = datetime.now(UTC)

    def __call__(self) -> datetime:
        return self.time

    def pass_hour(self) -> None:
        self.time += HOUR


@pytest.fixture
def now() -> Now:
    return Now()


@pytest.fixture
def store(recorder: Recorder, now: Now) -> Iterator[InMemoryOffsetStore]:
    with InMemoryOffsetStore(MemoryDatabase(now), observers=[recorder]) as made:
        yield made


@pytest.fixture
def claim(store: InMemoryOffsetStore) -> Claim:
    """The job of a group that is paused."""
    claim = store.claim(GROUP, topics=["payments"])
    store.pause(GROUP, reason=REASON)
    return claim


def process(claim: Claim, *in_each_sleep: Callable[[], object]) -> int:
    """Plan and write a batch, as the sink does; return how often it slept."""
    left = list(in_each_sleep)

    def work() -> None:
        plan = DeliveryPlan.of(claim, RANGES)
        claim.run(lambda tx: tx.advance({tp: one.remaining for tp, one in tx.lock(RANGES).items()}))
        assert plan.remaining() == RANGES

    def sleep(_: float) -> None:
        left.pop(0)()

    when_not_paused(claim, work, sleep)
    return len(in_each_sleep) - len(left)


def nothing() -> None:
    pass


def test_a_batch_is_planned_again_when_the_group_is_resumed(
    store: InMemoryOffsetStore, claim: Claim, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="offsetstore"):
        slept = process(claim, nothing, nothing, lambda: store.resume(GROUP, reason="done"), nothing)
    assert slept == 3
    assert [row.next_offset for row in store.offsets(GROUP).values()] == [10]
    first, second = caplog.messages
    assert first.startswith(f"group '{GROUP}' is paused since ")
    assert first.endswith(f": {REASON}; the job waits")
    assert second == f"group '{GROUP}' is no longer paused; the job goes on"


@pytest.mark.behaviour("OPS-2")
@pytest.mark.parametrize("is_waiting", [True, False])
def test_a_pause_that_ends_by_itself_leaves_a_line_in_the_history(
    store: InMemoryOffsetStore, claim: Claim, now: Now, *, is_waiting: bool
) -> None:
    """Whether the job has waited for its end, or had no records meanwhile."""
    pause = store.pause(GROUP, until=now() + HOUR, reason="a deploy").after
    if not is_waiting:
        now.pass_hour()
    assert process(claim, *[now.pass_hour] * is_waiting) == is_waiting
    lines = [line for line in store.history(GROUP) if line.event == "resume"]
    assert [(line.actor, line.reason, line.token) for line in lines] == [
        (claim.owner, f"ended by itself: {pause}", claim.token)
    ]
    assert store.owner(GROUP).ended is None  # type: ignore[union-attr]


def test_a_pause_whose_end_cant_be_recorded_holds_up_no_batch(
    store: InMemoryOffsetStore,
    claim: Claim,
    now: Now,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    store.pause(GROUP, until=now() + HOUR, reason="a deploy")
    now.pass_hour()
    locked = Mock(side_effect=LockTimeout("the group's row is locked"))
    monkeypatch.setattr("offsetstore.processing.plan.end_pause", locked)
    process(claim)
    assert [row.next_offset for row in store.offsets(GROUP).values()] == [10]
    assert "could not record that the pause of group 'billing' has ended: the group's row is locked." in caplog.text


def test_a_group_that_is_paused_again_in_between_is_waited_for_again(
    store: InMemoryOffsetStore, claim: Claim, monkeypatch: pytest.MonkeyPatch
) -> None:
    def resume() -> None:
        store.resume(GROUP, reason="done")

    def resumed_and_paused_again(event: object) -> None:
        if isinstance(event, PauseChanged) and event.pause is None and len(store.history(GROUP)) == 3:
            store.pause(GROUP, reason="again")

    monkeypatch.setattr(claim.observers, "on", resumed_and_paused_again)
    assert process(claim, resume, nothing, resume) == 3
    assert [line.event for line in store.history(GROUP)] == ["claim", "pause", "resume", "pause", "resume", "adopt"]


def test_a_database_that_is_away_does_not_end_the_wait(
    store: InMemoryOffsetStore, claim: Claim, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = Mock(side_effect=StoreUnavailable("the server is shut down"))

    def back() -> None:
        monkeypatch.undo()
        store.resume(GROUP, reason="done")

    assert process(claim, lambda: monkeypatch.setattr(store.memory, "begin", away), nothing, back) == 3

"""The one retry loop: which attempts count, and how long an outage is waited for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from offsetstore import Retries
from offsetstore.errors import ConnectionLost, LockTimeout, StaleClaim, StoreUnavailable
from offsetstore.protocol import retries as module
from offsetstore.protocol.retries import with_retries

if TYPE_CHECKING:
    from collections.abc import Callable

    from offsetstore.errors import OffsetStoreError


class Clock:
    """Time passes only in `sleep`."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


def failing(*errors: OffsetStoreError) -> tuple[Callable[[int], int], list[int]]:
    """Work that fails with these, one after the other, and then succeeds."""
    seen: list[int] = []

    def work(attempt: int) -> int:
        seen.append(attempt)
        if len(seen) <= len(errors):
            raise errors[len(seen) - 1]
        return attempt

    return work, seen


def run(work: Callable[[int], int], retries: Retries) -> int:
    return with_retries(retries, work, on_retry=lambda _attempt, _error, _wait: None)


def test_so_many_attempts_are_made_in_all(clock: Clock) -> None:
    work, seen = failing(*[StoreUnavailable("away")] * 9)
    with pytest.raises(StoreUnavailable):
        run(work, Retries(attempts=3))
    assert seen == [1, 2, 3]
    assert clock.now < 1001


@pytest.mark.behaviour("OPS-4")
def test_an_outage_is_waited_for_however_many_attempts_that_takes(clock: Clock) -> None:
    work, seen = failing(*[StoreUnavailable("away")] * 50, *[ConnectionLost("broke")] * 50)
    assert run(work, Retries(attempts=3, longest=5, outage_timeout=600)) == 101
    assert len(seen) == 101
    assert 250 < clock.now - 1000 < 500


@pytest.mark.behaviour("OPS-4")
def test_an_outage_that_lasts_ends_the_job_with_its_error(clock: Clock) -> None:
    work, _seen = failing(*[StoreUnavailable("away")] * 1000)
    with pytest.raises(StoreUnavailable):
        run(work, Retries(attempts=3, longest=5, outage_timeout=600))
    assert 600 <= clock.now - 1000 < 620


def test_other_errors_count_also_after_an_outage_and_a_second_outage_has_its_own_time(clock: Clock) -> None:
    outage = [StoreUnavailable("away")] * 40
    work, seen = failing(*outage, LockTimeout("held"), *outage, LockTimeout("held"), LockTimeout("held"))
    with pytest.raises(LockTimeout):
        run(work, Retries(attempts=3, longest=5, outage_timeout=300))
    assert len(seen) == 83
    assert clock.now - 1000 > 200


def test_what_does_not_pass_is_not_repeated(clock: Clock) -> None:
    work, seen = failing(StaleClaim("taken over"))
    with pytest.raises(StaleClaim):
        run(work, Retries(outage_timeout=600))
    assert seen == [1]

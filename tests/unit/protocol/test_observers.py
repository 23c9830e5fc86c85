"""What observers are told, and that they can't harm a job. No database."""

from __future__ import annotations

import pytest

from offsetstore import OffsetRange, Outcome, Retries, TopicPartition, Transaction
from offsetstore.errors import FunctionFailed, LockTimeout, RowsRefused
from offsetstore.protocol.events import BatchEnded, ClaimTaken, Event, Retried
from offsetstore.protocol.observers import LogObserver
from offsetstore.testing import InMemoryOffsetStore
from tests.support.recorder import Recorder

P0 = TopicPartition("payments", 0)


class Raising:
    """Fails on everything."""

    def on(self, event: Event) -> None:
        raise ZeroDivisionError(str(event))


@pytest.mark.behaviour("OPS-15")
def test_an_observer_that_raises_is_logged_once_and_harms_nothing(caplog: pytest.LogCaptureFixture) -> None:
    seen = Recorder()
    with InMemoryOffsetStore(observers=[Raising(), seen]) as store:
        store.claim("billing", topics=["payments"])
        claim = store.claim("billing", topics=["payments"])
        with claim.transaction() as tx:
            tx.lock({P0: OffsetRange(0, 2)})
            tx.advance({P0: OffsetRange(0, 2)})
        assert store.offsets("billing")[P0].next_offset == 2
    assert [event.token.epoch for event in seen.of(ClaimTaken)] == [1, 2]
    assert caplog.text.count("the observer Raising failed on ClaimTaken with ZeroDivisionError") == 1


@pytest.mark.behaviour("DX-1")
def test_a_failed_batch_is_logged_in_one_line_and_its_next_step_is_left_to_the_error_itself(
    caplog: pytest.LogCaptureFixture,
) -> None:
    refused = RowsRefused("the table refused a row", topic_partition=P0, found="record 7", next_step="Correct it.")
    raised = FunctionFailed("transform raised TypeError at app.py:7", text="a record's value")  # told before
    for error in (refused, ValueError("a record's value"), raised):
        LogObserver().on(BatchEnded(group="billing", batch=3, ranges={}, outcome="failed", error=error))
    assert caplog.messages == [
        "batch 3 failed: RowsRefused: payments-0: the table refused a row",
        "batch 3 failed: ValueError",
        "batch 3 failed: FunctionFailed",
    ]


@pytest.mark.behaviour("OPS-15")
def test_each_retry_is_told_with_its_error() -> None:
    seen = Recorder()
    with InMemoryOffsetStore(observers=[seen], retries=Retries(attempts=3, shortest=0.001)) as store:
        claim = store.claim("billing", topics=["payments"])
        attempts: list[int] = []

        def work(tx: Transaction) -> Outcome:
            outcome = tx.lock({P0: OffsetRange(0, 0)})[P0].outcome
            attempts.append(1)
            if len(attempts) < 3:
                raise LockTimeout("not now")
            return outcome

        assert claim.run(work) is Outcome.SKIP
    retried = seen.of(Retried)
    assert [(event.group, event.attempt, type(event.error)) for event in retried] == [
        ("billing", 1, LockTimeout),
        ("billing", 2, LockTimeout),
    ]
    assert all(event.wait > 0 for event in retried)

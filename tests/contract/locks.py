"""Locks: their order, their timeout, and what is repeated. See `tests.contract.suite`."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from offsetstore.errors import ConfigurationError, LockTimeout
from offsetstore.offsets import OffsetRange, TopicPartition
from offsetstore.store.claim import Claim
from offsetstore.store.transaction import Transaction
from tests.contract.parts import GROUP, P0, P1, P2, ContractParts, Stop, assert_untouched, held


class LockContract(ContractParts):
    """Locks: their order, their timeout, and what is repeated."""

    @pytest.mark.behaviour("TX-8")
    def test_two_jobs_that_ask_in_opposite_orders_never_deadlock(self, claim: Claim) -> None:
        rounds = 30

        def job(order: list[TopicPartition]) -> None:
            for number in range(rounds):
                self.give(claim, {tp: OffsetRange(number, number + 1) for tp in order})

        with ThreadPoolExecutor(2) as pool:
            for done in [pool.submit(job, [P0, P1, P2]), pool.submit(job, [P2, P1, P0])]:
                done.result(60)

        assert self.read() == sorted(list(range(rounds)) * 3)

    @pytest.mark.behaviour("TX-8")
    def test_the_plan_is_in_order_of_topic_and_partition(self) -> None:
        first = TopicPartition("Zebra", 10)
        claim = self.store.claim(GROUP, topics=[P0.topic, first.topic])
        with self.store.transaction(claim) as tx:
            plan = tx.lock(dict.fromkeys([P2, P0, first, P1], OffsetRange(0, 1)))
            tx.advance({tp: decision.remaining for tp, decision in plan.items()})

        assert list(plan) == [first, P0, P1, P2]
        assert list(self.store.offsets(GROUP)) == [first, P0, P1, P2]

    @pytest.mark.behaviour("TX-10")
    def test_a_topic_that_the_claim_does_not_have_gets_no_row(self, claim: Claim) -> None:
        with (
            pytest.raises(ConfigurationError, match="topic that the claim does not have"),
            self.store.transaction(claim) as tx,
        ):
            tx.lock({TopicPartition("paymnets", 0): OffsetRange(0, 1)})

        assert {tp.topic for tp in self.store.offsets(GROUP)} == {P0.topic}

    @pytest.mark.behaviour("TX-9")
    def test_a_row_that_is_locked_elsewhere_ends_in_lock_timeout(self, claim: Claim) -> None:
        with (
            held(self.store, claim, P1),
            pytest.raises(LockTimeout) as caught,
            self.store.transaction(claim, lock_timeout=0.2) as tx,
        ):
            tx.lock({P0: OffsetRange(0, 1), P1: OffsetRange(0, 1)})

        assert caught.value.topic_partition == P1
        assert claim.name in str(caught.value.found)
        assert_untouched(self.store, self.read)

    @pytest.mark.behaviour("TX-9")
    def test_run_gives_up_on_a_lock_after_its_attempts(self, claim: Claim, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(self.store, "retries", replace(self.store.retries, attempts=3, shortest=0.01, longest=0.02))
        attempts: list[int] = []

        def work(tx: Transaction) -> None:
            attempts.append(1)
            tx.lock({P1: OffsetRange(0, 1)})

        with held(self.store, claim, P1), pytest.raises(LockTimeout) as caught:
            self.store.run(claim, work, lock_timeout=0.1)

        assert len(attempts) == 3
        assert caught.value.topic_partition == P1
        assert claim.name in str(caught.value.found)

    @pytest.mark.behaviour("TX-12")
    def test_run_repeats_all_of_the_function_when_a_lock_is_had_later(self, claim: Claim) -> None:
        blocker = held(self.store, claim, P0)
        blocker.__enter__()
        attempts: list[int] = []

        def work(tx: Transaction) -> str:
            attempts.append(1)
            if len(attempts) > 1:
                blocker.__exit__(None, None, None)
            plan = tx.lock({P0: OffsetRange(0, 2)})
            self.write(tx, [0, 1])
            tx.advance({P0: plan[P0].remaining})
            return "committed"

        assert self.store.run(claim, work, lock_timeout=0.1) == "committed"
        assert len(attempts) == 2
        assert self.read() == [0, 1]

    @pytest.mark.behaviour("TX-12")
    def test_run_does_not_repeat_what_user_code_raises(self, claim: Claim) -> None:
        attempts: list[int] = []

        def work(tx: Transaction) -> None:
            tx.lock({P0: OffsetRange(0, 1)})
            attempts.append(1)
            raise Stop

        with pytest.raises(Stop):
            self.store.run(claim, work)

        assert len(attempts) == 1
        assert_untouched(self.store, self.read)

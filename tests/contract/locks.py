"""Locks: their order, their timeout, and what is repeated. See `tests.contract.suite`."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace

import pytest

from offsetstore.errors import ConfigurationError, LockTimeout
from offsetstore.offsets import OffsetRange, TopicPartition
from offsetstore.store.claim import Claim
from offsetstore.store.transaction import Transaction
from tests.contract.parts import GROUP, P0, P1, P2, ContractParts, Stop

ONE = OffsetRange(0, 1)


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

    @pytest.mark.behaviour("TX-8", "TX-10")
    def test_the_plan_is_in_order_of_topic_and_partition_and_of_the_claim_s_topics_alone(self) -> None:
        first = TopicPartition("Zebra", 10)
        claim = self.store.claim(GROUP, topics=[P0.topic, first.topic])
        plan = self.give(claim, dict.fromkeys([P2, P0, first, P1], ONE))
        assert list(plan) == [first, P0, P1, P2]

        with (
            pytest.raises(ConfigurationError, match="topic that the claim does not have"),
            self.store.transaction(claim) as tx,
        ):
            tx.lock({TopicPartition("paymnets", 0): ONE})
        assert list(self.stored()) == [first, P0, P1, P2]

    @pytest.mark.behaviour("TX-9")
    def test_a_row_that_is_locked_elsewhere_ends_in_lock_timeout(
        self, claim: Claim, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(self.store, "retries", replace(self.store.retries, attempts=3, shortest=0.01, longest=0.02))
        attempts: list[int] = []

        def work(tx: Transaction) -> None:
            attempts.append(1)
            tx.lock({P0: ONE, P1: ONE})

        with self.held(claim, P1), pytest.raises(LockTimeout) as caught:
            self.store.run(claim, work, lock_timeout=0.1)

        assert len(attempts) == 3
        assert caught.value.topic_partition == P1
        assert claim.name in str(caught.value.found)
        self.assert_untouched()

    @pytest.mark.behaviour("TX-12")
    def test_run_repeats_all_of_the_function_when_a_lock_is_had_later_but_not_what_user_code_raises(
        self, claim: Claim
    ) -> None:
        attempts: list[int] = []

        def work(tx: Transaction) -> str:
            attempts.append(1)
            if len(attempts) > 1:
                blocker.close()
            tx.lock({P0: OffsetRange(0, 2)})
            self.write(tx, [0, 1])
            tx.advance(tx.ranges)
            return "committed"

        def stop(tx: Transaction) -> None:
            attempts.append(1)
            tx.lock({P0: OffsetRange(2, 3)})
            raise Stop

        with ExitStack() as blocker:
            blocker.enter_context(self.held(claim, P0))
            assert self.store.run(claim, work, lock_timeout=0.1) == "committed"
        assert len(attempts) == 2
        with pytest.raises(Stop):
            self.store.run(claim, stop)
        assert len(attempts) == 3
        assert self.read() == [0, 1]

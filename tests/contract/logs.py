"""A log that lost records is not gone on in. See `tests.contract.suite`."""
# ruff: noqa: ARG002 - these are tests: the name is the docstring, fixtures and numbers are the point

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

import pytest

from offsetstore.errors import (
    BrokerError,
    BrokerRefused,
    BrokerUnavailable,
    LogTruncated,
    OffsetOutOfRange,
    TopicRecreated,
    TransactionLost,
)
from offsetstore.offset_store import OffsetStore, resolve_starting_offsets
from offsetstore.offsets import EpochPair, OffsetRange, StoredOffset, TopicLog, TopicPartition, Watermarks
from offsetstore.protocol.policy import StartPolicy
from offsetstore.protocol.retries import Retries
from offsetstore.store import acquire
from offsetstore.store import mirror as mirrors
from offsetstore.store.claim import Claim
from offsetstore.store.sessions import read as reading
from offsetstore.store.sessions import transaction
from offsetstore.testing.broker import StaticBroker
from tests.contract.parts import GROUP, P0, P1, P2, WAIT, ContractParts, Give, held

P3 = TopicPartition("payments", 3)
REASON = "ticket 17"
ANYTHING = StartPolicy(on_data_loss="earliest", on_recreated="restart", prefer="stored")


def row_of(store: OffsetStore, tp: TopicPartition = P0, group: str = GROUP) -> StoredOffset:
    """The partition's row."""
    return store.offsets(group)[tp]


class LogContract(ContractParts):
    """Evidence of loss, and leader epochs."""

    @pytest.fixture(autouse=True)
    def at_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(acquire, "_RETRIES", Retries(attempts=3, shortest=0.0, longest=0.0))
        monkeypatch.setattr(mirrors, "_LOOK_AGAIN_SECONDS", 0.0)
        monkeypatch.setattr(mirrors, "LAST_COMMIT", float(WAIT))

    @pytest.fixture
    def stopped(self, store: OffsetStore, broker: StaticBroker, give: Give) -> Claim:
        """A job that has stopped cleanly, with 40, 30 and 0 stored."""
        with store.claim(GROUP, broker, mirror_every=600) as claim:
            give(claim, {P0: OffsetRange(0, 40), P1: OffsetRange(0, 30)})
        return claim

    # -- the end of the log

    @pytest.mark.behaviour("START-25")
    def test_a_refused_start_is_remembered_when_the_log_has_grown_until_a_reset(
        self, store: OffsetStore, broker: StaticBroker, stopped: Claim
    ) -> None:
        broker.set_log(P0, 0, 35)
        with pytest.raises(OffsetOutOfRange, match=r"payments-0.*end 35"):
            store.claim(GROUP, broker)
        broker.set_log(P0, 0, 100)

        with pytest.raises(LogTruncated, match="the log ended at 35, below the stored offset 40") as refused:
            store.claim(GROUP, broker, policy=ANYTHING)

        assert refused.value.topic_partition == P0
        (line,) = store.history(GROUP, events=["suspect"])
        assert (line.topic_partition, line.from_offset, line.to_offset) == (P0, 40, 40)
        store.reset(GROUP, {P1: 30}, reason=REASON)
        with pytest.raises(LogTruncated):
            store.claim(GROUP, broker)
        store.reset(GROUP, {P0: 35}, reason=REASON)
        claim = store.claim(GROUP, broker)
        assert claim.starting is not None
        assert (claim.starting.offsets[P0], row_of(store).suspect) == (35, None)

    @pytest.mark.behaviour("START-25")
    def test_evidence_fences_nobody_and_changes_nothing_else(
        self, store: OffsetStore, broker: StaticBroker, give: Give
    ) -> None:
        running = store.claim(GROUP, broker, mirror_every=None)
        give(running, {P0: OffsetRange(0, 40)})
        before = row_of(store)
        broker.set_log(P0, 0, 35)
        with pytest.raises(OffsetOutOfRange):
            store.claim(GROUP, broker)

        found = row_of(store)

        assert found.suspect is not None
        assert found.suspect.at is not None
        assert replace(found, suspect=None) == before
        give(running, {P0: OffsetRange(40, 50)})

    @pytest.mark.behaviour("START-25")
    def test_the_first_evidence_stays(self, store: OffsetStore, broker: StaticBroker, stopped: Claim) -> None:
        for end in (35, 30):
            broker.set_log(P0, 0, end)
            with pytest.raises(OffsetOutOfRange):
                store.claim(GROUP, broker)
        found = row_of(store).suspect
        assert found is not None
        assert found.what == "the log ended at 35, below the stored offset 40"
        assert len(store.history(GROUP, events=["suspect"])) == 1

    @pytest.mark.behaviour("START-25", "START-10")
    def test_what_only_one_attempt_has_seen_is_no_evidence(
        self, store: OffsetStore, broker: StaticBroker, stopped: Claim
    ) -> None:
        short = replace(broker.current, topics={"payments": replace(broker.current.topics["payments"], partitions={
            number: Watermarks(0, 35) for number in range(3)
        })})  # fmt: skip
        broker.script = [short, short]
        store.claim(GROUP, broker).close()
        broker.script = [TransactionLost("the connection broke"), TransactionLost("the connection broke"), short]
        with pytest.raises(OffsetOutOfRange):
            store.claim(GROUP, broker)
        assert row_of(store).suspect is None

    @pytest.mark.behaviour("START-25")
    def test_an_attempt_that_breaks_before_it_looks_refutes_nothing(
        self, store: OffsetStore, broker: StaticBroker, stopped: Claim
    ) -> None:
        broker.set_log(P0, 0, 35)
        broker.script = [None, TransactionLost("the connection broke")]
        with pytest.raises(OffsetOutOfRange):
            store.claim(GROUP, broker)
        assert row_of(store).suspect is not None

    @pytest.mark.behaviour("START-25")
    def test_an_offset_that_was_set_too_high_and_never_read_from_is_no_lost_record(
        self, store: OffsetStore, broker: StaticBroker, stopped: Claim, give: Give
    ) -> None:
        store.reset(GROUP, {P0: 400}, reason=REASON)
        for _ in range(2):
            with pytest.raises(OffsetOutOfRange, match=r"payments-0.*end 100"):
                store.claim(GROUP, broker)
        assert row_of(store).suspect is None

        broker.set_log(P0, 0, 500)
        running = store.claim(GROUP, broker, mirror_every=None)
        give(running, {P0: OffsetRange(400, 410)})
        assert row_of(store).pinned
        broker.set_log(P0, 0, 405)
        with pytest.raises(OffsetOutOfRange):
            store.claim(GROUP, broker)
        assert row_of(store).suspect is not None

    @pytest.mark.behaviour("START-25")
    def test_an_offset_that_a_reset_found_in_the_log_is_evidence_when_the_log_ends_below_it(
        self, store: OffsetStore, broker: StaticBroker, stopped: Claim
    ) -> None:
        store.reset(GROUP, {P0: 90}, reason=REASON, broker=broker)
        _expect_remembered(store, broker, end=60, stored=90)

    @pytest.mark.behaviour("START-25")
    def test_a_log_that_ends_below_what_was_read_is_evidence_wherever_a_reset_went_since(
        self, store: OffsetStore, broker: StaticBroker, stopped: Claim
    ) -> None:
        store.reset(GROUP, {P0: 41}, reason=REASON)
        _expect_remembered(store, broker, end=35, stored=41)

    @pytest.mark.behaviour("START-25")
    @pytest.mark.parametrize("to", [90, 100, 101])
    def test_what_was_read_before_a_reset_is_evidence_also_where_no_pair_shows_it(
        self, store: OffsetStore, broker: StaticBroker, give: Give, to: int
    ) -> None:
        with store.claim(GROUP, broker, mirror_every=None) as claim:
            give(claim, {P0: OffsetRange(0, 100)})
        store.reset(GROUP, {P0: to}, reason=REASON)
        _expect_remembered(store, broker, end=50, stored=to)

    @pytest.mark.behaviour("START-26")
    def test_a_place_at_which_the_log_can_t_be_asked_about_is_left_by_two_resets(
        self, store: OffsetStore, broker: StaticBroker, give: Give, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        find = broker.find_truncated

        def find_below(pairs: Mapping[TopicPartition, EpochPair]) -> Mapping[TopicPartition, int | BrokerError | None]:
            late = {tp: BrokerUnavailable("no answer") for tp, pair in pairs.items() if pair.offset == 100}
            return {**find(pairs), **late}

        with store.claim(GROUP, broker, mirror_every=600) as claim:
            give(claim, {P0: OffsetRange(0, 100)})
        monkeypatch.setattr(broker, "find_truncated", find_below)
        broker.change_leader(P0)
        broker.set_log(P0, 0, 300)
        for to in (100, 150):
            store.reset(GROUP, {P0: to}, reason=REASON, broker=broker)
            with pytest.raises(BrokerUnavailable, match="no answer"):
                store.claim(GROUP, broker)

        store.pause(GROUP, reason=REASON)
        store.reset(GROUP, {P0: 99}, reason=REASON)
        store.claim(GROUP, broker).close()
        store.reset(GROUP, {P0: 150}, reason=REASON)
        store.resume(GROUP, reason=REASON)
        with store.claim(GROUP, broker) as claim:
            give(claim, {P0: OffsetRange(150, 160)})

    @pytest.mark.behaviour("START-25")
    def test_an_offset_beyond_the_last_stable_one_is_refused_and_not_recorded(
        self, store: OffsetStore, broker: StaticBroker, stopped: Claim
    ) -> None:
        log = broker.current.topics["payments"]
        at_a_transaction = replace(log, partitions={**log.partitions, 0: Watermarks(0, 35, high=100)})
        whole = broker.current
        broker.current = replace(whole, topics={"payments": at_a_transaction})
        with pytest.raises(OffsetOutOfRange, match="end 35"):
            store.claim(GROUP, broker)
        broker.current = whole

        store.claim(GROUP, broker).close()

        assert row_of(store).suspect is None

    @pytest.mark.behaviour("START-25")
    def test_the_resolver_and_a_dry_run_record_nothing(
        self, store: OffsetStore, broker: StaticBroker, stopped: Claim
    ) -> None:
        broker.set_log(P0, 0, 35)
        with pytest.raises(OffsetOutOfRange):
            resolve_starting_offsets(broker, group=GROUP, store=store)
        store.reset(GROUP, "latest", partitions="all", broker=broker, reason=REASON, dry_run=True)
        assert row_of(store).suspect is None

    # -- a partition that was added while the job ran: its row has no topic id

    @pytest.fixture
    def extended(self, store: OffsetStore, broker: StaticBroker, give: Give) -> Claim:
        """A job that has stopped cleanly, with 40 stored of a partition that was added while it ran."""
        with store.claim(GROUP, broker, mirror_every=600) as claim:
            broker.set_log(P3, 0, 100)
            give(claim, {P3: OffsetRange(0, 40)})
        assert row_of(store, P3).topic_id is None
        return claim

    @pytest.mark.behaviour("START-26")
    def test_a_new_partition_that_was_truncated_and_has_regrown_is_refused(
        self, store: OffsetStore, broker: StaticBroker, extended: Claim
    ) -> None:
        broker.truncate(P3, 35, end=200)
        with pytest.raises(LogTruncated, match="payments-3"):
            store.claim(GROUP, broker, policy=ANYTHING)
        assert row_of(store, P3).suspect is not None

    @pytest.mark.behaviour("START-25", "START-8")
    def test_a_new_partition_that_is_too_short_is_not_taken_for_a_new_topic(
        self, store: OffsetStore, broker: StaticBroker, extended: Claim
    ) -> None:
        broker.set_log(P3, 0, 35)
        with pytest.raises(OffsetOutOfRange, match="the topic is the same"):
            store.claim(GROUP, broker, policy=ANYTHING)
        broker.set_log(P3, 0, 100)
        with pytest.raises(LogTruncated, match="the log ended at 35, below the stored offset 40"):
            store.claim(GROUP, broker, policy=ANYTHING)

    @pytest.mark.behaviour("START-26")
    def test_a_new_partition_that_is_truncated_while_the_job_runs_ends_its_next_batch(
        self, store: OffsetStore, broker: StaticBroker, give: Give, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(mirrors, "LOOK_SECONDS", 0.0)
        with store.claim(GROUP, broker, mirror_every=0.01) as claim:
            broker.set_log(P3, 0, 100)
            give(claim, {P3: OffsetRange(0, 40)})
            _wait_until(lambda: row_of(store, P3).pair == EpochPair(40, 0))
            broker.truncate(P3, 35, end=200)
            _wait_until(lambda: row_of(store, P3).suspect is not None)
            with pytest.raises(LogTruncated, match="payments-3"):
                give(claim, {P3: OffsetRange(40, 50)})

    # -- the leader epoch

    @pytest.mark.behaviour("START-26")
    def test_a_log_that_was_truncated_and_has_regrown_is_refused_until_a_reset(
        self, store: OffsetStore, broker: StaticBroker, stopped: Claim
    ) -> None:
        broker.truncate(P0, 35, end=200)

        with pytest.raises(LogTruncated, match="the log parts at offset 35, below the stored offset 40"):
            store.claim(GROUP, broker, policy=ANYTHING)

        assert row_of(store).token == stopped.token
        broker.change_leader(P0)  # also when its epoch has been forgotten by then
        with pytest.raises(LogTruncated, match="recorded on"):
            store.claim(GROUP, broker)
        store.reset(GROUP, {P0: 35}, reason=REASON)
        claim = store.claim(GROUP, broker)
        assert claim.starting is not None
        assert (claim.starting.offsets[P0], row_of(store).pair) == (35, EpochPair(35, 2))

    @pytest.mark.behaviour("START-26")
    @pytest.mark.parametrize("is_asked", [True, False])
    @pytest.mark.parametrize("to", [30, 41, 90])
    @pytest.mark.parametrize("is_truncated_first", [True, False])
    def test_a_reset_accepts_no_truncation_that_its_plan_does_not_show(
        self,
        store: OffsetStore,
        broker: StaticBroker,
        stopped: Claim,
        to: int,
        *,
        is_asked: bool,
        is_truncated_first: bool,
    ) -> None:
        if is_truncated_first:
            broker.truncate(P0, 20, end=150)
        done = store.reset(GROUP, {P0: to}, reason=REASON, from_offset=40, broker=broker if is_asked else None)
        assert done.losses == {}
        if not is_truncated_first:
            broker.truncate(P0, 20, end=150)
        with pytest.raises(LogTruncated, match="payments-0"):
            store.claim(GROUP, broker, policy=ANYTHING)

    @pytest.mark.behaviour("START-26")
    def test_a_reset_that_accepts_evidence_takes_the_log_as_it_found_it(
        self, store: OffsetStore, broker: StaticBroker, stopped: Claim
    ) -> None:
        broker.truncate(P0, 35, end=200)
        with pytest.raises(LogTruncated):
            store.claim(GROUP, broker)
        store.reset(GROUP, {P0: 35}, reason=REASON)
        assert row_of(store).pair is None
        store.reset(GROUP, {P0: 150}, reason=REASON, broker=broker)
        assert row_of(store).pair == EpochPair(150, 1)
        broker.truncate(P0, 100, end=300)
        with pytest.raises(LogTruncated, match="at offset 100, below the stored offset 150"):
            store.claim(GROUP, broker)

    @pytest.mark.behaviour("START-26")
    def test_a_change_of_leader_alone_is_none_and_only_its_partition_is_asked_about(
        self, store: OffsetStore, broker: StaticBroker, stopped: Claim
    ) -> None:
        broker.change_leader(P0)

        store.claim(GROUP, broker, mirror_every=None)
        assert broker.asked_epochs == [{P0: EpochPair(40, 0)}]
        store.claim(GROUP, broker, mirror_every=None)

        assert len(broker.asked_epochs) == 1
        assert [row_of(store, tp).pair for tp in (P0, P1)] == [EpochPair(40, 1), EpochPair(30, 0)]

    @pytest.mark.behaviour("START-26")
    def test_a_truncation_above_the_stored_offset_lost_nothing(
        self, store: OffsetStore, broker: StaticBroker, stopped: Claim
    ) -> None:
        broker.truncate(P0, 40, end=200)
        store.claim(GROUP, broker)

    @pytest.mark.behaviour("START-26")
    def test_a_truncation_above_where_a_reset_went_lost_nothing(
        self, store: OffsetStore, broker: StaticBroker, stopped: Claim
    ) -> None:
        store.reset(GROUP, {P0: 30}, reason=REASON)
        broker.truncate(P0, 35, end=200)
        store.claim(GROUP, broker)

    @pytest.mark.behaviour("START-26")
    def test_an_epoch_below_the_pair_s_is_a_truncated_log(
        self, store: OffsetStore, broker: StaticBroker, give: Give
    ) -> None:
        broker.epochs[P0] = 5
        with store.claim(GROUP, broker) as claim:
            give(claim, {P0: OffsetRange(0, 40)})
        broker.epochs[P0] = 4
        with pytest.raises(LogTruncated, match="leader epoch 4, and a later one, 5, when offset 40 was stored"):
            store.claim(GROUP, broker)
        assert row_of(store).suspect is not None

    @pytest.mark.behaviour("START-26")
    def test_a_pair_is_checked_before_it_is_replaced(
        self, store: OffsetStore, broker: StaticBroker, stopped: Claim
    ) -> None:
        """If the leader changes after the look that no lock waits for, it is for the mirror or the next claim."""
        broker.script = [None, lambda: broker.truncate(P0, 35, end=200)]
        store.claim(GROUP, broker, mirror_every=None)
        assert row_of(store).pair == EpochPair(40, 0)
        with pytest.raises(LogTruncated):
            store.claim(GROUP, broker)

    @pytest.mark.behaviour("START-26")
    def test_a_log_that_is_truncated_while_the_job_runs_ends_its_next_batch(
        self, store: OffsetStore, broker: StaticBroker, give: Give, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(mirrors, "LOOK_SECONDS", 0.0)
        with store.claim(GROUP, broker, mirror_every=0.01) as claim:
            give(claim, {P0: OffsetRange(0, 40)})
            _wait_until(lambda: row_of(store).pair == EpochPair(40, 0))
            broker.truncate(P0, 35, end=200)
            _wait_until(lambda: row_of(store).suspect is not None)

            with pytest.raises(LogTruncated, match="the log parts at offset 35"):
                give(claim, {P0: OffsetRange(40, 50)})

        assert row_of(store).next_offset == 40
        with pytest.raises(LogTruncated):
            store.claim(GROUP, broker)

    @pytest.mark.behaviour("START-26")
    def test_a_mirror_that_seldom_copies_looks_at_the_logs_as_often_as_any_other(
        self, store: OffsetStore, broker: StaticBroker, give: Give, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(mirrors, "LOOK_SECONDS", 0.0)
        monkeypatch.setattr(mirrors, "INTERVAL", 0.01)
        with store.claim(GROUP, broker, mirror_every=600) as claim:
            give(claim, {P0: OffsetRange(0, 40)})
            _wait_until(lambda: row_of(store).pair == EpochPair(40, 0))
            broker.truncate(P0, 35, end=200)
            _wait_until(lambda: row_of(store).suspect is not None)
            with pytest.raises(LogTruncated, match="the log parts at offset 35"):
                give(claim, {P0: OffsetRange(40, 50)})
            assert broker.commits == []

    @pytest.mark.behaviour("START-25")
    def test_a_job_that_ends_because_its_log_is_too_short_records_it(
        self, store: OffsetStore, broker: StaticBroker, give: Give
    ) -> None:
        with store.claim(GROUP, broker, mirror_every=600) as claim:
            give(claim, {P0: OffsetRange(0, 40)})
            broker.set_log(P0, 0, 35)
        broker.set_log(P0, 0, 100)
        with pytest.raises(LogTruncated, match="the log ended at 35"):
            store.claim(GROUP, broker)

    @pytest.mark.behaviour("START-25", "START-26")
    @pytest.mark.parametrize("is_short", [True, False])
    def test_a_running_job_goes_on_until_its_mirror_has_seen_for_a_while_what_may_pass(
        self, store: OffsetStore, broker: StaticBroker, give: Give, monkeypatch: pytest.MonkeyPatch, *, is_short: bool
    ) -> None:
        """A new leader may tell a low end, and an old one a low epoch, for seconds."""

        def lose(*, is_lost: bool) -> None:
            if is_short:
                broker.set_log(P0, 0, 35 if is_lost else 100)
            else:
                broker.epochs[P0] = 4 if is_lost else 5

        broker.epochs[P0] = 5
        monkeypatch.setattr(mirrors, "LOOK_SECONDS", 0.0)
        with store.claim(GROUP, broker, mirror_every=0.01) as claim:
            give(claim, {P0: OffsetRange(0, 40)})
            _wait_until(lambda: row_of(store).pair == EpochPair(40, 5))
            monkeypatch.setattr(mirrors, "LOOK_SECONDS", 600.0)
            with held(store, claim, P1):  # a pair that can't be written makes it look at each turn
                broker.change_leader(P1)
                lose(is_lost=True)
                monkeypatch.setattr(claim.mirror, "_look_at", 0.0)
                _wait_until(lambda: len(broker.asked_epochs) > 5)
                assert row_of(store).suspect is None
                lose(is_lost=False)
            give(claim, {P0: OffsetRange(40, 50)})

            monkeypatch.setattr(mirrors, "LOOK_SECONDS", 0.0)
            monkeypatch.setattr(claim.mirror, "_look_at", 0.0)
            lose(is_lost=True)
            _wait_until(lambda: row_of(store).suspect is not None)
            with pytest.raises(LogTruncated):
                give(claim, {P0: OffsetRange(50, 60)})

    @pytest.mark.behaviour("START-26")
    def test_evidence_is_recorded_at_a_later_turn_where_the_row_was_locked(
        self, store: OffsetStore, broker: StaticBroker, give: Give, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(mirrors, "LOOK_SECONDS", 0.0)
        monkeypatch.setattr(mirrors, "_LOCK_SECONDS", 0.05)
        write = mirrors.write_evidence
        tries: list[object] = []

        def write_again(*given: Any, **named: Any) -> None:
            tries.append(given)
            write(*given, **named)

        monkeypatch.setattr(mirrors, "write_evidence", write_again)
        with store.claim(GROUP, broker, mirror_every=0.01) as claim:
            give(claim, {P0: OffsetRange(0, 40)})
            _wait_until(lambda: row_of(store).pair == EpochPair(40, 0))
            with held(store, claim, P0):
                broker.truncate(P0, 35, end=200)
                _wait_until(lambda: len(tries) >= 2)
                assert row_of(store).suspect is None
            _wait_until(lambda: row_of(store).suspect is not None)

    @pytest.mark.behaviour("START-25")
    def test_evidence_is_of_the_rows_that_were_looked_at(
        self, store: OffsetStore, broker: StaticBroker, stopped: Claim
    ) -> None:
        store.claim(GROUP, broker, mirror_every=None)
        with transaction(store.database, name="test") as session:
            session.lock_partitions(GROUP, [P0])
            assert session.write_suspects(GROUP, stopped.token, {P0: "the log ended at 35"}) == set()
        assert row_of(store).suspect is None

    @pytest.mark.behaviour("START-26")
    def test_a_running_job_goes_on_if_the_mirror_sees_a_truncation_only_once(
        self, store: OffsetStore, broker: StaticBroker, give: Give, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(mirrors, "LOOK_SECONDS", 0.0)
        find = broker.find_truncated
        answers: list[dict[TopicPartition, int | None]] = [{P0: 35}]

        def truncated_once(pairs: Mapping[TopicPartition, EpochPair]) -> dict[TopicPartition, int | None]:
            return answers.pop() if answers else find(pairs)

        monkeypatch.setattr(broker, "find_truncated", truncated_once)
        with store.claim(GROUP, broker, mirror_every=0.01) as claim:
            give(claim, {P0: OffsetRange(0, 40)})
            _wait_until(lambda: row_of(store).pair == EpochPair(40, 0))
            broker.change_leader(P0)
            _wait_until(lambda: row_of(store).pair == EpochPair(40, 1) or row_of(store).suspect is not None)
            assert (answers, row_of(store).suspect) == ([], None)
            give(claim, {P0: OffsetRange(40, 50)})

    @pytest.mark.behaviour("START-25", "START-8")
    def test_a_topic_that_is_recreated_while_the_job_runs_is_no_log_that_lost_records(
        self, store: OffsetStore, broker: StaticBroker, give: Give, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(mirrors, "LOOK_SECONDS", 0.0)
        asked: list[object] = []
        topic_ids = broker.topic_ids

        def count(topics: Collection[str]) -> dict[str, str | None]:
            asked.append(topics)
            return topic_ids(topics)

        with store.claim(GROUP, broker, mirror_every=0.01) as claim:
            give(claim, {P0: OffsetRange(0, 40)})
            _wait_until(lambda: row_of(store).pair == EpochPair(40, 0))
            monkeypatch.setattr(broker, "topic_ids", count)
            logs = dict.fromkeys(range(3), Watermarks(0, 5))
            broker.current = replace(broker.current, topics={"payments": TopicLog("another-id", logs)})
            _wait_until(lambda: len(asked) >= 3 or row_of(store).suspect is not None)
            assert row_of(store).suspect is None
        assert row_of(store).suspect is None

    @pytest.mark.behaviour("START-8", "OPS-10")
    def test_a_reset_goes_to_an_offset_of_the_log_that_is_stored_and_of_a_new_one_after_a_restart(
        self, store: OffsetStore, broker: StaticBroker, give: Give
    ) -> None:
        def reset() -> None:
            store.reset(GROUP, 20, partitions={"payments": [0]}, broker=broker, reason="the first 20 are there")

        with store.claim(GROUP, broker, mirror_every=None) as claim:
            give(claim, {P0: OffsetRange(0, 40)})
        logs = dict.fromkeys(range(3), Watermarks(0, 30))
        broker.current = replace(broker.current, topics={"payments": TopicLog("another-id", logs)})
        before = row_of(store)
        with pytest.raises(TopicRecreated, match=r"would not count.*start the job with it, stop it, reset"):
            reset()
        assert row_of(store) == before

        store.pause(GROUP, reason="the topic was created again")
        store.claim(GROUP, broker, policy=StartPolicy(on_recreated="restart"), mirror_every=None).close()
        reset()
        store.resume(GROUP, reason="the first 20 are passed over")
        with store.claim(GROUP, broker, mirror_every=None) as claim:
            assert claim.starting is not None
            assert claim.starting.offsets[P0] == 20

    @pytest.mark.behaviour("START-26")
    def test_pairs_are_written_beside_the_job_and_wait_for_no_lock(
        self, store: OffsetStore, broker: StaticBroker, claim: Claim, give: Give
    ) -> None:
        give(claim, {P0: OffsetRange(0, 40), P1: OffsetRange(0, 30)})
        before = store.offsets(GROUP)
        pairs = {P0: EpochPair(40, 0), P1: EpochPair(30, 0)}
        with held(store, claim, P1), transaction(store.database, name="test", lock_timeout=1) as session:
            assert session.write_pairs(GROUP, claim.token, pairs) == 1

        after = reading(store.database, lambda session: session.read_partitions(GROUP))

        assert after == {**before, P0: replace(before[P0], pair=EpochPair(40, 0))}
        store.claim(GROUP, broker)
        with transaction(store.database, name="test") as session:
            assert session.write_pairs(GROUP, claim.token, pairs) == 0

    @pytest.mark.behaviour("START-26")
    def test_a_pair_whose_row_was_locked_is_written_at_the_next_turn(
        self, store: OffsetStore, broker: StaticBroker, give: Give, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(mirrors, "LOOK_SECONDS", 0.0)
        with store.claim(GROUP, broker, mirror_every=0.01) as claim:
            give(claim, {P0: OffsetRange(0, 40)})
            _wait_until(lambda: row_of(store).pair == EpochPair(40, 0))
            with held(store, claim, P0):
                broker.change_leader(P0)
                _wait_until(lambda: len(broker.asked_epochs) > 0)
                monkeypatch.setattr(mirrors, "LOOK_SECONDS", 600.0)
                seen = len(broker.asked_epochs)
                _wait_until(lambda: len(broker.asked_epochs) >= seen + 2)
            _wait_until(lambda: row_of(store).pair == EpochPair(40, 1))

    @pytest.mark.behaviour("START-26")
    def test_a_log_that_can_t_be_asked_about_leaves_the_others_guarded_and_is_told_once(
        self,
        store: OffsetStore,
        broker: StaticBroker,
        give: Give,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        monkeypatch.setattr(mirrors, "LOOK_SECONDS", 0.0)
        looks: list[object] = []

        def refuse(pairs: object) -> dict[TopicPartition, int | None]:
            looks.append(pairs)
            raise BrokerRefused("no READ on the topic")

        with store.claim(GROUP, broker, mirror_every=0.01) as claim:
            give(claim, {P0: OffsetRange(0, 40)})
            _wait_until(lambda: row_of(store).pair == EpochPair(40, 0))
            with monkeypatch.context() as refused:
                refused.setattr(broker, "find_truncated", refuse)
                broker.change_leader(P0)
                _wait_until(lambda: len(looks) > 0)
                give(claim, {P1: OffsetRange(0, 30)})
                _wait_until(lambda: row_of(store, P1).pair == EpochPair(30, 0))
                seen = len(looks)
                _wait_until(lambda: len(looks) >= seen + 5)
            _wait_until(lambda: row_of(store).pair == EpochPair(40, 1))

        [told] = [line.getMessage() for line in caplog.records if "could not look at the logs" in line.getMessage()]
        assert "no READ on the topic" in told

    @pytest.mark.behaviour("START-26")
    def test_a_log_that_can_t_be_asked_about_hides_no_truncation_of_another(
        self,
        store: OffsetStore,
        broker: StaticBroker,
        give: Give,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        """While a job runs, and at a start; where nothing was lost, a start that can't tell fences nobody."""
        monkeypatch.setattr(mirrors, "LOOK_SECONDS", 0.0)
        find = broker.find_truncated

        def tell_some(pairs: Mapping[TopicPartition, EpochPair]) -> Mapping[TopicPartition, int | BrokerError | None]:
            return {**find(pairs), **{tp: BrokerUnavailable("no leader") for tp in pairs if tp == P0}}

        monkeypatch.setattr(broker, "find_truncated", tell_some)
        with store.claim(GROUP, broker, mirror_every=0.01) as claim:
            give(claim, {P0: OffsetRange(0, 40), P1: OffsetRange(0, 30)})
            _wait_until(lambda: row_of(store, P1).pair == EpochPair(30, 0))
            broker.change_leader(P0)
            broker.truncate(P1, 25, end=200)
            _wait_until(lambda: row_of(store, P1).suspect is not None)
            _wait_until(lambda: "no leader" in caplog.text)
            assert row_of(store).suspect is None
        store.reset(GROUP, {P1: 25}, reason=REASON, broker=broker)
        owner = store.owner(GROUP)
        with pytest.raises(BrokerUnavailable, match="no leader"):
            store.claim(GROUP, broker)
        broker.truncate(P1, 20, end=200)
        with pytest.raises(LogTruncated, match="payments-1"):
            store.claim(GROUP, broker)
        assert store.owner(GROUP) == owner

    @pytest.mark.behaviour("START-26")
    def test_a_clean_stop_leaves_the_pairs_of_what_is_stored(self, store: OffsetStore, stopped: Claim) -> None:
        assert {tp: row.pair for tp, row in store.offsets(GROUP).items()} == {
            P0: EpochPair(40, 0), P1: EpochPair(30, 0), P2: EpochPair(0, 0),
        }  # fmt: skip


class PeopleLogContract(LogContract):
    """With what only people ask, which a store in memory does not have."""

    @pytest.mark.behaviour("START-25", "START-26")
    def test_a_rename_and_a_copy_carry_the_evidence_and_the_pair(
        self, store: OffsetStore, broker: StaticBroker, stopped: Claim
    ) -> None:
        broker.set_log(P1, 0, 25)
        with pytest.raises(OffsetOutOfRange):
            store.claim(GROUP, broker)
        broker.set_log(P1, 0, 100)
        store.copy_group(GROUP, "copied", reason=REASON)
        store.rename_group(GROUP, "renamed", reason=REASON)

        for group in ("copied", "renamed"):
            assert row_of(store, P0, group).pair == EpochPair(40, 0)
            with pytest.raises(LogTruncated, match="payments-1"):
                store.claim(group, broker)


def _expect_remembered(store: OffsetStore, broker: StaticBroker, *, end: int, stored: int) -> None:
    """Expect that a start is refused, and so is the next one, although the log has grown."""
    broker.set_log(P0, 0, end)
    with pytest.raises(OffsetOutOfRange):
        store.claim(GROUP, broker)
    broker.set_log(P0, 0, 300)
    with pytest.raises(LogTruncated, match=f"the log ended at {end}, below the stored offset {stored}"):
        store.claim(GROUP, broker)


def _wait_until(is_so: Callable[[], bool]) -> None:
    until = time.monotonic() + WAIT
    while not is_so():
        assert time.monotonic() < until, "it did not come to that"
        time.sleep(0.01)

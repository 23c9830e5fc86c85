"""A log that lost records is not gone on in. See `tests.contract.suite`."""
# ruff: noqa: ARG002 - these are tests: the name is the docstring, fixtures and numbers are the point

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

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
from offsetstore.offset_store import resolve_starting_offsets
from offsetstore.offsets import EpochPair, OffsetRange, StoredOffset, TopicLog, TopicPartition, Watermarks
from offsetstore.protocol.retries import Retries
from offsetstore.protocol.starting import StartPolicy
from offsetstore.store import acquire, log_watch, sessions
from offsetstore.store.claim import Claim
from offsetstore.store.sessions import read as reading
from tests.contract.parts import GROUP, P0, P1, WAIT, ContractParts, starts
from tests.support.waiting import wait_until

P3 = TopicPartition("payments", 3)
REASON = "ticket 17"
ANYTHING = StartPolicy(on_data_loss="earliest", on_recreated="restart", prefer="stored")


class LogContract(ContractParts):
    """Evidence of loss, and leader epochs."""

    @pytest.fixture(autouse=True)
    def at_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(acquire, "_RETRIES", Retries(attempts=3, shortest=0.0, longest=0.0))
        monkeypatch.setattr(log_watch, "_LOOK_AGAIN_SECONDS", 0.0)
        monkeypatch.setattr(log_watch, "_SOON", 0.01)
        monkeypatch.setattr("offsetstore.store.mirror.LAST_COMMIT", float(WAIT))

    def row(self, tp: TopicPartition = P0, group: str = GROUP) -> StoredOffset:
        """The partition's row."""
        return self.store.offsets(group)[tp]

    def refuse(self, error: type[Exception], words: str | None = None, **how: Any) -> None:
        """Expect that the next start is refused."""
        with pytest.raises(error, match=words):
            self.store.claim(GROUP, self.broker, **how)

    def wait_for_pair(self, pair: EpochPair, tp: TopicPartition = P0) -> None:
        wait_until(lambda: self.row(tp).pair == pair)

    def wait_for_evidence(self, tp: TopicPartition = P0) -> None:
        wait_until(lambda: self.row(tp).suspect is not None)

    @pytest.fixture
    def stopped(self) -> Claim:
        """A job that has stopped cleanly, with 40, 30 and 0 stored."""
        with self.store.claim(GROUP, self.broker, mirror_every=600) as claim:
            self.give(claim, {P0: OffsetRange(0, 40), P1: OffsetRange(0, 30)})
        return claim

    @contextmanager
    def watched(self) -> Generator[Claim]:
        """A job that runs, with 40 stored, whose logs are looked at all the time."""
        with self.store.claim(GROUP, self.broker, mirror_every=0.01) as claim:
            self.give(claim, {P0: OffsetRange(0, 40)})
            self.wait_for_pair(EpochPair(40, 0))
            yield claim

    # -- the end of the log

    @pytest.mark.behaviour("START-25")
    def test_a_refused_start_is_remembered_when_the_log_has_grown_until_a_reset(self, stopped: Claim) -> None:
        self.broker.set_log(P0, 0, 35)
        self.refuse(OffsetOutOfRange, r"payments-0.*end 35")
        self.broker.set_log(P0, 0, 100)

        with pytest.raises(LogTruncated, match="the log ended at 35, below the stored offset 40") as refused:
            self.store.claim(GROUP, self.broker, policy=ANYTHING)

        assert refused.value.topic_partition == P0
        (line,) = self.store.history(GROUP, events=["suspect"])
        assert (line.topic_partition, line.from_offset, line.to_offset) == (P0, 40, 40)
        self.store.reset(GROUP, {P1: 30}, reason=REASON)
        self.refuse(LogTruncated)
        self.store.reset(GROUP, {P0: 35}, reason=REASON)
        claim = self.store.claim(GROUP, self.broker)
        assert (starts(claim)[P0], self.row().suspect) == (35, None)

    @pytest.mark.behaviour("START-25")
    def test_the_first_evidence_stays(self, stopped: Claim) -> None:
        for end in (35, 25):
            self.broker.set_log(P0, 0, end)
            self.broker.set_log(P1, 0, end - 10)
            self.refuse(OffsetOutOfRange)
        found = [row.suspect.what if row.suspect else None for row in self.store.offsets(GROUP).values()]
        assert found == [
            "the log ended at 35, below the stored offset 40",
            "the log ended at 25, below the stored offset 30",
            None,
        ]
        assert len(self.store.history(GROUP, events=["suspect"])) == 2

    @pytest.mark.behaviour("START-25", "START-10")
    def test_what_only_one_attempt_has_seen_is_no_evidence(self, stopped: Claim) -> None:
        log = self.broker.current.topics["payments"]
        ends = dict.fromkeys(range(3), Watermarks(0, 35))
        short = replace(self.broker.current, topics={"payments": replace(log, partitions=ends)})
        self.broker.script = [short, short]
        self.store.claim(GROUP, self.broker).close()
        self.broker.script = [TransactionLost("the connection broke"), TransactionLost("the connection broke"), short]
        self.refuse(OffsetOutOfRange)
        assert self.row().suspect is None

    @pytest.mark.behaviour("START-25")
    def test_an_attempt_that_breaks_before_it_looks_refutes_nothing(self, stopped: Claim) -> None:
        self.broker.set_log(P0, 0, 35)
        self.broker.script = [None, TransactionLost("the connection broke")]
        self.refuse(OffsetOutOfRange)
        assert self.row().suspect is not None

    @pytest.mark.behaviour("START-25")
    def test_an_offset_that_was_set_too_high_and_never_read_from_is_no_lost_record(self, stopped: Claim) -> None:
        self.store.reset(GROUP, {P0: 400}, reason=REASON)
        for _ in range(2):
            self.refuse(OffsetOutOfRange, r"payments-0.*end 100")
        assert self.row().suspect is None

        self.broker.set_log(P0, 0, 500)
        running = self.again()
        self.give(running, {P0: OffsetRange(400, 410)})
        assert self.row().pinned
        self.broker.set_log(P0, 0, 405)
        self.refuse(OffsetOutOfRange)
        assert self.row().suspect is not None

    @pytest.mark.behaviour("START-25")
    @pytest.mark.parametrize(
        ("read", "to", "end", "has_pairs"),
        [(40, 90, 60, True), (40, 41, 35, True), (100, 90, 50, False), (100, 100, 50, False), (100, 101, 50, False)],
    )
    def test_what_was_read_before_a_reset_is_evidence_also_where_no_pair_shows_it(
        self, monkeypatch: pytest.MonkeyPatch, read: int, to: int, end: int, *, has_pairs: bool
    ) -> None:
        with monkeypatch.context() as patched, self.store.claim(GROUP, self.broker, mirror_every=600) as claim:
            self.give(claim, {P0: OffsetRange(0, read)})
            if not has_pairs:  # Kafka is away when the job ends
                patched.setattr(self.broker, "log_ends", Mock(side_effect=BrokerUnavailable("no answer")))
        self.store.reset(GROUP, {P0: to}, reason=REASON, broker=self.broker if end == 60 else None)
        self.broker.set_log(P0, 0, end)
        self.refuse(OffsetOutOfRange)
        self.broker.set_log(P0, 0, 300)
        self.refuse(LogTruncated, f"the log ended at {end}, below the stored offset {to}")

    @pytest.mark.behaviour("START-26")
    def test_a_place_at_which_the_log_can_t_be_asked_about_is_left_by_two_resets(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        find = self.broker.find_truncated

        def find_below(pairs: Mapping[TopicPartition, EpochPair]) -> Mapping[TopicPartition, int | BrokerError | None]:
            late = {tp: BrokerUnavailable("no answer") for tp, pair in pairs.items() if pair.offset == 100}
            return {**find(pairs), **late}

        with self.store.claim(GROUP, self.broker, mirror_every=600) as claim:
            self.give(claim, {P0: OffsetRange(0, 100)})
        monkeypatch.setattr(self.broker, "find_truncated", find_below)
        self.broker.change_leader(P0)
        self.broker.set_log(P0, 0, 300)
        for to in (100, 150):
            self.store.reset(GROUP, {P0: to}, reason=REASON, broker=self.broker)
            self.refuse(BrokerUnavailable, "no answer")

        self.store.pause(GROUP, reason=REASON)
        self.store.reset(GROUP, {P0: 99}, reason=REASON)
        self.store.claim(GROUP, self.broker).close()
        self.store.reset(GROUP, {P0: 150}, reason=REASON)
        self.store.resume(GROUP, reason=REASON)
        with self.store.claim(GROUP, self.broker) as claim:
            self.give(claim, {P0: OffsetRange(150, 160)})

    @pytest.mark.behaviour("START-25")
    def test_an_offset_beyond_the_last_stable_one_is_refused_and_not_recorded(self, stopped: Claim) -> None:
        log = self.broker.current.topics["payments"]
        at_a_transaction = replace(log, partitions={**log.partitions, 0: Watermarks(0, 35, high=100)})
        whole = self.broker.current
        self.broker.current = replace(whole, topics={"payments": at_a_transaction})
        self.refuse(OffsetOutOfRange, "end 35")
        self.broker.current = whole

        self.store.claim(GROUP, self.broker).close()

        assert self.row().suspect is None

    @pytest.mark.behaviour("START-25")
    def test_the_resolver_and_a_dry_run_record_nothing(self, stopped: Claim) -> None:
        self.broker.set_log(P0, 0, 35)
        with pytest.raises(OffsetOutOfRange):
            resolve_starting_offsets(self.broker, group=GROUP, store=self.store)
        self.store.reset(GROUP, "latest", partitions="all", broker=self.broker, reason=REASON, dry_run=True)
        assert self.row().suspect is None

    # -- a partition that was added while the job ran: its row has no topic id

    @pytest.fixture
    def extended(self) -> Claim:
        """A job that has stopped cleanly, with 40 stored of a partition that was added while it ran."""
        with self.store.claim(GROUP, self.broker, mirror_every=600) as claim:
            self.broker.set_log(P3, 0, 100)
            self.give(claim, {P3: OffsetRange(0, 40)})
        assert self.row(P3).topic_id is None
        return claim

    @pytest.mark.behaviour("START-26")
    def test_a_new_partition_that_was_truncated_and_has_regrown_is_refused(self, extended: Claim) -> None:
        self.broker.truncate(P3, 35, end=200)
        self.refuse(LogTruncated, "payments-3", policy=ANYTHING)
        assert self.row(P3).suspect is not None

    @pytest.mark.behaviour("START-25", "START-8")
    def test_a_new_partition_that_is_too_short_is_not_taken_for_a_new_topic(self, extended: Claim) -> None:
        self.broker.set_log(P3, 0, 35)
        self.refuse(OffsetOutOfRange, "the topic is the same", policy=ANYTHING)
        self.broker.set_log(P3, 0, 100)
        self.refuse(LogTruncated, "the log ended at 35, below the stored offset 40", policy=ANYTHING)

    # -- the leader epoch

    @pytest.mark.behaviour("START-26")
    def test_a_log_that_was_truncated_and_has_regrown_is_refused_until_a_reset(self, stopped: Claim) -> None:
        self.broker.truncate(P0, 35, end=200)

        self.refuse(LogTruncated, "the log parts at offset 35, below the stored offset 40", policy=ANYTHING)

        assert self.row().token == stopped.token
        self.broker.change_leader(P0)  # also when its epoch has been forgotten by then
        self.refuse(LogTruncated, "recorded on")
        self.store.reset(GROUP, {P0: 35}, reason=REASON)
        claim = self.store.claim(GROUP, self.broker)
        assert (starts(claim)[P0], self.row().pair) == (35, EpochPair(35, 2))

    @pytest.mark.behaviour("START-26")
    @pytest.mark.parametrize(
        ("to", "is_asked", "is_truncated_first"),
        [
            (30, True, True),
            (30, False, False),
            (41, True, False),
            (41, False, True),
            (90, True, True),
            (90, False, False),
        ],
    )
    def test_a_reset_accepts_no_truncation_that_its_plan_does_not_show(
        self, stopped: Claim, to: int, *, is_asked: bool, is_truncated_first: bool
    ) -> None:
        if is_truncated_first:
            self.broker.truncate(P0, 20, end=150)
        asked = self.broker if is_asked else None
        done = self.store.reset(GROUP, {P0: to}, reason=REASON, from_offset=40, broker=asked)
        assert done.losses == {}
        if not is_truncated_first:
            self.broker.truncate(P0, 20, end=150)
        self.refuse(LogTruncated, "payments-0", policy=ANYTHING)

    @pytest.mark.behaviour("START-26")
    def test_a_reset_that_accepts_evidence_takes_the_log_as_it_found_it(self, stopped: Claim) -> None:
        self.broker.truncate(P0, 35, end=200)
        self.refuse(LogTruncated)
        self.store.reset(GROUP, {P0: 35}, reason=REASON)
        assert self.row().pair is None
        self.store.reset(GROUP, {P0: 150}, reason=REASON, broker=self.broker)
        assert self.row().pair == EpochPair(150, 1)
        self.broker.truncate(P0, 100, end=300)
        self.refuse(LogTruncated, "at offset 100, below the stored offset 150")

    @pytest.mark.behaviour("START-26")
    def test_a_change_of_leader_alone_is_none_and_only_its_partition_is_asked_about(self, stopped: Claim) -> None:
        self.broker.change_leader(P0)

        self.again()
        assert self.broker.asked_epochs == [{P0: EpochPair(40, 0)}]
        self.again()

        assert len(self.broker.asked_epochs) == 1
        assert [self.row(tp).pair for tp in (P0, P1)] == [EpochPair(40, 1), EpochPair(30, 0)]

    @pytest.mark.behaviour("START-26")
    def test_a_truncation_above_where_a_reset_went_lost_nothing(self, stopped: Claim) -> None:
        self.store.reset(GROUP, {P0: 30}, reason=REASON)
        self.broker.truncate(P0, 35, end=200)
        self.broker.truncate(P1, 30, end=200)
        self.store.claim(GROUP, self.broker)

    @pytest.mark.behaviour("START-26")
    def test_an_epoch_below_the_pair_s_is_a_truncated_log(self) -> None:
        self.broker.epochs[P0] = 5
        with self.store.claim(GROUP, self.broker) as claim:
            self.give(claim, {P0: OffsetRange(0, 40)})
        self.broker.epochs[P0] = 4
        self.refuse(LogTruncated, "leader epoch 4, and a later one, 5, when offset 40 was stored")
        assert self.row().suspect is not None

    @pytest.mark.behaviour("START-26")
    def test_a_pair_is_checked_before_it_is_replaced(self, stopped: Claim) -> None:
        """If the leader changes after the look that no lock waits for, it is for the mirror or the next claim."""
        self.broker.script = [None, lambda: self.broker.truncate(P0, 35, end=200)]
        self.again()
        assert self.row().pair == EpochPair(40, 0)
        self.refuse(LogTruncated)

    @pytest.mark.behaviour("START-26", "START-31", "MIRROR-7")
    @pytest.mark.parametrize(("mirror_every", "has_ended"), [(0.01, False), (0.01, True), (600, False), (None, False)])
    def test_a_log_that_is_truncated_while_the_job_runs_ends_its_next_batch(
        self, monkeypatch: pytest.MonkeyPatch, mirror_every: float | None, *, has_ended: bool
    ) -> None:
        """However seldom the offsets are copied to Kafka, or no longer, or never: the logs are looked at."""
        monkeypatch.setattr(log_watch, "LOOK_SECONDS", 0.0)
        if has_ended:  # for good
            self.broker.members.add(GROUP)
        with self.store.claim(GROUP, self.broker, mirror_every=mirror_every) as claim:
            if has_ended:
                wait_until(lambda: claim.mirror is not None and claim.mirror.ended is not None)
            self.give(claim, {P0: OffsetRange(0, 40)})
            self.wait_for_pair(EpochPair(40, 0))
            self.broker.truncate(P0, 35, end=200)
            self.wait_for_evidence()

            with pytest.raises(LogTruncated, match="the log parts at offset 35"):
                self.give(claim, {P0: OffsetRange(40, 50)})

        assert self.row().next_offset == 40
        assert self.broker.commits == [] or not (mirror_every is None or has_ended)
        self.refuse(LogTruncated)

    @pytest.mark.behaviour("START-25")
    def test_a_job_that_ends_because_its_log_is_too_short_records_it(self) -> None:
        with self.store.claim(GROUP, self.broker, mirror_every=600) as claim:
            self.give(claim, {P0: OffsetRange(0, 40)})
            self.broker.set_log(P0, 0, 35)
        self.broker.set_log(P0, 0, 100)
        self.refuse(LogTruncated, "the log ended at 35")

    @pytest.mark.behaviour("START-25", "START-26")
    @pytest.mark.parametrize("is_short", [True, False])
    def test_a_running_job_goes_on_until_its_mirror_has_seen_for_a_while_what_may_pass(
        self, monkeypatch: pytest.MonkeyPatch, *, is_short: bool
    ) -> None:
        """A new leader may tell a low end, and an old one a low epoch, for seconds."""

        def lose(*, is_lost: bool) -> None:
            if is_short:
                self.broker.set_log(P0, 0, 35 if is_lost else 100)
            else:
                self.broker.epochs[P0] = 4 if is_lost else 5

        self.broker.epochs[P0] = 5
        monkeypatch.setattr(log_watch, "LOOK_SECONDS", 0.0)
        with self.store.claim(GROUP, self.broker, mirror_every=0.01) as claim:
            self.give(claim, {P0: OffsetRange(0, 40)})
            self.wait_for_pair(EpochPair(40, 5))
            monkeypatch.setattr(log_watch, "LOOK_SECONDS", 600.0)
            with self.held(claim, P1):  # a pair that can't be written makes it look at each turn
                self.broker.change_leader(P1)
                lose(is_lost=True)
                monkeypatch.setattr(claim._logs, "_look_at", 0.0)
                wait_until(lambda: len(self.broker.asked_epochs) > 5)
                assert self.row().suspect is None
                lose(is_lost=False)
            self.give(claim, {P0: OffsetRange(40, 50)})

            monkeypatch.setattr(log_watch, "LOOK_SECONDS", 0.0)
            monkeypatch.setattr(claim._logs, "_look_at", 0.0)
            lose(is_lost=True)
            self.wait_for_evidence()
            with pytest.raises(LogTruncated):
                self.give(claim, {P0: OffsetRange(50, 60)})

    @pytest.mark.behaviour("START-26")
    def test_evidence_is_recorded_at_a_later_turn_where_the_row_was_locked(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(log_watch, "LOOK_SECONDS", 0.0)
        monkeypatch.setattr(sessions, "_LOCK_SECONDS", 0.05)
        write = log_watch.write_evidence
        tries: list[object] = []

        def write_again(*given: Any, **named: Any) -> None:
            tries.append(given)
            write(*given, **named)

        monkeypatch.setattr(log_watch, "write_evidence", write_again)
        with self.watched() as claim:
            with self.held(claim, P0):
                self.broker.truncate(P0, 35, end=200)
                wait_until(lambda: len(tries) >= 2)
                assert self.row().suspect is None
            self.wait_for_evidence()

    @pytest.mark.behaviour("START-25")
    def test_evidence_is_of_the_rows_that_were_looked_at(self, stopped: Claim) -> None:
        self.again()
        with self.session() as session:
            session.lock_partitions(GROUP, [P0])
            assert session.write_suspects(GROUP, stopped.token, {P0: "the log ended at 35"}) == set()
        assert self.row().suspect is None

    @pytest.mark.behaviour("START-26")
    def test_a_running_job_goes_on_if_the_mirror_sees_a_truncation_only_once(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(log_watch, "LOOK_SECONDS", 0.0)
        find = self.broker.find_truncated
        answers: list[dict[TopicPartition, int | None]] = [{P0: 35}]

        def truncated_once(pairs: Mapping[TopicPartition, EpochPair]) -> dict[TopicPartition, int | None]:
            return answers.pop() if answers else find(pairs)

        monkeypatch.setattr(self.broker, "find_truncated", truncated_once)
        with self.watched() as claim:
            self.broker.change_leader(P0)
            wait_until(lambda: self.row().pair == EpochPair(40, 1) or self.row().suspect is not None)
            assert (answers, self.row().suspect) == ([], None)
            self.give(claim, {P0: OffsetRange(40, 50)})

    @pytest.mark.behaviour("START-25", "START-8")
    def test_a_topic_that_is_recreated_while_the_job_runs_is_no_log_that_lost_records(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(log_watch, "LOOK_SECONDS", 0.0)
        asked: list[object] = []
        topic_ids = self.broker.topic_ids

        def count(topics: Collection[str]) -> dict[str, str | None]:
            asked.append(topics)
            return topic_ids(topics)

        with self.watched():
            monkeypatch.setattr(self.broker, "topic_ids", count)
            logs = dict.fromkeys(range(3), Watermarks(0, 5))
            self.broker.current = replace(self.broker.current, topics={"payments": TopicLog("another-id", logs)})
            wait_until(lambda: len(asked) >= 3 or self.row().suspect is not None)
            assert self.row().suspect is None
        assert self.row().suspect is None

    @pytest.mark.behaviour("START-8", "OPS-10")
    def test_a_reset_goes_to_an_offset_of_the_log_that_is_stored_and_of_a_new_one_after_a_restart(self) -> None:
        def reset() -> None:
            self.store.reset(
                GROUP, 20, partitions={"payments": [0]}, broker=self.broker, reason="the first 20 are there"
            )

        with self.again() as claim:
            self.give(claim, {P0: OffsetRange(0, 40)})
        logs = dict.fromkeys(range(3), Watermarks(0, 30))
        self.broker.current = replace(self.broker.current, topics={"payments": TopicLog("another-id", logs)})
        before = self.row()
        with pytest.raises(TopicRecreated, match=r"would not count.*start the job with it, stop it, reset"):
            reset()
        assert self.row() == before

        self.store.pause(GROUP, reason="the topic was created again")
        self.again(policy=StartPolicy(on_recreated="restart")).close()
        reset()
        self.store.resume(GROUP, reason="the first 20 are passed over")
        with self.again() as claim:
            assert starts(claim)[P0] == 20

    @pytest.mark.behaviour("START-26")
    def test_pairs_are_written_beside_the_job_and_wait_for_no_lock(self, claim: Claim) -> None:
        self.give(claim, {P0: OffsetRange(0, 40), P1: OffsetRange(0, 30)})
        before = self.store.offsets(GROUP)
        pairs = {P0: EpochPair(40, 0), P1: EpochPair(30, 0)}
        with self.held(claim, P1), self.session(1) as session:
            assert session.write_pairs(GROUP, claim.token, pairs) == 1

        after = reading(self.store.database, lambda session: session.read_partitions(GROUP))

        assert after == {**before, P0: replace(before[P0], pair=EpochPair(40, 0))}
        self.store.claim(GROUP, self.broker)
        with self.session() as session:
            assert session.write_pairs(GROUP, claim.token, pairs) == 0

    @pytest.mark.behaviour("START-26")
    def test_a_pair_whose_row_was_locked_is_written_at_the_next_turn(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(log_watch, "LOOK_SECONDS", 0.0)
        with self.watched() as claim:
            with self.held(claim, P0):
                self.broker.change_leader(P0)
                wait_until(lambda: len(self.broker.asked_epochs) > 0)
                monkeypatch.setattr(log_watch, "LOOK_SECONDS", 600.0)
                seen = len(self.broker.asked_epochs)
                wait_until(lambda: len(self.broker.asked_epochs) >= seen + 2)
            self.wait_for_pair(EpochPair(40, 1))

    @pytest.mark.behaviour("START-26")
    def test_a_log_that_can_t_be_asked_about_leaves_the_others_guarded_and_is_told_once(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(log_watch, "LOOK_SECONDS", 0.0)
        looks: list[object] = []

        def refuse(pairs: object) -> dict[TopicPartition, int | None]:
            looks.append(pairs)
            raise BrokerRefused("no READ on the topic")

        with self.watched() as claim:
            with monkeypatch.context() as refused:
                refused.setattr(self.broker, "find_truncated", refuse)
                self.broker.change_leader(P0)
                wait_until(lambda: len(looks) > 0)
                self.give(claim, {P1: OffsetRange(0, 30)})
                self.wait_for_pair(EpochPair(30, 0), P1)
                seen = len(looks)
                wait_until(lambda: len(looks) >= seen + 5)
            self.wait_for_pair(EpochPair(40, 1))

        [told] = [line.getMessage() for line in caplog.records if "could not look at the logs" in line.getMessage()]
        assert "no READ on the topic" in told

    @pytest.mark.behaviour("START-26")
    def test_a_log_that_can_t_be_asked_about_hides_no_truncation_of_another(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """While a job runs, and at a start; where nothing was lost, a start that can't tell fences nobody."""
        monkeypatch.setattr(log_watch, "LOOK_SECONDS", 0.0)
        find = self.broker.find_truncated

        def tell_some(pairs: Mapping[TopicPartition, EpochPair]) -> Mapping[TopicPartition, int | BrokerError | None]:
            return {**find(pairs), **{tp: BrokerUnavailable("no leader") for tp in pairs if tp == P0}}

        monkeypatch.setattr(self.broker, "find_truncated", tell_some)
        with self.store.claim(GROUP, self.broker, mirror_every=0.01) as claim:
            self.give(claim, {P0: OffsetRange(0, 40), P1: OffsetRange(0, 30)})
            self.wait_for_pair(EpochPair(30, 0), P1)
            self.broker.change_leader(P0)
            self.broker.truncate(P1, 25, end=200)
            self.wait_for_evidence(P1)
            wait_until(lambda: "no leader" in caplog.text)
            assert self.row().suspect is None
        self.store.reset(GROUP, {P1: 25}, reason=REASON, broker=self.broker)
        owner = self.owner()
        self.refuse(BrokerUnavailable, "no leader")
        self.broker.truncate(P1, 20, end=200)
        self.refuse(LogTruncated, "payments-1")
        assert self.owner().token == owner.token, "a refused start fences nobody"


class PeopleLogContract(LogContract):
    """With what only people ask, which a store in memory does not have."""

    @pytest.mark.behaviour("START-25", "START-26")
    def test_a_rename_and_a_copy_carry_the_evidence_and_the_pair(self, stopped: Claim) -> None:
        self.broker.set_log(P1, 0, 25)
        self.refuse(OffsetOutOfRange)
        self.broker.set_log(P1, 0, 100)
        self.store.copy_group(GROUP, "copied", reason=REASON)
        self.store.rename_group(GROUP, "renamed", reason=REASON)

        for group in ("copied", "renamed"):
            assert self.row(P0, group).pair == EpochPair(40, 0)
            with pytest.raises(LogTruncated, match="payments-1"):
                self.store.claim(group, self.broker)

"""A decision does what its plan has shown, or nothing. See `tests.contract.suite`."""
# ruff: noqa: ARG002 - these are tests: the name is the docstring, fixtures and numbers are the point

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import uuid4

import pytest

from offsetstore.errors import LogTruncated, OffsetOutOfRange, PlanChanged
from offsetstore.offset_store import OffsetStore
from offsetstore.offsets import OffsetRange, Pause, Token, TopicPartition
from offsetstore.operations.home import set_identity
from offsetstore.operations.letters import PruneLetters
from offsetstore.operations.operation import write_token
from offsetstore.operations.outbox import DISCARD_REFUSED
from offsetstore.operations.people import people
from offsetstore.operations.resets import ShiftBy
from offsetstore.operations.stored_letters import LetterFilter, decide_letters, prunable, prune_letters
from offsetstore.operations.wording import in_words
from offsetstore.protocol.database import NewOffset, Session
from offsetstore.protocol.letters import FINAL, FailedReplay, LetterError, LetterKey, NewLetter, Payload, digest
from offsetstore.store.transaction import Transaction
from tests.contract.parts import GROUP, NEW, P0, P1, WAIT, ContractParts

OTHER = "invoicing"
REASON = "ticket 17"
UNTIL = datetime(2090, 1, 1, tzinfo=UTC)
ERROR = LetterError("ValueError", "not a number")
RECORD = Payload(b"key", b"value", None, None, None)
ALL = LetterFilter()
REFUNDS = TopicPartition("refunds", 0)

DECISIONS: Final[dict[str, tuple[Callable[..., Any], tuple[object, ...], dict[str, object]]]] = {
    "pause": (OffsetStore.pause, (GROUP,), {"until": UNTIL}),
    "resume": (OffsetStore.resume, (GROUP,), {}),
    "replay": (OffsetStore.request_replay, (GROUP, ALL), {"forced": True}),
    "discard": (OffsetStore.discard, (GROUP, ALL), {}),
    "erase": (OffsetStore.discard, (GROUP, ALL), {"erase": True}),
    "reset": (OffsetStore.reset, (GROUP, ShiftBy(-1)), {"partitions": {P0.topic: [0]}}),
    "copy": (OffsetStore.copy_group, (GROUP, OTHER), {}),
    "rename": (OffsetStore.rename_group, (GROUP, OTHER), {}),
    "delete": (OffsetStore.delete_group, (GROUP,), {"discard_letters": True}),
    "delete-topic": (OffsetStore.delete_group, (GROUP,), {"discard_letters": True, "topics": [P0.topic]}),
    "prune": (OffsetStore.prune, (GROUP,), {"older_than": timedelta(0)}),
    "outbox-retry": (OffsetStore.retry_refused, (GROUP,), {}),
    "outbox-discard": (OffsetStore.discard_refused, (GROUP,), {}),
    "outbox-set-aside": (OffsetStore.set_aside, (GROUP,), {}),
    "moved": (OffsetStore.moved, (), {}),
    "new-id": (OffsetStore.new_id, (), {}),
}
"""Those that show a plan; new metadata are written without one."""
PAUSES, LETTERS = ("pause", "resume"), ("replay", "discard", "erase")
DELETES = ("delete", "delete-topic")
OFFSETS = ("reset", "copy", "rename", *DELETES)
OUTBOX, STORE = ("outbox-retry", "outbox-discard"), ("moved", "new-id")
SET_ASIDE = """
WITH waiting AS (INSERT INTO {s}outbox (consumer_group, topic)
SELECT :group, 'events' FROM generate_series(1, 4) RETURNING 1)
INSERT INTO {s}outbox_refused (id, consumer_group, topic, created_at, error)
SELECT id, :group, 'events', now(), 'too large' FROM generate_series(101, 102) AS id
"""
BEGIN_BATCH = "UPDATE {s}outbox_relays SET ids = '{2}'"
TAKE_RELAY = "INSERT INTO {s}outbox_relays (shard, token, owner) VALUES (0, gen_random_uuid(), 'relay')"
LOCKED_OUT = (
    "SELECT count(*) AS waiting FROM pg_locks WHERE NOT granted AND pg_backend_pid() = ANY(pg_blocking_pids(pid))"
)


def at(offset: int) -> LetterKey:
    """A letter as the database names it."""
    return LetterKey(P0, offset, "payments-id")


def dead(offset: int) -> NewLetter:
    """A letter."""
    return NewLetter(P0, offset, "raised", ERROR, 1, None, RECORD)


def pause_again(one: Session) -> None:
    """Replace the pause by one without an end."""
    one.lock_group(GROUP)
    one.write_pause(GROUP, Pause(one.now(), None, "a restore runs"))


def resume(one: Session) -> None:
    """End the pause."""
    one.lock_group(GROUP)
    one.write_pause(GROUP, None)


def settle(one: Session) -> None:
    """Give one letter up."""
    one.share_group(GROUP)
    one.lock_letters(GROUP, [at(2)])
    decide_letters(people(one), GROUP, [at(2)], "discarded", actor="bo", reason=REASON)


def fail_again(one: Session) -> None:
    """Replay a letter, which fails: it is dead as before."""
    one.lock_letters(GROUP, [at(4)])
    decide_letters(people(one), GROUP, [at(4)], "requested", actor="bo", reason=REASON)
    assert one.return_letters(GROUP, {at(4): FailedReplay(ERROR)}, actor="job") == 1


def claim_it(one: Session) -> None:
    """Take the group over."""
    write_token(one, GROUP, Token(one.lock_group(GROUP).epoch + 1, uuid4()), "another")


def advance(one: Session) -> None:
    """Store another offset, as the job of the last claim does."""
    row = one.lock_group_partitions(GROUP)[P0]
    new = NewOffset(row.next_offset + 5, row.topic_id, row.cluster_id, pinned=False)
    one.set_partitions(GROUP, row.token, {P0: new})


def suspect(one: Session) -> None:
    """A start has seen that the log lost records."""
    token = one.lock_group(GROUP)
    one.lock_partitions(GROUP, [P0])
    assert one.write_suspects(GROUP, token, {P0: "the log ended at 5, below the stored offset 10"}) == {P0}


def discard_row(one: Session) -> None:
    """Delete a row of the outbox that Kafka refuses."""
    one.share_group(GROUP)
    assert people(one).run(DISCARD_REFUSED, ids=[101]) == 1


def begin_batch(one: Session) -> None:
    """A relay is about to send a row."""
    assert people(one).run(BEGIN_BATCH) == 1


def move_away(one: Session) -> None:
    """Make it another store, whose home is elsewhere."""
    set_identity(people(one), uuid4(), "elsewhere")


CHANGES: Final[dict[Callable[[Session], None], tuple[str, ...]]] = {
    pause_again: PAUSES,
    resume: PAUSES,
    settle: (*LETTERS, *DELETES, "prune"),
    fail_again: LETTERS,
    claim_it: (*OFFSETS, "new-id"),
    advance: OFFSETS,
    suspect: ("reset", *DELETES),
    discard_row: OUTBOX,
    begin_batch: ("outbox-set-aside",),
    move_away: STORE,
}
"""What makes another plan of these decisions. Each change locks something that the decisions lock, too."""


def changes_of(name: str) -> list[Callable[[Session], None]]:
    """What makes another plan of this decision."""
    found = [change for change, names in CHANGES.items() if name in names]
    assert found, f"nothing in CHANGES makes another plan of {name}: its tests would pass without a lock"
    return found


def wait_until_locked_out(one: Session, decision: Future[Any]) -> None:
    """Return once the decision waits for a lock of this session."""
    end = time.monotonic() + WAIT
    while not people(one).one(LOCKED_OUT).waiting:
        assert not decision.done(), f"it has not waited for a lock: {decision.exception() or decision.result()}"
        assert time.monotonic() < end
        time.sleep(0.005)


class PlanContract(ContractParts):
    """What was shown is compared with what is done, under the locks."""

    def decide(self, name: str, **how: object) -> Any:
        """Plan it with ``dry_run``, or do it."""
        method, given, named = DECISIONS[name]
        return method(self.store, *given, reason=REASON, **named, **how)

    def reset(self, offsets: Any, **how: Any) -> Any:
        return self.store.reset(GROUP, offsets, reason=REASON, **how)

    def move_away_before(self, name: str) -> None:
        """A store that is at home can't be moved."""
        if name == "moved":
            with self.session() as one:
                move_away(one)

    def run_job(self, begin: int, *bad: int) -> None:
        """A job starts, passes ten records, some of them as letters, and ends."""
        with self.store.claim(GROUP, topics=[P0.topic], mirror_every=None) as claim:
            self.give(claim, {P0: OffsetRange(begin, begin + 10)}, *(dead(offset) for offset in bad))

    @pytest.fixture
    def left(self) -> None:
        """A group at 10 with two letters and two refused rows, whose job has ended, and which is paused."""
        self.again().close()
        self.run_job(0, 2, 4)
        with self.store.claim(GROUP, topics=["refunds"], mirror_every=None) as claim:
            self.give(claim, {REFUNDS: OffsetRange(0, 3)})
        self.store.pause(GROUP, until=UNTIL - timedelta(hours=1), reason=REASON)
        with self.session() as one:
            people(one).run(SET_ASIDE, group=GROUP)
            people(one).run(TAKE_RELAY)

    def state(self) -> tuple[Any, ...]:
        """All that a decision could change."""
        owner = self.owner()
        letters = sorted(self.store.letters(GROUP, contents=True).letters, key=lambda letter: letter.key)
        return (
            self.store.offsets(GROUP),
            self.stored(OTHER),
            self.store.history(GROUP),
            owner.token,
            owner.pause,
            letters,
        )

    def expect_changed(self, name: str, shown: str) -> str:
        """It is refused with the new plan, whose digest is returned."""
        before = self.state()
        with pytest.raises(PlanChanged, match="nothing was done") as caught:
            self.decide(name, if_plan=shown)
        assert self.state() == before
        with pytest.raises(PlanChanged):
            self.decide(name, dry_run=True, if_plan=shown)
        plan, planned = caught.value.plan, self.decide(name, dry_run=True)
        assert plan.digest == planned.digest == caught.value.found != shown == caught.value.expected
        assert (plan.executed, planned.executed) == (False, False)
        return plan.digest

    def test_these_are_all_decisions_that_show_a_plan(self) -> None:
        methods = {name: one for name, one in vars(OffsetStore).items() if inspect.isfunction(one)}
        showing = {name for name, one in methods.items() if "if_plan" in inspect.signature(one).parameters}
        assert {method.__name__ for method, *_ in DECISIONS.values()} == showing - {"_decide"}

    @pytest.mark.behaviour("DLQ-18", "OPS-10", "OPS-21")
    @pytest.mark.parametrize("name", DECISIONS)
    def test_what_has_changed_since_the_plan_was_shown_is_shown_first(self, left: None, name: str) -> None:
        self.move_away_before(name)
        shown = self.decide(name, dry_run=True).digest
        assert self.decide(name, dry_run=True, if_plan=shown).digest == shown
        for change in changes_of(name):
            with self.session() as one:
                change(one)
            shown = self.expect_changed(name, shown)
        if name in {*LETTERS, *DELETES}:  # letters that come are not decided about unseen
            self.run_job(15 if name in DELETES else 10, 17)
            shown = self.expect_changed(name, shown)
        if name in LETTERS:  # one that was reopened is another: its error may be
            self.reset({P0: 0})
            self.run_job(0, 2, 4)
            shown = self.expect_changed(name, shown)
        done = self.decide(name, if_plan=shown)
        assert (done.executed, done.digest) == (name != "resume", shown)
        assert in_words(done).outcome  # a plan without words would fail only after it was carried out

    @pytest.mark.behaviour("DLQ-18", "OPS-10", "OPS-21")
    @pytest.mark.parametrize("name", [name for name in DECISIONS if name != "prune"])
    def test_what_changes_while_a_decision_waits_for_its_locks_is_shown_first(self, left: None, name: str) -> None:
        """Someone else holds the row, changes it and commits after all that is looked at without a lock."""
        self.move_away_before(name)
        before = len(self.store.history(GROUP))
        for change in changes_of(name):
            planned = self.decide(name, dry_run=True)
            with ThreadPoolExecutor(1) as pool:
                with self.session() as one:
                    if name == "copy":  # it locks nothing of the group that it copies
                        one.lock_group(OTHER)
                    change(one)
                    waiting = pool.submit(self.decide, name, if_plan=planned.digest)
                    wait_until_locked_out(one, waiting)
                error = waiting.exception(WAIT)
            assert isinstance(error, PlanChanged)
            assert error.expected == planned.digest
        assert len(self.store.history(GROUP)) == before

    @pytest.mark.behaviour("OPS-21", "DLQ-18")
    def test_a_prune_waits_for_another_one_at_the_letters_and_never_for_a_jobs_work(self, left: None) -> None:
        self.store.discard(GROUP, ALL, reason=REASON)
        planned = self.decide("prune", dry_run=True)
        with ThreadPoolExecutor(1) as pool, self.session() as job:
            job.share_group(GROUP)  # as idle work and a replay hold it, for as long as they take
            with self.session() as other:
                keys = prunable(people(other), GROUP, FINAL, other.now(), limit=1, lock=True)
                assert prune_letters(people(other), GROUP, keys) == 1
                waiting = pool.submit(self.decide, "prune", if_plan=planned.digest)
                with pytest.raises(TimeoutError):
                    waiting.result(0.3)
            assert isinstance(error := waiting.exception(WAIT), PlanChanged)
            assert (planned.count, error.plan.count) == (2, 1)
            assert self.decide("prune", if_plan=error.plan.digest).count == 1
        assert self.store.letter_counts(GROUP) == {}

    @pytest.mark.behaviour("OPS-21", "DLQ-18")
    def test_a_letter_that_a_job_reopens_while_a_prune_waits_for_it_stays(self, left: None) -> None:
        self.store.discard(GROUP, ALL, reason=REASON)
        with ThreadPoolExecutor(1) as pool:
            with self.session() as job:
                job.write_letters(GROUP, [dead(2)])
                waiting = pool.submit(self.decide, "prune")
                with pytest.raises(TimeoutError):
                    waiting.result(0.3)
            assert waiting.result(WAIT).count == 1
        assert self.store.letter_counts(GROUP) == {"dead": 1}
        assert self.store.letter(GROUP, P0, 2).times == 2

    @pytest.mark.behaviour("OPS-21", "DLQ-18")
    def test_a_prune_deletes_the_letters_that_it_has_locked_and_no_other(
        self, left: None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Someone gives up another letter before the prune begins, and commits after its lock."""
        self.store.discard(GROUP, [at(4)], reason=REASON)
        write = PruneLetters.write
        with ExitStack() as other:
            settle(other.enter_context(self.session()))

            def commit_and_write(*given: Any) -> Any:
                other.close()
                return write(*given)

            monkeypatch.setattr(PruneLetters, "write", commit_and_write)
            assert self.decide("prune").count == 1
        assert self.store.letter(GROUP, P0, 2).state == "discarded"
        assert self.store.letter_counts(GROUP) == {"discarded": 1}

    @pytest.mark.behaviour("OPS-10")
    def test_a_pause_that_was_made_anew_is_another_one(self, left: None) -> None:
        planned = self.store.resume(GROUP, reason=REASON, dry_run=True)
        again = self.store.pause(GROUP, until=UNTIL - timedelta(hours=1), reason=REASON).after
        with pytest.raises(PlanChanged):
            self.store.resume(GROUP, reason=REASON, if_plan=planned.digest)
        assert self.owner().pause == again

    @pytest.mark.behaviour("OPS-10")
    def test_a_plan_is_for_one_decision_alone(self, left: None) -> None:
        digests = [self.decide(name, dry_run=True).digest for name in DECISIONS]
        digests += [
            self.store.pause(GROUP, until=UNTIL + timedelta(seconds=1), reason=REASON, dry_run=True).digest,
            self.store.pause(GROUP, reason=REASON, dry_run=True).digest,
            self.store.request_replay(GROUP, ALL, reason=REASON, dry_run=True).digest,
            self.store.discard(GROUP, at(2), reason=REASON, dry_run=True).digest,
            self.reset(ShiftBy(-2), partitions={P0.topic: [0]}, dry_run=True).digest,
            self.reset(ShiftBy(0), partitions="all", dry_run=True).digest,
            self.store.copy_group(GROUP, "another", reason=REASON, dry_run=True).digest,
        ]
        assert len(set(digests)) == len(digests)

    @pytest.mark.behaviour("OPS-10", "START-25")
    def test_evidence_that_came_after_the_plan_is_not_cleared_unseen(self, left: None) -> None:
        to_current: dict[str, Any] = {"offsets": ShiftBy(0), "partitions": "all", "reason": REASON}
        planned = self.store.reset(GROUP, **to_current, dry_run=True)
        assert planned.losses == {}
        self.broker.set_log(P0, 0, 5)
        with pytest.raises(OffsetOutOfRange):
            self.store.claim(GROUP, self.broker)
        self.broker.set_log(P0, 0, 100)
        with pytest.raises(LogTruncated):
            self.store.claim(GROUP, self.broker)

        with pytest.raises(PlanChanged) as caught:
            self.store.reset(GROUP, **to_current, if_plan=planned.digest)

        found = self.store.offsets(GROUP)[P0].suspect
        assert found is not None
        assert caught.value.plan.losses == {P0: found}
        self.store.reset(GROUP, **to_current, if_plan=caught.value.plan.digest)
        assert self.store.offsets(GROUP)[P0].suspect is None

    @pytest.mark.behaviour("OPS-1", "START-26")
    def test_a_reset_to_where_it_is_keeps_what_tells_a_truncated_log_unless_it_accepts_the_loss(
        self, left: None
    ) -> None:
        self.again().close()
        before = self.store.offsets(GROUP)[P0]
        assert before.pair is not None
        self.reset({P0: before.next_offset})
        assert self.store.offsets(GROUP)[P0].pair == before.pair
        with self.session() as one:
            suspect(one)
        self.reset({P0: before.next_offset})
        row = self.store.offsets(GROUP)[P0]
        assert (row.pair, row.suspect) == (None, None)

    # -- letters

    @pytest.mark.behaviour("DLQ-18")
    def test_letters_beyond_the_limit_and_those_of_other_errors_change_no_plan(self, left: None) -> None:
        planned = self.store.discard(GROUP, ALL, reason=REASON, limit=1, dry_run=True)
        self.run_job(10, 12)
        assert self.store.discard(GROUP, ALL, reason=REASON, limit=1, if_plan=planned.digest).letters == (at(2),)
        rejected = LetterFilter(cause="rejected")
        planned = self.store.discard(GROUP, rejected, reason=REASON, dry_run=True)
        assert not self.store.discard(GROUP, rejected, reason=REASON, if_plan=planned.digest).executed

    @pytest.mark.behaviour("DLQ-17", "DLQ-18")
    def test_a_letter_that_was_overtaken_since_is_in_the_new_plan_of_a_forced_replay(self, left: None) -> None:
        """It has no other effect that a plan could show: the replay may now replace later rows."""

        def other_digests() -> list[str]:
            plans = [self.store.discard(GROUP, which, reason=REASON, dry_run=True) for which in (ALL, at(12))]
            return [plan.digest for plan in plans]

        claim = self.again()
        self.give(claim, {P0: OffsetRange(10, 15)}, replace(dead(12), sequence=digest(P0, b"key")))
        planned = [
            self.store.request_replay(GROUP, which, reason=REASON, forced=True, dry_run=True) for which in (ALL, at(12))
        ]
        others = other_digests()
        assert [one.overtaken for one in planned] == [0, 0]
        self.give(claim, {P0: OffsetRange(15, 16)})

        for which, plan in zip((ALL, at(12)), planned, strict=True):
            with pytest.raises(PlanChanged) as caught:
                self.store.request_replay(GROUP, which, reason=REASON, forced=True, if_plan=plan.digest)
            assert caught.value.plan.overtaken == 1
        assert other_digests() == others

    # -- offsets

    @pytest.mark.behaviour("OPS-10")
    def test_what_a_live_job_stores_and_how_the_log_grows_change_no_reset(self) -> None:
        claim = self.again()
        targets: list[dict[str, Any]] = [
            {"offsets": target, "partitions": {P0.topic: None}, "broker": self.broker}
            for target in ("earliest", "latest", 3, ShiftBy(-1))
        ]
        self.give(claim, {P0: OffsetRange(0, 40), P1: OffsetRange(0, 30)})
        planned = [self.reset(**one, dry_run=True).digest for one in targets[:3]]
        self.give(claim, {P0: OffsetRange(40, 50)})
        self.broker.set_log(P0, 0, 120)
        assert [self.reset(**one, dry_run=True).digest for one in targets[:3]] == planned
        shifted: dict[str, Any] = {**targets[3], "partitions": {P0.topic: [0, 1]}}
        planned.append(self.reset(**shifted, dry_run=True).digest)
        self.give(claim, {P0: OffsetRange(50, 60)})
        done = self.reset(**shifted, if_plan=planned[3])
        assert [(move.from_offset, move.to_offset) for move in done.moves] == [(60, 59), (30, 29)]

        planned = [self.reset(**one, dry_run=True).digest for one in targets[:2]]
        self.broker.set_log(P0, 7, 130)
        again = [self.reset(**one, dry_run=True) for one in targets[:2]]
        assert (log := again[1].moves[0].log) is not None
        assert (log.beginning, log.end) == (7, 130)
        assert again[0].digest != planned[0]  # the beginning was removed: less is read again than was shown
        assert again[1].digest == planned[1]

        at_a_time: dict[str, Any] = {**targets[0], "offsets": datetime.now(UTC)}
        to_the_end = self.reset(**at_a_time, dry_run=True)
        assert to_the_end.moves[0].to_offset == 130
        self.broker.set_log(P0, 7, 140)
        later = self.reset(**at_a_time, dry_run=True)
        assert (later.moves[0].to_offset, later.digest) == (140, to_the_end.digest)
        self.broker.current = replace(self.broker.current, timestamps={P0: 139})
        with pytest.raises(PlanChanged):
            self.reset(**at_a_time, if_plan=to_the_end.digest)

    @pytest.mark.behaviour("OPS-10")
    @pytest.mark.parametrize("from_file", [True, False])
    def test_a_reset_forwards_is_another_once_the_job_has_passed_its_offset(self, *, from_file: bool) -> None:
        claim = self.again()
        self.give(claim, {P0: OffsetRange(0, 40)})
        to: dict[str, Any] = {"offsets": {P0: 50}} if from_file else {"offsets": 50, "partitions": {P0.topic: [0]}}
        planned = self.reset(**to, dry_run=True)
        assert (planned.passed_over, planned.read_again) == (10, 0)
        self.give(claim, {P0: OffsetRange(40, 45)})
        assert self.reset(**to, dry_run=True).digest == planned.digest
        self.give(claim, {P0: OffsetRange(45, 90)})
        with pytest.raises(PlanChanged) as caught:
            self.reset(**to, if_plan=planned.digest)
        assert (caught.value.plan.read_again, self.stored()[P0]) == (40, 90)

        latest: dict[str, Any] = {"offsets": "latest", "partitions": {P0.topic: [0]}, "broker": self.broker}
        planned = self.reset(**latest, dry_run=True)
        self.broker.set_log(P0, 0, 80)  # below the stored offset
        with pytest.raises(PlanChanged):
            self.reset(**latest, if_plan=planned.digest)

    @pytest.mark.behaviour("OPS-10")
    def test_letters_that_were_replayed_since_are_in_the_new_plan_of_a_reset(self, left: None) -> None:
        """The reset would write their rows twice."""
        planned = self.reset({P0: 0}, dry_run=True)
        with self.session() as one:
            decide_letters(people(one), GROUP, [at(2)], "requested", actor="bo", reason=REASON)
            assert one.mark_replayed(GROUP, [at(2)], actor="job") == 1
        with pytest.raises(PlanChanged) as caught:
            self.reset({P0: 0}, if_plan=planned.digest)
        assert (planned.replayed_letters, caught.value.plan.replayed_letters) == (0, 1)

    @pytest.mark.behaviour("OPS-10")
    def test_a_plan_that_is_gone_ends_no_transaction_of_a_newer_job(self, left: None) -> None:
        fencing = ("reset", "rename", *DELETES)
        planned = {name: self.decide(name, dry_run=True).digest for name in fencing}
        newer = self.again()
        with self.store.transaction(newer) as tx:
            ranges = {P0: OffsetRange(10, 11), NEW: OffsetRange(0, 5)}  # NEW is unknown: the group's row is held
            left_over = {tp: decision.remaining for tp, decision in tx.lock(ranges).items()}
            for name in fencing:
                with pytest.raises(PlanChanged):
                    self.decide(name, if_plan=planned[name], takeover="fence", takeover_timeout=0)
            tx.advance(left_over)
        assert self.stored()[P0] == 11

    @pytest.mark.behaviour("OPS-10")
    def test_a_job_that_claims_while_a_decision_waits_loses_no_transaction(
        self, left: None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It has the partitions' rows; they are not waited for, since the plan is another one anyway."""
        with self.session() as one:
            kind = type(one)
        lock = kind.lock_group
        for number, name in enumerate(("reset", "rename", *DELETES), start=10):
            planned = self.decide(name, dry_run=True)
            with ExitStack() as job:
                begun: list[tuple[Transaction, OffsetRange]] = []

                def claim_first(one: Session, group: str) -> Token:
                    monkeypatch.setattr(kind, "lock_group", lock)
                    tx = job.enter_context(self.store.transaction(self.again()))
                    begun.append((tx, tx.lock({P0: OffsetRange(number, number + 1)})[P0].remaining))  # noqa: B023
                    return lock(one, group)

                monkeypatch.setattr(kind, "lock_group", claim_first)
                with pytest.raises(PlanChanged):
                    self.decide(name, if_plan=planned.digest, takeover="fence", takeover_timeout=0)
                [(tx, remaining)] = begun
                tx.advance({P0: remaining})
            assert self.stored()[P0] == number + 1

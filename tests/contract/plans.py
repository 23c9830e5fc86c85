"""A decision does what its plan has shown, or nothing. See `tests.contract.suite`."""
# ruff: noqa: ARG002 - these are tests: the name is the docstring, fixtures and numbers are the point

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
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
from offsetstore.operations.wording import in_words
from offsetstore.protocol.database import NewOffset, Session
from offsetstore.protocol.letters import FINAL, LetterError, LetterKey, NewLetter, Payload, digest
from offsetstore.protocol.stored_letters import FailedReplay, LetterFilter
from offsetstore.store.sessions import transaction
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


def decide(name: str, store: OffsetStore, **how: object) -> Any:
    """Plan it with ``dry_run``, or do it."""
    method, given, named = DECISIONS[name]
    return method(store, *given, reason=REASON, **named, **how)


def session(store: OffsetStore) -> AbstractContextManager[Session]:
    """A transaction of someone else."""
    return transaction(store.database, name="someone-else", lock_timeout=WAIT)


def at(offset: int) -> LetterKey:
    """A letter as the database names it."""
    return LetterKey(P0, offset, "payments-id")


def dead(offset: int) -> NewLetter:
    """A letter."""
    return NewLetter(P0, offset, "raised", ERROR, 1, None, RECORD)


def run_job(store: OffsetStore, begin: int, *bad: int) -> None:
    """A job starts, passes ten records, some of them as letters, and ends."""
    claim = store.claim(GROUP, topics=[P0.topic], mirror_every=None)
    with store.transaction(claim) as tx:
        left = tx.lock({P0: OffsetRange(begin, begin + 10)})[P0].remaining
        tx.write_letters([dead(offset) for offset in bad])
        tx.advance({P0: left})
    claim.close()


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
    one.decide_letters(GROUP, [at(2)], "discarded", actor="bo", reason=REASON)


def fail_again(one: Session) -> None:
    """Replay a letter, which fails: it is dead as before."""
    one.lock_letters(GROUP, [at(4)])
    one.decide_letters(GROUP, [at(4)], "requested", actor="bo", reason=REASON)
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


def away(store: OffsetStore, name: str) -> None:
    """A store that is at home can't be moved."""
    if name == "moved":
        with session(store) as one:
            move_away(one)


def state(store: OffsetStore) -> tuple[Any, ...]:
    """All that a decision could change."""
    owner = store.owner(GROUP)
    assert owner is not None
    letters = sorted(store.letters(GROUP, contents=True).letters, key=lambda letter: letter.key)
    return store.offsets(GROUP), store.offsets(OTHER), store.history(GROUP), owner.token, owner.pause, letters


class PlanContract(ContractParts):
    """What was shown is compared with what is done, under the locks."""

    @pytest.fixture
    def left(self) -> None:
        """A group at 10 with two letters and two refused rows, whose job has ended, and which is paused."""
        self.store.claim(GROUP, self.broker, mirror_every=None).close()
        run_job(self.store, 0, 2, 4)
        with (
            self.store.claim(GROUP, topics=["refunds"], mirror_every=None) as claim,
            self.store.transaction(claim) as tx,
        ):
            tx.advance({REFUNDS: tx.lock({REFUNDS: OffsetRange(0, 3)})[REFUNDS].remaining})
        self.store.pause(GROUP, until=UNTIL - timedelta(hours=1), reason=REASON)
        with session(self.store) as one:
            people(one).run(SET_ASIDE, group=GROUP)
            people(one).run(TAKE_RELAY)

    def expect_changed(self, name: str, shown: str) -> str:
        """It is refused with the new plan, whose digest is returned."""
        before = state(self.store)
        with pytest.raises(PlanChanged, match="nothing was done") as caught:
            decide(name, self.store, if_plan=shown)
        assert state(self.store) == before
        with pytest.raises(PlanChanged):
            decide(name, self.store, dry_run=True, if_plan=shown)
        plan, planned = caught.value.plan, decide(name, self.store, dry_run=True)
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
        away(self.store, name)
        shown = decide(name, self.store, dry_run=True).digest
        assert decide(name, self.store, dry_run=True, if_plan=shown).digest == shown
        for change in changes_of(name):
            with session(self.store) as one:
                change(one)
            shown = self.expect_changed(name, shown)
        if name in {*LETTERS, *DELETES}:  # letters that come are not decided about unseen
            run_job(self.store, 15 if name in DELETES else 10, 17)
            shown = self.expect_changed(name, shown)
        if name in LETTERS:  # one that was reopened is another: its error may be
            self.store.reset(GROUP, {P0: 0}, reason=REASON)
            run_job(self.store, 0, 2, 4)
            shown = self.expect_changed(name, shown)
        done = decide(name, self.store, if_plan=shown)
        assert (done.executed, done.digest) == (name != "resume", shown)
        assert in_words(done).outcome  # a plan without words would fail only after it was carried out

    @pytest.mark.behaviour("DLQ-18", "OPS-10", "OPS-21")
    @pytest.mark.parametrize("name", [name for name in DECISIONS if name != "prune"])
    def test_what_changes_while_a_decision_waits_for_its_locks_is_shown_first(self, left: None, name: str) -> None:
        """Someone else holds the row, changes it and commits after all that is looked at without a lock."""
        away(self.store, name)
        before = len(self.store.history(GROUP))
        for change in changes_of(name):
            planned = decide(name, self.store, dry_run=True)
            with ThreadPoolExecutor(1) as pool:
                with session(self.store) as one:
                    if name == "copy":  # it locks nothing of the group that it copies
                        one.lock_group(OTHER)
                    change(one)
                    waiting = pool.submit(decide, name, self.store, if_plan=planned.digest)
                    wait_until_locked_out(one, waiting)
                error = waiting.exception(WAIT)
            assert isinstance(error, PlanChanged)
            assert error.expected == planned.digest
        assert len(self.store.history(GROUP)) == before

    @pytest.mark.behaviour("OPS-21", "DLQ-18")
    def test_a_prune_waits_for_another_one_at_the_letters_and_never_for_a_jobs_work(self, left: None) -> None:
        self.store.discard(GROUP, ALL, reason=REASON)
        planned = decide("prune", self.store, dry_run=True)
        with ThreadPoolExecutor(1) as pool, session(self.store) as job:
            job.share_group(GROUP)  # as idle work and a replay hold it, for as long as they take
            with session(self.store) as other:
                keys = people(other).lock_prunable(GROUP, FINAL, other.now(), limit=1)
                assert people(other).prune_letters(GROUP, keys) == 1
                waiting = pool.submit(decide, "prune", self.store, if_plan=planned.digest)
                with pytest.raises(TimeoutError):
                    waiting.result(0.3)
            assert isinstance(error := waiting.exception(WAIT), PlanChanged)
            assert (planned.count, error.plan.count) == (2, 1)
            assert decide("prune", self.store, if_plan=error.plan.digest).count == 1
        assert self.store.letter_counts(GROUP) == {}

    @pytest.mark.behaviour("OPS-21", "DLQ-18")
    def test_a_letter_that_a_job_reopens_while_a_prune_waits_for_it_stays(self, left: None) -> None:
        self.store.discard(GROUP, ALL, reason=REASON)
        with ThreadPoolExecutor(1) as pool:
            with session(self.store) as job:
                job.write_letters(GROUP, [dead(2)])
                waiting = pool.submit(decide, "prune", self.store)
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
            settle(other.enter_context(session(self.store)))

            def commit_and_write(*given: Any) -> Any:
                other.close()
                return write(*given)

            monkeypatch.setattr(PruneLetters, "write", commit_and_write)
            assert decide("prune", self.store).count == 1
        assert self.store.letter(GROUP, P0, 2).state == "discarded"
        assert self.store.letter_counts(GROUP) == {"discarded": 1}

    @pytest.mark.behaviour("OPS-10")
    def test_a_pause_that_was_made_anew_is_another_one(self, left: None) -> None:
        planned = self.store.resume(GROUP, reason=REASON, dry_run=True)
        again = self.store.pause(GROUP, until=UNTIL - timedelta(hours=1), reason=REASON).after
        with pytest.raises(PlanChanged):
            self.store.resume(GROUP, reason=REASON, if_plan=planned.digest)
        assert self.store.group_state(GROUP).pause == again

    @pytest.mark.behaviour("OPS-10")
    def test_a_plan_is_for_one_decision_alone(self, left: None) -> None:
        digests = [decide(name, self.store, dry_run=True).digest for name in DECISIONS]
        digests += [
            self.store.pause(GROUP, until=UNTIL + timedelta(seconds=1), reason=REASON, dry_run=True).digest,
            self.store.pause(GROUP, reason=REASON, dry_run=True).digest,
            self.store.request_replay(GROUP, ALL, reason=REASON, dry_run=True).digest,
            self.store.discard(GROUP, at(2), reason=REASON, dry_run=True).digest,
            self.store.reset(GROUP, ShiftBy(-2), partitions={P0.topic: [0]}, reason=REASON, dry_run=True).digest,
            self.store.reset(GROUP, ShiftBy(0), partitions="all", reason=REASON, dry_run=True).digest,
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
        self.store.claim(GROUP, self.broker, mirror_every=None).close()
        before = self.store.offsets(GROUP)[P0]
        assert before.pair is not None
        self.store.reset(GROUP, {P0: before.next_offset}, reason=REASON)
        assert self.store.offsets(GROUP)[P0].pair == before.pair
        with session(self.store) as one:
            suspect(one)
        self.store.reset(GROUP, {P0: before.next_offset}, reason=REASON)
        row = self.store.offsets(GROUP)[P0]
        assert (row.pair, row.suspect) == (None, None)

    # -- letters

    @pytest.mark.behaviour("DLQ-18")
    def test_letters_beyond_the_limit_and_those_of_other_errors_change_no_plan(self, left: None) -> None:
        planned = self.store.discard(GROUP, ALL, reason=REASON, limit=1, dry_run=True)
        run_job(self.store, 10, 12)
        assert self.store.discard(GROUP, ALL, reason=REASON, limit=1, if_plan=planned.digest).letters == (at(2),)
        rejected = LetterFilter(cause="rejected")
        planned = self.store.discard(GROUP, rejected, reason=REASON, dry_run=True)
        assert not self.store.discard(GROUP, rejected, reason=REASON, if_plan=planned.digest).executed

    @pytest.mark.behaviour("DLQ-17", "DLQ-18")
    def test_a_letter_that_was_overtaken_since_is_in_the_new_plan_of_a_forced_replay(self, left: None) -> None:
        """It has no other effect that a plan could show: the replay may now replace later rows."""
        claim = self.store.claim(GROUP, self.broker, mirror_every=None)
        with self.store.transaction(claim) as tx:
            ranges = tx.lock({P0: OffsetRange(10, 15)})
            tx.write_letters([replace(dead(12), sequence=digest(P0, b"key"))])
            tx.advance({P0: ranges[P0].remaining})
        planned = [
            self.store.request_replay(GROUP, which, reason=REASON, forced=True, dry_run=True) for which in (ALL, at(12))
        ]
        others = [
            decide("discard", self.store, dry_run=True).digest,
            self.store.discard(GROUP, at(12), reason=REASON, dry_run=True),
        ]
        assert [one.overtaken for one in planned] == [0, 0]
        with self.store.transaction(claim) as tx:
            tx.advance({P0: tx.lock({P0: OffsetRange(15, 16)})[P0].remaining})

        for which, plan in zip((ALL, at(12)), planned, strict=True):
            with pytest.raises(PlanChanged) as caught:
                self.store.request_replay(GROUP, which, reason=REASON, forced=True, if_plan=plan.digest)
            assert caught.value.plan.overtaken == 1
        assert others == [
            decide("discard", self.store, dry_run=True).digest,
            self.store.discard(GROUP, at(12), reason=REASON, dry_run=True),
        ]

    # -- offsets

    @pytest.mark.behaviour("OPS-10")
    def test_what_a_live_job_stores_and_how_the_log_grows_change_no_reset(self) -> None:
        claim = self.store.claim(GROUP, self.broker, mirror_every=None)
        targets: list[dict[str, Any]] = [
            {"offsets": target, "partitions": {P0.topic: None}, "broker": self.broker}
            for target in ("earliest", "latest", 3, ShiftBy(-1))
        ]
        self.give(claim, {P0: OffsetRange(0, 40), P1: OffsetRange(0, 30)})
        planned = [self.store.reset(GROUP, **one, reason=REASON, dry_run=True).digest for one in targets[:3]]
        self.give(claim, {P0: OffsetRange(40, 50)})
        self.broker.set_log(P0, 0, 120)
        assert [self.store.reset(GROUP, **one, reason=REASON, dry_run=True).digest for one in targets[:3]] == planned
        shifted: dict[str, Any] = {**targets[3], "partitions": {P0.topic: [0, 1]}}
        planned.append(self.store.reset(GROUP, **shifted, reason=REASON, dry_run=True).digest)
        self.give(claim, {P0: OffsetRange(50, 60)})
        done = self.store.reset(GROUP, **shifted, reason=REASON, if_plan=planned[3])
        assert [(move.from_offset, move.to_offset) for move in done.moves] == [(60, 59), (30, 29)]

        planned = [self.store.reset(GROUP, **one, reason=REASON, dry_run=True).digest for one in targets[:2]]
        self.broker.set_log(P0, 7, 130)
        again = [self.store.reset(GROUP, **one, reason=REASON, dry_run=True) for one in targets[:2]]
        assert (log := again[1].moves[0].log) is not None
        assert (log.beginning, log.end) == (7, 130)
        assert again[0].digest != planned[0]  # the beginning was removed: less is read again than was shown
        assert again[1].digest == planned[1]

        at_a_time: dict[str, Any] = {**targets[0], "offsets": datetime.now(UTC)}
        to_the_end = self.store.reset(GROUP, **at_a_time, reason=REASON, dry_run=True)
        assert to_the_end.moves[0].to_offset == 130
        self.broker.set_log(P0, 7, 140)
        later = self.store.reset(GROUP, **at_a_time, reason=REASON, dry_run=True)
        assert (later.moves[0].to_offset, later.digest) == (140, to_the_end.digest)
        self.broker.current = replace(self.broker.current, timestamps={P0: 139})
        with pytest.raises(PlanChanged):
            self.store.reset(GROUP, **at_a_time, reason=REASON, if_plan=to_the_end.digest)

    @pytest.mark.behaviour("OPS-10")
    @pytest.mark.parametrize("from_file", [True, False])
    def test_a_reset_forwards_is_another_once_the_job_has_passed_its_offset(self, *, from_file: bool) -> None:
        claim = self.store.claim(GROUP, self.broker, mirror_every=None)
        self.give(claim, {P0: OffsetRange(0, 40)})
        to: dict[str, Any] = {"offsets": {P0: 50}} if from_file else {"offsets": 50, "partitions": {P0.topic: [0]}}
        planned = self.store.reset(GROUP, **to, reason=REASON, dry_run=True)
        assert (planned.passed_over, planned.read_again) == (10, 0)
        self.give(claim, {P0: OffsetRange(40, 45)})
        assert self.store.reset(GROUP, **to, reason=REASON, dry_run=True).digest == planned.digest
        self.give(claim, {P0: OffsetRange(45, 90)})
        with pytest.raises(PlanChanged) as caught:
            self.store.reset(GROUP, **to, reason=REASON, if_plan=planned.digest)
        assert caught.value.plan.read_again == 40
        assert self.store.offsets(GROUP)[P0].next_offset == 90

    @pytest.mark.behaviour("OPS-10")
    def test_a_reset_to_the_latest_is_another_once_the_log_ends_below_the_stored_offset(self) -> None:
        with self.store.claim(GROUP, self.broker, mirror_every=None) as claim:
            self.give(claim, {P0: OffsetRange(0, 40)})
        to: dict[str, Any] = {"offsets": "latest", "partitions": {P0.topic: [0]}, "broker": self.broker}
        planned = self.store.reset(GROUP, **to, reason=REASON, dry_run=True)
        self.broker.set_log(P0, 0, 30)
        with pytest.raises(PlanChanged):
            self.store.reset(GROUP, **to, reason=REASON, if_plan=planned.digest)

    @pytest.mark.behaviour("OPS-10")
    def test_letters_that_were_replayed_since_are_in_the_new_plan_of_a_reset(self, left: None) -> None:
        """The reset would write their rows twice."""
        planned = self.store.reset(GROUP, {P0: 0}, reason=REASON, dry_run=True)
        with session(self.store) as one:
            one.decide_letters(GROUP, [at(2)], "requested", actor="bo", reason=REASON)
            assert one.mark_replayed(GROUP, [at(2)], actor="job") == 1
        with pytest.raises(PlanChanged) as caught:
            self.store.reset(GROUP, {P0: 0}, reason=REASON, if_plan=planned.digest)
        assert (planned.replayed_letters, caught.value.plan.replayed_letters) == (0, 1)

    @pytest.mark.behaviour("OPS-10")
    def test_a_plan_that_is_gone_ends_no_transaction_of_a_newer_job(self, left: None) -> None:
        fencing = ("reset", "rename", *DELETES)
        planned = {name: decide(name, self.store, dry_run=True).digest for name in fencing}
        newer = self.store.claim(GROUP, self.broker, mirror_every=None)
        with self.store.transaction(newer) as tx:
            ranges = {P0: OffsetRange(10, 11), NEW: OffsetRange(0, 5)}  # NEW is unknown: the group's row is held
            left_over = {tp: decision.remaining for tp, decision in tx.lock(ranges).items()}
            for name in fencing:
                with pytest.raises(PlanChanged):
                    decide(name, self.store, if_plan=planned[name], takeover="fence", takeover_timeout=0)
            tx.advance(left_over)
        assert self.store.offsets(GROUP)[P0].next_offset == 11

    @pytest.mark.behaviour("OPS-10")
    def test_a_job_that_claims_while_a_decision_waits_loses_no_transaction(
        self, left: None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It has the partitions' rows; they are not waited for, since the plan is another one anyway."""
        with session(self.store) as one:
            kind = type(one)
        lock = kind.lock_group
        for number, name in enumerate(("reset", "rename", *DELETES), start=10):
            planned = decide(name, self.store, dry_run=True)
            with ExitStack() as job:
                begun: list[tuple[Transaction, OffsetRange]] = []

                def claim_first(one: Session, group: str) -> Token:
                    monkeypatch.setattr(kind, "lock_group", lock)
                    tx = job.enter_context(
                        self.store.transaction(self.store.claim(GROUP, self.broker, mirror_every=None))
                    )
                    begun.append((tx, tx.lock({P0: OffsetRange(number, number + 1)})[P0].remaining))  # noqa: B023
                    return lock(one, group)

                monkeypatch.setattr(kind, "lock_group", claim_first)
                with pytest.raises(PlanChanged):
                    decide(name, self.store, if_plan=planned.digest, takeover="fence", takeover_timeout=0)
                [(tx, remaining)] = begun
                tx.advance({P0: remaining})
            assert self.store.offsets(GROUP)[P0].next_offset == number + 1

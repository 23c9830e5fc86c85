"""Jobs, crashes and decisions in any order: offsetstore on a real PostgreSQL and the plain `model`, side by side.

A step is made on both, and must lead to the same; then all that is stored must be the same. And whatever the model
says, what the tables hold must satisfy what is promised of them: see the invariants at the end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule, run_state_machine_as_test

from offsetstore.offsets import CommittedOffset
from offsetstore.protocol.retries import Retries
from offsetstore.protocol.store_facts import Stamp
from offsetstore.store import acquire, mirror
from tests.faults.state_machine import model
from tests.faults.state_machine.model import DONE, KEEP, Ranges
from tests.faults.state_machine.real import END, TOPIC, Found, Side, tp
from tests.faults.state_machine.steps import Steps, told
from tests.support.proxy import Lost

MOST_PARTITIONS = 4

jobs = st.sampled_from((0, 0, 0, 1, 2))  # mostly the one that is not stale
# For a partition, how far before the stored offset a range begins, and how long it is: mostly what comes next.
asked = st.dictionaries(
    st.integers(0, MOST_PARTITIONS - 1),
    st.tuples(st.sampled_from((0, 0, 0, 1, 3, -1)), st.sampled_from((2, 1, 4, 0))),
    max_size=3,
)
steps = st.dictionaries(st.integers(0, MOST_PARTITIONS - 1), st.integers(-5, 5), min_size=1, max_size=2)
decisions = st.sampled_from(("reset", "rename", "rename back", "delete"))
some = st.sets(st.integers(0, MOST_PARTITIONS - 1), min_size=1, max_size=2)
metadata = st.sampled_from((KEEP, KEEP, None, "a", {"n": [1]}))
mostly = st.sampled_from((True, True, True, False))
seldom = st.sampled_from((False, False, False, True))
seldom_lost = st.sampled_from((None, None, None, Lost.COMMIT, Lost.ANSWER))
# What happens between the loss of a COMMIT and its job's noticing it.
meanwhile = st.sampled_from(("nothing", "claim", "claim and advance", "reset", "rename", "delete"))


class StoreMachine(Steps):
    """Up to three jobs, of which at most one is not stale; two may share a claim, as a task and its twin do.

    Or several are members of a fleet, each with partitions of its own.

    A rule under two names is chosen twice as often.
    """

    @initialize(sees_kafka=mostly)
    def begin_with_a_job(self, *, sees_kafka: bool) -> None:
        self._claim(sees_kafka=sees_kafka)

    is_fleet = False

    def _now_and_then(self, calm: int) -> bool:
        """Whether a claim or a decision may come in: among members of a fleet seldom."""
        return self.calm % 9 == 8 if self.is_fleet else self.calm > calm

    @precondition(lambda self: self._now_and_then(3) or not self._has_owner())
    @rule(sees_kafka=mostly, politely=seldom, lost=seldom_lost)
    def claim(self, *, sees_kafka: bool, politely: bool, lost: Lost | None) -> None:
        if len(self.jobs) == 3:
            self._kill(max(self.jobs, key=self._is_stale))
        self._claim(sees_kafka=sees_kafka, politely=politely, lost=lost)

    claim_more = claim

    @precondition(lambda self: self.calm > 3 or self.model.has_fleet() or not self._has_owner())
    @rule(elsewhere=seldom, politely=seldom, lost=seldom_lost)
    def join(self, *, elsewhere: bool, politely: bool, lost: Lost | None) -> None:
        if len(self.jobs) == 3:
            self._kill(max(self.jobs, key=self._is_stale))
        self._join(elsewhere=elsewhere and self.calm > 3, politely=politely, lost=lost)

    @precondition(lambda self: any(self._is_member(number) for number in self.jobs))
    @rule(job=st.integers(0, 2), partitions=some, lost=seldom_lost)
    def assign(self, job: int, partitions: set[int], lost: Lost | None) -> None:
        """Kafka gives partitions to a member, or has given them to it some time ago; their owner may be frozen."""
        self._assign(self._one(job, self._is_member), {one % self.model.partitions for one in partitions}, lost)

    @precondition(lambda self: self.calm % 3 == 2 and any(self._is_member(number) for number in self.jobs))
    @rule(job=st.integers(0, 2), partitions=some)
    def release(self, job: int, partitions: set[int]) -> None:
        """Kafka takes partitions from a member, or it has lost them."""
        self._release(self._one(job, self._is_member), {one % self.model.partitions for one in partitions})

    @precondition(lambda self: 0 < len(self.jobs) < 3)
    @rule(job=jobs)
    def start_a_twin(self, job: int) -> None:
        """A second task with the same claim, as Spark's speculation starts it."""
        number, free = self._one(job), self._free()
        self._start(free, self.jobs[number].claim, self.claims[number])
        self._begin(free)

    @precondition(lambda self: self.calm > 3 and len(self.model.names) > 1)
    @rule(which=st.integers(0, 5), sees_kafka=mostly)
    def claim_by_a_former_name(self, which: int, *, sees_kafka: bool) -> None:
        former = [name for name in self.model.names if name != self.model.name]
        name, broker = former[which % len(former)], self.kafka if sees_kafka else None
        expected = self.model.claim(name, sees_kafka=sees_kafka)
        assert expected in {"GroupRenamed", "StoreRewound"}
        assert told(lambda: self.store.claim(name, broker, topics=[TOPIC], takeover_timeout=0.05)) == expected

    @precondition(lambda self: self.calm > 6 and not any(work.holds_locks for work in self.model.open))
    @rule(job=jobs)
    def leave(self, job: int) -> None:
        """A job ends well; its mirror copies the offsets to Kafka."""
        number = self._one(job)
        if number in self.work:
            self._roll_back(number)
        self._leave(number)

    @precondition(lambda self: any(self._may_lock(number) for number in self.jobs))
    @rule(job=jobs, ranges=asked, again=seldom)
    def lock(self, job: int, ranges: Ranges, *, again: bool) -> None:
        """Begin a batch: a new one, or the last one of this job again."""
        number = self._one(job, self._may_lock)
        if number not in self.work:
            self._begin(number)
        self._lock(number, self._wanted(number, ranges, again=again))

    lock_more = lock

    def _may_lock(self, number: int) -> bool:
        return number not in self.work or self.work[number].left is None

    @precondition(lambda self: any(self._is_locked(number) for number in self.work))
    @rule(
        job=jobs,
        count=st.sampled_from((3, 1, 2)),
        fewer=st.sampled_from((0, 0, 0, 1)),
        note=metadata,
        lost=seldom_lost | st.just(Lost.CONNECTION),
        then=meanwhile,
    )
    def go_on(self, job: int, note: object, lost: Lost | None, then: str, *, count: int, fewer: int) -> None:
        """The next steps of a batch, up to three: write, advance (all, or leave some for later), commit."""
        number = self._one(job, self._is_locked)
        for _ in range(count):
            work = self.work.get(number)
            if work is None:
                return
            if work.left and not work.is_written:
                self._write(number)
            elif partitions := sorted((work.left or {}).keys() - work.advanced.keys())[fewer:]:
                self._advance(number, partitions, note)
            elif lost is not None and self._may_be_lost(work):
                self._lose_the_commit(number, lost, then)
            else:
                self._commit(number)

    go_on_more = go_on_still_more = go_on

    def _is_locked(self, number: int) -> bool:
        return number in self.work and self.work[number].left is not None

    @precondition(lambda self: len(self.work) < len(self.jobs))
    @rule(job=jobs, ranges=asked, again=seldom, note=metadata, lost=seldom_lost, then=meanwhile)
    def run(self, job: int, ranges: Ranges, note: object, lost: Lost | None, then: str, *, again: bool) -> None:
        number = self._one(job, lambda number: number not in self.work)
        self._run(number, self._wanted(number, ranges, again=again), note, lost, then)

    run_more = run

    @precondition(lambda self: self.work)
    @rule(job=jobs, how=st.sampled_from(("commits too early", "fails", "is cut off", "is killed")))
    def break_off(self, job: int, how: str) -> None:
        number = self._one(job, lambda number: number in self.work)
        if how == "commits too early":
            self._commit(number)
        elif how == "fails":
            self._roll_back(number)
        elif how == "is cut off" and not self.work[number].is_lost:
            self._cut_off(number)
        else:
            self._kill(number)

    @precondition(lambda self: self._now_and_then(5))
    @rule(decision=decisions, changes=steps, lost=seldom_lost)
    def decide(self, decision: str, changes: dict[int, int], lost: Lost | None) -> None:
        if decision == "reset":
            self._reset(changes, lost)
        elif decision == "delete":
            self._delete(lost)
        else:
            self._rename(lost, is_back=decision == "rename back")

    @precondition(lambda self: not self.jobs or self.calm % 4 == 3)
    @rule(is_new=st.booleans(), changes=steps)
    def something_changes_in_kafka(self, *, is_new: bool, changes: dict[int, int]) -> None:
        """A partition is added, or another tool commits offsets of the group."""
        if is_new and self.model.partitions < MOST_PARTITIONS:
            self.model.partitions += 1
            self.kafka.set_log(tp(self.model.partitions - 1), 0, END)
            return
        if self._has_owner():
            return  # its mirror would notice, and the model has no contest
        name = self.model.name
        for number, change in self._partitions(changes).items():
            offset = max(0, self._stored(number) + change)
            self.model.kafka[name, number] = model.Copy(offset, None)
            self.kafka.commit(name, {tp(number): CommittedOffset(offset)})

    # -- what must hold after each step

    @invariant()
    def what_is_stored_is_right(self) -> None:
        self.calm = self.calm + 1 if self._has_owner() else 0
        found = self.side.look(self.example)
        for number, claim in self.claims.items():
            if claim.fleet:
                assert self.jobs[number].claim.partitions == {tp(one) for one in claim.known}
        self._is_as_the_model_has_it(found)
        assert_each_record_is_there_once(found)
        assert_offsets_move_without_a_gap(found)
        self._is_as_it_was_reported(found)

    def _is_as_the_model_has_it(self, found: Found) -> None:
        expected = {(self.model.name, number): row for number, row in self.model.rows.items()}
        assert {key: (row.next_offset, row.metadata, row.pinned) for key, row in found.rows.items()} == {
            key: (row.next_offset, row.metadata, row.pinned) for key, row in expected.items()
        }
        for key, row in found.rows.items():
            token = self.tokens.get(expected[key].claim)
            assert row.token == token if token else row.token not in self.tokens.values()
        assert found.history == {name: events for name in self.model.names if (events := self.model.events(name))}
        assert found.results == Counter(self.model.results)
        copies = {
            (group, one.partition): (copy.next_offset, Stamp.of(copy) is not None)
            for group, offsets in self.kafka.committed.items()
            for one, copy in offsets.items()
        }
        assert copies == {key: (copy.offset, copy.stamp is not None) for key, copy in self.model.kafka.items()}

    def _is_as_it_was_reported(self, found: Found) -> None:
        """I6: what was reported committed is visible, and what was reported failed is not; unknown may be either."""
        done = {transaction for transaction, outcome in self.reported.items() if outcome == DONE}
        unknown = {transaction for transaction, outcome in self.reported.items() if outcome == "CommitUnknown"}
        assert done <= found.writers <= done | unknown


class FleetMachine(StoreMachine):
    """The same, where most processes are members of a fleet, and few jobs come in between."""

    is_fleet = True
    claim_more = None

    @initialize()
    def begin_with_a_job(self) -> None:  # pyright: ignore[reportIncompatibleMethodOverride] - it begins in its place
        for number in range(2):
            self._join(elsewhere=False, politely=True)
            self._assign(number, {number}, None)


def assert_each_record_is_there_once(found: Found) -> None:
    """I1 and I2: once for each time that the offset was advanced over it, and twice only where a decision went back."""
    decisions = found.decisions()
    expected: Counter[tuple[int, int]] = Counter()
    for partition, moves in found.moves.items():
        decided = Counter((start, to) for one, start, to in decisions if one == partition)
        advances = Counter((start, to) for start, to in moves if start is not None and to is not None) - decided
        expected.update((partition, offset) for start, to in advances.elements() for offset in range(start, to))
    assert found.results == expected
    for (partition, offset), count in found.results.items():
        assert count <= 1 + sum(one == partition and to <= offset < start for one, start, to in decisions)


def assert_offsets_move_without_a_gap(found: Found) -> None:
    """I4: each move starts where the last one ended, and only a decision goes back."""
    decisions = found.decisions()
    for partition, moves in found.moves.items():
        assert [start for start, _ in moves] == [None, *(to for _, to in moves)][:-1]
        assert all(
            (to is not None and to > start) or (partition, start, to or 0) in decisions
            for start, to in moves
            if start is not None
        )


@pytest.fixture
def side(offsetstore_database: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Side]:
    monkeypatch.setattr(acquire, "_PAUSE", 0)
    monkeypatch.setattr(acquire, "_RETRIES", Retries(3, shortest=0.001, longest=0.01))
    monkeypatch.setattr(mirror, "LAST_COMMIT", 60.0)  # a job that leaves has copied its offsets, however busy all is
    made = Side(offsetstore_database)
    yield made
    made.close()


@pytest.mark.timeout(4 * 3600)  # for HYPOTHESIS_PROFILE=search
@pytest.mark.parametrize("kind", [StoreMachine, FleetMachine], ids=["jobs", "fleets"])
def test_jobs_crashes_and_decisions_in_any_order(side: Side, kind: type[StoreMachine]) -> None:
    asked_for = settings().max_examples
    examples = settings(
        max_examples=asked_for if asked_for > 100 else 10,
        stateful_step_count=50,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )

    class Machine(kind):
        def __init__(self) -> None:
            super().__init__(side)

    run_state_machine_as_test(Machine, settings=examples)

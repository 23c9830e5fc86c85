"""The steps of `test_state_machine`, each made on offsetstore and on the plain `model`, and compared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from hypothesis.stateful import RuleBasedStateMachine

from offsetstore import Claim, Transaction
from offsetstore.errors import OffsetStoreError
from offsetstore.protocol.metadata import KEEP as KEPT
from offsetstore.protocol.starting import StartPolicy
from offsetstore.store.claim import ClaimRequest
from offsetstore.store.fleet import Member, join
from tests.faults.state_machine import model
from tests.faults.state_machine.model import DONE, KEEP, Model, Ranges, Work
from tests.faults.state_machine.real import (
    ATTEMPTS,
    END,
    TOPIC,
    Job,
    Kafka,
    Side,
    lock_ranges,
    outcomes,
    tp,
    write_results,
)
from tests.support.proxy import ADVANCE, CLAIM, JOIN, Lost
from tests.support.waiting import wait_until

_T = TypeVar("_T")

UNKNOWN = "CommitUnknown"

PARTITIONS = 2
MOST_OF_OWN = 3
HOW: dict[str, Any] = {"reason": "because", "takeover_timeout": 0.05}


class Steps(RuleBasedStateMachine):
    """Jobs by number: their claims, their open transactions; what was reported, by the numbers of those that wrote.

    ``calm`` counts the steps since the group last had no job that may write.
    """

    def __init__(self, side: Side) -> None:
        super().__init__()
        self.side = side
        self.example, self.store = side.new_example()
        self.model = Model(f"{self.example}/0", PARTITIONS)
        self.kafka = Kafka.with_topics({TOPIC: PARTITIONS}, end=END)
        self.jobs: dict[int, Job] = {}
        self.claims: dict[int, model.Claim] = {}
        self.work: dict[int, Work] = {}
        self.tokens: dict[int, Any] = {}
        self.transactions = 0
        self.reported: dict[int, str] = {}
        self.calm = 0
        self.members: list[Member] = []

    # -- job start and end

    def _claim(self, *, sees_kafka: bool, politely: bool = False, lost: Lost | None = None) -> int:
        """Return the job that was started; -1 if none was."""
        name = self.model.name
        expected = self.model.claim(name, sees_kafka=sees_kafka, politely=politely)
        if lost is Lost.ANSWER and isinstance(expected, model.Claim):
            # The claim that it does not know of, and the one that it makes after it.
            expected = self.model.claim(name, sees_kafka=sees_kafka)

        def claim() -> Claim:
            return self.store.claim(
                name,
                self.kafka if sees_kafka else None,
                topics=[TOPIC],
                takeover="refuse" if politely else "fence",
                takeover_timeout=0.05,
                mirror_every=1e6,  # the copy is made when the job leaves
            )

        found = self._losing(lost, CLAIM, claim, expected)
        if isinstance(expected, str) or isinstance(found, str):
            _same(found, expected)
            return -1
        if found.starting is not None:
            assert {one.partition: offset for one, offset in found.starting.offsets.items()} == expected.starts
        number = self._free()
        self.tokens[expected.number] = found.token
        self._start(number, found, expected)
        return number

    def _join(self, *, elsewhere: bool, politely: bool, lost: Lost | None = None) -> None:
        """A process joins the group's fleet, or founds one, of the group of that name in Kafka or of another."""
        name = self.model.name
        kafka_group = f"{name}+elsewhere" if elsewhere else name
        expected = self.model.join(name, kafka_group, politely=politely)
        takeover = "refuse" if politely else "fence"
        request = ClaimRequest(name, self.kafka, (TOPIC,), StartPolicy(), takeover, 0.05, kafka_group)
        # If it was told that it failed, it looks again, and finds itself a member, or its fleet.
        found = self._losing(lost, JOIN, lambda: join(self.store, request), expected)
        if isinstance(expected, str) or isinstance(found, str):
            _same(found, expected)
            return
        self.members.append(found)
        self.tokens |= {expected.number: found.token, expected.fleet: found.fleet}
        self._start(self._free(), found, expected)

    def _assign(self, number: int, partitions: set[int], lost: Lost | None) -> None:
        member, of_model = self._member(number)
        expected = self.model.assign(of_model, partitions)

        def assign() -> dict[int, int]:
            return {one.partition: at for one, at in member.assign([tp(one) for one in partitions]).offsets.items()}

        _same(self._losing(lost, CLAIM, assign, expected), expected)

    def _release(self, number: int, partitions: set[int]) -> None:
        member, of_model = self._member(number)
        self.model.release(of_model, partitions)
        member.release([tp(one) for one in partitions])

    def _member(self, number: int) -> tuple[Member, model.Claim]:
        member = self.jobs[number].claim
        assert isinstance(member, Member)
        return member, self.claims[number]

    def _is_member(self, number: int) -> bool:
        return bool(self.claims[number].fleet) and not self.claims[number].left

    def _free(self) -> int:
        return next(number for number in range(3) if number not in self.jobs)

    def _start(self, number: int, claim: Claim, expected: model.Claim) -> None:
        self.jobs[number] = Job(claim, self.side.threads[number])
        self.claims[number] = expected

    def _leave(self, number: int) -> None:
        self.model.leave(self.claims[number])
        self.jobs[number].claim.close()
        self._forget(number)

    def _kill(self, number: int) -> None:
        """The job's process is gone, and says nothing to anybody."""
        work = self.work.pop(number, None)
        if work is not None:
            self.model.roll_back(work)
            self.jobs[number].crash(self.side.outside)
            self._report(number, "killed")
        self._forget(number)

    def _forget(self, number: int) -> None:
        del self.jobs[number], self.claims[number]

    # -- a transaction, step by step

    def _begin(self, number: int) -> None:
        self.work[number] = self.model.begin(self.claims[number])
        self.jobs[number].begin(self.store)

    def _lock(self, number: int, wanted: Ranges) -> None:
        expected = self.model.lock(self.work[number], wanted)
        found = told(lambda: self.jobs[number].lock(wanted))
        _same(found, expected)
        self._ends_if(number, expected)

    def _write(self, number: int) -> None:
        self.transactions += 1
        work, label = self.work[number], self.transactions
        expected = self.model.write(work)
        done = self._do(number, lambda: self.jobs[number].write(self.example, label), expected)
        if done and any((work.left or {}).values()):
            self.jobs[number].label = label

    def _advance(self, number: int, partitions: list[int], note: object) -> None:
        expected = self.model.advance(self.work[number], set(partitions), note)
        value = KEPT if note is KEEP else note
        self._do(number, lambda: self.jobs[number].advance(partitions, metadata=value), expected)

    def _commit(self, number: int) -> None:
        work = self.work.pop(number)
        expected = self.model.may_commit(work)
        if expected == DONE:
            self.model.commit(work)
            self.model.learn(work)
        else:
            self.model.roll_back(work)
        found = told(self.jobs[number].commit) or DONE
        self._report(number, found)
        _same(found, expected)

    def _roll_back(self, number: int) -> None:
        self.model.roll_back(self.work.pop(number))
        self.jobs[number].roll_back()
        self._report(number, "an error of its own")

    def _cut_off(self, number: int) -> None:
        pid = self.jobs[number].backend
        assert self.side.outside.one(f"SELECT pg_terminate_backend({pid}, 60000)"), "nothing was terminated"
        self.work[number].is_lost = True

    # -- a COMMIT that is lost

    def _may_be_lost(self, work: Work) -> bool:
        """Whether it is all that stands before the end, and nobody else is in the way of looking what became of it."""
        others = (other for other in self.model.open if other is not work)
        is_whole = bool(work.advanced) and self.model.may_commit(work) == DONE
        return is_whole and not any(other.holds_locks for other in others)

    def _lose_the_commit(self, number: int, lost: Lost, then: str) -> None:
        work = self.work.pop(number)
        found = self._lose(work, lost, then, self.jobs[number].commit) or DONE
        self._report(number, UNKNOWN if found == "PartitionLost" else found)
        answers = self.model.answers(work, happened=lost is Lost.ANSWER)
        assert found in answers, f"{found}, and the model says {answers}"
        if found == DONE:
            self.model.learn(work)
        elif found == "PartitionLost":
            self.model.let_go(work)

    def _lose(self, work: Work, lost: Lost, then: str, commit: Callable[[], _T]) -> _T | str:
        """Lose a COMMIT that would have been well; what it leads to is judged by the caller, after ``then``."""
        if lost is Lost.CONNECTION and then == "nothing":
            lost = Lost.COMMIT  # or the test would wait for as long as the job does
        if lost is Lost.ANSWER:
            self.model.commit(work)
        else:
            self.model.roll_back(work)
        with self.side.proxy.losing(lost, after=ADVANCE, then=lambda: self._meanwhile(work, then)):
            return told(commit)

    def _meanwhile(self, work: Work, then: str) -> None:
        first = min(work.advanced)
        if then == "rename":
            self._rename(None, is_back=False)
        elif then == "delete":
            self._delete(None)
        elif then == "claim and advance" and (others := self._others(work)):
            self._assign(others[0], {*work.advanced}, None)
            self._run(others[0], {one: (at := self._stored(one), at + 1) for one in work.advanced}, KEEP, None)
        elif then == "reset" or (then != "nothing" and len(self.jobs) == 3):
            self._reset({first: -1})
        elif then != "nothing":
            job = self._claim(sees_kafka=False)
            if then == "claim and advance":
                self._run(job, self._wanted(job, {first: (0, 1)}, again=False), KEEP, None)

    def _others(self, work: Work) -> list[int]:
        """The other members of its fleet that have no open transaction."""
        claim = work.claim
        if not claim.fleet or self.model.is_stale(claim):
            return []
        return [
            number
            for number, one in self.claims.items()
            if one is not claim and one.fleet == claim.fleet and self._is_member(number) and number not in self.work
        ]

    # -- a whole batch, repeated as `OffsetStore.run` does

    def _run(self, number: int, ranges: Ranges, note: object, lost: Lost | None, then: str = "nothing") -> None:
        job, claim = self.jobs[number], self.claims[number]
        tried: list[int] = []

        def work(tx: Transaction) -> dict[int, str]:
            self.transactions += 1
            tried.append(self.transactions)
            plan = lock_ranges(tx, ranges)
            write_results(tx, plan, self.example, self.transactions)
            left = {one: decision.remaining for one, decision in plan.items() if decision.remaining}
            tx.advance(left, metadata=KEPT if note is KEEP else note)
            return outcomes(plan)

        def run() -> dict[int, str]:
            return job.call(lambda: self.store.run(job.claim, work))

        is_unknown = False
        first, expected = self._try(claim, ranges, note)
        if lost is None or isinstance(expected, str) or not self._may_be_lost(first):
            self._settle(first, expected)
            found = told(run)
        else:
            found = self._lose(first, lost, then, run)
            answers = self.model.answers(first, happened=lost is Lost.ANSWER)
            if isinstance(found, str) and found in answers & {UNKNOWN, "PartitionLost"}:
                expected, is_unknown = found, True
                if found == "PartitionLost":
                    self.model.let_go(first)
            elif DONE in answers:
                self.model.learn(first)
            else:
                first, expected = self._try(claim, ranges, note)
                self._settle(first, expected)
        for label in tried[:-1]:
            self.reported[label] = "failed, and was repeated"
        if isinstance(found, str):
            self.reported |= dict.fromkeys(tried[-1:], UNKNOWN if is_unknown else found)
        elif set(found.values()) - {"skip"}:
            self.reported[tried[-1]] = DONE
        _same(found, expected)
        assert len(tried) == ATTEMPTS if found == "LockTimeout" else len(tried) <= 2

    def _try(self, claim: model.Claim, ranges: Ranges, note: object) -> tuple[Work, dict[int, str] | str]:
        work = self.model.begin(claim)
        planned = self.model.lock(work, ranges)
        if not isinstance(planned, str):
            self.model.write(work)
            self.model.advance(work, {one for one, left in (work.left or {}).items() if left}, note)
        return work, planned

    def _settle(self, work: Work, planned: dict[int, str] | str) -> None:
        if isinstance(planned, str):
            self.model.roll_back(work)
        else:
            self.model.commit(work)
            self.model.learn(work)

    # -- what an operator decides

    def _reset(self, changes: dict[int, int], lost: Lost | None = None) -> None:
        name = self.model.name
        offsets = {one: max(0, self._stored(one) + change) for one, change in self._partitions(changes).items()}
        expected = self.model.reset(offsets, happens=lost is not Lost.COMMIT)
        to = {tp(number): offset for number, offset in offsets.items()}
        self._decide(expected, lost, lambda: self.store.reset(name, to, **HOW))

    def _rename(self, lost: Lost | None, *, is_back: bool) -> None:
        name, names = self.model.name, self.model.names
        former = [one for one in names if one != name]
        new = former[-1] if is_back and former else f"{self.example}/{len(names)}"
        expected = self.model.rename(new, happens=lost is not Lost.COMMIT)
        self._decide(expected, lost, lambda: self.store.rename_group(name, new, **HOW))

    def _delete(self, lost: Lost | None) -> None:
        name = self.model.name
        expected = self.model.delete(happens=lost is not Lost.COMMIT)
        self._decide(expected, lost, lambda: self.store.delete_group(name, takeover="fence", **HOW))

    def _decide(self, expected: str, lost: Lost | None, decide: Callable[[], object]) -> None:
        found = self._losing(lost, CLAIM, decide, expected)
        if expected == DONE and lost is not None:
            expected = "TransactionLost"
        assert (found if isinstance(found, str) else DONE) == expected

    # -- how a step is made

    def _one(self, job: int, fits: Callable[[int], bool] = lambda _: True) -> int:
        """One of the jobs that fit, of which there is one; those that are not stale come first."""
        fitting = [number for number in sorted(self.jobs, key=self._is_stale) if fits(number)]
        return fitting[job % len(fitting)]

    def _is_stale(self, number: int) -> bool:
        return self.model.is_stale(self.claims[number])

    def _has_owner(self) -> bool:
        return not all(self._is_stale(number) for number in self.jobs)

    def _partitions(self, values: dict[int, _T]) -> dict[int, _T]:
        return {number % self.model.partitions: value for number, value in sorted(values.items())}

    def _stored(self, number: int) -> int:
        return self.model.rows[number].next_offset if number in self.model.rows else 0

    def _wanted(self, number: int, ranges: Ranges, *, again: bool) -> Ranges:
        job = self.jobs[number]
        if not again or not job.last:
            job.last = {}
            own = sorted(self.claims[number].known) if self.claims[number].fleet else []
            # A member reads what it has been given, and now and then what it was given before.
            ours = {own[one % len(own)]: range_ for one, range_ in sorted(ranges.items()) if own and one < MOST_OF_OWN}
            for partition, (back, length) in (ours or self._partitions(ranges)).items():
                first = max(0, self._stored(partition) - back)
                job.last[partition] = (first, first + length)
        return job.last

    def _do(self, number: int, step: Callable[[], object], expected: str) -> bool:
        """Make a step of the job's open transaction, which ends if it fails."""
        found = told(step) or DONE
        _same(found, expected)
        self._ends_if(number, expected)
        return expected == DONE

    def _ends_if(self, number: int, expected: object) -> None:
        if isinstance(expected, str) and expected != DONE:
            self.model.roll_back(self.work.pop(number))
            self._report(number, expected)

    def _report(self, number: int, outcome: str) -> None:
        """Note what was said about the transaction that has written something."""
        label, self.jobs[number].label = self.jobs[number].label, None
        if label is not None:
            self.reported[label] = outcome

    def _losing(self, lost: Lost | None, marker: bytes, function: Callable[[], _T], expected: object) -> _T | str:
        if lost is None or (isinstance(expected, str) and expected != DONE):
            return told(function)
        # Where COMMIT is lost, the server notices a moment later that its client is gone, and rolls back: until then
        # the next step could meet the locks.
        others = self.side.in_transactions()

        def wait_for_its_end() -> None:
            wait_until(lambda: self.side.in_transactions() <= others, timeout=60)

        with self.side.proxy.losing(lost, after=marker, then=wait_for_its_end):
            return told(function)

    def teardown(self) -> None:
        for number in self.work:
            self.jobs[number].roll_back()
        for claim in [*self.store._claims, *self.members]:
            claim.close()


def _same(found: object, expected: object) -> None:
    assert found == expected, f"{found}, and the model says {expected}"


def told(function: Callable[[], _T]) -> _T | str:
    """What it returns, or the name of the error that it raises."""
    try:
        return function()
    except OffsetStoreError as error:
        return type(error).__name__

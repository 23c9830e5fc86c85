"""What becomes of letters that are requested: a store in memory, and a job whose rows are the records' values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from unittest.mock import Mock

import pytest

from offsetstore import Claim, DeadLetters, OffsetRange, Retries, TopicPartition, Work
from offsetstore.errors import (
    ColumnMismatch,
    CommitUnknown,
    FunctionFailed,
    LockTimeout,
    OffsetStoreError,
    RecordsRejected,
    RowsRefused,
    SinkError,
    TargetRefused,
    UnsafeTarget,
)
from offsetstore.processing.blame import Halve, TooManyFailed
from offsetstore.processing.delivery import Rejected
from offsetstore.processing.put_back import PutBack
from offsetstore.processing.unit import PlanOutdated
from offsetstore.protocol.events import IdleWorkChanged, LettersReplayed
from offsetstore.protocol.letters import Letter, LetterError, LetterKey, NewLetter, Payload, digest, rejected
from offsetstore.protocol.starting import StartPolicy
from offsetstore.store.claim import ClaimRequest
from offsetstore.store.fleet import Member, join
from offsetstore.testing.broker import StaticBroker
from offsetstore.testing.memory import InMemoryOffsetStore
from offsetstore.testing.memory.session import MemorySession
from tests.support.recorder import Recorder
from tests.unit.processing.conftest import Losing

GROUP = "billing"
P0, P1 = (TopicPartition("payments", number) for number in range(2))
CHECK = LetterError("RowsRefused", "the database refused rows", "23514")


def refusal(sqlstate: str = "23514", constraint: str | None = None) -> RowsRefused:
    return RowsRefused("the database refused rows", sqlstate=sqlstate, constraint=constraint)


RAISED = FunctionFailed("a function raised ValueError", error_class="ValueError", text="can't be parsed")


@dataclass
class Job:
    """A transform, and a table with a rule.

    The values of records are its rows, except ``reject …``, which is rejected, ``nothing``, which makes no row, and
    ``raise``, which can't be computed.

    :param refuses: returns why the table may not hold these values, in the order in which they were written.
    :param at_once: how many records' rows the driver can hold.
    :param meanwhile: called after rows were computed, and before anything is written.
    :param note: written as the metadata of the first partition, with the rows.
    """

    refuses: Callable[[list[str]], OffsetStoreError | None] = lambda _: None
    replaces_in_order: bool = False
    at_once: int = 1_000
    misfits: tuple[str, ...] = ()
    meanwhile: list[Callable[[], object]] = field(default_factory=list[Any])
    note: object = None
    computed: list[list[str]] = field(default_factory=list[Any])
    writes: int = 0

    @contextmanager
    def compute(self, letters: Sequence[Letter]) -> Generator[Any]:
        assert letters, "Spark can't make a frame of nothing"
        values = {n: (letter.payload.value or b"").decode() for n, letter in enumerate(letters) if letter.payload}
        self.computed.append([*values.values()])
        if len(letters) > self.at_once:
            raise Halve(MemoryError("too many rows"))
        if {*values.values()} == {"raise"} and len(values) >= 10:
            raise TooManyFailed("all 19 records tried failed", RAISED)
        if self.meanwhile:
            self.meanwhile.pop(0)()
        keys = {n: letter.sequence for n, letter in enumerate(letters) if letter.sequence is not None}
        yield Part(self, values, keys)


@dataclass(frozen=True)
class Part:
    job: Job
    values: Mapping[int, str]
    keys: Mapping[int, bytes]
    is_handled: bool = False

    @property
    def replaces_in_order(self) -> bool:
        return self.job.replaces_in_order

    @property
    def numbers(self) -> list[int]:
        return [*self.values]

    @property
    def with_rows(self) -> list[int]:
        return [number for number in self.values if self.rows(number)]

    @property
    def accepted(self) -> list[int]:
        return self.with_rows

    @property
    def rejected(self) -> dict[int, Rejected]:
        return {
            number: Rejected(rejected("it is bad"))
            for number, value in self.values.items()
            if value.startswith("reject")
        }

    @property
    def failed(self) -> dict[int, FunctionFailed]:
        return {number: RAISED for number, value in self.values.items() if value == "raise"}

    def misfits(self, connection: object) -> dict[int, RowsRefused]:
        assert connection is not None
        return {number: refusal("22003") for number, value in self.values.items() if value in self.job.misfits}

    def rows(self, number: int) -> list[str]:
        value = self.values.get(number, "nothing")
        return [] if value in {"nothing", "raise"} or value.startswith("reject") else [value]

    def rows_of(self, numbers: Sequence[int]) -> dict[str, Rows]:
        return {"": Rows(self.job, [row for number in numbers for row in self.rows(number)])}

    def hinted(self, _: RowsRefused, __: Sequence[int]) -> None:
        return None


@dataclass(frozen=True)
class Rows:
    job: Job
    values: list[str]

    @property
    def rows(self) -> int:
        return len(self.values)

    def write(self, work: Work) -> int:
        self.job.writes += 1
        work.connection.extend("results", self.values)
        if self.job.note is not None:
            work.write_metadata(P0, self.job.note)
        refused = self.job.refuses(work.connection.rows("results"))
        if refused is not None:
            raise refused
        return len(self.values)


def never(*bad: str) -> Callable[[list[str]], RowsRefused | None]:
    """The table refuses these values."""
    return lambda rows: refusal() if set(bad) & set(rows) else None


@pytest.fixture
def store(recorder: Recorder) -> Iterator[InMemoryOffsetStore]:
    with InMemoryOffsetStore(observers=[recorder], retries=Retries(attempts=2, shortest=0.0)) as made:
        yield made


def give_up(
    claim: Claim,
    values: Mapping[int, str],
    *,
    tp: TopicPartition = P0,
    key: bytes | None = None,
    until: int = 100,
    **other: Any,
) -> None:
    """Pass what remains below ``until`` with these letters; ``key`` is that of their sequence."""
    with claim.transaction() as tx:
        at = claim.offsets().get(tp)
        range_ = OffsetRange(at.next_offset if at else 0, until)
        remaining = tx.lock({tp: range_}, in_sequence=key is not None)[tp].remaining
        tx.letters.write(
            [
                replace(
                    NewLetter(tp, offset, "refused", CHECK, 1, digest(tp, key), Payload(key, value.encode(), (), 0, 0)),
                    **other,
                )
                for offset, value in values.items()
            ]
        )
        tx.advance({tp: remaining})


def request(store: InMemoryOffsetStore, *offsets: int, forced: bool = False) -> None:
    store.decide_letters(GROUP, "requested", [LetterKey(P0, offset) for offset in offsets] or None, forced=forced)


def requested(store: InMemoryOffsetStore, claim: Claim, values: Mapping[int, str], **options: Any) -> None:
    """Give records up, and request all letters."""
    give_up(claim, values, **options)
    request(store)


def run(claim: Claim, job: Job, settings: DeadLetters | None = None, **options: Any) -> int:
    return PutBack(claim, settings or DeadLetters(), job.compute).run(**options)


def fates(store: InMemoryOffsetStore) -> list[str]:
    """Of the letters, in their order: the states, or of dead ones the errors."""
    listed = store.dead_letters(GROUP)
    errors = [letter.error.sqlstate or letter.error.error_class for letter in listed]
    return [error if letter.state == "dead" else letter.state for letter, error in zip(listed, errors, strict=True)]


def states(store: InMemoryOffsetStore) -> list[str]:
    """The letters' states, in their order."""
    return [letter.state for letter in store.dead_letters(GROUP)]


# -- what is written and marked


@pytest.mark.behaviour("META-4", "DLQ-7")
def test_a_function_that_notes_what_it_writes_does_not_replace_a_later_note(
    store: InMemoryOffsetStore, claim: Claim
) -> None:
    give_up(claim, {5: "a", 6: "bad"})
    with claim.transaction() as tx:
        tx.lock({P0: OffsetRange(100, 1000)})
        tx.advance({P0: OffsetRange(100, 1000)}, metadata="of 1,000")
    request(store)
    assert run(claim, Job(note="of 5", refuses=never("bad"))) == 1
    assert (store.rows("results"), states(store)) == (["a"], ["replayed", "dead"])
    assert store.metadata(GROUP)[P0] == "of 1,000"


@pytest.mark.behaviour("DLQ-7")
def test_requested_letters_are_written_in_order_and_marked_once(
    store: InMemoryOffsetStore, claim: Claim, recorder: Recorder
) -> None:
    give_up(claim, {7: "c"}, tp=P1)
    give_up(claim, {20: "b", 3: "a", 30: "not asked for"})
    request(store, 3, 20)
    store.decide_letters(GROUP, "requested", [LetterKey(P1, 7)])

    assert run(claim, Job()) == 3
    assert run(claim, Job()) == 0
    assert store.rows("results") == ["a", "b", "c"]
    assert states(store) == ["replayed", "replayed", "dead", "replayed"]
    assert {tp: row.next_offset for tp, row in store.offsets(GROUP).items()} == {P0: 100, P1: 100}
    assert recorder.of(LettersReplayed) == [LettersReplayed(group=GROUP, replayed=3, failed=0)]
    assert [one.work for one in recorder.of(IdleWorkChanged)] == ["replay", None]


@pytest.mark.behaviour("DLQ-7")
def test_a_replay_advances_by_nothing_and_its_id_is_in_the_rows(store: InMemoryOffsetStore, claim: Claim) -> None:
    give_up(claim, {3: "a"})
    claim.store_metadata(P0, "for the next batch")
    before = store.offsets(GROUP)[P0]
    request(store)
    run(claim, Job())

    after = store.offsets(GROUP)[P0]
    assert after.transaction_id != before.transaction_id
    assert replace(after, transaction_id=before.transaction_id) == before, "nor does it use up stored metadata"


def overdrawn(rows: list[str]) -> RowsRefused | None:
    """A withdrawal before its deposit: accepted after it, and refused in the letters' order."""
    amounts = [int(row) for row in rows if row != "bad"]
    return refusal() if "bad" in rows or any(sum(amounts[:end]) < 0 for end in range(len(amounts) + 1)) else None


def swallowing(rows: list[str]) -> OffsetStoreError | None:
    if "swallows" in rows:
        return SinkError("a function swallowed an error")
    return refusal() if "bad" in rows else None


def after(*answers: OffsetStoreError) -> Callable[[list[str]], OffsetStoreError | None]:
    left = [*answers]
    return lambda _: left.pop(0) if left else None


REPLAYED, DEAD = "replayed", "23514"
FATES: dict[str, tuple[list[str], Callable[[], Job], list[str]]] = {
    "good, rejected, misfit, refused, good": (
        ["a", "reject", "too large", "refused", "b"],
        lambda: Job(never("refused"), misfits=("too large",)),
        [REPLAYED, "Rejected", "22003", DEAD, REPLAYED],
    ),
    "no row today": (["nothing", "a"], Job, [REPLAYED, REPLAYED]),
    "whatever the sqlstate": (["a"], lambda: Job(lambda _: refusal("42501")), ["42501"]),
    "refused by the real transaction": (["-5", "7", "bad"], lambda: Job(overdrawn), [DEAD, REPLAYED, DEAD]),
    "a writer that fails": (["swallows", "good", "good"], lambda: Job(swallowing), ["SinkError", REPLAYED, REPLAYED]),
    "and beside a bad one": (["swallows", "bad", "good"], lambda: Job(swallowing), ["SinkError", DEAD, REPLAYED]),
    "an outage in the search": (["a", "b"], lambda: Job(after(refusal(), LockTimeout("no"))), [REPLAYED, REPLAYED]),
    "too many rows for the driver": ([*"01234"], lambda: Job(at_once=2), [REPLAYED] * 5),
    "too many of one letter": (["huge"], lambda: Job(at_once=0), ["MemoryError"]),
}


@pytest.mark.behaviour("DLQ-7", "DLQ-6")
@pytest.mark.parametrize("given", FATES)
def test_a_requested_letter_is_replayed_or_dead_again_with_its_own_error(
    store: InMemoryOffsetStore, claim: Claim, recorder: Recorder, given: str
) -> None:
    values, job, expected = FATES[given]
    requested(store, claim, dict(enumerate(values, 1)))
    replayed = expected.count(REPLAYED)
    assert run(claim, job()) == replayed
    good = [value for value, fate in zip(values, expected, strict=True) if fate == REPLAYED and value != "nothing"]
    assert (store.rows("results"), fates(store)) == (good, expected)
    assert {one.attempts for one in store.dead_letters(GROUP) if one.state == "dead"} <= {2}
    told = LettersReplayed(
        group=GROUP, replayed=replayed, failed=len(expected) - replayed, without_rows=values.count("nothing")
    )
    assert recorder.of(LettersReplayed) == [told]


@pytest.mark.behaviour("DLQ-12")
def test_a_letter_that_a_function_names_is_dead_again_with_its_code(store: InMemoryOffsetStore, claim: Claim) -> None:
    requested(store, claim, {1: "a", 2: "odd"})
    named = RecordsRejected("named", reasons={(P0, 2): "no such customer"}, codes={(P0, 2): "no-customer"})

    assert run(claim, Job(lambda rows: named if "odd" in rows else None)) == 1
    [_, letter] = store.dead_letters(GROUP)
    assert (letter.state, letter.cause, letter.error) == (
        "dead",
        "rejected",
        LetterError("no-customer", "no such customer"),
    )


@pytest.mark.behaviour("DLQ-7")
def test_many_letters_that_are_all_refused_again_have_each_its_own_error(
    store: InMemoryOffsetStore, claim: Claim
) -> None:
    """In a batch that would be a bug or an outage; letters are known to be bad."""
    requested(store, claim, {offset: f"{offset}" for offset in range(80)})

    def refuses(rows: list[str]) -> RowsRefused | None:
        bad = [row for row in rows if row != "77"]
        return refusal(constraint=f"rule_{bad[0]}") if bad else None

    job = Job(refuses)
    assert run(claim, job) == 1
    assert store.rows("results") == ["77"]
    found = {letter.offset: letter.error.constraint for letter in store.dead_letters(GROUP)}
    assert found == {offset: None if offset == 77 else f"rule_{offset}" for offset in range(80)}
    assert len(job.computed) == 1


@pytest.mark.behaviour("DLQ-7")
def test_if_no_letter_can_be_computed_it_takes_few_jobs_to_say_so(store: InMemoryOffsetStore, claim: Claim) -> None:
    requested(store, claim, dict.fromkeys(range(200), "raise"), until=200)
    job = Job()
    assert run(claim, job) == 0
    assert states(store) == ["dead"] * 200
    assert len(job.computed) == 1
    texts = {letter.error.text for letter in store.dead_letters(GROUP)}
    assert texts == {"200 letters were computed together, and failed. The first error was ValueError"}


@pytest.mark.behaviour("DLQ-7")
def test_a_requested_letter_whose_record_is_gone_is_dead_again_and_not_replayed(
    store: InMemoryOffsetStore, claim: Claim
) -> None:
    """By hand: a decision asks for its record."""
    give_up(claim, {1: "a"}, payload=None)
    give_up(claim, {100: "b"}, until=101)
    request(store, 1, 100)

    assert run(claim, Job()) == 1
    assert fates(store) == ["PayloadMissing", "replayed"]


# -- what must not be written twice, or lost


@pytest.mark.behaviour("DLQ-7")
def test_a_letter_ahead_of_the_job_is_left_to_it(store: InMemoryOffsetStore, claim: Claim) -> None:
    requested(store, claim, {30: "below", 50: "ahead"})
    store.reset(GROUP, {P0: 40}, reason="again")
    again = store.claim(GROUP, topics=["payments"])

    assert run(again, Job()) == 1
    assert (store.rows("results"), states(store)) == (["below"], ["replayed", "requested"])
    give_up(again, {})
    assert run(again, Job()) == 0
    assert states(store) == ["replayed", "superseded"]


@pytest.mark.behaviour("DLQ-10", "DLQ-7")
def test_a_letter_that_gets_its_topic_s_id_is_replayed_once(store: InMemoryOffsetStore, claim: Claim) -> None:
    give_up(claim, {2: "a"})
    broker = StaticBroker.with_topics({"payments": 1}, end=100)
    store.claim(GROUP, broker, mirror_every=None)
    store.reset(GROUP, {P0: 0}, reason="again")
    again = store.claim(GROUP, broker, mirror_every=None)
    give_up(again, {2: "a"})
    request(store)
    assert run(again, Job()) == 1
    assert store.rows("results") == ["a"]


@pytest.mark.behaviour("DLQ-7")
def test_a_letter_that_is_discarded_after_it_was_read_is_not_written(store: InMemoryOffsetStore, claim: Claim) -> None:
    requested(store, claim, {1: "given up", 2: "a"})
    job = Job(meanwhile=[lambda: store.decide_letters(GROUP, "discarded", [LetterKey(P0, 1)])])

    assert run(claim, job) == 0
    assert store.rows("results") == []
    assert run(claim, job) == 1
    assert (store.rows("results"), states(store)) == (["a"], ["discarded", "replayed"])


@pytest.mark.behaviour("DLQ-7")
def test_of_two_replays_of_one_letter_the_second_writes_nothing(store: InMemoryOffsetStore, claim: Claim) -> None:
    """Two sinks of one claim, or a drain while the job runs: both have read it before either has marked it."""
    requested(store, claim, {1: "a"})
    assert run(claim, Job(meanwhile=[lambda: run(claim, Job())])) == 0
    assert (store.rows("results"), states(store)) == (["a"], ["replayed"])


@pytest.mark.behaviour("DLQ-7")
def test_a_batch_between_reading_and_locking_is_no_obstacle(store: InMemoryOffsetStore, claim: Claim) -> None:
    requested(store, claim, {1: "a"})
    assert run(claim, Job(meanwhile=[lambda: give_up(claim, {}, until=200)])) == 1
    assert (store.rows("results"), store.offsets(GROUP)[P0].next_offset) == (["a"], 200)


@pytest.mark.behaviour("DLQ-7")
@pytest.mark.parametrize("then", ["", "rolled back", "taken over", "moved on"])
def test_a_replay_whose_commit_has_no_answer_is_looked_up(
    store: InMemoryOffsetStore, claim: Claim, losing: Losing, then: str
) -> None:
    """It is unknown only if the rows have moved on since; the letters tell all the same."""

    def meanwhile() -> None:
        if then in {"taken over", "moved on"}:
            successor = store.claim(GROUP, topics=["payments"])
            if then == "moved on":
                give_up(successor, {}, until=200)

    requested(store, claim, {1: "a"})
    losing.next(happens=then != "rolled back", then=meanwhile)
    if then == "moved on":
        with pytest.raises(CommitUnknown):
            run(claim, Job())
    else:
        assert run(claim, Job()) == 1
    assert (store.rows("results"), states(store)) == (["a"], ["replayed"])


@pytest.mark.behaviour("DLQ-7")
def test_letters_that_are_given_back_by_a_commit_without_an_answer_are_counted(
    store: InMemoryOffsetStore, claim: Claim, losing: Losing, recorder: Recorder
) -> None:
    requested(store, claim, {1: "raise"})
    losing.next(happens=True)
    assert run(claim, Job()) == 0
    assert [letter.attempts for letter in store.dead_letters(GROUP)] == [2]
    assert recorder.of(LettersReplayed) == [LettersReplayed(group=GROUP, replayed=0, failed=1)]


@pytest.mark.behaviour("DLQ-7")
def test_a_letter_that_cant_be_marked_is_not_written(
    store: InMemoryOffsetStore, claim: Claim, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trigger or a rule on the table of letters leaves it as it is."""
    requested(store, claim, {1: "a"})
    monkeypatch.setattr(MemorySession, "mark_replayed", Mock(return_value=0))
    with pytest.raises(SinkError, match="marked"):
        run(claim, Job())
    assert (store.rows("results"), states(store)) == ([], ["requested"])


@pytest.mark.behaviour("DLQ-6", "DLQ-7", "DLQ-20")
@pytest.mark.parametrize(
    ("error", "told", "before"),
    [
        *((kind("the table has changed"), "changed", 0) for kind in (ColumnMismatch, TargetRefused, UnsafeTarget)),
        *((LockTimeout("locked"), "results' tables", before) for before in (0, 1)),  # at the commit, in the search
    ],
)
def test_a_table_that_takes_no_letter_now_leaves_them_requested(
    store: InMemoryOffsetStore, claim: Claim, error: OffsetStoreError, told: str, before: int
) -> None:
    requested(store, claim, {1: "a", 2: "b"})
    with pytest.raises(type(error), match=told):
        run(claim, Job(after(*[refusal()] * before, *[error] * 20)))
    assert (store.rows("results"), states(store)) == ([], ["requested", "requested"])


# -- the order of a key


@pytest.mark.behaviour("DLQ-11")
@pytest.mark.parametrize("value", ["refused", "reject", "raise"])
def test_the_letters_of_a_key_stop_at_the_first_that_fails(
    store: InMemoryOffsetStore, claim: Claim, value: str
) -> None:
    give_up(claim, {1: "k1", 2: value, 3: "k3", 4: "k4"}, key=b"k")
    requested(store, claim, {100: "other", 101: "k1 of another"}, key=b"j", until=102)
    assert run(claim, Job(never("refused"))) == 3
    assert store.rows("results") == ["k1", "other", "k1 of another"]
    assert states(store) == ["replayed", "dead", "requested", "requested", "replayed", "replayed"]

    request(store)
    assert run(claim, Job(lambda _: None)) == (3 if value == "refused" else 0)


@pytest.mark.behaviour("DLQ-11")
def test_a_key_is_in_order_in_halves_too(store: InMemoryOffsetStore, claim: Claim) -> None:
    """Of two letters in two halves, the second waits until it is known what became of the first."""
    requested(store, claim, {1: "k1", 2: "reject", 3: "k3", 4: "k4"}, key=b"k")
    job = Job(at_once=2)
    assert run(claim, job) == 1
    assert (store.rows("results"), states(store)) == (["k1"], ["replayed", "dead", "requested", "requested"])
    assert job.computed == [["k1", "reject", "k3", "k4"], ["k1", "reject"]]


@pytest.mark.behaviour("DLQ-11")
def test_letters_of_a_key_stay_in_order_where_some_do_not_know_their_topic_s_id(
    store: InMemoryOffsetStore, claim: Claim
) -> None:
    """A letter without an id keeps it if another letter of its record has the id."""
    give_up(claim, {1: "first", 12: "k12"}, key=b"j")
    broker = StaticBroker.with_topics({"payments": 1}, end=100)
    known = store.claim(GROUP, broker, mirror_every=None)
    give_up(known, {100: "k100"}, key=b"k", until=101)
    give_up(known, {110: "k110"}, key=b"k", until=111)
    session: Any = store.database.begin(name="by hand")
    for offset in (1, 110):  # as they are if both kinds were written
        letter = session.get("dead_letters", GROUP, P0, offset, "payments-id")
        session.put("dead_letters", (GROUP, P0, offset, "payments-id"), None)
        session.put("dead_letters", (GROUP, P0, offset, ""), replace(letter, topic_id=""))
    session.commit()
    request(store)

    run(known, Job())
    assert [row for row in store.rows("results") if str(row).startswith("k1")] == ["k12", "k100", "k110"]


@pytest.mark.behaviour("DLQ-7")
def test_a_row_that_would_replace_a_newer_one_is_written_only_if_forced(
    store: InMemoryOffsetStore, claim: Claim
) -> None:
    give_up(claim, {1: "no key", 2: "no key, forced"})
    give_up(claim, {100: "k", 101: "k2"}, key=b"k", until=102)
    request(store, 1, 100, 101)
    request(store, 2, forced=True)
    job = Job(replaces_in_order=True)

    assert run(claim, job, DeadLetters(sequence="key")) == 3
    assert store.rows("results") == ["no key, forced", "k", "k2"]
    assert fates(store) == ["ReplayOutOfOrder", "replayed", "replayed", "replayed"]


@pytest.mark.behaviour("DLQ-7")
def test_a_sequence_protects_no_newer_row_in_a_job_without_sequences(store: InMemoryOffsetStore, claim: Claim) -> None:
    """Later records of the key did not wait for the letter: the job has written them."""
    requested(store, claim, {1: "old"}, key=b"k")
    assert run(claim, Job(replaces_in_order=True), DeadLetters()) == 0
    assert fates(store) == ["ReplayOutOfOrder"]


@pytest.mark.behaviour("DLQ-17")
def test_a_sequence_protects_no_newer_row_once_a_run_without_sequences_has_gone_on(
    store: InMemoryOffsetStore, claim: Claim
) -> None:
    """That run may have written later records of the key: which ones, nothing tells."""
    give_up(claim, {1: "old", 2: "newer"}, key=b"k")
    store.claim(GROUP, topics=["payments"])  # one that writes nothing
    assert [one.is_in_sequence for one in store.dead_letters(GROUP)] == [True, True]
    without = store.claim(GROUP, topics=["payments"])
    give_up(without, {}, until=101)
    again = store.claim(GROUP, topics=["payments"])
    request(store)
    job = Job(replaces_in_order=True)
    assert run(again, job, DeadLetters(sequence="key")) == 0
    assert "ReplayOutOfOrder" in fates(store)
    assert store.rows("results") == []

    request(store, 2)
    assert run(again, job, DeadLetters(sequence="key")) == 0, "the letters of a key are still replayed in order"
    request(store, 1, 2, forced=True)
    assert run(again, job, DeadLetters(sequence="key")) == 2
    assert store.rows("results") == ["old", "newer"]


@pytest.mark.behaviour("DLQ-7", "DLQ-17")
def test_a_letter_that_is_overtaken_after_it_was_read_is_not_written(store: InMemoryOffsetStore, claim: Claim) -> None:
    requested(store, claim, {1: "old"}, key=b"k")
    job = Job(replaces_in_order=True, meanwhile=[lambda: give_up(claim, {}, until=101)])
    assert run(claim, job, DeadLetters(sequence="key")) == 0
    assert (store.rows("results"), states(store)) == ([], ["requested"])
    assert run(claim, job, DeadLetters(sequence="key")) == 0
    assert fates(store) == ["ReplayOutOfOrder"]


@pytest.mark.behaviour("DLQ-7", "DLQ-14")
def test_a_sequence_of_an_earlier_topic_protects_no_newer_row(store: InMemoryOffsetStore) -> None:
    broker = StaticBroker.with_topics({"payments": 1}, end=100)
    give_up(store.claim(GROUP, broker, mirror_every=None), {1: "old"}, key=b"k")
    log = broker.current.topics["payments"]
    broker.current = replace(broker.current, topics={"payments": replace(log, topic_id="another-id")})
    again = store.claim(GROUP, broker, policy=StartPolicy(on_recreated="restart"), mirror_every=None)
    assert {row.topic_id for row in store.offsets(GROUP).values()} == {"another-id"}
    request(store)

    assert run(again, Job(replaces_in_order=True), DeadLetters(sequence="key")) == 0
    assert fates(store) == ["ReplayOutOfOrder"]


# -- when it ends


@pytest.mark.behaviour("DLQ-7", "OPS-2")
def test_a_paused_group_replays_nothing_and_a_pause_ends_a_long_replay(
    store: InMemoryOffsetStore, claim: Claim, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("offsetstore.processing.put_back.MOST", 2)
    requested(store, claim, {offset: f"{offset}" for offset in range(5)})
    assert run(claim, Job(meanwhile=[lambda: store.pause(GROUP, reason="maintenance")])) == 2
    assert run(claim, Job()) == 0
    store.resume(GROUP, reason="done")
    assert run(claim, Job()) == 3
    assert Counter(store.rows("results")) == Counter("01234")


@pytest.mark.behaviour("DLQ-7")
def test_a_replay_in_halves_makes_way_for_batches_when_its_time_is_up(store: InMemoryOffsetStore, claim: Claim) -> None:
    requested(store, claim, {offset: f"{offset}" for offset in range(8)})
    found = [run(claim, Job(at_once=2), seconds=0) for _ in range(5)]
    assert (found, store.rows("results")) == ([2, 1, 2, 1, 2], [str(n) for n in range(8)])


@pytest.mark.behaviour("DLQ-7")
def test_a_letter_that_is_requested_again_and_again_is_tried_once_a_time(
    store: InMemoryOffsetStore, claim: Claim, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that requests all that is dead, always, must not keep the job from its batches."""
    requested(store, claim, {1: "reject"})
    returns = MemorySession.return_letters

    def and_again(session: MemorySession, group: str, failed: Any, *, actor: str) -> int:
        count = returns(session, group, failed, actor=actor)
        session.decide_letters(group, [*failed], "requested", forced=False)
        return count

    monkeypatch.setattr(MemorySession, "return_letters", and_again)
    job = Job()
    assert run(claim, job) == 0
    assert len(job.computed) == 1


@pytest.mark.behaviour("DLQ-7")
@pytest.mark.parametrize("calls", [1, 2])
def test_a_job_that_is_being_stopped_writes_no_letters_any_more(
    store: InMemoryOffsetStore, claim: Claim, calls: int
) -> None:
    """Before they are computed, and once more before they are written."""
    requested(store, claim, {1: "a"})
    left = [None] * calls

    def check() -> None:
        left.pop()
        if not left:
            raise PlanOutdated("the query was stopped")

    job = Job()
    assert run(claim, job, check=check) == 0
    assert len(job.computed) == calls - 1
    assert (store.rows("results"), states(store)) == ([], ["requested"])


@pytest.mark.behaviour("DLQ-7")
def test_what_was_replayed_before_an_error_is_told(
    store: InMemoryOffsetStore, claim: Claim, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("offsetstore.processing.put_back.MOST", 2)
    requested(store, claim, {1: "a", 2: "b", 3: "c"})
    with pytest.raises(InterruptedError):
        run(claim, Job(meanwhile=[lambda: None, Mock(side_effect=InterruptedError)]))
    assert recorder.of(LettersReplayed) == [LettersReplayed(group=GROUP, replayed=2, failed=0)]
    assert states(store) == ["replayed", "replayed", "requested"]


# -- members of a fleet


@pytest.fixture
def members(store: InMemoryOffsetStore) -> Iterator[tuple[Member, Member]]:
    """Two members, the first of which has P0, and the second P1."""
    broker = StaticBroker.with_topics({"payments": 2}, end=100)
    asked = ClaimRequest(GROUP, broker, ("payments",), StartPolicy(), "refuse", 30.0, GROUP)
    with join(store, asked) as one, join(store, asked) as other:
        one.assign([P0])
        other.assign([P1])
        yield one, other


@pytest.mark.behaviour("CONS-3", "DLQ-7")
def test_each_member_replays_the_letters_of_its_partitions(
    store: InMemoryOffsetStore, members: tuple[Member, Member]
) -> None:
    one, other = members
    give_up(one, {5: "a"})
    give_up(other, {3: "b"}, tp=P1)
    request(store)

    assert run(other, Job()) == 1
    assert (store.rows("results"), states(store)) == (["b"], ["requested", "replayed"])
    assert run(other, Job()) == 0
    assert run(one, Job()) == 1
    assert (store.rows("results"), states(store)) == (["b", "a"], ["replayed", "replayed"])


@pytest.mark.behaviour("CONS-3", "DLQ-7")
def test_a_replay_that_was_read_before_a_partition_came_back_writes_nothing(
    store: InMemoryOffsetStore, members: tuple[Member, Member]
) -> None:
    one, _ = members
    give_up(one, {5: "a"})
    request(store)

    assert run(one, Job(meanwhile=[lambda: one.assign([P0])])) == 0  # left for later

    assert (store.rows("results"), states(store)) == ([], ["requested"])
    assert run(one, Job()) == 1

"""Where a relay begins, by the two numbers; and what a record may be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count, islice
from typing import Any, TypeAlias

import pytest

from offsetstore.errors import OutboxUncertain, RowsRefused
from offsetstore.protocol.outbox import (
    LOOKS,
    AskForMark,
    CheckToken,
    Fence,
    Fetch,
    KafkaMark,
    Mark,
    OnUncertain,
    OutboxRow,
    Peek,
    Probe,
    Read,
    ReadRows,
    Refusal,
    Rest,
    Send,
    Standing,
    Step,
    Take,
    WaitForMark,
    WriteBatch,
    outbox_record,
    relaying,
)
from offsetstore.protocol.refusals import MOST_IN_A_ROW, TRIAL, Topics

OURS = "cluster"
IDS = (7, 8, 9)
ROWS = [OutboxRow(id_, "events", b"key", b"value") for id_ in IDS]
OPEN, BEFORE = Mark(5, "five"), Mark(4, "four")
TRIAL_STEPS = [CheckToken(), Fence(), AskForMark(), Read(), Send(OPEN)]


Answer: TypeAlias = Callable[[Sequence[OutboxRow]], Refusal | None]


def words() -> Callable[[], str]:
    """Draw ``w1``, ``w2`` and so on."""
    numbers = count(1)
    return lambda: f"w{next(numbers)}"


@dataclass
class Outbox:
    """A relay's machine, and both sides of it: rows, which Kafka takes or not, and a clock.

    ``batches`` are the ids that were sent each time; ``aside`` was set aside, and ``steps`` is all that was done.
    """

    rows: dict[int, str]
    send: Answer
    missing: set[str] = field(default_factory=set[str])
    batches: list[list[int]] = field(default_factory=list[list[int]])
    aside: list[int] = field(default_factory=list[int])
    sent: list[int] = field(default_factory=list[int])
    steps: list[Step] = field(default_factory=list[Step])
    now: float = 0.0
    wrong: str | None = None

    def __post_init__(self) -> None:
        self.topics = Topics(10_000, lambda: self.now)
        self.kafka, self.stored = OPEN, standing(())
        self.begin()

    def begin(self) -> None:
        """A new machine, as after an error."""
        self.machine = relaying(again=True, word=words(), topics=self.topics)
        self.step = next(self.machine)

    def run(self, most: int, *, rests: int = 0) -> None:
        """Let it send so many batches, or come to rest so many times; each rest takes a second."""
        end = len(self.batches) + most
        while len(self.batches) < end:
            if isinstance(self.step, Rest):
                if not rests:
                    return
                rests -= 1
                self.now += 1
            self.steps.append(self.step)
            self.step = self.machine.send(self.answer())

    def answer(self) -> Any:  # noqa: PLR0911 - one case for each step
        """Do a step."""
        match self.step:
            case ReadRows(most=limit, without=without, only=only, but=but):
                gone = {*without}
                found = ((id_, topic) for id_, topic in self.rows.items() if id_ not in gone and topic not in but)
                mine = (one for one in found if only in {None, one[1]})
                return [OutboxRow(*one, b"key", b"value", wrong=self.wrong) for one in islice(mine, limit)]
            case AskForMark():
                return KafkaMark(OURS, *self.kafka)
            case Read() | Peek():
                return self.stored
            case Fetch(ids=ids):
                return [OutboxRow(id_, self.rows[id_], b"key", b"value", wrong=self.wrong) for id_ in ids]
            case Probe(topics=topics):
                return {one: f"no topic {one}" for one in topics if one in self.missing}
            case WriteBatch(mark=mark, ids=ids, before=before) as step:
                self.stored = Standing(mark.number, ids, OURS, mark.word, before)
                self.aside.extend(step.refused)
                for id_ in (*step.done, *step.refused):
                    del self.rows[id_]
            case Send(mark=mark, rows=given) if given:
                self.batches.append([row.id for row in given])
                if (refusal := self.send(given)) is not None:
                    return refusal
                self.kafka = mark
                self.sent.extend(self.batches[-1])
            case _:
                pass
        return None


def refusing(*bad: int, is_proven: bool = True) -> Answer:
    """Kafka refuses requests that have one of these rows, and names none."""

    def send(rows: Sequence[OutboxRow]) -> Refusal | None:
        topics = {row.topic for row in rows if row.id in bad}
        return refusing_all(lambda row: row.topic in topics, is_proven=is_proven)(rows)

    return send


def refusing_all(bad: Callable[[OutboxRow], bool], *, is_named: bool = False, is_proven: bool = True) -> Answer:
    """Kafka refuses these rows, which it names, or else may have meant."""

    def send(rows: Sequence[OutboxRow]) -> Refusal | None:
        found = {row.id: "invalid" for row in rows if bad(row)}
        return Refusal(found if is_named else {}, {} if is_named else found, is_proven=is_proven) if found else None

    return send


def steps(
    kafka: tuple[int | None, str | None],
    stored: Standing,
    *,
    rows: Sequence[OutboxRow] = ROWS,
    on_uncertain: OnUncertain = "fail",
    refusals: Sequence[Refusal | None] = (),
    **arguments: Any,
) -> list[Step]:
    """All steps from the reading of both marks until there is nothing more to do; the outbox has no other rows."""
    machine = relaying(again=True, on_uncertain=on_uncertain, word=words(), **arguments)
    coming = list(refusals)
    done: list[Step] = []
    step = next(machine)
    while not isinstance(step, Rest):
        if isinstance(step, WaitForMark) and done[-1] == Read():
            del done[-2:]  # it asks once more: what was read before counts no longer
            step = machine.send(None)
        answer: Any = None
        match step:
            case AskForMark():
                answer = KafkaMark(OURS, *kafka)
            case Read():
                answer = stored
            case Fetch(ids=asked):
                answer = [row for row in rows if row.id in asked]
            case ReadRows():
                answer = ()
            case Send(rows=sent) if sent and coming:
                answer = coming.pop(0)
            case Probe():
                step = machine.send({})
                continue
            case _:
                pass
        done.append(step)
        step = machine.send(answer)
    return done[4:]


def standing(ids: Sequence[int] = IDS, cluster: str = OURS) -> Standing:
    """Batch 5, with these rows."""
    return Standing(5, ids, cluster, OPEN.word, BEFORE.word if ids else None)


def test_the_database_is_taken_and_kafka_fenced_before_either_is_read() -> None:
    first, again = relaying(), relaying(again=True)

    before = [Peek(), AskForMark(is_fenced=False), Fence()]
    position = KafkaMark(OURS, None)
    answers = [None, Standing(), position, None, None, None, position]
    assert [first.send(answer) for answer in answers] == [*before, Take(), Fence(), AskForMark(), Read()]
    assert [again.send(answer) for answer in (None, None, None, position)] == [
        CheckToken(),
        Fence(),
        AskForMark(),
        Read(),
    ]


@pytest.mark.behaviour("OUT-5")
def test_what_does_not_fit_ends_a_start_before_it_takes_anything_over_unless_another_relay_is_working() -> None:
    """What is read before is neither locked nor fenced: the other one may have sent and recorded a batch in between."""
    position = KafkaMark(OURS, 7, "seven")
    started = relaying()
    assert [next(started), started.send(standing()), started.send(position)] == [
        Peek(),
        AskForMark(is_fenced=False),
        Peek(),
    ]
    with pytest.raises(OutboxUncertain, match="has later batches"):
        started.send(standing())

    decided = relaying(on_uncertain="skip")
    assert [decided.send(answer) for answer in (None, standing(), position)][-1] == Fence()


@pytest.mark.behaviour("OUT-4", "OUT-5")
@pytest.mark.parametrize(
    ("first", "position", "later", "fits"),
    [
        (standing(), KafkaMark(OURS, 7, "seven"), Standing(7, (), OURS, "seven"), True),
        (standing(), KafkaMark(OURS, 6, "six"), Standing(9, (1,), OURS, "nine", "eight"), True),
        (standing(), KafkaMark(OURS, 5, "with fewer rows"), Standing(6, (1,), OURS, "six", "five"), True),
        (standing(), KafkaMark(OURS, 4, "four"), Standing(4, (), OURS, "four"), True),
        (Standing(), KafkaMark(OURS, 1, "one"), Standing(2, (1,), OURS, "two", "one"), True),
        (standing(), KafkaMark(OURS, None), Standing(7, (), OURS, "seven"), False),
        (standing(), KafkaMark("other", 6, "six"), Standing(7, (), OURS, "seven"), False),
        (standing(), KafkaMark("other", 6, "six"), Standing(7, (), "other", "seven"), False),
        (standing(), KafkaMark(OURS, 3, "three"), Standing(7, (), OURS, "seven"), False),
        (standing(), KafkaMark(OURS, 8, "eight"), Standing(7, (), OURS, "seven"), False),
    ],
    ids=str,
)
def test_a_start_with_another_anchor_or_cluster_does_not_end_a_relay_that_is_busy(
    first: Standing, position: KafkaMark, later: Standing, *, fits: bool
) -> None:
    """It records many times a second. Only what it can have sent between two looks at the database is its doing."""
    started = relaying()
    step = [started.send(answer) for answer in (None, first, position)][-1]
    if fits:
        if step == Peek():
            step = started.send(later)
        assert step == Fence()
        return

    def go_on() -> None:
        for _ in range(LOOKS):  # each time it asks Kafka again, and fences nobody
            assert isinstance(started.send(later), WaitForMark)
            assert [started.send(answer) for answer in (None, first, position)][-1] == Peek()

    with pytest.raises(OutboxUncertain):
        go_on()


ZERO, DRAWN = Mark(0, "zero"), Mark(0, "w1")
REST = ReadRows(10_000, ())
STARTS: dict[str, tuple[Any, Standing, Sequence[OutboxRow], list[Step]]] = {
    # Kafka has a number before the database has one.
    "the first one": ((None, None), Standing(), ROWS, [Send(DRAWN), WriteBatch(DRAWN, cluster_id=OURS), REST]),
    "the first one, again": (ZERO, Standing(), ROWS, [WriteBatch(ZERO, cluster_id=OURS), REST]),
    "without a batch": (OPEN, standing(()), ROWS, [REST]),
    "Kafka has the batch": (OPEN, standing(), ROWS, [ReadRows(10_000, IDS), WriteBatch(OPEN, (), IDS), REST]),
    "Kafka lacks it": (
        BEFORE,
        standing(),
        ROWS,
        [Fetch(IDS), Send(OPEN, ROWS), ReadRows(10_000, [*IDS]), WriteBatch(OPEN, (), [*IDS]), REST],
    ),
    "somebody has deleted its rows": (BEFORE, standing(), [], [Fetch(IDS), WriteBatch(BEFORE), REST]),
}


@pytest.mark.parametrize("start", STARTS)
def test_what_a_start_does_about_the_last_batch(start: str) -> None:
    kafka, stored, rows, expected = STARTS[start]
    assert steps(kafka, stored, rows=rows) == expected


def test_a_batch_that_was_too_much_for_the_line_is_sent_in_parts() -> None:
    part = Mark(5, "w1")
    found = steps(BEFORE, standing(), limit=2)
    assert found[1:4] == [WriteBatch(part, [7, 8], before="four"), Send(part, ROWS[:2]), ReadRows(4, [7, 8])]


LOST, ANOTHER = "has lost the number.*", "another batch of this number"
MISFITS: list[tuple[tuple[int | None, str | None], Standing, bool, str]] = [
    ((None, None), standing(), True, f"{LOST}3 rows of batch 5, from id 7 to 9, may or may not be in Kafka"),
    ((None, None), standing(()), True, f"{LOST}No rows may or may not"),
    ((4, "four"), standing(()), True, "an earlier batch"),
    ((3, "three"), standing(), True, "an earlier batch"),
    ((6, "six"), standing(), False, "has later batches than the database, which was restored"),
    ((5, "other"), standing(), False, f"{ANOTHER} than the database.*3 rows of batch 5"),
    ((5, "other"), standing(()), False, f"{ANOTHER} than the database.*No rows"),
    *((kafka, standing(), False, ANOTHER) for kafka in ((4, "other"), (5, None), (4, None))),
    ((1, "one"), Standing(), False, "its tables were made anew"),
]


@pytest.mark.behaviour("OUT-5")
@pytest.mark.parametrize(("kafka", "stored", "said"), [(kafka, stored, said) for kafka, stored, _, said in MISFITS])
def test_marks_that_do_not_fit_are_left_to_a_person(
    kafka: tuple[int | None, str | None], stored: Standing, said: str
) -> None:
    with pytest.raises(OutboxUncertain, match=said) as caught:
        steps(kafka, stored)

    word = "" if kafka[1] is None else f" ({kafka[1]})"
    assert caught.value.found == f"cluster cluster, batch {kafka[0]}{word}"
    assert 'on_uncertain="skip"' in caught.value.next_step


@pytest.mark.behaviour("OUT-5")
@pytest.mark.parametrize(("kafka", "stored", "seems_lost"), [one[:3] for one in MISFITS])
def test_what_seems_lost_is_asked_for_again_for_twenty_seconds_and_nothing_else_is(
    kafka: tuple[int | None, str | None], stored: Standing, *, seems_lost: bool
) -> None:
    machine = relaying(again=True)
    made = [next(machine)]
    answers: dict[object, object] = {AskForMark: KafkaMark(OURS, *kafka), Read: stored}

    def go_on() -> None:
        while True:
            made.append(machine.send(answers.get(type(made[-1]))))

    with pytest.raises(OutboxUncertain):
        go_on()
    pauses = [WaitForMark(lost=KafkaMark(OURS, *kafka)), *[WaitForMark()] * (LOOKS - 2)]  # it is told once
    assert [step for step in made if isinstance(step, WaitForMark)] == (pauses if seems_lost else [])
    assert 15 <= (LOOKS - 1) * TRIAL <= 20


@pytest.mark.behaviour("OUT-5")
def test_another_cluster_is_told_although_the_marks_fit() -> None:
    with pytest.raises(OutboxUncertain, match="another cluster") as caught:
        steps(OPEN, standing(cluster="before"))

    assert caught.value.expected == "cluster before"


@pytest.mark.behaviour("OUT-5")
@pytest.mark.parametrize(
    ("kafka", "floor"), [((None, None), 6), ((3, "three"), 6), ((9, "nine"), 10), ((5, "other"), 6)]
)
def test_a_person_s_decision_gives_both_sides_a_mark_that_neither_had(
    kafka: tuple[int | None, str | None], floor: int
) -> None:
    """Until the database has it, another start still asks."""
    skipped = steps(kafka, standing(), on_uncertain="skip")
    repeated = steps(kafka, standing(), on_uncertain="repeat")

    mark, after = Mark(floor, "w1"), Mark(floor + 1, "w2")
    assert skipped == [Send(mark), WriteBatch(mark, (), IDS, cluster_id=OURS), ReadRows(10_000, ())]
    assert repeated[:4] == [
        Send(mark), WriteBatch(after, IDS, before="w1", cluster_id=OURS), Fetch(IDS), Send(after, ROWS)
    ]  # fmt: skip
    with pytest.raises(OutboxUncertain):
        steps(mark, standing())


@pytest.mark.behaviour("OUT-6", "OUT-11")
def test_rows_that_are_refused_by_themselves_are_set_aside_at_once_and_the_others_sent() -> None:
    """As a row that Kafka names, once its batch is aborted. A new producer goes on."""
    found = steps(BEFORE, standing(), refusals=[Refusal(certain={8: "too large"}, is_proven=True)])

    expected = [
        CheckToken(),
        Fence(),
        AskForMark(),
        Read(),
        Send(BEFORE),
        WriteBatch(BEFORE, (), refused={8: "too large"}),
    ]
    assert found[1:8] == [Send(OPEN, ROWS), *expected]


@pytest.mark.behaviour("OUT-6", "OUT-11")
def test_of_a_topic_with_named_rows_the_others_are_sent_again_before_any_is_suspected() -> None:
    """One in ten is refused: each round sets aside what Kafka names, and no row is tried by itself."""

    def send(rows: Sequence[OutboxRow]) -> Refusal | None:
        """Three requests of these are refused, and the client tells of two which rows they were."""
        bad = [row.id for row in rows if row.id % 10 == 3][:9]
        if not bad:
            return None
        suspected = {row.id: "no key" for row in rows[-20:] if row.topic == "events"}
        return Refusal(dict.fromkeys(bad, "no key"), suspected, is_proven=True)

    outbox = Outbox(dict.fromkeys(range(100), "events") | {100: "others"}, send)
    outbox.run(4)
    assert [len(batch) for batch in outbox.batches] == [101, 1, 91, 90]
    assert sorted(outbox.aside) == [*range(3, 100, 10)]
    assert len(outbox.sent) == 91


@pytest.mark.behaviour("OUT-9", "OUT-11")
@pytest.mark.parametrize("vouched", [("events",), ()])
def test_rows_that_kafka_vouches_for_interrupt_a_row_of_refusals_before_any_was_taken(vouched: tuple[str, ...]) -> None:
    def send(rows: Sequence[OutboxRow]) -> Refusal | None:
        """Every other row is refused, and of a few requests at a time Kafka says so."""
        bad = [row.id for row in rows if row.id % 2][:60]
        return Refusal(dict.fromkeys(bad, "no key"), vouched=vouched, is_proven=True) if bad else None

    outbox = Outbox(dict.fromkeys(range(1_000), "events"), send)
    outbox.run(12)
    assert ((len(outbox.sent), len(outbox.aside)) == (500, 500)) is bool(vouched)


@pytest.mark.behaviour("OUT-9", "OUT-11")
def test_of_rows_that_are_named_between_others_none_counts_for_those_that_are_found_later() -> None:
    """The first request has one bad row, of which Kafka says nothing as long as it names those of others."""
    named = dict.fromkeys(range(100, 1_000, 4), "no key")

    def send(rows: Sequence[OutboxRow]) -> Refusal | None:
        bad = {row.id: "no key" for row in rows if row.id in named}
        first = {row.id: "no key" for row in rows if row.id < 50} if rows[0].id == 0 else {}
        return Refusal(bad, first, vouched=("events",) if bad else (), is_proven=True) if bad or first else None

    outbox = Outbox(dict.fromkeys(range(1_000), "events"), send)
    outbox.run(100)
    assert (len(named), len(outbox.aside), len(outbox.sent), outbox.topics.blocked) == (225, 226, 774, [])


@pytest.mark.behaviour("OUT-6", "OUT-11")
def test_suspects_are_halved_until_one_row_is_refused_alone_twice() -> None:
    outbox = Outbox(dict.fromkeys(range(6), "events"), refusing(3))
    outbox.run(100)
    assert outbox.batches == [[0, 1, 2, 3, 4, 5], [0, 1, 2], [3, 4, 5], [3], [3], [4, 5]]
    assert (outbox.aside, outbox.sent) == ([3], [0, 1, 2, 4, 5])
    assert sum(isinstance(one, Fence) for one in outbox.steps) == 5  # at the start, and after each refusal

    outbox = Outbox(dict.fromkeys(range(6), "events"), refusing_all(lambda row: row.id == 3))
    outbox.run(100)
    assert outbox.batches == [[0, 1, 2, 3, 4, 5], [0, 1, 2], [3], [4, 5]]


@pytest.mark.behaviour("OUT-6")
def test_what_no_abort_has_proven_is_tried_twice_each_time_by_a_new_producer_that_commits_something_else() -> None:
    """The first failure is no trial, although it was the only row of its batch: once could be the producer's state."""
    outbox = Outbox({8: "events"}, refusing(8, is_proven=False))
    outbox.run(3, rests=9)
    assert (outbox.batches, outbox.aside, outbox.now) == ([[8]] * 3, [], TRIAL)
    outbox.run(1)
    assert outbox.aside == [8]
    steps_ = [one for one in outbox.steps if isinstance(one, (CheckToken, Fence, Send, Read, AskForMark))]
    tried = [one for one in steps_ if isinstance(one, Send) and one.rows]
    assert steps_ == [*TRIAL_STEPS[:-1], *(step for one in tried for step in (one, *TRIAL_STEPS))]


@pytest.mark.behaviour("OUT-9")
def test_a_topic_that_is_refused_holds_no_other_up() -> None:
    """Rows of others are sent in full batches; its own are found out about in turns."""
    rows = {id_: "bad" if id_ % 10 == 0 else "good" for id_ in range(200)}
    outbox = Outbox(rows, refusing(*range(0, 200, 20)))
    outbox.run(3)
    assert outbox.batches == [[*range(200)], [id_ for id_ in range(200) if id_ % 10], [*range(0, 100, 10)]]
    outbox.run(500)
    assert outbox.aside == [*range(0, 200, 20)]
    assert [id_ for id_ in outbox.sent if not id_ % 10] == [*range(10, 200, 20)]


@pytest.mark.behaviour("OUT-9", "OUT-10")
@pytest.mark.parametrize("how", ["suspected", "named", "wrong"])
def test_a_hundred_refusals_in_a_row_block_their_topic_and_rows_of_others_go_on(how: str) -> None:
    send = refusing_all(lambda row: row.topic == "bad", is_named=how == "named")
    outbox = Outbox(dict.fromkeys(range(150), "bad"), send, wrong="invalid" if how == "wrong" else None)
    outbox.run(1000)
    assert outbox.aside == [*range(MOST_IN_A_ROW)]
    [blocked] = outbox.topics.blocked
    assert blocked == ("bad", MOST_IN_A_ROW, "invalid")
    assert outbox.topics.untold() == [blocked]
    assert outbox.topics.untold() == []

    outbox.wrong = None
    outbox.rows |= {200: "good", 201: "bad", 202: "good"}
    outbox.run(1, rests=2)
    assert outbox.batches[-1] == [200, 202]
    outbox.now += 61
    assert outbox.topics.untold() == [blocked]
    tried = len(outbox.batches)
    outbox.run(1000, rests=60)
    assert outbox.aside == [*range(MOST_IN_A_ROW)]
    if how != "wrong":
        assert 5 <= len(outbox.batches) - tried <= 7  # its first row, every ten seconds
    del outbox.rows[MOST_IN_A_ROW]  # a person has set it aside
    outbox.send = lambda _rows: None
    outbox.run(1000, rests=30)
    assert outbox.sent == [200, 202, *range(MOST_IN_A_ROW + 1, 150), 201]
    assert not outbox.topics.blocked


@pytest.mark.behaviour("OUT-9")
def test_of_several_topics_of_which_nothing_is_accepted_none_loses_more_and_one_that_is_frees_them() -> None:
    """It may be a format that no broker takes."""
    taken = set[str]()
    send = refusing_all(lambda row: row.topic not in taken)
    outbox = Outbox({id_: f"topic {id_ % 5}" for id_ in range(1_000)}, send)
    outbox.run(3_000, rests=30)
    assert len(outbox.aside) == MOST_IN_A_ROW
    assert {one.topic for one in outbox.topics.blocked} == {f"topic {number}" for number in range(5)}
    taken.add("topic 4")
    outbox.run(3_000, rests=100)
    assert len([id_ for id_ in outbox.sent if id_ % 5 == 4]) == 200
    assert len(outbox.aside) > MOST_IN_A_ROW


@pytest.mark.behaviour("OUT-6")
@pytest.mark.parametrize("good", [1, 2])
def test_rows_that_are_taken_in_between_interrupt_a_row_of_refusals(good: int) -> None:
    send = refusing_all(lambda row: row.id % 8 >= good, is_named=True, is_proven=False)
    outbox = Outbox(dict.fromkeys(range(8_000), "events"), send)
    outbox.run(100)
    assert len(outbox.aside) == 1_000 * (8 - good)
    assert len(outbox.batches) == 2


@pytest.mark.behaviour("OUT-6")
def test_but_not_if_none_of_them_has_passed_since_the_last_refusal() -> None:
    """Else a limit that is too low would empty the outbox if Kafka takes none of the others either."""
    topics, rows = Topics(10_000, lambda: 0.0), batch(range(1_000), "events")
    certain = dict.fromkeys(range(1, 1_000, 2), "")
    refused, left = topics.refuse(rows, certain)
    assert (len(refused), len(left)) == (500, 500)
    assert topics.refuse(rows, certain) == ({}, rows[:1])


@pytest.mark.behaviour("OUT-6", "OUT-9")
def test_after_a_hundred_refusals_in_a_row_what_comes_before_the_next_is_sent_first() -> None:
    """Also of a topic that is sent apart: else its batch comes again and again."""

    def send(rows: Sequence[OutboxRow]) -> Refusal | None:
        if named := {row.id: "no key" for row in rows if row.id < MOST_IN_A_ROW}:
            return Refusal(named, is_proven=True)
        certain = {row.id: "too large" for row in rows if row.id == 110}
        return Refusal(certain) if certain else None

    outbox = Outbox(dict.fromkeys(range(112), "events"), send)
    outbox.run(20)
    assert outbox.batches[2:] == [[*range(100, 110)], [110, 111], [111]]
    assert outbox.aside == [*range(100), 110]


def batch(ids: range, topic: str) -> list[OutboxRow]:
    return [OutboxRow(id_, topic, None, None) for id_ in ids]


@pytest.mark.behaviour("OUT-6", "OUT-9")
@pytest.mark.parametrize("good", [1, 50, 98, 200])
def test_a_topic_that_is_blocked_blames_no_rows_of_another(good: int) -> None:
    """Its hundredth refusal comes with suspects of both: one of the other's may be bad, or none."""
    topics = Topics(10_000, lambda: 0.0)
    topics.refuse(batch(range(99), "bad"), dict.fromkeys(range(99), "invalid"))
    topics.passed(batch(range(99, 100), "another"))
    rows = [*batch(range(100, 103), "bad"), *batch(range(200, 200 + good), "good")]
    refused, _ = topics.refuse(rows, {100: "invalid", 101: "invalid"})
    assert (refused.keys(), [one.topic for one in topics.blocked]) == ({100}, ["bad"])
    suspected = {102: "invalid"} | dict.fromkeys(range(200, 200 + good), "invalid")
    assert topics.suspect(rows, suspected, is_proven=True) == {}
    assert topics.apart == {"bad", "good"}


@pytest.mark.behaviour("OUT-6")
def test_what_is_refused_in_a_row_adds_up_over_errors() -> None:
    outbox = Outbox(dict.fromkeys(range(1_000), "events"), refusing(*range(1_000)))
    for _ in range(4):  # a new machine after each error
        before = len(outbox.aside)
        outbox.run(60, rests=20)
        assert len(outbox.aside) - before < MOST_IN_A_ROW
        outbox.begin()
    outbox.run(100, rests=20)
    assert len(outbox.aside) == MOST_IN_A_ROW


@pytest.mark.behaviour("OUT-6")
def test_what_was_refused_counts_once_it_is_recorded() -> None:
    """Else a database that is away now and then would block a topic too soon."""
    topics, rows = Topics(10_000, lambda: 0.0), batch(range(160), "events")
    for _ in range(3):
        topics.begin()
        assert len(topics.refuse(rows[:60], dict.fromkeys(range(60), "invalid"))[0]) == 60
    topics.recorded()
    topics.begin()
    refused, _ = topics.refuse(rows[60:], dict.fromkeys(range(60, 160), "invalid"))
    assert (len(refused), [one.row for one in topics.blocked]) == (40, [100])


@pytest.mark.behaviour("OUT-9", "OUT-10")
def test_rows_of_a_topic_that_is_missing_wait_in_their_order_and_hold_no_other_up() -> None:
    outbox = Outbox({1: "late", 2: "good", 3: "late"}, lambda _rows: None, {"late"})
    outbox.run(5, rests=5)
    assert (outbox.sent, outbox.aside) == ([2], [])
    assert outbox.topics.blocked == [("late", 1, "no topic late")]
    outbox.rows |= {4: "good", 5: "late"}
    outbox.missing.clear()
    outbox.run(5, rests=12)
    assert outbox.sent == [2, 4, 1, 3, 5]
    assert not outbox.topics.apart


@pytest.mark.behaviour("OUT-9", "OUT-10")
def test_a_topic_that_is_missing_is_forgotten_once_its_rows_are_gone() -> None:
    """A person has set them aside; of several such topics, each has its turn."""
    outbox = Outbox(dict(enumerate(["kept", "lost", "gone"])), lambda _rows: None, {"kept", "lost", "gone"})
    outbox.run(1, rests=20)
    assert {one.topic for one in outbox.topics.blocked} == {"kept", "lost", "gone"}
    del outbox.rows[1], outbox.rows[2]
    outbox.run(1, rests=40)
    assert outbox.topics.blocked == [("kept", 0, "no topic kept")]
    outbox.rows[3] = "gone"
    outbox.run(1, rests=2)
    assert ("gone", 3, "no topic gone") in outbox.topics.blocked
    outbox.missing.clear()
    outbox.run(3, rests=20)
    assert ({*outbox.sent}, outbox.aside) == ({0, 3}, [])


@pytest.mark.behaviour("OUT-9")
def test_a_thousand_topics_that_are_missing_are_asked_for_together_and_seldom() -> None:
    rows = {id_: f"tenant-{id_}" for id_ in range(1_000)}
    outbox = Outbox(rows, lambda _rows: None, {*rows.values()})
    outbox.run(1, rests=60)
    assert not outbox.batches
    assert sum(isinstance(one, Probe) for one in outbox.steps) <= 10
    assert sum(isinstance(one, ReadRows) for one in outbox.steps) <= 70


@pytest.mark.behaviour("OUT-6")
def test_after_rows_that_were_refused_only_together_batches_of_their_topic_stay_smaller_for_a_while() -> None:
    """A topic takes 40 rows in a request, say; librdkafka makes requests as large as it may."""

    def send(rows: Sequence[OutboxRow]) -> Refusal | None:
        bad = {row.id: "too large" for row in rows if row.topic == "small"}
        return Refusal(suspected=bad, is_proven=True) if len(bad) > 40 else None

    outbox = Outbox({id_: "small" if id_ % 2 else "large" for id_ in range(20_000)}, send)
    outbox.run(400)
    mine = [len(batch) for batch in outbox.batches if batch[0] % 2]
    assert mine[:7] == [2500, 1250, 625, 312, 156, 78, 39]
    large = [size for size in mine[7:] if size > 40]
    assert large == [78] * (len(mine) // 100)
    assert sorted(mine)[len(mine) // 2] == 39
    assert [len(batch) for batch in outbox.batches if not batch[0] % 2] == [10_000, 5_000, 5_000]
    assert outbox.aside == []


@pytest.mark.parametrize("topic", ["", ".", "..", "a b", "ä", "x" * 250, None, 7])
def test_a_topic_has_a_name_that_kafka_allows(topic: Any) -> None:
    with pytest.raises(RowsRefused, match="the name of the topic is not valid") as caught:
        outbox_record(topic, b"", b"")
    assert caught.value.column == "topic"


def test_texts_are_encoded_and_what_is_neither_text_nor_bytes_is_refused() -> None:
    record = outbox_record("events", "ключ", None, [("trace", "7f3a"), ("none", None)])
    assert record == ("events", "ключ".encode(), None, (("trace", b"7f3a"), ("none", None)))
    assert outbox_record("events", None, b"").headers is None
    assert outbox_record("events", None, b"", {"id": "x", "trace": b"y"}).headers == (("id", b"x"), ("trace", b"y"))
    wrong: list[tuple[str, Any, Any, Any]] = [
        ("key", 1, b"", ()),
        ("value", b"", {"a": 1}, ()),
        ("key", "\ud800", b"", ()),
        ("headers", b"", b"", [("name", 1)]),
        ("headers", b"", b"", [(b"name", b"")]),
        ("headers", b"", b"", [("a\0b", b"")]),  # Kafka's client would send "a"
        ("headers", b"", b"", ["id"]),
        ("headers", b"", b"", [("name", b"", b"")]),
        ("headers", b"", b"", [7]),
    ]
    for column, key, value, headers in wrong:
        with pytest.raises(RowsRefused) as caught:
            outbox_record("events", key, value, headers)
        assert caught.value.column == column, headers

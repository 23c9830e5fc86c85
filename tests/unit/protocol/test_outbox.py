"""Where a relay begins, by the two numbers; and what a record may be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count, islice
from typing import Any

import pytest

from offsetstore.errors import OutboxUncertain, RowsRefused
from offsetstore.protocol.outbox import (
    LOOKS,
    MOST_IN_A_ROW,
    Ask,
    Check,
    Fence,
    Fetch,
    Look,
    Mark,
    OnUncertain,
    OutboxRow,
    Pause,
    Peek,
    Position,
    Read,
    Record,
    Refusal,
    Rest,
    Send,
    Standing,
    Step,
    Take,
    Trials,
    outbox_record,
    relaying,
)
from offsetstore.relay import _TRIAL

OURS = "cluster"
IDS = (7, 8, 9)
ROWS = [OutboxRow(id_, "events", b"key", b"value") for id_ in IDS]
OPEN, BEFORE = Mark(5, "five"), Mark(4, "four")
TRIAL = [Check(), Fence(), Ask(), Read(), Send(BEFORE)]


def words() -> Callable[[], str]:
    """Draw ``w1``, ``w2`` and so on."""
    numbers = count(1)
    return lambda: f"w{next(numbers)}"


def sizes(
    rows: int,
    send: Callable[[Sequence[OutboxRow]], Refusal | None],
    *,
    most: int,
    watch: Callable[[Step], object] = bool,
    trials: Trials | None = None,
) -> list[int]:
    """How many rows are sent each time, up to ``most`` times, of an outbox with so many; ``watch`` sees each step."""
    left = {id_: ROWS[0]._replace(id=id_) for id_ in range(rows)}
    machine = relaying(again=True, word=words(), trials=trials)
    step: Any = next(machine)
    kafka, stored = OPEN, standing(())
    sent: list[int] = []
    while len(sent) < most and not isinstance(step, Rest):
        answer = None
        watch(step)
        match step:
            case Look(most=limit, without=without):
                gone = {*without}
                answer = [row for row in islice(left.values(), limit + len(gone)) if row.id not in gone][:limit]
            case Ask():
                answer = Position(OURS, *kafka)
            case Read():
                answer = stored
            case Record(mark=mark, ids=ids, before=before):
                stored = Standing(mark.number, ids, OURS, mark.word, before)
                for id_ in (*step.done, *step.refused):
                    del left[id_]
            case Send(mark=mark, rows=given) if given:
                sent.append(len(given))
                if (answer := send(given)) is None:
                    kafka = mark
            case _:
                pass
        step = machine.send(answer)
    return sent


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
        if isinstance(step, Pause) and done[-1] == Read():
            del done[-2:]  # it asks once more: what was read before counts no longer
            step = machine.send(None)
        answer: Any = None
        match step:
            case Ask():
                answer = Position(OURS, *kafka)
            case Read():
                answer = stored
            case Fetch(ids=asked):
                answer = [row for row in rows if row.id in asked]
            case Look():
                answer = ()
            case Send(rows=sent) if sent and coming:
                answer = coming.pop(0)
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

    before = [Peek(), Ask(is_fenced=False), Fence()]
    position = Position(OURS, None)
    answers = [None, Standing(), position, None, None, None, position]
    assert [first.send(answer) for answer in answers] == [*before, Take(), Fence(), Ask(), Read()]
    assert [again.send(answer) for answer in (None, None, None, position)] == [Check(), Fence(), Ask(), Read()]


@pytest.mark.behaviour("OUT-5")
def test_what_does_not_fit_ends_a_start_before_it_takes_anything_over_unless_another_relay_is_working() -> None:
    """What is read before is neither locked nor fenced: the other one may have sent and recorded a batch in between."""
    position = Position(OURS, 7, "seven")
    started = relaying()
    assert [next(started), started.send(standing()), started.send(position)] == [Peek(), Ask(is_fenced=False), Peek()]
    with pytest.raises(OutboxUncertain, match="has later batches"):
        started.send(standing())

    decided = relaying(on_uncertain="skip")
    assert [decided.send(answer) for answer in (None, standing(), position)][-1] == Fence()


@pytest.mark.behaviour("OUT-4", "OUT-5")
@pytest.mark.parametrize(
    ("first", "position", "later", "fits"),
    [
        (standing(), Position(OURS, 7, "seven"), Standing(7, (), OURS, "seven"), True),
        (standing(), Position(OURS, 6, "six"), Standing(9, (1,), OURS, "nine", "eight"), True),
        (standing(), Position(OURS, 5, "with fewer rows"), Standing(6, (1,), OURS, "six", "five"), True),
        (standing(), Position(OURS, 4, "four"), Standing(4, (), OURS, "four"), True),
        (Standing(), Position(OURS, 1, "one"), Standing(2, (1,), OURS, "two", "one"), True),
        (standing(), Position(OURS, None), Standing(7, (), OURS, "seven"), False),
        (standing(), Position("other", 6, "six"), Standing(7, (), OURS, "seven"), False),
        (standing(), Position("other", 6, "six"), Standing(7, (), "other", "seven"), False),
        (standing(), Position(OURS, 3, "three"), Standing(7, (), OURS, "seven"), False),
        (standing(), Position(OURS, 8, "eight"), Standing(7, (), OURS, "seven"), False),
    ],
    ids=str,
)
def test_a_start_with_another_anchor_or_cluster_does_not_end_a_relay_that_is_busy(
    first: Standing, position: Position, later: Standing, *, fits: bool
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
            assert isinstance(started.send(later), Pause)
            assert [started.send(answer) for answer in (None, first, position)][-1] == Peek()

    with pytest.raises(OutboxUncertain):
        go_on()


@pytest.mark.parametrize("kafka", [(None, None), (0, "zero")], ids=str)
def test_the_first_start_gives_kafka_a_number_before_the_database_has_one(kafka: tuple[int | None, Any]) -> None:
    mark = Mark(0, kafka[1] or "w1")
    given = [] if kafka[1] else [Send(mark)]
    assert steps(kafka, Standing()) == [*given, Record(mark, cluster_id=OURS), Look(10_000, ())]


def test_a_batch_that_kafka_has_is_deleted() -> None:
    assert steps(OPEN, standing()) == [Look(10_000, IDS), Record(OPEN, (), IDS), Look(10_000, ())]


def test_a_batch_that_kafka_does_not_have_is_sent_and_deleted() -> None:
    sent = [Fetch(IDS), Send(OPEN, ROWS), Look(10_000, [*IDS]), Record(OPEN, (), [*IDS]), Look(10_000, ())]
    assert steps(BEFORE, standing()) == sent


def test_without_a_batch_nothing_is_done() -> None:
    assert steps(OPEN, standing(())) == [Look(10_000, ())]


def test_a_batch_whose_rows_somebody_has_deleted_is_given_up() -> None:
    assert steps(BEFORE, standing(), rows=[]) == [Fetch(IDS), Record(BEFORE), Look(10_000, ())]


def test_a_batch_that_was_too_much_for_the_line_is_sent_in_parts() -> None:
    part = Mark(5, "w1")
    found = steps(BEFORE, standing(), limit=2)
    assert found[1:4] == [Record(part, [7, 8], before="four"), Send(part, ROWS[:2]), Look(4, [7, 8])]


@pytest.mark.behaviour("OUT-5")
@pytest.mark.parametrize(
    ("kafka", "ids", "said"),
    [
        ((None, None), IDS, "has lost the number.*3 rows of batch 5, from id 7 to 9, may or may not be in Kafka"),
        ((None, None), (), "has lost the number.*No rows may or may not"),
        ((4, "four"), (), "an earlier batch"),
        ((3, "three"), IDS, "an earlier batch"),
        ((6, "six"), IDS, "has later batches than the database, which was restored"),
        ((5, "other"), IDS, "another batch of this number than the database.*3 rows of batch 5"),
        ((5, "other"), (), "another batch of this number than the database.*No rows"),
        ((4, "other"), IDS, "another batch of this number"),
        ((5, None), IDS, "another batch of this number"),
        ((4, None), IDS, "another batch of this number"),
    ],
)
def test_marks_that_do_not_fit_are_left_to_a_person(
    kafka: tuple[int | None, str | None], ids: Sequence[int], said: str
) -> None:
    with pytest.raises(OutboxUncertain, match=said) as caught:
        steps(kafka, standing(ids))

    word = "" if kafka[1] is None else f" ({kafka[1]})"
    assert caught.value.found == f"cluster cluster, batch {kafka[0]}{word}"
    assert 'on_uncertain="skip"' in caught.value.next_step


@pytest.mark.behaviour("OUT-5")
@pytest.mark.parametrize("behind", [(None, None), (3, "three")], ids=str)
def test_kafka_is_asked_again_if_it_seems_to_have_lost_something(behind: tuple[int | None, str | None]) -> None:
    """A broker that has just started may tell less than it has."""
    again = relaying(again=True)
    answers = [None, None, None, Position(OURS, *behind), standing(), None, Position(OURS, *BEFORE), standing()]
    assert [again.send(answer) for answer in answers] == [
        Check(), Fence(), Ask(), Read(), Pause(lost=Position(OURS, *behind)), Ask(), Read(), Fetch(IDS)
    ]  # fmt: skip

    first = relaying()
    answers = [None, standing(), Position(OURS, *behind), standing(), None, standing(), Position(OURS, *BEFORE)]
    look = [Peek(), Ask(is_fenced=False)]
    assert [first.send(answer) for answer in answers] == [
        *look, Peek(), Pause(lost=Position(OURS, *behind)), *look, Fence()
    ]  # fmt: skip


@pytest.mark.behaviour("OUT-5")
@pytest.mark.parametrize(
    ("kafka", "ids", "seems_lost"),
    [
        ((None, None), IDS, True),
        ((None, None), (), True),
        ((3, "three"), IDS, True),
        ((4, "four"), (), True),
        ((6, "six"), IDS, False),
        ((5, "other"), IDS, False),
        ((4, "other"), IDS, False),
    ],
)
def test_what_seems_lost_is_asked_for_again_for_twenty_seconds_and_nothing_else_is(
    kafka: tuple[int | None, str | None], ids: Sequence[int], *, seems_lost: bool
) -> None:
    machine = relaying(again=True)
    made = [next(machine)]
    answers: dict[object, object] = {Ask: Position(OURS, *kafka), Read: standing(ids)}

    def go_on() -> None:
        while True:
            made.append(machine.send(answers.get(type(made[-1]))))

    with pytest.raises(OutboxUncertain):
        go_on()
    pauses = [Pause(lost=Position(OURS, *kafka)), *[Pause()] * (LOOKS - 2)]  # it is told once
    assert [step for step in made if isinstance(step, Pause)] == (pauses if seems_lost else [])
    assert 15 <= (LOOKS - 1) * _TRIAL <= 20


@pytest.mark.behaviour("OUT-5")
def test_tables_that_were_made_anew_are_told() -> None:
    with pytest.raises(OutboxUncertain, match="its tables were made anew"):
        steps((1, "one"), Standing())


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
    assert skipped == [Send(mark), Record(mark, (), IDS, cluster_id=OURS), Look(10_000, ())]
    assert repeated[:4] == [
        Send(mark), Record(after, IDS, before="w1", cluster_id=OURS), Fetch(IDS), Send(after, ROWS)
    ]  # fmt: skip
    with pytest.raises(OutboxUncertain):
        steps(mark, standing())


@pytest.mark.behaviour("OUT-6")
def test_rows_that_are_refused_by_themselves_are_set_aside_and_the_others_sent() -> None:
    found = steps(BEFORE, standing(), refusals=[Refusal(certain={8: "too large"})])

    others, mark = [ROWS[0], ROWS[2]], Mark(5, "w1")
    assert found[1:4] == [
        Send(OPEN, ROWS), Record(mark, [7, 9], refused={8: "too large"}, before="four"), Send(mark, others)
    ]  # fmt: skip


@pytest.mark.behaviour("OUT-6")
def test_of_suspects_the_first_is_tried_alone_after_those_before_it() -> None:
    suspects = Refusal(suspected={8: "invalid", 9: "invalid"})
    first, second = Mark(5, "w1"), Mark(5, "w2")
    found = steps(BEFORE, standing(), refusals=[suspects])
    assert found[1:] == [
        Send(OPEN, ROWS),
        *TRIAL,
        Record(first, [7], before="four"),
        Send(first, ROWS[:1]),
        Look(1, [7]),
        Record(first, (), [7]),
        Look(1, ()),
    ]

    alone = Refusal(suspected={8: "invalid"})
    found = steps(BEFORE, standing((8, 9)), refusals=[suspects, alone])
    assert found[1:] == [
        Send(OPEN, ROWS[1:]),
        *TRIAL,
        Record(first, [8], before="four"),
        Send(first, ROWS[1:2]),
        *TRIAL,
        Pause(),
        Record(second, [8], before="four"),
        Send(second, ROWS[1:2]),
        Look(1, [8]),
        Record(second, (), [8]),
        Look(1, ()),
    ]


@pytest.mark.behaviour("OUT-6")
def test_a_row_is_set_aside_when_two_trials_of_it_have_failed() -> None:
    """Before each, a new producer has committed something else: once could be the state of one. Its first failure is no
    trial, although it was the only row of its batch.
    """
    alone = Refusal(suspected={8: "invalid"})
    once, twice = Mark(5, "w1"), Mark(5, "w2")
    found = steps(BEFORE, standing((8,)), refusals=[alone, alone, alone])
    assert found[1:] == [
        Send(OPEN, ROWS[1:2]),
        *TRIAL,
        Record(once, [8], before="four"),
        Send(once, ROWS[1:2]),
        *TRIAL,
        Pause(),
        Record(twice, [8], before="four"),
        Send(twice, ROWS[1:2]),
        *TRIAL,
        Record(BEFORE, refused={8: "invalid"}),
        Look(1, ()),
    ]


@dataclass
class Refused:
    """The rows that were set aside, and why rows were waited with."""

    aside: list[int] = field(default_factory=list[int])
    waited: list[str] = field(default_factory=list[str])

    def watch(self, step: Step) -> None:
        if isinstance(step, Record):
            self.aside.extend(step.refused)
        elif isinstance(step, Pause) and step.refused:
            self.waited.append(step.refused)


@pytest.mark.behaviour("OUT-6")
@pytest.mark.parametrize("takes", [None, 50], ids=["none", "one of them"])
def test_if_kafka_refuses_one_row_after_the_other_none_is_set_aside_any_more(takes: int | None) -> None:
    """It may be a format that no broker takes: the control commit has no record."""
    seen = Refused()

    def send(rows: Sequence[OutboxRow]) -> Refusal | None:
        return None if rows[0].id == takes else Refusal(suspected={rows[0].id: "invalid"})

    sizes(1_000, send, most=2_000, watch=seen.watch)
    first = [id_ for id_ in range(1_000) if id_ != takes]
    most = MOST_IN_A_ROW + (takes or 0)
    assert seen.aside == first[:most]
    assert len(seen.waited) > 100
    assert {*seen.waited} == {"invalid"}


@pytest.mark.behaviour("OUT-6")
@pytest.mark.parametrize(("good", "refused"), [(0, MOST_IN_A_ROW), (2, 750)], ids=["none passes", "some pass"])
def test_what_the_client_refuses_is_set_aside_at_once_but_not_a_hundred_in_a_row(good: int, refused: int) -> None:
    """A setting of the relay's may be too small."""
    seen = Refused()

    def send(rows: Sequence[OutboxRow]) -> Refusal | None:
        by_client = {row.id: "too large" for row in rows if row.id % 8 >= good}
        return Refusal(by_client=by_client) if by_client else None

    sizes(1_000, send, most=100, watch=seen.watch)
    assert len(seen.aside) == refused
    assert {*seen.waited} == ({"too large"} if not good else set())


@pytest.mark.behaviour("OUT-6")
def test_what_is_refused_in_a_row_adds_up_over_errors() -> None:
    seen, trials = Refused(), Trials()

    for _ in range(4):  # a new machine after each error
        before = len(seen.aside)
        sizes(1_000, lambda rows: Refusal(suspected={rows[0].id: "invalid"}), most=150, watch=seen.watch, trials=trials)
        assert len(seen.aside) - before < MOST_IN_A_ROW
    assert len(seen.aside) == MOST_IN_A_ROW


@pytest.mark.behaviour("OUT-6")
@pytest.mark.parametrize("bad", [5, 7, 10], ids=lambda bad: f"{bad} of 10")
def test_rows_that_are_refused_whatever_the_others_are_do_not_make_batches_smaller(bad: int) -> None:
    """A topic was deleted whose rows are most of the outbox."""

    def send(rows: Sequence[OutboxRow]) -> Refusal | None:
        certain = {row.id: "no topic" for row in rows if row.id % 10 < bad}
        return Refusal(certain=certain) if certain else None

    assert len(sizes(60_000, send, most=100)) <= 20


@pytest.mark.behaviour("OUT-6")
def test_after_rows_that_were_refused_only_together_batches_stay_smaller_for_a_while() -> None:
    """A topic takes 40 rows in a request, say; librdkafka makes requests as large as it may."""

    def send(rows: Sequence[OutboxRow]) -> Refusal | None:
        return Refusal(suspected={row.id: "too large" for row in rows}) if len(rows) > 40 else None

    sent = sizes(20_000, send, most=300)
    refused = [size for size in sent if size > 40]
    assert refused[:2] == [10_000, 64]
    assert len(refused) == 4  # twice as many are tried once in a hundred batches
    assert sorted(sent)[150] == 32


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

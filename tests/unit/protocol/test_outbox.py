"""Where a relay begins, by the two numbers; and what a record may be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from offsetstore.errors import ConfigurationError, OutboxUncertain
from offsetstore.protocol.outbox import (
    Ask,
    Check,
    Fence,
    Fetch,
    Look,
    OnUncertain,
    OutboxRecord,
    OutboxRow,
    Position,
    Read,
    Record,
    Refusal,
    Rest,
    Send,
    Standing,
    Step,
    Take,
    outbox_record,
    relaying,
)

OURS = "cluster"
IDS = (7, 8, 9)
ROWS = [OutboxRow(id_, OutboxRecord("events", b"key", b"value")) for id_ in IDS]


def steps(
    kafka: int | None,
    stored: int | None,
    ids: Sequence[int] = (),
    *,
    rows: Sequence[OutboxRow] = ROWS,
    on_uncertain: OnUncertain = "fail",
    cluster: str = OURS,
    refusals: Sequence[Refusal] = (),
) -> list[Step]:
    """All steps from the reading of both numbers until there is nothing more to do; the outbox has no other rows."""
    machine = relaying(on_uncertain=on_uncertain)
    coming = list(refusals)
    done: list[Step] = []
    step = next(machine)
    while not isinstance(step, Rest):
        answer: Any = None
        match step:
            case Ask():
                answer = Position(OURS, kafka)
            case Read():
                answer = Standing(stored, ids, None if stored is None else cluster)
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


def test_the_database_is_taken_and_kafka_fenced_before_either_is_read() -> None:
    first, again = relaying(), relaying(again=True)

    assert [next(first), first.send(None), first.send(None), first.send(Position(OURS, 0))] == [
        Take(), Fence(), Ask(), Read()
    ]  # fmt: skip
    assert [next(again), again.send(None)] == [Check(), Fence()]


@pytest.mark.parametrize("kafka", [None, 0])
def test_the_first_start_gives_kafka_a_number_before_the_database_has_one(kafka: int | None) -> None:
    given = [Send(0, ())] if kafka is None else []
    assert steps(kafka, None) == [*given, Record(0, (), cluster_id=OURS), Look(10_000, ())]


def test_a_batch_that_kafka_has_is_deleted() -> None:
    assert steps(5, 5, IDS) == [Look(10_000, IDS), Record(5, (), IDS), Look(10_000, ())]


def test_a_batch_that_kafka_does_not_have_is_sent_and_deleted() -> None:
    sent = [Fetch(IDS), Send(5, ROWS), Look(10_000, [*IDS]), Record(5, (), [*IDS]), Look(10_000, ())]
    assert steps(4, 5, IDS) == sent


def test_without_a_batch_nothing_is_done() -> None:
    assert steps(5, 5) == [Look(10_000, ())]


def test_a_batch_whose_rows_somebody_has_deleted_is_given_up() -> None:
    assert steps(4, 5, IDS, rows=[]) == [Fetch(IDS), Record(4, ()), Look(10_000, ())]


@pytest.mark.behaviour("OUT-5")
@pytest.mark.parametrize(
    ("kafka", "stored", "ids", "said"),
    [
        (None, 5, IDS, "has lost the number.*3 rows of batch 5, from id 7 to 9, may or may not be in Kafka"),
        (None, 5, (), "has lost the number.*No rows may or may not"),
        (None, 1, IDS, "has lost the number"),
        (4, 5, (), "an earlier batch"),
        (3, 5, IDS, "an earlier batch"),
        (6, 5, IDS, "has later batches than the database, which was restored"),
        (1, None, (), "its tables were made anew"),
    ],
)
def test_numbers_that_do_not_fit_are_left_to_a_person(
    kafka: int | None, stored: int | None, ids: Sequence[int], said: str
) -> None:
    with pytest.raises(OutboxUncertain, match=said) as caught:
        steps(kafka, stored, ids)

    assert caught.value.found == f"cluster cluster, batch {kafka}"
    assert 'on_uncertain="skip"' in caught.value.next_step


@pytest.mark.behaviour("OUT-5")
def test_another_cluster_is_told_although_the_numbers_fit() -> None:
    with pytest.raises(OutboxUncertain, match="another cluster") as caught:
        steps(5, 5, IDS, cluster="before")

    assert caught.value.expected == "cluster before"


@pytest.mark.behaviour("OUT-5")
@pytest.mark.parametrize(("kafka", "floor"), [(None, 6), (3, 6), (9, 10)])
def test_a_person_s_decision_gives_both_sides_a_number_that_neither_had(kafka: int | None, floor: int) -> None:
    """Until the database has it, another start still asks."""
    skipped = steps(kafka, 5, IDS, on_uncertain="skip")
    repeated = steps(kafka, 5, IDS, on_uncertain="repeat")

    assert skipped == [Send(floor, ()), Record(floor, (), IDS, cluster_id=OURS), Look(10_000, ())]
    assert repeated[:4] == [
        Send(floor, ()), Record(floor + 1, IDS, cluster_id=OURS), Fetch(IDS), Send(floor + 1, ROWS)
    ]  # fmt: skip
    with pytest.raises(OutboxUncertain):
        steps(floor, 5, IDS)


@pytest.mark.behaviour("OUT-6")
def test_rows_that_are_refused_by_themselves_are_set_aside_and_the_others_sent() -> None:
    found = steps(4, 5, IDS, refusals=[Refusal(certain={8: "too large"})])

    others = [ROWS[0], ROWS[2]]
    assert found[1:4] == [Send(5, ROWS), Record(5, [7, 9], refused={8: "too large"}), Send(5, others)]


@pytest.mark.behaviour("OUT-6")
def test_of_suspects_the_first_is_tried_alone_after_those_before_it() -> None:
    suspects = Refusal(suspected={8: "invalid", 9: "invalid"})
    found = steps(4, 5, IDS, refusals=[suspects])
    assert found[1:5] == [Send(5, ROWS), Record(5, [7]), Send(5, ROWS[:1]), Look(2, [7])]

    alone = Refusal(suspected={8: "invalid"})
    found = steps(4, 5, (8, 9), rows=ROWS[1:], refusals=[suspects, alone])
    assert found[1:7] == [
        Send(5, ROWS[1:]), Record(5, [8]), Send(5, ROWS[1:2]), Record(5, [8]), Send(5, ROWS[1:2]), Look(2, [8])
    ]  # fmt: skip


@pytest.mark.behaviour("OUT-6")
def test_a_row_is_set_aside_when_it_was_refused_alone_twice_in_a_row() -> None:
    """Once could be the producer's state: Kafka has ended its transaction, say."""
    alone = Refusal(suspected={8: "invalid"})
    found = steps(4, 5, (8,), rows=ROWS[1:2], refusals=[alone, alone])
    assert found[1:] == [
        Send(5, ROWS[1:2]),
        Record(5, [8]),
        Send(5, ROWS[1:2]),
        Record(4, [], refused={8: "invalid"}),
        Look(1, ()),
    ]


@pytest.mark.parametrize("topic", ["", ".", "..", "a b", "ä", "x" * 250, None, 7])
def test_a_topic_has_a_name_that_kafka_allows(topic: Any) -> None:
    with pytest.raises(ConfigurationError, match="the name of the topic is not valid"):
        outbox_record(topic, b"", b"")


def test_texts_are_encoded_and_what_is_neither_text_nor_bytes_is_refused() -> None:
    record = outbox_record("events", "ключ", None, [("trace", "7f3a"), ("none", None)])
    assert record == ("events", "ключ".encode(), None, (("trace", b"7f3a"), ("none", None)))
    assert outbox_record("events", None, b"").headers is None
    wrong: list[tuple[Any, Any, Any]] = [
        (1, b"", ()), (b"", {"a": 1}, ()), (b"", b"", [("name", 1)]), (b"", b"", [(b"name", b"")]), ("\ud800", b"", ())
    ]  # fmt: skip
    for key, value, headers in wrong:
        with pytest.raises(ConfigurationError):
            outbox_record("events", key, value, headers)

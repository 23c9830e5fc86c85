"""What plans say: each sentence of each operation, planned and done."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from offsetstore.offsets import Pause, StoredOffset, Suspect, Token, TopicPartition
from offsetstore.operations.letters import LettersDecided, LettersPruned
from offsetstore.operations.names import DeletedGroup, NewName
from offsetstore.operations.operation import Plan
from offsetstore.operations.outbox import RefusedDecided, RefusedRow
from offsetstore.operations.resets import Move, Reset
from offsetstore.operations.wording import in_words
from offsetstore.protocol.database import GroupRow
from offsetstore.protocol.letters import LetterKey

AT = datetime(2025, 3, 1, 12, 0, tzinfo=UTC)
TOKEN = Token(7, UUID(int=7))
P0, P1 = TopicPartition("payments", 0), TopicPartition("payments", 1)
LIVE = GroupRow(TOKEN, "host:1", AT, timedelta(seconds=2))
SILENT = replace(LIVE, alive_for=timedelta(hours=3))
WHO, SILENTLY = LIVE.in_words(), SILENT.in_words()
FENCED = f"A job is live: {WHO}. If it is fenced, its next write fails with StaleClaim, and its batch is not stored"
STILL = f"The last job is silent: {SILENTLY}. If it still runs, its next write fails with StaleClaim."


def said(plan: Plan) -> Sequence[str]:
    """The outcome, then the notes; a warning has a mark."""
    words = in_words(plan)
    return [words.outcome, *(f"! {note.text}" if note.is_warning else note.text for note in words.notes)]


def stored(offset: int, suspect: Suspect | None = None) -> StoredOffset:
    return StoredOffset(offset, TOKEN, suspect=suspect)


def new_name(owner: GroupRow | None, *, executed: bool = False, is_copy: bool = False, letters: int = 0) -> NewName:
    rows = {P0: stored(5)}
    return NewName("billing", "invoicing", rows, letters, is_copy, owner=owner, digest="", executed=executed)


def deleted(owner: GroupRow | None, *topics: str, executed: bool = False) -> DeletedGroup:
    named = topics or None
    return DeletedGroup("billing", named, {P0: 5}, {}, False, {}, owner=owner, digest="", executed=executed)  # noqa: FBT003


def reset(*shifts: int, owner: GroupRow | None = None, executed: bool = False, lost: str = "") -> Reset:
    """Of a partition for each shift, from offset 10; the first may have lost records."""
    rows = [stored(10, Suspect(lost)) if lost and not number else stored(10) for number in range(len(shifts))]
    moves = [
        Move(TopicPartition("payments", number), row, 10 + shift, None)
        for number, (row, shift) in enumerate(zip(rows, shifts, strict=True))
    ]
    return Reset("billing", tuple(moves), owner=owner, digest="", executed=executed)


AGAIN = "! Remove their results before you start the job, or they will be stored twice."
OVER = "! Records that are passed over will not be in the results."
NONE_RUNS = "No job is known to be running: start one, or nothing is read."


@pytest.mark.behaviour("OPS-1")
@pytest.mark.parametrize(
    ("plan", "planned", "done"),
    [
        (reset(-3), ["read 3 offsets again, in 1 partition.", AGAIN], [AGAIN]),
        (reset(-1, 0), ["read 1 offset again, in 2 partitions.", AGAIN], [AGAIN]),
        (reset(4), ["pass over 4 offsets, in 1 partition.", OVER], []),
        (reset(1), ["pass over 1 offset, in 1 partition.", OVER], []),
        (reset(-3, 4), ["read 3 offsets again and pass over 4, in 2 partitions.", AGAIN, OVER], [AGAIN]),
    ],
)
def test_a_reset_says_what_is_read_again_and_what_is_passed_over(
    plan: Reset, planned: list[str], done: list[str]
) -> None:
    what, *notes = planned
    assert said(plan) == [f"billing would {what}", *notes]
    assert said(replace(plan, executed=True)) == [f"Done: billing will {what}", *done, NONE_RUNS]
    rows = "2 replayed dead letters in this range: their rows are in the results and would be written twice."
    for executed in (False, True):
        assert f"! {rows}" in said(replace(plan, replayed_letters=2, executed=executed))


@pytest.mark.behaviour("OPS-1", "START-25")
def test_a_reset_that_moves_nothing_pins_the_offsets_and_accepts_losses() -> None:
    there = "billing is already there, in 1 partition."
    pins = "A reset pins the offsets{}: the next start begins at them, whatever Kafka has."
    assert said(reset(0)) == [there, pins.format("")]
    assert said(reset(0, executed=True)) == [f"Done: {there}", pins.format(""), NONE_RUNS]

    lost = "! payments-0: the log lost records that had been read: it ended at 5."
    accepts = "The reset {} this loss: starts are no longer refused because of it."
    pinned = pins.format(", and accepts the loss below")
    plan = reset(0, lost="it ended at 5")
    assert said(plan) == [there, pinned, lost, accepts.format("would accept")]
    assert said(replace(plan, executed=True))[1:] == [pinned, lost, accepts.format("accepted"), NONE_RUNS]


@pytest.mark.behaviour("OPS-1")
def test_a_job_that_a_reset_fences_is_started_again() -> None:
    restart = "its supervisor may not do so after a job was fenced."
    later = "Offsets that it stores before it is fenced are in what is done, not in this plan."
    assert said(reset(4, owner=LIVE))[2:] == [f"! {FENCED}; start it again, since {restart}", later]
    assert said(reset(4, owner=SILENT))[2:] == [STILL]
    again = f"! Fenced the live job: {WHO}. See that it is started again: {restart}"
    assert said(reset(4, owner=LIVE, executed=True))[1:] == [again]
    assert said(reset(4, owner=SILENT, executed=True))[1:] == [f"! Fenced the silent job: {SILENTLY}.", NONE_RUNS]
    assert said(reset(4, owner=replace(LIVE, alive_for=None), executed=True))[1:] == [NONE_RUNS]


@pytest.mark.behaviour("OPS-3")
def test_a_copy_leaves_the_job_and_its_letters_alone() -> None:
    letters = "billing keeps its 2 open dead letters: its job replays them."
    planned, done = (
        f"The offsets of 1 partition {verb} copied from billing to invoicing." for verb in ("would be", "were")
    )
    assert said(new_name(LIVE, is_copy=True, letters=2)) == [planned, letters]
    assert said(new_name(LIVE, is_copy=True, executed=True)) == [done]


@pytest.mark.behaviour("OPS-21")
def test_a_prune_counts_its_letters() -> None:
    plan = LettersPruned("billing", 2, False, AT, TOKEN, digest="")  # noqa: FBT003
    assert said(plan) == ["2 dead letters would be deleted."]
    assert said(replace(plan, count=1, executed=True)) == ["1 dead letter deleted."]
    assert said(replace(plan, count=0)) == ["No dead letters match."]
    more = "More letters match than the limit allows: repeat this for them."
    assert said(replace(plan, more=True)) == ["2 dead letters would be deleted.", more]


def letters(decision: str, *, executed: bool = False, forced: bool = False, owner: GroupRow = LIVE) -> LettersDecided:
    chosen: Any = {LetterKey(P0, 1, ""): None}
    return LettersDecided("billing", decision, forced, chosen, owner, digest="", executed=executed)


@pytest.mark.behaviour("OUT-6")
@pytest.mark.parametrize(("more", "left"), [(0, []), (2, ["The limit leaves 2 more rows: repeat this, or raise it."])])
def test_what_a_limit_leaves_of_the_outbox_is_said(more: int, left: list[str]) -> None:
    row = RefusedRow(7, "events", "too large", AT, AT)
    outcome, *notes, warning = said(RefusedDecided("billing", "outbox-discard", (row,), more, TOKEN, digest=""))
    assert (outcome, notes) == ("1 row would be discarded.", left)
    assert warning == "! Their records never get into Kafka."


@pytest.mark.behaviour("DLQ-7")
@pytest.mark.parametrize(
    ("decision", "done", "note"),
    [
        ("erase", "erased", "! Their keys, values, headers and error texts are deleted, for good."),
        ("discard", "discarded", "Their records stay out of the results. A requested replay is withdrawn."),
    ],
)
def test_letters_are_given_up(decision: str, done: str, note: str) -> None:
    assert said(letters(decision)) == [f"1 dead letter would be {done}.", note]
    assert said(letters(decision, executed=True)) == [f"1 dead letter {done}.", note]


@pytest.mark.behaviour("DLQ-7")
def test_a_replay_says_who_replays() -> None:
    planned = "1 dead letter would be replayed."
    live = "The running job replays them within seconds, if it has dead_letters=; what fails again is dead again."
    assert said(letters("replay")) == [planned, live]
    assert said(letters("replay", executed=True)) == ["1 dead letter requested.", live]
    none = "No job of the group is running: the next one replays them, or sink.drain(spark) in a program."
    assert said(letters("replay", owner=SILENT)) == [planned, none]
    paused = "The group is paused: they are replayed once it is resumed."
    assert said(letters("replay", owner=replace(LIVE, pause=Pause(AT, None, "a restore")))) == [planned, paused]


@pytest.mark.behaviour("OPS-3")
def test_a_job_that_a_rename_fences_is_started_under_the_new_name() -> None:
    """Under the old one it begins anew, and writes every result a second time."""
    planned = "The offsets of 1 partition would be renamed from billing to invoicing."
    done = "The offsets of 1 partition were renamed from billing to invoicing."
    assert said(new_name(LIVE)) == [planned, f"! {FENCED}; start it under invoicing."]
    assert said(new_name(SILENT)) == [planned, STILL]
    assert said(new_name(LIVE, executed=True)) == [done, f"! Fenced the live job: {WHO}. Start it under invoicing."]
    assert said(new_name(SILENT, executed=True)) == [done, f"! Fenced the silent job: {SILENTLY}."]
    assert said(new_name(None, executed=True)) == [done]


@pytest.mark.behaviour("OPS-3")
def test_nobody_is_told_to_start_a_job_whose_group_is_deleted() -> None:
    planned, done = (f"billing {verb} deleted: the offsets of 1 partition." for verb in ("would be", "was"))
    kafka = [
        "Kafka keeps the copy of the offsets, which no longer counts. This removes it:",
        "  kafka-consumer-groups.sh --bootstrap-server HOST:PORT --delete --group billing",
    ]
    anew = "! A job that starts under this name reads the topics anew, and writes the results again."
    assert said(deleted(LIVE)) == [planned, *kafka, f"! {FENCED}."]
    assert said(deleted(SILENT)) == [planned, *kafka, STILL]
    assert said(deleted(LIVE, executed=True)) == [done, *kafka, f"! Fenced the live job: {WHO}.", anew]
    assert said(deleted(SILENT, executed=True)) == [done, *kafka, f"! Fenced the silent job: {SILENTLY}.", anew]


@pytest.mark.behaviour("OPS-3")
def test_of_a_topic_that_is_deleted_it_is_told_what_the_job_must_not_read_and_that_it_must_be_started_again() -> None:
    tool = "  kafka-consumer-groups.sh --bootstrap-server HOST:PORT"
    named = [
        "Kafka keeps the copy of the offsets, which no longer counts. This removes it:",
        f"{tool} --delete-offsets --topic 'old refunds' --topic payments --group billing",
    ]
    anew = "started again unchanged, it begins there anew, and may write results again"
    still = f"! The last job read payments: {anew}."
    planned, done = (
        f"What billing has of old refunds, payments {verb} deleted: the offsets of 1 partition."
        for verb in ("would be", "was")
    )
    without = "without the topic: its supervisor may not do so after a job was fenced"
    topics = ("old refunds", "payments")
    assert said(deleted(SILENT, *topics)) == [planned, *named, STILL]
    of_last = replace(deleted(LIVE, *topics), last_read=("payments",))
    assert said(of_last) == [planned, still, *named, f"! {FENCED}; start it again, {without}."]
    fenced = f"! Fenced the live job: {WHO}. See that it is started again, {without}."
    assert said(deleted(LIVE, *topics, executed=True)) == [done, *named, fenced]
    start = "No job is known to be running: start one, without the topic."
    assert said(deleted(None, *topics, executed=True)) == [done, *named, start]
    others = "! Another application uses this group in Kafka. A job that reads the topic begins at its offsets."
    assert said(replace(deleted(None, *topics), contested=True)) == [planned, others]


def test_a_deleted_group_that_another_application_uses_in_kafka_gets_no_command_that_removes_its_offsets() -> None:
    others = "! Another application uses this group in Kafka. A new job of this name begins at its offsets."
    words = said(replace(deleted(None), contested=True))
    assert others in words
    assert not any("kafka-consumer-groups" in line for line in words)
    assert any("--delete --group billing" in line for line in said(deleted(None)))

"""What plans say: each sentence of each operation, planned and done."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from offsetstore.offsets import StoredOffset, Token, TopicPartition
from offsetstore.operations.names import DeletedGroup, NewName
from offsetstore.operations.operation import OwnedPlan
from offsetstore.operations.wording import in_words
from offsetstore.protocol.database import GroupRow

AT = datetime(2025, 3, 1, 12, 0, tzinfo=UTC)
TOKEN = Token(7, UUID(int=7))
P0, P1 = TopicPartition("payments", 0), TopicPartition("payments", 1)
LIVE = GroupRow(TOKEN, "host:1", AT, timedelta(seconds=2))
SILENT = replace(LIVE, alive_for=timedelta(hours=3))
WHO, SILENTLY = LIVE.in_words(), SILENT.in_words()
FENCED = f"A job is live: {WHO}. If it is fenced, its next write fails with StaleClaim, and its batch is not stored"
STILL = f"The last job is silent: {SILENTLY}. If it still runs, its next write fails with StaleClaim."


def said(plan: OwnedPlan) -> Sequence[str]:
    """The outcome, then the notes; a warning has a mark."""
    words = in_words(plan)
    return [words.outcome, *(f"! {note.text}" if note.is_warning else note.text for note in words.notes)]


def stored(offset: int) -> StoredOffset:
    return StoredOffset(offset, TOKEN, AT)


def new_name(owner: GroupRow | None, *, executed: bool = False, is_copy: bool = False, letters: int = 0) -> NewName:
    rows = {P0: stored(5)}
    return NewName("billing", "invoicing", rows, letters, is_copy, owner=owner, digest="", executed=executed)


def deleted(owner: GroupRow | None, *, executed: bool = False) -> DeletedGroup:
    return DeletedGroup("billing", {P0: 5}, {}, False, {}, owner=owner, digest="", executed=executed)  # noqa: FBT003


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

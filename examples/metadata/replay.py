"""Selective replay: the note marks the first record that the present rules have handled, so that these can be repeated.

When rules prove wrong, only what they have handled is processed again, in each partition from its own record on. Needs
``CREATE TABLE results (partition int, record_offset bigint, value text)``. The consumer or sink has
``metadata=rules_since(store, "billing", rules=7)``; raise the number with each change of the rules.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import Engine, text

from offsetstore import BatchInfo, OffsetStore, TopicPartition

DELETE = text("DELETE FROM results WHERE partition = :partition AND record_offset >= :since")


def rules_since(store: OffsetStore, group: str, rules: int) -> Callable[[BatchInfo], dict[TopicPartition, Any]]:
    """Make the metadata function: the rules, and their first record in each partition."""

    def note(batch: BatchInfo) -> dict[TopicPartition, Any]:
        notes: dict[TopicPartition, Any] = {}
        for partition, read in batch.ranges.items():
            before: Any = store.find_metadata(group, partition.topic, partition.partition)
            is_same = before is not None and before["rules"] == rules
            notes[partition] = before if is_same else {"rules": rules, "since": read.from_}
        return notes

    return note


def repeat(store: OffsetStore, engine: Engine, group: str, topic: str, rules: int) -> dict[TopicPartition, int]:
    """Make the group read again what these rules have handled. Stop the job first, and start it afterwards."""
    notes: dict[TopicPartition, Any] = store.find_metadata(group, topic)
    since = {partition: note["since"] for partition, note in notes.items() if note and note["rules"] == rules}
    with engine.begin() as connection:  # first: the reset clears the notes, and this can be repeated until then
        for partition, offset in since.items():
            connection.execute(DELETE, {"partition": partition.partition, "since": offset})
    if since:
        store.reset(group, since, reason=f"repeat what rules {rules} have handled")
    return since

"""Selective replay: the note marks the first record that the present rules have handled, so that these can be repeated.

When rules prove wrong, only what they have handled is processed again, in each partition from its own record on. Needs
``CREATE TABLE results (topic text, partition int, record_offset bigint, value text)``. The consumer or sink has
``metadata=rules_since(store, "billing", rules=7)``; raise the number with each change of the rules.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from sqlalchemy import Engine, text

from offsetstore import BatchInfo, Broker, OffsetStore, TopicPartition

DELETE = text("DELETE FROM results WHERE topic = :topic AND partition = :partition AND record_offset >= :since")


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


def repeat(
    store: OffsetStore, engine: Engine, group: str, topic: str, *, rules: int, broker: Broker
) -> dict[TopicPartition, int]:
    """Make the group read again what these rules have handled. Stop the job before; if this fails, call it again."""
    notes: dict[TopicPartition, Any] = store.find_metadata(group, topic)
    since = {partition: note["since"] for partition, note in notes.items() if note and note["rules"] == rules}
    if not since:
        return since
    reset = partial(store.reset, group, since, reason=f"repeat rules {rules}", broker=broker, takeover="refuse")
    plan = reset(dry_run=True)  # Kafka has the records
    if plan.met_live_owner:
        raise RuntimeError(f"a job of {group} is live: stop it first")
    with engine.begin() as connection:  # before the reset, which clears the notes
        for (name, number), offset in since.items():
            connection.execute(DELETE, {"topic": name, "partition": number, "since": offset})
    reset(if_plan=plan.digest)  # refuses if a job has started or written meanwhile
    return since

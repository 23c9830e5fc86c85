"""A workflow over services: an order is reserved, charged and shipped by three services, each exactly once.

The note is the workflow's id and the steps that are done. It is committed at the stored offset before the first
call. So a process that takes over after a kill repeats at most one call, under the same id, by which the service knows
it. Needs ``CREATE TABLE booked (topic text, partition int, record_offset bigint, workflow text, PRIMARY KEY (topic,
partition, record_offset))``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import uuid4

from sqlalchemy import text

from offsetstore import Claim, OffsetRange, OffsetStore, Record, TopicPartition, Transaction

STEPS = ("reserve", "charge", "ship")
INSERT = text("INSERT INTO booked VALUES (:topic, :partition, :offset, :id)")


def book(store: OffsetStore, claim: Claim, order: Record, call: Callable[[str, str, Record], None]) -> None:
    """Do what is not done of the order's workflow; then write its row and advance. Orders come in order."""
    partition = TopicPartition(order.topic, order.partition)
    stored = claim.offsets().get(partition)
    # Offsets between the stored one and the record's have no record: compaction, or a transaction's marker.
    begin = order.offset if stored is None else min(stored.next_offset, order.offset)
    workflow: Any = claim.metadata(partition, cache=False) or {"id": str(uuid4()), "done": []}

    def keep(tx: Transaction) -> None:
        tx.lock({partition: OffsetRange(begin, begin)})
        tx.write_metadata(partition, workflow)

    def finish(tx: Transaction) -> None:
        tx.lock({partition: OffsetRange(begin, order.offset + 1)})
        place = {"topic": order.topic, "partition": order.partition, "offset": order.offset}
        tx.connection.execute(INSERT, {**place, "id": workflow["id"]})
        tx.advance({partition: OffsetRange(begin, order.offset + 1)}, metadata=None)

    for step in STEPS[len(workflow["done"]) :]:
        store.run(claim, keep)
        call(step, workflow["id"], order)
        workflow["done"].append(step)
    store.run(claim, finish)

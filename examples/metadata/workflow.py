"""A workflow over services: an order is reserved, charged and shipped by three services, each exactly once.

The note is the workflow's id and the steps that are done. It is committed at the offset of the order's record before
the first call. So a process that takes over after a kill repeats at most one call, under the same id, by which the
service knows it. Needs ``CREATE TABLE booked (record_offset bigint PRIMARY KEY, workflow text)``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import uuid4

from sqlalchemy import text

from offsetstore import Claim, OffsetRange, OffsetStore, Record, TopicPartition, Transaction

STEPS = ("reserve", "charge", "ship")
INSERT = text("INSERT INTO booked VALUES (:offset, :id)")


def book(store: OffsetStore, claim: Claim, order: Record, call: Callable[[str, str, Record], None]) -> None:
    """Do what is not done of the order's workflow; then write its row and advance."""
    partition = TopicPartition(order.topic, order.partition)
    workflow: Any = claim.metadata(partition, cache=False) or {"id": str(uuid4()), "done": []}

    def keep(tx: Transaction) -> None:
        tx.lock({partition: OffsetRange(order.offset, order.offset)})
        tx.write_metadata(partition, workflow)

    def finish(tx: Transaction) -> None:
        tx.lock({partition: OffsetRange(order.offset, order.offset + 1)})
        tx.connection.execute(INSERT, {"offset": order.offset, "id": workflow["id"]})
        tx.advance({partition: OffsetRange(order.offset, order.offset + 1)}, metadata=None)

    for step in STEPS[len(workflow["done"]) :]:
        store.run(claim, keep)
        call(step, workflow["id"], order)
        workflow["done"].append(step)
    store.run(claim, finish)

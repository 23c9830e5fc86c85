"""A job in a few lines: what it writes are the offsets themselves, one result a record."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import psycopg

from offsetstore import Claim, OffsetRange, OffsetStore, Outcome, TopicPartition, Transaction

GROUP = "billing"
P0, P1, P2 = (TopicPartition("payments", number) for number in range(3))


def driver(tx: Transaction) -> psycopg.Connection[Any]:
    """psycopg's connection, under SQLAlchemy's."""
    return tx.connection.connection.driver_connection


def write(tx: Transaction, numbers: Iterable[int]) -> None:
    for number in numbers:
        tx.connection.exec_driver_sql("INSERT INTO results VALUES (%s)", (number,))


def lock(tx: Transaction, *partitions: TopicPartition, range_: OffsetRange) -> dict[TopicPartition, OffsetRange]:
    """What is left of one range in each partition, but for those where nothing is."""
    plan = tx.lock(dict.fromkeys(partitions, range_))
    return {tp: decision.remaining for tp, decision in plan.items() if decision.outcome is not Outcome.SKIP}


def apply(tx: Transaction, *partitions: TopicPartition, range_: OffsetRange) -> None:
    left = lock(tx, *partitions, range_=range_)
    for one in left.values():
        write(tx, range(one.from_, one.until))
    tx.advance(left)


def process(store: OffsetStore, claim: Claim, *partitions: TopicPartition, range_: OffsetRange) -> None:
    """One transaction, without retry."""
    with store.transaction(claim) as tx:
        apply(tx, *partitions, range_=range_)

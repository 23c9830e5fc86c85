"""Rows of the outbox, what readers of Kafka see of them, and a relay as a process of its own.

``python -m tests.support.outbox URL SERVERS ANCHOR MOST``, from the top of the checkout, brings out what is there.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from offsetstore import Broker, OffsetStore, Relay, relay
from offsetstore.kafka.admin import read_committed
from offsetstore.protocol import refusals
from offsetstore.protocol.outbox import OutboxRecord


def put(store: OffsetStore, records: Sequence[OutboxRecord]) -> None:
    """Write them in one transaction of a job."""
    claim = store.claim("billing", topics=["payments"])
    with store.transaction(claim) as tx:
        tx.lock({})
        tx.produce_all(records)
    claim.close()


def numbered(topic: str, numbers: Sequence[int], *, keys: int = 3) -> list[OutboxRecord]:
    """Records with these numbers as values, each for one of some keys."""
    return [OutboxRecord(topic, f"key {number % keys}".encode(), str(number).encode()) for number in numbers]


def values(servers: str, topic: str) -> list[int]:
    """The numbers that `numbered` has written, partition by partition."""
    return [int(message.value() or b"") for message in read_committed(servers, topic)]


def by_key(servers: str, topic: str) -> dict[bytes, list[int]]:
    """The same, by key, in order."""
    found: dict[bytes, list[int]] = {}
    for message in read_committed(servers, topic):
        key = message.key()
        assert isinstance(key, bytes)
        found.setdefault(key, []).append(int(message.value() or b""))
    return found


def _main(url: str, servers: str, anchor: str, most: str) -> None:
    relay._TRIAL = refusals.TRIAL = 0.1
    refusals._BLOCKED = 0.5
    broker = Broker({"bootstrap.servers": servers})
    with OffsetStore.connect(url) as store:
        Relay(store, broker, anchor=anchor, most=int(most)).drain()


if __name__ == "__main__":
    _main(*sys.argv[1:])

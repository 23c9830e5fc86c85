"""A careful consumer by hand: batches by binary COPY, and the offsets in the same transaction."""

from __future__ import annotations

import sys
from datetime import datetime
from decimal import Decimal
from importlib import import_module
from typing import Any, Final

import psycopg
from confluent_kafka import Consumer, TopicPartition

BATCH: Final = 20_000
SECONDS: Final = 0.05
READER: Final = {
    "isolation.level": "read_committed",
    "enable.auto.commit": False,
    "fetch.max.bytes": 64 << 20,
    "max.partition.fetch.bytes": 16 << 20,
    "socket.receive.buffer.bytes": 1 << 20,
    "queued.min.messages": 500_000,
}

loads: Final = import_module("orjson").loads  # by name: only `make bench-peers` installs it


def run(url: str, servers: str, topic: str) -> None:
    """Consume all partitions of the topic until the process ends."""
    consumer = Consumer({"bootstrap.servers": servers, "group.id": topic, **READER})
    partitions = sorted(consumer.list_topics(topic).topics[topic].partitions)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            'CREATE TABLE IF NOT EXISTS by_hand (topic text, "partition" integer, next_offset bigint NOT NULL,'
            ' PRIMARY KEY (topic, "partition"))'
        )
        with connection.cursor() as cursor:
            cursor.executemany(
                "INSERT INTO by_hand VALUES (%s, %s, 0) ON CONFLICT DO NOTHING",
                [(topic, partition) for partition in partitions],
            )
        ours = stored(connection, topic)
        consumer.assign([TopicPartition(topic, partition, offset) for partition, offset in ours.items()])
        while True:
            if messages := consumer.consume(BATCH, SECONDS):
                ours = write(connection, topic, ours, messages)


def stored(connection: psycopg.Connection, topic: str, *, lock: bool = False) -> dict[int, int]:
    """Return the next offset of each partition."""
    select = 'SELECT "partition", next_offset FROM by_hand WHERE topic = %s ORDER BY 1'
    return dict(connection.execute(f"{select} FOR UPDATE" if lock else select, (topic,)).fetchall())


def write(connection: psycopg.Connection, topic: str, ours: dict[int, int], messages: list[Any]) -> dict[int, int]:
    """Write a batch and its offsets in one transaction; return the next offsets."""
    following = dict(ours)
    with connection.transaction():
        if stored(connection, topic, lock=True) != ours:
            raise RuntimeError("another consumer has written since")
        with connection.cursor() as cursor, cursor.copy("COPY small FROM STDIN (FORMAT BINARY)") as copy:
            copy.set_types(["int8", "text", "numeric", "timestamptz", "int4", "int8"])
            for message in messages:
                if message.error():
                    raise RuntimeError(message.error())
                found, partition, offset = loads(message.value()), message.partition(), message.offset()
                at = datetime.fromisoformat(found["at"])
                copy.write_row((found["id"], found["customer"], Decimal(str(found["amount"])), at, partition, offset))
                following[partition] = offset + 1
        with connection.cursor() as cursor:
            cursor.executemany(
                'UPDATE by_hand SET next_offset = %s WHERE topic = %s AND "partition" = %s',
                [(offset, topic, partition) for partition, offset in following.items()],
            )
    return following


if __name__ == "__main__":
    run(*sys.argv[1:])

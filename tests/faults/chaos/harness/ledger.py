"""The producer's own account: which record Kafka has acknowledged, and where.

A record is a number that no other record has, a key, and an amount that may be NULL. Offsets are what Kafka said when
it acknowledged, not what anybody reckoned. A topic that is recreated begins a new *generation*: its offsets begin at 0
again and mean other records. A log that is replaced by an older copy begins one too, with the records of the copy.
"""

from __future__ import annotations

import json
import random
import threading
from bisect import insort
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from confluent_kafka import Producer

KEYS = 12
_SECONDS = 60.0
_NULLS = 0.1
_BY_OFFSET = attrgetter("offset")


@dataclass(frozen=True, slots=True)
class Entry:
    """One record that Kafka has."""

    offset: int
    seq: int
    key: str
    amount: int | None

    @property
    def value(self) -> bytes:
        return json.dumps({"seq": self.seq, "key": self.key, "amount": self.amount}).encode()


@dataclass(frozen=True, slots=True)
class Bad:
    """A record that can't be written, and what was sent."""

    entry: Entry
    key: bytes
    value: bytes


class Ledger:
    """Of one run. Threads may share it.

    ``records`` maps (topic, generation, partition) to its entries in the order of their offsets, ``bad`` to those of
    them that have to become dead letters, by their offsets.
    """

    def __init__(self, servers: str, dice: random.Random) -> None:
        self.servers = servers
        self.records: dict[tuple[str, int, int], list[Entry]] = defaultdict(list)
        self.bad: dict[tuple[str, int, int], dict[int, Bad]] = defaultdict(dict)
        self.generations: dict[str, int] = defaultdict(int)
        self._dice = dice
        self._guard = threading.Lock()
        self._last_seq = 0
        self._former_ends: dict[tuple[str, int, int], int] = {}
        self._producer: Any = None

    def produce(self, topic: str, count: int, *, partitions: int, partition: int | None = None) -> None:
        client = self._producer or producer(self.servers)
        self._producer = client
        for _ in range(count):
            self.send(client, topic, self._dice.randrange(partitions) if partition is None else partition)
        flush(client)

    def send(
        self,
        client: Any,
        topic: str,
        partition: int,
        *,
        kept: bool = True,
        change: Callable[[Entry], tuple[Entry, bytes]] | None = None,
        bad: bool = False,
    ) -> Entry:
        """Hand one record to a producer of one's own, and enter it when it is acknowledged.

        :param change: makes another record of a draft: what it will be when it is digested, and what is sent.
        :param bad: whether it has to become a dead letter.
        :param kept: whether readers will see it; a record of a transaction that is going to be aborted is not entered.
        """
        with self._guard:
            self._last_seq += 1
            draft = Entry(
                -1,
                self._last_seq,
                f"k{self._dice.randrange(KEYS):02}",
                None if self._dice.random() < _NULLS else self._dice.randrange(1, 1000),
            )
            place = (topic, self.generations[topic], partition)
        draft, value = (draft, draft.value) if change is None else change(draft)

        def delivered(error: object, message: Any) -> None:
            assert error is None, f"Kafka did not take a record: {error}"
            if kept:
                with self._guard:
                    entry = Entry(message.offset(), draft.seq, draft.key, draft.amount)
                    insort(self.records[place], entry, key=_BY_OFFSET)  # two producers are acknowledged in any order
                    former_end = self._former_ends.get(place)
                    if former_end is not None and entry.offset >= former_end:
                        insort(self.records[topic, place[1] - 1, partition], entry, key=_BY_OFFSET)
                    if bad:
                        self.bad[place][entry.offset] = Bad(entry, key, value)

        key = draft.key.encode()
        client.produce(topic, value, key=key, partition=partition, on_delivery=delivered)
        client.poll(0)
        return draft

    def remove(self, topic: str, partition: int, offset: int) -> None:
        """Take one out that readers can't see any more: it was compacted away, or retention took it unread."""
        place = (topic, self.generations[topic], partition)
        with self._guard:
            self.records[place] = [entry for entry in self.records[place] if entry.offset != offset]

    def new_generation(self, topic: str) -> None:
        with self._guard:
            self.generations[topic] += 1
        self._producer = None  # it would go on with the sequence numbers of the old one

    def cut(self, topic: str, at: Mapping[int, int]) -> None:
        """From now on the logs of these partitions end at these offsets, and grow again with other records.

        A job that had read everything, and does not notice, goes on with the new records beyond the former end: these
        are in the former generation too. The other partitions share their records between the generations.
        """
        with self._guard:
            former, new = self.generations[topic], self.generations[topic] + 1
            of_topic = {p: entries for (name, generation, p), entries in self.records.items()
                        if (name, generation) == (topic, former)}  # fmt: skip
            for partition, entries in of_topic.items():
                if partition in at:
                    self._former_ends[topic, new, partition] = entries[-1].offset + 1
                    self.records[topic, new, partition] = [one for one in entries if one.offset < at[partition]]
                else:
                    self.records[topic, new, partition] = entries
            self.generations[topic] = new
        self._producer = None  # its sequence numbers are beyond those of the older log

    def between(self, topic: str, generation: int, partition: int, begin: int, end: int) -> Iterator[Entry]:
        for entry in self.records.get((topic, generation, partition), ()):
            if begin <= entry.offset < end:
                yield entry

    @property
    def count(self) -> int:
        return len({entry.seq for entries in self.records.values() for entry in entries})

    def close(self) -> None:
        self._producer = None


def producer(servers: str, **settings: Any) -> Any:
    """Return an idempotent producer; ``settings`` with dots as underscores."""
    more = {name.replace("_", "."): value for name, value in settings.items()}
    return Producer({
        "bootstrap.servers": servers,
        "enable.idempotence": True,
        "linger.ms": 2,
        "log_level": 0,
        "message.timeout.ms": int(_SECONDS * 1000),
        **more,
    })  # fmt: skip


def flush(client: Any) -> None:
    left = client.flush(_SECONDS)
    assert not left, f"Kafka did not acknowledge {left} records within {_SECONDS:.0f} s"

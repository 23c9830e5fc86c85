"""Rows that are put into the outbox all the while, relays as processes of their own, and what a reader gets.

``python -m tests.faults.chaos.means.relays URL SERVERS ANCHOR MOST``, from the top of the checkout, is a relay.
"""

from __future__ import annotations

import itertools
import random
import signal
import sys
from collections import Counter, defaultdict
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from functools import partial
from threading import Event as Flag
from typing import Final, Self

import psycopg
from sqlalchemy.exc import OperationalError

from offsetstore import Broker, OffsetStore, Relay
from offsetstore.errors import CommitUnknown, LockTimeout, StoreUnavailable, TransactionLost
from offsetstore.kafka import admin
from offsetstore.protocol.events import OutboxSent
from offsetstore.protocol.outbox import OutboxRecord
from offsetstore.store.transaction import Transaction
from tests.faults.chaos.harness.scene import Scene, Violation
from tests.faults.chaos.means.kept import Begun, Several, telling
from tests.support.background import repeating
from tests.support.waiting import wait_until

KEYS: Final = 4
"""Of each writer."""

IN_A_HUNDRED: Final = 100
"""Of so many rows one is refused, and another one goes to the other topic."""

_LARGE, _MOST_BYTES = 150_000, 100_000
_UNREADABLE: Final = (
    'INSERT INTO {outbox} (consumer_group, topic, value, headers) VALUES (%s, %s, %s, \'{{"no": "pairs"}}\')'
)
_DDL: Final = "CREATE TABLE produced (writer int NOT NULL, number int NOT NULL)"
_NOTE: Final = "INSERT INTO produced SELECT %s, generate_series(%s::int, %s::int)"
_ABORTED: Final = 0.05
"""Of the transactions, those that are rolled back when their rows are in the outbox."""
_MANY, _FEW = 200, 3
"""The most rows of a transaction that is in a hurry, and of one that is not."""
_UNHURRIED: Final = 0.2
_WRITERS: Final = 2


_LOST: Final = (
    CommitUnknown, LockTimeout, StoreUnavailable, TransactionLost, psycopg.OperationalError, OperationalError
)  # fmt: skip
"""What a writer meets while the database is away."""


class _Aborted(Exception):
    """The writer has thought better of it."""


class Writers:
    """Two groups, each of which writes numbers in transactions of its own: their order is that of its commits.

    A context manager; until its end rows keep coming, quickly up to ``target``, and then a few at a time. One in a
    hundred can't be sent: its headers are none, it is too large for the client, or it goes without a key to the topic
    ``keyed``, where Kafka takes none.
    """

    def __init__(self, scene: Scene) -> None:
        self.target = 0
        self._scene = scene
        self._dice = [random.Random(scene.random.random()) for _ in range(_WRITERS)]  # noqa: S311 - to be repeated
        self._written = [0] * _WRITERS
        self._leaving = Flag()
        self._closing = ExitStack()
        scene.database.execute(_DDL)
        self.keyed = f"{scene.topic}-keyed"
        scene.topics.append(self.keyed)
        admin.create_topic(scene.servers, self.keyed, config={"cleanup.policy": "compact"})

    @property
    def written(self) -> int:
        return sum(self._written)

    def __enter__(self) -> Self:
        for writer in range(_WRITERS):
            self._closing.enter_context(repeating(partial(self._run, writer), every=0.2))
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        self._leaving.set()
        self._closing.close()

    def expected(self) -> dict[str, dict[bytes, list[int]]]:
        """What was committed, by topic and key, in order; what can't be sent is under an empty topic.

        :raises Violation: the database lacks what it has acknowledged.
        """
        rows = self._scene.database.rows("SELECT writer, number FROM produced ORDER BY writer, number")
        counts = Counter(writer for writer, _ in rows)
        if any(counts[writer] < count for writer, count in enumerate(self._written)):
            raise Violation(f"the database has rows {counts}, and had acknowledged {self._written}")
        found: dict[str, dict[bytes, list[int]]] = {
            topic: defaultdict(list) for topic in (self._scene.topic, self.keyed, "")
        }
        for writer, number in rows:
            place = {0: "", 1: self.keyed}.get(number % IN_A_HUNDRED, self._scene.topic)
            found[place][_key(writer, number) if place else b"%d" % writer].append(number)
        return found

    def set_aside(self) -> dict[bytes, list[int]]:
        """The numbers of the rows that are set aside, by writer."""
        found: dict[bytes, list[int]] = defaultdict(list)
        for group, value in self._scene.database.rows("SELECT consumer_group, value FROM outbox_refused ORDER BY id"):
            found[group.rpartition("-")[2].encode()].append(int(bytes(value).partition(b" ")[0]))
        return found

    def _run(self, writer: int) -> None:
        """Write until the end; anew when the database has been away."""
        if not self._leaving.is_set():
            with suppress(*_LOST), OffsetStore.connect(self._scene.url) as store:
                self._write(store, writer)

    def _write(self, store: OffsetStore, writer: int) -> None:
        dice = self._dice[writer]
        with store.claim(f"{self._scene.group}-{writer}", topics=["orders"]) as claim:
            with psycopg.connect(self._scene.url) as connection:  # a COMMIT whose answer was lost may have happened
                [(done,)] = connection.execute("SELECT count(*) FROM produced WHERE writer = %s", [writer])
            while not self._leaving.is_set():
                self._written[writer] = done
                hurries = sum(self._written) < self.target
                numbers = range(done, done + dice.randint(1, _MANY if hurries else _FEW))
                with suppress(_Aborted), store.transaction(claim) as tx:
                    tx.lock({})
                    self._produce(tx, writer, numbers)
                    tx.connection.exec_driver_sql(_NOTE, (writer, numbers[0], numbers[-1]))
                    if dice.random() < _ABORTED:
                        raise _Aborted
                    done = numbers.stop
                self._leaving.wait(0 if hurries else _UNHURRIED)

    def _produce(self, tx: Transaction, writer: int, numbers: range) -> None:
        """Those that go to the topic together, as a job's; of the others each with a statement of its own."""
        good = (number for number in numbers if number % IN_A_HUNDRED > 1)
        tx.produce_all(OutboxRecord(self._scene.topic, _key(writer, number), b"%d" % number) for number in good)
        for number in numbers:
            key, value = _key(writer, number), b"%d" % number
            kind, way = number % IN_A_HUNDRED, number // IN_A_HUNDRED % 3
            if kind == 0 and way == 0:
                group = f"{self._scene.group}-{writer}"
                tx.connection.exec_driver_sql(_UNREADABLE.format(outbox="outbox"), (group, self._scene.topic, value))
            elif kind == 0 and way == 1:
                tx.produce(self._scene.topic, key, value + b" " + bytes(_LARGE))
            elif kind <= 1:
                tx.produce(self.keyed, key if kind else None, value)


class Relays(Several):
    """One relay that is kept alive, or two where a fault wants them, and what it has done."""

    def __init__(self, scene: Scene, writers: Writers, *, most: int) -> None:
        self._writers, self._scene = writers, scene
        self.anchor = f"anchor-{scene.topic}"
        arguments = ["-m", __name__, scene.url, scene.servers, self.anchor, str(most)]
        super().__init__(lambda: arguments, scene.directory, "relay")
        self.kept = self.another()

    @property
    def sent(self) -> int:
        """How many rows the relays have recorded as sent; 0 if that can't be told."""
        with suppress(psycopg.OperationalError):
            return sum(self._scene.database.column("SELECT sent FROM outbox_relays"))
        return 0

    @property
    def left(self) -> int | None:
        """How many rows are in the outbox; ``None`` if that can't be told."""
        with suppress(psycopg.OperationalError):
            return self._scene.database.one("SELECT count(*) FROM outbox")
        return None

    def wait_for_progress(self, timeout: float = 120) -> None:
        before = wait_until(lambda: self.sent + 1, timeout=timeout) - 1
        wait_until(lambda: self._writers.written and self.sent > before, timeout=timeout)


def differences(found: Mapping[bytes, list[int]], expected: Mapping[bytes, list[int]]) -> list[str]:
    """What a reader lacks, has twice, should not have, or has in another order; by key."""
    told: list[str] = []
    for key in sorted(expected.keys() | found.keys()):
        wanted, got = expected.get(key, []), found.get(key, [])
        counts = Counter(got)
        told += [
            f"{key.decode()}: {what} {numbers[:5]} and {max(0, len(numbers) - 5)} more"
            for what, numbers in {
                "lost": sorted({*wanted} - {*got}),
                "twice": sorted(number for number, times in counts.items() if times > 1),
                "never committed": sorted({*got} - {*wanted}),
                "out of order": [b for a, b in itertools.pairwise(got) if b < a],
            }.items()
            if numbers
        ]
    return told


def _key(writer: int, number: int) -> bytes:
    return f"{writer}-{number % KEYS}".encode()


def _main(url: str, servers: str, anchor: str, most: str) -> None:
    with OffsetStore.connect(url, observers=[Begun(OutboxSent)]) as store, telling():
        broker = Broker({"bootstrap.servers": servers, "message.max.bytes": _MOST_BYTES})
        relay = Relay(store, broker, anchor=anchor, most=int(most))
        signal.signal(signal.SIGTERM, lambda _signal, _frame: relay.stop())
        relay.run()


if __name__ == "__main__":
    _main(*sys.argv[1:])

"""Rows that are put into the outbox all the while, relays as processes of their own, and what a reader gets.

``python -m tests.faults.chaos.means.relays URL SERVERS ANCHOR MOST``, from the top of the checkout, is a relay.
"""

from __future__ import annotations

import itertools
import random
import signal
import sys
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from threading import Event as Flag
from threading import Thread
from types import TracebackType
from typing import Final, Self

import psycopg
from sqlalchemy.exc import OperationalError

from offsetstore import Broker, OffsetStore, Relay
from offsetstore.errors import (
    CommitUnknown,
    LockTimeout,
    OffsetStoreError,
    StoreUnavailable,
    TransactionLost,
    exit_code,
)
from offsetstore.protocol.events import Event, OutboxSent
from offsetstore.protocol.outbox import OutboxRecord
from offsetstore.testing.job_process import print_event
from tests.faults.chaos.harness.scene import Scene, Violation
from tests.faults.chaos.means.kept import Kept
from tests.support.waiting import wait_until

KEYS: Final = 4
"""Of each writer."""

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

    A context manager; until its end rows keep coming, quickly up to ``target``, and then a few at a time.
    """

    def __init__(self, scene: Scene) -> None:
        self.target = 0
        self._scene = scene
        self._dice = [random.Random(scene.random.random()) for _ in range(_WRITERS)]  # noqa: S311 - to be repeated
        self._written = [0] * _WRITERS
        self._leaving = Flag()
        self._failure: BaseException | None = None
        self._threads = [Thread(target=self._run, args=(number,), daemon=True) for number in range(_WRITERS)]
        scene.database.execute(_DDL)

    @property
    def written(self) -> int:
        """How many rows are committed, as far as the writers know."""
        if self._failure is not None:
            raise self._failure
        return sum(self._written)

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.end()

    def end(self) -> None:
        """Write no more."""
        self._leaving.set()
        for thread in self._threads:
            thread.join(60)

    def expected(self) -> dict[bytes, list[int]]:
        """What was committed, by key, in order.

        :raises Violation: the database lacks what it has acknowledged.
        """
        if self._failure is not None:
            raise self._failure
        rows = self._scene.database.rows("SELECT writer, number FROM produced ORDER BY writer, number")
        counts = Counter(writer for writer, _ in rows)
        if any(counts[writer] < count for writer, count in enumerate(self._written)):
            raise Violation(f"the database has rows {counts}, and had acknowledged {self._written}")
        found: dict[bytes, list[int]] = defaultdict(list)
        for writer, number in rows:
            found[_key(writer, number)].append(number)
        return found

    def _run(self, writer: int) -> None:
        try:
            while not self._leaving.is_set():
                with suppress(*_LOST), OffsetStore.connect(self._scene.url) as store:
                    self._write(store, writer)
                self._leaving.wait(0.2)  # the database is away
        except BaseException as error:  # noqa: BLE001 - raised where the block is left
            self._failure = error

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
                    tx.produce_all(OutboxRecord(self._scene.topic, _key(writer, n), b"%d" % n) for n in numbers)
                    tx.connection.exec_driver_sql(_NOTE, (writer, numbers[0], numbers[-1]))
                    if dice.random() < _ABORTED:
                        raise _Aborted
                    done = numbers.stop
                self._leaving.wait(0 if hurries else _UNHURRIED)


class Relays:
    """One relay that is kept alive, or two where a fault wants them, and what it has done."""

    def __init__(self, scene: Scene, writers: Writers, *, most: int) -> None:
        self._writers = writers
        self.anchor = f"anchor-{scene.topic}"
        self._scene = scene
        self._arguments = ["-m", __name__, scene.url, scene.servers, self.anchor, str(most)]
        self._closing = ExitStack()
        self._all: list[Kept] = []
        self.kept = self.another()

    def another(self) -> Kept:
        """Start nothing yet, but have one more place for a relay."""
        made = Kept(lambda: self._arguments, self._scene.directory / "relays.log")
        self._all.append(self._closing.enter_context(made))
        return made

    @property
    def starts(self) -> int:
        """How many processes there were."""
        return sum(one.starts for one in self._all)

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
        """Wait until more rows are recorded as sent."""
        before = wait_until(lambda: self.sent + 1, timeout=timeout) - 1
        wait_until(lambda: self._writers.written and self.sent > before, timeout=timeout)

    @property
    def ends(self) -> list[str]:
        """How processes have ended that nobody had ended."""
        return [end for one in self._all for end in one.ends]

    def unexpected(self, allowed: Sequence[str]) -> list[str]:
        """The ends that these errors do not explain."""
        return [end for one in self._all for end in one.unexpected(allowed)]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._closing.__exit__(kind, error, traceback)


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
    with OffsetStore.connect(url, observers=[_Printer()]) as store:
        relay = Relay(store, Broker({"bootstrap.servers": servers}), anchor=anchor, most=int(most))
        signal.signal(signal.SIGTERM, lambda _signal, _frame: relay.stop())
        try:
            relay.run()
        except OffsetStoreError as error:
            print_event("failed", class_name=type(error).__name__, text=str(error))
            sys.exit(exit_code(error))


class _Printer:
    """Prints ``begun`` when rows are sent for the first time."""

    def __init__(self) -> None:
        self._has_begun = False

    def on(self, event: Event) -> None:
        """Print it."""
        if isinstance(event, OutboxSent) and not self._has_begun:
            self._has_begun = True
            print_event("begun")


if __name__ == "__main__":
    _main(*sys.argv[1:])

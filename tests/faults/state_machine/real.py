"""The real half of `test_state_machine`: jobs, what stands for Kafka, and a look at the tables from outside."""

from __future__ import annotations

import os
import socket
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias, TypeVar

from sqlalchemy import text

from offsetstore import Claim, OffsetRange, OffsetStore, Retries, Timeouts, TopicPartition, Transaction
from offsetstore.offsets import BrokerView, CommittedOffset, Token
from offsetstore.protocol.metadata import JSON
from offsetstore.protocol.replay import Decision
from offsetstore.testing import StaticBroker
from tests.faults.state_machine.model import Event
from tests.support.postgres import Database
from tests.support.proxy import CommitProxy
from tests.support.waiting import wait_until

_T = TypeVar("_T")
Plan: TypeAlias = "dict[TopicPartition, Decision]"

TOPIC = "payments"
END = 10_000
ATTEMPTS = 3
"""Of `OffsetStore.run`."""

_SECONDS = 120
_OURS = ("kafka_partitions", "offset_history", "consumer_groups", "heartbeats", "group_members")
_TABLES = """
CREATE TABLE results (example text, work integer, partition integer, "offset" bigint);
CREATE TABLE moves (id bigserial, example text, partition integer, "from" bigint, "to" bigint);
CREATE FUNCTION note_move() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO moves (example, partition, "from", "to") VALUES (
        split_part(coalesce(NEW.consumer_group, OLD.consumer_group), '/', 1), coalesce(NEW.partition, OLD.partition),
        OLD.next_offset, NEW.next_offset);
    RETURN NULL;
END $$;
CREATE TRIGGER inserted AFTER INSERT ON kafka_partitions FOR EACH ROW EXECUTE FUNCTION note_move();
CREATE TRIGGER deleted AFTER DELETE ON kafka_partitions FOR EACH ROW EXECUTE FUNCTION note_move();
CREATE TRIGGER moved AFTER UPDATE ON kafka_partitions FOR EACH ROW
    WHEN (OLD.next_offset <> NEW.next_offset) EXECUTE FUNCTION note_move();
"""


class _Crash(Exception):
    """The job's process is gone."""


def tp(partition: int) -> TopicPartition:
    return TopicPartition(TOPIC, partition)


class Kafka(StaticBroker):
    """A topic whose log is long enough, with what is committed for each group apart."""

    def view(
        self,
        group: str,
        topics: Collection[str],
        *,
        timestamp_ms: int | None = None,
        partitions: Collection[TopicPartition] | None = None,
    ) -> BrokerView:
        shown = replace(super().view(group, topics, timestamp_ms=timestamp_ms), committed=self.committed.get(group, {}))
        return shown if partitions is None else shown.of(partitions)

    def committed_offsets(
        self, group: str, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, CommittedOffset]:
        return {tp: offset for tp, offset in self.committed.get(group, {}).items() if tp in partitions}

    @property
    def committed(self) -> dict[str, dict[TopicPartition, CommittedOffset]]:
        found: dict[str, dict[TopicPartition, CommittedOffset]] = {}
        for group, offsets in self.commits:
            found.setdefault(group, {}).update(offsets)
        return found


@dataclass
class Job:
    """A job's half of a claim, with a thread of its own: one thread has one transaction at a time."""

    claim: Claim
    thread: ThreadPoolExecutor
    last: dict[int, tuple[int, int]] = field(default_factory=dict[int, tuple[int, int]])
    label: int | None = None
    _block: ExitStack = field(default_factory=ExitStack)
    _tx: Transaction | None = None
    _plan: Plan = field(default_factory=dict[TopicPartition, "Decision"])

    def begin(self, store: OffsetStore) -> None:
        def enter() -> None:
            self._tx = self._block.enter_context(store.transaction(self.claim))

        self.call(enter)

    def lock(self, ranges: Mapping[int, tuple[int, int]]) -> dict[int, str]:
        def lock(tx: Transaction) -> dict[int, str]:
            self._plan = lock_ranges(tx, ranges)
            return outcomes(self._plan)

        return self._step(lock)

    def write(self, example: str, work: int) -> None:
        self._step(lambda tx: write_results(tx, self._plan, example, work))

    def advance(self, partitions: Collection[int], **metadata: Any) -> None:
        ranges = {tp(number): self._plan[tp(number)].remaining for number in partitions}
        self._step(lambda tx: tx.advance(ranges, **metadata))

    def commit(self) -> None:
        self.call(self._block.close)

    def roll_back(self) -> None:
        """An error of the job's own ends the transaction."""

        def fail(_: Transaction) -> None:
            raise _Crash

        try:
            self._step(fail)
        except _Crash:
            return

    def crash(self, database: Database) -> None:
        """The socket is closed under the transaction, and nobody says ROLLBACK."""
        if not self._psycopg.closed:
            pid = self.backend
            ours = socket.socket(fileno=os.dup(self._psycopg.pgconn.socket))
            ours.shutdown(socket.SHUT_RDWR)
            ours.close()
            wait_until(lambda: not database.rows(f"SELECT 1 FROM pg_stat_activity WHERE pid = {pid}"), timeout=60)
        self.roll_back()

    @property
    def backend(self) -> int:
        return self._psycopg.info.backend_pid

    @property
    def _psycopg(self) -> Any:
        assert self._tx is not None
        session = self._tx._locks.session
        assert session is not None
        return session.connection.connection.driver_connection

    def _step(self, step: Callable[[Transaction], _T]) -> _T:
        tx = self._tx
        assert tx is not None

        def run() -> _T:
            with ExitStack() as ending:  # an error leaves the transaction's block, as in a `with` statement
                ending.push(self._block.__exit__)
                result = step(tx)
                ending.pop_all()
                return result

        return self.call(run)

    def call(self, function: Callable[[], _T]) -> _T:
        return self.thread.submit(function).result(_SECONDS)


def lock_ranges(tx: Transaction, ranges: Mapping[int, tuple[int, int]]) -> Plan:
    return tx.lock({tp(number): OffsetRange(*range_) for number, range_ in ranges.items()})


def outcomes(plan: Plan) -> dict[int, str]:
    return {one.partition: decision.outcome.value for one, decision in plan.items()}


def write_results(tx: Transaction, plan: Plan, example: str, work: int) -> None:
    for one, decision in plan.items():
        left = decision.remaining
        statement = "INSERT INTO results SELECT :example, :work, :partition, generate_series(:first, :last - 1)"
        values = {"example": example, "work": work, "partition": one.partition}
        tx.connection.execute(text(statement), {**values, "first": left.from_, "last": left.until})


@dataclass(frozen=True)
class FoundRow:
    next_offset: int
    metadata: object
    pinned: bool
    token: Token


@dataclass(frozen=True)
class Found:
    """What the tables hold.

    ``rows`` by group and partition, ``history`` by group, ``results`` how often each (partition, offset) is there,
    ``writers`` the transactions that wrote them, ``moves`` of each partition's offset, as (from, to), in order.
    """

    rows: dict[tuple[str, int], FoundRow]
    history: dict[str, list[Event]]
    results: Counter[tuple[int, int]]
    writers: set[int]
    moves: dict[int, list[tuple[int | None, int | None]]]

    def decisions(self) -> list[tuple[int, int, int]]:
        """What was decided about offsets that were there, as (partition, from, to), and to 0 if they were deleted."""
        return [
            (partition, start, to or 0)
            for events in self.history.values()
            for event, partition, start, to in events
            if event in {"adopt", "reset", "delete"} and partition is not None and start is not None
        ]


class Side:
    """The database and all that is shared by the examples: each has a name and groups of its own."""

    def __init__(self, url: str) -> None:
        self._stack = ExitStack()
        self.outside = Database(url)
        self._stack.callback(self.outside.close)
        self.outside.execute(_TABLES)
        self.proxy = self._stack.enter_context(CommitProxy(url))
        self._store = self._stack.enter_context(OffsetStore.connect(self.proxy.url))
        self.threads = [self._stack.enter_context(ThreadPoolExecutor(1)) for _ in range(3)]
        self.examples = 0

    def new_example(self) -> tuple[str, OffsetStore]:
        """Return its name, and a store that closes its claims."""
        self.examples += 1
        for table in ("results", "moves", *_OURS):
            self.outside.execute(f"DELETE FROM {table}")
        store = OffsetStore(
            self._store.database,
            timeouts=Timeouts(lock=0.05, commit=20),
            retries=Retries(ATTEMPTS, shortest=0.001, longest=0.01),
        )
        return f"example-{self.examples}", store

    def in_transactions(self) -> set[int]:
        """The server's processes that have a transaction open."""
        ours = "datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()"
        return {*self.outside.column(f"SELECT pid FROM pg_stat_activity WHERE {ours} AND xact_start IS NOT NULL")}

    def look(self, example: str) -> Found:
        ours = f"WHERE consumer_group LIKE '{example}/%'"
        rows = self.outside.rows(
            "SELECT consumer_group, partition, next_offset, metadata, pinned, epoch, claim_id "
            f"FROM kafka_partitions {ours}"
        )
        history: dict[str, list[Event]] = {}
        for group, *event in self.outside.rows(
            f"SELECT consumer_group, event, partition, from_offset, to_offset FROM offset_history {ours} ORDER BY id"
        ):
            history.setdefault(group, []).append((event[0], event[1], event[2], event[3]))
        moves: dict[int, list[tuple[int | None, int | None]]] = {}
        for partition, start, to in self.outside.rows(
            f'SELECT partition, "from", "to" FROM moves WHERE example = \'{example}\' ORDER BY id'
        ):
            moves.setdefault(partition, []).append((start, to))
        results = self.outside.rows('SELECT work, partition, "offset" FROM results')
        return Found(
            {(row[0], row[1]): FoundRow(row[2], JSON.load(row[3]), row[4], Token(row[5], row[6])) for row in rows},
            history,
            Counter((partition, offset) for _, partition, offset in results),
            {work for work, _, _ in results},
            moves,
        )

    def close(self) -> None:
        self._stack.close()

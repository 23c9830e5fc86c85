"""A second connection that looks all the while, each time at one snapshot (REPEATABLE READ)."""

from __future__ import annotations

import json
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Self, TypeAlias

import psycopg
from psycopg import IsolationLevel

from tests.support.background import repeating

Offsets: TypeAlias = "dict[tuple[str, int], tuple[int, ...]]"
"""By topic and partition, ascending."""

_PAUSE = 0.02

# An ALTER TABLE that rewrites the table is not MVCC-safe: to a snapshot from before it, the table is empty. So lock it
# first, which takes no snapshot.
_LOCK = "LOCK TABLE landed IN ACCESS SHARE MODE"
_STORED = "SELECT consumer_group, topic, partition, next_offset, metadata FROM kafka_partitions"
_LANDED = "SELECT topic, partition, count(*), coalesce(sum(seq), 0) FROM landed GROUP BY topic, partition"
_SUMS = "SELECT coalesce(sum(records), 0), coalesce(sum(total), 0) FROM sums"
_LETTERS = (
    "SELECT topic, partition, state IN ('dead', 'requested'), array_agg(record_offset ORDER BY record_offset) "
    "FROM dead_letters GROUP BY 1, 2, 3"
)
_FAILURES = "SELECT topic, partition, array_agg(record_offset ORDER BY record_offset) FROM failures GROUP BY 1, 2"
# Decisions about letters name the offsets of these, and set none.
_HISTORY = (
    "SELECT id, consumer_group, topic, partition, event, from_offset, to_offset FROM offset_history "
    "WHERE event NOT IN ('replay', 'discard', 'erase') ORDER BY id"
)


@dataclass(frozen=True, slots=True)
class Decision:
    """A line of the history that sets an offset."""

    id: int
    group: str
    topic: str
    partition: int
    event: str
    before: int | None
    after: int


@dataclass(slots=True)
class Look:
    """What snapshots have shown, the first of them taken at ``at`` and the last at ``last``.

    ``landed`` is the number of records and the sum of their numbers; ``sums`` records and amounts. ``notes`` are the
    metadata that tell of another offset than theirs. ``open`` are the offsets of dead letters whose records are not in
    the results, ``closed`` those of all others, and ``failures`` those of records with failed attempts.
    """

    at: float
    last: float
    stored: dict[tuple[str, str, int], int]
    landed: dict[tuple[str, int], tuple[int, int]]
    sums: tuple[int, int]
    history: tuple[Decision, ...]
    notes: tuple[str, ...] = ()
    open: Offsets = field(default_factory=dict["tuple[str, int]", "tuple[int, ...]"])
    closed: Offsets = field(default_factory=dict["tuple[str, int]", "tuple[int, ...]"])
    failures: Offsets = field(default_factory=dict["tuple[str, int]", "tuple[int, ...]"])


def look(connection: psycopg.Connection[Any], *, at_letters: bool = False) -> Look:
    """Take one snapshot, with ``at_letters`` also of dead letters and failed attempts."""
    with connection.transaction():
        connection.execute(_LOCK)
        at = time.monotonic()
        rows = connection.execute(_STORED).fetchall()
        # The snapshot is taken by the first statement: what was committed before ``at`` is in it.
        landed = {(t, p): (count, int(seqs)) for t, p, count, seqs in connection.execute(_LANDED)}
        [(records, total)] = connection.execute(_SUMS).fetchall()
        lines = connection.execute(_HISTORY).fetchall()
        letters = connection.execute(_LETTERS).fetchall() if at_letters else []
        failures = connection.execute(_FAILURES).fetchall() if at_letters else []
    history = tuple(Decision(*line) for line in lines if line[3] is not None and line[6] is not None)
    stored = {(group, topic, partition): offset for group, topic, partition, offset, _ in rows}
    notes = tuple(
        f"{topic}-{partition} of {group} is at {offset}, and its note is {text}"
        for group, topic, partition, offset, text in rows
        if text is not None and json.loads(text)["until"] != offset
    )
    return Look(
        at,
        at,
        stored,
        landed,
        (int(records), int(total)),
        history,
        notes,
        open={(topic, partition): tuple(offsets) for topic, partition, is_open, offsets in letters if is_open},
        closed={(topic, partition): tuple(offsets) for topic, partition, is_open, offsets in letters if not is_open},
        failures={(topic, partition): tuple(offsets) for topic, partition, offsets in failures},
    )


def open_connection(url: str) -> psycopg.Connection[Any]:
    connection = psycopg.connect(url, autocommit=True, application_name="observer", connect_timeout=5)
    connection.isolation_level = IsolationLevel.REPEATABLE_READ
    connection.read_only = True
    return connection


class Observer:
    """Looks until its block is left, also over the database's restarts. It keeps what differs from the look before."""

    def __init__(self, url: str) -> None:
        self.looks: list[Look] = []
        self.count = 0
        self.is_paused = False
        self.looks_at_letters = False
        self._url = url
        self._connection: psycopg.Connection[Any] | None = None
        self._closing = ExitStack()

    def __enter__(self) -> Self:
        self._closing.callback(self._disconnect)
        self._closing.enter_context(repeating(self._look, every=_PAUSE))
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    def _look(self) -> None:
        if self.is_paused:
            return
        try:
            if self._connection is None or self._connection.broken or self._connection.closed:
                self._connection = open_connection(self._url)
            self._keep(look(self._connection, at_letters=self.looks_at_letters))
        except psycopg.Error:  # the database is away, or our tables are being made anew
            self._disconnect()
            time.sleep(0.2)

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(psycopg.Error):
                connection.close()

    def _keep(self, found: Look) -> None:
        self.count += 1
        if self.looks and replace(self.looks[-1], at=found.at, last=found.at) == found:
            self.looks[-1].last = found.at
        else:
            self.looks.append(found)

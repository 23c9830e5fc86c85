"""The calls of a handler against a model: whatever takes how long, fails how often, and finishes when."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offsetstore.processing.handling import Handler, Ordering, Record
from offsetstore.protocol.retries import Retries
from tests.unit.processing.calling import handled

ATTEMPTS = 3


@dataclass(frozen=True)
class Given:
    """A record of the model: how long each call takes, and how many of them fail."""

    key: bytes | None
    partition: int
    milliseconds: int
    failures: int
    rows: int


@dataclass
class Seen:
    """What the calls saw."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    running: set[Record] = field(default_factory=set[Record])
    most: int = 0
    begun: list[Record] = field(default_factory=list[Record])
    together: list[tuple[Record, Record]] = field(default_factory=list[tuple[Record, Record]])

    def begin(self, record: Record) -> int:
        """A call begins; return how often the record was tried before."""
        with self.lock:
            self.together += [(record, other) for other in self.running]
            self.running.add(record)
            self.most = max(self.most, len(self.running))
            before = self.begun.count(record)
            self.begun.append(record)
            return before

    def end(self, record: Record) -> None:
        """It ends."""
        with self.lock:
            self.running.discard(record)


GIVEN = st.builds(
    Given,
    key=st.sampled_from([None, b"a", b"b", b"c"]),
    partition=st.integers(0, 1),
    milliseconds=st.sampled_from([0, 0, 1, 3]),
    failures=st.sampled_from([0, 0, 0, 0, 1, 2, ATTEMPTS]),
    rows=st.integers(0, 2),
)
ORDER: dict[Ordering, Callable[[Record], Any]] = {
    "key": lambda record: record.key and (record.partition, record.key),
    "partition": lambda record: record.partition + 1,
    "none": lambda _: None,
}


def records_of(plan: Sequence[Given]) -> list[Record]:
    return [
        Record("payments", one.partition, 3 * number, one.key)  # with holes between them
        for number, one in enumerate(plan)
    ]


@pytest.mark.behaviour("HAND-1", "HAND-2", "HAND-3", "HAND-7")
@settings(max_examples=60, deadline=None)
@given(
    plan=st.lists(GIVEN, max_size=24),
    concurrency=st.integers(1, 6),
    ordering=st.sampled_from(["key", "partition", "none"]),
    chunk=st.integers(1, 8),
    is_async=st.booleans(),
)
def test_calls_are_those_of_the_model(
    plan: list[Given], concurrency: int, ordering: Ordering, chunk: int, *, is_async: bool
) -> None:
    records, seen = records_of(plan), Seen()
    planned = dict(zip(records, plan, strict=True))

    def result(record: Record, before: int) -> list[dict[str, int]]:
        if before < planned[record].failures:
            raise ValueError(record.offset)
        return [{"id": record.offset}] * planned[record].rows

    async def later(record: Record) -> list[dict[str, int]]:
        before = seen.begin(record)
        try:
            await asyncio.sleep(planned[record].milliseconds / 1000)
            return result(record, before)
        finally:
            seen.end(record)

    def at_once(record: Record) -> list[dict[str, int]]:
        before = seen.begin(record)
        try:
            time.sleep(planned[record].milliseconds / 1000)
            return result(record, before)
        finally:
            seen.end(record)

    handler = Handler(
        later if is_async else at_once,
        None,
        concurrency=concurrency,
        ordering=ordering,
        retries=Retries(attempts=ATTEMPTS, shortest=0.001, longest=0.002),
    )
    outcomes = handled(handler, records, chunk=chunk)

    assert sorted(one.record.offset for one in outcomes) == [record.offset for record in records]
    for one in outcomes:
        expected = planned[one.record]
        assert one.attempts == min(expected.failures + 1, ATTEMPTS) == seen.begun.count(one.record)
        assert (one.error is None) == (expected.failures < ATTEMPTS)
        assert len(one.rows) == (expected.rows if one.error is None else 0)
    assert seen.most <= concurrency
    key = ORDER[ordering]
    assert not [pair for pair in seen.together if key(pair[0]) and key(pair[0]) == key(pair[1])]
    by_key = defaultdict[Any, list[int]](list)
    for record in seen.begun:
        if key(record):
            by_key[key(record)].append(record.offset)
    assert all(offsets == sorted(offsets) for offsets in by_key.values())

"""The functions that are called for each record, and their own log of these calls.

Spark's workers import this module, so each process has one log: a file in memory, which costs no system call, and
which survives the process.
"""

from __future__ import annotations

import asyncio
import mmap
import os
import struct
import tempfile
import time
import zlib
from collections.abc import Callable, Hashable, Iterable, Iterator
from functools import lru_cache
from itertools import count, takewhile
from pathlib import Path
from typing import Final, NamedTuple

from offsetstore import Record

SECONDS: Final = 0.001
"""That each call waits, at least."""
SCHEMA: Final = "partition int, offset long, value string"
PARTITIONS: Final = 5
_KEYS: Final = 2_000
"""In each partition."""
_MOST: Final = 500_000
"""Calls in one log."""
_CALL: Final = struct.Struct("<qqq")


class Call(NamedTuple):
    """One call, with times in nanoseconds of the machine's own clock, which all processes share."""

    number: int
    begun: int
    ended: int


class _Log:
    """A new file in a directory."""

    def __init__(self, directory: str) -> None:
        handle, _ = tempfile.mkstemp(dir=directory)
        os.truncate(handle, _MOST * _CALL.size)
        self._calls = mmap.mmap(handle, _MOST * _CALL.size)
        os.close(handle)
        self._places = count(0, _CALL.size)  # so that threads need no lock

    def add(self, number: int, begun: int) -> None:
        """A call ends now."""
        _CALL.pack_into(self._calls, next(self._places), number, begun, time.monotonic_ns())


_log = lru_cache(maxsize=1)(_Log)  # threads that come first at the same time have a file each; that does no harm


def waits(directory: str, record: Record) -> dict[str, object]:
    """Wait in a thread, and log that."""
    begun = time.monotonic_ns()
    time.sleep(SECONDS)
    _log(directory).add(_number(record), begun)
    return _row(record)


async def waits_async(directory: str, record: Record) -> dict[str, object]:
    """Wait on the event loop, and log that."""
    begun = time.monotonic_ns()
    await asyncio.sleep(SECONDS)
    _log(directory).add(_number(record), begun)
    return _row(record)


async def yields(record: Record) -> dict[str, object]:
    """Let other calls go on once, and return."""
    await asyncio.sleep(0)
    return _row(record)


def _number(record: Record) -> int:
    return int(record.value or b"")


def _row(record: Record) -> dict[str, object]:
    return {"partition": record.partition, "offset": record.offset, "value": (record.value or b"").decode()}


def key_of(number: int, partitions: int = PARTITIONS) -> bytes:
    """The key of a record, by its number: 2,000 in each partition, in no pattern."""
    return f"{number % partitions}-{zlib.crc32(number.to_bytes(8)) % _KEYS}".encode()


def calls_in(directory: Path) -> Iterator[Call]:
    """All calls that were logged, process by process."""
    for path in directory.iterdir():
        logged = map(Call._make, _CALL.iter_unpack(path.read_bytes()))
        yield from takewhile(lambda call: call.begun, logged)


def check(calls: Iterable[Call], records: int, order: Callable[[int], Hashable] = key_of) -> float:
    """Check the calls, and return how many seconds all of them took together.

    :param order: what calls may not overlap within, by the record's number.
    :raises AssertionError: a record was not handled once, or calls overlap or are in another order than the records.
    """
    by_time = sorted(calls, key=lambda call: call.begun)
    numbers = sorted(call.number for call in by_time)
    assert numbers == [*range(records)], f"expected one call for each of {records} records; found {len(numbers)}"
    last: dict[Hashable, Call] = {}
    for call in by_time:
        within = order(call.number)
        before = last.get(within)
        if before is not None:
            assert before.number < call.number, f"{before} came before {call}"
            assert before.ended <= call.begun, f"{before} overlaps {call}"
        last[within] = call
    spent = sum(call.ended - call.begun for call in by_time)
    assert spent >= round(records * SECONDS * 1e9), f"{records} calls took {spent / 1e9} s"
    return spent / 1e9

"""The page of memory that a supervisor shares with each of its processes.

What is written there stays when its writer is gone, and writing waits for nobody: a crash in C leaves no time to send
anything, and a supervisor that is stopped must not hold up its processes.
"""

from __future__ import annotations

import os
import pickle
import struct
import tempfile
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias, cast

from offsetstore.offsets import OffsetRange, Ranges, TopicPartition

Restart: TypeAlias = Literal["helps", "repeats", "harms"]
"""What a restart does after an end: it may help; it meets the same error again, until someone corrects what the error
names; or it does harm, or nothing."""

# Bytes. Each side has two such places; what is never written needs no memory.
_PLACE: Final = 1 << 26
_HEAD: Final = struct.Struct("<QQI")  # the number of what is written, its size and its checksum


@dataclass(frozen=True, slots=True)
class End:
    """How a process ends, in its own words.

    :param error: the text that this process has printed, or the one before it.
    """

    code: int
    restart: Restart = "helps"
    error: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Words:
    """What a process has told the supervisor.

    :param handled: the records that it is handling: the user's function was called, and not all of them are stored.
    :param skip: the words with the command that skips them, if they are a single record.
    :param has_joined: whether it has joined the fleet, and recorded the deaths that it was given.
    :param has_written: whether it has stored any records.
    :param end: ``None`` unless it ends by itself.
    """

    handled: Ranges = field(default_factory=dict[TopicPartition, OffsetRange])
    skip: str = ""
    has_joined: bool = False
    has_written: bool = False
    end: End | None = None

    def __reduce__(self) -> tuple[Callable[..., Words], tuple[Any, ...]]:
        """Pickle plain numbers: there may be ten thousand partitions, in each flush."""
        handled = [(*tp, range_.from_, range_.until) for tp, range_ in self.handled.items()]
        return _words, (handled, self.skip, self.has_joined, self.has_written, self.end)


def _words(handled: list[tuple[str, int, int, int]], *others: Any) -> Words:
    return Words({TopicPartition(topic, p): OffsetRange(begin, end) for topic, p, begin, end in handled}, *others)


@dataclass(frozen=True, slots=True)
class Death:
    """A process that ended without a word, while it handled these records."""

    text: str
    handled: Ranges


@dataclass(frozen=True, slots=True)
class Orders:
    """What a supervisor tells a process.

    :param suspects: where processes died: these records are to be handled one by one.
    :param deaths: to be recorded in the database, to which the supervisor has no connection.
    :param printed: the error with which the process before ended: it is not printed twice.
    """

    suspects: Ranges = field(default_factory=dict[TopicPartition, OffsetRange])
    deaths: tuple[Death, ...] = ()
    printed: str = ""


class _Side:
    """What one side tells, in two places in turn.

    The kernel copies 4 KiB at a time, and SIGKILL may end that in between: the value before is then still whole.
    """

    def __init__(self, descriptor: int, begin: int) -> None:
        self._descriptor = descriptor
        self._begin = begin
        self._told = self._read = 0  # the numbers of the last values
        self._last: Any = None

    def tell(self, what: object) -> None:
        self._told += 1
        text = pickle.dumps(what)
        head = _HEAD.pack(self._told, len(text), zlib.crc32(text, self._told))
        os.pwrite(self._descriptor, head + text, self._place(self._told))

    def read(self) -> Any:
        """Return the last value that is whole, ``None`` if there is none. Each value is unpickled once."""
        places = [self._place(number) for number in range(2)]
        heads = [os.pread(self._descriptor, _HEAD.size, place).ljust(_HEAD.size, b"\0") for place in places]
        for number, size, checksum in sorted(map(_HEAD.unpack, heads), reverse=True):
            if number <= self._read:
                break
            text = os.pread(self._descriptor, size, self._place(number) + _HEAD.size)
            if zlib.crc32(text, number) == checksum:
                # Its class may be missing while the package is being replaced.
                with suppress(Exception):
                    self._read, self._last = number, pickle.loads(text)  # noqa: S301 - our own program's
                break
        return self._last

    def _place(self, number: int) -> int:
        return self._begin + number % 2 * _PLACE


class Page:
    """One process's page: the process writes one half, with `tell`, and the supervisor the other, with `order`."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._process, self._supervisor = _Side(descriptor, 0), _Side(descriptor, 2 * _PLACE)

    @classmethod
    def make(cls) -> Page:
        """Make a page without a name in the file system.

        :raises OSError: this process may open no more files.
        """
        # Linux only: elsewhere it is a file whose name is gone.
        if (make := cast("Callable[[str], int] | None", getattr(os, "memfd_create", None))) is not None:
            return cls(make("offsetstore-process"))
        with tempfile.TemporaryFile() as file:
            return cls(os.dup(file.fileno()))

    def tell(self, words: Words) -> None:
        self._process.tell(words)

    def order(self, orders: Orders) -> None:
        self._supervisor.tell(orders)

    def words(self) -> Words:
        return cast("Words | None", self._process.read()) or Words()

    def orders(self) -> Orders:
        return cast("Orders | None", self._supervisor.read()) or Orders()

    def close(self) -> None:
        os.close(self.descriptor)

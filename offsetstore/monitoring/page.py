"""The page of memory that a supervisor shares with each of its processes.

What is written there stays when its writer is gone, and writing waits for nobody: a crash in C leaves no time to send
anything, and a supervisor that is stopped must not hold up its processes.
"""

from __future__ import annotations

import os
import pickle
import struct
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias, cast

from offsetstore.offsets import OffsetRange, Ranges, TopicPartition

Restart: TypeAlias = Literal["helps", "repeats", "harms"]
"""What a restart does after an end: it may help; it meets the same error again, until someone corrects what that names;
or it does harm, or nothing."""

_HALF: Final = 1 << 26  # bytes: here the supervisor's half begins
_SIZE: Final = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class End:
    """How a process ends, in its own words."""

    code: int
    restart: Restart = "helps"


@dataclass(frozen=True, slots=True)
class Words:
    """What a process has told.

    :param handled: the records that it was handling: the user's function was called, and they are not all stored.
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
    :param deaths: to be recorded in the database, which the supervisor has no connection to.
    """

    suspects: Ranges = field(default_factory=dict[TopicPartition, OffsetRange])
    deaths: tuple[Death, ...] = ()


class Page:
    """One process's page, of which each side has a half to write. What is being written reads as nothing yet."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    @classmethod
    def make(cls) -> Page:
        """A new one, without a name.

        :raises OSError: this process may open no more files.
        """
        if (make := cast("Callable[[str], int] | None", getattr(os, "memfd_create", None))) is not None:  # Linux only
            return cls(make("offsetstore-process"))
        with tempfile.TemporaryFile() as file:
            return cls(os.dup(file.fileno()))

    def tell(self, words: Words) -> None:
        """Write what the process tells."""
        self._write(words, 0)

    def order(self, orders: Orders) -> None:
        """Write what the supervisor tells."""
        self._write(orders, _HALF)

    def words(self) -> Words:
        """What the process has told."""
        return cast("Words | None", self._read(0)) or Words()

    def orders(self) -> Orders:
        """What the supervisor has told."""
        return cast("Orders | None", self._read(_HALF)) or Orders()

    def close(self) -> None:
        """Forget it."""
        os.close(self.descriptor)

    def _write(self, what: object, at: int) -> None:
        told = pickle.dumps(what)
        os.pwrite(self.descriptor, _SIZE.pack(len(told)) + told, at)

    def _read(self, at: int) -> Any:
        try:
            (size,) = _SIZE.unpack(os.pread(self.descriptor, _SIZE.size, at))
            return pickle.loads(os.pread(self.descriptor, size, at + _SIZE.size))  # noqa: S301 - our own program's
        except Exception:  # noqa: BLE001 - half of it is the former, or there is nothing yet
            return None

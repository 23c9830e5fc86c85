"""The orders in which a few actors can take their steps, and which of them come to the same.

An *order* says, turn by turn, whose step is next. An actor whose step waits for somebody else's lock can't take a turn:
it is kept, others take theirs, and the kept one comes first once the lock was had. So the locks make many orders the
same: of two tasks with five steps each and a row in common, 252 orders come to 10 sequences of turns. Every order is
walked through what is known from the runs before, and played where it comes to something new.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Turn:
    """Whose turn it was, and how things stood after it."""

    actor: str
    waiting: frozenset[str]
    ended: frozenset[str]


def take_turn(left: list[str], waiting: Collection[str], ended: Collection[str]) -> str | None:
    """Take the first turn of somebody who can go on out of ``left``, with those of whoever has ended."""
    left[:] = [name for name in left if name not in ended]
    for place, name in enumerate(left):
        if name not in waiting:
            del left[place]
            return name
    return None


def orders(turns: Mapping[str, int]) -> Iterator[tuple[str, ...]]:
    """All orders of so many turns of each."""
    if not any(turns.values()):
        yield ()
    for name, count in turns.items():
        if count:
            for rest in orders({**turns, name: count - 1}):
                yield (name, *rest)


@dataclass(slots=True)
class _Point:
    """What is known of one state that runs have come to."""

    waiting: frozenset[str] = frozenset()
    ended: frozenset[str] = frozenset()
    then: dict[str, _Point] = field(default_factory=dict[str, "_Point"])


class Known:
    """The runs so far, as a tree of their turns."""

    def __init__(self) -> None:
        self._root = _Point()

    def has(self, order: Sequence[str]) -> bool:
        """Whether an order comes to the same steps as one of the runs."""
        left = list(order)
        point: _Point | None = self._root
        while point is not None:
            name = take_turn(left, point.waiting, point.ended)
            if name is None:
                return point is not self._root
            point = point.then.get(name)
        return False

    def add(self, turns: Sequence[Turn]) -> None:
        point = self._root
        for turn in turns:
            point = point.then.setdefault(turn.actor, _Point(turn.waiting, turn.ended))

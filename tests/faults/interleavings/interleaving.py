"""A few actors, each in a thread of its own, which are released one step at a time, in every order.

A turn is one actor's step. One whose step waits for somebody else's lock can't take a turn: its step is done when the
lock was had, in the turn of whoever has let it go. Whether it waits is asked of the database, never guessed from the
time it takes. So locks make many orders the same: of two tasks with five steps each and a row in common, 252 orders
come to 10 sequences of turns, and these are played.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TypeAlias

from tests.support.background import in_background

SECONDS = 60.0
"""A step that has neither ended nor begun to wait after so long has failed."""

Blockers: TypeAlias = "Callable[[Sequence[int]], Mapping[int, Collection[int]]]"
"""For backends by process id: whose locks each of them waits for, now."""


class Abandoned(BaseException):
    """Raised where an actor stands when its run is given up, so that it rolls back; not for ``except Exception``."""


class Actor:
    """Somebody who takes steps. Its own thread calls `pause` before each, and goes on when it is its turn.

    ``pid`` is the backend of its open transaction; whoever connects sets it. ``doing`` is the step before which it
    stands, or which it is taking.
    """

    def __init__(self, name: str, steps: Collection[str], changed: threading.Condition) -> None:
        self.name = name
        self.pid = 0
        self.doing = ""
        self.stands = True
        self.result: Future[object] | None = None
        self._steps = frozenset(steps)
        self._changed = changed
        self._abandoned = False

    @property
    def has_ended(self) -> bool:
        return self.result is not None and self.result.done()

    def pause(self, step: str) -> None:
        """Stand before a step until it is released; one that is not among the actor's steps is part of the last."""
        if step not in self._steps:
            return
        with self._changed:
            self.doing = step
            self.stands = not self._abandoned
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self.stands)
            if self._abandoned:
                raise Abandoned

    def release(self, *, abandoned: bool = False) -> None:
        with self._changed:
            self._abandoned = abandoned
            self.stands = False
            self._changed.notify_all()


@dataclass(frozen=True, slots=True)
class Part:
    """What an actor does, and the steps that it may take, in whatever order it comes to them."""

    work: Callable[[Actor], object]
    steps: Collection[str]


@dataclass(frozen=True, slots=True)
class Turn:
    """Whose turn it was, who could have gone on instead, and whether somebody waited after it."""

    actor: str
    others: tuple[str, ...]
    has_waiting: bool


@dataclass(frozen=True, slots=True)
class Played:
    """The turns, the steps in the order in which they were done, and how each actor ended."""

    turns: list[Turn]
    steps: list[tuple[str, str]]
    results: dict[str, Future[object]]


def every_order(play: Callable[[Sequence[str]], Played]) -> Iterator[Played]:
    """Play one order after the other: each as the last, up to where somebody else can have the turn who never had it.

    :param play: plays an order that begins with these turns.
    """
    order: list[str] | None = []
    while order is not None:
        played = play(order)
        yield played
        names = [turn.actor for turn in played.turns]
        branches = [
            [*names[:at], min(later)]
            for at, turn in enumerate(played.turns)
            if (later := [name for name in turn.others if name > turn.actor])
        ]
        order = branches[-1] if branches else None


def play(parts: Mapping[str, Part], order: Sequence[str], blockers: Blockers) -> Played:
    """Play to the end of all actors; after the given turns, whoever can goes on, by name.

    :raises AssertionError: a deadlock, or a step that takes too long.
    """
    return _Stage(parts, blockers).play(order)


class _Stage:
    def __init__(self, parts: Mapping[str, Part], blockers: Blockers) -> None:
        self._changed = threading.Condition()
        self._blockers = blockers
        self._parts = parts
        self._actors = {name: Actor(name, part.steps, self._changed) for name, part in parts.items()}
        self._waiting: list[str] = []
        self._steps: list[tuple[str, str]] = []

    def play(self, order: Sequence[str]) -> Played:
        turns: list[Turn] = []
        try:
            for actor in self._actors.values():
                self._start(actor)
                self._settle()  # one after the other: what comes before the first step may wait, too
            while able := sorted(one.name for one in self._actors.values() if one.stands and not one.has_ended):
                name = order[len(turns)] if len(turns) < len(order) else able[0]
                assert name in able, f"the same turns have led elsewhere: {name} can't go on"
                self._take(name)
                turns.append(Turn(name, tuple(able), bool(self._waiting)))
        except AssertionError as error:
            names = " ".join(turn.actor for turn in turns)
            raise AssertionError(f"{error}\norder: {names}\nsteps completed: {self._steps}") from None
        finally:
            for actor in self._actors.values():
                actor.release(abandoned=True)
            # After a deadlock the database ends one of them, within its deadlock_timeout.
            with self._changed:
                self._changed.wait_for(lambda: all(one.has_ended for one in self._actors.values()), timeout=SECONDS)
        return Played(turns, self._steps, {name: one.result for name, one in self._actors.items() if one.result})

    def _start(self, actor: Actor) -> None:
        actor.stands = False
        actor.result = in_background(lambda: self._parts[actor.name].work(actor))
        actor.result.add_done_callback(lambda _: self._notify())

    def _take(self, name: str) -> None:
        doing = {one.name: one.doing for one in self._actors.values()}
        self._actors[name].release()
        before = [*self._waiting]
        self._settle()
        # Whose step made others go on has completed it before they completed theirs.
        self._steps += [(one, doing[one]) for one in (name, *before) if one not in self._waiting]

    def _settle(self) -> None:
        """Wait until everybody stands, has ended, or waits for a lock of somebody else here."""
        deadline = time.monotonic() + SECONDS
        # Most steps wait for nobody: no need to ask the database.
        self._wait_while(lambda: bool(self._under_way().keys() - set(self._waiting)), timeout=0.003)
        while under_way := self._under_way():
            waits_for = self._waits_for(under_way)
            if len(waits_for) == len(under_way) and under_way == self._under_way():
                everybody = sum(not one.has_ended for one in self._actors.values())
                assert len(under_way) < everybody, f"deadlock: {waits_for}"
                break
            assert time.monotonic() < deadline, f"neither done nor waiting for each other: {under_way}"
            self._wait_while(lambda known=under_way: self._under_way() == known, timeout=0.001)
        self._waiting = [*(one for one in self._waiting if one in under_way)]
        self._waiting += [one for one in under_way if one not in self._waiting]

    def _wait_while(self, condition: Callable[[], bool], *, timeout: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not condition(), timeout=timeout)

    def _under_way(self) -> dict[str, str]:
        return {one.name: one.doing for one in self._actors.values() if not one.stands and not one.has_ended}

    def _waits_for(self, under_way: Collection[str]) -> dict[str, str]:
        names = {one.pid: one.name for one in self._actors.values() if not one.has_ended}
        found = self._blockers([self._actors[name].pid for name in under_way])
        who = {names[pid]: sorted(names.keys() & pids) for pid, pids in found.items() if pid in names}
        return {
            name: f"{self._actors[name].doing}, for {' and '.join(names[pid] for pid in pids)}"
            for name, pids in who.items()
            if pids
        }

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()

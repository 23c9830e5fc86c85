"""A few actors, each in a thread of its own, which are released one step at a time, in a given order.

Whether a step waits for somebody else's lock is asked of the database, never guessed from the time it takes. What
becomes of the turns of an actor that waits: `interleaving_orders`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TypeAlias

from tests.faults.interleavings.orders import Turn, take_turn
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

    def release(self) -> None:
        with self._changed:
            self.stands = False
            self._changed.notify_all()

    def abandon(self) -> None:
        with self._changed:
            self._abandoned = True
            self.stands = False
            self._changed.notify_all()


@dataclass(frozen=True, slots=True)
class Part:
    """What an actor does: the steps that it may take, in whatever order it comes to them, in so many turns at most."""

    work: Callable[[Actor], object]
    steps: Collection[str]
    turns: int


@dataclass(frozen=True, slots=True)
class Played:
    """One order: the turns as they were taken, the steps in the order in which they were done, how each actor ended."""

    order: tuple[str, ...]
    turns: list[Turn]
    steps: list[tuple[str, str]]
    results: dict[str, Future[object]]


def play(parts: Mapping[str, Part], order: tuple[str, ...], blockers: Blockers) -> Played:
    """Play one order to the end of all actors.

    :raises AssertionError: a deadlock, a step that takes too long, or an actor that takes more turns than it has.
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

    def play(self, order: tuple[str, ...]) -> Played:
        left = list(order)
        turns: list[Turn] = []
        try:
            for actor in self._actors.values():
                self._start(actor)
            self._settle()
            while (name := take_turn(left, self._waiting, self._ended())) is not None:
                self._take(name)
                turns.append(Turn(name, frozenset(self._waiting), self._ended()))
            standing = {one.name: one.doing for one in self._actors.values() if not one.has_ended}
            assert not standing, f"no turns are left, and these have not ended: {standing}"
        except AssertionError as error:
            raise AssertionError(f"{error}\norder: {' '.join(order)}\nsteps completed: {self._steps}") from None
        finally:
            self._abandon()
        return Played(order, turns, self._steps, {name: one.result for name, one in self._actors.items() if one.result})

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

    def _ended(self) -> frozenset[str]:
        return frozenset(one.name for one in self._actors.values() if one.has_ended)

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

    def _abandon(self) -> None:
        """Let everybody end; after a deadlock the database ends one of them, within its deadlock_timeout."""
        for actor in self._actors.values():
            actor.abandon()
        with self._changed:
            self._changed.wait_for(lambda: all(one.has_ended for one in self._actors.values()), timeout=SECONDS)

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()

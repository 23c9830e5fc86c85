"""What should be in the results, by the producer's ledger and the history's decisions alone. Pure.

A partition is read from where the history's first decision puts it, up to the stored offset. Each later decision ends
one stretch and begins another: a reset backwards makes records be written twice, a skip leaves some out, a restart
goes over to the next generation of the topic, and so does a reset of a partition that is known to have lost records.
Nothing of offsetstore's own reckoning is used.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate

from tests.faults.chaos.harness.ledger import Entry, Ledger
from tests.faults.chaos.harness.observer import Decision

RESTARTS = "restart"
LOST = "suspect"
ACCEPTED = "reset"


@dataclass(frozen=True, slots=True)
class Stretch:
    """Offsets of one partition that were written once: [begin, end) of a generation of the topic."""

    topic: str
    generation: int
    partition: int
    begin: int
    end: int


@dataclass(slots=True)
class _Course:
    """Of one partition: where the stretch under way began, and whether its log is known to have lost records."""

    begin: int
    generation: int
    is_suspect: bool = False
    stretches: list[Stretch] = field(default_factory=list[Stretch])


class HistoryBroken(Exception):
    """The history's decisions don't fit together."""


def stretches(
    stored: Mapping[tuple[str, int], int],
    history: Iterable[Decision],
    generations: Mapping[str, int],
    before: Iterable[Stretch] = (),
) -> list[Stretch]:
    """Return what has been written when the stored offsets are these.

    :param before: what was written before the history began, where the history itself was lost.
    :raises HistoryBroken: a partition has an offset and no decision for it.
    """
    courses: dict[tuple[str, int], _Course] = {}
    latest: dict[str, int] = defaultdict(int)
    for decision in history:
        place = (decision.topic, decision.partition)
        restarts = decision.event == RESTARTS
        course = courses.get(place)
        if course is None:
            # New in the topic's present life, which partition 0, the first in the history, has begun.
            course = courses[place] = _Course(decision.after, latest[decision.topic] or int(restarts))
        else:
            if decision.before is not None:
                _end(course, place, decision.before)
            course.generation += restarts or (course.is_suspect and decision.event == ACCEPTED)
            course.is_suspect = decision.event == LOST or (course.is_suspect and decision.event != ACCEPTED)
        course.begin = decision.after
        course.generation = min(course.generation, generations.get(decision.topic, 0))
        latest[decision.topic] = max(latest[decision.topic], course.generation)
    for place, offset in stored.items():
        course = courses.get(place)
        if course is None:
            raise HistoryBroken(f"{place} has a stored offset and no decision in the history")
        _end(course, place, offset)
    return [*before, *(one for course in courses.values() for one in course.stretches)]


def _end(course: _Course, place: tuple[str, int], at: int) -> None:
    if at < course.begin:
        raise HistoryBroken(f"{place} went back from {course.begin} to {at} without a decision")
    if at > course.begin:
        course.stretches.append(Stretch(place[0], course.generation, place[1], course.begin, at))


def entries(ledger: Ledger, found: Iterable[Stretch]) -> Counter[tuple[str, int, Entry]]:
    expected: Counter[tuple[str, int, Entry]] = Counter()
    for one in found:
        for entry in ledger.between(one.topic, one.generation, one.partition, one.begin, one.end):
            expected[one.topic, one.partition, entry] += 1
    return expected


class Totals:
    """The ledger added up, so that a stretch costs two searches, however long it is."""

    def __init__(self, ledger: Ledger) -> None:
        self._offsets: dict[tuple[str, int, int], list[int]] = {}
        self._seqs: dict[tuple[str, int, int], list[int]] = {}
        self._amounts: dict[tuple[str, int, int], list[int]] = {}
        for place, entered in ledger.records.items():
            self._offsets[place] = [entry.offset for entry in entered]
            self._seqs[place] = list(accumulate((entry.seq for entry in entered), initial=0))
            self._amounts[place] = list(accumulate((entry.amount or 0 for entry in entered), initial=0))

    def of(self, one: Stretch) -> tuple[int, int, int]:
        place = (one.topic, one.generation, one.partition)
        offsets = self._offsets.get(place)
        if offsets is None:
            return 0, 0, 0
        begin, end = bisect_left(offsets, one.begin), bisect_left(offsets, one.end)
        seqs, amounts = self._seqs[place], self._amounts[place]
        return end - begin, seqs[end] - seqs[begin], amounts[end] - amounts[begin]

"""What Kafka refuses: which rows of the outbox are set aside, and which topics are sent by themselves, or wait.

Keys do not cross topics, so rows of one topic may pass another's; within a topic nothing overtakes anything. A topic of
which a row is suspected is sent *apart* from the others, in batches of its own, until its rows pass again. If it has no
rows that Kafka takes, it is *blocked*: its rows wait, and its first one is tried now and then.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol, TypeVar

MOST_IN_A_ROW: Final = 100
"""Rows that are set aside until Kafka has taken one: more of them look like a bug or an outage."""

TRIAL: Final = 2.0
"""Seconds between two trials of a row, or two looks at Kafka's mark."""

_CALM: Final = 100  # batches of a topic, without a refusal, until it goes with the others again
_BLOCKED: Final = 10.0  # seconds between two trials of blocked topics, one topic each time
_LACKING: Final = 1.0  # the same for topics that are missing, which one question to Kafka tells; doubled each time
_TOLD: Final = 60.0  # seconds until it is said again that a topic is blocked


class RowOfTopic(Protocol):
    """A row of the outbox, as far as this needs it."""

    @property
    def id(self) -> int:
        """Rows are sent in the order of their ids."""
        ...

    @property
    def topic(self) -> str:
        """Where to."""
        ...


_R = TypeVar("_R", bound=RowOfTopic)


class Blocked(NamedTuple):
    """A topic whose rows wait, the first of them, and why."""

    topic: str
    row: int
    why: str


@dataclass(slots=True)
class _TopicApart:
    """A topic that is sent by itself.

    :param size: rows of its next batch, at most ``ceiling``: one that was refused as a whole was too large, perhaps.
    :param suspect: the row that is sent alone, once those before it are sent; ``failed`` is how often that has failed.
    :param due: when it is looked at next.
    :param blocked: its first row, and why that is refused.
    :param is_lacking: whether it is missing, or may not be written to.
    """

    ceiling: int
    size: int = 1
    calm: int = _CALM
    suspect: int | None = None
    failed: int = 0
    due: float = 0.0
    wait: float = _LACKING
    blocked: Blocked | None = None
    is_lacking: bool = False


class Topics:
    """The topics of the outbox, as far as Kafka has refused something of them.

    :param most: rows of one batch.
    """

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._clock = clock
        self._apart: dict[str, _TopicApart] = {}
        self._refused = Counter[str]()  # rows of each topic, since Kafka has taken one of it
        self._in_all = 0  # the same of all, since Kafka has taken any
        self._recorded = self._refused.copy(), 0  # both, when the database last had them
        self._had_turn = False
        self._told: dict[str, float] = {}
        self._next_trial = 0.0

    @property
    def apart(self) -> Collection[str]:
        """Those that are not sent with the others."""
        return self._apart.keys()

    @property
    def blocked(self) -> list[Blocked]:
        """Those whose rows wait."""
        return [one.blocked for one in self._apart.values() if one.blocked is not None]

    @property
    def has_trials(self) -> bool:
        """Whether a row is on trial, and waits for the next one."""
        return any(one.blocked is None and one.suspect is not None for one in self._apart.values())

    def recorded(self) -> None:
        """The database has what was refused."""
        self._recorded = self._refused.copy(), self._in_all

    def begin(self) -> None:
        """A new machine, perhaps after an error: what the database does not have will be refused and counted again."""
        self._refused, self._in_all = self._recorded[0].copy(), self._recorded[1]

    def untold(self) -> list[Blocked]:
        """Those that are blocked, each at most once a minute."""
        now, blocked = self._clock(), self.blocked
        told = [one for one in blocked if now - self._told.get(one.topic, -_TOLD) >= _TOLD]
        self._told = {one.topic: now if one in told else self._told[one.topic] for one in blocked}
        return told

    def turn(self) -> str | None:
        """Whose rows are next: ``None`` for all that are not apart, every other time if one that is apart is due."""
        self._had_turn = not self._had_turn
        if self._had_turn:
            return None
        return next(iter(self._due()), None)

    @property
    def is_any_due(self) -> bool:
        """Whether one that is apart is to be looked at now."""
        return bool(self._due())

    def _due(self) -> list[str]:
        now = self._clock()
        due = [
            (one.due, topic)
            for topic, one in self._apart.items()
            if one.due <= now and not one.is_lacking and (one.blocked is None or self._next_trial <= now)
        ]
        return [topic for _, topic in sorted(due)]

    def lacking(self) -> list[str]:
        """Topics that were missing, or might not be written to, and of which Kafka is to be asked again."""
        now = self._clock()
        return [topic for topic, one in self._apart.items() if one.is_lacking and one.due <= now]

    def most(self, topic: str) -> int:
        """How many of its rows to look for."""
        one = self._apart[topic]
        if one.blocked is not None:
            self._next_trial = self._clock() + _BLOCKED
            return 1
        return one.size if one.suspect is None else self._most

    def batch(self, topic: str, found: Sequence[_R]) -> Sequence[_R]:
        """Those of the rows that are found which are sent next: all before the suspect, or this one alone."""
        if not found:  # it goes with the others: perhaps it has rows behind those that are looked through for one topic
            del self._apart[topic]
            return found
        one = self._apart[topic]
        one.due = self._clock()
        if one.suspect is not None and found[0].id > one.suspect:  # it is gone: set aside by somebody
            one.suspect, one.failed = None, 0
        if one.suspect is None:
            return found[: one.size]
        if found[0].id == one.suspect:
            return found[:1]
        return [row for row in found if row.id < one.suspect]

    def _forgive(self, topic: str, one: _TopicApart) -> None:
        """Kafka has taken rows of it."""
        one.blocked = None
        one.calm -= 1
        if one.calm > 0 or one.suspect is not None:
            return
        if one.ceiling >= self._most:
            del self._apart[topic]
        one.ceiling, one.calm = min(self._most, 2 * one.ceiling), _CALM

    def passed(self, rows: Sequence[RowOfTopic]) -> None:
        """Kafka has taken these."""
        self._in_all = 0
        ids = {row.id for row in rows} if self._apart else ()
        for topic in {row.topic for row in rows}:
            self._refused.pop(topic, None)
            if (one := self._apart.get(topic)) is None:
                continue
            if one.suspect in ids:
                one.suspect, one.failed = None, 0
            if one.suspect is None:
                one.size = min(one.ceiling, 2 * one.size)
            self._forgive(topic, one)
        self.recorded()
        for topic, one in self._apart.items():  # what was only blocked because nothing passed at all is tried again
            is_tried = one.blocked is None or one.is_lacking or one.suspect is not None
            if not is_tried and self._refused[topic] < MOST_IN_A_ROW:
                one.due = self._next_trial = 0.0

    def found_lacking(self, rows: Sequence[RowOfTopic], lacking: Mapping[str, str]) -> None:
        """These topics are missing, or may not be written to: no row is to blame."""
        first = {row.topic: row.id for row in reversed(rows)}
        for topic, why in lacking.items():
            self._block(Blocked(topic, first[topic], why), is_lacking=True)

    def asked_again(self, lacking: Mapping[str, str]) -> str | None:
        """These, of `lacking`, still are; the others go with the rest again.

        :return: one that still is, in turns: a row of it is to be looked for, since all may be gone.
        """
        due = self.lacking()
        for topic in due:
            one = self._apart[topic]
            if topic not in lacking:
                del self._apart[topic]
                continue
            one.wait = min(_BLOCKED, 2 * one.wait)
            one.due = self._clock() + one.wait
        looked = next((topic for topic in due if topic in lacking), None)
        if looked is not None:
            self._apart[looked] = self._apart.pop(looked)  # behind the others
        return looked

    def forget(self, topic: str) -> None:
        """It seems to have no rows, and goes with the rest again; of some further behind, Kafka is asked anew."""
        del self._apart[topic]

    def _block(self, blocked: Blocked, *, is_lacking: bool = False) -> None:
        one = self._apart.setdefault(blocked.topic, _TopicApart(self._most))
        one.blocked, one.is_lacking = blocked, is_lacking
        one.suspect, one.failed, one.size, one.calm = None, 0, 1, _CALM
        one.due = self._clock() + (one.wait if is_lacking else _BLOCKED)

    def refuse(
        self, rows: Sequence[_R], why: Mapping[int, str], vouched: Collection[str] = ()
    ) -> tuple[Mapping[int, str], Sequence[_R]]:
        """Return the rows that are set aside, of those with a reason, and what is left to be sent.

        Not more than a hundred in a row: then what comes before is sent, or if that is nothing, the topic is blocked.
        Rows in between that are to be sent interrupt a row, unless some were refused since Kafka has last taken one.

        :param vouched: topics with rows that are as good as taken: see `Refusal`.
        """
        if not why:
            return {}, rows
        refused: dict[int, str] = {}
        left: list[_R] = []
        cut: set[str] = set()
        had, had_in_all = self._refused.copy(), self._in_all
        row_of, row_of_all = self._refused.copy(), self._in_all
        for row in rows:
            topic = row.topic
            if topic in cut:
                continue
            if row.id not in why:
                left.append(row)
                row_of[topic] = had[topic]
                row_of_all = had_in_all
            elif max(row_of[topic], row_of_all) < MOST_IN_A_ROW:
                refused[row.id] = why[row.id]
                row_of[topic] += 1
                row_of_all += 1
                self._refused[topic] += 1
                self._in_all += 1
            else:
                cut.add(topic)
                if not (before := sum(one.topic == topic for one in left)):
                    self._block(Blocked(topic, row.id, why[row.id]))
                elif (apart := self._apart.get(topic)) is not None:  # its next batch ends there, too
                    apart.size, apart.suspect, apart.failed = before, None, 0
        for topic in vouched:  # what lies between the refused rows was as good as taken
            self._refused[topic], self._in_all = row_of[topic], row_of_all
        self._unblock(refused)
        return refused, left

    def _unblock(self, refused: Collection[int]) -> None:
        for one in self._apart.values():
            if one.blocked is not None and one.blocked.row in refused:
                one.blocked = None

    def name(self, topics: Mapping[str, int]) -> None:
        """Kafka names rows of these topics: they are sent apart, and their size is not to blame.

        The next batch of each is the rows that are left of this one: with new ones, there would be new refusals.

        :param topics: how many rows are left.
        """
        for topic, left in topics.items():
            one = self._apart.setdefault(topic, _TopicApart(self._most, calm=1))
            one.size, one.ceiling = left or self._most, self._most

    def suspect(
        self, rows: Sequence[RowOfTopic], suspected: Mapping[int, str], *, is_proven: bool
    ) -> Mapping[int, str]:
        """One of these rows is to blame, or more, or their size together; return which are set aside.

        So their topics are sent apart, up to the first suspect, and this one alone. If that is refused then, it is to
        blame; but if it is not proven that neither the producer nor another relay is, it is tried twice.
        """
        refused: dict[int, str] = {}
        for topic in dict.fromkeys(row.topic for row in rows if row.id in suspected):
            mine = [row for row in rows if row.topic == topic]  # what another topic has done is no word on these
            ids = [row.id for row in mine if row.id in suspected]
            why = {id_: suspected[id_] for id_ in ids}
            one = self._apart.setdefault(topic, _TopicApart(self._most))
            one.calm = _CALM
            in_a_row = max(self._refused[topic], self._in_all)
            is_last = len(rows) == 1 and is_proven
            if one.blocked is not None and (is_last or in_a_row >= MOST_IN_A_ROW):
                refused |= self.refuse(mine, why)[0]
            elif len(rows) > 1 or one.suspect != ids[0]:
                one.suspect, one.failed = ids[0] if len(ids) == 1 else None, 0
                last = ids[max(1, len(ids) // 2) - 1]  # in the end, halving finds one row among them all
                one.size = one.ceiling = max(1, sum(row.id <= last for row in mine))
            else:
                one.failed += 1
                if one.failed > (0 if is_proven else 1):
                    # Large batches again, in which Kafka can name rows, unless it takes nothing.
                    one.size = 1 if self._refused[topic] else self._most
                    one.suspect, one.failed, one.ceiling = None, 0, self._most
                    refused |= self.refuse(mine, why)[0]
                else:
                    one.due = self._clock() + TRIAL
        return refused

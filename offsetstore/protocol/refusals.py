"""What Kafka refuses: which rows of the outbox are set aside, and which topics are sent by themselves, or wait.

Keys do not cross topics, so rows of one topic may pass another's; within a topic no row overtakes another. A topic with
a suspected row is sent *apart* from the others, in its own batches, until its rows pass again. If Kafka accepts none of
its rows, it is *blocked*: its rows wait, and the first one is tried now and then (decision 0095).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol, TypeVar

MOST_IN_A_ROW: Final = 100
"""How many rows in a row are set aside: more without an accepted one look like a bug or an outage."""

TRIAL: Final = 2.0
"""Seconds between two trials of a row, or two looks at Kafka's mark."""

_CALM: Final = 100  # batches of a topic, without a refusal, until it goes with the others again
_BLOCKED: Final = 10.0  # seconds between two trials of blocked topics, one topic each time
# Short at first: one question to Kafka is about all missing topics, and a topic may be created a moment later.
_LACKING: Final = 1.0  # seconds, doubled each time up to `_BLOCKED`
_TOLD: Final = 60.0  # seconds until a topic is reported as blocked again


class RowOfTopic(Protocol):
    """The part of a row of the outbox that is needed here."""

    @property
    def id(self) -> int:
        """Rows are sent in the order of their ids."""
        ...

    @property
    def topic(self) -> str:
        """The topic that the row is for."""
        ...


_R = TypeVar("_R", bound=RowOfTopic)


class Blocked(NamedTuple):
    """A topic whose rows wait, the id of the first of them, and why."""

    topic: str
    row: int
    why: str


@dataclass(slots=True)
class _TopicApart:
    """A topic that is sent by itself.

    :param size: rows of its next batch, at most ``ceiling``.
    :param calm: how many more batches without a refusal until the ceiling rises, or the topic goes with the others.
    :param suspect: the row that is sent alone, after all before it; ``failed`` is how often Kafka has refused it then.
    :param due: when it is looked at next.
    :param wait: seconds until Kafka is asked again whether it is missing.
    :param blocked: its first row, and why it is refused; ``None`` if its rows are sent.
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
    """The topics of the outbox of which Kafka has refused something.

    :param most: rows of one batch.
    """

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._clock = clock
        self._apart: dict[str, _TopicApart] = {}
        self._refused = Counter[str]()  # rows of each topic, since Kafka has taken one of it
        self._in_all = 0  # the same for all topics together
        # Both, when the database last had them: after an error the rows since then are refused, and counted, again.
        self._recorded = self._refused.copy(), 0
        self._had_turn = False
        self._told: dict[str, float] = {}
        self._next_trial = 0.0

    @property
    def apart(self) -> Collection[str]:
        return self._apart.keys()

    @property
    def blocked(self) -> list[Blocked]:
        return [apart.blocked for apart in self._apart.values() if apart.blocked is not None]

    @property
    def has_trials(self) -> bool:
        """Whether a row is on trial and waits for the next one."""
        return any(apart.blocked is None and apart.suspect is not None for apart in self._apart.values())

    def recorded(self) -> None:
        """Call it when the database has what was refused."""
        self._recorded = self._refused.copy(), self._in_all

    def begin(self) -> None:
        """Call it when a machine begins, perhaps after an error."""
        self._refused, self._in_all = self._recorded[0].copy(), self._recorded[1]

    def untold(self) -> list[Blocked]:
        """The blocked topics that are to be reported: each at most once a minute."""
        now, waiting = self._clock(), self.blocked
        due = [blocked for blocked in waiting if now - self._told.get(blocked.topic, -_TOLD) >= _TOLD]
        self._told = {blocked.topic: now if blocked in due else self._told[blocked.topic] for blocked in waiting}
        return due

    def turn(self) -> str | None:
        """The topic whose rows are next; ``None`` for all topics that are not apart."""
        # Every other time, so that other topics don't wait for the rounds of one that is apart (decision 0095).
        self._had_turn = not self._had_turn
        if self._had_turn:
            return None
        return next(iter(self._due()), None)

    @property
    def is_any_due(self) -> bool:
        return bool(self._due())

    def _due(self) -> list[str]:
        now = self._clock()
        due = [
            (apart.due, topic)
            for topic, apart in self._apart.items()
            if apart.due <= now and not apart.is_lacking and (apart.blocked is None or self._next_trial <= now)
        ]
        return [topic for _, topic in sorted(due)]

    def lacking(self) -> list[str]:
        """The topics that were missing, or might not be written to, about which Kafka is to be asked again."""
        now = self._clock()
        return [topic for topic, apart in self._apart.items() if apart.is_lacking and apart.due <= now]

    def most(self, topic: str) -> int:
        """How many rows to look for in a topic that is apart."""
        apart = self._apart[topic]
        if apart.blocked is not None:
            self._next_trial = self._clock() + _BLOCKED
            return 1
        return apart.size if apart.suspect is None else self._most

    def batch(self, topic: str, found: Sequence[_R]) -> Sequence[_R]:
        """Choose the rows that are sent next: all before the suspect, or the suspect alone."""
        # The topic goes with the others again. It may have rows behind the hundred thousand that are looked through.
        if not found:
            del self._apart[topic]
            return found
        apart = self._apart[topic]
        apart.due = self._clock()
        # The suspect is gone: a person has set it aside.
        if apart.suspect is not None and found[0].id > apart.suspect:
            apart.suspect, apart.failed = None, 0
        if apart.suspect is None:
            return found[: apart.size]
        if found[0].id == apart.suspect:
            return found[:1]
        return [row for row in found if row.id < apart.suspect]

    def _forgive(self, topic: str, apart: _TopicApart) -> None:
        apart.blocked = None
        apart.calm -= 1
        if apart.calm > 0 or apart.suspect is not None:
            return
        if apart.ceiling >= self._most:
            del self._apart[topic]
        # The ceiling is the size that halving has found to fit ``max.message.bytes``: a larger one is tried only after
        # many batches (decision 0095).
        apart.ceiling, apart.calm = min(self._most, 2 * apart.ceiling), _CALM

    def passed(self, rows: Sequence[RowOfTopic]) -> None:
        """Kafka has taken these rows."""
        self._in_all = 0
        ids = {row.id for row in rows} if self._apart else ()
        for topic in {row.topic for row in rows}:
            self._refused.pop(topic, None)
            if (apart := self._apart.get(topic)) is None:
                continue
            if apart.suspect in ids:
                apart.suspect, apart.failed = None, 0
            if apart.suspect is None:
                apart.size = min(apart.ceiling, 2 * apart.size)
            self._forgive(topic, apart)
        self.recorded()
        # A topic that was only blocked because nothing passed at all is tried again.
        for topic, apart in self._apart.items():
            is_tried = apart.blocked is None or apart.is_lacking or apart.suspect is not None
            if not is_tried and self._refused[topic] < MOST_IN_A_ROW:
                apart.due = self._next_trial = 0.0

    def found_lacking(self, rows: Sequence[RowOfTopic], lacking: Mapping[str, str]) -> None:
        """These topics are missing, or may not be written to."""
        # No row is to blame, and none is set aside: a wrong principal empties nothing (decision 0095).
        first = {row.topic: row.id for row in reversed(rows)}
        for topic, why in lacking.items():
            self._block(Blocked(topic, first[topic], why), is_lacking=True)

    def asked_again(self, lacking: Mapping[str, str]) -> str | None:
        """Keep those of the topics in `lacking` that still are; the others go with the rest again.

        :return: one that still is, in turns: look for a row of it, since all may be gone.
        """
        due = self.lacking()
        for topic in due:
            apart = self._apart[topic]
            if topic not in lacking:
                del self._apart[topic]
                continue
            apart.wait = min(_BLOCKED, 2 * apart.wait)
            apart.due = self._clock() + apart.wait
        looked = next((topic for topic in due if topic in lacking), None)
        # To the end of the dictionary, so that each has its turn.
        if looked is not None:
            self._apart[looked] = self._apart.pop(looked)
        return looked

    def forget(self, topic: str) -> None:
        """The topic seems to have no rows, and goes with the rest again."""
        # If it has some further behind, Kafka is asked about it again before they are recorded.
        del self._apart[topic]

    def _block(self, blocked: Blocked, *, is_lacking: bool = False) -> None:
        apart = self._apart.setdefault(blocked.topic, _TopicApart(self._most))
        apart.blocked, apart.is_lacking = blocked, is_lacking
        apart.suspect, apart.failed, apart.size, apart.calm = None, 0, 1, _CALM
        apart.due = self._clock() + (apart.wait if is_lacking else _BLOCKED)

    def refuse(
        self, rows: Sequence[_R], why: Mapping[int, str], vouched: Collection[str] = ()
    ) -> tuple[Mapping[int, str], Sequence[_R]]:
        """Return which of the rows with a reason are set aside, and the rows that are left to be sent.

        After a hundred refused in a row, only the rows before are sent; if there are none, the topic is blocked.

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
            # A row that is about to be sent interrupts the count, but only back to what was refused before this batch:
            # so while Kafka takes none, at most one batch's rows are set aside (decision 0095).
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
                if not (before := sum(earlier.topic == topic for earlier in left)):
                    self._block(Blocked(topic, row.id, why[row.id]))
                # Its next batch ends there, too.
                elif (apart := self._apart.get(topic)) is not None:
                    apart.size, apart.suspect, apart.failed = before, None, 0
        # The rows between the refused ones were as good as taken.
        for topic in vouched:
            self._refused[topic], self._in_all = row_of[topic], row_of_all
        self._unblock(refused)
        return refused, left

    def _unblock(self, refused: Collection[int]) -> None:
        for apart in self._apart.values():
            if apart.blocked is not None and apart.blocked.row in refused:
                apart.blocked = None

    def name(self, topics: Mapping[str, int]) -> None:
        """Kafka has named refused rows of these topics: they are sent apart, and their size is not to blame.

        :param topics: how many rows are left of each in this batch.
        """
        for topic, left in topics.items():
            # Apart for one batch only, so that other topics don't wait for its rounds. That batch is what is left of
            # this one: new rows would bring new refusals (decision 0095).
            apart = self._apart.setdefault(topic, _TopicApart(self._most, calm=1))
            apart.size, apart.ceiling = left or self._most, self._most

    def suspect(
        self, rows: Sequence[RowOfTopic], suspected: Mapping[int, str], *, is_proven: bool
    ) -> Mapping[int, str]:
        """One or more of these rows are to blame, or their size together; return which are set aside.

        So their topics are sent apart: the rows before the first suspect, then the suspect alone. If it is refused
        then, it is to blame.

        :param is_proven: whether neither the producer nor another relay can be to blame; if not, the suspect is tried
            twice.
        """
        refused: dict[int, str] = {}
        for topic in dict.fromkeys(row.topic for row in rows if row.id in suspected):
            # What another topic has done says nothing about these.
            mine = [row for row in rows if row.topic == topic]
            ids = [row.id for row in mine if row.id in suspected]
            why = {id_: suspected[id_] for id_ in ids}
            apart = self._apart.setdefault(topic, _TopicApart(self._most))
            apart.calm = _CALM
            in_a_row = max(self._refused[topic], self._in_all)
            is_last = len(rows) == 1 and is_proven
            if apart.blocked is not None and (is_last or in_a_row >= MOST_IN_A_ROW):
                refused |= self.refuse(mine, why)[0]
            elif len(rows) > 1 or apart.suspect != ids[0]:
                apart.suspect, apart.failed = ids[0] if len(ids) == 1 else None, 0
                # Half of the suspects at a time: in the end, that finds one row among them all, or the size that the
                # topic's ``max.message.bytes`` allows (decision 0095).
                last = ids[max(1, len(ids) // 2) - 1]
                apart.size = apart.ceiling = max(1, sum(row.id <= last for row in mine))
            else:
                apart.failed += 1
                if apart.failed > (0 if is_proven else 1):
                    # Large batches again, in which Kafka can name rows, unless it takes nothing.
                    apart.size = 1 if self._refused[topic] else self._most
                    apart.suspect, apart.failed, apart.ceiling = None, 0, self._most
                    refused |= self.refuse(mine, why)[0]
                else:
                    apart.due = self._clock() + TRIAL
        return refused

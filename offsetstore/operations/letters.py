"""Dead letters for people: lists and decisions.

A decision locks the letters, in their order, and writes one line into the group's history: how many there are, how they
were chosen, who decided and why. Each letter's row has the last decision about it.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Final, TypeAlias, cast

from offsetstore.errors import ConfigurationError, LetterSettled, PayloadMissing, UnknownLetter
from offsetstore.offsets import MAX_OFFSET, Token, TopicPartition, whole
from offsetstore.operations.operation import By, History, Operation, Plan, digest_of, expect_group, known
from offsetstore.operations.people import ask, people
from offsetstore.operations.stored_letters import (
    LetterCursor,
    LetterFilter,
    choose_letters,
    count_without_payload,
    decide_letters,
    erase_letters,
    find_letter,
    list_letters,
    prunable,
    prune_letters,
)
from offsetstore.postgres.session import PostgresSession
from offsetstore.protocol.arguments import as_offset, check_seconds, check_text, check_whole
from offsetstore.protocol.database import Database, EventName, GroupRow, Session
from offsetstore.protocol.letters import (
    FINAL,
    OPEN,
    PAYLOADS,
    STATES,
    ChosenLetter,
    Letter,
    LetterKey,
    LetterState,
    PayloadState,
)
from offsetstore.text import command

MOST: Final = 10_000
"""The default limit of letters for one decision."""
# Of keys, values and headers: a page is held in memory.
_PAGE_BYTES: Final = 64 << 20
_INTERVAL: Final = 0.5  # seconds between two looks at letters that are to be replayed
_NAMED: Final = 20  # records that a line of the history names
# Subtracted from a date, more would leave the calendar.
_LONGEST: Final = timedelta(days=365_000)

Named: TypeAlias = "Letter | LetterKey | Iterable[Letter | LetterKey]"
"""One letter, or several."""

Which: TypeAlias = "Named | LetterFilter"
"""Named letters, or all letters that match a filter."""


@dataclass(frozen=True, slots=True)
class LetterPage:
    """A page of a list. ``next`` is the ``after`` of the next page, ``None`` on the last page."""

    letters: tuple[Letter, ...]
    next: str | None


@dataclass(frozen=True, slots=True)
class LettersDecided(Plan):
    """What a decision did; for a dry run, what it would have done to the letters at that moment.

    :param chosen: the letters that were chosen, as they were before, in the order in which they are replayed.
    :param decision: ``"replay"``, ``"discard"`` or ``"erase"``, as in the history.
    :param is_forced: whether letters are replayed even if a job has overtaken them.
    :param owner: the group's last claim.
    :param more: whether more letters match than the limit allows.
    :param without_payload: how many letters match but can't be replayed, since their records are not kept.
    """

    group: str
    decision: str
    is_forced: bool
    chosen: Mapping[LetterKey, ChosenLetter] = field(repr=False)
    owner: GroupRow = field(repr=False, compare=False)
    more: bool = False
    without_payload: int = 0

    @property
    def letters(self) -> tuple[LetterKey, ...]:
        """The letters that were chosen."""
        return tuple(self.chosen)

    @property
    def overtaken(self) -> int:
        """How many letters of a forced replay a job has overtaken.

        It may have written later records of their keys, whose rows the replay may replace.
        """
        return sum(letter.is_overtaken for letter in self.chosen.values())

    @property
    def is_empty(self) -> bool:
        """Whether no letters match."""
        return not self.chosen


@dataclass(frozen=True, slots=True)
class LettersPruned(Plan):
    """How many letters were deleted, or would be; ``more`` is as for `LettersDecided`.

    :param before: the time before which they were settled.
    :param token: of the group's last claim.
    :param keys: the letters; no other is deleted.
    """

    group: str
    count: int
    more: bool
    before: datetime
    token: Token
    keys: tuple[LetterKey, ...] = field(default=(), repr=False, compare=False)

    @property
    def is_empty(self) -> bool:
        """Whether there are no such letters."""
        return not self.count


def read_page(
    database: Database,
    group: str,
    which: LetterFilter,
    *,
    after: str | None,
    limit: int,
    contents: bool,
    within: int | None,
) -> LetterPage:
    """Read a page of the list; see `OffsetStore.letters`."""
    check_limits(limit, within)
    if within is not None and contents:
        raise ConfigurationError("within is for lists of dead letters without their contents")
    cursor = None if after is None else LetterCursor.parse(after)
    max_bytes = _PAGE_BYTES if contents else None
    found, following = ask(
        database,
        lambda session: list_letters(
            session, group, which, after=cursor, limit=limit, max_bytes=max_bytes, within=within
        ),
    )
    return LetterPage(tuple(found), None if following is None else str(following))


def read_letter(database: Database, group: str, key: LetterKey, *, contents: bool) -> Letter:
    """Read one letter; see `OffsetStore.letter`."""
    key = _key_of(key)

    def look(session: PostgresSession) -> Letter:
        if (found := find_letter(session, group, key, contents=contents)) is None:
            known(session, group)
            raise _unknown(group, key)
        return found

    return ask(database, look)


def wait_for_replay(database: Database, group: str, which: Named, *, seconds: float) -> dict[LetterState, int]:
    """Wait until no letter is requested any more; see `OffsetStore.wait_for_replay`."""
    check_seconds("seconds", seconds, or_zero=True)
    keys = keys_of(which)
    deadline = time.monotonic() + seconds

    def look(session: PostgresSession) -> Mapping[LetterKey, ChosenLetter]:
        found = choose_letters(session, group, keys, limit=len(keys))
        if len(found) == len(keys):
            return found
        known(session, group)
        # A claim that learns the topic's id writes it into letters without one: they stay the same (decision 0061).
        asked = [key if key in found else key._replace(topic_id=key.topic_id or None) for key in keys]
        found = choose_letters(session, group, asked, limit=len(asked))
        _expect_all(group, asked, found)
        return found

    while True:
        states: dict[LetterState, int] = dict(Counter(letter.state for letter in ask(database, look).values()))
        left = deadline - time.monotonic()
        if "requested" not in states or left <= 0:
            return states
        time.sleep(min(_INTERVAL, left))


@dataclass(frozen=True)
class _Letters(Operation[LettersDecided]):
    """A decision about letters that are named, or chosen by a filter."""

    group: str
    which: Which
    limit: int = field(default=MOST, kw_only=True)

    def __post_init__(self) -> None:
        expect_group(self.group)
        check_limits(self.limit)
        if isinstance(self.which, LetterFilter):
            return
        named = keys_of(self.which)
        if not named:
            raise ConfigurationError("a decision names no dead letters", expected="a letter, or a filter")
        if len(named) > self.limit:
            raise ConfigurationError(
                "a decision names more dead letters than its limit allows", found=len(named), expected=self.limit
            )
        object.__setattr__(self, "which", named)

    @property
    @abstractmethod
    def kind(self) -> tuple[EventName, str]:
        """The event of the history, and what its reason says is done to the letters."""

    @property
    @abstractmethod
    def fit(self) -> tuple[tuple[LetterState, ...], tuple[PayloadState, ...]]:
        """The states of letters, and of payloads, that a filter is limited to."""

    @abstractmethod
    def check(self, key: LetterKey, letter: ChosenLetter) -> None:
        """Refuse a named letter to which the decision can't be applied."""

    @abstractmethod
    def change(self, session: PostgresSession, chosen: Mapping[LetterKey, ChosenLetter], by: By) -> None:
        """Change the letters, which are locked."""

    @property
    def counts_overtaken(self) -> bool:
        # The dashboard's role may not read what this takes.
        return False

    def plan(self, session: Session) -> LettersDecided:
        return self._choose(people(session), known(session, self.group), lock=False)

    def locked(self, session: Session) -> Iterator[LettersDecided]:
        # The group's row is locked before any letter, as in every decision.
        session.share_group(self.group)
        yield self._choose(people(session), known(session, self.group), lock=True)

    def _choose(self, session: PostgresSession, owner: GroupRow, *, lock: bool) -> LettersDecided:
        group, overtaken, which = self.group, self.counts_overtaken, self.which
        if not isinstance(which, LetterFilter):
            named = keys_of(which)
            chosen = choose_letters(session, group, named, limit=len(named), lock=lock, overtaken=overtaken)
            _expect_all(group, named, chosen)
            for key, letter in chosen.items():
                self.check(key, letter)
            return self._plan(owner, chosen)
        fit, payloads = self.fit
        states = tuple(state for state in fit if not which.states or state in which.states)
        if not states:
            return self._plan(owner, {})
        which = replace(which, states=states)
        found = choose_letters(
            session, group, which, limit=self.limit + 1, payloads=payloads, lock=lock, overtaken=overtaken
        )
        chosen = dict([*found.items()][: self.limit])
        lost = count_without_payload(session, group, which) if payloads == ("kept",) else 0
        return self._plan(owner, chosen, more=len(found) > self.limit, lost=lost)

    def _plan(
        self, owner: GroupRow, chosen: Mapping[LetterKey, ChosenLetter], *, more: bool = False, lost: int = 0
    ) -> LettersDecided:
        (event, words), forced = self.kind, self.counts_overtaken
        digest = digest_of(words, self.group, [*chosen.items()])
        return LettersDecided(self.group, event, forced, chosen, owner, more, lost, digest=digest)

    def write(self, session: Session, plan: LettersDecided, by: By) -> History:
        self.change(people(session), plan.chosen, by)
        keys, (event, words) = plan.letters, self.kind
        if isinstance(self.which, LetterFilter):
            how = str(self.which)
        else:
            others = len(keys) - _NAMED
            how = ", ".join(map(str, keys[:_NAMED])) + (f" and {others} more" if others > 0 else "")
        line = by.event(event, plan.owner.token, _in_words(len(keys), words, how, by.reason))
        partitions = {key.topic_partition for key in keys}
        if len(partitions) == 1:
            [tp], offsets = partitions, [key.offset for key in keys]
            line = replace(line, topic_partition=tp, from_offset=min(offsets), to_offset=max(offsets) + 1)
        return {self.group: [line]}


@dataclass(frozen=True)
class ReplayLetters(_Letters):
    """Have letters replayed; see `OffsetStore.request_replay`."""

    forced: bool = field(default=False, kw_only=True)

    @property
    def kind(self) -> tuple[EventName, str]:
        return "replay", "to be replayed, forced" if self.forced else "to be replayed"

    @property
    def fit(self) -> tuple[tuple[LetterState, ...], tuple[PayloadState, ...]]:
        return ("dead",), ("kept",)

    @property
    def counts_overtaken(self) -> bool:
        return self.forced

    def check(self, key: LetterKey, letter: ChosenLetter) -> None:
        _expect_open(key, letter, "replayed")
        if letter.payload_state != "kept":
            raise PayloadMissing(
                f"the dead letter of offset {key.offset} holds no record that could be replayed",
                topic_partition=key.topic_partition,
                found=f"it was {letter.payload_state}",
            )

    def change(self, session: PostgresSession, chosen: Mapping[LetterKey, ChosenLetter], by: By) -> None:
        decide_letters(session, self.group, chosen, "requested", actor=by.who, reason=by.reason, forced=self.forced)


@dataclass(frozen=True)
class DiscardLetters(_Letters):
    """Give letters up, and perhaps erase them; see `OffsetStore.discard`."""

    erase: bool = field(default=False, kw_only=True)

    @property
    def kind(self) -> tuple[EventName, str]:
        return ("erase", "erased") if self.erase else ("discard", "discarded")

    @property
    def fit(self) -> tuple[tuple[LetterState, ...], tuple[PayloadState, ...]]:
        # Erased letters would be chosen again each time, and take the place of others under the limit.
        return (STATES, ("kept", "left out")) if self.erase else (OPEN, PAYLOADS)

    def check(self, key: LetterKey, letter: ChosenLetter) -> None:
        # Any letter can be erased.
        if not self.erase:
            _expect_open(key, letter, "discarded", "If its contents have to go, erase it.")

    def change(self, session: PostgresSession, chosen: Mapping[LetterKey, ChosenLetter], by: By) -> None:
        if still_open := [key for key, letter in chosen.items() if letter.state in OPEN]:
            decide_letters(session, self.group, still_open, "discarded", actor=by.who, reason=by.reason)
        if self.erase:
            erase_letters(session, self.group, chosen)


@dataclass(frozen=True)
class PruneLetters(Operation[LettersPruned]):
    """Delete letters that are settled; see `OffsetStore.prune`."""

    group: str
    older_than: timedelta
    states: tuple[LetterState, ...] = FINAL
    limit: int = MOST

    def __post_init__(self) -> None:
        expect_group(self.group)
        check_limits(self.limit)
        if self.older_than < timedelta(0):
            raise ConfigurationError("older_than must not be negative", found=self.older_than)
        if self.older_than > _LONGEST:
            raise ConfigurationError("older_than is too long", found=self.older_than, expected=f"at most {_LONGEST}")
        if not self.states or not set(self.states) <= set(FINAL):
            raise ConfigurationError(
                "only dead letters that are settled can be deleted",
                found=", ".join(self.states) or "no state",
                expected=", ".join(FINAL),
                next_step="Discard a letter first, with a reason.",
            )

    def plan(self, session: Session) -> LettersPruned:
        before = session.now() - self.older_than
        keys = prunable(people(session), self.group, self.states, before, limit=self.limit + 1)
        return self._planned(session, before, keys)

    def locked(self, session: Session) -> Iterator[LettersPruned]:
        # Shared, since a job's idle work and replays hold the group's row for as long as they take. Two prunes wait for
        # each other at the letters (decision 0063).
        session.share_group(self.group)
        before = session.now() - self.older_than
        keys = prunable(people(session), self.group, self.states, before, limit=self.limit + 1, lock=True)
        yield self._planned(session, before, keys)

    def _planned(self, session: Session, before: datetime, found: Sequence[LetterKey]) -> LettersPruned:
        # Only whether letters are left over counts, and not how many: their number grows by itself.
        token, keys, more = known(session, self.group).token, tuple(found[: self.limit]), len(found) > self.limit
        age = self.older_than.total_seconds()
        digest = digest_of("prune", self.group, sorted(self.states), age, self.limit, keys, more)
        return LettersPruned(self.group, len(keys), more, before, token, keys, digest=digest)

    def write(self, session: Session, plan: LettersPruned, by: By) -> History:
        prune_letters(people(session), self.group, plan.keys)
        how = f"{', '.join(self.states)} before {plan.before.isoformat(timespec='seconds')}"
        return {self.group: [by.event("prune", plan.token, _in_words(plan.count, "deleted", how, by.reason))]}


def _in_words(count: int, done: str, how: str, reason: str) -> str:
    letters = "1 dead letter" if count == 1 else f"{count} dead letters"
    return f"{letters} {done}{f' ({how})' if how else ''}: {reason}"


def _expect_open(key: LetterKey, letter: ChosenLetter, done: str, next_step: str | None = None) -> None:
    if letter.state not in OPEN:
        raise LetterSettled(
            f"the dead letter of offset {key.offset} can't be {done}",
            topic_partition=key.topic_partition,
            found=letter.state,
            expected=" or ".join(OPEN),
            next_step=next_step,
        )


def keys_of(which: object) -> tuple[LetterKey, ...]:
    """Return the keys of one letter or several, each once.

    :raises TypeError: see `_key_of`.
    """
    several: Any = which
    if isinstance(which, LetterKey) or not isinstance(which, Iterable):
        several = (which,)
    return tuple(dict.fromkeys(map(_key_of, several)))


def _key_of(given: object) -> LetterKey:
    """Return the key of a letter.

    :raises TypeError: it is no letter.
    :raises ConfigurationError: its offset, or a text, can't be a letter's.
    """
    # A mistake of the caller's, so it is found before the database is asked, in our words (decision 0061).
    key: Any = given.key if isinstance(given, Letter) else given
    if not isinstance(key, LetterKey):
        raise TypeError(
            f"not a dead letter: found {type(given).__name__}; expected a Letter or a LetterKey, several of them, or a "
            "LetterFilter. Of a LetterPage pass its letters, of an ErrorGroup its which."
        )
    tp, offset, topic_id = cast("tuple[Any, ...]", key)
    if not isinstance(tp, TopicPartition) or whole(offset) is None or not isinstance(topic_id or "", str):
        expected = "a TopicPartition, its offset, and a topic's id or None"
        raise TypeError(f"not a dead letter: found {key!r}; expected {expected}")
    check_text("the topic of a dead letter", tp.topic)
    check_text("the topic id of a dead letter", topic_id or "")
    return LetterKey(tp, as_offset("the offset of a dead letter", offset, most=MAX_OFFSET), topic_id)


def _expect_all(group: str, asked: Collection[LetterKey], found: Collection[LetterKey]) -> None:
    records = {key[:2] for key in found}
    for key in asked:
        if (key[:2] not in records) if key.topic_id is None else (key not in found):
            raise _unknown(group, key)


def _unknown(group: str, key: LetterKey) -> UnknownLetter:
    of_topic = f" and topic id {key.topic_id!r}" if key.topic_id is not None else ""
    return UnknownLetter(
        f"the group {group!r} has no dead letter of offset {key.offset}{of_topic}",
        topic_partition=key.topic_partition,
        next_step="Correct topic, partition and offset; "
        f"`{command('dead-letters', 'list', '-g', group, schema=None)}` shows the group's letters.",
    )


def check_limits(limit: int, within: int | None = None) -> None:
    """Refuse limits below 1.

    :raises ConfigurationError: naming the argument.
    """
    check_whole("limit", limit, "dead letters", least=1)
    if within is not None:
        check_whole("within", within, "dead letters", least=1)

"""Dead letters for people: lists, and what is decided about them.

A decision locks the letters, in their order, and writes one line into the group's history: how many they are, how they
were chosen, who decided it and why. Each letter's own row says the same of the last decision about it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final, TypeAlias, cast

from offsetstore.errors import ConfigurationError, LetterSettled, PayloadMissing, UnknownLetter
from offsetstore.offsets import MAX_OFFSET, Token, TopicPartition, whole
from offsetstore.operations.admin import Decision, known
from offsetstore.operations.plans import digest_of, expect_plan
from offsetstore.protocol.database import Database, HistoryEvent, Session
from offsetstore.protocol.letters import FINAL, OPEN, PAYLOADS, Letter, LetterKey, PayloadState, State
from offsetstore.protocol.numbers import as_offset, check_seconds, check_whole
from offsetstore.protocol.stored_letters import STATES, ChosenLetter, ErrorGroup, LetterCursor, LetterFilter
from offsetstore.protocol.texts import check_text
from offsetstore.store.sessions import read

MOST: Final = 10_000
"""Letters that one call decides about, unless it is told another limit."""
_PAGE_BYTES: Final = 64 << 20
_INTERVAL: Final = 0.5  # seconds between two looks at letters that are to be replayed
_NAMED: Final = 20  # records that a line of the history names

Named: TypeAlias = "Letter | LetterKey | Iterable[Letter | LetterKey]"
"""One letter, or several."""

Which: TypeAlias = "Named | LetterFilter"
"""These letters, or those that fit a filter."""


@dataclass(frozen=True, slots=True)
class LetterPage:
    """A part of a list. ``next`` is the ``after`` of the part that follows, ``None`` if this is the last."""

    letters: tuple[Letter, ...]
    next: str | None


@dataclass(frozen=True, slots=True)
class LettersDecided:
    """What a decision did; for a dry run, what it would have done to the letters at that moment.

    :param letters: those that were chosen, in the order in which they are replayed.
    :param digest: for ``if_plan``.
    :param more: whether more letters fit than the limit allowed.
    :param without_payload: how many letters fit that can't be replayed, since their records are not kept.
    :param overtaken: of a forced replay, how many of the letters a job has overtaken: it has written later records of
        their keys, perhaps, and the replay may replace what these have written.
    :param history: the line that was added; ``None`` for a dry run, and if no letter fits: nothing was written.
    """

    group: str
    letters: tuple[LetterKey, ...]
    digest: str
    more: bool = False
    without_payload: int = 0
    overtaken: int = 0
    history: HistoryEvent | None = None

    @property
    def executed(self) -> bool:
        """Whether anything was written."""
        return self.history is not None


@dataclass(frozen=True, slots=True)
class LettersPruned:
    """How many letters were deleted, or would be; ``more`` and ``history`` as for `LettersDecided`."""

    group: str
    count: int
    more: bool
    history: HistoryEvent | None = None

    @property
    def executed(self) -> bool:
        """Whether anything was deleted."""
        return self.history is not None


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
    """Read a part of the list; see `OffsetStore.letters`."""
    _expect_limit(limit)
    _expect_within(within)
    if within is not None and contents:
        raise ConfigurationError("within is for lists of dead letters without their contents")
    cursor = None if after is None else LetterCursor.parse(after)
    max_bytes = _PAGE_BYTES if contents else None
    found, following = read(
        database,
        lambda session: session.letters(group, which, after=cursor, limit=limit, max_bytes=max_bytes, within=within),
    )
    return LetterPage(tuple(found), None if following is None else str(following))


def read_letter(database: Database, group: str, key: LetterKey, *, contents: bool) -> Letter:
    """Read one letter; see `OffsetStore.letter`."""
    key = _key_of(key)

    def look(session: Session) -> Letter:
        if (found := session.letter(group, key, contents=contents)) is None:
            known(session, group)
            raise _unknown(group, key)
        return found

    return read(database, look)


def wait_for_replay(database: Database, group: str, which: Named, *, seconds: float) -> dict[State, int]:
    """Wait until no letter is requested any more; see `OffsetStore.wait_for_replay`."""
    check_seconds("seconds", seconds, or_zero=True)
    keys = _keys_of(which)
    deadline = time.monotonic() + seconds

    def look(session: Session) -> Mapping[LetterKey, ChosenLetter]:
        found = session.choose_letters(group, keys, limit=len(keys))
        if len(found) == len(keys):
            return found
        known(session, group)
        # A claim that learns the topic's id gives it to the letters that have none.
        asked = [key if key in found else key._replace(topic_id=key.topic_id or None) for key in keys]
        found = session.choose_letters(group, asked, limit=len(asked))
        _expect_all(group, asked, found)
        return found

    while True:
        states: dict[State, int] = dict(Counter(one.state for one in read(database, look).values()))
        left = deadline - time.monotonic()
        if "requested" not in states or left <= 0:
            return states
        time.sleep(min(_INTERVAL, left))


def read_counts(database: Database, group: str, up_to: int | None) -> dict[State, int]:
    """Count the letters; see `OffsetStore.letter_counts`."""
    if up_to is not None:
        check_whole("up_to", up_to, "dead letters", least=1)
    return read(database, lambda session: session.count_letters(group, up_to=up_to))


def read_errors(
    database: Database, group: str, which: LetterFilter, *, limit: int, within: int | None
) -> list[ErrorGroup]:
    """Read the errors; see `OffsetStore.letter_errors`."""
    _expect_limit(limit)
    _expect_within(within)
    return read(database, lambda session: session.letter_errors(group, which, limit=limit, within=within))


@dataclass(frozen=True, slots=True)
class _Action:
    """One kind of decision.

    :param states: the states from which a filter chooses letters; and with what payload.
    :param check: raises if a letter that was named can't be decided about like that.
    :param words: what is done to them, for the history.
    :param overtaken: whether it counts that letters were overtaken.
    """

    event: str
    words: str
    states: tuple[State, ...]
    payloads: tuple[PayloadState, ...]
    check: Callable[[LetterKey, ChosenLetter], None]
    write: Callable[[Session, Mapping[LetterKey, ChosenLetter]], None]
    overtaken: bool = False


@dataclass(frozen=True, slots=True)
class LetterDecision:
    """Who decides about which letters, and why; see `OffsetStore.request_replay` and `OffsetStore.discard`."""

    by: Decision
    which: LetterFilter | tuple[LetterKey, ...]
    limit: int
    dry_run: bool
    if_plan: str | None

    @classmethod
    def of(cls, by: Decision, which: Which, *, limit: int, dry_run: bool, if_plan: str | None) -> LetterDecision:
        """Check the arguments.

        :raises ConfigurationError: naming the argument.
        :raises TypeError: ``which`` is something else.
        """
        _expect_limit(limit)
        if isinstance(which, LetterFilter):
            return cls(by, which, limit, dry_run, if_plan)
        named = _keys_of(which)
        if not named:
            raise ConfigurationError("a decision names no dead letters", expected="a letter, or a filter")
        if len(named) > limit:
            raise ConfigurationError(
                "a decision names more dead letters than its limit allows", found=len(named), expected=limit
            )
        return cls(by, named, limit, dry_run, if_plan)

    def request_replay(self, database: Database, *, forced: bool) -> LettersDecided:
        """Have the letters replayed; see `OffsetStore.request_replay`."""
        by = self.by

        def write(session: Session, chosen: Mapping[LetterKey, ChosenLetter]) -> None:
            session.decide_letters(by.group, chosen, "requested", actor=by.who, reason=by.reason, forced=forced)

        words = "to be replayed, forced" if forced else "to be replayed"
        action = _Action("replay", words, ("dead",), ("kept",), _expect_replayable, write, overtaken=forced)
        return self._decide(database, action)

    def discard(self, database: Database, *, erase: bool) -> LettersDecided:
        """Give the letters up; see `OffsetStore.discard`."""
        by = self.by

        def write(session: Session, chosen: Mapping[LetterKey, ChosenLetter]) -> None:
            if still_open := [key for key, letter in chosen.items() if letter.state in OPEN]:
                session.decide_letters(by.group, still_open, "discarded", actor=by.who, reason=by.reason)
            if erase:
                session.erase_letters(by.group, chosen)

        if erase:  # those that were erased already would be chosen again and again
            action = _Action("erase", "erased", STATES, ("kept", "left out"), _expect_nothing, write)
        else:
            action = _Action("discard", "discarded", OPEN, PAYLOADS, _expect_open, write)
        return self._decide(database, action)

    def _decide(self, database: Database, action: _Action) -> LettersDecided:
        group = self.by.group
        if self.dry_run:

            def look(session: Session) -> LettersDecided:
                known(session, group)
                return self._choose(session, action, lock=False)[0]

            return expect_plan(read(database, look), self.if_plan)
        with self.by.begin(database) as session:
            token = _share(session, group)
            decided, chosen = self._choose(session, action, lock=True)
            expect_plan(decided, self.if_plan)
            if not chosen:
                return decided
            action.write(session, chosen)
            event = self._event(action, token, decided.letters)
            session.append_history(group, [event])
        return replace(decided, history=event)

    def _choose(
        self, session: Session, action: _Action, *, lock: bool
    ) -> tuple[LettersDecided, dict[LetterKey, ChosenLetter]]:
        group = self.by.group
        if not isinstance(self.which, LetterFilter):
            chosen = session.choose_letters(
                group, self.which, limit=len(self.which), lock=lock, overtaken=action.overtaken
            )
            _expect_all(group, self.which, chosen)
            for key, letter in chosen.items():
                action.check(key, letter)
            return self._decided(action, chosen), chosen
        states = tuple(one for one in action.states if not self.which.states or one in self.which.states)
        if not states:
            return self._decided(action, {}), {}
        which = replace(self.which, states=states)
        found = session.choose_letters(
            group, which, limit=self.limit + 1, payloads=action.payloads, lock=lock, overtaken=action.overtaken
        )
        chosen = dict([*found.items()][: self.limit])
        lost = session.count_without_payload(group, which) if action.payloads == ("kept",) else 0
        decided = self._decided(action, chosen)
        return replace(decided, more=len(found) > self.limit, without_payload=lost), chosen

    def _decided(self, action: _Action, chosen: Mapping[LetterKey, ChosenLetter]) -> LettersDecided:
        digest = digest_of(action.words, self.by.group, [*chosen.items()])
        overtaken = sum(one.is_overtaken for one in chosen.values())
        return LettersDecided(self.by.group, tuple(chosen), digest, overtaken=overtaken)

    def _event(self, action: _Action, token: Token, keys: Sequence[LetterKey]) -> HistoryEvent:
        """One line for all: how many, which, and where they are if they are of one partition."""
        if isinstance(self.which, LetterFilter):
            how = str(self.which)
        else:
            others = len(keys) - _NAMED
            how = ", ".join(map(str, keys[:_NAMED])) + (f" and {others} more" if others > 0 else "")
        line = self.by.event(action.event, token, _in_words(len(keys), action.words, how, self.by.reason))
        partitions = {key.topic_partition for key in keys}
        if len(partitions) > 1:
            return line
        [tp], offsets = partitions, [key.offset for key in keys]
        return replace(line, topic_partition=tp, from_offset=min(offsets), to_offset=max(offsets) + 1)


def prune(
    database: Database, by: Decision, *, older_than: timedelta, states: Collection[State], limit: int, dry_run: bool
) -> LettersPruned:
    """Delete letters that are settled; see `OffsetStore.prune`."""
    _expect_limit(limit)
    if older_than < timedelta(0):
        raise ConfigurationError("older_than must not be negative", found=older_than)
    if not states or not set(states) <= set(FINAL):
        raise ConfigurationError(
            "only dead letters that are settled can be deleted",
            found=", ".join(states) or "no state",
            expected=", ".join(FINAL),
            next_step="Discard a letter first, with a reason.",
        )
    if dry_run:

        def look(session: Session) -> int:
            known(session, by.group)
            return session.count_prunable(by.group, states, session.now() - older_than)

        count = read(database, look)
        return LettersPruned(by.group, min(count, limit), count > limit)
    with by.begin(database) as session:
        token = _share(session, by.group)
        before = session.now() - older_than
        count = session.prune_letters(by.group, states, before, limit=limit)
        if not count:
            return LettersPruned(by.group, 0, more=False)
        more = count == limit and session.count_prunable(by.group, states, before) > 0
        how = f"{', '.join(states)} before {before.isoformat(timespec='seconds')}"
        event = by.event("prune", token, _in_words(count, "deleted", how, by.reason))
        session.append_history(by.group, [event])
    return LettersPruned(by.group, count, more, event)


def _share(session: Session, group: str) -> Token:
    """Lock the group's row FOR SHARE, before any letter: it can't be claimed or renamed meanwhile."""
    session.share_group(group)
    return known(session, group).token


def _in_words(count: int, done: str, how: str, reason: str) -> str:
    letters = "1 dead letter" if count == 1 else f"{count} dead letters"
    return f"{letters} {done}{f' ({how})' if how else ''}: {reason}"


def _expect_replayable(key: LetterKey, letter: ChosenLetter) -> None:
    if letter.state not in OPEN:
        raise LetterSettled(
            f"the dead letter of offset {key.offset} can't be replayed",
            topic_partition=key.topic_partition,
            found=letter.state,
            expected=" or ".join(OPEN),
        )
    if letter.payload_state != "kept":
        raise PayloadMissing(
            f"the dead letter of offset {key.offset} holds no record that could be replayed",
            topic_partition=key.topic_partition,
            found=f"it was {letter.payload_state}",
        )


def _expect_open(key: LetterKey, letter: ChosenLetter) -> None:
    if letter.state not in OPEN:
        raise LetterSettled(
            f"the dead letter of offset {key.offset} can't be discarded",
            topic_partition=key.topic_partition,
            found=letter.state,
            expected=" or ".join(OPEN),
            next_step="If its contents have to go, erase it.",
        )


def _expect_nothing(key: LetterKey, letter: ChosenLetter) -> None:
    """Any letter can be erased."""


def _keys_of(which: object) -> tuple[LetterKey, ...]:
    """Name one letter or several, each once.

    :raises TypeError: see `_key_of`.
    """
    several: Any = which
    if isinstance(which, LetterKey) or not isinstance(which, Iterable):
        several = (which,)
    return tuple(dict.fromkeys(map(_key_of, several)))


def _key_of(given: object) -> LetterKey:
    """Name the letter.

    :raises TypeError: it is none; a database would say so in its own words, and memory not at all.
    :raises ConfigurationError: its offset, or a text, is no letter's.
    """
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
    )


def _expect_limit(limit: int) -> None:
    check_whole("limit", limit, "dead letters", least=1)


def _expect_within(within: int | None) -> None:
    if within is not None:
        check_whole("within", within, "dead letters", least=1)

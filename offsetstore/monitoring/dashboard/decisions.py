"""What can be decided on the pages: each decision is read from a form, and planned and carried out by the library."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import ClassVar, Final, Protocol, Self, TypeAlias

from offsetstore.offset_store import OffsetStore
from offsetstore.offsets import MAX_OFFSET, MAX_PARTITION, TopicPartition
from offsetstore.operations.admin import Partitions, PauseDecided, Reset, ResetTarget, ShiftBy
from offsetstore.operations.letters import LettersDecided
from offsetstore.protocol.letters import Cause, LetterKey
from offsetstore.protocol.ports import BrokerOffsets
from offsetstore.protocol.stored_letters import CAUSES, LetterFilter
from offsetstore.text import parse_duration, parse_time

Result: TypeAlias = Reset | LettersDecided | PauseDecided

_WHOLE: Final = re.compile(r"[+-]?[0-9]{1,19}")
_YES: Final = "yes"
_PLAN: Final = "a plan, which writes nothing"

_CAUSES: Final[Mapping[str, Cause]] = {one: one for one in CAUSES}
_OF_ERRORS: Final = tuple(one.name for one in fields(LetterFilter) if one.name not in {"states", "topic", "partition"})


class Invalid(Exception):
    """A field of a form can't be understood; the text is for the one who filled it in."""

    def __init__(self, field: str, text: str) -> None:
        super().__init__(text)
        self.field = field


@dataclass(frozen=True, slots=True)
class Group:
    """What is decided about.

    :param store: for a plan, one whose role only reads is enough; for that of a forced replay, also letters' contents.
    :param kafka_name: its name in Kafka.
    """

    name: str
    kafka_name: str
    store: OffsetStore
    broker: BrokerOffsets


@dataclass(frozen=True, slots=True)
class By:
    """Who decides, why, and whether a live job may be fenced.

    :param if_plan: the digest of the plan that was shown; ``None`` if it need not be the same.
    """

    actor: str
    reason: str
    fence: bool
    if_plan: str | None


class Decision(Protocol):
    """One decision about a group, with all that it needs but the group, and who decides."""

    name: ClassVar[str]
    """In addresses."""

    @classmethod
    def read(cls, given: Mapping[str, str]) -> Self:
        """Read it from the fields of a form, or of an address.

        :raises Invalid: naming the field.
        """
        ...

    def fields(self) -> dict[str, str]:
        """What `read` makes the same decision of, at any time: no field depends on the clock any longer."""
        ...

    def plan(self, on: Group) -> Result:
        """What would happen now. It writes nothing."""
        ...

    def execute(self, on: Group, by: By) -> Result:
        """Do it, and return what was done.

        :raises PlanChanged: that would no longer be ``by.if_plan``.
        """
        ...


@dataclass(frozen=True, slots=True)
class ResetOffsets:
    """Move stored offsets of one topic or all, one partition or all."""

    name: ClassVar[str] = "reset"

    target: ResetTarget
    topic: str | None
    partition: int | None

    @classmethod
    def read(cls, given: Mapping[str, str]) -> Self:
        """See `Decision`. A duration becomes the time that it leads to now."""
        topic, partition = given.get("topic") or None, _partition(given)
        if partition is not None and topic is None:
            raise Invalid("topic", "Name the partition's topic, too.")
        return cls(_target(given.get("to", ""), given.get("value", "").strip()), topic, partition)

    def fields(self) -> dict[str, str]:
        """See `Decision`."""
        match self.target:
            case str():
                found = {"to": self.target}
            case datetime():
                found = {"to": "time", "value": self.target.isoformat()}
            case ShiftBy():
                found = {"to": "shift", "value": str(self.target.offsets)}
            case int():
                found = {"to": "offset", "value": str(self.target)}
        return found | _given(topic=self.topic, partition=self.partition)

    @property
    def _partitions(self) -> Partitions:
        if self.topic is None:
            return "all"
        return {self.topic: None if self.partition is None else [self.partition]}

    def plan(self, on: Group) -> Reset:
        """See `Decision`."""
        return on.store.reset(
            on.name,
            self.target,
            reason=_PLAN,
            partitions=self._partitions,
            broker=on.broker,
            kafka_group=on.kafka_name,
            takeover="refuse",
            dry_run=True,
        )

    def execute(self, on: Group, by: By) -> Reset:
        """See `Decision`."""
        return on.store.reset(
            on.name,
            self.target,
            reason=by.reason,
            actor=by.actor,
            partitions=self._partitions,
            broker=on.broker,
            kafka_group=on.kafka_name,
            takeover="fence" if by.fence else "refuse",
            if_plan=by.if_plan,
        )


@dataclass(frozen=True, slots=True)
class PauseGroup:
    """Pause it."""

    name: ClassVar[str] = "pause"

    until: datetime | None

    @classmethod
    def read(cls, given: Mapping[str, str]) -> Self:
        """See `Decision`. A duration becomes the time that it leads to now."""
        text = given.get("until", "").strip()
        if not text:
            return cls(None)
        now = datetime.now(UTC)
        until = (
            _later("until", text, now, 1) if text.upper().startswith("P") else _time("until", text, "a duration or ")
        )
        if until <= now:
            raise Invalid("until", "That time has passed.")
        return cls(until)

    def fields(self) -> dict[str, str]:
        """See `Decision`."""
        return {} if self.until is None else {"until": self.until.isoformat()}

    def plan(self, on: Group) -> PauseDecided:
        """See `Decision`."""
        return on.store.pause(on.name, until=self.until, reason=_PLAN, dry_run=True)

    def execute(self, on: Group, by: By) -> PauseDecided:
        """See `Decision`."""
        return on.store.pause(on.name, until=self.until, reason=by.reason, actor=by.actor, if_plan=by.if_plan)


@dataclass(frozen=True, slots=True)
class ResumeGroup:
    """End its pause."""

    name: ClassVar[str] = "resume"

    @classmethod
    def read(cls, given: Mapping[str, str]) -> Self:  # noqa: ARG003 - it has no fields
        """See `Decision`."""
        return cls()

    def fields(self) -> dict[str, str]:
        """See `Decision`."""
        return {}

    def plan(self, on: Group) -> PauseDecided:
        """See `Decision`."""
        return on.store.resume(on.name, reason=_PLAN, dry_run=True)

    def execute(self, on: Group, by: By) -> PauseDecided:
        """See `Decision`."""
        return on.store.resume(on.name, reason=by.reason, actor=by.actor, if_plan=by.if_plan)


@dataclass(frozen=True, slots=True)
class ReplayLetters:
    """Have one dead letter replayed, or all of one error."""

    name: ClassVar[str] = "replay"

    which: LetterKey | LetterFilter
    forced: bool

    @classmethod
    def read(cls, given: Mapping[str, str]) -> Self:
        """See `Decision`."""
        return cls(_which(given), given.get("forced") == _YES)

    def fields(self) -> dict[str, str]:
        """See `Decision`."""
        return _which_fields(self.which) | _given(forced=_YES if self.forced else None)

    def plan(self, on: Group) -> LettersDecided:
        """See `Decision`."""
        return on.store.request_replay(on.name, self.which, reason=_PLAN, forced=self.forced, dry_run=True)

    def execute(self, on: Group, by: By) -> LettersDecided:
        """See `Decision`."""
        return on.store.request_replay(
            on.name, self.which, reason=by.reason, actor=by.actor, forced=self.forced, if_plan=by.if_plan
        )


@dataclass(frozen=True, slots=True)
class DiscardLetters:
    """Give one dead letter up, or all of one error."""

    name: ClassVar[str] = "discard"

    which: LetterKey | LetterFilter
    erase: bool

    @classmethod
    def read(cls, given: Mapping[str, str]) -> Self:
        """See `Decision`."""
        return cls(_which(given), given.get("erase") == _YES)

    def fields(self) -> dict[str, str]:
        """See `Decision`."""
        return _which_fields(self.which) | _given(erase=_YES if self.erase else None)

    def plan(self, on: Group) -> LettersDecided:
        """See `Decision`."""
        return on.store.discard(on.name, self.which, reason=_PLAN, erase=self.erase, dry_run=True)

    def execute(self, on: Group, by: By) -> LettersDecided:
        """See `Decision`."""
        return on.store.discard(
            on.name, self.which, reason=by.reason, actor=by.actor, erase=self.erase, if_plan=by.if_plan
        )


_KINDS: Final[tuple[type[Decision], ...]] = (ResetOffsets, PauseGroup, ResumeGroup, ReplayLetters, DiscardLetters)
DECISIONS: Final = {kind.name: kind for kind in _KINDS}


def premise(decision: Decision, plan: Result) -> str:
    """The digest that the plan must still have when it is carried out.

    It is empty for a replay that is not forced, which loses nothing: letters of the error that come meanwhile are
    replayed, too.
    """
    return "" if isinstance(decision, ReplayLetters) and not decision.forced else plan.digest


def names_letters(given: Mapping[str, str]) -> bool:
    """Whether the fields name a letter, or an error: a part of an error may be empty, for letters without it."""
    return "offset" in given or any(name in given for name in _OF_ERRORS)


def _target(to: str, value: str) -> ResetTarget:
    if to in {"earliest", "latest", "current"}:
        if value:
            raise Invalid("value", "Leave this empty: what is chosen above needs no more.")
        return ShiftBy(0) if to == "current" else "earliest" if to == "earliest" else "latest"
    match to:
        case "offset":
            return _number("value", value, MAX_OFFSET)
        case "shift":
            if not _WHOLE.fullmatch(value):
                raise Invalid("value", f"{value!r} is not a number of offsets such as 100 or -100.")
            return ShiftBy(int(value))
        case "time":
            return _time("value", value, "")
        case "duration":
            return _later("value", value, datetime.now(UTC), -1)
        case _:
            raise Invalid("to", "Choose where the offsets are to be moved.")


def _which(given: Mapping[str, str]) -> LetterKey | LetterFilter:
    topic, partition = given.get("topic", "").strip() or None, _partition(given)
    if "offset" in given:
        if topic is None or partition is None:
            name = "topic" if topic is None else "partition"
            raise Invalid(name, "A letter is named by its topic, partition and offset.")
        offset = _number("offset", given["offset"].strip(), MAX_OFFSET)
        return LetterKey(TopicPartition(topic, partition), offset, given.get("topic_id"))
    if not names_letters(given):
        raise Invalid("offset", "Choose an error, or name a letter.")
    cause = _CAUSES.get(given.get("cause", ""))
    if cause is None and "cause" in given:
        raise Invalid("cause", "A dead letter has no such cause.")
    return LetterFilter(
        cause=cause,
        topic=topic,
        partition=partition,
        error_class=given.get("error_class"),
        sqlstate=given.get("sqlstate"),
        table=given.get("table"),
        constraint=given.get("constraint"),
        column=given.get("column"),
    )


def _which_fields(which: LetterKey | LetterFilter) -> dict[str, str]:
    if isinstance(which, LetterKey):
        tp = which.topic_partition
        return _given(topic=tp.topic, partition=tp.partition, offset=which.offset, topic_id=which.topic_id)
    return _given(**{name: getattr(which, name) for name in ("topic", "partition", *_OF_ERRORS)})


def _partition(given: Mapping[str, str]) -> int | None:
    text = given.get("partition", "").strip()
    return _number("partition", text, MAX_PARTITION) if text else None


def _number(field: str, text: str, most: int) -> int:
    number = int(text) if _WHOLE.fullmatch(text) else -1
    if not 0 <= number <= most:
        raise Invalid(field, f"{text!r} is not a number from 0 to {most}.")
    return number


def _time(field: str, text: str, others: str) -> datetime:
    try:
        return parse_time(text, others)
    except ValueError as error:
        raise Invalid(field, str(error)) from None


def _later(field: str, text: str, now: datetime, sign: int) -> datetime:
    try:
        return now + sign * parse_duration(text)
    except ValueError as error:
        raise Invalid(field, str(error)) from None
    except OverflowError:
        raise Invalid(field, f"{text!r} is too long.") from None


def _given(**values: object) -> dict[str, str]:
    return {name: str(value) for name, value in values.items() if value is not None}

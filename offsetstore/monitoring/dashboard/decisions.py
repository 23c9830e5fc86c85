"""What can be decided on the pages: each operation of the library is read from a form, and written into one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias

from offsetstore.offsets import MAX_OFFSET, MAX_PARTITION, TopicPartition
from offsetstore.operations.letters import DiscardLetters, ReplayLetters, Which, keys_of
from offsetstore.operations.operation import Operation, Plan
from offsetstore.operations.pauses import PauseGroup, ResumeGroup
from offsetstore.operations.resets import ResetOffsets, ResetTarget, ShiftBy
from offsetstore.protocol.letters import Cause, LetterKey
from offsetstore.protocol.ports import BrokerOffsets
from offsetstore.protocol.stored_letters import CAUSES, LetterFilter
from offsetstore.text import parse_duration, parse_time

Decision: TypeAlias = Operation[Any]

DECISIONS: Final = ("reset", "pause", "resume", "replay", "discard")
"""Their names, in addresses."""

_WHOLE: Final = re.compile(r"[+-]?[0-9]{1,19}")
_YES: Final = "yes"

_CAUSES: Final[Mapping[str, Cause]] = {one: one for one in CAUSES}
_OF_ERRORS: Final = tuple(one.name for one in fields(LetterFilter) if one.name not in {"states", "topic", "partition"})


class Invalid(Exception):
    """A field of a form can't be understood; the text is for the one who filled it in."""

    def __init__(self, field: str, text: str) -> None:
        super().__init__(text)
        self.field = field


@dataclass(frozen=True, slots=True)
class Answers:
    """What a form does not name.

    :param group: what is decided about.
    :param kafka_group: its name in Kafka.
    :param reason: why, once that was asked.
    :param fence: whether a live job may be fenced.
    """

    group: str
    kafka_group: str
    broker: BrokerOffsets
    reason: str = ""
    fence: bool = False


def read(name: str, given: Mapping[str, str], answers: Answers) -> Decision:
    """Read a decision from the fields of a form, or of an address. A duration becomes the time that it leads to now.

    :raises Invalid: naming the field.
    """
    group = answers.group
    match name:
        case "reset":
            topic, partition = given.get("topic") or None, _partition(given)
            if partition is not None and topic is None:
                raise Invalid("topic", "Name the partition's topic, too.")
            return ResetOffsets(
                group=group,
                target=_target(given.get("to", ""), given.get("value", "").strip()),
                partitions="all" if topic is None else {topic: None if partition is None else [partition]},
                broker=answers.broker,
                kafka_group=answers.kafka_group,
                takeover="fence" if answers.fence else "refuse",
            )
        case "pause":
            return PauseGroup(group, answers.reason, _until(given.get("until", "").strip()))
        case "resume":
            return ResumeGroup(group)
        case "replay":
            return ReplayLetters(group, _which(given), forced=given.get("forced") == _YES)
        case _:
            return DiscardLetters(group, _which(given), erase=given.get("erase") == _YES)


def fields_of(decision: Decision) -> dict[str, str]:
    """What `read` makes the same decision of, at any time: no field depends on the clock any longer."""
    match decision:
        case ResetOffsets():
            return _reset_fields(decision)
        case PauseGroup(until=until):
            return {} if until is None else {"until": until.isoformat()}
        case ResumeGroup():
            return {}
        case ReplayLetters():
            return _which_fields(decision.which) | _given(forced=_YES if decision.forced else None)
        case DiscardLetters():
            return _which_fields(decision.which) | _given(erase=_YES if decision.erase else None)
        case _:
            raise TypeError(f"no form has {decision!r}")


def premise(decision: Decision, plan: Plan) -> str:
    """The digest that the plan must still have when it is carried out.

    It is empty for a replay that is not forced, which loses nothing: letters of the error that come meanwhile are
    replayed, too.
    """
    return "" if isinstance(decision, ReplayLetters) and not decision.forced else plan.digest


def _reset_fields(reset: ResetOffsets) -> dict[str, str]:
    match reset.target:
        case datetime():
            found = {"to": "time", "value": reset.target.isoformat()}
        case ShiftBy():
            found = {"to": "shift", "value": str(reset.target.offsets)}
        case int():
            found = {"to": "offset", "value": str(reset.target)}
        case _:
            found = {"to": str(reset.target)}
    if isinstance(reset.partitions, Mapping):
        [(topic, numbers)] = reset.partitions.items()
        found |= _given(topic=topic, partition=None if numbers is None else next(iter(numbers)))
    return found


def _until(text: str) -> datetime | None:
    if not text:
        return None
    now = datetime.now(UTC)
    until = _later("until", text, now, 1) if text.upper().startswith("P") else _time("until", text, "a duration or ")
    if until <= now:
        raise Invalid("until", "That time has passed.")
    return until


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


def _which_fields(which: Which) -> dict[str, str]:
    if isinstance(which, LetterFilter):
        return _given(**{name: getattr(which, name) for name in ("topic", "partition", *_OF_ERRORS)})
    [key] = keys_of(which)
    tp = key.topic_partition
    return _given(topic=tp.topic, partition=tp.partition, offset=key.offset, topic_id=key.topic_id)


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

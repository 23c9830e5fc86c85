"""What browsers send: a form's fields, the decision that they make, and the ticket that proves that a form is ours."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import re
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias
from urllib.parse import parse_qsl, quote, unquote, urlencode

from markupsafe import Markup
from starlette.exceptions import HTTPException
from starlette.requests import Request

from offsetstore.offsets import MAX_OFFSET, MAX_PARTITION, TopicPartition
from offsetstore.operations.letters import DiscardLetters, ReplayLetters
from offsetstore.operations.operation import Operation, Plan
from offsetstore.operations.outbox import DiscardRefused, RetryRefused, SetAside
from offsetstore.operations.pauses import PauseGroup, ResumeGroup
from offsetstore.operations.resets import ResetOffsets, ResetTarget, ShiftBy
from offsetstore.operations.stored_letters import LetterFilter
from offsetstore.protocol.letters import CAUSES, Cause, LetterKey
from offsetstore.protocol.ports import BrokerOffsets
from offsetstore.text import parse_duration, parse_time

LONGEST: Final = 65_536
"""Bytes of a form."""

_QUOTED: Final = "~"  # begins the name of a field whose text is quoted
_PATIENCE: Final = 10  # seconds for the whole body

LIFETIME: Final = 15 * 60
"""Seconds for which a form can be sent."""

MOST_USED: Final = 10_000
"""Forms that can be sent within `LIFETIME`: each is remembered that long."""

_EXPIRED: Final = "The form is older than 15 minutes; nothing was done."
_FOREIGN: Final = "The form does not come from this server, or the server was started again since; nothing was done."
_USED: Final = "The form was sent already. What it did is in the group's history; nothing was done now."
_FULL: Final = "Too many forms were sent in the last 15 minutes; nothing was done."


class TicketRefused(Exception):
    """The form must not be carried out; the text says why."""


def hidden(name: str, text: str) -> Markup:
    """A hidden field of a form."""
    # Browsers send every line break as CR LF (decision 0102).
    if "\n" in text or "\r" in text:
        name, text = f"{_QUOTED}{name}", quote(text)
    return Markup('<input type="hidden" name="{}" value="{}">').format(name, text)


def _read(sent: str) -> list[tuple[str, str]]:
    pairs = parse_qsl(sent, keep_blank_values=True)
    return [(name[1:], unquote(text)) if name.startswith(_QUOTED) else (name, text) for name, text in pairs]


def plain_query(sent: bytes) -> bytes:
    """The query of an address, from a form or a link, without the quoting of `hidden`."""
    return urlencode(_read(sent.decode("latin-1"))).encode() if _QUOTED in unquote(sent.decode("latin-1")) else sent


async def read_fields(request: Request) -> dict[str, str]:
    """Read a form that was sent urlencoded: the first value of each field, also if it is empty.

    :raises HTTPException: it is longer than `LONGEST`, takes too long, or has a null character, which no name can have.
    """
    body = bytearray()
    try:
        async with asyncio.timeout(_PATIENCE):
            async for part in request.stream():
                body += part
                if len(body) > LONGEST:
                    raise HTTPException(413, "The form is too long.")
    except TimeoutError:
        raise HTTPException(408, f"The form did not arrive within {_PATIENCE} s.") from None
    fields = dict(reversed(_read(body.decode(errors="replace"))))
    if any("\0" in text for pair in fields.items() for text in pair):
        raise HTTPException(400, "A field has a null character in it.")
    return fields


@dataclass(frozen=True, slots=True)
class Tickets:
    """Makes a ticket for each form that may change something, and takes it back once.

    It is signed with a key of this process, and good for one action on one group with the values that the form shows.

    :param clock: in seconds.
    """

    clock: Callable[[], float] = time.monotonic
    _key: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)
    _used: dict[str, int] = field(default_factory=dict[str, int], repr=False)
    _guard: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def issue(self, action: str, group: str, values: Mapping[str, str]) -> str:
        nonce, until = secrets.token_urlsafe(16), int(self.clock()) + LIFETIME
        return f"{until}.{nonce}.{self._sign(until, nonce, action, group, values)}"

    def take(self, ticket: str, action: str, group: str, values: Mapping[str, str]) -> None:
        """Take a ticket back. Of several requests with the same ticket, this returns for one alone.

        :raises TicketRefused: it is not one of ours, belongs to another form, is too old, or was taken before.
        """
        time_of, _dot, rest = ticket.partition(".")
        nonce, _dot, signature = rest.partition(".")
        until = int(time_of) if time_of.isascii() and time_of.isdigit() and len(time_of) < 20 else 0  # noqa: PLR2004
        expected = self._sign(until, nonce, action, group, values)
        if not hmac.compare_digest(signature.encode(), expected.encode()):
            raise TicketRefused(_FOREIGN)
        with self._guard:
            now = self.clock()
            if until <= now:
                raise TicketRefused(_EXPIRED)
            if nonce in self._used:
                raise TicketRefused(_USED)
            if len(self._used) >= MOST_USED:
                for old in [used for used, over in self._used.items() if over <= now]:
                    del self._used[old]
            if len(self._used) >= MOST_USED:
                raise TicketRefused(_FULL)
            self._used[nonce] = until

    def _sign(self, until: int, nonce: str, action: str, group: str, values: Mapping[str, str]) -> str:
        text = json.dumps([until, nonce, action, group, sorted(values.items())])
        return hmac.new(self._key, text.encode(), hashlib.sha256).hexdigest()


AnyOperation: TypeAlias = Operation[Any]

_WHOLE: Final = re.compile(r"[+-]?[0-9]{1,19}")
_YES: Final = "yes"

_CAUSES: Final[Mapping[str, Cause]] = {cause: cause for cause in CAUSES}
_OF_ERRORS: Final = tuple(
    field.name for field in fields(LetterFilter) if field.name not in {"states", "topic", "partition"}
)
_OF_LETTERS: Final = ("offset", "topic_id", *_OF_ERRORS)
"""Fields that choose letters. An empty one has a meaning: that the error has no such part, say."""

DECISIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "reset": ("to", "value", "topic", "partition"),
    "pause": ("until",),
    "resume": (),
    "replay": ("topic", "partition", *_OF_LETTERS, "forced"),
    "discard": ("topic", "partition", *_OF_LETTERS, "erase"),
    "outbox-retry": ("row", "topic"),
    "outbox-discard": ("row", "topic"),
    "outbox-set-aside": ("row", "topic"),
}
"""Each decision's name in addresses, and the fields that it is made of."""

_OF_ROWS: Final = {"outbox-retry": RetryRefused, "outbox-discard": DiscardRefused, "outbox-set-aside": SetAside}


class Invalid(Exception):
    """A field of a form can't be understood; the text is for the person who filled it in."""

    def __init__(self, field: str, text: str) -> None:
        super().__init__(text)
        self.field = field


@dataclass(frozen=True, slots=True)
class Answers:
    """What a form does not name.

    :param group: what is decided about.
    :param kafka_group: its name in Kafka.
    :param reason: empty until the person was asked for it.
    :param fence: whether a live job may be fenced.
    """

    group: str
    kafka_group: str
    broker: BrokerOffsets
    reason: str = ""
    fence: bool = False


def settled(name: str, given: Mapping[str, str]) -> dict[str, str]:
    """Return the fields that a decision is made of.

    :raises Invalid: naming the field.
    """
    found = {
        field: given[field]
        for field in DECISIONS[name]
        if field in given and (given[field].strip() or field in _OF_LETTERS)
    }
    # A duration becomes the time to which it leads now: else the plan would change until the form is sent.
    now = datetime.now(UTC)
    if name == "reset" and found.get("to") == "duration":
        found |= {"to": "time", "value": _later("value", found.get("value", "").strip(), now, -1).isoformat()}
    # No time ends in a unit, or begins as an ISO duration does.
    if (until := found.get("until", "").strip()).upper().startswith("P") or until.endswith(("s", "m", "h", "d")):
        found["until"] = _later("until", until, now, 1).isoformat()
    return found


def read(name: str, given: Mapping[str, str], answers: Answers) -> AnyOperation:
    """Read a decision from its fields; see `settled`.

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
        case "outbox-retry" | "outbox-discard" | "outbox-set-aside":
            return _OF_ROWS[name](group, *_rows(given))
        case "discard":
            return DiscardLetters(group, _which(given), erase=given.get("erase") == _YES)
        case _:
            raise KeyError(name)


def premise(decision: AnyOperation, plan: Plan) -> str:
    """The digest that the plan must still have when it is carried out; empty if any will do."""
    # A replay that is not forced loses nothing: letters that come meanwhile are replayed, too (decision 0046).
    return "" if isinstance(decision, ReplayLetters) and not decision.forced else plan.digest


def _until(text: str) -> datetime | None:
    if not text:
        return None
    until = _time("until", text, "a duration or ")
    if until <= datetime.now(UTC):
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
    parts: dict[str, Any] = {name: given[name] for name in _OF_ERRORS if name != "cause" and name in given}
    return LetterFilter(
        cause=cause,
        topic=topic,
        partition=partition,
        **parts,
    )


def _rows(given: Mapping[str, str]) -> tuple[list[int] | None, str | None]:
    """Rows of the outbox: one, those of a topic, or all of the group."""
    row, topic = given.get("row", "").strip(), given.get("topic", "").strip()
    if row and topic:
        raise Invalid("topic", "Name a row or a topic, not both.")
    return [_number("row", row, MAX_OFFSET)] if row else None, topic or None


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

"""The outbox: records that a job writes with its results, and that the relay produces to Kafka.

The relay is a machine that asks for one step at a time (`relaying`). It knows no database and no Kafka: whoever runs it
does each step, and answers. It may be dropped at any step, answered or not; another one then goes on.

The database has a number and the ids of the rows of the batch with that number; Kafka has a number, which it gets by
the same transaction as a batch's records. Kafka's is that of the database, or one less: then the batch is not in Kafka.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple, NoReturn, Protocol, TypeAlias, cast

from offsetstore.errors import ConfigurationError, OutboxUncertain
from offsetstore.protocol.letters import Headers

OnUncertain: TypeAlias = Literal["fail", "repeat", "skip"]
"""What becomes of a batch that may or may not be in Kafka: raise, produce it (again), or take it for produced."""

MOST_ROWS: Final = 10_000
"""Rows of one batch."""

_TOPIC: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")


class OutboxRecord(NamedTuple):
    """A record to be produced.

    :param headers: in order; names may repeat. ``None`` for none.
    """

    topic: str
    key: bytes | None
    value: bytes | None
    headers: Headers | None = None


class OutboxRow(NamedTuple):
    """A row of the outbox. Rows are produced in the order of their ids."""

    id: int
    record: OutboxRecord


class OutboxSession(Protocol):
    """The part of a `Session` that writes the outbox."""

    def write_outbox(self, group: str, records: Sequence[OutboxRecord]) -> int:
        """Write the records, in order; return how many were written. Their relay is told when this is committed."""
        ...


def is_topic(name: object) -> bool:
    """Whether Kafka allows a topic of this name."""
    return isinstance(name, str) and _TOPIC.fullmatch(name) is not None and name not in {".", ".."}


def outbox_record(
    topic: object, key: object, value: object, headers: Iterable[tuple[object, object]] | None = None
) -> OutboxRecord:
    """Check a record's parts, and encode its texts as UTF-8.

    :raises ConfigurationError: no valid name of a topic; a key, a value or a header's value that is neither bytes nor
        text nor ``None``; a header whose name is no text.
    """
    if not is_topic(topic):
        raise ConfigurationError(
            "the name of the topic is not valid",
            found=repr(topic),
            expected="1 to 249 letters, digits, dots, hyphens and underscores, other than . and ..",
        )
    checked: list[tuple[str, bytes | None]] = []
    for name, content in headers or ():
        if not isinstance(name, str):
            raise ConfigurationError("the name of a header is no text", found=type(name).__name__)
        _bytes("the name of a header", name)
        checked.append((name, _bytes("a header", content)))
    return OutboxRecord(cast("str", topic), _bytes("the key", key), _bytes("the value", value), tuple(checked) or None)


def _bytes(what: str, given: object) -> bytes | None:
    if given is None or isinstance(given, bytes):
        return given
    if isinstance(given, str):
        try:
            return given.encode()
        except UnicodeEncodeError:
            raise ConfigurationError(f"{what} can't be encoded as UTF-8", found="half a surrogate pair") from None
    raise ConfigurationError(
        f"{what} is neither bytes nor text", found=type(given).__name__, expected="bytes, str, None"
    )


@dataclass(frozen=True, slots=True)
class Take:
    """Database: replace the token, so that no earlier relay can record anything. Answer: nothing."""


@dataclass(frozen=True, slots=True)
class Check:
    """Database: expect that the token is ours. Answer: nothing; raise if another relay has taken it."""


@dataclass(frozen=True, slots=True)
class Fence:
    """Kafka: end the open transaction of any earlier producer, which can commit nothing from now on. No answer."""


@dataclass(frozen=True, slots=True)
class Ask:
    """Kafka: which batch it has. Answer: a `Position`."""


@dataclass(frozen=True, slots=True)
class Read:
    """Database: what is recorded. Answer: a `Standing`; raise if another relay has taken the token."""


@dataclass(frozen=True, slots=True)
class Fetch:
    """Database: the rows of a recorded batch. Answer: those that are there, by id."""

    ids: Sequence[int]


@dataclass(frozen=True, slots=True)
class Look:
    """Database: at most this many visible rows, those with the lowest ids. Answer: rows, by id.

    It writes nothing, and may be done at any time after the step before.

    :param without: rows that are in Kafka already.
    """

    most: int
    without: Sequence[int]


@dataclass(frozen=True, slots=True)
class Record:
    """Database: in one transaction, make this the batch, and delete rows. No answer; raise if the token is not ours.

    :param done: rows that are in Kafka.
    :param refused: why, for each row that is set aside.
    :param cluster_id: the cluster whose number counts from now on, ``None`` to leave it as it is.
    """

    number: int
    ids: Sequence[int]
    done: Sequence[int] = ()
    refused: Mapping[int, str] = field(default_factory=dict[int, str])
    cluster_id: str | None = None


@dataclass(frozen=True, slots=True)
class Send:
    """Kafka: in one transaction, produce the rows in order, and set the number. Answer: ``None``, or `Refusal`.

    If it can't be told whether the transaction was committed, raise; another machine will ask.
    """

    number: int
    rows: Sequence[OutboxRow]


@dataclass(frozen=True, slots=True)
class Rest:
    """There are no rows: wait for some. Answer: whether Kafka's number has to be set again, lest it expires."""


Step: TypeAlias = Take | Check | Fence | Ask | Read | Fetch | Look | Record | Send | Rest


class Position(NamedTuple):
    """What Kafka has.

    :param number: of the last batch, ``None`` if it has none.
    """

    cluster_id: str | None
    number: int | None


class Standing(NamedTuple):
    """What the database has recorded.

    :param number: of the last batch, ``None`` before the first start.
    :param ids: its rows, until they are deleted.
    """

    number: int | None
    ids: Sequence[int]
    cluster_id: str | None


@dataclass(frozen=True, slots=True)
class Refusal:
    """A transaction that was aborted because of some of its rows.

    :param certain: why, for each row that is refused whatever the others are.
    :param suspected: the same for rows of which one is refused, and the others perhaps with it.
    """

    certain: Mapping[int, str] = field(default_factory=dict[int, str])
    suspected: Mapping[int, str] = field(default_factory=dict[int, str])


def relaying(
    *, again: bool = False, most: int = MOST_ROWS, on_uncertain: OnUncertain = "fail"
) -> Generator[Step, Any, NoReturn]:
    """Ask for the steps of one relay, forever.

    The order of the first four is what makes it exact. What is read is not changed by anyone before our last commit to
    Kafka: whoever changes it has taken the token later, and fenced us before it changed anything.

    :param again: after an error; then the token is not taken again, or two relays would take turns forever.
    :raises OutboxUncertain: whether the recorded batch is in Kafka can't be told, and nobody has decided.
    """
    yield Check() if again else Take()
    yield Fence()
    position: Position = yield Ask()
    standing: Standing = yield Read()
    number, open_ids, done = yield from _settled(standing, position, on_uncertain)
    rows: Sequence[OutboxRow] = (yield Fetch(open_ids)) if open_ids else ()
    if open_ids and not rows:  # somebody has deleted them: the number must not wait for them
        number -= 1
        yield Record(number, ())
    limit = most
    alone: int | None = None
    while True:
        if rows:
            refusal: Refusal | None = yield Send(number, rows)
            if refusal is not None:
                was_alone, alone = alone, rows[0].id if len(rows) == 1 else None
                number, rows = yield from _without_refused(number, rows, refusal, was_alone)
                limit = max(1, len(rows))
                continue
            done, rows, alone = _ids(rows), (), None
            limit = min(most, 2 * limit)
        found: Sequence[OutboxRow] = yield Look(limit, done)
        if found:
            number += 1
            yield Record(number, _ids(found), done)
            rows, done = found, ()
        elif done:
            yield Record(number, (), done)
            done = ()
        elif (yield Rest()):
            yield Send(number, ())


def _settled(
    standing: Standing, position: Position, on_uncertain: OnUncertain
) -> Generator[Step, Any, tuple[int, Sequence[int], Sequence[int]]]:
    """Return the number, and the ids of rows that are still to be sent, or those that are to be deleted."""
    number, ids, cluster_id = standing
    if number is None and position.number in {None, 0}:
        if position.number is None:
            yield Send(0, ())
        yield Record(0, (), cluster_id=position.cluster_id)
        return 0, (), ()
    if number is not None and cluster_id == position.cluster_id:
        if position.number == number:
            return number, (), ids
        if position.number == number - 1 and ids:
            return number, ids, ()
    if on_uncertain == "fail":
        raise _uncertain(standing, position)
    floor = (
        max(position.number or 0, number or 0) + 1
    )  # no start can take it for the recorded batch, nor the one before
    yield Send(floor, ())
    if on_uncertain == "skip" or not ids:
        yield Record(floor, (), ids, cluster_id=position.cluster_id)
        return floor, (), ()
    yield Record(floor + 1, ids, cluster_id=position.cluster_id)
    return floor + 1, ids, ()


def _without_refused(
    number: int, rows: Sequence[OutboxRow], refusal: Refusal, was_alone: int | None
) -> Generator[Step, Any, tuple[int, Sequence[OutboxRow]]]:
    """Record what is sent next under this number, which Kafka does not have; return the number, and these rows.

    The rows before the first suspect are sent without it, so that nothing of its key overtakes them; then it is the
    first, and is sent alone. It is refused if that fails twice, with two producers: the state of one fails once.

    :param was_alone: the row that failed alone before.
    """
    refused = refusal.certain
    if not refused:
        first = next(place for place, row in enumerate(rows) if row.id in refusal.suspected)
        if len(rows) == 1 and rows[0].id == was_alone:
            refused = refusal.suspected
        rows = rows[: max(1, first)]
    rows = [row for row in rows if row.id not in refused]
    if not rows:
        number -= 1
    yield Record(number, _ids(rows), refused=refused)
    return number, rows


def _ids(rows: Iterable[OutboxRow]) -> Sequence[int]:
    return [row.id for row in rows]


def _uncertain(standing: Standing, position: Position) -> OutboxUncertain:
    number, ids, cluster_id = standing
    expected = f"batch {number}" + (f" or {number - 1}" if number is not None and ids else "")
    open_rows = f"{len(ids)} rows of batch {number}, from id {min(ids)} to {max(ids)}," if ids else "no rows"
    if number is None:
        what = "Kafka has batches of this outbox, and the database has never sent one: its tables were made anew"
        expected = "none"
    elif cluster_id != position.cluster_id:
        what = "the brokers belong to another cluster than the one that the outbox was sent to"
        expected = f"cluster {cluster_id}"
    elif position.number is None:
        what = (
            "Kafka has lost the number of the last batch: the anchor topic was deleted, or no relay ran for longer "
            "than offsets.retention.minutes"
        )
    elif position.number > number:
        what = "Kafka has later batches than the database, which was restored: rows may be in Kafka already"
    else:
        what = "Kafka has an earlier batch than the database: its offsets were restored, or set by hand"
    return OutboxUncertain(
        f"{what}. {open_rows[0].upper()}{open_rows[1:]} may or may not be in Kafka",
        found=f"cluster {position.cluster_id}, batch {position.number}",
        expected=expected,
    )

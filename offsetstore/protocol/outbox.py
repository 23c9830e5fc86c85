"""The outbox: records that a job writes with its results, and that the relay produces to Kafka.

The relay is a state machine that asks for one step at a time (`relaying`). It knows no database and no Kafka: its
caller does each step and answers. It may be dropped at any step, answered or not; another one then goes on.

The database has the mark of a batch, the ids of its rows, and the mark of the batch before. Kafka has a mark, which is
set in the same transaction as a batch's records. If Kafka has the first mark, it has the batch; if it has the second,
it does not. A mark is a number and a random word, since copies of a database count alike (decision 0095).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple, NoReturn, Protocol, TypeAlias, cast
from uuid import uuid4

from offsetstore.errors import ConfigurationError, OutboxUncertain, RowsRefused
from offsetstore.protocol.letters import Headers
from offsetstore.protocol.refusals import Topics
from offsetstore.protocol.runs import RunState

OnUncertain: TypeAlias = Literal["fail", "repeat", "skip"]
"""What to do with a batch that may or may not be in Kafka: raise, produce it (again), or count it as produced."""

ANCHOR: Final = "offsetstore-outbox"
"""The topic in which the relay's group has its offset, and the beginning of the relay's names."""

MOST_ROWS: Final = 10_000
"""Rows of one batch."""

MOST_COUNTED: Final = 100_000
"""How many rows of the outbox are read to count the waiting ones."""

LOOKS: Final = 10
"""How often Kafka is asked for a mark that it seems to have lost, until it counts as lost."""

TOPIC_NAMES: Final = "1 to 249 letters, digits, dots, hyphens and underscores, other than . and .."
"""The names that `is_topic` accepts, for errors."""

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
    """A row of the outbox: an `OutboxRecord` with its id. Rows are produced in the order of their ids.

    :param wrong: why it can't be sent, if that is known without Kafka: it is not a record, or too large to be read.
    """

    id: int
    topic: str
    key: bytes | None
    value: bytes | None
    headers: Headers | None = None
    wrong: str | None = None


LONG_WAIT: Final = timedelta(minutes=5)
"""A row of the outbox that has waited longer than this is late. The ``Outbox…`` alerts use the same limit."""


@dataclass(frozen=True, slots=True)
class OutboxState:
    """What a group has in the outbox, among the first 100,000 rows of all groups.

    :param rows: how many are not known to be in Kafka yet.
    :param oldest: when the oldest of them was written, by the database's clock; ``None`` if there are none.
    :param row: the id of the first of them, and its ``topic``: if rows of the topic are blocked, it blocks them.
    :param refused: how many rows Kafka refuses, set aside until a person decides; also among the first 100,000.
    :param more: whether the limit was reached, so that more rows may wait than were counted.
    """

    rows: int = 0
    oldest: datetime | None = None
    refused: int = 0
    more: bool = False
    row: int | None = None
    topic: str | None = None

    def is_late(self, at: datetime) -> bool:
        """Whether the oldest row has waited for more than `LONG_WAIT`."""
        return self.oldest is not None and at - self.oldest > LONG_WAIT


RelayState: TypeAlias = Literal["live", "stalled", "silent", "ended", "failed", "fenced", "unknown"]
"""The states of a run, and ``stalled``: it is live, a row has waited for `LONG_WAIT`, and it has sent none for as long.
``unknown``: a relay of an earlier release has the outbox, which sends no heartbeats."""


def relay_state(run: RunState, *, waited: timedelta | None, idle: timedelta) -> RelayState:
    """The state of a relay.

    :param waited: how long the first row of the outbox has waited, ``None`` if there is none.
    :param idle: the time since the relay last sent rows or, if it has sent none, since its start.
    """
    is_stalled = run == "live" and waited is not None and min(waited, idle) > LONG_WAIT
    return "stalled" if is_stalled else run


@dataclass(frozen=True, slots=True)
class RelayStatus:
    """The relay that has the outbox, or had it last. Times are by the database's clock.

    :param since: when it started.
    :param until: when it ended, or sent its last heartbeat; ``None`` if it is ``unknown``.
    :param sent_at: when it last sent rows, ``None`` if this run has sent none.
    :param error: why it waits, or what ended it.
    """

    state: RelayState
    owner: str
    since: datetime
    until: datetime | None = None
    sent_at: datetime | None = None
    error: str | None = None

    @property
    def is_live(self) -> bool:
        return self.state in {"live", "unknown"}


class OutboxSession(Protocol):
    """The part of a `Session` that writes the outbox."""

    def write_outbox(self, group: str, records: Sequence[OutboxRecord]) -> int:
        """Write the records, in order; return how many were written. The commit wakes the relay."""
        ...


def is_topic(name: object) -> bool:
    """Whether Kafka allows a topic of this name."""
    return isinstance(name, str) and _TOPIC.fullmatch(name) is not None and name not in {".", ".."}


def is_header_name(name: str) -> bool:
    # Kafka's client ends a name at a zero byte.
    return "\0" not in name


def outbox_record(
    topic: object,
    key: object,
    value: object,
    headers: Mapping[str, object] | Iterable[tuple[object, object]] | None = None,
) -> OutboxRecord:
    """Check a record's parts, and encode its texts as UTF-8.

    :raises RowsRefused: an invalid topic name; a key, a value or a header's value that is neither bytes nor text nor
        ``None``; a header that is not a pair, or whose name is not a text or has a zero byte. The record is at fault.
    """
    if not is_topic(topic):
        raise RowsRefused("the name of the topic is not valid", found=repr(topic), expected=TOPIC_NAMES, column="topic")
    pairs: Iterable[Any] = cast("Any", headers or ())
    checked = tuple(map(_header, cast("Any", pairs).items() if isinstance(pairs, Mapping) else pairs))
    return OutboxRecord(
        cast("str", topic), _bytes("key", "the key", key), _bytes("value", "the value", value), checked or None
    )


def outbox_records(records: Iterable[object]) -> list[OutboxRecord]:
    """Check records, each an `OutboxRecord` or a tuple of its parts.

    :raises ConfigurationError: a value is not a record, which is a mistake of the code that made it.
    :raises RowsRefused: see `outbox_record`.
    """
    return [outbox_record(*_parts(record)) for record in records]


def _parts(record: object) -> Sequence[Any]:
    if not isinstance(record, (tuple, list)):
        found = f"{type(record).__module__}.{type(record).__qualname__}"
    elif 3 <= len(parts := cast("Sequence[Any]", record)) <= 4:  # noqa: PLR2004 - the parts of an OutboxRecord
        return parts
    else:
        found = f"{len(parts)} parts"
    raise ConfigurationError("not a record", found=found, expected="OutboxRecord, or (topic, key, value, headers)")


def _header(pair: Any) -> tuple[str, bytes | None]:
    match pair:
        case (str() as name, content) if is_header_name(name):
            # For its error alone: a name is sent as UTF-8, too.
            _bytes("headers", "the name of a header", name)
            return name, _bytes("headers", "a header", content)
        case (name, _):
            found = "a zero byte" if isinstance(name, str) else type(name).__name__
            raise RowsRefused("the name of a header is not valid", found=found, expected="text", column="headers")
        case _:
            expected = "(name, value), or a mapping"
            raise RowsRefused("a header is no pair", found=type(pair).__name__, expected=expected, column="headers")


def _bytes(column: str, what: str, content: object) -> bytes | None:
    if content is None or isinstance(content, bytes):
        return content
    if isinstance(content, str):
        try:
            return content.encode()
        except UnicodeEncodeError:
            raise RowsRefused(
                f"{what} can't be encoded as UTF-8", found="half a surrogate pair", column=column
            ) from None
    raise RowsRefused(
        f"{what} is neither bytes nor text", found=type(content).__name__, expected="bytes, str, None", column=column
    )


class Mark(NamedTuple):
    """A batch: its number, and a random word for each `WriteBatch`, which no other batch has."""

    number: int
    word: str


@dataclass(frozen=True, slots=True)
class Peek:
    """Database: read what is recorded, whatever token is there. Answer: a `Standing`."""


@dataclass(frozen=True, slots=True)
class Take:
    """Database: replace the token, so that no earlier relay can record anything. No answer."""


@dataclass(frozen=True, slots=True)
class CheckToken:
    """Database: expect that the token is ours, and wait for a `WriteBatch` of ours whose outcome is unknown.

    No answer; raise if another relay has taken the token.
    """


@dataclass(frozen=True, slots=True)
class Fence:
    """Kafka: end the open transaction of any earlier producer, which can commit nothing any more. No answer."""


@dataclass(frozen=True, slots=True)
class AskForMark:
    """Kafka: ask which batch it has. Answer: a `KafkaMark`.

    :param is_fenced: ``False`` before `Fence`: then don't wait for an open transaction of another relay.
    """

    is_fenced: bool = True


@dataclass(frozen=True, slots=True)
class Read:
    """Database: read what is recorded. Answer: a `Standing`; raise if another relay has taken the token."""


@dataclass(frozen=True, slots=True)
class Fetch:
    """Database: read the rows of a recorded batch. Answer: the rows that still exist, in order of id."""

    ids: Sequence[int]


@dataclass(frozen=True, slots=True)
class ReadRows:
    """Database: read at most this many visible rows, those with the lowest ids. Answer: rows, in order of id.

    It writes nothing, and may be done at any time after the step before.

    :param without: rows that are in Kafka already.
    :param only: only rows of this topic, among the first hundred thousand rows.
    :param but: no rows of these topics.
    """

    most: int
    without: Sequence[int]
    only: str | None = None
    but: Collection[str] = ()


@dataclass(frozen=True, slots=True)
class Probe:
    """Kafka: ask which of these topics are missing, or may not be written to. Answer: why, for each of those."""

    topics: Collection[str]


@dataclass(frozen=True, slots=True)
class WriteBatch:
    """Database: in one transaction, record this batch and delete rows. No answer; raise if the token is not ours.

    With rows, `Send` is next: it may begin meanwhile, but must not commit before this has. If rows of the batch are
    gone, raise: somebody has set them aside since they were read.

    :param before: the word of the batch before; ``None`` if no rows are to be sent.
    :param done: rows to delete: they are in Kafka.
    :param refused: rows to set aside, and why.
    :param cluster_id: the cluster whose mark counts from now on, ``None`` to leave it unchanged.
    """

    mark: Mark
    ids: Sequence[int] = ()
    done: Sequence[int] = ()
    refused: Mapping[int, str] = field(default_factory=dict[int, str])
    before: str | None = None
    cluster_id: str | None = None


@dataclass(frozen=True, slots=True)
class Send:
    """Kafka: in one transaction, produce the rows in order and set the mark. Answer: ``None``, or a `Refusal`.

    If the outcome of the transaction is unknown, raise: another machine will ask. Without rows, raise instead of
    answering with a refusal.

    :param kafka: with rows, the mark that Kafka has, which may be set again before they are sent.
    """

    mark: Mark
    rows: Sequence[OutboxRow] = ()
    kafka: Mark | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class WaitForMark:
    """Wait a little before Kafka is asked for its mark again: its answer may have been temporary. No answer.

    :param lost: at the first wait, what Kafka has instead of the mark.
    """

    lost: KafkaMark | None = None


@dataclass(frozen=True, slots=True)
class Rest:
    """There are no rows: wait for some. Answer: whether Kafka's mark has to be set again, before it expires."""


Step: TypeAlias = (
    Peek
    | Take
    | CheckToken
    | Fence
    | AskForMark
    | Read
    | Fetch
    | ReadRows
    | Probe
    | WriteBatch
    | Send
    | WaitForMark
    | Rest
)


class KafkaMark(NamedTuple):
    """What Kafka has.

    :param number: of the last batch, ``None`` if there is none.
    :param word: of the last batch, ``None`` if something other than a relay has set the number.
    """

    cluster_id: str | None
    number: int | None
    word: str | None = None


class Standing(NamedTuple):
    """What the database has recorded.

    :param number: of the last batch, ``None`` before the first start; then there are no words either.
    :param ids: its rows, until they are deleted.
    :param before: the word of the batch before, if there are rows.
    """

    number: int | None = None
    ids: Sequence[int] = ()
    cluster_id: str | None = None
    word: str | None = None
    before: str | None = None


@dataclass(frozen=True, slots=True)
class Refusal:
    """A transaction that was aborted because of some of its rows.

    :param certain: rows that are refused whatever the other rows are, and why: by the client itself, or by Kafka, which
        names them among the records of a request; then ``is_proven``.
    :param suspected: rows one of which may be refused, and the others with it, and why.
    :param vouched: topics with rows that Kafka wrote before the abort, or refused only because of other rows.
    :param is_proven: whether Kafka itself refused them, and the producer that sent them aborted the transaction
        afterwards, which a fenced producer can't (decision 0095).
    """

    certain: Mapping[int, str] = field(default_factory=dict[int, str])
    suspected: Mapping[int, str] = field(default_factory=dict[int, str])
    vouched: Collection[str] = ()
    is_proven: bool = False


def new_word() -> str:
    return uuid4().hex


def relaying(
    *,
    again: bool = False,
    most: int = MOST_ROWS,
    limit: int | None = None,
    on_uncertain: OnUncertain = "fail",
    word: Callable[[], str] = new_word,
    topics: Topics | None = None,
) -> Generator[Step, Any, NoReturn]:
    """Ask for the steps of one relay, forever.

    The order of `Take` or `CheckToken`, `Fence`, `AskForMark` and `Read` is what makes it exact. Nobody changes what
    was read before our last commit to Kafka: whoever changes it has taken the token later, and fenced us first. The
    steps before `Take` only keep a relay that can't work from ending one that does.

    :param again: after an error.
    :param limit: rows of the first batch, if it has to be smaller than ``most``.
    :param topics: those of the previous machine, after an error: the refusals in a row add up.
    :raises OutboxUncertain: it is unknown whether the recorded batch is in Kafka, and nobody has decided.
    """
    # After an error the token is not taken again, or two relays would take turns forever (decision 0095).
    if again:
        yield CheckToken()
    else:
        yield from _before_taking(on_uncertain)
        yield Take()
    standing, position = yield from _fenced()
    kafka, mark, open_ids, done = yield from _settled(standing, position, on_uncertain, word)
    topics = topics or Topics(most)
    topics.begin()
    size = most if limit is None else limit
    rows: Sequence[OutboxRow] = ()
    if open_ids:
        found: Sequence[OutboxRow] = yield Fetch(open_ids)
        refused, rows = yield from _sendable(found[:size], topics)
        # Somebody has deleted some, or they are too many, or can't be sent. Fewer may be recorded, since nobody can
        # commit the whole batch any more. A new word distinguishes the two, which share a number (decision 0095).
        if len(rows) < len(open_ids):
            mark = mark._replace(word=word())
            yield _instead(kafka, mark, rows, refused)
            topics.recorded()
    while True:
        if rows:
            refusal: Refusal | None = yield Send(mark, rows, kafka)
            if refusal is not None:
                refused, rows = yield from _judged(kafka, rows, refusal, topics)
                mark = mark._replace(word=word())
                yield _instead(kafka, mark, rows, refused)
                topics.recorded()
                continue
            topics.passed(rows)
            kafka, done = mark, _ids(rows)
            size = min(most, 2 * size)
        refused, rows, is_idle = yield from _next(size, done, topics)
        if rows:
            mark = Mark(kafka.number + 1, word())
            yield WriteBatch(mark, _ids(rows), done, refused, before=kafka.word)
        elif done or refused:
            yield WriteBatch(kafka, (), done, refused)
        elif is_idle and (yield Rest()):
            yield Send(kafka)
        topics.recorded()
        done = ()


def _next(
    size: int, done: Sequence[int], topics: Topics
) -> Generator[Step, Any, tuple[Mapping[int, str], Sequence[OutboxRow], bool]]:
    """Return which rows are set aside, which are sent next, and whether there are none at all."""
    # All rows of a missing topic may be gone, and then nothing would ever forget it: so one is looked for in turns.
    if lacking := topics.lacking():
        waiting = topics.asked_again((yield Probe(lacking)))
        if waiting is not None and not (yield ReadRows(1, done, only=waiting)):
            topics.forget(waiting)
    topic = topics.turn()
    if topic is None:
        found: Sequence[OutboxRow] = yield ReadRows(size, done, but=tuple(topics.apart))
    else:
        found = topics.batch(topic, (yield ReadRows(topics.most(topic), done, only=topic)))
    refused, rows = yield from _sendable(found, topics)
    return refused, rows, topic is None and not found and not topics.is_any_due


def _sendable(
    rows: Sequence[OutboxRow], topics: Topics
) -> Generator[Step, Any, tuple[Mapping[int, str], Sequence[OutboxRow]]]:
    """Return which of these rows are set aside before they are sent, and which may be sent.

    Rows of a topic that is missing, or may not be written to, are neither: they wait.
    """
    if not rows:
        return {}, ()
    refused, left = topics.refuse(rows, {row.id: row.wrong for row in rows if row.wrong is not None})
    # Asked before a batch is recorded: once created, the topic gets all its rows, in order (decision 0095).
    lacking: Mapping[str, str] = (yield Probe({row.topic for row in left})) if left else {}
    if lacking:
        topics.found_lacking(left, lacking)
        left = [row for row in left if row.topic not in lacking]
    return refused, left


def _fenced() -> Generator[Step, Any, tuple[Standing, KafkaMark]]:
    """Get a new producer, and return what the database and Kafka have: nobody else changes it before we do."""
    yield Fence()
    looks = 0
    while True:
        # Kafka before the row: whoever changes the row after we have read it fenced our producer before. And more than
        # once: just after a broker's start it may say, without an error, that there is no offset (decision 0095).
        position: KafkaMark = yield AskForMark()
        standing: Standing = yield Read()
        looks += 1
        if looks == LOOKS or not _seems_lost(standing, position):
            return standing, position
        yield WaitForMark(lost=position if looks == 1 else None)


def _before_taking(on_uncertain: OnUncertain) -> Generator[Step, Any, None]:
    """Find out whether the relay can work at all, before it ends another one."""
    looks = 0
    while True:
        standing: Standing = yield Peek()
        position: KafkaMark = yield AskForMark(is_fenced=False)
        fits = _is_new(standing, position) or _is_sent(standing, position) or _is_open(standing, position)
        if on_uncertain != "fail" or fits:
            break
        # The other relay may be sending: what it has recorded meanwhile may explain what does not fit.
        later: Standing = yield Peek()
        if later != standing and _is_between(standing, position, later):
            break
        looks += 1
        if looks == LOOKS or not _seems_lost(standing, position):
            raise _uncertain(standing, position)
        yield WaitForMark(lost=position if looks == 1 else None)
    # Only a trial shows whether Kafka allows it; the other relay fences us in turn, and goes on.
    yield Fence()


def _seems_lost(standing: Standing, position: KafkaMark) -> bool:
    """Whether Kafka has an earlier batch than the last one that the database knows to be sent."""
    if standing.number is None or standing.cluster_id != position.cluster_id:
        return False
    return position.number is None or position.number < standing.number - bool(standing.ids)


def _is_between(first: Standing, position: KafkaMark, later: Standing) -> bool:
    """Whether Kafka can have had this number between two looks at a database whose relay sends."""
    # Kafka's numbers never fall. The database's is Kafka's or one more, and falls by one if all rows of its batch are
    # refused.
    if position.number is None or later.number is None or later.cluster_id != position.cluster_id:
        return False
    return first.cluster_id in {None, later.cluster_id} and (first.number or 0) - 1 <= position.number <= later.number


def _is_new(standing: Standing, position: KafkaMark) -> bool:
    """Whether nothing was ever sent."""
    # The database has no number until Kafka has 0, so a first start is not taken for a lost offset (decision 0095).
    return standing.number is None and position.number in {None, 0}


def _is_sent(standing: Standing, position: KafkaMark) -> bool:
    return _has(standing, position, standing.number, standing.word)


def _is_open(standing: Standing, position: KafkaMark) -> bool:
    number = standing.number
    return bool(standing.ids) and _has(standing, position, None if number is None else number - 1, standing.before)


def _has(standing: Standing, position: KafkaMark, number: int | None, word: str | None) -> bool:
    if None in {number, word} or standing.cluster_id != position.cluster_id:
        return False
    return (position.number, position.word) == (number, word)


def _settled(
    standing: Standing, position: KafkaMark, on_uncertain: OnUncertain, word: Callable[[], str]
) -> Generator[Step, Any, tuple[Mark, Mark, Sequence[int], Sequence[int]]]:
    """Return Kafka's mark, the open batch's, the ids of the rows to send, and of the rows to delete."""
    number, ids, cluster_id = position.number or 0, standing.ids, position.cluster_id
    if _is_new(standing, position):
        mark = Mark(0, position.word or word())
        if position.word is None:
            yield Send(mark)
        yield WriteBatch(mark, cluster_id=cluster_id)
        return mark, mark, (), ()
    kafka = Mark(number, position.word or "")
    if _is_sent(standing, position):
        return kafka, kafka, (), ids
    if _is_open(standing, position):
        return kafka, Mark(number + 1, standing.word or ""), ids, ()
    if on_uncertain == "fail":
        raise _uncertain(standing, position)
    # Above both, so that numbers never fall.
    kafka = Mark(max(number, standing.number or 0) + 1, word())
    yield Send(kafka)
    if on_uncertain == "skip" or not ids:
        yield WriteBatch(kafka, (), ids, cluster_id=cluster_id)
        return kafka, kafka, (), ()
    mark = Mark(kafka.number + 1, word())
    yield WriteBatch(mark, ids, before=kafka.word, cluster_id=cluster_id)
    return kafka, mark, ids, ()


def _judged(
    kafka: Mark, rows: Sequence[OutboxRow], refusal: Refusal, topics: Topics
) -> Generator[Step, Any, tuple[Mapping[int, str], Sequence[OutboxRow]]]:
    """Return which rows are refused, and which are sent next; see `Topics`.

    Rows of topics that are sent apart are left out, so that they hold up no others.

    :raises OutboxUncertain: another database's relay has sent something meanwhile.
    """
    # A new producer goes on: the old one has counted records that the broker has refused, and librdkafka would take
    # half a second to notice. That neither the producer nor another relay is to blame is shown by the abort, or by what
    # is tried here: our token is still there, and the new producer commits something else (decision 0095).
    yield CheckToken()
    standing, position = yield from _fenced()
    if not _is_open(standing, position):
        raise _uncertain(standing, position)
    yield Send(kafka)
    refused, left = topics.refuse(rows, refusal.certain, refusal.vouched)
    named = {row.topic for row in rows if refusal.is_proven and row.id in refused}
    topics.name({topic: sum(row.topic == topic for row in left) for topic in named})
    # In a topic with named rows, the others are sent again before any is suspected: those may have been all.
    suspected = {
        row.id: refusal.suspected[row.id] for row in rows if row.id in refusal.suspected and row.topic not in named
    }
    refused = {**refused, **topics.suspect(rows, suspected, is_proven=refusal.is_proven)}
    return refused, [row for row in left if row.id not in refused and row.topic not in topics.apart]


def _instead(
    kafka: Mark, mark: Mark, rows: Sequence[OutboxRow], refused: Mapping[int, str] = MappingProxyType({})
) -> WriteBatch:
    """Record these rows in place of a batch that Kafka does not have; without rows, the batch before it."""
    if not rows:
        return WriteBatch(kafka, refused=refused)
    return WriteBatch(mark, _ids(rows), refused=refused, before=kafka.word)


def _ids(rows: Iterable[OutboxRow]) -> Sequence[int]:
    return [*map(attrgetter("id"), rows)]


def _uncertain(standing: Standing, position: KafkaMark) -> OutboxUncertain:
    number, ids, cluster_id, _, _ = standing
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
    elif position.number < number - 1 or (position.number < number and not ids):
        what = "Kafka has an earlier batch than the database: its offsets were restored, or set by hand"
    else:
        what = (
            "Kafka has another batch of this number than the database: a copy of the database has sent it, or the "
            "database has lost its last commits"
        )
        expected += f" with the word {standing.word}" + (f" or {standing.before}" if ids else "")
    word = "" if position.word is None else f" ({position.word})"
    return OutboxUncertain(
        f"{what}. {open_rows[0].upper()}{open_rows[1:]} may or may not be in Kafka",
        found=f"cluster {position.cluster_id}, batch {position.number}{word}",
        expected=expected,
    )

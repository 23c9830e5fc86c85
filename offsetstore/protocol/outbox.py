"""The outbox: records that a job writes with its results, and that the relay produces to Kafka.

The relay is a machine that asks for one step at a time (`relaying`). It knows no database and no Kafka: whoever runs it
does each step, and answers. It may be dropped at any step, answered or not; another one then goes on.

The database has the mark of a batch, the ids of its rows, and the mark of the batch before; Kafka has a mark, which it
gets by the same transaction as a batch's records. Kafka's is the first one, or the second: then the batch is not in
Kafka. A mark is a number and a word that nobody else draws: copies of a database may count alike.
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

from offsetstore.errors import OutboxUncertain, RowsRefused
from offsetstore.protocol.letters import Headers
from offsetstore.protocol.refusals import Topics
from offsetstore.protocol.runs import RunState

OnUncertain: TypeAlias = Literal["fail", "repeat", "skip"]
"""What becomes of a batch that may or may not be in Kafka: raise, produce it (again), or take it for produced."""

ANCHOR: Final = "offsetstore-outbox"
"""The topic on which the relay's group has its offset, and the beginning of its names."""

MOST_ROWS: Final = 10_000
"""Rows of one batch."""

MOST_COUNTED: Final = 100_000
"""Rows of the outbox that are read to say how many wait."""

LOOKS: Final = 10
"""At Kafka's mark, until one that it seems to have lost counts as lost."""

TOPIC_NAMES: Final = "1 to 249 letters, digits, dots, hyphens and underscores, other than . and .."
"""What `is_topic` takes, for errors."""

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

    :param wrong: why it can't be sent, if that is known without Kafka: it is no record, or too large to be read.
    """

    id: int
    topic: str
    key: bytes | None
    value: bytes | None
    headers: Headers | None = None
    wrong: str | None = None


LONG_WAIT: Final = timedelta(minutes=5)
"""A row of the outbox that has waited for longer is one that the alerts ``Outbox…`` are about, too."""


@dataclass(frozen=True, slots=True)
class OutboxState:
    """What a group has in the outbox, among the first 100,000 rows of all groups.

    :param rows: those that are not known to be in Kafka yet.
    :param oldest: when the oldest of them was written, by the database's clock; ``None`` if there are none.
    :param row: the id of the first of them, and its ``topic``: if rows of the topic are blocked, it blocks them.
    :param refused: rows that Kafka refuses, set aside until a person decides; of the first 100,000, too.
    :param more: whether there are as many rows, so that more may wait than were counted.
    """

    rows: int = 0
    oldest: datetime | None = None
    refused: int = 0
    more: bool = False
    row: int | None = None
    topic: str | None = None

    def is_late(self, at: datetime) -> bool:
        """Whether a row has waited for long."""
        return self.oldest is not None and at - self.oldest > LONG_WAIT


RelayState: TypeAlias = Literal["live", "stalled", "silent", "ended", "failed", "fenced", "unknown"]
"""Those of a run, and ``stalled``: it is live, a row has waited for `LONG_WAIT`, and it has sent none for as long.
``unknown``: one of an earlier release has the outbox, which sends no heartbeats."""


def relay_state(run: RunState, *, waited: timedelta | None, idle: timedelta) -> RelayState:
    """How a relay is.

    :param waited: how long the first row of the outbox has waited, ``None`` if it is empty.
    :param idle: since when the relay has sent nothing, or has run without having sent any.
    """
    is_stalled = run == "live" and waited is not None and min(waited, idle) > LONG_WAIT
    return "stalled" if is_stalled else run


@dataclass(frozen=True, slots=True)
class RelayStatus:
    """The relay that has the outbox, or had it last. Times are the database's.

    :param since: it was started.
    :param until: it ended, or sent its last heartbeat; ``None`` if it is ``unknown``.
    :param sent_at: it last sent rows, ``None`` if this run has sent none.
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
        """Whether it runs, and sends what there is."""
        return self.state in {"live", "unknown"}


class OutboxSession(Protocol):
    """The part of a `Session` that writes the outbox."""

    def write_outbox(self, group: str, records: Sequence[OutboxRecord]) -> int:
        """Write the records, in order; return how many were written. Their relay is told when this is committed."""
        ...


def is_topic(name: object) -> bool:
    """Whether Kafka allows a topic of this name."""
    return isinstance(name, str) and _TOPIC.fullmatch(name) is not None and name not in {".", ".."}


def is_header_name(name: str) -> bool:
    """Whether Kafka's client sends the whole of this name: it ends at a zero byte."""
    return "\0" not in name


def outbox_record(
    topic: object,
    key: object,
    value: object,
    headers: Mapping[str, object] | Iterable[tuple[object, object]] | None = None,
) -> OutboxRecord:
    """Check a record's parts, and encode its texts as UTF-8.

    :raises RowsRefused: no valid name of a topic; a key, a value or a header's value that is neither bytes nor text nor
        ``None``; a header that is no pair, or whose name is no text or has a zero byte. It is the record's fault.
    """
    if not is_topic(topic):
        raise RowsRefused("the name of the topic is not valid", found=repr(topic), expected=TOPIC_NAMES, column="topic")
    pairs: Iterable[Any] = cast("Any", headers or ())
    checked = tuple(map(_header, cast("Any", pairs).items() if isinstance(pairs, Mapping) else pairs))
    return OutboxRecord(
        cast("str", topic), _bytes("key", "the key", key), _bytes("value", "the value", value), checked or None
    )


def _header(pair: Any) -> tuple[str, bytes | None]:
    match pair:
        case (str() as name, content) if is_header_name(name):
            _bytes("headers", "the name of a header", name)
            return name, _bytes("headers", "a header", content)
        case (name, _):
            found = "a zero byte" if isinstance(name, str) else type(name).__name__
            raise RowsRefused("the name of a header is not valid", found=found, expected="text", column="headers")
        case _:
            expected = "(name, value), or a mapping"
            raise RowsRefused("a header is no pair", found=type(pair).__name__, expected=expected, column="headers")


def _bytes(column: str, what: str, given: object) -> bytes | None:
    if given is None or isinstance(given, bytes):
        return given
    if isinstance(given, str):
        try:
            return given.encode()
        except UnicodeEncodeError:
            raise RowsRefused(
                f"{what} can't be encoded as UTF-8", found="half a surrogate pair", column=column
            ) from None
    raise RowsRefused(
        f"{what} is neither bytes nor text", found=type(given).__name__, expected="bytes, str, None", column=column
    )


class Mark(NamedTuple):
    """Which batch: its number, and a word that is drawn for each `WriteBatch`, so that no other one has it."""

    number: int
    word: str


@dataclass(frozen=True, slots=True)
class Peek:
    """Database: what is recorded, whoever's token is there. Answer: a `Standing`."""


@dataclass(frozen=True, slots=True)
class Take:
    """Database: replace the token, so that no earlier relay can record anything. Answer: nothing."""


@dataclass(frozen=True, slots=True)
class CheckToken:
    """Database: expect that the token is ours, and wait for a `WriteBatch` of ours whose outcome is not known.

    Answer: nothing; raise if another relay has taken the token.
    """


@dataclass(frozen=True, slots=True)
class Fence:
    """Kafka: end the open transaction of any earlier producer, which can commit nothing from now on. No answer."""


@dataclass(frozen=True, slots=True)
class AskForMark:
    """Kafka: which batch it has. Answer: a `KafkaMark`.

    :param is_fenced: ``False`` before `Fence`: an open transaction of somebody else's is not waited for.
    """

    is_fenced: bool = True


@dataclass(frozen=True, slots=True)
class Read:
    """Database: what is recorded. Answer: a `Standing`; raise if another relay has taken the token."""


@dataclass(frozen=True, slots=True)
class Fetch:
    """Database: the rows of a recorded batch. Answer: those that are there, by id."""

    ids: Sequence[int]


@dataclass(frozen=True, slots=True)
class ReadRows:
    """Database: at most this many visible rows, those with the lowest ids. Answer: rows, by id.

    It writes nothing, and may be done at any time after the step before.

    :param without: rows that are in Kafka already.
    :param only: of this topic, as far as it is among the first hundred thousand rows.
    :param but: not of these topics.
    """

    most: int
    without: Sequence[int]
    only: str | None = None
    but: Collection[str] = ()


@dataclass(frozen=True, slots=True)
class Probe:
    """Kafka: which of these topics are missing, or may not be written to. Answer: why, for each of them."""

    topics: Collection[str]


@dataclass(frozen=True, slots=True)
class WriteBatch:
    """Database: in one transaction, make this the batch, and delete rows. No answer; raise if the token is not ours.

    With rows, `Send` is next: it may begin meanwhile, and must not commit before this has. If rows of it are gone,
    raise: somebody has set them aside since they were looked at.

    :param before: the word of the batch before; ``None`` if no rows are to be sent.
    :param done: rows that are in Kafka.
    :param refused: why, for each row that is set aside.
    :param cluster_id: the cluster whose mark counts from now on, ``None`` to leave it as it is.
    """

    mark: Mark
    ids: Sequence[int] = ()
    done: Sequence[int] = ()
    refused: Mapping[int, str] = field(default_factory=dict[int, str])
    before: str | None = None
    cluster_id: str | None = None


@dataclass(frozen=True, slots=True)
class Send:
    """Kafka: in one transaction, produce the rows in order, and set the mark. Answer: ``None``, or `Refusal`.

    If it can't be told whether the transaction was committed, raise; another machine will ask. Without rows there is no
    refusal: raise.

    :param kafka: the mark that Kafka has, which may be set again before the rows are sent; with rows only.
    """

    mark: Mark
    rows: Sequence[OutboxRow] = ()
    kafka: Mark | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class WaitForMark:
    """Wait a little before Kafka's mark is asked for again: what Kafka says may pass. No answer.

    :param lost: at the first wait, what Kafka has instead of it.
    """

    lost: KafkaMark | None = None


@dataclass(frozen=True, slots=True)
class Rest:
    """There are no rows: wait for some. Answer: whether Kafka's mark has to be set again, lest it expires."""


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

    :param number: of the last batch, ``None`` if it has none.
    :param word: of the same, ``None`` if somebody else has set the number.
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

    :param certain: why, for each row that is refused whatever the others are: by the client itself, or by Kafka, which
        names it among the records of a request; then ``is_proven``.
    :param suspected: the same for rows of which one may be refused, and the others with it.
    :param vouched: topics with rows that Kafka has written before the abort, or would have, but for others.
    :param is_proven: whether it is Kafka's own word on them, and the producer that has sent them has aborted the
        transaction afterwards, which none can that is fenced: decision 0095.
    """

    certain: Mapping[int, str] = field(default_factory=dict[int, str])
    suspected: Mapping[int, str] = field(default_factory=dict[int, str])
    vouched: Collection[str] = ()
    is_proven: bool = False


def new_word() -> str:
    """Draw a word."""
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

    The order of `Take` or `CheckToken`, `Fence`, `AskForMark` and `Read` is what makes it exact. What is read is not
    changed by anyone before our last commit to Kafka: whoever changes it has taken the token later, and fenced us
    before it changed anything. What comes before `Take` only keeps a relay that can't work from ending one that does.

    :param again: after an error; then the token is not taken again, or two relays would take turns forever.
    :param limit: rows of the first batch, if it has to be smaller than ``most``.
    :param topics: those of the machine before, after an error: what Kafka has refused in a row adds up.
    :raises OutboxUncertain: whether the recorded batch is in Kafka can't be told, and nobody has decided.
    """
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
        if len(rows) < len(open_ids):  # somebody has deleted some, or they are too many, or can't be sent
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
    lacking: Mapping[str, str] = (yield Probe({row.topic for row in left})) if left else {}
    if lacking:
        topics.found_lacking(left, lacking)
        left = [row for row in left if row.topic not in lacking]
    return refused, left


def _fenced() -> Generator[Step, Any, tuple[Standing, KafkaMark]]:
    """Get a new producer, and return what the database and Kafka have: nobody else changes it before we do.

    Just after a broker's start Kafka may tell less than it has. If it seems to have lost something, it is asked again.
    """
    yield Fence()
    looks = 0
    while True:
        position: KafkaMark = yield AskForMark()
        standing: Standing = yield Read()
        looks += 1
        if looks == LOOKS or not _seems_lost(standing, position):
            return standing, position
        yield WaitForMark(lost=position if looks == 1 else None)


def _before_taking(on_uncertain: OnUncertain) -> Generator[Step, Any, None]:
    """Find out whether the relay can work at all, before it ends another one.

    The other one may be sending. So what does not fit is no error if what it has recorded meanwhile explains it.
    """
    looks = 0
    while True:
        standing: Standing = yield Peek()
        position: KafkaMark = yield AskForMark(is_fenced=False)
        fits = _is_new(standing, position) or _is_sent(standing, position) or _is_open(standing, position)
        if on_uncertain != "fail" or fits:
            break
        later: Standing = yield Peek()
        if later != standing and _is_between(standing, position, later):
            break
        looks += 1
        if looks == LOOKS or not _seems_lost(standing, position):
            raise _uncertain(standing, position)
        yield WaitForMark(lost=position if looks == 1 else None)
    yield Fence()  # only trying tells whether Kafka allows it; the other one fences us in turn, and goes on


def _seems_lost(standing: Standing, position: KafkaMark) -> bool:
    """Whether Kafka has less than was recorded when it had been sent."""
    if standing.number is None or standing.cluster_id != position.cluster_id:
        return False
    return position.number is None or position.number < standing.number - bool(standing.ids)


def _is_between(first: Standing, position: KafkaMark, later: Standing) -> bool:
    """Whether Kafka can have this number between two looks at a database whose relay sends: numbers never fall there.

    The database's is Kafka's or one more, and falls by one if all rows of its batch are refused.
    """
    if position.number is None or later.number is None or later.cluster_id != position.cluster_id:
        return False
    return first.cluster_id in {None, later.cluster_id} and (first.number or 0) - 1 <= position.number <= later.number


def _is_new(standing: Standing, position: KafkaMark) -> bool:
    """Whether nothing was ever sent: the database has no number until Kafka has 0."""
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
    """Return Kafka's mark, the open batch's, the ids of rows that are to be sent, and of those to be deleted."""
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
    kafka = Mark(max(number, standing.number or 0) + 1, word())  # so that numbers never fall
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

    A new producer goes on: of the old one, the broker misses the records that it has refused, and librdkafka would take
    half a second to see that. That Kafka did not refuse them because of the producer or of another relay is proven by
    the abort, or by what is tried here: our token is still there, and the new producer commits something else. Rows of
    topics that are sent apart are left out here, so that they hold no others up.

    :raises OutboxUncertain: another database's relay has sent something meanwhile.
    """
    yield CheckToken()
    standing, position = yield from _fenced()
    if not _is_open(standing, position):
        raise _uncertain(standing, position)
    yield Send(kafka)
    refused, left = topics.refuse(rows, refusal.certain, refusal.vouched)
    named = {row.topic for row in rows if refusal.is_proven and row.id in refused}
    topics.name({topic: sum(row.topic == topic for row in left) for topic in named})
    # Of a topic with named rows, the others are sent again before any is suspected: these may have been all.
    suspected = {
        row.id: refusal.suspected[row.id] for row in rows if row.id in refusal.suspected and row.topic not in named
    }
    refused = {**refused, **topics.suspect(rows, suspected, is_proven=refusal.is_proven)}
    return refused, [row for row in left if row.id not in refused and row.topic not in topics.apart]


def _instead(
    kafka: Mark, mark: Mark, rows: Sequence[OutboxRow], refused: Mapping[int, str] = MappingProxyType({})
) -> WriteBatch:
    """Record these rows instead of a batch that Kafka does not have; without any, the batch before it."""
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

"""The outbox: records that a job writes with its results, and that the relay produces to Kafka.

The relay is a machine that asks for one step at a time (`relaying`). It knows no database and no Kafka: whoever runs it
does each step, and answers. It may be dropped at any step, answered or not; another one then goes on.

The database has the mark of a batch, the ids of its rows, and the mark of the batch before; Kafka has a mark, which it
gets by the same transaction as a batch's records. Kafka's is the first one, or the second: then the batch is not in
Kafka. A mark is a number and a word that nobody else draws: copies of a database may count alike.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple, NoReturn, Protocol, TypeAlias, cast
from uuid import uuid4

from offsetstore.errors import OutboxUncertain, RowsRefused
from offsetstore.protocol.letters import Headers

OnUncertain: TypeAlias = Literal["fail", "repeat", "skip"]
"""What becomes of a batch that may or may not be in Kafka: raise, produce it (again), or take it for produced."""

ANCHOR: Final = "offsetstore-outbox"
"""The topic on which the relay's group has its offset, and the beginning of its names."""

MOST_ROWS: Final = 10_000
"""Rows of one batch."""

MOST_COUNTED: Final = 100_000
"""Rows of the outbox that are read to say how many wait."""

_CALM: Final = 100  # batches until one may be as large again as one that was refused without any row to blame

MOST_IN_A_ROW: Final = 100
"""Rows that trials refuse until Kafka has taken one: more of them look like a bug or an outage."""

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
    """A row of the outbox: an `OutboxRecord` with its id. Rows are produced in the order of their ids."""

    id: int
    topic: str
    key: bytes | None
    value: bytes | None
    headers: Headers | None = None


@dataclass(frozen=True, slots=True)
class OutboxState:
    """What a group has in the outbox, among the first 100,000 rows of all groups.

    :param rows: those that are not known to be in Kafka yet.
    :param oldest: when the oldest of them was written, by the database's clock; ``None`` if there are none.
    :param refused: rows that Kafka refuses, set aside until a person decides; of the first 100,000, too.
    :param more: whether there are as many rows, so that more may wait than were counted.
    """

    rows: int = 0
    oldest: datetime | None = None
    refused: int = 0
    more: bool = False


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
    """Which batch: its number, and a word that is drawn for each `Record`, so that no other one has it."""

    number: int
    word: str


@dataclass(frozen=True, slots=True)
class Peek:
    """Database: what is recorded, whoever's token is there. Answer: a `Standing`."""


@dataclass(frozen=True, slots=True)
class Take:
    """Database: replace the token, so that no earlier relay can record anything. Answer: nothing."""


@dataclass(frozen=True, slots=True)
class Check:
    """Database: expect that the token is ours, and wait for a `Record` of ours whose outcome is not known.

    Answer: nothing; raise if another relay has taken the token.
    """


@dataclass(frozen=True, slots=True)
class Fence:
    """Kafka: end the open transaction of any earlier producer, which can commit nothing from now on. No answer."""


@dataclass(frozen=True, slots=True)
class Ask:
    """Kafka: which batch it has. Answer: a `Position`.

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

    With rows, `Send` is next: it may begin meanwhile, and must not commit before this has.

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
class Pause:
    """Wait a little before a row is tried, or Kafka's mark is asked for, again: what Kafka says may pass. No answer.

    :param refused: why Kafka refuses the row, which is kept: so many were refused in a row that it looks like a bug or
        an outage.
    :param lost: at the first wait for Kafka's mark, what Kafka has instead of it.
    """

    refused: str | None = None
    lost: Position | None = None


@dataclass(frozen=True, slots=True)
class Rest:
    """There are no rows: wait for some. Answer: whether Kafka's mark has to be set again, lest it expires."""


Step: TypeAlias = Peek | Take | Check | Fence | Ask | Read | Fetch | Look | Record | Send | Pause | Rest


class Position(NamedTuple):
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

    :param certain: why, for each row whose topic is missing, or may not be written to.
    :param by_client: why, for each row that the client itself refuses, whatever the others are.
    :param suspected: the same for rows of which one may be refused, and the others with it; or none, if Kafka or the
        producer is to blame.
    """

    certain: Mapping[int, str] = field(default_factory=dict[int, str])
    by_client: Mapping[int, str] = field(default_factory=dict[int, str])
    suspected: Mapping[int, str] = field(default_factory=dict[int, str])


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
    trials: Trials | None = None,
) -> Generator[Step, Any, NoReturn]:
    """Ask for the steps of one relay, forever.

    The order of `Take` or `Check`, `Fence`, `Ask` and `Read` is what makes it exact. What is read is not changed by
    anyone before our last commit to Kafka: whoever changes it has taken the token later, and fenced us before it
    changed anything. What comes before `Take` only keeps a relay that can't work from ending one that does.

    :param again: after an error; then the token is not taken again, or two relays would take turns forever.
    :param limit: rows of the first batch, if it has to be smaller than ``most``.
    :param trials: those of the machine before, after an error: what Kafka has refused in a row adds up.
    :raises OutboxUncertain: whether the recorded batch is in Kafka can't be told, and nobody has decided.
    """
    if again:
        yield Check()
    else:
        yield from _before_taking(on_uncertain)
        yield Take()
    standing, position = yield from _fenced()
    kafka, mark, open_ids, done = yield from _settled(standing, position, on_uncertain, word)
    size = _Size(most, most if limit is None else limit)
    rows: Sequence[OutboxRow] = (yield Fetch(open_ids)) if open_ids else ()
    if open_ids and not 0 < len(rows) <= size.rows:  # somebody has deleted them, or they are too many
        mark, rows = mark._replace(word=word()), rows[: size.rows]
        yield _instead(kafka, mark, rows)
    trials = trials or Trials()
    trials.begin(None)
    while True:
        if rows:
            refusal: Refusal | None = yield Send(mark, rows, kafka)
            if refusal is not None:
                refused, rows = yield from _tried(kafka, rows, refusal, trials)
                mark = mark._replace(word=word())
                yield _instead(kafka, mark, rows, refused)
                size.refused(refusal, rows)
                continue
            kafka, done, rows = mark, _ids(rows), ()
            trials.passed()
            size.passed()
        found: Sequence[OutboxRow] = yield Look(size.rows, done)
        if found:
            mark = Mark(kafka.number + 1, word())
            yield Record(mark, _ids(found), done, before=kafka.word)
            rows, done = found, ()
        elif done:
            yield Record(kafka, (), done)
            done = ()
        elif (yield Rest()):
            yield Send(kafka)


def _fenced() -> Generator[Step, Any, tuple[Standing, Position]]:
    """Get a new producer, and return what the database and Kafka have: nobody else changes it before we do.

    Just after a broker's start Kafka may tell less than it has. If it seems to have lost something, it is asked again.
    """
    yield Fence()
    looks = 0
    while True:
        position: Position = yield Ask()
        standing: Standing = yield Read()
        looks += 1
        if looks == LOOKS or not _seems_lost(standing, position):
            return standing, position
        yield Pause(lost=position if looks == 1 else None)


class _Size:
    """How many rows the next batch may have: after a refusal few, then twice as many each time.

    Rows that are refused whatever the others are say nothing about it. Where rows were refused together of which none
    was to blame, as larger requests than their topic takes, batches stay smaller than these for a while.
    """

    def __init__(self, most: int, rows: int) -> None:
        self.rows = rows
        self._most = self._ceiling = most
        self._calm = 0

    def refused(self, refusal: Refusal, left: Sequence[OutboxRow]) -> None:
        if refusal.certain or refusal.by_client:
            return
        self.rows = max(1, len(left))
        if len(refusal.suspected) > 1:
            self._ceiling, self._calm = max(1, len(refusal.suspected) // 2), _CALM
        elif not left:
            self._ceiling = self._most

    def passed(self) -> None:
        self._calm -= 1
        if self._calm <= 0:
            self._ceiling = self._most
        self.rows = min(self._ceiling, 2 * self.rows)


class Trials:
    """Which row is on trial, how often it has failed, and how many were refused since Kafka has taken one."""

    def __init__(self) -> None:
        self._row: int | None = None
        self._failed = self._refused = 0

    def passed(self) -> None:
        """Kafka has taken rows."""
        self._row, self._failed, self._refused = None, 0, 0

    def begin(self, row: int | None) -> None:
        """The row is the next to be sent, alone, by a producer that has committed something else; ``None``: no row."""
        if row != self._row:
            self._row, self._failed = row, 0

    def failed(self, rows: Sequence[OutboxRow]) -> int:
        """Count a failure of these rows; return how often the row on trial has failed, 0 if it is not this one."""
        if [row.id for row in rows] != [self._row]:
            return 0
        self._failed += 1
        return self._failed

    def may_refuse(self) -> bool:
        """Count one more; ``False`` if it would be too many."""
        self._refused += 1
        return self._refused <= MOST_IN_A_ROW


def _before_taking(on_uncertain: OnUncertain) -> Generator[Step, Any, None]:
    """Find out whether the relay can work at all, before it ends another one.

    The other one may be sending. So what does not fit is no error if what it has recorded meanwhile explains it.
    """
    looks = 0
    while True:
        standing: Standing = yield Peek()
        position: Position = yield Ask(is_fenced=False)
        fits = _is_new(standing, position) or _is_sent(standing, position) or _is_open(standing, position)
        if on_uncertain != "fail" or fits:
            break
        later: Standing = yield Peek()
        if later != standing and _is_between(standing, position, later):
            break
        looks += 1
        if looks == LOOKS or not _seems_lost(standing, position):
            raise _uncertain(standing, position)
        yield Pause(lost=position if looks == 1 else None)
    yield Fence()  # only trying tells whether Kafka allows it; the other one fences us in turn, and goes on


def _seems_lost(standing: Standing, position: Position) -> bool:
    """Whether Kafka has less than was recorded when it had been sent."""
    if standing.number is None or standing.cluster_id != position.cluster_id:
        return False
    return position.number is None or position.number < standing.number - bool(standing.ids)


def _is_between(first: Standing, position: Position, later: Standing) -> bool:
    """Whether Kafka can have this number between two looks at a database whose relay sends: numbers never fall there.

    The database's is Kafka's or one more, and falls by one if all rows of its batch are refused.
    """
    if position.number is None or later.number is None or later.cluster_id != position.cluster_id:
        return False
    return first.cluster_id in {None, later.cluster_id} and (first.number or 0) - 1 <= position.number <= later.number


def _is_new(standing: Standing, position: Position) -> bool:
    """Whether nothing was ever sent: the database has no number until Kafka has 0."""
    return standing.number is None and position.number in {None, 0}


def _is_sent(standing: Standing, position: Position) -> bool:
    return _has(standing, position, standing.number, standing.word)


def _is_open(standing: Standing, position: Position) -> bool:
    number = standing.number
    return bool(standing.ids) and _has(standing, position, None if number is None else number - 1, standing.before)


def _has(standing: Standing, position: Position, number: int | None, word: str | None) -> bool:
    if None in {number, word} or standing.cluster_id != position.cluster_id:
        return False
    return (position.number, position.word) == (number, word)


def _settled(
    standing: Standing, position: Position, on_uncertain: OnUncertain, word: Callable[[], str]
) -> Generator[Step, Any, tuple[Mark, Mark, Sequence[int], Sequence[int]]]:
    """Return Kafka's mark, the open batch's, the ids of rows that are to be sent, and of those to be deleted."""
    number, ids, cluster_id = position.number or 0, standing.ids, position.cluster_id
    if _is_new(standing, position):
        mark = Mark(0, position.word or word())
        if position.word is None:
            yield Send(mark)
        yield Record(mark, cluster_id=cluster_id)
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
        yield Record(kafka, (), ids, cluster_id=cluster_id)
        return kafka, kafka, (), ()
    mark = Mark(kafka.number + 1, word())
    yield Record(mark, ids, before=kafka.word, cluster_id=cluster_id)
    return kafka, mark, ids, ()


def _tried(
    kafka: Mark, rows: Sequence[OutboxRow], refusal: Refusal, trials: Trials
) -> Generator[Step, Any, tuple[Mapping[int, str], Sequence[OutboxRow]]]:
    """Return which rows are refused, and which are sent next.

    The rows before the first suspect are sent without it, so that nothing of its key overtakes them; then it is the
    first, and is on trial: it is sent alone, and is refused if that fails twice, some time apart. Before each time, and
    after it, our token is still there, and a new producer has committed something else: so neither Kafka nor another
    relay is to blame. If one row after the other is refused, Kafka is: then the row is tried until it passes.

    What the client refuses by itself needs no trials, but a setting of the relay's may be wrong, so it counts, too.

    :raises OutboxUncertain: another database's relay has sent something meanwhile.
    """
    refused = refusal.certain
    if refusal.by_client:
        refused = {id_: why for id_, why in refusal.by_client.items() if trials.may_refuse()}
        left = [row for row in rows if row.id not in refused]
        kept = [place for place, row in enumerate(left) if row.id in refusal.by_client]
        if kept and not refused and not kept[0]:
            yield Pause(refusal.by_client[left[0].id])
        return refused, left[: max(1, kept[0])] if kept else left
    if not refused:
        yield Check()
        standing, position = yield from _fenced()
        if not _is_open(standing, position):
            raise _uncertain(standing, position)
        yield Send(kafka)
        first = next(place for place, row in enumerate(rows) if row.id in refusal.suspected)
        failed = trials.failed(rows)
        if failed > 1 and trials.may_refuse():
            refused = refusal.suspected
        else:
            if failed:
                yield Pause(refusal.suspected[rows[0].id] if failed > 1 else None)
            if not first:
                trials.begin(rows[0].id)
        rows = rows[: max(1, first)]
    return refused, [row for row in rows if row.id not in refused]


def _instead(
    kafka: Mark, mark: Mark, rows: Sequence[OutboxRow], refused: Mapping[int, str] = MappingProxyType({})
) -> Record:
    """Record these rows instead of a batch that Kafka does not have; without any, the batch before it."""
    if not rows:
        return Record(kafka, refused=refused)
    return Record(mark, _ids(rows), refused=refused, before=kafka.word)


def _ids(rows: Iterable[OutboxRow]) -> Sequence[int]:
    return [*map(attrgetter("id"), rows)]


def _uncertain(standing: Standing, position: Position) -> OutboxUncertain:
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

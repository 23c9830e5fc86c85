"""Filters: which of the polled records are delivered, and when.

They are asked in order, each about what the one before has kept. What a filter drops is never delivered, and the stored
offset passes it with what is delivered next. What it defers stays in memory, its partition is paused in Kafka's client,
and nothing that comes after it is delivered before.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol, cast

from offsetstore.consumer.records import ConsumedRecord as PolledRecord
from offsetstore.consumer.records import size_of
from offsetstore.errors import ConfigurationError, FunctionFailed, SinkError, as_raised
from offsetstore.offsets import TopicPartition
from offsetstore.processing.handling import Record
from offsetstore.protocol.events import HeldRecord
from offsetstore.protocol.numbers import check_seconds, check_whole
from offsetstore.runtime.functions import as_texts, call, tells_of_outage
from offsetstore.text import at_line


@dataclass(frozen=True, slots=True)
class Context:
    """When a filter is asked, and about which partition.

    :param now: the time in seconds since 1970.
    """

    topic_partition: TopicPartition
    now: float
    _metadata: Callable[[], object] = field(repr=False, default=lambda: None)

    @property
    def metadata(self) -> object:
        """What was stored with the partition's offset when this process took the partition, ``None`` for nothing."""
        return self._metadata()


@dataclass(frozen=True, slots=True)
class Kept:
    """What a filter decides.

    :param prefix: of how many of the records it was given, from the first: these go on, but for those that are dropped.
        It is asked again about the others, which hold back their partition: none that come later are polled until
        they have gone on.
    :param dropped: the offsets of those among them that are dropped.
    :param wait: seconds before it is asked again; for less than 0.1 s as soon as it can be.
    """

    prefix: int
    dropped: Collection[int] = ()
    wait: float = 0.0


class Filter(Protocol):
    """Decides about records that were polled. The polling thread calls it: it must neither block nor take long."""

    def apply(self, records: Sequence[Record], context: Context, /) -> Kept:
        """Decide about records of one partition, in order; there is at least one.

        After another process has taken the partition, it may be asked again about records that were not stored. An
        exception ends the consumer.
        """
        ...


class Throttle:
    """Lets at most so many records through in any period of so many seconds, in all partitions of this process.

    :param limit: records.
    :param per: the period, in seconds.
    """

    def __init__(self, limit: int, per: float = 1.0) -> None:
        check_whole("limit", limit, "records", least=1)
        check_seconds("per", per)
        self.limit = limit
        self.per = per
        self._passed: deque[tuple[float, int]] = deque()  # when, and how many
        self._count = 0

    def apply(self, records: Sequence[Record], context: Context) -> Kept:
        """See `Filter`."""
        now, passed = context.now, self._passed
        while passed and not 0.0 <= now - passed[0][0] < self.per:  # the clock may have been put back
            self._count -= passed.popleft()[1]
        prefix = min(len(records), self.limit - self._count)
        if prefix:
            passed.append((now, prefix))
            self._count += prefix
        return Kept(prefix, wait=passed[0][0] + self.per - now if prefix < len(records) else 0.0)


class Delay:
    """Defers each record until so many seconds after its timestamp. One without a timestamp is not deferred.

    Records keep their order, so one with a timestamp that lies ahead holds up its partition until then.
    """

    def __init__(self, seconds: float) -> None:
        check_seconds("seconds", seconds)
        self.seconds = seconds

    def apply(self, records: Sequence[Record], context: Context) -> Kept:
        """See `Filter`."""
        for prefix, one in enumerate(records):
            if one.timestamp_ms is not None and (wait := one.timestamp_ms / 1000 + self.seconds - context.now) > 0:
                return Kept(prefix, wait=wait)
        return Kept(len(records))


class Expire:
    """Drops records whose timestamp is more than so many seconds ago; those without a timestamp stay."""

    def __init__(self, seconds: float) -> None:
        check_seconds("seconds", seconds)
        self.seconds = seconds

    def apply(self, records: Sequence[Record], context: Context) -> Kept:
        """See `Filter`."""
        last = (context.now - self.seconds) * 1000
        return Kept(
            len(records), [one.offset for one in records if one.timestamp_ms is not None and one.timestamp_ms < last]
        )


class SkipIf:
    """Drops the records for which a function of the record returns what is true."""

    def __init__(self, predicate: Callable[[Record], object]) -> None:
        if not callable(predicate):
            raise ConfigurationError("predicate must be a function of a record", found=repr(predicate))
        self.predicate = predicate
        self._has_decided = False

    def apply(self, records: Sequence[Record], context: Context) -> Kept:  # noqa: ARG002 - the Filter's
        """See `Filter`."""
        dropped: list[int] = []
        for number, one in enumerate(records):
            try:
                is_dropped = call(self.predicate, one)
            except Exception as error:
                takes_others = not tells_of_outage(error) and (
                    number > 0
                    or any(map(self._takes, records[1:_TRIALS]))
                    or (self._has_decided and len(records) == 1)  # as is usual on a quiet topic
                )
                raise _PredicateRaised(one.offset, is_of_record=takes_others) from error
            self._has_decided = True
            if is_dropped:
                dropped.append(one.offset)
        return Kept(len(records), dropped)

    def _takes(self, record: Record) -> bool:
        try:
            call(self.predicate, record)
        except Exception:  # noqa: BLE001 - the user's own function
            return False
        return True


class _PredicateRaised(Exception):
    """The function of `SkipIf` has raised the cause, for the record with this offset."""

    def __init__(self, offset: int, *, is_of_record: bool) -> None:
        super().__init__(offset)
        self.offset = offset
        self.is_of_record = is_of_record


def check_filters(filters: Sequence[Filter]) -> tuple[Filter, ...]:
    """Return the filters.

    :raises ConfigurationError: one of them is none.
    """
    for one in filters:
        if isinstance(one, type) or not callable(getattr(cast("object", one), "apply", None)):
            raise ConfigurationError(
                "filters must have a method apply",
                found=repr(one),
                expected="Throttle(1000), Delay(60), Expire(3600), SkipIf(predicate), or a Filter of your own",
            )
    return tuple(filters)


_Pair = tuple[PolledRecord, Record]
_TRIALS: Final = 10  # records for which a predicate is called, to tell whether it fails for each
_NEVER: Final = -math.inf
_FAR: Final = 60.0  # seconds: clocks differ, and a wait that is this much longer than a filter's own is no surprise
_FAR_OF_OTHERS: Final = 600.0  # of a filter whose own seconds are not known


class Pending:
    """The records of one partition that are not decided about, each with the filter that is asked next.

    :param dropped: counts what filters drop, by the names of their classes.
    """

    def __init__(self, filters: Sequence[Filter], dropped: Counter[str]) -> None:
        self._filters = filters
        self._dropped = dropped
        self._new: list[_Pair] = []
        self._waiting: list[list[_Pair]] = [[] for _ in filters]
        self._ask_at = [_NEVER for _ in filters]
        self._until = [(_NEVER, False) for _ in filters]

    def add(self, record: PolledRecord, given: Record) -> None:
        """Have the first filter decide about a record.

        :param given: the record as filters get it.
        """
        self._new.append((record, given))

    @property
    def first(self) -> int | None:
        """The offset of the first that is not decided about."""
        pairs = next((waiting for waiting in (*reversed(self._waiting), self._new) if waiting), None)
        return None if pairs is None else pairs[0][0].offset

    @property
    def held(self) -> HeldRecord | None:
        """The first of them, if its filter defers it for far longer than the filter's own seconds."""
        for number in reversed(range(len(self._filters))):
            if waiting := self._waiting[number]:
                until, is_far = self._until[number]
                return HeldRecord(type(self._filters[number]).__name__, waiting[0][0].offset, until) if is_far else None
        return None

    def decide(
        self, context: Context, clock: float, *, rows: int, size: int
    ) -> tuple[list[PolledRecord], list[PolledRecord], int | None]:
        """Ask the filters about what waits; return what goes on, what is dropped, and where to read again.

        They are asked about new records in parts of at most ``rows`` and ``size`` bytes, or one record. Once one is
        deferred, the new ones that no filter was asked about are forgotten, to be read again: so what waits is bounded,
        and no filter, which may count what it decides about, decides about a record twice.

        :param clock: monotonic, in seconds.
        :raises SinkError: a filter has failed, or has decided about what it was not given.
        """
        passed, dropped = list[PolledRecord](), list[PolledRecord]()
        new, self._new = self._new, []
        begin = 0
        if any(self._waiting):
            self._ask([], context, clock, passed, dropped)
        while begin < len(new) and not any(self._waiting):
            end = _fitting(new, begin, rows, size)
            self._ask(new[begin:end], context, clock, passed, dropped)
            begin = end
        return passed, dropped, new[begin][0].offset if begin < len(new) else None

    def _ask(
        self,
        given: list[_Pair],
        context: Context,
        clock: float,
        passed: list[PolledRecord],
        dropped: list[PolledRecord],
    ) -> None:
        for number, one in enumerate(self._filters):
            waiting = self._waiting[number]
            waiting += given
            given = []
            if not waiting or clock < self._ask_at[number]:
                continue
            kept = _asked(one, [record for _, record in waiting], context)
            self._ask_at[number] = clock + kept.wait
            self._until[number] = context.now + kept.wait, kept.wait > _far(one)
            decided, self._waiting[number] = waiting[: kept.prefix], waiting[kept.prefix :]
            gone = {*kept.dropped}
            given = [pair for pair in decided if pair[0].offset not in gone]
            dropped += [record for record, _ in decided if record.offset in gone]
            if gone:
                self._dropped[type(one).__name__] += len(gone)
        passed += [record for record, _ in given]


def _fitting(pairs: Sequence[_Pair], begin: int, rows: int, size: int) -> int:
    """Where the part ends that begins there."""
    end = begin
    while end < len(pairs) and end - begin < rows and (size > 0 or end == begin):
        size -= size_of(pairs[end][0])
        end += 1
    return end


def _far(filter_: Filter) -> float:
    """Seconds: a longer wait is told."""
    match filter_:
        case Delay():
            return filter_.seconds + _FAR
        case Throttle():
            return filter_.per + _FAR
        case _:
            return _FAR_OF_OTHERS


def _asked(filter_: Filter, records: Sequence[Record], context: Context) -> Kept:
    name, tp = type(filter_).__name__, context.topic_partition
    place = f"records {records[0].offset} to {records[-1].offset}"
    try:
        kept = call(filter_.apply, records, context)
    except _PredicateRaised as error:
        cause = error.__cause__ or error
        place = f"record {error.offset}"
        raise _of_filter(name, cause, tp, place, is_of_record=error.is_of_record) from cause
    except Exception as error:
        raise _of_filter(name, error, tp, place) from error
    if not isinstance(cast("object", kept), Kept):
        what = type(kept).__name__
    elif not 0 <= kept.prefix <= len(records):
        what = f"prefix={kept.prefix} of {len(records)}"
    elif not {*kept.dropped} <= {one.offset for one in records[: kept.prefix]}:
        what = "dropped offsets that are none of the prefix's records"
    elif not 0.0 <= kept.wait < math.inf:
        what = f"wait={kept.wait}"
    else:
        return kept
    raise SinkError(
        f"the filter {name} did not decide about {place}",
        topic_partition=tp,
        found=what,
        expected="Kept(prefix, dropped, wait): a number of records, offsets of some of these, and seconds",
    )


def _of_filter(
    name: str, cause: BaseException, tp: TopicPartition, place: str, *, is_of_record: bool = False
) -> SinkError:
    raised = as_raised(cause)
    what, (text, trace) = f"the filter {name} raised {type(raised).__name__}{at_line(raised)}", as_texts(raised)
    if tells_of_outage(raised):
        step = "Start the consumer again when the service is back: nothing was passed over."
        return SinkError(what, topic_partition=tp, found=place, next_step=step)
    return FunctionFailed(
        what,
        topic_partition=tp,
        found=place,
        error_class=type(raised).__name__,
        text=text,
        traceback=trace,
        is_of_record=is_of_record,
        next_step="Correct the filter, and start the consumer again: nothing was passed over.",
    )

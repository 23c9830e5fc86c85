"""Filters: which of the polled records are delivered, and when.

They are asked in order, each about the records that the filter before it has kept. What a filter drops is never
delivered, and the next delivery moves the stored offset past it. What a filter defers stays in memory; its partition is
paused in Kafka's client, and none of its later records is delivered before.
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
from offsetstore.protocol.arguments import check_seconds, check_whole
from offsetstore.protocol.events import HeldRecord
from offsetstore.runtime.functions import as_texts, call, tells_of_outage
from offsetstore.text import at_line


@dataclass(frozen=True, slots=True)
class Context:
    """The partition that a filter is asked about, and the time.

    :param now: seconds since 1970.
    """

    topic_partition: TopicPartition
    now: float
    _metadata: Callable[[], object] = field(repr=False, default=lambda: None)

    @property
    def metadata(self) -> object:
        """The metadata stored with the offset when this process took the partition; ``None`` if there was none."""
        return self._metadata()


@dataclass(frozen=True, slots=True)
class Kept:
    """What a filter decides.

    :param prefix: how many records, from the first, are decided: they go on, except the dropped ones. The filter is
        asked again about the others; until these go on, no later records of their partition are polled.
    :param dropped: the offsets of decided records that are dropped.
    :param wait: seconds before the filter is asked again; below 0.1 s, as soon as possible.
    """

    prefix: int
    dropped: Collection[int] = ()
    wait: float = 0.0


class Filter(Protocol):
    """Decides about polled records. The polling thread calls it, so it must neither block nor take long."""

    def apply(self, records: Sequence[Record], context: Context, /) -> Kept:
        """Decide about records of one partition, in order; there is at least one.

        If the partition moves to another process, filters there are asked again about records that were not stored. An
        exception ends the consumer.
        """
        ...


class Throttle:
    """Lets at most ``limit`` records through in any ``per`` seconds, counted over all partitions of this process.

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
    """Defers each record until ``seconds`` after its timestamp. A record without a timestamp is not deferred.

    Records keep their order, so a record with a timestamp in the future holds up its partition until then.
    """

    def __init__(self, seconds: float) -> None:
        check_seconds("seconds", seconds)
        self.seconds = seconds

    def apply(self, records: Sequence[Record], context: Context) -> Kept:
        """See `Filter`."""
        for prefix, record in enumerate(records):
            if (
                record.timestamp_ms is not None
                and (wait := record.timestamp_ms / 1000 + self.seconds - context.now) > 0
            ):
                return Kept(prefix, wait=wait)
        return Kept(len(records))


class Expire:
    """Drops records whose timestamp is more than ``seconds`` ago; records without a timestamp stay."""

    def __init__(self, seconds: float) -> None:
        check_seconds("seconds", seconds)
        self.seconds = seconds

    def apply(self, records: Sequence[Record], context: Context) -> Kept:
        """See `Filter`."""
        last = (context.now - self.seconds) * 1000
        return Kept(
            len(records),
            [record.offset for record in records if record.timestamp_ms is not None and record.timestamp_ms < last],
        )


class SkipIf:
    """Drops the records for which ``predicate`` returns a true value."""

    def __init__(self, predicate: Callable[[Record], object]) -> None:
        if not callable(predicate):
            raise ConfigurationError("predicate must be a function of a record", found=repr(predicate))
        self.predicate = predicate
        self._has_decided = False

    def apply(self, records: Sequence[Record], context: Context) -> Kept:  # noqa: ARG002 - the Filter's
        """See `Filter`."""
        dropped: list[int] = []
        for number, record in enumerate(records):
            try:
                is_dropped = call(self.predicate, record)
            except Exception as error:
                # The record is at fault if the predicate takes another one: before it, after it, or some time ago.
                takes_others = not tells_of_outage(error) and (
                    number > 0
                    or any(map(self._takes, records[1:_TRIALS]))
                    or (self._has_decided and len(records) == 1)  # as is usual on a quiet topic
                )
                raise _PredicateRaised(record.offset, is_of_record=takes_others) from error
            self._has_decided = True
            if is_dropped:
                dropped.append(record.offset)
        return Kept(len(records), dropped)

    def _takes(self, record: Record) -> bool:
        try:
            call(self.predicate, record)
        except Exception:  # noqa: BLE001 - the user's own function
            return False
        return True


class _PredicateRaised(Exception):
    """`SkipIf.predicate` has raised the cause, for the record with this offset."""

    def __init__(self, offset: int, *, is_of_record: bool) -> None:
        super().__init__(offset)
        self.offset = offset
        self.is_of_record = is_of_record


def check_filters(filters: Sequence[Filter]) -> tuple[Filter, ...]:
    """Return the filters.

    :raises ConfigurationError: an element is not a filter.
    """
    for filter_ in filters:
        if isinstance(filter_, type) or not callable(getattr(cast("object", filter_), "apply", None)):
            raise ConfigurationError(
                "filters must have a method apply",
                found=repr(filter_),
                expected="Throttle(1000), Delay(60), Expire(3600), SkipIf(predicate), or a Filter of your own",
            )
    return tuple(filters)


_Pair = tuple[PolledRecord, Record]
_TRIALS: Final = 10  # records for which a predicate is called, to find out whether it fails for all
_NEVER: Final = -math.inf
_FAR: Final = 60.0  # seconds: clocks differ, so a wait that is this much longer than a filter's own is no surprise
_FAR_OF_OTHERS: Final = 600.0  # for a filter whose own seconds are not known


class Pending:
    """The undecided records of one partition, each with the filter that is asked next.

    :param dropped: counts what filters drop, by their class names.
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
        """The offset of the first undecided record."""
        pairs = next((waiting for waiting in (*reversed(self._waiting), self._new) if waiting), None)
        return None if pairs is None else pairs[0][0].offset

    @property
    def held(self) -> HeldRecord | None:
        """The first undecided record, if its filter defers it for far longer than the filter's own seconds."""
        for number in reversed(range(len(self._filters))):
            if waiting := self._waiting[number]:
                until, is_far = self._until[number]
                return HeldRecord(type(self._filters[number]).__name__, waiting[0][0].offset, until) if is_far else None
        return None

    def decide(
        self, context: Context, clock: float, *, rows: int, size: int
    ) -> tuple[list[PolledRecord], list[PolledRecord], int | None]:
        """Ask the filters about what waits; return the records that go on, the dropped ones, and where to read again.

        :param clock: monotonic, in seconds.
        :param rows: how many new records filters are asked about at a time; ``size``: how many bytes of them.
        :raises SinkError: a filter has failed, or its decision does not fit the records.
        """
        # In parts, so that what waits is bounded: once a record is deferred, new ones that no filter was asked about
        # are forgotten, to be read again. No filter decides about a record twice, since it may count (decision 0092).
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
        for number, filter_ in enumerate(self._filters):
            waiting = self._waiting[number]
            waiting += given
            given = []
            if not waiting or clock < self._ask_at[number]:
                continue
            kept = _asked(filter_, [record for _, record in waiting], context)
            self._ask_at[number] = clock + kept.wait
            self._until[number] = context.now + kept.wait, kept.wait > _far(filter_)
            decided, self._waiting[number] = waiting[: kept.prefix], waiting[kept.prefix :]
            gone = {*kept.dropped}
            given = [pair for pair in decided if pair[0].offset not in gone]
            dropped += [record for record, _ in decided if record.offset in gone]
            if gone:
                self._dropped[type(filter_).__name__] += len(gone)
        passed += [record for record, _ in given]


def _fitting(pairs: Sequence[_Pair], begin: int, rows: int, size: int) -> int:
    """The end of the part that begins at ``begin``; it has at least one pair."""
    end = begin
    while end < len(pairs) and end - begin < rows and (size > 0 or end == begin):
        size -= size_of(pairs[end][0])
        end += 1
    return end


def _far(filter_: Filter) -> float:
    """The wait, in seconds, above which people are told (decision 0092)."""
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
    elif not {*kept.dropped} <= {record.offset for record in records[: kept.prefix]}:
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

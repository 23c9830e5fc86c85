"""The consumer: a process that is a member of a consumer group, polls records, and writes them with their offsets.

Kafka assigns the partitions, and the store's fleet decides who writes them; see `offsetstore.store.fleet`. One thread
polls and gathers; each delivery is written by another one, so that slow work never keeps Kafka waiting.
"""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import Future, wait
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from types import FrameType
from typing import Any, Final

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException

from offsetstore.consumer.commits import Commits
from offsetstore.consumer.delivery import (
    ArrowTransform,
    ComputedRecords,
    ConsumerOutputs,
    Polled,
    PolledRecords,
    typed,
)
from offsetstore.consumer.filters import Filter, check_filters
from offsetstore.consumer.handled import HandledRecords, computed_letters
from offsetstore.consumer.records import read_messages
from offsetstore.consumer.watch import CarefulFeed, Unwatched, Watch, has_any, ranges_of, single
from offsetstore.errors import (
    BrokerUnavailable,
    ConfigurationError,
    GroupBusy,
    LockTimeout,
    LogTruncated,
    OffsetOutOfRange,
    SinkError,
    StaleClaim,
    StoreUnavailable,
    TopicMissing,
    TopicRecreated,
    TransactionLost,
)
from offsetstore.kafka.broker import Broker
from offsetstore.kafka.client import LOG, make
from offsetstore.kafka.errors import MISSING, PASSING, WRONG_CREDENTIALS, Doing, broker_error, describe
from offsetstore.kafka.settings import topic_names
from offsetstore.offset_store import OffsetStore
from offsetstore.offsets import EpochPair, OffsetRange, Ranges, TopicPartition
from offsetstore.processing.between import Flush, Tick
from offsetstore.processing.blame import Halve, discarding, skipping
from offsetstore.processing.dead_letters import DeadLetters
from offsetstore.processing.handling import Handler
from offsetstore.processing.plan import MetadataFunction
from offsetstore.processing.runner import Interrupted, Runner, RunnerSettings, Taken
from offsetstore.processing.unit import PlanOutdated
from offsetstore.protocol.arguments import check_seconds
from offsetstore.protocol.events import HeldRecord, QueryStatus, RecordsDropped, RecordsHeld, SinkMade
from offsetstore.protocol.letters import Letter
from offsetstore.protocol.log_evidence import known_ids
from offsetstore.protocol.metadata import Formats, load
from offsetstore.protocol.ports import Writer
from offsetstore.protocol.starting import StartPolicy
from offsetstore.runtime.background import as_main_work, meanwhile
from offsetstore.runtime.functions import InterruptSignal, with_empty_frames, without_frames
from offsetstore.runtime.process import StopRequests
from offsetstore.store.claim import ClaimRequest, Takeover
from offsetstore.store.fleet import Member, join
from offsetstore.store.mirror import LAST_COMMIT
from offsetstore.store.term import Term

_REFUSED: Final = {
    "group.id": "the consumer's group: it is the store's and Kafka's",
    "enable.auto.commit": "nothing: the offsets are stored with the results, and the stored ones count",
    "enable.auto.offset.store": "nothing: the offsets are stored with the results, and the stored ones count",
    "auto.offset.reset": "policy=StartPolicy(auto_offset_reset=...): it is recorded, and counts for stored offsets too",
    "partition.assignment.strategy": "nothing: it is cooperative-sticky. Stop a group with another one first",
    "group.protocol": "nothing: members of a fleet use the classic protocol",
    "enable.partition.eof": "nothing: the consumer needs it to store the ends of logs",
    "on_commit": "observers=[...] of the store: they get MirrorTried",
}
WINDOW: Final = 10_000
"""Records of one flush with a `Handler`, by default. After a crash their calls are repeated (decision 0092)."""
_LONGEST: Final = 300_000  # librdkafka's default of max.poll.interval.ms
_POLL: Final = 0.1  # seconds that one call to Kafka's client takes at most
_BRIEF: Final = 1.0  # seconds to wait for a delivery before partitions are paused: what is paused is fetched again
_ASK: Final = 0.02  # the same as _POLL for partitions that are polled alone
_MOST: Final = 10_000  # records of one call
# Seconds of such polls without a record: the leader may be away (fetch.wait.max.ms is 0.5 s), which must not hold up
# other partitions (decision 0101).
_ANSWER: Final = 1.0
_EXCUSED: Final = 30.0  # seconds until such a partition is polled alone again, twice as long each time, and at most ..
_LONG_EXCUSED: Final = 600.0
_FULL: Final = 5.0  # seconds for which Kafka's client was never empty: it may have fetched nothing of quiet partitions
_FETCH: Final = 50  # milliseconds after which Kafka's client looks whether it may fetch on: 1,000 would outlast _ANSWER
_ASK_QUIET: Final = 2 * _FETCH / 1000  # as _ASK, once for all quiet partitions: a full client had put off their fetch
_AHEAD: Final = 1_000, 100_000  # bounds of what it fetches ahead, in records: two flushes, since a pause drops them
_LEAVING: Final = LAST_COMMIT + 5.0  # seconds to leave the group
_AGAIN: Final = 20.0  # seconds after which a partition that another member took is taken again
_SOON: Final = 1.0  # seconds after which a partition that could not be taken is tried again
# An attempt may wait for Kafka, or for a frozen owner. Other partitions are polled for three times as long as it took
# (decision 0091).
_SHARE: Final = 3
_HEARD: Final = 5.0  # seconds in which a member hears from Kafka that it has lost a partition: some heartbeats
_PASSING: Final = (TopicMissing, LockTimeout, OffsetOutOfRange, BrokerUnavailable, StoreUnavailable, TransactionLost)
"""Errors that pass while partitions are taken: a topic that some brokers don't know yet, a frozen owner, a leader that
does not know its log's end, and outages."""
_READING: Final = Doing("polling records", permission="READ", harmless="what was not stored is read again")

_log = logging.getLogger("offsetstore")


class _Stopped(Exception):
    """The consumer is being stopped while the group is paused."""


class Consumer:
    """A process that consumes topics as a member of a consumer group; several such processes share the partitions.

    ``group`` is the name in the store and in Kafka. Where a partition starts is resolved from the stored offset and
    Kafka's, as for a Spark job. The stored offsets are copied to Kafka, for Kafka's own tools and for whoever takes the
    group over there: at most every five seconds, and when a partition is given back.

    :param topics: their names.
    :param kafka: librdkafka's settings, ``bootstrap.servers`` at least. ``isolation.level`` is ``read_committed`` by
        default.
    :param transform: makes rows of records. It gets a ``pyarrow.RecordBatch`` with the columns of Spark's Kafka source
        (key, value, topic, partition, offset, timestamp, timestampType, headers), and the struct ``_kafka`` of topic,
        partition, offset and timestamp, which an `Upsert` without ``version=`` needs; it returns a batch, or a mapping
        of names to batches. It may be called again for the same records. With ``dead_letters`` each row must be made
        from one record, and a column ``_reject`` may say why a record can't be used.
        Or a `Handler`, which calls a function for each record, many at a time; see docs/handlers.md. Each flush is then
        its window: it is written when its last call has ended. A record is called again only after a crash, or by
        another member that gets the partition before the flush is written.
    :param into: the writer, or a mapping of the same names to writers.
    :param flush: when the polled records are written, with the offsets, in one transaction: after this many records or
        seconds, or bytes of keys, values and headers, which it exceeds by one record at most. Meanwhile as much again
        waits in memory, besides what Kafka's client has fetched (``queued.max.messages.kbytes``, 64 MiB by default, and
        one more answer). By default 50,000 records, 10,000 with a handler, 1 s and 64 MiB.
    :param dead_letters: keep records that can't be written as dead letters; see docs/dead-letters.md. The process that
        has a letter's partition replays it when that is requested.
    :param filters: `Throttle`, `Delay`, `Expire`, `SkipIf` or your own `Filter`: they decide, in the order given, which
        of the polled records are delivered, and when. Limits apply to this process. A partition whose records wait is
        paused, and keeps its share of a flush, or of 10,000 records; others go on.
    :param tick: work for a process that has written nothing for ``every`` seconds; one process at a time does it.
    :param propagate: the names of headers that follow a record, as ``("traceparent", "tenant")``; see docs/context.md.
    :param metadata: see `TransactionalSink`; ``formats`` are the claim's.
    :param takeover: ``"refuse"`` to start beside a live Spark job of this group, ``"wait"`` until it has left, or
        ``"fence"`` it.
    :param drain: seconds to wait for a delivery that is being written: at the end, and when partitions are taken away,
        then at most 30, and at most a third of ``max.poll.interval.ms``. A paused group's delivery is not waited for.
    :raises ConfigurationError: an argument or a setting is invalid, or would break what the store promises.
    """

    def __init__(
        self,
        store: OffsetStore,
        group: str,
        *,
        topics: Collection[str],
        kafka: Mapping[str, Any],
        transform: ArrowTransform | Handler,
        into: Writer | Mapping[str, Writer],
        flush: Flush | None = None,
        dead_letters: DeadLetters | None = None,
        filters: Sequence[Filter] = (),
        tick: Tick | None = None,
        propagate: Collection[str] = (),
        metadata: MetadataFunction | None = None,
        formats: Formats = None,
        policy: StartPolicy | None = None,
        takeover: Takeover = "refuse",
        drain: float = 30.0,
    ) -> None:
        check_seconds("drain", drain)
        self.store = store
        self.outputs = ConsumerOutputs(transform, into, propagate)
        self.filters = check_filters(filters)
        self.settings = RunnerSettings(metadata=metadata, dead_letters=dead_letters, propagate=propagate, tick=tick)
        self.settings.check_dead_letters(self.outputs.writers.values())
        self.settings.check_handler(self.outputs.handler)
        rows = 50_000 if self.outputs.handler is None else WINDOW
        self.flush = flush or Flush(rows=rows, seconds=1.0, bytes=64 << 20)
        self.drain = drain
        self.kafka = {"isolation.level": "read_committed", **checked_settings(kafka)}
        # A third of the time after which Kafka takes a silent member for dead: `on_assign` waits for former owners.
        self.longest_poll = _milliseconds(kafka) / 1000
        longest = self.longest_poll / 3
        self.request = ClaimRequest(
            group,
            Broker(self.kafka),
            topic_names(topics),
            policy or StartPolicy(),
            takeover,
            min(30.0, longest),
            group,
            metadata=formats,
        )
        self.asked = Broker(self.kafka, timeout=LAST_COMMIT)
        self.fleet_name: str | None = None  # of the fleet that it has joined last
        self.watch: Watch = Unwatched()
        self._stopping = threading.Event()

    def run(self) -> None:
        """Consume until SIGTERM or `stop`; then write what was polled, and leave the group.

        :raises OffsetStoreError: the reason why it ended. What was not written is read again by the member that gets
            the partitions.
        """
        try:
            with self._as_process():
                if (joined := self._join()) is not None:
                    self.fleet_name = joined.fleet_name
                    with joined as member:
                        self.watch.joined(member)
                        Membership(self, member, self._stopping).run()
        except BaseException as error:
            with_empty_frames(error)
            raise
        finally:
            self._stopping.clear()  # only here: `stop` may be called before `run`

    def _join(self) -> Member | None:
        """Join the fleet, with ``takeover="wait"`` once no job has the group; ``None`` if stopped before that."""
        if self._stopping.is_set():
            return None  # without fencing anybody
        if self.request.takeover != "wait":
            return join(self.store, self.request)
        request = replace(self.request, takeover="refuse")
        while True:
            try:
                return join(self.store, request)
            except GroupBusy:
                if self._stopping.wait(_SOON):
                    return None

    def stop(self) -> None:
        """Make `run` end. Any thread may call this."""
        self._stopping.set()

    @contextmanager
    def _as_process(self) -> Generator[None]:
        """In the main thread, end at SIGTERM and be interrupted by Ctrl-C; elsewhere, leave signals alone."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        interrupts = StopRequests()

        def stop(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - Python's signature
            if number != signal.SIGINT:
                self.stop()
            elif interrupts.add():
                raise InterruptSignal

        numbers = [signal.SIGTERM]
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            numbers.append(signal.SIGINT)
        before = {number: signal.signal(number, stop) for number in numbers}
        try:
            with as_main_work():
                yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def checked_settings(kafka: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the settings.

    :raises ConfigurationError: a setting would break what the store promises; the error says what to use instead.
    """
    for name, instead in _REFUSED.items():
        if name in kafka:
            raise ConfigurationError(
                f"kafka= may not set {name}", found=name, expected=instead, next_step="Leave it out of kafka=."
            )
    return kafka


class Membership:
    """One run of a consumer: its member of the fleet and its Kafka client. One thread does all but the deliveries."""

    def __init__(self, consumer: Consumer, member: Member, stopping: threading.Event) -> None:
        self._member = member
        self._stopping = stopping
        self._outputs = consumer.outputs
        self._topic_ids: dict[str, str] = {}  # by topic, for `Record.id`
        self._delivery: Callable[..., PolledRecords] = PolledRecords
        if consumer.outputs.handler is not None:
            self._delivery = partial(HandledRecords, topic_ids=self._topic_ids)
        self._topics = consumer.request.topics
        self._restarts = consumer.request.policy.on_recreated == "restart"
        self._drain = consumer.drain
        self._patience = min(consumer.drain, consumer.request.takeover_timeout)  # in a callback: Kafka waits meanwhile
        self._is_interrupted = False
        self._watch = consumer.watch
        self._in_hand: tuple[Ranges, str] = ({}, "")  # changed only by whoever has the runner's lock, as is the next
        self._is_handling = False
        self._outputs.handling = self._handling
        self._feed = CarefulFeed(
            consumer.flush,
            consumer.filters,
            metadata=partial(_metadata, member),
            log_end=self._log_end,
            suspects=consumer.watch.suspects,
        )
        function = consumer.settings.metadata
        settings = replace(consumer.settings, metadata=None if function is None else self._handling()(function))
        self._runner = Runner(member, self, settings)
        if self._runner.requests is not None:
            self._runner.requests.compute = self._compute_letters
        self._runner.begin()
        self._writing: Future[None] | None = None
        self._number = 0
        self._failed: BaseException | None = None
        self._paused: set[TopicPartition] = set()
        self._alone: tuple[AbstractSet[TopicPartition], int] = (set(), 0)  # polled alone, and since which poll
        self._held: Mapping[TopicPartition, HeldRecord] = {}  # as it was told
        self._empty_at = time.monotonic()  # when Kafka's client last had no more
        self._excused: dict[TopicPartition, tuple[float, float]] = {}  # not to be polled alone: until when, how long
        self._untaken: dict[TopicPartition, float] = {}  # assigned by Kafka, with the time of the next attempt
        self._refused: dict[TopicPartition, bool] = {}  # untaken ones that were refused, and whether alone
        self._alone_at = 0.0  # when a partition that was refused alone may be tried again
        self._taken_at: dict[TopicPartition, float] = {}
        self._asked = consumer.asked
        self._pairs: dict[TopicPartition, EpochPair] = {}  # how far each log was read, and in which leader epoch
        self._commits = Commits(member, consumer.asked, consumer.request.kafka_group, lambda: self._pairs)
        self._polls = 0
        self._polled_at = 0.0
        self._has_ended = False
        replays = consumer.settings.dead_letters is not None
        member.observers.on(SinkMade(group=member.group, token=member.token, query=self, replays_letters=replays))
        config = {
            "fetch.queue.backoff.ms": _FETCH,
            "queued.min.messages": min(max(_AHEAD[0], 2 * consumer.flush.rows), _AHEAD[1]),
            **consumer.kafka,
            "group.id": consumer.request.kafka_group,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",
            "partition.assignment.strategy": "cooperative-sticky",
            "enable.partition.eof": True,
            "on_commit": self._commits.answered,
            "error_cb": self._on_error,
            "logger": LOG,
        }
        self._kafka: Any = make(confluent_kafka.Consumer, config, consumer.kafka)

    def run(self) -> None:
        try:
            self._kafka.subscribe([*self._topics], on_assign=self._on_assign, on_revoke=self._on_revoke)
            while not self._stopping.is_set():
                self._turn()
            self._flush_at_end()
        except BaseException as error:
            self._failed = self._failed or error
            if isinstance(error, TopicRecreated) and self._restarts:
                raise StaleClaim(
                    "a topic was created again: the next process that joins restarts it for the whole group",
                    found=error.found,
                    next_step="Start this process again: it founds a fleet, which fences the other members.",
                ) from error
            raise
        finally:
            self._has_ended = True
            self._leave()

    def _leave(self) -> None:
        # In another thread: if Kafka is away, its client would wait as long as session.timeout.ms.
        def close() -> None:
            try:
                self._kafka.close()  # which calls `_on_revoke`
            finally:
                self._asked.close()

        if wait([ended := meanwhile("offsetstore-kafka-end", close)], timeout=_LEAVING).done:
            ended.result()
        else:
            _log.warning("no answer from Kafka within %g s while leaving group %r", _LEAVING, self._member.group)

    def _turn(self) -> None:
        """Poll, and hand over what is due."""
        self._raise_failed()
        self._take_again()
        self._commits.turn(self._kafka, self._member.partitions)
        is_busy = self._is_busy()
        self._filter()
        alone, seconds = self._polled_alone(), _ASK
        if self._feed.is_due and not is_busy and not alone:
            self._hand_over(self._feed.take())
            if not (alone := self._polled_alone()):
                alone, seconds = self._quiet(), _ASK_QUIET
        writing = self._writing
        if alone:
            # Starving partitions are not paused, not even excused ones: the client would drop what it has of them.
            self._hold({*self._feed.partitions} - alone - self._feed.starving)
            self._poll(self._feed.share, seconds)
        elif room := self._feed.room:
            self._hold({*self._feed.held})
            is_careful = self._feed.is_careful  # then single records are delivered, one right after the other
            if is_careful and writing is not None:
                wait([writing], timeout=_POLL)
            if self._poll(most := min(_MOST, room), 0.0 if is_careful else _POLL) < most:
                self._empty_at = time.monotonic()
        elif writing is None:
            self._hold({*self._feed.partitions})
            self._poll(1, _POLL)
        elif (
            not wait([writing], timeout=_POLL if self._paused else _BRIEF).done
            or time.monotonic() - self._polled_at > _BRIEF  # many short deliveries of what was polled at once
        ):
            self._hold({*self._feed.partitions})
            self._poll(1, 0.0)

    def _polled_alone(self) -> AbstractSet[TopicPartition]:
        """Partitions that others have kept waiting, except unanswered ones (decision 0101)."""
        now = time.monotonic()
        starving = {tp for tp in self._feed.starving if self._excused.get(tp, (0.0, 0.0))[0] <= now}
        before, since = self._alone
        if starving != before:
            self._alone = starving, self._polls
        elif starving and (self._polls - since) * _ASK >= _ANSWER:  # by polls, since a callback may take the time
            for tp in starving:
                pause = min(2 * self._excused.get(tp, (0.0, _EXCUSED / 2))[1], _LONG_EXCUSED)
                self._excused[tp] = now + pause, pause
            self._alone = set(), self._polls
            return set()
        return starving

    def _quiet(self) -> AbstractSet[TopicPartition]:
        """Partitions without known records, if Kafka's client may have been too full to fetch any (decision 0101)."""
        now = time.monotonic()
        if now - self._empty_at <= _FULL:
            return set()
        self._empty_at = now
        return self._feed.quiet - self._feed.held

    def _log_end(self, tp: TopicPartition) -> int:
        """The high watermark of the client's last fetch, so with records of open transactions."""
        try:
            return int(self._kafka.get_watermark_offsets(_kafkas(tp), cached=True)[1])
        except KafkaException:  # it has just lost the partition
            return 0

    def _filter(self) -> None:
        """Have the filters decide about what waits, and report what they drop."""
        self._feed.decide(time.time(), time.monotonic())
        if self._feed.again:
            self._hold(self._paused | self._feed.again.keys())  # so that the client does not fetch it in vain
            for tp, offset in self._feed.again.items():
                self._seek(tp, offset)
            self._feed.again.clear()
        for name, count in self._feed.dropped.items():
            self._member.observers.on(RecordsDropped(group=self._member.group, by=name, records=count))
        self._feed.dropped.clear()
        held = self._feed.held_records
        if {tp: record.offset for tp, record in held.items()} != {
            tp: record.offset for tp, record in self._held.items()
        }:
            self._member.observers.on(RecordsHeld(group=self._member.group, held=held))
            for tp, record in held.items():
                if tp not in self._held or self._held[tp].offset != record.offset:
                    skip = skipping(self._member, tp, OffsetRange(record.offset, record.offset + 1))
                    _log.warning("%s stands, far beyond the filter's own seconds: %s.%s", tp, record, skip)
            self._held = held

    def _poll(self, most: int, seconds: float) -> int:
        """Gather at most ``most`` of the client's records and events; return how many there were."""
        self._polls += 1
        self._polled_at = time.monotonic()
        polled, ends = defaultdict[tuple[str, int], list[Any]](list), dict[TopicPartition, int]()
        received = self._kafka.consume(most, seconds)
        for message in received:
            place = message.topic(), message.partition()
            if (error := message.error()) is None:
                polled[place].append(message)
                continue
            tp = None if place[0] is None else TopicPartition(*place)
            if tp is not None and error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - librdkafka's codes are public
                ends[tp] = message.offset()
            else:  # at once: records that are polled with it may be behind what can't be read
                self._told(error, tp)
        for place, messages in polled.items():
            tp, last = TopicPartition(*place), messages[-1]
            self._feed.add(tp, read_messages(tp, messages), self._topic_ids.get(tp.topic, ""))
            self._excused.pop(tp, None)
            if tp in self._feed.partitions and (epoch := last.leader_epoch()) is not None:
                self._pairs[tp] = EpochPair(last.offset() + 1, epoch)
        for tp, offset in ends.items():  # after the records, which are below
            self._feed.reach(tp, offset)
        return len(received)

    def _told(self, error: KafkaError, tp: TopicPartition | None) -> None:
        code = error.code()
        if tp is not None and code == KafkaError._AUTO_OFFSET_RESET:  # noqa: SLF001 - as above
            if tp in self._feed.partitions:  # else it was given back while this call polled
                _log.warning("Kafka no longer has what comes next in %s: %s", tp, describe(error))
                self._untaken[tp] = 0.0
        elif code == KafkaError._FATAL:  # noqa: SLF001 - as above
            # The client has lost its partitions, and never joins again; it would go on polling in silence.
            raise ConfigurationError(
                "Kafka's client can't go on: another member has its place",
                found=describe(error),
                expected="a group.instance.id that no other process has",
                next_step="Start each process with a group.instance.id of its own; with --static, one supervisor of a "
                "group on each host, and each host with another name.",
            )
        elif error.fatal() or (code not in PASSING | MISSING and (code > 0 or tp is not None)):
            # A partition's error that is not about Kafka's state is about its records: the client would skip these.
            raised = broker_error(error, _READING)
            if tp is not None:
                raised.locate(tp)
            raise raised
        else:
            _log.warning("polling records: %s", describe(error))

    def _on_error(self, error: KafkaError) -> None:
        # Kafka's client would try wrong credentials forever, and reports them only here.
        if error.code() in WRONG_CREDENTIALS:
            self._failed = self._failed or broker_error(error, _READING)

    def _on_assign(self, kafka: Any, assigned: Iterable[Any]) -> None:
        wanted = [TopicPartition(partition.topic, partition.partition) for partition in assigned]
        starts: Mapping[TopicPartition, int] = {}
        try:
            if wanted and self._failed is None:
                starts = self._take(wanted)
        except BaseException as error:  # noqa: BLE001 - raised by the polling thread, outside of the callback
            self._failed = self._failed or error
        # With the offsets, since a seek in the callback has no effect. What was not taken begins at the log's end, and
        # is not gathered (decision 0091).
        end = confluent_kafka.OFFSET_END
        kafka.incremental_assign([_kafkas(tp, starts.get(tp, end)) for tp in wanted])

    def _on_revoke(self, kafka: Any, revoked: Iterable[Any]) -> None:
        """Write what was polled, and give the partitions back. If they are already lost, their tokens decide."""
        gone = [TopicPartition(partition.topic, partition.partition) for partition in revoked]
        try:
            if gone and self._failed is None and not self._flush(self._patience):
                slow = f"what is written takes longer than {self._patience:g} s"
                why = "the group is paused" if self._runner.is_waiting else slow
                _log.warning("%s: the new owner waits, or reads it again", why)
        except BaseException as error:  # noqa: BLE001 - as above
            self._failed = self._failed or error
        if gone:
            self._commits.last(self._kafka, gone)
        self._feed.drop(gone)
        self._member.release(gone)
        self._hold(self._paused.difference(gone))  # Kafka's client would remember the pause when they come back
        for tp in gone:
            self._untaken.pop(tp, None)
            self._refused.pop(tp, None)
            self._pairs.pop(tp, None)
            self._excused.pop(tp, None)
        self._member.forget_doubts(gone)
        kafka.incremental_unassign([_kafkas(tp) for tp in gone])

    def _hold(self, wanted: set[TopicPartition]) -> None:
        """Pause these partitions in Kafka's client, and resume all others."""
        if new := wanted - self._paused:
            self._kafka.pause([_kafkas(tp) for tp in new])
        if over := self._paused - wanted:
            self._kafka.resume([_kafkas(tp) for tp in over])
        self._paused = wanted

    def _take(self, wanted: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Take partitions that Kafka has assigned; return where they start, or nothing to try again later."""
        began = time.monotonic()
        try:
            if pairs := {tp: self._pairs[tp] for tp in wanted if tp in self._pairs}:
                self._member.write_pairs(pairs)  # first: taking them tells whether the logs still have what was read
            starts = self._member.assign(wanted).offsets
            if self._feed.has_filters:
                self._topic_ids |= known_ids(self._member.offsets())
        except _PASSING as error:
            is_gone = isinstance(error, OffsetOutOfRange) and error.topic_partition not in self._member.doubts
            if isinstance(error, LogTruncated) or is_gone:
                raise
            _log.warning("partitions are taken later: %s", without_frames(error))
            now, is_alone = time.monotonic(), len(wanted) == 1
            again = now + max(_SOON, _SHARE * (now - began) if is_alone else 0.0)
            self._untaken |= dict.fromkeys(wanted, again)
            self._refused |= dict.fromkeys(wanted, is_alone)  # from now on one by one: a single one may be the cause
            self._alone_at = again if is_alone else self._alone_at
            return {}
        self._feed.begin(starts, self._member.terms)
        self._taken_at |= dict.fromkeys(starts, time.monotonic())
        for tp in starts:
            self._untaken.pop(tp, None)
            self._refused.pop(tp, None)
            self._pairs.pop(tp, None)
        return starts

    def _take_again(self) -> None:
        """Take partitions that Kafka assigns to this member, but that it does not have, or that have lost records.

        :raises StaleClaim: the whole fleet was fenced.
        """
        if self._member.is_lost:
            raise StaleClaim(
                f"group {self._member.group!r} has been claimed, reset or renamed since",
                found=self._member.taken_by,
                expected=str(self._member.fleet),
            )
        for tp in self._feed.partitions - self._member.terms.keys():
            self._feed.drop([tp])
            # Not at once: a process that was stopped for a while may soon hear that Kafka has given them to others.
            again = max(self._taken_at.get(tp, 0.0) + _AGAIN, time.monotonic() + _HEARD)
            self._untaken.setdefault(tp, again)
        now = time.monotonic()
        due = [tp for tp, at in self._untaken.items() if at <= now]
        apart = [tp for tp in due if tp in self._refused and (not self._refused[tp] or self._alone_at <= now)]
        # One at a time. First the letters that may have been refused because of another partition (decision 0091).
        due = sorted(apart, key=lambda tp: (self._refused[tp], self._untaken[tp]))[:1] or [
            tp for tp in due if tp not in self._refused
        ]
        if not due:
            return
        if is_read := self._feed.partitions & {*due}:
            # Records that a log has lost are not to be written. Others are, even if retention removes them meanwhile.
            self._feed.drop(self._member.find_lost({tp: self._pairs[tp] for tp in is_read if tp in self._pairs}))
            if not self._flush(self._patience):
                return
        for tp, offset in self._take(due).items():
            self._seek(tp, offset)

    def _seek(self, tp: TopicPartition, offset: int) -> None:
        try:
            self._kafka.seek(_kafkas(tp, offset))
        except KafkaException:  # the client has stopped reading it, since the log did not have what comes next
            try:
                self._kafka.incremental_unassign([_kafkas(tp)])
                self._kafka.incremental_assign([_kafkas(tp, offset)])
            except KafkaException as error:
                raised = broker_error(error.args[0], _READING)
                raised.locate(tp)
                raise raised from error

    def _hand_over(self, polled: Mapping[TopicPartition, Polled]) -> bool:
        """Have another thread write what was taken; return whether there was anything to write."""
        if not polled or self._is_interrupted:  # interrupted: it would follow a gap
            return False
        number, self._number = self._number, self._number + 1
        self._writing = meanwhile("offsetstore-delivery", lambda: self._write(number, polled))
        return True

    def _write(self, number: int, polled: Mapping[TopicPartition, Polled]) -> None:
        delivery = self._delivery(number, self._member, self._outputs, polled, self._sleep)

        @contextmanager
        def take() -> Generator[Taken | None]:
            place = single(polled)
            with self._holding(delivery.ranges, "" if place is None else skipping(self._member, *place)):
                yield Taken(delivery)

        try:
            self._runner.run(number, take)
        except Interrupted:
            self._is_interrupted = True
            _log.warning("what was polled of group %r is read again by the next start", self._member.group)

    @contextmanager
    def _holding(self, ranges: Ranges, skip: str = "") -> Generator[None]:
        """Tell the watch about these ranges whenever they are being handled."""
        before, self._in_hand = self._in_hand, (ranges, skip)
        try:
            yield
        finally:
            self._in_hand = before

    @contextmanager
    def _handling(self) -> Generator[None]:
        """Tell the watch what is in hand while the user's function or a writer runs: it may kill the process.

        Nothing is told while the group is paused, or the database is away: a process that dies then dies of no record.
        """
        if self._is_handling:
            yield
            return
        self._is_handling = True
        self._watch.handles(*self._in_hand)
        try:
            yield
        finally:
            self._is_handling = False
            self._watch.handles({}, "")

    @contextmanager
    def _compute_letters(self, letters: Sequence[Letter]) -> Generator[ComputedRecords]:
        places = [(letter.topic_partition, letter.offset) for letter in letters]
        if len(letters) > 1 and has_any(self._watch.suspects(), places):
            raise Halve(PlanOutdated("processes died of one of them"))  # each of them is replayed alone
        skip = discarding(self._member, letters[0]) if len(letters) == 1 else ""
        computing = computed_letters(self._outputs, self._member, letters, self.is_running)
        with self._holding(ranges_of(places), skip), computing as computed:
            yield computed

    def _is_busy(self) -> bool:
        """Whether a delivery is being written.

        :raises Exception: the delivery has failed.
        """
        if self._writing is None or not self._writing.done():
            return self._writing is not None
        ended, self._writing = self._writing, None
        try:
            ended.result()
        finally:
            del ended  # its error refers to this frame
        return False

    def _flush(self, seconds: float) -> bool:
        """Write all that was polled, and wait; return whether that was done in time.

        A paused group's delivery is not waited for, unless it is being interrupted. Suspect records, which are written
        one by one, are left to be read again.
        """
        deadline = time.monotonic() + seconds
        while True:
            while self._writing is not None and (left := deadline - time.monotonic()) > 0:
                # No variable has the future: its error will refer to this frame.
                is_done = bool(wait([self._writing], timeout=min(_POLL, left)).done)
                if is_done or (self._runner.is_waiting and self.is_running()):
                    break
            if self._is_busy():
                return False
            if not self._hand_over(self._feed.take_others()):
                return True

    def _flush_at_end(self) -> None:
        self._raise_failed()
        if not self._flush(self._drain):
            raise SinkError(
                "the consumer was stopped while records are being written",
                found=f"a delivery that has taken longer than {self._drain:g} s",
                next_step="Start it again: what was not written is read again. A larger drain= waits longer.",
            )

    def _raise_failed(self) -> None:
        if self._failed is not None:
            raise self._failed

    def _sleep(self, seconds: float) -> None:
        if seconds and self._stopping.wait(seconds):
            raise _Stopped

    def status(self) -> QueryStatus:
        """See `WatchedQuery`: each poll is a trigger, so health shows a consumer that no longer polls."""
        is_active = self._polls > 0 and not self._has_ended
        return QueryStatus(is_active=is_active, trigger=self._polls, has_failed=self._failed is not None)

    def is_running(self) -> bool:
        """See `Source`."""
        return not self._stopping.is_set()

    def is_stopping(self, error: BaseException) -> bool:
        """See `Source`."""
        return isinstance(error, _Stopped)

    def typed(self, error: BaseException) -> BaseException:
        """See `Source`."""
        return typed(error)


def _milliseconds(kafka: Mapping[str, Any]) -> float:
    interval = kafka.get("max.poll.interval.ms", _LONGEST)
    try:
        return float(interval)
    except (TypeError, ValueError):
        raise ConfigurationError(
            "max.poll.interval.ms in kafka= is no number", found=repr(interval), expected="milliseconds"
        ) from None


def _metadata(member: Member, tp: TopicPartition, term: Term) -> object:
    """A partition's metadata when its term began, also if the member has lost the partition since."""
    return load(member.formats, tp, term.metadata)


def _kafkas(tp: TopicPartition, offset: int = confluent_kafka.OFFSET_INVALID) -> Any:
    return confluent_kafka.TopicPartition(tp.topic, tp.partition, offset)

"""What a consumer does with what Kafka's client says, without Kafka and without a database."""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import confluent_kafka
import pytest
from confluent_kafka import KafkaError, KafkaException, Message

from offsetstore import Flush, Handler, Record, StartingOffsets, StartPolicy, TopicPartition
from offsetstore.consumer import Consumer, SkipIf, handled
from offsetstore.consumer import consumer as consumer_module
from offsetstore.consumer.feed import Feed
from offsetstore.consumer.outputs import Outputs
from offsetstore.consumer.records import Record as Polled
from offsetstore.errors import (
    BrokerError,
    BrokerUnavailable,
    FunctionEnded,
    LogTruncated,
    StaleClaim,
    StoreUnavailable,
    TopicRecreated,
)
from offsetstore.kafka.client import make
from offsetstore.offsets import EpochPair, OffsetRange, Ranges, StoredOffset
from offsetstore.protocol.events import BatchEnded, HandlerCalled
from offsetstore.protocol.policy import OnRecreated
from offsetstore.store.fleet import Member
from offsetstore.testing import InMemoryOffsetStore, StaticBroker
from tests.support.background import in_background
from tests.support.recorder import Recorder
from tests.support.waiting import wait_until

GROUP = "billing"
P0, P1 = (TopicPartition("payments", number) for number in range(2))


class Cluster(StaticBroker):
    """Kafka, without connections."""

    def close(self) -> None: ...


class Client:
    """Kafka's client: it is assigned both partitions, and polls what a test says."""

    def __init__(self) -> None:
        self.polls: deque[Callable[[], list[Any] | None]] = deque()
        self.reads: dict[TopicPartition, int] = {}
        self._callbacks: dict[str, Any] = {}

    def subscribe(self, _: Any, **callbacks: Any) -> None:
        self._callbacks = callbacks
        self.polls.appendleft(lambda: self.assign(P0, P1))

    def assign(self, *partitions: TopicPartition) -> None:
        self._callbacks["on_assign"](self, [confluent_kafka.TopicPartition(*tp) for tp in partitions])

    def revoke(self, *partitions: TopicPartition) -> None:
        self._callbacks["on_revoke"](self, [confluent_kafka.TopicPartition(*tp) for tp in partitions])

    def incremental_assign(self, assigned: Iterable[Any]) -> None:
        self.reads |= {TopicPartition(one.topic, one.partition): one.offset for one in assigned}

    def incremental_unassign(self, given: Iterable[Any]) -> None:
        for one in given:
            if self.reads.pop(TopicPartition(one.topic, one.partition), None) is None:
                raise KafkaException(KafkaError(KafkaError._INVALID_ARG))

    def seek(self, one: Any) -> None:
        tp = TopicPartition(one.topic, one.partition)
        if tp not in self.reads:
            raise KafkaException(KafkaError(KafkaError._STATE))
        self.reads[tp] = one.offset

    def give(self, polled: list[Any]) -> None:
        self.polls.append(lambda: polled)

    def consume(self, *_: float) -> list[Any]:
        if not self.polls:
            time.sleep(0.01)
            return []
        return self.polls.popleft()() or []

    def commit(self, **_: Any) -> None: ...

    def pause(self, _: Any) -> None: ...

    def resume(self, _: Any) -> None: ...

    def close(self) -> None: ...


class Values:
    """A writer that keeps what was written."""

    splittable = True

    def __init__(self) -> None:
        self.written: list[bytes] = []

    def uses_kafka_column(self, schema: Any) -> bool:  # noqa: ARG002
        return False

    def check(self, connection: Any, schema: Any) -> None: ...

    def write(self, work: Any, batches: Iterable[Any]) -> int:  # noqa: ARG002
        values = [value for batch in batches for value in batch.column("value").to_pylist()]
        self.written += values
        return len(values)


def record(tp: TopicPartition, offset: int, *, epoch: int = 0) -> Message:
    made: Any = Message
    return made(
        topic=tp.topic,
        partition=tp.partition,
        offset=offset,
        value=b"%d" % offset,
        timestamp=(0, -1),
        leader_epoch=epoch,
    )


class Undecodable:
    """A record with a header's name that is no UTF-8, as confluent-kafka 2.16 has it."""

    def __init__(self, tp: TopicPartition, offset: int) -> None:
        self._record: Any = record(tp, offset)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._record, name)

    def headers(self) -> Any:
        try:
            b"h\xff".decode()
        except UnicodeDecodeError as error:
            raise SystemError("<method 'headers'> returned a result with an exception set") from error


def event(tp: TopicPartition, code: int, offset: int = -1001) -> Message:
    made: Any = Message
    return made(topic=tp.topic, partition=tp.partition, offset=offset, error=KafkaError(code), timestamp=(0, -1))


def ended(tp: TopicPartition) -> Message:
    """Kafka no longer has what comes next."""
    return event(tp, KafkaError._AUTO_OFFSET_RESET)


@pytest.fixture
def cluster() -> Cluster:
    return Cluster.with_topics({"payments": 2}, end=100)


@pytest.fixture
def store() -> InMemoryOffsetStore:
    return InMemoryOffsetStore()


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Client:
    made = Client()

    def make(_: dict[str, Any]) -> Client:
        return made

    monkeypatch.setattr(confluent_kafka, "Consumer", make)
    return made


@pytest.fixture
def values() -> Values:
    return Values()


@pytest.fixture
def consumer(store: InMemoryOffsetStore, cluster: Cluster, client: Client, values: Values) -> Consumer:
    given: Any = store
    made = Consumer(
        given,
        GROUP,
        topics=["payments"],
        kafka={"bootstrap.servers": "localhost:1"},
        transform=lambda records: records,
        into=values,
        flush=Flush(rows=10),
    )
    made.request = replace(made.request, broker=cluster)
    made.asked = cluster  # type: ignore[assignment]
    return made


def stored(store: InMemoryOffsetStore) -> list[int]:
    return [row.next_offset for _, row in sorted(store.offsets(GROUP).items())]


@pytest.mark.behaviour("CONS-1")
def test_the_end_of_a_log_is_behind_its_records_wherever_the_client_tells_of_it(
    store: InMemoryOffsetStore, client: Client, consumer: Consumer, values: Values
) -> None:
    consumer.flush = Flush(rows=3)
    running = in_background(consumer.run)
    end = event(P0, KafkaError._PARTITION_EOF, 5)  # 2 to 4 are of a transaction that was aborted
    client.give([end, record(P0, 0), record(P1, 0), record(P0, 1)])
    wait_until(lambda: stored(store) == [5, 1], timeout=30.0)
    consumer.stop()
    running.result(timeout=30)
    assert values.written == [b"0", b"1", b"0"]


@pytest.mark.behaviour("CONS-1")
def test_nothing_is_written_that_comes_behind_what_cant_be_read(
    store: InMemoryOffsetStore, client: Client, consumer: Consumer, values: Values, monkeypatch: pytest.MonkeyPatch
) -> None:
    fed: list[int] = []
    add = Feed.add

    def watched(feed: Feed, tp: TopicPartition, records: Sequence[Polled], topic_id: str = "") -> None:
        fed.extend(one.offset for one in records)
        add(feed, tp, records, topic_id)

    monkeypatch.setattr(Feed, "add", watched)
    monkeypatch.setattr(client, "close", lambda: client.revoke(P0, P1))
    running = in_background(consumer.run)
    client.give([record(P0, 0), event(P0, KafkaError._BAD_MSG, 1), record(P0, 2)])
    wait_until(lambda: running.done() or fed, timeout=30.0)
    consumer.stop()
    with pytest.raises(BrokerError, match="payments-0"):
        running.result(timeout=30)
    assert (stored(store), values.written, fed) == ([0, 0], [], [])


@pytest.mark.behaviour("CONS-13", "START-26")
def test_a_log_that_was_truncated_and_has_regrown_ends_the_consumer_and_what_it_lost_is_not_written(
    store: InMemoryOffsetStore, cluster: Cluster, client: Client, consumer: Consumer, values: Values
) -> None:
    def truncated(at: int, what_waits: list[Message]) -> list[Message]:
        cluster.truncate(P0, at, end=90)
        return [*what_waits, ended(P0)]

    running = in_background(consumer.run)
    client.give([record(P0, offset) for offset in range(10)])
    wait_until(lambda: stored(store) == [10, 0], timeout=30.0)
    # What was stored is still there: it is read from there again, and what was lost of the rest was not written.
    client.polls.append(lambda: truncated(12, [record(P0, offset) for offset in range(10, 15)]))
    wait_until(lambda: client.reads == {P0: 10, P1: 0} and not client.polls, timeout=30.0)
    assert stored(store) == [10, 0]
    client.give([record(P0, offset, epoch=1) for offset in range(10, 20)])
    wait_until(lambda: stored(store) == [20, 0], timeout=30.0)
    client.polls.append(lambda: truncated(15, []))
    wait_until(running.done, timeout=30.0)
    with pytest.raises(LogTruncated, match="at offset 15, below the stored offset 20"):
        running.result(timeout=30)
    assert len(values.written) == 20
    assert store.offsets(GROUP)[P0].pair == EpochPair(20, 1)  # so that no start ignores it


@pytest.mark.behaviour("CONS-1")
def test_a_record_whose_headers_cant_be_decoded_is_delivered_without_them(
    store: InMemoryOffsetStore, client: Client, consumer: Consumer, caplog: pytest.LogCaptureFixture
) -> None:
    running = in_background(consumer.run)
    client.give([Undecodable(P1, offset) for offset in range(10)])
    wait_until(lambda: stored(store) == [0, 10], timeout=30.0)
    consumer.stop()
    running.result(timeout=30)
    assert [one.getMessage() for one in caplog.records if "UTF-8" in one.message] == [
        "the names of headers in payments-1 are no UTF-8, first at offset 0: such records come without headers"
    ]


@pytest.mark.behaviour("CONS-6")
def test_a_partition_that_is_long_refused_leaves_most_of_the_time_to_the_others(
    store: InMemoryOffsetStore, client: Client, consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    assign, tried = Member.assign, deque[tuple[float, float]]()

    def refuse(member: Member, partitions: Collection[TopicPartition]) -> StartingOffsets:
        if P1 not in partitions:
            return assign(member, partitions)
        began = time.monotonic()
        time.sleep(0.3)
        tried.append((began, time.monotonic()))
        raise BrokerUnavailable("no leader", topic_partition=P1)

    monkeypatch.setattr(Member, "assign", refuse)
    monkeypatch.setattr(consumer_module, "_SOON", 0.01)
    running = in_background(consumer.run)
    wait_until(lambda: len(tried) >= 4, timeout=30.0)
    client.give([record(P0, offset) for offset in range(10)])
    wait_until(lambda: stored(store) == [10, 0], timeout=30.0)
    consumer.stop()
    running.result(timeout=30)
    (_, _), (_, alone), (second, ended_second), (third, _) = [*tried][:4]
    assert second - alone >= 0.9
    assert third - ended_second >= 0.9


@pytest.mark.behaviour("CONS-13")
@pytest.mark.parametrize(("policy", "error"), [("restart", StaleClaim), ("fail", TopicRecreated)])
def test_a_topic_that_was_created_again_is_restarted_by_the_next_process_if_the_policy_says_so(
    store: InMemoryOffsetStore,
    cluster: Cluster,
    client: Client,
    consumer: Consumer,
    *,
    policy: OnRecreated,
    error: type[Exception],
) -> None:
    def recreate() -> list[Message]:
        log = replace(cluster.current.topics["payments"], topic_id="another")
        cluster.current = replace(cluster.current, topics={"payments": log})
        return [record(P0, 10), ended(P0)]

    consumer.request = replace(consumer.request, policy=StartPolicy(on_recreated=policy))
    running = in_background(consumer.run)
    client.give([record(P0, offset) for offset in range(10)])
    wait_until(lambda: stored(store) == [10, 0], timeout=30.0)
    client.polls.append(recreate)
    wait_until(running.done, timeout=30.0)
    assert isinstance(running.exception(), error)
    assert stored(store) == [10, 0]


@pytest.mark.behaviour("HAND-9", "OPS-4")
def test_a_long_flush_of_a_handler_is_told_of_while_its_calls_go_on(
    client: Client, consumer: Consumer, values: Values, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handled, "_TELL", 0.01)
    recorder = Recorder()
    consumer.store = cast("Any", InMemoryOffsetStore(observers=[recorder]))

    def call(record: Record) -> tuple[bytes]:
        time.sleep(0.02)
        return (record.value or b"",)

    consumer.outputs = Outputs(Handler(call, "value binary", ordering="partition"), values)
    running = in_background(consumer.run)
    client.give([record(P0, offset) for offset in range(100)])
    wait_until(lambda: len(values.written) == 100, timeout=30.0)
    consumer.stop()
    running.result(timeout=30)
    told = recorder.of(HandlerCalled)
    assert len(told) > 1
    assert sum(one.calls for one in told) == 100
    assert recorder.events.index(told[0]) < recorder.events.index(recorder.of(BatchEnded)[0])


@pytest.mark.behaviour("CONS-5")
def test_what_kafka_says_of_a_partition_that_was_just_given_back_takes_it_from_nobody(
    store: InMemoryOffsetStore, client: Client, consumer: Consumer
) -> None:
    def give_back() -> list[Message]:
        client.revoke(P0)
        return [ended(P0)]

    running = in_background(consumer.run)
    client.polls.append(give_back)
    client.give([record(P1, offset) for offset in range(10)])
    wait_until(lambda: stored(store) == [0, 10], timeout=30.0)
    consumer.stop()
    running.result(timeout=30)
    assert client.reads == {P1: 0}


@pytest.mark.behaviour("CONS-6", "CONS-10")
def test_a_database_that_fails_once_partitions_are_taken_does_not_end_the_consumer(
    store: InMemoryOffsetStore, client: Client, consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    offsets, failing = Member.offsets, [StoreUnavailable("gone")]

    def read(member: Member) -> Mapping[TopicPartition, StoredOffset]:
        if failing:
            raise failing.pop()
        return offsets(member)

    monkeypatch.setattr(Member, "offsets", read)
    monkeypatch.setattr(consumer_module, "_SOON", 0.01)
    consumer.filters = (SkipIf(lambda record: record.offset == 0),)
    running = in_background(consumer.run)
    wait_until(lambda: not failing and not client.polls, timeout=30.0)
    client.give([record(P0, offset) for offset in range(11)])
    wait_until(lambda: stored(store) == [11, 0], timeout=30.0)
    consumer.stop()
    running.result(timeout=30)


class Watching:
    """Whoever looks after the process, and is told what it handles.

    :param suspect: ranges to be careful with.
    """

    def __init__(self, suspect: Ranges | None = None) -> None:
        self.told: list[Any] = []
        self.ranges: list[dict[str, str]] = []
        self._suspect = suspect or {}

    def joined(self, _: Any) -> None:
        self.told.append("joined")

    def suspects(self) -> Ranges:
        return self._suspect

    def handles(self, ranges: Ranges, skip: str) -> None:
        self.ranges.append({str(tp): str(range_) for tp, range_ in ranges.items()})
        self.told.append((self.ranges[-1], skip))


SKIP_1 = (
    " To skip only this record: offsetstore reset -g billing -t payments:0 --from-offset 1 --to-offset 2 "
    '--reason "…" --execute'
)


@pytest.mark.behaviour("CONS-17")
def test_what_is_handled_is_told_before_the_function_is_called_and_taken_back_when_it_is_stored(
    store: InMemoryOffsetStore, client: Client, consumer: Consumer
) -> None:
    watching = consumer.watch = Watching()

    def transform(records: Any) -> Any:
        watching.told.append(records.num_rows)
        return records

    consumer.outputs = Outputs(transform, Values())
    consumer.flush = Flush(rows=2)
    running = in_background(consumer.run)
    client.give([record(P0, 0), record(P1, 0)])
    wait_until(lambda: stored(store) == [1, 1] and len(watching.told) == 4, timeout=30.0)
    both = {"payments-0": "[0, 1)", "payments-1": "[0, 1)"}
    assert watching.told == ["joined", (both, ""), 2, ({}, "")]
    client.give([record(P0, 1)])
    wait_until(lambda: not client.polls, timeout=30.0)
    consumer.stop()
    running.result(timeout=30)
    assert watching.told[4:] == [({"payments-0": "[1, 2)"}, SKIP_1), 1, ({}, "")]
    assert stored(store) == [2, 1]


@pytest.mark.behaviour("CONS-17")
@pytest.mark.parametrize("has_handler", [False, True])
def test_records_in_whose_handling_processes_died_are_handled_one_by_one(
    store: InMemoryOffsetStore, client: Client, consumer: Consumer, *, has_handler: bool
) -> None:
    """With a handler no two calls run at once there."""
    watching = consumer.watch = Watching({P0: OffsetRange(0, 3)})
    running_now, met = set[tuple[int, int]](), list[set[tuple[int, int]]]()
    values = Values()

    def transform(records: Any) -> Any:
        watching.told.append(records.num_rows)
        return records

    def handle(one: Record) -> tuple[bytes]:
        running_now.add((one.partition, one.offset))
        met.append({*running_now})
        threading.Event().wait(0.02)  # others that may run now begin meanwhile
        running_now.discard((one.partition, one.offset))
        return (one.value or b"",)

    consumer.outputs = Outputs(Handler(handle, "value binary", ordering="none") if has_handler else transform, values)
    running = in_background(consumer.run)
    client.give([record(P0, offset) for offset in range(6)] + [record(P1, offset) for offset in range(4)])
    wait_until(lambda: running.done() or stored(store) == [6, 4], timeout=30.0)
    consumer.stop()
    running.result(timeout=30)
    handled = [ranges for ranges in watching.ranges if ranges]
    assert handled == [
        {"payments-1": "[0, 4)"},
        {"payments-0": "[0, 1)"},
        {"payments-0": "[1, 2)"},
        {"payments-0": "[2, 3)"},
        {"payments-0": "[3, 6)"},
    ]
    assert ({"payments-0": "[1, 2)"}, SKIP_1) in watching.told
    assert sorted(values.written) == sorted(b"%d" % n for n in [*range(6), *range(4)])
    assert not [some for some in met if len(some) > 1 and some & {(0, offset) for offset in range(3)}]
    assert any(len(some) > 1 for some in met) == has_handler


@pytest.mark.behaviour("CONS-15")
def test_a_function_among_kafkas_settings_that_exits_ends_the_poll_alone() -> None:
    def leaves(_: str) -> None:
        sys.exit(0)

    settings: dict[str, Any] = {"stats_cb": leaves, "statistics.interval.ms": 5}
    made = make(lambda config: config, {**settings, "error_cb": print}, settings)
    assert made.keys() == {"stats_cb", "statistics.interval.ms", "error_cb"}
    with pytest.raises(FunctionEnded):
        made["stats_cb"]("{}")


@pytest.mark.behaviour("CONS-7", "CONS-18")
def test_kafka_is_polled_between_many_short_deliveries_of_what_was_polled_at_once(
    store: InMemoryOffsetStore,
    client: Client,
    consumer: Consumer,
    values: Values,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(consumer_module, "_BRIEF", 0.2)
    consumer.flush, polls, write = Flush(rows=100, bytes=1), list[int](), values.write
    consume, pause = client.consume, threading.Event()

    def slowly(work: Any, batches: Iterable[Any]) -> int:
        pause.wait(0.05)
        return write(work, batches)

    def counted(*given: float) -> list[Any]:
        polls.append(len(values.written))
        return consume(*given)

    monkeypatch.setattr(values, "write", slowly)
    monkeypatch.setattr(client, "consume", counted)
    running = in_background(consumer.run)
    client.give([record(P0, offset) for offset in range(40)])
    wait_until(lambda: stored(store) == [40, 0], timeout=30.0)
    consumer.stop()
    running.result(timeout=30)
    assert len({number for number in polls if 0 < number < 40}) >= 4

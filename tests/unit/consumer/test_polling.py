"""What a consumer does with what Kafka's client says, without Kafka and without a database."""

from __future__ import annotations

import re
import sys
import threading
import time
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby, pairwise
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import KafkaError, KafkaException, Message

from offsetstore import (
    DeadLetters,
    Flush,
    Handler,
    Record,
    Retries,
    StartingOffsets,
    StartPolicy,
    TopicPartition,
)
from offsetstore.consumer import Consumer, Delay, SkipIf, Throttle, handled
from offsetstore.consumer import consumer as consumer_module
from offsetstore.consumer import feed as feed_module
from offsetstore.consumer.delivery import ConsumerOutputs
from offsetstore.consumer.feed import Feed
from offsetstore.consumer.records import ConsumedRecord as Polled
from offsetstore.errors import (
    BrokerError,
    BrokerUnavailable,
    FunctionEnded,
    LockTimeout,
    LogTruncated,
    OffsetOutOfRange,
    StaleClaim,
    StoreUnavailable,
    TopicMissing,
    TopicRecreated,
)
from offsetstore.kafka.client import make
from offsetstore.offsets import EpochPair, OffsetRange, Ranges, StoredOffset
from offsetstore.processing import put_back
from offsetstore.protocol.events import BatchEnded, Event, HandlerCalled, PauseChanged, RecordsHeld, Retried
from offsetstore.protocol.starting import OnRecreated
from offsetstore.store.fleet import Member
from offsetstore.testing import InMemoryOffsetStore
from tests.support.background import in_background
from tests.support.kafka_client import FakeClient, FakeCluster
from tests.support.recorder import Recorder
from tests.support.waiting import wait_until
from tests.unit.consumer.conftest import GROUP, P0, P1, consumer_of, running


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


def record(tp: TopicPartition, offset: int, *, epoch: int = 0, timestamp: tuple[int, int] = (0, -1)) -> Message:
    made: Any = Message
    given = {"value": b"%d" % offset, "timestamp": timestamp, "leader_epoch": epoch}
    return made(topic=tp.topic, partition=tp.partition, offset=offset, **given)


def records(tp: TopicPartition, *offsets: int) -> list[Any]:
    """The records at the offsets of a range."""
    return [record(tp, offset) for offset in range(*offsets)]


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
def values() -> Values:
    return Values()


@pytest.fixture
def consumer(store: InMemoryOffsetStore, cluster: FakeCluster, client: FakeClient, values: Values) -> Consumer:
    return consumer_of(store, cluster, into=values, flush=Flush(rows=10))


def stored(store: InMemoryOffsetStore) -> list[int]:
    return [row.next_offset for _, row in sorted(store.offsets(GROUP).items())]


@pytest.mark.behaviour("CONS-1")
def test_the_end_of_a_log_is_behind_its_records_wherever_the_client_tells_of_it(
    store: InMemoryOffsetStore, client: FakeClient, consumer: Consumer, values: Values
) -> None:
    consumer.flush = Flush(rows=3)
    with running(consumer):
        end = event(P0, KafkaError._PARTITION_EOF, 5)  # 2 to 4 are of a transaction that was aborted
        client.give([end, record(P0, 0), record(P1, 0), record(P0, 1)])
        wait_until(lambda: stored(store) == [5, 1])
    assert values.written == [b"0", b"1", b"0"]


@pytest.mark.behaviour("CONS-1")
def test_nothing_is_written_that_comes_behind_what_cant_be_read(
    store: InMemoryOffsetStore, client: FakeClient, consumer: Consumer, values: Values, monkeypatch: pytest.MonkeyPatch
) -> None:
    fed: list[int] = []
    add = Feed.add

    def watched(feed: Feed, tp: TopicPartition, records: Sequence[Polled], topic_id: str = "") -> None:
        fed.extend(one.offset for one in records)
        add(feed, tp, records, topic_id)

    monkeypatch.setattr(Feed, "add", watched)
    monkeypatch.setattr(client, "close", lambda: client.revoke(P0, P1))
    done = in_background(consumer.run)
    client.give([record(P0, 0), event(P0, KafkaError._BAD_MSG, 1), record(P0, 2)])
    wait_until(lambda: done.done() or fed)
    consumer.stop()
    with pytest.raises(BrokerError, match="payments-0"):
        done.result(timeout=30)
    assert (stored(store), values.written, fed) == ([0, 0], [], [])


@pytest.mark.behaviour("CONS-13", "START-26")
def test_a_log_that_was_truncated_and_has_regrown_ends_the_consumer_and_what_it_lost_is_not_written(
    store: InMemoryOffsetStore, cluster: FakeCluster, client: FakeClient, consumer: Consumer, values: Values
) -> None:
    def truncated(at: int, what_waits: list[Message]) -> list[Message]:
        cluster.truncate(P0, at, end=90)
        return [*what_waits, ended(P0)]

    done = in_background(consumer.run)
    client.give(records(P0, 10))
    wait_until(lambda: stored(store) == [10, 0])
    # What was stored is still there: it is read from there again, and what was lost of the rest was not written.
    client.polls.append(lambda: truncated(12, records(P0, 10, 15)))
    wait_until(lambda: client.reads == {P0: 10, P1: 0} and not client.polls)
    assert stored(store) == [10, 0]
    client.give([record(P0, offset, epoch=1) for offset in range(10, 20)])
    wait_until(lambda: stored(store) == [20, 0])
    client.polls.append(lambda: truncated(15, []))
    wait_until(done.done)
    with pytest.raises(LogTruncated, match="at offset 15, below the stored offset 20"):
        done.result(timeout=30)
    assert len(values.written) == 20
    assert store.offsets(GROUP)[P0].pair == EpochPair(20, 1)  # so that no start ignores it


@pytest.mark.behaviour("CONS-13")
def test_a_partition_that_the_client_cant_read_again_ends_the_consumer_with_an_error_of_ours(
    cluster: FakeCluster, client: FakeClient, consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: Any) -> None:
        raise KafkaException(KafkaError(KafkaError._STATE))

    monkeypatch.setattr(client, "seek", refuse)
    monkeypatch.setattr(client, "incremental_unassign", refuse)
    done = in_background(consumer.run)
    client.give([ended(P0)])
    with pytest.raises(BrokerError, match="payments-0"):
        done.result(timeout=30)


@pytest.mark.behaviour("CONS-1")
def test_a_record_whose_headers_cant_be_decoded_is_delivered_without_them(
    store: InMemoryOffsetStore, client: FakeClient, consumer: Consumer, caplog: pytest.LogCaptureFixture
) -> None:
    with running(consumer):
        client.give([Undecodable(P1, offset) for offset in range(10)])
        wait_until(lambda: stored(store) == [0, 10])
    assert [one.getMessage() for one in caplog.records if "UTF-8" in one.message] == [
        "the names of headers in payments-1 are no UTF-8, first at offset 0: such records come without headers"
    ]


@pytest.mark.behaviour("CONS-6")
def test_a_partition_that_cant_be_taken_is_taken_later_and_keeps_no_other_waiting(
    store: InMemoryOffsetStore, client: FakeClient, consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    assign, tried = Member.assign, list[tuple[float, float]]()
    wrong = deque([LockTimeout("locked"), StoreUnavailable("gone"), BrokerUnavailable("gone"), TopicMissing("not yet")])

    def refuse(member: Member, partitions: Collection[TopicPartition]) -> StartingOffsets:
        if P1 not in partitions or not wrong:
            return assign(member, partitions)
        began = time.monotonic()
        time.sleep(0.1)
        tried.append((began, time.monotonic()))
        raise wrong[0] if len(wrong) == 1 else wrong.popleft()

    monkeypatch.setattr(Member, "assign", refuse)
    monkeypatch.setattr(consumer_module, "_SOON", 0.01)
    with running(consumer):
        wait_until(lambda: len(tried) >= 4)
        client.give(records(P0, 10))
        wait_until(lambda: stored(store) == [10, 0])
        wrong.clear()
        wait_until(lambda: client.reads[P1] == 0)
        client.give(records(P1, 10))
        wait_until(lambda: stored(store) == [10, 10])
    # The more time it takes, the less often it is tried alone.
    assert all(begins - ended >= 0.3 for (_, ended), (begins, _) in pairwise(tried[1:4]))


@pytest.mark.behaviour("CONS-13")
@pytest.mark.parametrize("is_doubtful", [True, False], ids=["perhaps a new leader", "records that are gone"])
def test_a_short_log_is_looked_at_again_and_one_whose_records_are_gone_ends_the_consumer(
    store: InMemoryOffsetStore,
    client: FakeClient,
    consumer: Consumer,
    monkeypatch: pytest.MonkeyPatch,
    *,
    is_doubtful: bool,
) -> None:
    assign, refused = Member.assign, ["the log ends too early, or begins too late"]

    def refuse(member: Member, partitions: Collection[TopicPartition]) -> StartingOffsets:
        if not refused:
            return assign(member, partitions)
        others = {TopicPartition("of another topic", 0): 0.0}  # which is in doubt since long ago
        member.doubts = {**others, **({P0: time.monotonic()} if is_doubtful else {})}
        raise OffsetOutOfRange(refused.pop(), topic_partition=P0)

    monkeypatch.setattr(Member, "assign", refuse)
    monkeypatch.setattr(consumer_module, "_SOON", 0.01)
    done = in_background(consumer.run)
    wait_until(lambda: done.done() or client.reads == {P0: 0, P1: 0})
    consumer.stop()
    assert isinstance(done.exception(timeout=30), OffsetOutOfRange) is not is_doubtful


@pytest.mark.behaviour("CONS-13")
@pytest.mark.parametrize(("policy", "error"), [("restart", StaleClaim), ("fail", TopicRecreated)])
def test_a_topic_that_was_created_again_is_restarted_by_the_next_process_if_the_policy_says_so(
    store: InMemoryOffsetStore,
    cluster: FakeCluster,
    client: FakeClient,
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
    done = in_background(consumer.run)
    client.give(records(P0, 10))
    wait_until(lambda: stored(store) == [10, 0])
    client.polls.append(recreate)
    wait_until(done.done)
    assert isinstance(done.exception(), error)
    assert stored(store) == [10, 0]


@pytest.mark.behaviour("HAND-9", "OPS-4")
def test_a_long_flush_of_a_handler_is_told_of_while_its_calls_go_on(
    client: FakeClient, consumer: Consumer, values: Values, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handled, "_TELL", 0.01)

    def call(record: Record) -> tuple[bytes]:
        time.sleep(0.02)
        return (record.value or b"",)

    consumer.outputs = ConsumerOutputs(Handler(call, "value binary", ordering="partition"), values)
    with running(consumer):
        client.give(records(P0, 100))
        wait_until(lambda: len(values.written) == 100)
    told = recorder.of(HandlerCalled)
    assert len(told) > 1
    assert sum(one.calls for one in told) == 100
    assert recorder.events.index(told[0]) < recorder.events.index(recorder.of(BatchEnded)[0])


@pytest.mark.behaviour("CONS-5")
def test_what_kafka_says_of_a_partition_that_was_just_given_back_takes_it_from_nobody(
    store: InMemoryOffsetStore, client: FakeClient, consumer: Consumer
) -> None:
    def give_back() -> list[Message]:
        client.revoke(P0)
        return [ended(P0)]

    with running(consumer):
        client.polls.append(give_back)
        client.give(records(P1, 10))
        wait_until(lambda: stored(store) == [0, 10])
    assert client.reads == {P1: 0}


@pytest.mark.behaviour("CONS-6", "CONS-10")
def test_a_database_that_fails_once_partitions_are_taken_does_not_end_the_consumer(
    store: InMemoryOffsetStore, client: FakeClient, consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    offsets, failing = Member.offsets, [StoreUnavailable("gone")]

    def read(member: Member) -> Mapping[TopicPartition, StoredOffset]:
        if failing:
            raise failing.pop()
        return offsets(member)

    monkeypatch.setattr(Member, "offsets", read)
    monkeypatch.setattr(consumer_module, "_SOON", 0.01)
    consumer.filters = (SkipIf(lambda record: record.offset == 0),)
    with running(consumer):
        wait_until(lambda: client.reads == {P0: 0, P1: 0})
        client.give(records(P0, 11))
        wait_until(lambda: stored(store) == [11, 0])


@pytest.mark.behaviour("CONS-20", "CONS-10")
def test_a_record_that_a_filter_would_hold_for_ages_is_told_once_with_its_date_and_the_command_that_skips_it(
    client: FakeClient, consumer: Consumer, caplog: pytest.LogCaptureFixture, values: Values, recorder: Recorder
) -> None:
    consumer.filters, consumer.flush = (Delay(60),), Flush(rows=2, seconds=0.05)
    ahead = int(time.time() * 1000) + 50_000 * 31_556_952_000
    with running(consumer):
        stamped = [record(P0, 0, timestamp=(1, 0)), record(P0, 1, timestamp=(1, ahead))]
        client.give([*stamped, *records(P1, 2)])
        wait_until(lambda: len(values.written) == 3)  # the other partition goes on
        wait_until(lambda: recorder.of(RecordsHeld))
        polls = client.polls
        client.polls.append(lambda: [record(P1, 2)])
        wait_until(lambda: not polls)
    [told] = recorder.of(RecordsHeld)
    assert {tp: (one.by, one.offset) for tp, one in told.held.items()} == {P0: ("Delay", 1)}
    [warned] = [one.getMessage() for one in caplog.records if "stands" in one.message]
    assert re.fullmatch(
        "payments-0 stands, far beyond the filter's own seconds: the filter Delay holds it at record 1, until the year "
        "5[0-9]{4}. To skip only this record, once all consumers are stopped: "
        "offsetstore reset -g billing -t payments:0 --from-offset 1 "
        '--to-offset 2 --reason "…" --execute.?',
        warned,
    )


@pytest.mark.behaviour("CONS-19")
def test_what_a_filter_defers_beyond_its_share_is_read_again(
    store: InMemoryOffsetStore, client: FakeClient, consumer: Consumer, values: Values, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed_module, "_DEFERRED", 1)  # five records of each of the two
    consumer.filters, consumer.flush = (Throttle(4, per=0.2),), Flush(rows=10, seconds=0.05)
    with running(consumer):
        client.give(records(P0, 20))
        wait_until(lambda: stored(store) == [5, 0])
        assert client.reads[P0] == 5
        client.give(records(P0, 5, 8))
        wait_until(lambda: stored(store) == [8, 0])
    assert values.written == [b"%d" % n for n in range(8)]


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
    " To skip only this record, once all consumers are stopped: offsetstore reset -g billing -t payments:0 "
    "--from-offset 1 --to-offset 2 "
    '--reason "…" --execute'
)


class Told(Values):
    """A writer that is in what is told; the first time the database is away."""

    def __init__(self, watching: Watching) -> None:
        super().__init__()
        self.told = watching.told

    def write(self, work: Any, batches: Iterable[Any]) -> int:
        is_away = "write" not in self.told
        self.told.append("write")
        if is_away:
            raise StoreUnavailable("gone")
        return super().write(work, batches)

    def on(self, event: Event) -> None:
        if isinstance(event, Retried):
            self.told.append("away")


@pytest.mark.behaviour("CONS-17")
def test_what_is_handled_is_told_while_the_function_or_a_writer_runs_and_not_in_between(
    store: InMemoryOffsetStore, client: FakeClient, consumer: Consumer, recorder: Recorder
) -> None:
    """While the group is paused, or the database is away, a process that dies dies of no record."""
    watching = consumer.watch = Watching()
    writer = Told(watching)

    def transform(records: Any) -> Any:
        watching.told.append(records.num_rows)
        return records

    def metadata(_: object) -> None:
        watching.told.append("metadata")

    consumer.outputs = ConsumerOutputs(transform, writer)
    consumer.settings = replace(consumer.settings, metadata=metadata)
    consumer.flush = Flush(rows=2)
    store.observers = store.observers.with_one(writer)
    with running(consumer):
        wait_until(lambda: watching.told == ["joined"])
        store.pause(GROUP, reason="a change of the table")
        client.give([record(P0, 0), record(P1, 0)])
        wait_until(lambda: recorder.of(PauseChanged))
        assert watching.told == ["joined"]
        store.resume(GROUP, reason="it is done")
        none: tuple[dict[str, str], str] = ({}, "")
        both = ({"payments-0": "[0, 1)", "payments-1": "[0, 1)"}, "")
        wait_until(lambda: stored(store) == [1, 1] and watching.told[-2:] == ["write", none])
        expected: list[Any] = [both, 2, none, both, "metadata", none, both, "write", none, "away", both, "write", none]
        assert watching.told[1:] == expected
        client.give([record(P0, 1)])
        wait_until(lambda: not client.polls)
    one = ({"payments-0": "[1, 2)"}, SKIP_1)
    assert watching.told[1 + len(expected) :] == [one, 1, none, one, "metadata", none, one, "write", none]
    assert stored(store) == [2, 1]


@pytest.mark.behaviour("CONS-17", "DLQ-4")
@pytest.mark.parametrize("has_handler", [False, True])
def test_letters_that_are_suspect_are_replayed_one_by_one_and_told_with_the_command_that_gives_them_up(
    store: InMemoryOffsetStore,
    client: FakeClient,
    consumer: Consumer,
    monkeypatch: pytest.MonkeyPatch,
    *,
    has_handler: bool,
) -> None:
    watching, called, bad = Watching({P0: OffsetRange(0, 2)}), list[list[int]](), {b"0", b"1", b"3", b"4"}
    consumer.watch = watching

    def transform(records: Any) -> Any:
        found = records.column("value").to_pylist()
        called.append([int(value) for value in found])
        rejects = [str(value) if value in bad else None for value in found]
        return records.append_column("_reject", pa.array(rejects, pa.string()))

    def handle(one: Record) -> tuple[bytes]:
        assert one.value is not None
        called.append([int(one.value)])
        if one.value in bad:
            raise ValueError
        return (one.value,)

    monkeypatch.setattr(put_back, "_EVERY", 0.01)
    given: Any = Handler(handle, "value binary", ordering="none", retries=Retries(1)) if has_handler else transform
    consumer.outputs = ConsumerOutputs(given, values := Values())
    consumer.settings = replace(consumer.settings, dead_letters=DeadLetters())
    consumer.flush = Flush(rows=6)
    with running(consumer) as done:
        client.give(records(P0, 6))
        wait_until(lambda: done.done() or stored(store)[:1] == [6])
        assert values.written == [b"2", b"5"]
        told = len(watching.told)
        bad.clear()
        called.clear()
        store.decide_letters(GROUP, "requested")
        wait_until(lambda: done.done() or len(values.written) == 6)
    handled = dict.fromkeys((str(ranges), skip) for ranges, skip in watching.told[told:] if ranges)
    give_up = ' --reason "…" --execute'
    command = " To give up only this dead letter: offsetstore dead-letters discard -g billing payments:0:"
    assert [*handled] == [
        (str({"payments-0": "[0, 1)"}), f"{command}0{give_up}"),
        (str({"payments-0": "[1, 2)"}), f"{command}1{give_up}"),
        (str({"payments-0": "[3, 5)"}), ""),
    ]
    assert [one for one in called if {*one} & {0, 1} and len(one) > 1] == []
    assert values.written[2:] == [b"0", b"1", b"3", b"4"]


@pytest.mark.behaviour("CONS-17", "CONS-12")
@pytest.mark.parametrize("how", ["stop", "revoke"])
def test_at_the_end_suspect_records_are_left_to_be_read_again_and_others_are_written(
    store: InMemoryOffsetStore, client: FakeClient, consumer: Consumer, how: str
) -> None:
    consumer.watch, inside, go_on = Watching({P0: OffsetRange(0, 100)}), threading.Event(), threading.Event()

    def transform(records: Any) -> Any:
        if not {*records.column("partition").to_pylist()} - {0}:
            inside.set()
            go_on.wait(30)
        return records

    consumer.outputs = ConsumerOutputs(transform, Values())
    consumer.flush = Flush(rows=1)
    with running(consumer) as done:
        client.give(records(P0, 50))
        assert inside.wait(30)
        client.give([record(P1, 0)])
        wait_until(lambda: not client.polls)
        if how == "stop":
            consumer.stop()
        else:
            client.polls.append(lambda: client.revoke(P0, P1))
        go_on.set()
        wait_until(lambda: done.done() or stored(store)[1:] == [1])
    assert stored(store) == [1, 1]


@pytest.mark.behaviour("CONS-17")
@pytest.mark.parametrize("has_handler", [False, True])
def test_records_in_whose_handling_processes_died_are_handled_one_by_one(
    store: InMemoryOffsetStore, client: FakeClient, consumer: Consumer, *, has_handler: bool
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

    consumer.outputs = ConsumerOutputs(
        Handler(handle, "value binary", ordering="none") if has_handler else transform, values
    )
    with running(consumer) as done:
        client.give(records(P0, 6) + records(P1, 4))
        wait_until(lambda: done.done() or stored(store) == [6, 4])
    handled = [ranges for ranges, _ in groupby(filter(None, watching.ranges))]  # for the function, then for the writer
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
    store: InMemoryOffsetStore, client: FakeClient, consumer: Consumer, values: Values, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer_module, "_BRIEF", 0.2)
    consumer.flush, polls, write = Flush(rows=100, bytes=1), list[int](), values.write
    consume, pause = client.consume, threading.Event()

    def slowly(work: Any, batches: Iterable[Any]) -> int:
        pause.wait(0.05)
        return write(work, batches)

    def counted(most: int, seconds: float) -> list[Any]:
        polls.append(len(values.written))
        return consume(most, seconds)

    monkeypatch.setattr(values, "write", slowly)
    monkeypatch.setattr(client, "consume", counted)
    with running(consumer):
        client.give(records(P0, 40))
        wait_until(lambda: stored(store) == [40, 0])
    assert len({number for number in polls if 0 < number < 40}) >= 4

"""Polled records, and what waits to be delivered, without Kafka."""

from __future__ import annotations

from decimal import Decimal
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import KafkaError, Message

from offsetstore import (
    Append,
    DeadLetters,
    Execute,
    Flush,
    Handler,
    OffsetRange,
    OffsetStore,
    StartPolicy,
    TopicPartition,
)
from offsetstore.consumer import Consumer, Delay, Expire, SkipIf, Throttle
from offsetstore.consumer import delivery as module
from offsetstore.consumer.consumer import Membership
from offsetstore.consumer.delivery import ComputedRecords, ConsumerOutputs, _joined
from offsetstore.consumer.feed import Feed
from offsetstore.consumer.records import ConsumedRecord, batch_of, read_messages
from offsetstore.errors import BrokerError, ColumnMismatch, ConfigurationError
from offsetstore.processing.handled_rows import schema_of
from offsetstore.protocol.letters import Payload
from offsetstore.store.term import Term
from offsetstore.testing import InMemoryOffsetStore

P0, P1 = (TopicPartition("payments", number) for number in range(2))


def record(tp: TopicPartition, offset: int, value: bytes | None = b"1234") -> ConsumedRecord:
    return ConsumedRecord(tp, offset, Payload(None, value, (), 0, 0))


def offsets(feed: Feed) -> dict[TopicPartition, tuple[OffsetRange, list[int]]]:
    return {tp: (one.range, [record.offset for record in one.records]) for tp, one in feed.take().items()}


@pytest.mark.behaviour("CONS-1")
def test_records_have_the_columns_of_spark_s_source_and_their_coordinates() -> None:
    made: Any = Message
    given = {"topic": "payments", "partition": 1}
    message = made(**given, offset=7, key=b"k", value=b"v", headers=[("a", b"b")], timestamp=(2, 5))
    bare = made(**given, offset=9, value=None, timestamp=(0, -1))
    read = read_messages(P1, [message, bare])
    assert read == [
        ConsumedRecord(P1, 7, Payload(b"k", b"v", (("a", b"b"),), 5, 1)),
        ConsumedRecord(P1, 9, Payload(None, None, (), None, -1)),
    ]
    batch: Any = batch_of(read)
    columns = ["key", "value", "topic", "partition", "offset", "timestampType", "headers"]
    assert [[*one.values()] for one in batch.select(columns).to_pylist()] == [
        [b"k", b"v", "payments", 1, 7, 1, [{"key": "a", "value": b"b"}]],
        [None, None, "payments", 1, 9, -1, None],
    ]
    assert [batch.column("timestamp")[n].value for n in range(2)] == [5, None]
    assert batch.column("_kafka")[0].as_py()["offset"] == 7
    for propagate in ([], ["trace"]):  # no records have the same columns
        assert batch_of([], propagate).schema == batch_of(read, propagate).schema


@pytest.mark.behaviour("CONS-3")
def test_what_is_not_the_member_s_or_was_gathered_before_is_left_out() -> None:
    feed = Feed(Flush(seconds=1000))
    feed.begin({P0: 5}, {P0: Term()})
    feed.reach(P1, 8)
    feed.add(P0, [record(P0, offset) for offset in (4, 5, 5)])
    assert feed.room == Flush().rows - 1
    feed.add(P1, [record(P1, 0)])
    feed.reach(P0, 3)
    assert offsets(feed) == {P0: (OffsetRange(5, 6), [5])}
    feed.add(P0, [record(P0, 6)])
    feed.drop([P0])
    feed.add(P0, [record(P0, 7)])
    assert offsets(feed) == {}
    assert not feed.is_due


READING = [KafkaError._BAD_MSG, KafkaError._BAD_COMPRESSION, KafkaError._NOT_IMPLEMENTED]


@pytest.mark.behaviour("CONS-1")
@pytest.mark.parametrize("code", [*READING, KafkaError.TOPIC_AUTHORIZATION_FAILED])
def test_a_batch_that_kafkas_client_can_not_read_ends_the_consumer(code: int) -> None:
    """The client goes on with the next one, so the records would be passed over."""
    with pytest.raises(BrokerError, match=r"payments-0: .*while polling records") as raised:
        Membership._told(Membership.__new__(Membership), KafkaError(code), P0)
    assert raised.value.topic_partition == P0


@pytest.mark.behaviour("CONS-8")
def test_a_client_that_can_not_go_on_ends_the_consumer() -> None:
    """It says no more than this once, and its error's `fatal` says no."""
    why = "Broker: Static consumer fenced by other consumer with same group.instance.id"
    told = KafkaError(KafkaError._FATAL, f"Fatal error: {why}: Fatal consumer error: {why}")
    with pytest.raises(ConfigurationError, match=r"another member has its place(.|\n)*group\.instance\.id") as raised:
        Membership._told(Membership.__new__(Membership), told, None)
    assert raised.value.found == f"_FATAL: {why}"


@pytest.mark.parametrize(("code", "tp"), [(KafkaError._ALL_BROKERS_DOWN, None), (KafkaError.LEADER_NOT_AVAILABLE, P0)])
def test_what_may_pass_is_logged(code: int, tp: TopicPartition | None, caplog: pytest.LogCaptureFixture) -> None:
    Membership._told(Membership.__new__(Membership), KafkaError(code), tp)
    assert "polling records" in caplog.text


@pytest.mark.behaviour("CONS-7")
def test_a_feed_is_due_at_the_first_of_its_limits_and_has_no_room_then() -> None:
    by_rows, by_bytes, by_time = Feed(Flush(rows=2)), Feed(Flush(bytes=8)), Feed(Flush(seconds=1e-9))
    for feed in (by_rows, by_bytes, by_time):
        assert not feed.is_due
        feed.begin({P0: 0}, {P0: Term()})
        assert not feed.is_due
        feed.add(P0, [record(P0, 0)])
    assert (by_rows.is_due, by_bytes.is_due, by_time.is_due) == (False, False, True)
    assert (by_rows.room, by_time.room) == (1, 49_999)
    by_size = Feed(Flush(bytes=1000))
    by_size.begin({P0: 0}, {P0: Term()})
    assert by_size.room == 1 + 1000 // 1024
    by_size.add(P0, [record(P0, offset) for offset in range(10)])
    mean = by_size._bytes / 10
    assert by_size.room == 1 + int((1000 - by_size._bytes) / mean)
    by_headers = Feed(Flush(bytes=8))
    by_headers.begin({P0: 0}, {P0: Term()})
    by_headers.add(P0, [ConsumedRecord(P0, 0, Payload(None, b"1234", (("id", b"x"), ("a", None)), 0, 0))])
    assert (by_headers.is_due, by_headers.room) == (True, 0)
    for feed in (by_rows, by_bytes):
        feed.add(P0, [record(P0, 1)])
        assert (feed.is_due, feed.room) == (True, 0)
        feed.drop([P0])
        assert feed.room > 0


def consumer(store: OffsetStore, kafka: dict[str, Any] | None = None, **changes: Any) -> Consumer:
    arguments: dict[str, Any] = {"topics": ["payments"], "transform": dict, "into": Append("payments")}
    return Consumer(store, "billing", kafka={"bootstrap.servers": "kafka:9092", **(kafka or {})}, **arguments | changes)


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("group.id", "the consumer's group"),
        ("enable.auto.commit", "stored with the results"),
        ("enable.auto.offset.store", "stored with the results"),
        ("auto.offset.reset", "StartPolicy"),
        ("partition.assignment.strategy", "cooperative-sticky"),
        ("group.protocol", "classic"),
        ("enable.partition.eof", "ends of logs"),
        ("on_commit", "MirrorTried"),
    ],
)
@pytest.mark.behaviour("CONS-9")
def test_settings_that_would_break_it_are_refused_with_what_to_use_instead(name: str, instead: str) -> None:
    with InMemoryOffsetStore() as store, pytest.raises(ConfigurationError, match=name) as refused:
        consumer(store, {name: "true"})
    assert instead in str(refused.value)


@pytest.mark.behaviour("CONS-9")
def test_arguments_that_cant_work_are_refused() -> None:
    wrong: list[dict[str, Any]] = [
        {"into": {}},
        {"into": "payments"},
        {"transform": "parse"},
        {"topics": "payments"},
        {"drain": 0},
        {"into": Execute(lambda _work, _batches: 0), "dead_letters": DeadLetters()},
        {"transform": Handler(repr, "id long, name thing")},
        {"transform": Handler(repr, "id long, _reject string")},
        {"transform": Handler(repr, {"other": "id long"})},
        {"transform": Handler(repr, "id long"), "dead_letters": DeadLetters(sequence="key")},
        *({"filters": [no_filter]} for no_filter in (len, Throttle, 7)),
    ]
    text: Any = "value"
    filters = (
        lambda: Throttle(0),
        lambda: Throttle(1, per=0),
        lambda: Delay(0),
        lambda: Expire(-1),
        lambda: SkipIf(text),
    )
    with InMemoryOffsetStore() as store:
        for make in (*(partial(consumer, store, **changes) for changes in wrong), *filters):
            with pytest.raises(ConfigurationError):
                make()


@pytest.mark.behaviour("CONS-7", "HAND-7")
def test_taking_partitions_over_fits_into_the_time_between_two_polls_and_a_handler_s_window_is_its_flush() -> None:
    with InMemoryOffsetStore() as store:
        assert consumer(store).flush.rows == 50_000
        assert consumer(store, transform=Handler(repr, "id long")).flush.rows == 10_000
        assert consumer(store).request.takeover_timeout == 30.0
        assert consumer(store, {"max.poll.interval.ms": "45000"}).request.takeover_timeout == 15.0
        assert consumer(store, policy=StartPolicy()).request.takeover == "refuse"


@pytest.mark.behaviour("HAND-3")
def test_a_handler_s_schema_is_read_without_spark() -> None:
    simple = "id LONG NOT NULL, `a ``b``` string,at: timestamp ,x decimal(10, 2), y numeric, z real"
    expected: Any = [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("a `b`", pa.string()),
        pa.field("at", pa.timestamp("us", "UTC")),
        pa.field("x", pa.decimal128(10, 2)),
        pa.field("y", pa.decimal128(10, 0)),
        pa.field("z", pa.float32()),
    ]
    assert schema_of(simple) == pa.schema(expected)
    nested = pa.schema([("n", pa.list_(pa.int8()))])
    assert schema_of(nested) is nested
    for wrong in (
        "id long, id long",
        "_kafka long",
        "id map<int>",
        "id interval year to month",
        "id interval second to day",
        "id time(7)",
        "id decimal(99)",
        "id decimal(5,-1)",
        "id decimal(5,6)",
        "id " + "array<" * 5000,
        pa.schema([]),
    ):
        with pytest.raises(ConfigurationError):
            schema_of(wrong)
    with pytest.raises(ConfigurationError, match=r"column a: column b: the type varchar\(5\) is unknown"):
        schema_of("a struct<b varchar(5)>")


@pytest.mark.behaviour("HAND-10")
def test_nested_columns_are_read_without_spark() -> None:
    text = (
        "a array<struct<b: map<string, timestamp> not null comment 'x, y', `c d` dec(5,1)>>, e interval day to second"
    )
    inner: Any = [
        pa.field("b", pa.map_(pa.string(), pa.timestamp("us", "UTC")), nullable=False),
        pa.field("c d", pa.decimal128(5, 1)),
    ]
    assert schema_of(text) == pa.schema([("a", pa.list_(pa.struct(inner))), ("e", pa.duration("us"))])
    for kind in ("day", "hour", "second", "day to minute", "HOUR TO SECOND", "minute to second"):
        assert schema_of(f"e interval {kind}") == pa.schema([("e", pa.duration("us"))])
    assert schema_of("t time(3), u time, d dec(5, 5)").types == [*[pa.time64("us")] * 2, pa.decimal128(5, 5)]


@pytest.mark.behaviour("CONS-1")
def test_rows_of_single_records_are_joined_whatever_types_they_have_unless_a_value_would_change() -> None:
    """Where a transform leaves the types to Arrow, those of single records differ."""

    def batch(**columns: Any) -> pa.RecordBatch:
        return pa.RecordBatch.from_pylist([columns])

    first = batch(record=1, note="a")
    joined = _joined([first, batch(record=2, note=None), batch(record=2.5, note="c"), pa.RecordBatch.from_pylist([])])
    assert joined.to_pylist() == [
        {"record": number, "note": note} for number, note in ((1, "a"), (2, None), (2.5, "c"))
    ]
    floats = batch(record=0.5, note="a")
    for other in (
        batch(record=1, note={"a": "struct"}),
        batch(record=Decimal("12345678901234567890.12"), note="of which Arrow would make a float"),
        batch(record=1),
    ):
        with pytest.raises(ColumnMismatch):
            _joined([floats, other])


@pytest.mark.behaviour("DLQ-11")
def test_each_key_is_digested_once_however_often_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    digested: list[bytes | None] = []

    def digest(_: TopicPartition, key: bytes | None) -> bytes | None:
        digested.append(key)
        return key

    monkeypatch.setattr(module, "digest", digest)
    keys = [b"a", None, b"a"]
    records = [ConsumedRecord(P0, n, Payload(key, None, (), 0, 0)) for n, key in enumerate(keys)]
    part = ComputedRecords.of(records, ConsumerOutputs(lambda given: given, Append("payments")), {}, rejected={})
    assert [part.keys.get(number) for number in part.numbers] == keys
    assert digested == keys

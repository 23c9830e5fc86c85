"""A relay's producer, without a broker: how long it waits, and what its errors say."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Generator
from contextlib import nullcontext
from functools import partial
from typing import Any

import confluent_kafka as ck
import pytest

from offsetstore.errors import BrokerError, BrokerRefused, BrokerUnavailable, ConfigurationError, RelayFenced
from offsetstore.kafka.outlet import Outlet, ProducerEnded
from offsetstore.kafka.settings import ClientSettings
from offsetstore.protocol.outbox import Mark, OutboxRow, Refusal

INVALID = ck.KafkaError(ck.KafkaError.INVALID_RECORD)
NOT_ALLOWED = ck.KafkaError(ck.KafkaError.TOPIC_AUTHORIZATION_FAILED)
OTHER = ck.KafkaError(ck.KafkaError._INVALID_DIFFERENT_RECORD)
SEVEN = Mark(7, "seven")


def outlet_of(**settings: Any) -> Outlet:
    config = ClientSettings({"bootstrap.servers": "127.0.0.1:1", "log_level": "0", **settings})
    return Outlet(config, name="relay", anchor="anchor", timeout=0.5)


@pytest.fixture
def outlet() -> Generator[Outlet]:
    made = outlet_of()
    yield made
    made.close()


class Fake:
    """A producer that does what a test says, and keeps which of its methods were called.

    ``left`` is how many records are in its queue.
    """

    def __init__(self, **does: Callable[..., object]) -> None:
        self.left = 0
        self.does: dict[str, Callable[..., object]] = does
        self.called: list[str] = []

    def __len__(self) -> int:
        return self.left

    def __getattr__(self, name: str) -> Callable[..., object]:
        def call(*given: object) -> object:
            self.called.append(name)
            return self.does[name](*given) if name in self.does else 0

        return call

    @property
    def steps(self) -> list[str]:
        """What was called for the transaction, and not for a record."""
        others = {"produce", "poll", "flush", "purge"}
        return [name.partition("_")[0] for name in self.called if name not in others]


@pytest.fixture
def fake(outlet: Outlet, monkeypatch: pytest.MonkeyPatch) -> Fake:
    """The outlet's producer."""
    made = Fake()
    monkeypatch.setattr(outlet, "_producer", [made])
    return made


def raising(*errors: Exception) -> Callable[..., None]:
    """What raises these errors at its first calls."""
    left = list(errors)

    def call(*_: object) -> None:
        if left:
            raise left.pop(0)

    return call


class Slow:
    """A producer of which Kafka takes one record with each flush."""

    def __init__(self, records: int, seconds: float, until: int = 0) -> None:
        self.left, self.seconds, self.until = records, seconds, until
        self.waited = self.flushed = 0.0

    def __len__(self) -> int:
        return self.left

    def flush(self, seconds: float) -> int:
        self.waited += seconds
        self.flushed += seconds
        if self.waited > self.seconds and self.left > self.until:
            self.left, self.waited = self.left - 1, 0.0
        return self.left

    @property
    def now(self) -> float:
        """By a clock that only flushing moves."""
        return self.flushed


def flush(outlet: Outlet, producer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("offsetstore.kafka.outlet.time.monotonic", lambda: producer.now)
    outlet._flush(producer)


@pytest.mark.behaviour("OUT-2")
def test_a_slow_line_is_waited_for_as_long_as_records_arrive(outlet: Outlet, monkeypatch: pytest.MonkeyPatch) -> None:
    producer = Slow(5, 0.3)
    flush(outlet, producer, monkeypatch)
    assert (len(producer), producer.now > 3 * 0.5) == (0, True)


def test_it_can_be_waited_for_the_first_record_alone(outlet: Outlet) -> None:
    producer: Any = Slow(5, 0.0)
    outlet._flush(producer, until=4)
    assert len(producer) == 4
    outlet._flush(producer, until=-1)
    assert len(producer) == 0


@pytest.mark.parametrize(("producer", "seconds"), [(Slow(5, 0.3, until=2), 1.9), (Slow(1000, 0.3), 60)])
def test_but_not_if_none_arrives_nor_longer_than_a_transaction_may_take(
    outlet: Outlet, producer: Slow, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ck.KafkaException, match="_TIMED_OUT"):
        flush(outlet, producer, monkeypatch)
    assert producer.now == pytest.approx(seconds, abs=0.5)


def test_a_fatal_error_that_comes_with_a_report_is_that_error(outlet: Outlet) -> None:
    """The client calls for the report although it has raised; then Python raises a SystemError."""

    def fenced(_seconds: float) -> int:
        raise SystemError("returned a result with an exception set") from ck.KafkaException(ck.KafkaError(-144))

    producer = Fake(flush=fenced)
    producer.left = 1
    with pytest.raises(ck.KafkaException, match="_FENCED"):
        outlet._flush(producer)


@pytest.mark.behaviour("OUT-2")
def test_a_producer_that_never_returns_is_not_waited_for_longer_than_it_was_given(outlet: Outlet) -> None:
    is_over = threading.Event()
    began = time.monotonic()
    with pytest.raises(ck.KafkaException, match="_TIMED_OUT"):
        outlet._mark(Fake(send_offsets_to_transaction=lambda *_: is_over.wait(60)), [])
    is_over.set()
    assert 0.5 < time.monotonic() - began < 30


@pytest.mark.parametrize(
    ("error", "has_rows", "kind", "said"),
    [
        (ck.KafkaError(ck.KafkaError.GROUP_AUTHORIZATION_FAILED), True, BrokerRefused, "to READ the consumer group"),
        (
            ck.KafkaError(ck.KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, fatal=True),
            True,
            BrokerRefused,
            "to WRITE to the transactional id",
        ),
        (NOT_ALLOWED, True, BrokerRefused, "to WRITE to the topic"),
        (NOT_ALLOWED, False, BrokerRefused, "to READ the topic"),
        (ck.KafkaError(ck.KafkaError._TIMED_OUT), True, BrokerUnavailable, "Check bootstrap.servers"),
        (ck.KafkaError(ck.KafkaError._FENCED, "replaced", fatal=True), True, ProducerEnded, "Another relay has begun"),
    ],
    ids=str,
)
def test_an_error_says_what_the_relay_needs(
    outlet: Outlet, error: ck.KafkaError, kind: type[BrokerError], said: str, *, has_rows: bool
) -> None:
    told = outlet._trouble(error, "producing batch 7", has_rows=has_rows)
    assert isinstance(told, kind)
    assert said in told.next_step
    assert "acls check" not in told.next_step


def test_how_often_it_tries_is_not_the_user_s_to_say() -> None:
    """Else NOT_ENOUGH_REPLICAS, which passes, would be the last word on a record. What it does anyway may be said."""
    given = {"partitioner": "murmur2", "enable.idempotence": "true", "acks": "all", "max.in.flight": "1"}
    made = outlet_of(**given, **{"message.send.max.retries": "2", "linger.ms": "7", "message.timeout.ms": "1000"})
    config = made._producer_config()
    ck.Producer(config)
    made.close()
    assert "message.send.max.retries" not in config
    assert config["linger.ms"] == "7"


@pytest.mark.behaviour("OUT-6")
def test_a_row_that_is_larger_than_the_queue_is_refused() -> None:
    made = outlet_of(**{"queue.buffering.max.kbytes": "1024", "message.max.bytes": "4000000"})
    producer = ck.Producer({"bootstrap.servers": "127.0.0.1:1", "log_level": 0, "queue.buffering.max.kbytes": 1024,
                            "message.max.bytes": 4_000_000})  # fmt: skip
    rows = [OutboxRow(1, "events", None, bytes(2_000_000))]
    refused = made._produce(producer, rows)
    made.close()
    assert refused.keys() == {1}
    assert "queue.buffering.max.kbytes" in refused[1]


@pytest.mark.behaviour("OUT-2")
def test_a_full_queue_is_not_waited_for_without_end(outlet: Outlet) -> None:
    producer = ck.Producer({"bootstrap.servers": "127.0.0.1:1", "log_level": 0, "queue.buffering.max.messages": 2})
    rows = [OutboxRow(id_, "events", None, b"") for id_ in range(3)]
    with pytest.raises(ck.KafkaException, match="_TIMED_OUT"):
        outlet._produce(producer, rows)
    producer.purge()


@pytest.mark.behaviour("OUT-5")
@pytest.mark.parametrize("is_open", [True, False])
def test_the_mark_is_renewed_also_after_a_send_that_has_failed(
    outlet: Outlet, fake: Fake, monkeypatch: pytest.MonkeyPatch, *, is_open: bool
) -> None:
    """Its transaction is still open: while the database is away, nobody fences."""
    outlet._is_open, outlet.kept = is_open, SEVEN
    outlet.renew()
    assert fake.steps == [*(["abort"] if is_open else []), "begin", "send", "commit"]
    assert outlet.kept == SEVEN
    monkeypatch.setattr(outlet, "_producer", [])
    outlet.renew()  # nor does it begin anything without a producer


@pytest.mark.behaviour("OUT-6")
def test_a_queue_that_has_emptied_meanwhile_is_tried_again(outlet: Outlet) -> None:
    full = BufferError("Local: Queue full")
    assert outlet._produce(Fake(produce=raising(full)), rows_of(3)) == {}
    assert outlet._produce(Fake(produce=raising(full, full)), rows_of(3)).keys() == {1}


@pytest.mark.behaviour("OUT-9", "OUT-11")
@pytest.mark.parametrize("error", [NOT_ALLOWED, ck.KafkaError(ck.KafkaError.UNKNOWN_TOPIC_OR_PART)], ids=str)
def test_what_the_client_says_of_a_topic_names_no_row_and_the_topic_is_asked_for_again(
    outlet: Outlet, fake: Fake, error: ck.KafkaError
) -> None:
    """Its metadata may be old: what has been allowed since would be set aside."""
    fake.does["produce"] = raising(ck.KafkaException(error))
    outlet._writable.add("events")
    assert told(outlet.send(SEVEN, rows_of(3), before_commit=pytest.fail)) == (set(), {1, 2, 3}, False)
    assert not outlet._writable


@pytest.mark.behaviour("OUT-6")
@pytest.mark.parametrize("error", [ck.KafkaError(ck.KafkaError.UNKNOWN), NOT_ALLOWED])
def test_a_record_at_which_a_broker_fails_by_itself_is_suspected_and_one_without_an_answer_is_not(
    outlet: Outlet, error: ck.KafkaError
) -> None:
    """Nor is it proven that a right is missing: a leader may hear of it later than others."""
    fail(outlet, {
        1: error,
        2: ck.KafkaError(ck.KafkaError._TIMED_OUT),
        3: ck.KafkaError(ck.KafkaError.INVALID_TIMESTAMP),  # our own clock's
    })  # fmt: skip
    assert refusal(outlet, rows_of(3)) == (set(), {1}, False)
    assert "no answer" not in str(outlet._trouble(ck.KafkaError(ck.KafkaError.UNKNOWN), "producing batch 7"))


def rows_of(most: int) -> list[OutboxRow]:
    return [OutboxRow(number, "events", b"%d" % number, b"") for number in range(1, most + 1)]


def fail(outlet: Outlet, errors: dict[int, ck.KafkaError], *, partition: int = 0) -> None:
    """Report these rows of `rows_of`."""
    outlet._failed += [
        (("events", b"%d" % number, b""), ("events", partition), error) for number, error in errors.items()
    ]


def told(found: Refusal | None) -> tuple[set[int], set[int], bool]:
    """The rows that are refused for certain, those that are suspected, and whether that is proven."""
    assert found is not None
    return {*found.certain}, {*found.suspected}, found.is_proven


def refusal(outlet: Outlet, rows: list[OutboxRow]) -> tuple[set[int], set[int], bool]:
    """What is told of these rows, after the reports."""
    return told(outlet._refusal(ck.KafkaError(ck.KafkaError._STATE), rows))


@pytest.mark.behaviour("OUT-11")
@pytest.mark.parametrize(
    ("errors", "named", "suspected"),
    [  # pyright: ignore[reportUnknownArgumentType]
        ({1: OTHER, 2: INVALID, 3: OTHER}, {2}, set()),
        ({1: INVALID, 2: OTHER, 3: INVALID}, {1, 3}, set()),
        ({1: INVALID, 2: INVALID}, set(), {1, 2}),
        ({1: ck.KafkaError(ck.KafkaError.MSG_SIZE_TOO_LARGE), 2: OTHER}, set(), {1}),
        ({1: ck.KafkaError(ck.KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER), 2: INVALID, 3: OTHER}, {2}, {1}),
    ],
    ids=str,
)
def test_kafka_names_a_record_if_it_tells_it_from_the_others_of_its_request(
    outlet: Outlet, errors: dict[int, ck.KafkaError], named: set[int], suspected: set[int]
) -> None:
    """A request that is refused as a whole names none, whatever the code."""
    fail(outlet, errors)
    assert refusal(outlet, rows_of(4)) == (named, suspected, True)


@pytest.mark.behaviour("OUT-11")
@pytest.mark.parametrize(
    ("reports", "named"),
    [
        ("I.I. IIII", {1, 3}),
        ("IIII I.I.", {7}),
        (".II IIII II.", set[int]()),
        ("II. .II", set[int]()),
        (".I.I .I.I", {2, 4, 6, 8}),
        ("I.I I", {1}),
        (".II.", {2, 3}),
    ],
)
def test_of_two_requests_of_a_partition_the_one_that_was_refused_as_a_whole_names_none(
    outlet: Outlet, reports: str, named: set[int]
) -> None:
    """Their reports look alike; rows in a row may be one of them, and are found by halving."""
    shown = dict(enumerate(reports.replace(" ", ""), start=1))
    fail(outlet, {number: INVALID if report == "I" else OTHER for number, report in shown.items()})
    invalid = {number for number, report in shown.items() if report == "I"}
    assert refusal(outlet, rows_of(len(shown)))[:2] == (named, invalid - named)


@pytest.mark.behaviour("OUT-11")
def test_that_another_partition_s_request_was_told_apart_says_nothing(outlet: Outlet) -> None:
    fail(outlet, {1: OTHER, 2: INVALID})
    fail(outlet, {3: INVALID, 4: INVALID}, partition=1)
    assert refusal(outlet, rows_of(4))[:2] == ({2}, {3, 4})


@pytest.mark.behaviour("OUT-11")
def test_of_rows_that_look_alike_none_is_named_unless_all_are(outlet: Outlet) -> None:
    """A report has no headers, by which they may differ."""
    rows = [*rows_of(2), OutboxRow(3, "events", b"2", b"", (("a", b"large"),))]
    fail(outlet, {1: OTHER, 2: INVALID})
    assert refusal(outlet, rows)[:2] == (set(), {2, 3})
    assert refusal(outlet, [row._replace(headers=None) for row in rows])[:2] == ({2}, set())  # as many as were told of
    fail(outlet, {2: INVALID})
    assert refusal(outlet, rows)[0] == {2, 3}


@pytest.mark.behaviour("OUT-11")
@pytest.mark.parametrize("missing", ["key", "value"])
def test_a_missing_key_or_value_is_not_an_empty_one_although_reports_show_both_alike(
    outlet: Outlet, missing: str
) -> None:
    """A compacted topic takes the second, and not the first."""
    empty = OutboxRow(1, "events", b"", b"")
    outlet._failed += [(("events", b"", b""), ("events", 0), one) for one in (OTHER, INVALID)]
    assert refusal(outlet, [empty, empty._replace(id=2, **{missing: None})])[:2] == (set(), {1, 2})


@pytest.mark.behaviour("OUT-2", "OUT-4", "OUT-11")
@pytest.mark.parametrize("is_fenced", [False, True])
def test_what_kafka_says_of_a_record_counts_only_if_its_producer_may_still_abort(
    outlet: Outlet, fake: Fake, *, is_fenced: bool
) -> None:
    """A producer that was replaced is told all kinds of things."""

    def produce(*_: object) -> None:
        fake.left += 1

    def flush(_seconds: float) -> int:
        if fake.left:
            fail(outlet, {1: INVALID, 2: OTHER})
        fake.left = 0
        return 0

    fenced = [ck.KafkaException(ck.KafkaError(ck.KafkaError._FENCED, fatal=True))] if is_fenced else []
    fake.does = {"produce": produce, "flush": flush, "abort_transaction": raising(*fenced)}
    found = told(outlet.send(SEVEN, rows_of(3), before_commit=pytest.fail))
    assert found == ((set(), {1}, False) if is_fenced else ({1}, set(), True))


@pytest.mark.behaviour("OUT-3", "OUT-12")
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("partitioner", "random"),
        ("enable.idempotence", False),
        ("acks", 1),
        ("request.required.acks", "1"),
        ("max.in.flight", 6),
        ("max.in.flight.requests.per.connection", "10"),
        ("queuing.strategy", "lifo"),
        ("transactional.id", "my own"),
        ("group.id", "my own"),
        ("delivery.report.only.error", "false"),
        ("on_delivery", print),
        ("linger.ms", 900_000),
        ("queue.buffering.max.ms", "60000"),
        ("message.timeout.ms", "900000"),
        ("transaction.timeout.ms", "many"),
        ("message.max.bytes", "many"),
        ("compression.type", "none of them"),
    ],
)
def test_settings_with_which_it_could_not_work_or_keep_rows_in_order_are_refused_by_name(name: str, value: Any) -> None:
    told = {"compression.type": "compression.codec"}.get(name, name)  # librdkafka has two names for it
    with pytest.raises(ConfigurationError, match=re.escape(told)):
        outlet_of(**{name: value})


def purged(outlet: Outlet, topic: str, *_: object) -> None:
    """Report a record that was sent no more."""
    outlet._failed.append(((topic, b"", b""), (topic, 0), ck.KafkaError(ck.KafkaError._PURGE_QUEUE)))


@pytest.mark.behaviour("OUT-2")
def test_a_transaction_of_which_a_record_has_failed_is_not_committed_whatever_the_client_says(
    outlet: Outlet, fake: Fake
) -> None:
    fake.does["produce"] = partial(purged, outlet)
    with pytest.raises(BrokerUnavailable, match="producing batch 7"):
        outlet.send(SEVEN, rows_of(3), before_commit=int)
    assert "commit" not in fake.steps


@pytest.mark.behaviour("OUT-2", "OUT-4")
@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_transaction_is_committed_only_after_its_batch_was_recorded_and_aborted_if_that_fails(
    outlet: Outlet, fake: Fake, *, is_replaced: bool
) -> None:
    if is_replaced:
        fake.does["record"] = raising(RelayFenced("another relay has taken the outbox over"))
    with pytest.raises(RelayFenced) if is_replaced else nullcontext():
        assert outlet.send(SEVEN, rows_of(3), before_commit=fake.record) is None
    assert fake.steps == ["begin", "send", "record", "abort" if is_replaced else "commit"]


@pytest.mark.behaviour("OUT-6")
def test_the_topics_of_records_without_an_answer_are_named(outlet: Outlet, fake: Fake) -> None:
    """One partition without a leader stops all: who reads the log has to know which."""
    topics: list[str] = []

    def produce(topic: str, *_: object) -> None:
        topics.append(topic)
        fake.left += 1

    def purge() -> None:
        for topic in topics:
            purged(outlet, topic)
        fake.left = 0

    fake.does = {"produce": produce, "purge": purge}
    rows = [OutboxRow(1, "letters", None, b""), OutboxRow(2, "events", None, b"")]
    with pytest.raises(BrokerUnavailable, match="batch 7, of which records of events, letters have no answer"):
        outlet.send(SEVEN, rows, before_commit=int)

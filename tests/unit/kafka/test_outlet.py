"""A relay's producer, without a broker: how long it waits, and what its errors say."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Generator
from contextlib import nullcontext
from typing import Any

import confluent_kafka as ck
import pytest

from offsetstore.errors import BrokerError, BrokerRefused, BrokerUnavailable, ConfigurationError, RelayFenced
from offsetstore.kafka.outlet import Outlet, ProducerEnded
from offsetstore.kafka.settings.librdkafka import ClientSettings
from offsetstore.protocol.outbox import Mark, OutboxRow


def outlet_of(**settings: Any) -> Outlet:
    config = ClientSettings({"bootstrap.servers": "127.0.0.1:1", "log_level": "0", **settings})
    return Outlet(config, name="relay", anchor="anchor", timeout=0.5)


@pytest.fixture
def outlet() -> Generator[Outlet]:
    made = outlet_of()
    yield made
    made.close()


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


def test_a_fatal_error_that_comes_with_a_report_is_that_error(outlet: Outlet, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client calls for the report although it has raised; then Python raises a SystemError."""
    producer = Slow(1, 0.3)

    def fenced(_seconds: float) -> int:
        raise SystemError("returned a result with an exception set") from ck.KafkaException(ck.KafkaError(-144))

    monkeypatch.setattr(producer, "flush", fenced)
    with pytest.raises(ck.KafkaException, match="_FENCED"):
        outlet._flush(producer)


class Deaf:
    """A producer that heeds no timeout."""

    def __init__(self) -> None:
        self.is_over = threading.Event()

    def send_offsets_to_transaction(self, *_: object) -> None:
        self.is_over.wait(60)


@pytest.mark.behaviour("OUT-2")
def test_a_producer_that_never_returns_is_not_waited_for_longer_than_it_was_given(outlet: Outlet) -> None:
    producer = Deaf()
    began = time.monotonic()
    with pytest.raises(ck.KafkaException, match="_TIMED_OUT"):
        outlet._mark(producer, [])
    producer.is_over.set()
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
        (ck.KafkaError(ck.KafkaError.TOPIC_AUTHORIZATION_FAILED), True, BrokerRefused, "to WRITE to the topic"),
        (ck.KafkaError(ck.KafkaError.TOPIC_AUTHORIZATION_FAILED), False, BrokerRefused, "to READ the topic"),
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


class Raising(Slow):
    """A producer that raises at its first calls, and whose queue is empty.

    ``at_end`` is called when it aborts.
    """

    def __init__(self, *errors: Exception, at_end: Callable[[], object] = int) -> None:
        super().__init__(0, 0.0)
        self.errors, self.at_end = list(errors), at_end

    def produce(self, *_: object) -> None:
        if self.errors:
            raise self.errors.pop(0)

    def poll(self, _seconds: float) -> int:
        return 0

    def begin_transaction(self) -> None: ...

    def abort_transaction(self, _seconds: float) -> None:
        self.at_end()


class Renewed(Raising):
    """One whose steps are kept, in order."""

    def __init__(self) -> None:
        super().__init__(at_end=lambda: self.steps.append("abort"))
        self.steps: list[str] = []

    def begin_transaction(self) -> None:
        self.steps.append("begin")

    def send_offsets_to_transaction(self, *_: object) -> None:
        self.steps.append("mark")

    def commit_transaction(self, _seconds: float) -> None:
        self.steps.append("commit")


@pytest.mark.behaviour("OUT-5")
@pytest.mark.parametrize("is_open", [True, False])
def test_the_mark_is_renewed_also_after_a_send_that_has_failed(
    outlet: Outlet, monkeypatch: pytest.MonkeyPatch, *, is_open: bool
) -> None:
    """Its transaction is still open: while the database is away, nobody fences."""
    producer = Renewed()
    monkeypatch.setattr(outlet, "_producer", [producer])
    outlet._is_open, outlet.kept = is_open, Mark(7, "seven")
    outlet.renew()
    assert producer.steps == [*(["abort"] if is_open else []), "begin", "mark", "commit"]
    assert outlet.kept == Mark(7, "seven")
    monkeypatch.setattr(outlet, "_producer", [])
    outlet.renew()  # nor does it begin anything without a producer


@pytest.mark.behaviour("OUT-6")
def test_a_queue_that_has_emptied_meanwhile_is_tried_again(outlet: Outlet) -> None:
    full = BufferError("Local: Queue full")
    assert outlet._produce(Raising(full), rows_of(3)) == {}
    assert outlet._produce(Raising(full, full), rows_of(3)).keys() == {1}


@pytest.mark.behaviour("OUT-9", "OUT-11")
@pytest.mark.parametrize(
    "code", [ck.KafkaError.TOPIC_AUTHORIZATION_FAILED, ck.KafkaError.UNKNOWN_TOPIC_OR_PART], ids=str
)
def test_what_the_client_says_of_a_topic_names_no_row_and_the_topic_is_asked_for_again(
    outlet: Outlet, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """Its metadata may be old: what has been allowed since would be set aside."""
    monkeypatch.setattr(outlet, "_producer", [Raising(ck.KafkaException(ck.KafkaError(code)))])
    outlet._writable.add("events")
    found = outlet.send(Mark(7, "seven"), rows_of(3), before_commit=pytest.fail)
    assert found is not None
    assert (found.certain, found.suspected.keys(), found.is_proven) == ({}, {1, 2, 3}, False)
    assert not outlet._writable


@pytest.mark.behaviour("OUT-6")
@pytest.mark.parametrize("code", [ck.KafkaError.UNKNOWN, ck.KafkaError.TOPIC_AUTHORIZATION_FAILED])
def test_a_record_at_which_a_broker_fails_by_itself_is_suspected_and_one_without_an_answer_is_not(
    outlet: Outlet, code: int
) -> None:
    """Nor is it proven that a right is missing: a leader may hear of it later than others."""
    rows = rows_of(3)
    fail(outlet, {
        1: ck.KafkaError(code),
        2: ck.KafkaError(ck.KafkaError._TIMED_OUT),
        3: ck.KafkaError(ck.KafkaError.INVALID_TIMESTAMP),  # our own clock's
    })  # fmt: skip
    found = outlet._refusal(ck.KafkaError(ck.KafkaError._STATE), rows)
    assert found is not None
    assert (found.suspected.keys(), found.certain, found.is_proven) == ({1}, {}, False)
    assert "no answer" not in str(outlet._trouble(ck.KafkaError(ck.KafkaError.UNKNOWN), "producing batch 7"))


def rows_of(most: int) -> list[OutboxRow]:
    return [OutboxRow(number, "events", b"%d" % number, b"") for number in range(1, most + 1)]


def fail(outlet: Outlet, errors: dict[int, ck.KafkaError], *, partition: int = 0) -> None:
    """Report these rows of `rows_of`."""
    outlet._failed += [
        (("events", b"%d" % number, b""), ("events", partition), error) for number, error in errors.items()
    ]


INVALID = ck.KafkaError(ck.KafkaError.INVALID_RECORD)
OTHER = ck.KafkaError(ck.KafkaError._INVALID_DIFFERENT_RECORD)


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
    found = outlet._refusal(ck.KafkaError(ck.KafkaError._STATE), rows_of(4))
    assert found is not None
    assert (found.certain.keys(), found.suspected.keys(), found.is_proven) == (named, suspected, True)


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
    told = dict(enumerate(reports.replace(" ", ""), start=1))
    fail(outlet, {number: INVALID if report == "I" else OTHER for number, report in told.items()})
    found = outlet._refusal(ck.KafkaError(ck.KafkaError._STATE), rows_of(len(told)))
    assert found is not None
    invalid = {number for number, report in told.items() if report == "I"}
    assert (found.certain.keys(), found.suspected.keys()) == (named, invalid - named)


@pytest.mark.behaviour("OUT-11")
def test_that_another_partition_s_request_was_told_apart_says_nothing(outlet: Outlet) -> None:
    fail(outlet, {1: OTHER, 2: INVALID})
    fail(outlet, {3: INVALID, 4: INVALID}, partition=1)
    found = outlet._refusal(ck.KafkaError(ck.KafkaError._STATE), rows_of(4))
    assert found is not None
    assert (found.certain.keys(), found.suspected.keys()) == ({2}, {3, 4})


@pytest.mark.behaviour("OUT-11")
def test_of_rows_that_look_alike_none_is_named_unless_all_are(outlet: Outlet) -> None:
    """A report has no headers, by which they may differ."""
    rows = [*rows_of(2), OutboxRow(3, "events", b"2", b"", (("a", b"large"),))]
    fail(outlet, {1: OTHER, 2: INVALID})
    found = outlet._refusal(ck.KafkaError(ck.KafkaError._STATE), rows)
    assert found is not None
    assert (found.certain, found.suspected.keys()) == ({}, {2, 3})
    same = [row._replace(headers=None) for row in rows]
    found = outlet._refusal(ck.KafkaError(ck.KafkaError._STATE), same)
    assert found is not None
    assert (found.certain.keys(), found.suspected) == ({2}, {})  # as many as were told of
    fail(outlet, {2: INVALID})
    found = outlet._refusal(ck.KafkaError(ck.KafkaError._STATE), rows)
    assert found is not None
    assert found.certain.keys() == {2, 3}


@pytest.mark.behaviour("OUT-11")
@pytest.mark.parametrize("is_key", [True, False])
def test_a_missing_key_or_value_is_not_an_empty_one_although_reports_show_both_alike(
    outlet: Outlet, *, is_key: bool
) -> None:
    """A compacted topic takes the second, and not the first."""
    rows = [OutboxRow(number, "events", b"", b"") for number in (1, 2)]
    rows[1] = rows[1]._replace(key=None) if is_key else rows[1]._replace(value=None)
    outlet._failed += [(("events", b"", b""), ("events", 0), one) for one in (OTHER, INVALID)]
    found = outlet._refusal(ck.KafkaError(ck.KafkaError._STATE), rows)
    assert found is not None
    assert (found.certain, found.suspected.keys()) == ({}, {1, 2})


class Refusing:
    """A producer whose first record Kafka names, and that may be fenced before it aborts."""

    def __init__(self, outlet: Outlet, *, is_fenced: bool) -> None:
        self.outlet, self.is_fenced, self.left = outlet, is_fenced, 0

    def __len__(self) -> int:
        return self.left

    def produce(self, *_: object) -> None:
        self.left += 1

    def poll(self, _seconds: float) -> int:
        return 0

    def flush(self, _seconds: float) -> int:
        if self.left:
            fail(self.outlet, {1: INVALID, 2: OTHER})
        self.left = 0
        return 0

    def begin_transaction(self) -> None: ...

    def send_offsets_to_transaction(self, *_: object) -> None: ...

    def abort_transaction(self, _seconds: float) -> None:
        if self.is_fenced:
            raise ck.KafkaException(ck.KafkaError(ck.KafkaError._FENCED, fatal=True))


@pytest.mark.behaviour("OUT-2", "OUT-4", "OUT-11")
@pytest.mark.parametrize("is_fenced", [False, True])
def test_what_kafka_says_of_a_record_counts_only_if_its_producer_may_still_abort(
    outlet: Outlet, monkeypatch: pytest.MonkeyPatch, *, is_fenced: bool
) -> None:
    """A producer that was replaced is told all kinds of things."""
    monkeypatch.setattr(outlet, "_producer", [Refusing(outlet, is_fenced=is_fenced)])
    found = outlet.send(Mark(7, "seven"), rows_of(3), before_commit=pytest.fail)
    monkeypatch.setattr(outlet, "_is_open", False)
    assert found is not None
    told = found.certain.keys(), found.suspected.keys(), found.is_proven
    assert told == ((set(), {1}, False) if is_fenced else ({1}, set(), True))


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


class Losing:
    """A producer that reports the first record as purged, and would commit the others."""

    committed = False

    def __init__(self, outlet: Outlet) -> None:
        self.outlet = outlet

    def __len__(self) -> int:
        return 0

    def produce(self, topic: str, _value: bytes | None, _key: bytes | None) -> None:
        self.outlet._failed.append(((topic, b"", b""), (topic, 0), ck.KafkaError(ck.KafkaError._PURGE_QUEUE)))

    def commit_transaction(self, _seconds: float) -> None:
        self.committed = True

    def begin_transaction(self) -> None: ...

    def poll(self, _seconds: float) -> int:
        return 0

    flush = poll

    def send_offsets_to_transaction(self, *_: object) -> None: ...


@pytest.mark.behaviour("OUT-2")
def test_a_transaction_of_which_a_record_has_failed_is_not_committed_whatever_the_client_says(
    outlet: Outlet, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = Losing(outlet)
    monkeypatch.setattr(outlet, "_producer", [producer])
    monkeypatch.setattr(outlet, "_is_open", False)
    with pytest.raises(BrokerUnavailable, match="producing batch 7"):
        outlet.send(Mark(7, "seven"), [OutboxRow(id_, "events", None, b"") for id_ in range(3)], before_commit=int)
    assert not producer.committed


class Ending(Losing):
    """A producer that tells how its transactions end."""

    def __init__(self, outlet: Outlet) -> None:
        super().__init__(outlet)
        self.done: list[str] = []

    def produce(self, topic: str, _value: bytes | None, _key: bytes | None) -> None: ...

    def commit_transaction(self, _seconds: float) -> None:
        self.done.append("committed")

    def abort_transaction(self, _seconds: float) -> None:
        self.done.append("aborted")


@pytest.mark.behaviour("OUT-2", "OUT-4")
@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_transaction_is_committed_only_after_its_batch_was_recorded_and_aborted_if_that_fails(
    outlet: Outlet, monkeypatch: pytest.MonkeyPatch, *, is_replaced: bool
) -> None:
    producer = Ending(outlet)
    monkeypatch.setattr(outlet, "_producer", [producer])

    def record() -> None:
        producer.done.append("recorded")
        if is_replaced:
            raise RelayFenced("another relay has taken the outbox over")

    with pytest.raises(RelayFenced) if is_replaced else nullcontext():
        assert outlet.send(Mark(7, "seven"), rows_of(3), before_commit=record) is None
    monkeypatch.setattr(outlet, "_is_open", False)
    assert producer.done == ["recorded", "aborted" if is_replaced else "committed"]


class Silent(Losing):
    """A producer to which Kafka does not answer."""

    def __init__(self, outlet: Outlet) -> None:
        super().__init__(outlet)
        self.topics: list[str] = []

    def __len__(self) -> int:
        return len(self.topics)

    def produce(self, topic: str, _value: bytes | None, _key: bytes | None) -> None:
        self.topics.append(topic)

    def purge(self) -> None:
        for topic in self.topics:
            super().produce(topic, None, None)
        self.topics.clear()


@pytest.mark.behaviour("OUT-6")
def test_the_topics_of_records_without_an_answer_are_named(outlet: Outlet, monkeypatch: pytest.MonkeyPatch) -> None:
    """One partition without a leader stops all: who reads the log has to know which."""
    monkeypatch.setattr(outlet, "_producer", [Silent(outlet)])
    monkeypatch.setattr(outlet, "_is_open", False)
    with pytest.raises(
        BrokerUnavailable, match="producing batch 7, of which records of events, letters have no answer"
    ):
        outlet.send(
            Mark(7, "seven"), [OutboxRow(1, "letters", None, b""), OutboxRow(2, "events", None, b"")], before_commit=int
        )

"""A relay's producer, without a broker: how long it waits, and what its errors say."""

from __future__ import annotations

import threading
import time
from collections.abc import Generator
from typing import Any

import confluent_kafka as ck
import pytest

from offsetstore.errors import BrokerRefused, BrokerUnavailable
from offsetstore.kafka.outlet import Outlet
from offsetstore.kafka.settings.librdkafka import ClientSettings
from offsetstore.protocol.outbox import Mark, OutboxRow


def outlet_of(**settings: str) -> Outlet:
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
    ("code", "error", "said"),
    [
        (ck.KafkaError.GROUP_AUTHORIZATION_FAILED, BrokerRefused, "to READ the consumer group"),
        (ck.KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, BrokerRefused, "to WRITE to the transactional id"),
        (ck.KafkaError.TOPIC_AUTHORIZATION_FAILED, BrokerRefused, "to WRITE to the topic"),
        (ck.KafkaError._TIMED_OUT, BrokerUnavailable, "Check bootstrap.servers"),
    ],
)
def test_an_error_says_what_the_relay_needs(outlet: Outlet, code: int, error: type[Exception], said: str) -> None:
    told = outlet._trouble(ck.KafkaError(code, fatal=code > 0), "producing batch 7")
    assert isinstance(told, error)
    assert said in told.next_step
    assert "acls check" not in told.next_step


def test_a_topic_that_is_forbidden_without_any_rows_is_the_anchor(outlet: Outlet) -> None:
    error = ck.KafkaError(ck.KafkaError.TOPIC_AUTHORIZATION_FAILED)
    assert "to READ the topic" in outlet._trouble(error, "committing to topic anchor", has_rows=False).next_step


def test_a_producer_that_kafka_has_ended_is_said_to_be_and_a_new_one_is_made(outlet: Outlet) -> None:
    fenced = ck.KafkaError(ck.KafkaError._FENCED, "replaced", fatal=True)
    told = outlet._trouble(fenced, "producing batch 7")
    assert isinstance(told, BrokerUnavailable)
    assert "Another relay has begun" in told.next_step


def test_how_often_it_tries_is_not_the_user_s_to_say() -> None:
    """Else NOT_ENOUGH_REPLICAS, which passes, would be the last word on a record."""
    made = outlet_of(**{"message.send.max.retries": "2", "linger.ms": "7"})
    config = made._producer_config()
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


@pytest.mark.behaviour("OUT-6")
def test_a_record_at_which_a_broker_fails_by_itself_is_suspected_and_one_without_an_answer_is_not(
    outlet: Outlet,
) -> None:
    rows = [OutboxRow(n, "events", b"%d" % n, b"") for n in (1, 2, 3)]
    outlet._failed += [
        (("events", b"1", b""), ck.KafkaError(ck.KafkaError.UNKNOWN)),
        (("events", b"2", b""), ck.KafkaError(ck.KafkaError._TIMED_OUT)),
        (("events", b"3", b""), ck.KafkaError(ck.KafkaError.INVALID_TIMESTAMP)),  # our own clock's
    ]
    assert outlet._suspects(rows).keys() == {1}
    assert "no answer" not in str(outlet._trouble(ck.KafkaError(ck.KafkaError.UNKNOWN), "producing batch 7"))


class Losing:
    """A producer that reports the first record as purged, and would commit the others."""

    committed = False

    def __init__(self, outlet: Outlet) -> None:
        self.outlet = outlet

    def __len__(self) -> int:
        return 0

    def produce(self, topic: str, _value: bytes | None, _key: bytes | None) -> None:
        self.outlet._failed.append(((topic, b"", b""), ck.KafkaError(ck.KafkaError._PURGE_QUEUE)))

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

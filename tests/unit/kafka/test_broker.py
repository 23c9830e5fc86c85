"""What a Broker says without any Kafka: refusals, silence about secrets, patience with a cluster that is starting."""

from __future__ import annotations

import copy
import os
import pickle
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from threading import Event
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from confluent_kafka import KafkaError, KafkaException, Uuid

from offsetstore.errors import (
    BrokerRefused,
    BrokerUnavailable,
    ConfigurationError,
    MetadataRefused,
    TlsFailed,
    TopicMissing,
)
from offsetstore.kafka import Broker, client, truncation
from offsetstore.kafka import broker as brokers
from offsetstore.kafka.client import AdminRequest, Client, Deadline, Missing
from offsetstore.kafka.errors import broker_error
from offsetstore.kafka.requests import topic_id
from offsetstore.kafka.settings import ClientSettings
from offsetstore.offsets import CommittedOffset, EpochPair, TopicPartition, Watermarks
from offsetstore.protocol.ports import BrokerOffsets
from tests.support.background import in_background
from tests.support.clock import Clock

NOBODY = {"bootstrap.servers": "127.0.0.1:1"}
SECRET = "Hunter2-never-shown"
P0 = TopicPartition("payments", 0)


def answered(*codes: int) -> AdminRequest[str]:
    """One request that fails with these codes in turn and then is answered."""
    left = list(codes)

    def ask(_admin: Any, _seconds: float) -> Mapping[str, Future[Any]]:
        future: Future[Any] = Future()
        if left:
            future.set_exception(KafkaException(KafkaError(left.pop(0))))
        else:
            future.set_result("there")
        return {"payments": future}

    return AdminRequest("asking", ask)


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"bootstrap.servers": " "},
        {**NOBODY, "kafka.client.id": "x"},
        {**NOBODY, "subscribe": "payments"},
        {**NOBODY, "sasl.jaas.config": SECRET},
        {**NOBODY, "isolation.level": SECRET},
        {**NOBODY, "error_cb": print},
        {**NOBODY, "default.topic.config": {"auto.offset.reset": "latest"}},
    ],
)
def test_settings_that_cannot_be_right_are_refused_at_once(config: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError) as refused:
        Broker(config)
    assert SECRET not in str(refused.value)
    assert refused.value.next_step


@pytest.mark.parametrize(
    ("ask", "told"),
    [
        *(
            (lambda name=name: Broker(NOBODY, topics=["refunds", name]), "topics must be names: patterns are not")
            for name in ("^pay.*", "pay.*", "payments|refunds")
        ),
        (lambda: Broker(NOBODY, topics="payments"), None),
        (lambda: Broker(NOBODY, timeout=0), None),
        (lambda: Broker(NOBODY).view("", ["payments"]), None),
        (lambda: Broker(NOBODY).view("billing", []), None),
        (lambda: Broker(NOBODY).view("billing", ["payments"], timestamp_ms=-1), None),
        (lambda: Broker(NOBODY).commit("", {P0: CommittedOffset(1)}), None),
        (lambda: Broker(NOBODY).snapshot({"": ["payments"]}), None),
    ],
)
def test_what_nobody_can_be_asked_is_refused(ask: Callable[[], object], told: str | None) -> None:
    with pytest.raises(ConfigurationError, match=told):
        ask()


def test_without_topics_or_offsets_nobody_is_asked() -> None:
    broker: BrokerOffsets = Broker(NOBODY, topics=["payments", "payments"])
    assert broker.topics == ("payments",)
    assert broker.topic_ids([]) == {}
    broker.commit("billing", {})


@pytest.mark.parametrize(
    ("setting", "found"),
    [
        ({"sasl.pasword": SECRET}, "sasl.pasword"),
        ({"compression.codec": SECRET}, "compression.codec"),
        ({"ssl.ca.location": f"/{SECRET}", "security.protocol": "ssl"}, "ssl.ca.location"),
        ({"socket.timeout.ms": 9_999_999}, "9999999"),
        ({"stats_cb": SECRET}, "stats_cb"),
    ],
)
def test_a_setting_that_librdkafka_refuses_is_named_without_its_secret(setting: dict[str, Any], found: str) -> None:
    broker = Broker({**NOBODY, **setting})
    for ask in (lambda: broker.topic_ids(["payments"]), lambda: broker.commit("billing", {P0: CommittedOffset(1)})):
        with pytest.raises(ConfigurationError, match=found) as refused:
            ask()
        assert SECRET not in str(refused.value)
        assert refused.value.__cause__ is None
        assert refused.value.__context__ is None


def test_secrets_are_neither_shown_nor_pickled_nor_copied() -> None:
    broker = Broker({**NOBODY, "sasl.password": SECRET}, topics=["payments"])
    assert SECRET not in f"{broker!r}{vars(broker)!r}"
    assert "127.0.0.1:1" in repr(broker)
    with pytest.raises(ConfigurationError, match="pickled"):
        pickle.dumps(broker)
    with pytest.raises(ConfigurationError, match="pickled"):
        copy.copy(broker)


@pytest.mark.parametrize("text", ["a\0b", "\ud83d"])
def test_a_text_that_kafkas_client_cannot_send_is_refused(text: str) -> None:
    with pytest.raises(MetadataRefused) as refused:
        Broker(NOBODY).commit("billing", {P0: CommittedOffset(1, text)})
    assert refused.value.topic_partition == P0


def test_a_commit_of_another_thread_is_not_waited_for_longer_than_allowed() -> None:
    broker = Broker(NOBODY, timeout=0.1)
    with broker._committing, pytest.raises(BrokerUnavailable, match="another thread"):
        broker.commit("billing", {P0: CommittedOffset(1)})


@pytest.mark.behaviour("DX-1", "START-16")
def test_a_dead_broker_is_an_error_within_the_configured_time_and_who_waits_is_told_so_once(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "PATIENCE", 0.4)  # below the first client's share of the time
    broker = Broker({"bootstrap.servers": "127.0.0.1:1"}, timeout=1.0)
    for _ in range(2):
        started = time.monotonic()
        with pytest.raises(BrokerUnavailable, match="Connection refused") as error:
            broker.view("billing", ["payments"])
        assert 0.7 < time.monotonic() - started < 5
        assert "bootstrap.servers" in error.value.next_step
    assert capfd.readouterr().err == ""
    [late] = broker.find_truncated({P0: EpochPair(40, 0)}).values()
    assert isinstance(late, BrokerUnavailable)
    assert "comparing the logs" in str(late)
    assert "timeout=" in late.next_step
    [said] = [record.getMessage() for record in caplog.records if record.name == "offsetstore"]
    assert said.startswith("no answer from Kafka yet, still waiting while describing payments: ")
    assert "Connection refused" in said
    for ask in (lambda: broker.snapshot({"billing": ["payments"]}), lambda: broker.first_records([(P0, 0)])):
        with pytest.raises(BrokerUnavailable):
            ask()


def test_a_cluster_that_is_starting_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "MISSING_GRACE", 60.0)
    starting = answered(
        KafkaError.COORDINATOR_NOT_AVAILABLE, KafkaError.COORDINATOR_LOAD_IN_PROGRESS, KafkaError.NOT_COORDINATOR
    )
    moving = answered(KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.UNKNOWN_TOPIC_OR_PART)
    assert Client(NOBODY).answers([starting, moving], Deadline.after(60)) == [{"payments": "there"}] * 2


def test_what_stays_unanswered_is_unavailable_or_missing_at_the_deadline_and_a_refusal_is_not_asked_again() -> None:
    started = time.monotonic()
    with pytest.raises(BrokerUnavailable, match="COORDINATOR_NOT_AVAILABLE"):
        Client(NOBODY).answers([answered(*[KafkaError.COORDINATOR_NOT_AVAILABLE] * 99)], Deadline.after(0.5))
    with pytest.raises(Missing) as missing:
        Client(NOBODY).answers([answered(*[KafkaError.UNKNOWN_TOPIC_OR_PART] * 99)], Deadline.after(0.3))
    assert missing.value.keys == ["payments"]
    with pytest.raises(BrokerRefused, match="GROUP_AUTHORIZATION_FAILED"):
        Client(NOBODY).answers([answered(KafkaError.GROUP_AUTHORIZATION_FAILED)], Deadline.after(60))
    assert time.monotonic() - started < 20


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (KafkaError._AUTHENTICATION, BrokerRefused),
        (KafkaError.SASL_AUTHENTICATION_FAILED, BrokerRefused),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, BrokerRefused),
        (KafkaError.CLUSTER_AUTHORIZATION_FAILED, BrokerRefused),
        (KafkaError._SSL, TlsFailed),
        (KafkaError.UNSUPPORTED_VERSION, BrokerRefused),
        (KafkaError._TIMED_OUT, BrokerUnavailable),
        (KafkaError.LEADER_NOT_AVAILABLE, BrokerUnavailable),
    ],
)
def test_every_code_has_an_error_with_a_next_step(code: int, kind: type[Exception]) -> None:
    error = broker_error(KafkaError(code), "asking")
    assert type(error) is kind
    assert error.next_step
    assert str(pickle.loads(pickle.dumps(error))) == str(error)  # noqa: S301


def test_a_topic_id_is_spelled_as_kafkas_tools_spell_it() -> None:
    # kafka-topics --describe shows the bytes ff…ff as below; librdkafka shows slashes.
    assert topic_id(SimpleNamespace(topic_id=Uuid(-1, -1))) == "_" * 21 + "w"
    assert topic_id(SimpleNamespace(topic_id=Uuid(0, 0))) is None


def test_partitions_that_assign_names_must_be_there() -> None:
    broker = Broker.from_spark({"kafka.bootstrap.servers": "127.0.0.1:1", "assign": '{"payments": [1, 7]}'})
    with pytest.raises(TopicMissing, match="payments: 7"):
        broker._partitions({"payments": [0, 1, 2]})


class Clinging:
    """A client that gets an answer while the broker lives that it was made with; the next one finds another."""

    dead: ClassVar[set[int]] = set()
    clock: ClassVar[Clock] = Clock()
    made = 0

    def __init__(self, _settings: object, _on_silence: object) -> None:
        Clinging.made += 1
        self.number, self.pid = Clinging.made, os.getpid()

    def forget(self) -> None: ...

    def close(self) -> None: ...

    def cluster_id(self, *_: object) -> str:
        return "cluster"

    def answers(self, _requests: object, deadline: Deadline) -> list[dict[str, Any]]:
        if self.number in self.dead:
            self.clock.now += deadline.rest
            raise BrokerUnavailable(f"no answer within {deadline.seconds:g} s")
        return [{"payments": SimpleNamespace(topic_id=Uuid(0, self.number))}]


@pytest.fixture
def clinging(monkeypatch: pytest.MonkeyPatch) -> type[Clinging]:
    monkeypatch.setattr("offsetstore.kafka.broker.Client", Clinging)
    monkeypatch.setattr(Clinging, "made", 0)
    monkeypatch.setattr(Clinging, "dead", set[int]())
    monkeypatch.setattr(Clinging, "clock", Clock())
    monkeypatch.setattr(client, "time", SimpleNamespace(monotonic=Clinging.clock))
    return Clinging


@pytest.mark.parametrize("dead", [{1}, {1, 2}], ids=["known", "not-known-yet"])
def test_where_the_client_clings_to_a_broker_that_has_died_a_new_one_asks_the_others(
    clinging: type[Clinging], dead: set[int]
) -> None:
    broker = Broker(NOBODY, timeout=0.6)
    before = broker.topic_ids(["payments"])
    assert broker.topic_ids(["payments"]) == before  # it is kept while it gets answers
    clinging.dead.update(dead)

    after = broker.topic_ids(["payments"])

    assert after != before
    assert clinging.made == len(dead) + 1
    assert clinging.clock.now < 0.55

    clinging.dead.update({1, 2, 3, 4, 5})
    now, made = clinging.clock.now, clinging.made
    with pytest.raises(BrokerUnavailable, match=r"within 0\.6 s"):
        broker.topic_ids(["payments"])
    assert clinging.made == made + 2
    assert clinging.clock.now - now < 0.9  # the time of one call


PAIRS = {TopicPartition("payments", number): EpochPair(40, 0) for number in range(450)}


def finding(monkeypatch: pytest.MonkeyPatch, find_resets: Callable[..., Any], *ends: Watermarks) -> Broker:
    """A broker that asks about leader epochs in this way, with logs that end there."""

    def log_ends(partitions: Collection[TopicPartition]) -> dict[TopicPartition, Watermarks]:
        return {tp: ends[tp.partition] if ends else Watermarks(0, 100, high=100) for tp in partitions}

    broker = Broker(NOBODY, timeout=0.2)
    monkeypatch.setattr(brokers, "find_resets", find_resets)
    monkeypatch.setattr(broker, "log_ends", log_ends)
    return broker


def test_leader_epochs_are_asked_about_in_parts_each_in_its_own_time(monkeypatch: pytest.MonkeyPatch) -> None:
    parts: list[int] = []
    deadlines: set[float] = set()

    def find_resets(_settings: object, part: Mapping[TopicPartition, EpochPair], deadline: Deadline) -> dict[Any, None]:
        parts.append(len(part))
        deadlines.add(deadline.at)
        return dict.fromkeys(tp for tp in part if tp.partition % 100 == 0)

    found = finding(monkeypatch, find_resets).find_truncated(PAIRS)
    assert [tp.partition for tp in found] == [0, 100, 200, 300, 400]
    assert parts == [200, 200, 50, 5]  # what may have been truncated is asked once more
    assert len(deadlines) == 4


@pytest.mark.behaviour("START-26")
def test_a_log_that_can_t_be_told_keeps_no_other_from_being_told(monkeypatch: pytest.MonkeyPatch) -> None:
    late, refused = BrokerUnavailable("no leader"), BrokerRefused("wrong password")
    parts: list[int] = []

    def find_resets(_settings: object, part: Mapping[TopicPartition, EpochPair], _rest: object) -> dict[Any, Any]:
        parts.append(len(part))
        if len(part) == 50:
            raise refused
        return {tp: late if tp.partition < 3 else None for tp in part if tp.partition in {1, 2, 201}}

    broker = finding(monkeypatch, find_resets)
    found = {tp.partition: answer for tp, answer in broker.find_truncated(PAIRS).items()}
    assert found == {1: late, 2: late, 201: None, **dict.fromkeys(range(400, 450), refused)}
    assert parts == [200, 200, 50, 1]

    parts.clear()
    monkeypatch.setattr(brokers, "PARTITIONS", 50)
    assert set(broker.find_truncated(PAIRS).values()) == {refused}
    assert parts == [50]  # nobody is asked a second time with a wrong password


def told(error: KafkaError | None, partition: int = 0) -> Any:
    """What a poll returns."""
    return SimpleNamespace(topic=lambda: P0.topic, partition=lambda: partition, error=lambda: error)


def polling(poll: Callable[[float], Any], seen: dict[str, Any] | None = None) -> Callable[[dict[str, Any]], Any]:
    """In place of confluent_kafka's Consumer; its settings are added to ``seen``."""

    def make(config: dict[str, Any]) -> Any:
        (seen if seen is not None else {}).update(config)
        return SimpleNamespace(assign=id, incremental_unassign=id, poll=poll)

    return make


def test_what_is_told_of_some_logs_by_the_deadline_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = iter((0, 1))

    def poll(_timeout: float) -> Any:
        if (number := next(numbers, None)) is None:
            time.sleep(0.05)
            return None
        codes = {0: KafkaError._AUTO_OFFSET_RESET, 1: KafkaError.TOPIC_AUTHORIZATION_FAILED}
        return told(KafkaError(codes[number], "broker end offset is 50"), number)

    monkeypatch.setattr(client, "Consumer", polling(poll))
    pairs = {TopicPartition(P0.topic, number): EpochPair(100, 0) for number in range(3)}

    found = truncation.find_resets(ClientSettings(NOBODY), pairs, Deadline.after(0.2))

    assert {tp.partition: type(answer) for tp, answer in found.items()} == {
        0: int, 1: BrokerRefused, 2: BrokerUnavailable
    }  # fmt: skip
    assert found[P0] == 50


@pytest.mark.behaviour("START-26")
def test_a_log_that_lies_outside_of_the_offset_altogether_was_not_told_to_be_truncated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def find_resets(_settings: object, part: Mapping[TopicPartition, EpochPair], _deadline: Deadline) -> dict[Any, int]:
        return dict.fromkeys(part, 35)

    ends = Watermarks(0, 100, high=100), Watermarks(0, 30, high=30), Watermarks(50, 100, high=100)
    pairs = {TopicPartition("payments", number): EpochPair(40, 0) for number in range(3)}
    assert finding(monkeypatch, find_resets, *ends).find_truncated(pairs) == {P0: 35}


@pytest.mark.behaviour("START-26")
def test_only_librdkafkas_reset_tells_that_a_log_was_truncated(monkeypatch: pytest.MonkeyPatch) -> None:
    codes = [KafkaError._TRANSPORT, KafkaError._AUTO_OFFSET_RESET] * 2

    def poll(timeout: float) -> Any:
        time.sleep(0 if codes else timeout)
        return told(KafkaError(codes.pop(0), "broker end offset is 35 (offset 40, leader epoch 0)")) if codes else None

    monkeypatch.setattr(client, "Consumer", polling(poll))
    broker = finding(monkeypatch, brokers.find_resets)
    assert broker.find_truncated({P0: EpochPair(40, 0)}) == {P0: 35}
    codes += [KafkaError._TRANSPORT]
    assert isinstance(broker.find_truncated({P0: EpochPair(40, 0)})[P0], BrokerUnavailable)


def test_of_each_log_no_more_is_read_than_a_batch_of_the_default_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever size the user's own settings name, by either of librdkafka's names."""
    seen: dict[str, Any] = {}

    monkeypatch.setattr(client, "Consumer", polling(lambda _: told(None), seen))
    broker = Broker({**NOBODY, "fetch.message.max.bytes": 5_000_000})
    assert broker.find_truncated({P0: EpochPair(40, 0)}) == {}
    assert seen["fetch.message.max.bytes"] == seen["max.partition.fetch.bytes"] == 32768
    assert truncation.PARTITIONS * 32768 < 7_000_000


def test_a_look_at_the_logs_delays_no_batch(clinging: type[Clinging], monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does that of a member that takes a partition, which asks about that alone."""
    broker, looking, go_on = Broker(NOBODY, timeout=0.6), Event(), Event()
    described = {"payments": SimpleNamespace(topic_id=Uuid(0, 1), partitions=[SimpleNamespace(id=n) for n in range(3)])}

    def answers(_: object, asked: list[object], __: object) -> list[Any]:
        return [described for _ in asked]

    def nothing(*_: object) -> dict[TopicPartition, CommittedOffset]:
        return {}

    def look_long(*asked: Any, **_: object) -> tuple[dict[TopicPartition, Watermarks]]:
        looking.set()
        go_on.wait(20)
        return (dict.fromkeys(asked[1], Watermarks(0, 9)),)

    def looks(look: Callable[[], Any]) -> Any:
        looking.clear()
        go_on.clear()
        looked = in_background(look)
        assert looking.wait(20)
        assert broker.topic_ids(["payments"])["payments"]
        go_on.set()
        return looked.result(timeout=20)

    monkeypatch.setattr(clinging, "answers", answers)
    monkeypatch.setattr("offsetstore.kafka.broker.committed_offsets", nothing)
    monkeypatch.setattr(broker, "_logs", look_long)
    assert looks(lambda: broker.log_ends([P0])) == {P0: Watermarks(0, 9)}
    assert clinging.made == 2
    log = looks(lambda: broker.view("billing", ["payments"], partitions=[P0])).topics["payments"]
    assert (log.partitions, log.partition_count) == ({0: Watermarks(0, 9)}, 3)
    broker.close()

"""An overview without any Kafka: what fails is told beside what does not."""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import OFFSET_INVALID, KafkaError, KafkaException, Uuid

from offsetstore.errors import BrokerUnavailable, TopicMissing
from offsetstore.kafka import overview, requests
from offsetstore.kafka.client import AdminRequest, Client, Deadline
from offsetstore.kafka.overview import GroupConnections, find_first_records, take_snapshot
from offsetstore.kafka.settings import ClientSettings
from offsetstore.offsets import TopicPartition
from offsetstore.protocol.ports import FoundRecord, LogEnds

NOBODY = {"bootstrap.servers": "127.0.0.1:1"}
P0, P1 = TopicPartition("payments", 0), TopicPartition("payments", 1)


def scripted(outcomes: Mapping[Any, list[int | str]]) -> AdminRequest[Any]:
    """A request that has for each key these error codes and answers in turn; the last one stays."""

    def ask(_admin: Any, _seconds: float) -> Mapping[Any, Future[Any]]:
        return {key: future(left.pop(0) if len(left) > 1 else left[0]) for key, left in outcomes.items()}

    return AdminRequest("asking", ask)


def future(outcome: object) -> Future[Any]:
    made: Future[Any] = Future()
    if isinstance(outcome, int):
        made.set_exception(KafkaException(KafkaError(outcome)))
    else:
        made.set_result(outcome)
    return made


def test_each_key_has_its_answer_or_its_error_and_what_may_pass_is_asked_once_more() -> None:
    client, moving = Client(NOBODY), KafkaError.NOT_LEADER_FOR_PARTITION
    request = scripted({"a": ["first", "second"], "b": [moving, "there"], "c": [KafkaError.UNKNOWN_TOPIC_OR_PART]})
    for_good = scripted({"d": [moving], "e": ["there", moving]})
    settled = scripted({"f": ["first", "second"]})
    one, two, three = client.outcomes([request, for_good, settled], Deadline.after(60))
    assert (one["a"], one["b"], one["c"].code()) == ("first", "there", KafkaError.UNKNOWN_TOPIC_OR_PART)
    assert (two["d"].code(), two["e"]) == (moving, "there")
    assert three == {"f": "first"}


def test_what_is_not_answered_in_time_is_an_error_of_its_own() -> None:
    pending = AdminRequest("asking", lambda _admin, _seconds: {"a": Future[Any](), "b": future("there")})
    started = time.monotonic()
    [found] = Client(NOBODY).outcomes([pending], Deadline.after(0.3))
    assert time.monotonic() - started < 30  # it would wait for ever
    assert (found["a"].code(), found["b"]) == (KafkaError._TIMED_OUT, "there")


class FakeAdmin:
    """An admin client with two partitions: the second one has no leader, and a third topic is not there."""

    def __init__(self, answer: object) -> None:
        self._answer = answer
        self.asked: list[int] = []

    def poll(self, _seconds: float) -> None: ...

    def list_topics(self, _topic: str, **_given: Any) -> Any:
        return SimpleNamespace(cluster_id="c")

    def describe_topics(self, names: Any, **_given: Any) -> dict[str, Future[Any]]:
        partitions = [SimpleNamespace(id=0, leader="node"), SimpleNamespace(id=1, leader=None)]
        there = SimpleNamespace(topic_id=Uuid(1, 2), partitions=partitions)
        return {
            name: future(there if name == "payments" else KafkaError.UNKNOWN_TOPIC_OR_PART)
            for name in names.topic_names  # as confluent_kafka calls it
        }

    def list_consumer_groups(self, **_given: Any) -> Future[Any]:
        return future(SimpleNamespace(valid=[], errors=[]))

    def list_offsets(self, wanted: Any, **_given: Any) -> dict[Any, Future[Any]]:
        self.asked.append(len(wanted))
        return {key: future(self._answer) for key in wanted}


def client_with(admin: FakeAdmin) -> Client:
    client: Any = Client(NOBODY)
    client._admin = admin
    return client


def test_a_partition_without_a_leader_and_a_missing_topic_leave_the_others_alone() -> None:
    client = client_with(FakeAdmin(SimpleNamespace(offset=7)))
    shown = take_snapshot(client, GroupConnections(ClientSettings(NOBODY)), {}, Deadline.after(5))
    assert (shown.cluster_id, shown.topics) == ("c", {})
    asked = {"": ("payments", "gone")}
    connections = GroupConnections(ClientSettings(NOBODY))
    connections.read = lambda asked, deadline: dict.fromkeys(asked, BrokerUnavailable("no coordinator"))  # noqa: ARG005
    shown = take_snapshot(client, connections, asked, Deadline.after(5))
    payments, gone, group = shown.topics["payments"], shown.topics["gone"], shown.groups[""]
    assert (payments.partition_count, payments.partitions) == (2, {0: LogEnds(7, 7, 7)})
    assert isinstance(payments.error, BrokerUnavailable)
    assert isinstance(gone.error, TopicMissing)
    assert (group.committed, group.has_members, type(group.error)) == (None, False, BrokerUnavailable)


def test_ten_thousand_partitions_are_asked_in_parts_and_in_one_round() -> None:
    admin = FakeAdmin(SimpleNamespace(offset=3, timestamp=5))
    asked = [(TopicPartition("payments", number), 1) for number in range(10_000)]
    again = [(P0, 2), (P1, 2), (P0, 3)]
    found = find_first_records(client_with(admin), [*asked, *again], Deadline.after(30))
    assert found == dict.fromkeys([*asked, *again], FoundRecord(3, 5))
    assert admin.asked == [1000] * 10 + [2, 1]


def test_records_that_can_not_be_looked_up_at_all_are_an_error() -> None:
    client = client_with(FakeAdmin(KafkaError.LEADER_NOT_AVAILABLE))
    with pytest.raises(BrokerUnavailable):
        find_first_records(client, [(P0, 1), (P1, 1)], Deadline.after(0.05))


def test_the_connection_of_a_group_with_nothing_to_ask_for_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its topics were deleted, or it was: an exporter runs for months."""
    open_: list[str] = []

    class Connection:
        def __init__(self, _settings: ClientSettings, group: str) -> None:
            self._group = group
            open_.append(group)

        def committed(self, asked: Any, _deadline: Deadline) -> Any:
            return dict.fromkeys(asked)

        def close(self) -> None:
            open_.remove(self._group)

    monkeypatch.setattr(overview, "GroupOffsets", Connection)
    connections, deadline = GroupConnections(ClientSettings(NOBODY)), Deadline.after(5)
    for asked, left in (
        ({"billing": [P0], "rates": [P1], "new": []}, ["billing", "rates"]),
        ({"billing": [], "rates": [P1]}, ["rates"]),
        ({}, []),
    ):
        assert connections.read(asked, deadline) == {name: dict.fromkeys(tps) for name, tps in asked.items()}
        assert sorted(open_) == left


class Undecided(FakeAdmin):
    """An admin client whose first answers have no offset, as librdkafka's may while a leader changes."""

    def __init__(self, *answers: int) -> None:
        super().__init__(None)
        self._answers = list(answers)

    def list_offsets(self, wanted: Any, **_given: Any) -> dict[Any, Future[Any]]:
        self.asked.append(len(wanted))
        offset = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        return {key: future(SimpleNamespace(offset=offset, timestamp=5)) for key in wanted}


@pytest.mark.behaviour("START-25")
@pytest.mark.parametrize("spec", [requests.EARLIEST, requests.LATEST, requests.at(1)], ids=["first", "end", "time"])
def test_an_answer_without_an_offset_is_none(spec: Any) -> None:
    asking = requests.offsets([P0], spec, read_committed=False)
    admin = Undecided(OFFSET_INVALID, OFFSET_INVALID, 7)
    [answers] = client_with(admin).answers([asking], Deadline.after(60))
    assert (answers[P0].offset, admin.asked) == (7, [1, 1, 1])
    with pytest.raises(BrokerUnavailable, match="high watermark is not caught up"):
        client_with(Undecided(OFFSET_INVALID)).answers([asking], Deadline.after(0.15))
    [outcome] = client_with(Undecided(OFFSET_INVALID)).outcomes([asking], Deadline.after(0.15))
    assert isinstance(outcome[P0], KafkaError)


def test_no_record_at_a_time_is_an_answer_and_no_offset_at_an_end_is_not() -> None:
    assert find_first_records(client_with(Undecided(-1)), [(P0, 1)], Deadline.after(1)) == {(P0, 1): None}
    asking = requests.offsets([P0], requests.LATEST, read_committed=False)
    with pytest.raises(BrokerUnavailable):
        client_with(Undecided(-1)).answers([asking], Deadline.after(0.15))

"""On a Kafka that allows nothing without an ACL: what is refused, by name, and what each permission opens."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from offsetstore import OffsetStore, Relay
from offsetstore.errors import BrokerRefused
from offsetstore.kafka import admin
from offsetstore.kafka.acls import Acl, AclOperation, Resource, relay_acls
from offsetstore.offsets import CommittedOffset, TopicPartition
from offsetstore.protocol.events import OutboxBlocked
from offsetstore.protocol.observers import Observers
from offsetstore.protocol.ports import FoundRecord, LogEnds
from tests.integration.conftest import Query
from tests.integration.kafka.conftest import hurry
from tests.support.authorized import JOB, Authorized
from tests.support.background import in_background
from tests.support.outbox import numbered, put, values
from tests.support.recorder import Recorder
from tests.support.waiting import wait_until


def refusal(ask: Callable[[], object]) -> str:
    """What Kafka says no to, or nothing."""
    try:
        ask()
    except BrokerRefused as error:
        return str(error)
    return ""


def test_missing_permissions_are_refused_one_by_one_and_an_overview_tells_them_beside_the_rest(
    authorized: Authorized,
) -> None:
    servers, broker, p0 = authorized.kafka.bootstrap_servers, authorized.broker(), TopicPartition("allowed", 0)
    for topic in ("allowed", "secret"):
        admin.create_topic(servers, topic)
    admin.produce(servers, "allowed", [admin.NewRecord(b"x", timestamp_ms=5)])

    def view() -> str:
        return refusal(lambda: broker.view("viewers", ["allowed"]))

    def commit() -> str:
        return refusal(lambda: broker.commit("viewers", {p0: CommittedOffset(1)}))

    def allow(operation: AclOperation, kind: Resource, name: str) -> None:
        authorized.allow(Acl(JOB, kind, name, operation))

    assert re.search(r"describing allowed; found TOPIC_AUTHORIZATION_FAILED.*DESCRIBE the topic", view())
    allow("DESCRIBE", "topic", "allowed")
    wait_until(lambda: "TOPIC_AUTHORIZATION_FAILED" not in view())
    assert re.search(r"group viewers; found GROUP_AUTHORIZATION_FAILED.*DESCRIBE the consumer group", view())
    # Without that permission a commit finds no coordinator; READ brings DESCRIBE with it.
    assert re.search(r"group viewers; found GROUP_AUTHORIZATION_FAILED.*READ the consumer group", commit())
    allow("DESCRIBE", "group", "viewers")
    wait_until(lambda: not view())
    assert re.search(r"group viewers; found GROUP_AUTHORIZATION_FAILED.*READ the consumer group", commit())

    asked = {"viewers": ["allowed", "secret"], "others": ["allowed"]}
    wait_until(lambda: broker.snapshot(asked).groups["viewers"].error is None)
    shown = broker.snapshot(asked)
    assert shown.topics["allowed"].partitions == {0: LogEnds(0, 1, 1)}
    assert isinstance(shown.topics["secret"].error, BrokerRefused)
    assert shown.groups["viewers"].committed == {}
    assert isinstance(shown.groups["others"].error, BrokerRefused)
    assert broker.first_records([(p0, 1)]) == {(p0, 1): FoundRecord(0, 5)}
    assert broker.read_records({p0: 0}) == {}

    allow("READ", "group", "viewers")
    wait_until(lambda: "GROUP_AUTHORIZATION_FAILED" not in commit())
    assert re.search(r"group viewers; found TOPIC_AUTHORIZATION_FAILED.*READ the topic", commit())
    allow("READ", "topic", "allowed")
    wait_until(lambda: not commit())


@pytest.mark.behaviour("OUT-6")
def test_rows_of_a_topic_that_may_not_be_written_to_wait_and_the_rest_goes_on(
    authorized: Authorized, store: OffsetStore, query: Query, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    hurry(monkeypatch, trial=0.1)
    store.observers = Observers([recorder])
    servers = authorized.kafka.bootstrap_servers
    topic, other, anchor = "good", "other", "anchor"
    for name in (topic, other, anchor):
        admin.create_topic(servers, name)
    may = Acl(JOB, "topic", other, "WRITE")
    *needed, id_ = relay_acls(JOB, topics=[topic], anchor=anchor)
    authorized.allow(*needed, may)
    relay = Relay(store, authorized.broker(), anchor=anchor)
    with pytest.raises(BrokerRefused, match=r"Allow this principal to WRITE to the transactional id.*Run the relay'"):
        wait_until(relay.drain)
    authorized.allow(id_)
    wait_until(lambda: not refusal(relay.drain), timeout=60)  # an ACL takes a moment to apply

    def left() -> int:
        return query("SELECT count(*)::int FROM outbox")[0][0]

    done = in_background(relay.run)
    try:
        put(store, numbered(other, [0]))
        wait_until(lambda: left() == 0, timeout=60)
        authorized.forbid(may)
        put(store, [*numbered(topic, [0]), *numbered(other, range(1, 30)), *numbered(topic, [1])])
        put(store, numbered(topic, [2]))
        wait_until(lambda: left() == 29, timeout=60)
    finally:
        relay.stop()
    done.result(60)

    assert values(servers, topic) == [0, 1, 2]
    assert recorder.of(OutboxBlocked)[-1].error == f"Kafka does not let the relay write to topic {other}"
    assert query("SELECT count(*) FROM outbox_refused") == [(0,)]

"""The relay on Kafka, for records of applications: each source's are sent in its order, refused and decided apart."""

from __future__ import annotations

import json
from collections import defaultdict

import psycopg
import pytest
from click.testing import CliRunner

from offsetstore import Broker, OffsetStore, Relay
from offsetstore.cli.commands import cli
from offsetstore.kafka import admin
from offsetstore.local.kafka import KafkaBroker
from offsetstore.outbox import OutboxRecord, put
from offsetstore.testing.fixtures import NewTopic
from tests.integration.kafka.conftest import hurry
from tests.support import outbox

NUMBERS = 30


@pytest.mark.behaviour("OUT-14", "OUT-3", "OUT-6")
def test_records_of_applications_and_jobs_are_sent_in_order_and_a_refused_one_is_its_source_s(  # noqa: PLR0917
    broker: Broker,
    offsetstore_kafka: KafkaBroker,
    offsetstore_database: str,
    offsetstore_topic: NewTopic,
    store: OffsetStore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hurry(monkeypatch, trial=0.1)
    monkeypatch.setenv("OFFSETSTORE_URL", offsetstore_database)
    topic, compacted = offsetstore_topic(3), offsetstore_topic(1, config={"cleanup.policy": "compact"})
    relay = Relay(store, broker, anchor=offsetstore_topic(1))
    with psycopg.connect(offsetstore_database) as shop, psycopg.connect(offsetstore_database) as stock:
        for number in range(NUMBERS):
            for connection, source in ((shop, "shop"), (stock, "stock")):
                record = OutboxRecord(topic, source.encode(), str(number).encode(), (("source", source.encode()),))
                put(connection, [record], source=source)
                if number % 3:
                    connection.commit()
                else:
                    connection.rollback()
        put(shop, [(compacted, None, b"a compacted topic takes no record without a key")], source="shop")
    outbox.put(store, outbox.numbered(topic, [-1]))  # a job's

    relay.drain()
    relay.drain()

    found = defaultdict[bytes, list[int]](list)
    for message in admin.read_committed(offsetstore_kafka.bootstrap_servers, topic):
        key = message.key()
        assert isinstance(key, bytes)
        found[key].append(int(message.value() or b""))
        assert message.headers() in ([("source", key)], None)
    committed = [number for number in range(NUMBERS) if number % 3]
    assert found == {b"shop": committed, b"stock": committed, b"key 2": [-1]}
    listed = CliRunner().invoke(cli, ["outbox", "list", "-g", "shop", "--format", "json"])
    [refused] = json.loads(listed.stdout)["rows"]
    assert refused["topic"] == compacted

"""The relay on PostgreSQL and Kafka: what a ``read_committed`` reader gets, whatever happens on the way."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from offsetstore import Broker, OffsetStore, Relay, TopicPartition
from offsetstore.errors import BrokerUnavailable
from offsetstore.kafka import admin
from offsetstore.local.kafka import KafkaBroker
from offsetstore.protocol.events import OutboxBlocked, OutboxRefused, OutboxSent, OutboxWaits
from offsetstore.protocol.outbox import OutboxRecord
from offsetstore.runtime import failpoints
from offsetstore.testing.fixtures import NewTopic
from tests.integration.conftest import Query
from tests.integration.kafka.conftest import delete_late, hurry
from tests.support.kafka_tools import install_kafka_tools
from tests.support.outbox import by_key, numbered, put, values
from tests.support.recorder import Recorder
from tests.support.relayed import running
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[3]
STEPS = (
    "outbox_fenced",
    "outbox_recorded:2",
    "outbox_in_transaction:2",
    "outbox_sent:2",
    "outbox_aborted",
)
"""Points and how often they are reached before the kill; the model has all of them, in any order."""


@dataclass(frozen=True)
class Place:
    """A store, and topics of this test alone. So is the anchor: the stores of tests are copies of one."""

    store: OffsetStore
    broker: Broker
    kafka: KafkaBroker
    url: str
    topics: NewTopic
    anchor: str
    query: Query
    recorder: Recorder

    @property
    def servers(self) -> str:
        return self.kafka.bootstrap_servers

    def relay(self, **arguments: Any) -> Relay:
        """Another one, with an anchor of this test's."""
        return Relay(self.store, self.broker, anchor=self.anchor, **arguments)

    def left(self) -> int:
        return self.query("SELECT count(*)::int FROM outbox")[0][0]

    def wait_until_empty(self) -> None:
        wait_until(lambda: self.left() == 0, timeout=60)

    def values(self, topic: str) -> list[int]:
        return values(self.servers, topic)


@pytest.fixture
def place(  # noqa: PLR0917 - fixtures
    broker: Broker,
    offsetstore_kafka: KafkaBroker,
    offsetstore_database: str,
    offsetstore_topic: NewTopic,
    query: Query,
    monkeypatch: pytest.MonkeyPatch,
) -> Generator[Place]:
    recorder = Recorder()
    hurry(monkeypatch, trial=0.1)
    with OffsetStore.connect(offsetstore_database, observers=[recorder]) as store:
        made = offsetstore_topic
        yield Place(store, broker, offsetstore_kafka, offsetstore_database, made, made(1), query, recorder)


@pytest.mark.behaviour("OUT-2")
def test_a_record_is_in_kafka_as_it_was_written_and_gone_from_the_outbox(place: Place) -> None:
    topic = place.topics(2)
    bytes_ = bytes(range(256))
    headers = (("trace", bytes_), ("trace", None), ("größe", b""))
    put(place.store, [OutboxRecord(topic, bytes_, bytes_, headers), OutboxRecord(topic, b"k", None)])

    place.relay().drain()
    place.relay().drain()  # another start, and nothing to do

    found = {message.key(): message for message in admin.read_committed(place.servers, topic)}
    assert {key: (one.value(), one.headers()) for key, one in found.items()} == {
        bytes_: (bytes_, list(headers)),
        b"k": (None, None),
    }
    assert place.left() == 0
    assert place.query("SELECT batch, ids, sent FROM outbox_relays") == [(1, [], 2)]


@pytest.mark.behaviour("OUT-2", "OUT-3", "OUT-9", "OUT-11")
def test_a_kill_between_any_two_steps_leaves_each_row_once_and_in_order(place: Place) -> None:
    """Or set aside, for one of three reasons; `make chaos` has more rows, and kills of all that takes part."""
    topic, keyed = place.topics(3), place.topics(1, config={"cleanup.policy": "compact"})
    command = [sys.executable, "-m", "tests.support.outbox", place.url, place.servers, place.anchor]

    def relay(failpoint: str | None, most: int = 4) -> subprocess.CompletedProcess[str]:
        armed = {} if failpoint is None else {"OFFSETSTORE_FAILPOINT": failpoint}
        return subprocess.run(
            [*command, str(most)],
            cwd=ROOT,
            env={**os.environ, **armed},
            check=False,
            capture_output=True,
            text=True,
            timeout=120,
        )

    delete_late(place.query)  # at "outbox_in_transaction:2" the batch is not recorded yet
    written = 0
    for failpoint in STEPS:
        no_record = f"INSERT INTO outbox (consumer_group, topic, headers) VALUES ('billing', '{topic}', '[7]')"
        place.query(no_record)
        put(place.store, numbered(topic, range(written, written + 3)))
        put(place.store, [OutboxRecord(topic, b"key 0", bytes(1_100_000)), OutboxRecord(keyed, None, b"-1")])
        put(place.store, [*numbered(topic, range(written + 3, written + 6)), *numbered(keyed, [written])])
        written += 6
        done = relay(failpoint)
        assert done.returncode == -signal.SIGKILL, done.stderr
    done = relay(None, most=100)
    assert done.returncode == 0, done.stderr

    assert by_key(place.servers, topic) == {f"key {one}".encode(): list(range(one, written, 3)) for one in range(3)}
    assert place.values(keyed) == list(range(0, written, 6))
    assert place.left() == 0
    aside = place.query("SELECT split_part(error, ' ', 1), count(*)::int FROM outbox_refused GROUP BY 1 ORDER BY 1")
    assert aside == [("INVALID_RECORD:", len(STEPS)), ("it", len(STEPS)), ("its", len(STEPS))]


@pytest.mark.behaviour("OUT-6", "OUT-9", "OUT-11")
def test_what_kafka_refuses_is_set_aside_with_its_error_and_the_rest_goes_on(place: Place) -> None:
    topic, small = place.topics(1), place.topics(1, config={"max.message.bytes": "2000"})
    compacted = place.topics(1, config={"cleanup.policy": "compact"})
    missing = f"missing-{place.anchor}"
    too_large = os.urandom(3000)  # for that topic's log, which only the brokers know
    put(
        place.store,
        [
            *numbered(topic, [0]),
            OutboxRecord(missing, b"k", b"7"),
            OutboxRecord(topic, b"k", bytes(2_000_000)),  # for librdkafka's own limit
            *numbered(small, [0, 1, 2]),
            OutboxRecord(small, b"key 0", too_large),
            *numbered(small, [3, 4]),
            OutboxRecord(compacted, b"k", b"0"),
            *[OutboxRecord(compacted, None, b"without a key")] * 2,  # Kafka names them among the others
            OutboxRecord(compacted, b"k", b"1"),
            *numbered(topic, [1]),
        ],
    )
    place.query(  # the grants allow these, and no writer of ours makes them
        "INSERT INTO outbox (consumer_group, topic, headers) "
        f"VALUES ('billing', '{topic}', '{{\"a\": 1}}'), ('billing', 'no topic', NULL)"
    )

    with running(place.relay()):
        wait_until(lambda: place.left() == 1, timeout=60)
        [blocked] = place.recorder.of(OutboxBlocked)
        assert (blocked.topic, blocked.row, blocked.error) == (missing, 2, f"Kafka has no topic {missing}")

        admin.create_topic(place.servers, missing)
        place.wait_until_empty()

    try:
        assert place.values(missing) == [7]
    finally:
        admin.delete_topic(place.servers, missing)
    assert place.values(topic) == place.values(compacted) == [0, 1]
    assert place.values(small) == [0, 1, 2, 3, 4]
    refused = place.query("SELECT topic, octet_length(value), error FROM outbox_refused ORDER BY id")
    assert [(row[0], row[1], row[2].partition(":")[0]) for row in refused] == [
        (topic, 2_000_000, "it has 2000001 bytes, the relay's message.max.bytes is 1000000"),
        (small, 3000, "MSG_SIZE_TOO_LARGE"),
        *[(compacted, 13, "INVALID_RECORD")] * 2,
        (topic, None, "its headers are not a list of pairs of a name and a value in base64"),
        ("no topic", None, "Kafka allows no topic of this name"),
    ]
    assert sum(len(event.errors) for event in place.recorder.of(OutboxRefused)) == 6


@pytest.mark.behaviour("OUT-2", "OUT-4")
def test_it_goes_on_after_its_connections_its_producer_and_its_transaction_have_ended(place: Place) -> None:
    topic = place.topics(1)
    with (
        closing(Broker({"bootstrap.servers": place.servers}, timeout=4)) as broker,
        running(relay := replace(place, broker=broker).relay(most=10)),
    ):
        put(place.store, numbered(topic, range(20)))
        place.wait_until_empty()
        fence(place, relay)  # as a relay that stands still for longer than its transaction may take
        put(place.store, numbered(topic, range(20, 30)))
        place.wait_until_empty()
        place.query("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() "
              "AND pid <> pg_backend_pid()")  # fmt: skip
        put(place.store, numbered(topic, range(30, 60)))
        place.wait_until_empty()

        place.kafka.kill()
        put(place.store, numbered(topic, range(60, 90)))
        wait_until(lambda: place.recorder.of(OutboxWaits), timeout=60)
        place.kafka.start()
        place.wait_until_empty()

    assert place.values(topic) == list(range(90))
    assert sum(event.rows for event in place.recorder.of(OutboxSent)) <= 90


@pytest.mark.behaviour("OUT-5")
def test_a_transaction_that_has_lost_its_end_is_ended_as_the_pages_say_and_each_row_is_there_once(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a batch in two topics, one has the end of its transaction; the other one and the offset have lost theirs."""
    ended, hanging = place.topics(1), place.topics(1)
    relay = place.relay()
    put(place.store, [*numbered(ended, [0]), *numbered(hanging, [0])])
    relay.drain()
    put(place.store, [*numbered(ended, [1, 2]), *numbered(hanging, [1, 2])])
    with monkeypatch.context() as context:
        context.setattr(failpoints, "reach", ending_at("outbox_sent"))
        with pytest.raises(failpoints.FailpointReached):
            relay.drain()
    lose_ends(place, relay, hanging)

    settings = {"bootstrap.servers": place.servers, "isolation.level": "read_committed"}
    # Once the coordinator has loaded the group, it tells of what no transaction is about to change.
    assert place.broker.committed_offsets(relay.group, [TopicPartition(hanging, 0)]) == {}
    with monkeypatch.context() as context, closing(Broker(settings, timeout=5)) as hasty:
        context.setattr("offsetstore.kafka.group_offsets._STABLE_SHARE", 0.2)  # the rest is for what tells the cause
        for asks in (
            lambda: hasty.committed_offsets(relay.group, [TopicPartition(place.anchor, 0)]),
            Relay(place.store, hasty, anchor=place.anchor).drain,
        ):
            with pytest.raises(BrokerUnavailable, match=r"an open Kafka transaction blocks .*Recover a relay'"):
                asks()
    with monkeypatch.context() as context:
        context.setattr(admin, "_SECONDS", 3.0)
        with pytest.raises(BrokerUnavailable, match=r"a transaction is open; found 1 committed records"):
            place.values(hanging)
    do_what_the_pages_say(place, relay.group, hanging, tmp_path)
    place.relay().drain()

    assert place.values(ended) == place.values(hanging) == [0, 1, 2]
    assert place.left() == 0


def ending_at(point: str) -> Callable[[str], None]:
    def reach(name: str) -> None:
        if name == point:
            raise failpoints.FailpointReached

    return reach


def fence(place: Place, relay: Relay) -> None:
    """Let Kafka end the transaction of the relay, which nobody has replaced."""
    other = place.broker.outlet(relay.group, anchor=place.anchor)
    other.fence()
    other.close()


def lose_ends(place: Place, relay: Relay, topic: str) -> None:
    """Kill the broker, and cut off the end of the last transaction in this topic, and in that of committed offsets."""
    fence(place, relay)  # which it does once the transaction has its end everywhere, and does not write one again
    place.kafka.kill()
    logs = place.kafka.directory / "data"
    [log] = logs.glob(f"{topic}-0/*.log")
    start, producer = last_batch(log)
    assert producer is not None
    os.truncate(log, start)
    offsets = logs.glob("__consumer_offsets-*/*.log")
    [(log, start)] = [(each, start) for each in offsets for start, whose in [last_batch(each)] if whose == producer]
    os.truncate(log, start)
    place.kafka.start()


def last_batch(log: Path) -> tuple[int, bytes | None]:
    """Where the log's last batch begins; and whose it is, if it is the end of a transaction."""
    data, start, end = log.read_bytes(), 0, 0
    while end < len(data):
        start, end = end, end + 12 + int.from_bytes(data[end + 8 : end + 12])
    is_end = bool(data) and data[start + 22] & 0x20
    return start, data[start + 43 : start + 51] if is_end else None


def do_what_the_pages_say(place: Place, transactional_id: str, hanging_topic: str, scratch: Path) -> None:
    """The runbook's look, and the relay's steps 2 to 4, with what Kafka's tool prints in place of their examples."""
    install_kafka_tools(scratch)
    page = (ROOT / "docs/runbook.md").read_text(encoding="utf-8").partition("## HangingTransaction")[2]
    find, describe = [shlex.split(line) for line in re.findall(r"^\$ (.*)$", page, re.MULTILINE)[:2]]
    ours = {"localhost:9092": place.servers, "payments": hanging_topic}
    found = run_tool(scratch, [*find, "--max-transaction-timeout", "0"], ours)
    [shown] = run_tool(scratch, describe, ours)
    assert [(one["ProducerId"], one["StartOffset"]) for one in found if one["Topic"] == hanging_topic] == [
        (shown["ProducerId"], shown["CurrentTransactionStartOffset"])
    ]

    page = (ROOT / "docs/relay-recovery.md").read_text(encoding="utf-8")
    section = page.partition("## When a transaction has lost its end")[2].partition("\n## ")[0]
    find, describe, *aborts = [shlex.split(line) for line in re.findall(r"^ +\$ (.*)$", section, re.MULTILINE)]
    [named] = re.findall(r"`(SELECT \* FROM outbox WHERE [^`]+)`", page)
    example = {"localhost:9092": place.servers, "offsetstore-outbox-STORE": transactional_id}

    [producer] = run_tool(scratch, describe, example)
    hanging = [one for one in run_tool(scratch, find, example) if one["ProducerId"] == producer["ProducerId"]]
    hanging.sort(key=lambda one: one["Topic"] == "__consumer_offsets")
    assert [len(aborts), len(hanging), hanging[-1]["Topic"]] == [2, 2, "__consumer_offsets"]
    listed = {one["Topic"] for one in hanging}
    for id_, topic, value in place.query(f"SELECT id, topic, value FROM ({named}) AS named"):
        if topic not in listed and int(value) in place.values(topic):
            place.query(f"DELETE FROM outbox WHERE id = {id_}")
    assert place.left() == 2
    for abort, one in zip(aborts, hanging, strict=True):
        run_tool(
            scratch, abort, example, topic=one["Topic"], partition=one["Partition"], start_offset=one["StartOffset"]
        )


def run_tool(scratch: Path, command: list[str], ours: dict[str, str], **options: str) -> list[dict[str, str]]:
    """Run Kafka's tool with these words instead of the page's, and these options; return the table that it prints."""
    program, *arguments = [ours.get(word, word) for word in command]
    for option, value in options.items():
        arguments[arguments.index(f"--{option.replace('_', '-')}") + 1] = value
    head, *rows = [line.split() for line in run([str(scratch / program), *arguments]).splitlines()] or [[]]
    return [dict(zip(head, row, strict=False)) for row in rows]


def run(command: list[str]) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=180).stdout

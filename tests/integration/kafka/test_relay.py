"""The relay on PostgreSQL and Kafka: what a ``read_committed`` reader gets, whatever happens on the way."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Generator, Sequence
from concurrent.futures import Future
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any

import confluent_kafka as ck
import psycopg
import pytest

from offsetstore import Broker, OffsetStore, Relay, Retries, TopicPartition
from offsetstore.errors import (
    BrokerRefused,
    BrokerUnavailable,
    ConfigurationError,
    MissingPrivilege,
    OffsetStoreError,
    OutboxUncertain,
    RelayFenced,
    SinkError,
    StoreMoved,
    TopicMissing,
)
from offsetstore.kafka import admin
from offsetstore.kafka.acls import Acl, relay_acls
from offsetstore.kafka.outlet import Outlet
from offsetstore.local.kafka.server import KafkaBroker
from offsetstore.postgres.grants import grant_relay
from offsetstore.protocol import failpoints
from offsetstore.protocol.events import OutboxRefused, OutboxSent, OutboxWaits
from offsetstore.protocol.outbox import Check, Mark, OutboxRecord, OutboxRow, Position, Read, Record, Take
from offsetstore.testing import InMemoryOffsetStore
from offsetstore.testing.fixtures import NewTopic
from tests.integration.conftest import Query
from tests.support.authorized import JOB, Authorized
from tests.support.background import in_background
from tests.support.kafka_tools import install_kafka_tools
from tests.support.outbox import by_key, numbered, put, values
from tests.support.pooler import Pooler
from tests.support.recorder import Recorder
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[3]
STEPS = (
    "outbox_fenced",
    "outbox_taken",
    "outbox_fenced:2",
    "outbox_recorded",  # the first start's number 0
    "outbox_produced:2",
    "outbox_recorded:2",
    "outbox_in_transaction:2",
    "outbox_sent:2",
    "outbox_recorded:4",
    "outbox_sent:3",
)
"""Points and how often they are reached before the kill; the first sends a number alone, at the first start."""


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
    monkeypatch.setattr("offsetstore.relay._PATIENCE", 1.0)
    monkeypatch.setattr("offsetstore.relay._TRIAL", 0.1)
    monkeypatch.setattr("offsetstore.relay._RETRIES", Retries(shortest=0.05, longest=0.5))
    with OffsetStore.connect(offsetstore_database, observers=[recorder]) as store:
        made = offsetstore_topic
        yield Place(store, broker, offsetstore_kafka, offsetstore_database, made, made(1), query, recorder)


def delete_late(place: Place) -> None:
    """Let each deletion take so long that the next batch is produced before it is committed."""
    place.query(
        "CREATE FUNCTION late() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(0.2); RETURN NULL; END'"
    )
    place.query("CREATE TRIGGER late AFTER DELETE ON outbox FOR EACH STATEMENT EXECUTE FUNCTION late()")


@contextmanager
def running(relay: Relay) -> Generator[Future[None]]:
    """Run it until the end of the block, which it must reach well."""
    done = in_background(relay.run)
    try:
        yield done
    finally:
        relay.stop()
    done.result(60)


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


@pytest.mark.behaviour("OUT-2", "OUT-3")
def test_a_kill_between_any_two_steps_leaves_each_row_once_and_in_order(place: Place) -> None:
    topic = place.topics(3)
    command = [sys.executable, "-m", "tests.support.outbox", place.url, place.servers, place.anchor, "4"]

    def relay(failpoint: str | None) -> subprocess.CompletedProcess[str]:
        armed = {} if failpoint is None else {"OFFSETSTORE_FAILPOINT": failpoint}
        return subprocess.run(
            command, cwd=ROOT, env={**os.environ, **armed}, check=False, capture_output=True, text=True, timeout=120
        )

    delete_late(place)  # at "outbox_in_transaction:2" the batch is not recorded yet
    written = 0
    for failpoint in STEPS:
        put(place.store, numbered(topic, range(written, written + 10)))
        written += 10
        done = relay(failpoint)
        assert done.returncode == -signal.SIGKILL, done.stderr
    done = relay(None)
    assert done.returncode == 0, done.stderr

    assert by_key(place.servers, topic) == {f"key {one}".encode(): list(range(one, written, 3)) for one in range(3)}
    assert place.left() == 0


@pytest.mark.behaviour("OUT-4")
def test_a_second_relay_takes_over_and_the_first_ends(place: Place) -> None:
    topic = place.topics(1)
    first, second = place.relay(), place.relay()
    was_first = in_background(first.run)
    put(place.store, numbered(topic, range(5)))
    wait_until(lambda: len(place.values(topic)) == 5)

    with running(second):
        written = put_until_done(place, topic, 5, was_first)
        with pytest.raises(RelayFenced, match="another relay has taken the outbox over") as caught:
            was_first.result(0)
        assert str(os.getpid()) in str(caught.value.found)
        put(place.store, numbered(topic, [written]))
        place.wait_until_empty()

    assert place.values(topic) == list(range(written + 1))


@pytest.mark.behaviour("OUT-4")
def test_a_relay_that_another_one_has_replaced_reads_and_records_nothing(place: Place) -> None:
    stale = place.relay()
    stale._do(Take())
    place.relay().drain()
    put(place.store, numbered(place.topics(1), [0]))
    before = place.query("SELECT * FROM outbox_relays")

    for step in (
        lambda: stale._do(Check()),
        lambda: stale._do(Read()),
        lambda: stale._do(Record(Mark(1, "a word"), done=(1,))),
    ):
        with pytest.raises(RelayFenced):
            step()

    assert place.left() == 1
    assert place.query("SELECT * FROM outbox_relays") == before


class Ending:
    """A Kafka that ends the relay's producer, after the relay has taken the token."""

    def __init__(self) -> None:
        self.error = BrokerUnavailable("Kafka ended the producer")
        self.fences: list[Callable[[], object]] = [lambda: None]

    def outlet(self, *_: object, **__: object) -> Ending:
        return self

    def position(self, **_: object) -> Position:
        return Position("the cluster", None)

    def fence(self) -> None:
        self.fences.pop(0)()
        if not self.fences:
            raise self.error

    def close(self) -> None:
        pass


@pytest.mark.behaviour("OUT-4")
@pytest.mark.parametrize("is_replaced", [True, False])
def test_a_relay_that_kafka_ends_before_it_has_sent_anything_is_fenced_if_another_one_has_the_token(
    offsetstore_database: str, *, is_replaced: bool
) -> None:
    """Else it would be started again, and take over from its successor."""
    with OffsetStore.connect(offsetstore_database) as store:
        kafka: Any = Ending()
        kafka.fences.append(Relay(store, kafka)._take if is_replaced else lambda: None)
        with pytest.raises(RelayFenced if is_replaced else BrokerUnavailable) as caught:
            Relay(store, kafka).run()
    assert kafka.error in {caught.value, caught.value.__cause__}


def put_until_done(place: Place, topic: str, first: int, done: Future[None]) -> int:
    """Give it something to do, which it needs to notice that it is replaced; return the next number."""
    end = time.monotonic() + 60
    while not done.done():
        assert time.monotonic() < end, "it goes on"
        put(place.store, numbered(topic, [first]))
        first += 1
        time.sleep(0.2)
    return first


@pytest.mark.behaviour("OUT-4")
@pytest.mark.parametrize("how", ["wrong address", "wrong settings", "another anchor", "no right to the id"])
def test_a_second_relay_that_can_t_work_does_not_end_the_first(
    place: Place, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = place.topics(1)
    settings: dict[str, Any] = {"bootstrap.servers": place.servers}
    anchor = place.anchor
    if how == "wrong address":
        settings["bootstrap.servers"] = "127.0.0.1:1"
    elif how == "wrong settings":
        settings["compression.type"] = "none of them"
    elif how == "another anchor":
        anchor = place.topics(1)
    with running(place.relay()):
        put(place.store, numbered(topic, [0]))
        place.wait_until_empty()
        before = place.query("SELECT token FROM outbox_relays")
        with monkeypatch.context() as patched:
            if how == "no right to the id":
                patched.setattr(Outlet, "fence", refuse)
            broker = Broker(settings, timeout=2)
            with closing(broker), pytest.raises(OffsetStoreError) as caught:
                Relay(place.store, broker, anchor=anchor).run()
        assert not isinstance(caught.value, RelayFenced)
        assert place.query("SELECT token FROM outbox_relays") == before
        put(place.store, numbered(topic, [1]))
        place.wait_until_empty()
    assert place.values(topic) == [0, 1]


def refuse(_outlet: Outlet) -> None:
    raise BrokerRefused("Kafka refused a request")


@pytest.mark.behaviour("OUT-5")
def test_a_lost_number_is_a_person_s_to_decide_and_nothing_is_sent_until_then(place: Place) -> None:
    topic = place.topics(1)
    put(place.store, numbered(topic, range(3)))
    place.relay().drain()
    put(place.store, numbered(topic, [3]))
    admin.delete_topic(place.servers, place.anchor)
    admin.create_topic(place.servers, place.anchor)
    group, position = place.relay().group, TopicPartition(place.anchor, 0)
    wait_until(lambda: not place.broker.committed_offsets(group, [position]))  # Kafka deletes it by and by

    with pytest.raises(OutboxUncertain, match=r"Kafka has lost the number of the last batch.*No rows") as caught:
        place.relay().drain()
    assert "batch None" in str(caught.value.found)
    [told] = place.recorder.of(OutboxWaits)
    assert "Kafka seems to have lost the relay's position" in str(told.error)
    assert place.values(topic) == [0, 1, 2]

    place.relay(on_uncertain="skip").drain()  # no batch was open: nothing is skipped
    place.relay().drain()
    assert place.values(topic) == [0, 1, 2, 3]
    assert place.left() == 0


@pytest.mark.behaviour("OUT-5")
def test_a_batch_that_kafka_may_have_is_sent_again_or_skipped_as_a_person_says(place: Place) -> None:
    """As after the loss of both: the batch that is open is recorded, and Kafka's number is another."""
    topic = place.topics(1)
    place.relay().drain()
    for number, decision in ((0, "repeat"), (1, "skip")):
        put(place.store, numbered(topic, [number]))
        place.query("UPDATE outbox_relays SET batch = batch + 7, ids = (SELECT array_agg(id) FROM outbox)")
        with pytest.raises(OutboxUncertain, match=r"an earlier batch.*1 rows of batch"):
            place.relay().drain()
        place.relay(on_uncertain=decision).drain()
        assert place.left() == 0
    assert place.values(topic) == [0]


@pytest.mark.behaviour("OUT-5")
def test_another_cluster_is_not_sent_to(place: Place) -> None:
    place.relay().drain()
    place.query("UPDATE outbox_relays SET cluster_id = 'of the other cluster'")

    with pytest.raises(OutboxUncertain, match="another cluster"):
        place.relay().drain()


@pytest.mark.behaviour("OUT-5")
def test_a_snapshot_of_the_database_and_the_original_do_not_delete_what_the_other_one_has_sent(place: Place) -> None:
    """Both have the number that Kafka has, and give their next batch the same one, and its row the same id."""
    topic = place.topics(1)
    place.relay().drain()
    snapshot = place.query("SELECT batch, ids::text, word, word_before, token FROM outbox_relays")[0]
    put(place.store, numbered(topic, [0]))
    place.relay().drain()
    place.query("TRUNCATE outbox RESTART IDENTITY")
    with psycopg.connect(place.url) as connection:
        connection.execute("UPDATE outbox_relays SET batch=%s, ids=%s, word=%s, word_before=%s, token=%s", snapshot)
    put(place.store, numbered(topic, [1]))

    with pytest.raises(OutboxUncertain, match="later batches"):
        place.relay().drain()
    place.query("UPDATE outbox_relays SET batch = 1, ids = '{1}', word = 'its own', word_before = word")
    with pytest.raises(OutboxUncertain, match="another batch of this number"):
        place.relay().drain()

    assert place.left() == 1
    assert place.values(topic) == [0]


@pytest.mark.behaviour("OUT-6")
def test_what_kafka_refuses_is_set_aside_with_its_error_and_the_rest_goes_on(place: Place) -> None:
    topic, small = place.topics(1), place.topics(1, config={"max.message.bytes": "2000"})
    too_large = os.urandom(3000)  # for that topic's log, which only the brokers know
    put(
        place.store,
        [
            *numbered(topic, [0]),
            OutboxRecord("a-topic-that-nobody-made", b"k", b"unknown"),
            OutboxRecord(topic, b"k", bytes(2_000_000)),  # for librdkafka's own limit
            *numbered(small, [0, 1, 2]),
            OutboxRecord(small, b"key 0", too_large),
            *numbered(small, [3, 4]),
            *numbered(topic, [1]),
        ],
    )

    place.relay().drain()

    assert place.values(topic) == [0, 1]
    assert place.values(small) == [0, 1, 2, 3, 4]
    refused = place.query("SELECT topic, octet_length(value), error FROM outbox_refused ORDER BY id")
    assert [row[:2] for row in refused] == [("a-topic-that-nobody-made", 7), (topic, 2_000_000), (small, 3000)]
    assert [row[2].partition(":")[0] for row in refused] == [
        "Kafka has no topic a-topic-that-nobody-made", "MSG_SIZE_TOO_LARGE", "MSG_SIZE_TOO_LARGE"
    ]  # fmt: skip
    assert sum(len(event.errors) for event in place.recorder.of(OutboxRefused)) == 3
    assert place.left() == 0

    admin.create_topic(place.servers, "a-topic-that-nobody-made")
    try:
        place.query(
            "WITH again AS (DELETE FROM outbox_refused WHERE octet_length(value) = 7 RETURNING *) "
            "INSERT INTO outbox (consumer_group, topic, key, value) SELECT consumer_group, topic, key, value FROM again"
        )
        place.relay().drain()
        assert [one.value() for one in admin.read_committed(place.servers, "a-topic-that-nobody-made")] == [b"unknown"]
    finally:
        admin.delete_topic(place.servers, "a-topic-that-nobody-made")


@pytest.mark.behaviour("OUT-6")
def test_a_topic_that_is_deleted_while_the_relay_runs_holds_nothing_up(place: Place) -> None:
    topic, gone = place.topics(1), place.topics(1)
    with running(Relay(place.store, Broker({"bootstrap.servers": place.servers}, timeout=3), anchor=place.anchor)):
        put(place.store, numbered(gone, [0]))
        place.wait_until_empty()
        admin.delete_topic(place.servers, gone)
        put(place.store, numbered(gone, [1]))
        time.sleep(1)
        put(place.store, [*numbered(gone, [2]), *numbered(topic, [3])])
        place.wait_until_empty()
    assert place.values(topic) == [3]
    assert place.query("SELECT error FROM outbox_refused") == [(f"Kafka has no topic {gone}",)] * 2


@pytest.mark.behaviour("OUT-6")
def test_rows_are_set_aside_only_if_rows_of_other_topics_can_pass(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An ACL, or the principal, may be wrong for a night: then nothing is wrong with the rows."""
    topic, other, forbidden = place.topics(1), place.topics(1), set[str]()

    def lacking(_outlet: Outlet, topics: Collection[str]) -> dict[str, BrokerRefused]:
        return {one: BrokerRefused(f"no WRITE to {one}") for one in topics if one in forbidden}

    monkeypatch.setattr(Outlet, "lacking", lacking)
    forbidden |= {topic, other}
    put(place.store, numbered(topic, range(3)))
    with pytest.raises(BrokerRefused, match="no WRITE"):
        place.relay().drain()
    with running(place.relay(most=2)):
        put(place.store, numbered(other, range(3)))
        wait_until(lambda: len(place.recorder.of(OutboxWaits)) >= 3)
        assert place.left() == 6
        forbidden.discard(other)
        place.wait_until_empty()
        put(place.store, numbered(topic, [3]))
        time.sleep(3)
        assert place.left() == 1
        forbidden.clear()
        place.wait_until_empty()
    assert place.values(other) == [0, 1, 2]
    assert place.values(topic) == [3]
    assert place.query("SELECT count(*) FROM outbox_refused") == [(3,)]


@pytest.mark.behaviour("OUT-4", "OUT-6")
def test_while_it_waits_for_a_topic_its_position_in_kafka_is_kept(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kafka forgets an offset that nobody has committed for seven days."""
    topic, send, kept = f"later-{place.anchor}", Outlet.send, list[Mark]()

    def watched(outlet: Outlet, mark: Mark, rows: Sequence[OutboxRow], **options: Any) -> Any:
        if not rows:
            kept.append(mark)
        return send(outlet, mark, rows, **options)

    monkeypatch.setattr(Outlet, "send", watched)
    monkeypatch.setattr("offsetstore.relay._RENEW", 0.0)
    put(place.store, numbered(topic, [0]))
    try:
        with running(place.relay()):
            wait_until(lambda: len(kept) >= 3)
            assert {*kept} == {kept[0]}
            admin.create_topic(place.servers, topic)
            place.wait_until_empty()
        assert place.values(topic) == [0]
    finally:
        admin.delete_topic(place.servers, topic)


@pytest.mark.behaviour("OUT-6")
def test_a_topic_that_is_created_a_little_later_than_its_first_rows_gets_them(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("offsetstore.relay._PATIENCE", 60.0)
    topic = f"later-{place.anchor}"
    try:
        with running(place.relay()):
            put(place.store, [*numbered(topic, range(3)), *numbered(place.topics(1), [0])])
            wait_until(lambda: place.recorder.of(OutboxWaits))
            admin.create_topic(place.servers, topic)
            place.wait_until_empty()
        assert place.values(topic) == [0, 1, 2]
    finally:
        admin.delete_topic(place.servers, topic)
    assert f"Kafka has no topic {topic}" in str(place.recorder.of(OutboxWaits)[0].error)


@pytest.mark.behaviour("OUT-2")
@pytest.mark.parametrize(
    ("keeps", "done"),
    [
        ("CREATE TRIGGER keep BEFORE DELETE ON outbox FOR EACH ROW EXECUTE FUNCTION keep()", [0]),
        ("CREATE TRIGGER keep BEFORE INSERT ON outbox_refused FOR EACH ROW EXECUTE FUNCTION keep()", []),
    ],
    ids=["deleted", "set aside"],
)
def test_rows_that_something_in_the_database_keeps_end_it_and_are_not_sent_again(
    place: Place, keeps: str, done: list[int]
) -> None:
    topic = place.topics(1)
    place.query("CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'")
    place.query(keeps)
    others = [] if done else [OutboxRecord("a-topic-that-nobody-made", None, b"")]
    put(place.store, [*numbered(topic, [0]), *others])

    for _ in range(3):
        relay = place.relay()
        ended = in_background(relay.run)
        try:
            wait_until(ended.done)
        finally:
            relay.stop()
        with pytest.raises(SinkError, match=r"Look for a trigger, a rule or row-level security on the table outbox"):
            ended.result(60)

    assert place.left() == 1 + len(others)
    assert place.values(topic) == done


@pytest.mark.behaviour("OUT-5")
def test_each_start_sets_kafka_s_number_again_lest_it_expires(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether there are rows or not: processes may live shorter than a day, or only drain."""
    sent: list[tuple[int, int]] = []
    send = Outlet.send

    def watched(outlet: Outlet, mark: Mark, rows: Any, **given: Any) -> Any:
        sent.append((mark.number, len(rows)))
        return send(outlet, mark, rows, **given)

    monkeypatch.setattr(Outlet, "send", watched)
    place.relay().drain()
    place.relay().drain()
    with running(place.relay()):
        wait_until(lambda: len(sent) == 3)
        time.sleep(1.5)
    assert sent == [(0, 0)] * 3


@pytest.mark.behaviour("OUT-2")
def test_a_batch_that_takes_too_long_is_sent_in_smaller_ones(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    topic, sizes = place.topics(1), list[int]()
    send = Outlet.send

    def slow(outlet: Outlet, mark: Mark, rows: Any, **given: Any) -> Any:
        sizes.append(len(rows))
        if len(rows) > 20:
            raise BrokerUnavailable("no answer from Kafka")
        return send(outlet, mark, rows, **given)

    put(place.store, numbered(topic, range(100)))
    monkeypatch.setattr(Outlet, "send", slow)
    with running(place.relay()):
        place.wait_until_empty()
    assert place.values(topic) == list(range(100))
    assert [size for size in sizes if size][:4] == [100, 50, 25, 12]


@pytest.mark.behaviour("OUT-2")
def test_a_record_of_its_own_whose_outcome_is_not_known_is_waited_for(place: Place) -> None:
    """A COMMIT that waits for a replica, say, while its connection is gone."""
    relay = place.relay()
    relay._outlet = place.broker.outlet(relay.group, anchor=place.anchor)
    relay._do(Take())
    with psycopg.connect(place.url) as open_:
        open_.execute("UPDATE outbox_relays SET batch = 7")
        checked = in_background(lambda: relay._do(Check()))
        time.sleep(0.5)
        assert not checked.done()
        open_.commit()
    checked.result(60)
    relay._outlet.close()


@pytest.mark.behaviour("OUT-2", "OUT-4")
@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_batch_is_produced_while_it_is_recorded_and_committed_only_after_that(
    place: Place, monkeypatch: pytest.MonkeyPatch, *, is_replaced: bool
) -> None:
    topic, produced = place.topics(1), Event()

    def reach(name: str) -> None:
        if name == "outbox_in_transaction":
            produced.set()

    monkeypatch.setattr(failpoints, "reach", reach)
    put(place.store, numbered(topic, [0]))  # a reader who meets an open transaction behind it would say so
    place.relay().drain()
    relay = place.relay()
    done = in_background(relay.run)
    wait_until(lambda: relay._listener is not None)  # it rests
    produced.clear()
    with psycopg.connect(place.url) as other:
        other.execute("UPDATE outbox_relays SET token = gen_random_uuid()")
        put(place.store, numbered(topic, range(1, 5)))
        assert produced.wait(60)
        assert not done.done()
        assert place.left() == 4
        if is_replaced:
            other.commit()
            with pytest.raises(RelayFenced):
                done.result(60)
            assert place.values(topic) == [0]
        else:
            other.rollback()
            place.wait_until_empty()
            relay.stop()
            done.result(60)
            assert place.values(topic) == list(range(5))


@pytest.mark.behaviour("OUT-2")
def test_what_is_being_recorded_is_waited_for_before_it_begins_anew(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, slow, failed, checked = place.topics(1), Event(), Event(), Event()
    record, send, check = Relay._record, Outlet.send, Relay._check

    def record_late(relay: Relay, step: Record) -> None:
        assert step.mark.number != 2 or slow.wait(60)
        record(relay, step)

    def fail_once(outlet: Outlet, mark: Mark, rows: Any, **given: Any) -> Any:
        if mark.number == 2 and not failed.is_set():
            failed.set()
            raise BrokerUnavailable("no answer from Kafka")
        return send(outlet, mark, rows, **given)

    def watched(relay: Relay) -> None:
        checked.set()
        check(relay)

    monkeypatch.setattr(Relay, "_record", record_late)
    monkeypatch.setattr(Outlet, "send", fail_once)
    monkeypatch.setattr(Relay, "_check", watched)
    put(place.store, numbered(topic, range(4)))
    with running(place.relay(most=2)):
        assert failed.wait(60)
        assert not checked.wait(0.5)
        slow.set()
        place.wait_until_empty()
    assert place.values(topic) == list(range(4))


@pytest.mark.behaviour("OUT-2")
def test_rows_that_are_still_being_deleted_are_not_looked_for_again(place: Place) -> None:
    topic = place.topics(1)
    delete_late(place)
    put(place.store, numbered(topic, range(10)))
    place.query("DELETE FROM outbox WHERE value IN ('3', '5')")  # so that not all ids follow one another
    place.relay(most=2).drain()
    assert place.values(topic) == [0, 1, 2, 4, 6, 7, 8, 9]


@pytest.mark.behaviour("OUT-2", "OUT-6")
def test_what_is_recorded_instead_of_a_refused_batch_waits_for_that_batch_s_record(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, record, at_once, most = place.topics(1), Relay._record, list[Record](), list[int]()
    too_large = OutboxRecord(topic, b"key 0", bytes(2 << 20))

    def watched(relay: Relay, step: Record) -> None:
        at_once.append(step)
        most.append(len(at_once))
        time.sleep(0.2)
        record(relay, step)
        at_once.remove(step)

    monkeypatch.setattr(Relay, "_record", watched)
    put(place.store, [*numbered(topic, range(2)), too_large, *numbered(topic, range(2, 4))])
    place.relay(most=2).drain()
    assert place.values(topic) == list(range(4))
    assert place.query("SELECT count(*)::int FROM outbox_refused") == [(1,)]
    assert max(most) == 1


@pytest.mark.behaviour("OUT-6")
@pytest.mark.parametrize("becomes", ["late", "forbidden"])
def test_a_topic_that_is_missing_hides_no_trouble_and_sees_no_row_that_is_sent(place: Place, becomes: str) -> None:
    """While its rows wait for it, those of the batch before are still being deleted."""
    topic, missing = place.topics(1), f"missing-{place.anchor}"
    relay = place.relay(most=1)
    relay._lacking[missing] = time.monotonic() - 3600
    if becomes == "late":
        delete_late(place)
    else:
        place.query("CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'")
        place.query("CREATE TRIGGER keep BEFORE DELETE ON outbox FOR EACH ROW EXECUTE FUNCTION keep()")
    put(place.store, [*numbered(topic, [0]), OutboxRecord(missing, None, b"")])
    with pytest.raises(TopicMissing if becomes == "late" else SinkError):
        relay.drain()
    assert place.values(topic) == [0]
    assert place.query("SELECT count(*)::int FROM outbox_refused") == [(0,)]
    assert place.left() == (1 if becomes == "late" else 2)


@pytest.mark.behaviour("OUT-6")
@pytest.mark.parametrize("allowed", ["READ", "nothing", "WRITE until the relay runs"])
def test_rows_of_a_topic_that_may_not_be_written_to_are_set_aside_and_the_rest_goes_on(
    place: Place, authorized: Authorized, allowed: str
) -> None:
    servers = authorized.kafka.bootstrap_servers
    suffix = f"{place.anchor}-{allowed[0]}"
    topic, other, anchor = (f"{name}-{suffix}" for name in ("good", "other", "anchor"))
    for name in (topic, other, anchor):
        admin.create_topic(servers, name)
    may = Acl(JOB, "topic", other, "WRITE" if allowed.startswith("WRITE") else "READ")
    *needed, id_ = relay_acls(JOB, topics=[topic], anchor=anchor)
    authorized.allow(*needed, *([] if allowed == "nothing" else [may]))
    relay = Relay(place.store, authorized.broker(), anchor=anchor)
    with pytest.raises(BrokerRefused, match=r"Allow this principal to WRITE to the transactional id.*docs/outbox\.md"):
        wait_until(relay.drain)
    authorized.allow(id_)
    wait_until(lambda: not fails(relay.drain), timeout=60)

    with running(relay):
        if allowed.startswith("WRITE"):
            put(place.store, numbered(other, [0]))
            place.wait_until_empty()
            authorized.forbid(may)
        put(place.store, [*numbered(topic, [0]), *numbered(other, range(1, 30)), *numbered(topic, [1])])
        put(place.store, numbered(topic, [2]))
        place.wait_until_empty()

    assert values(servers, topic) == [0, 1, 2]
    assert place.query("SELECT DISTINCT error FROM outbox_refused") == [
        (f"Kafka does not let the relay write to topic {other}",)
    ]
    assert place.query("SELECT count(*) FROM outbox_refused") == [(29,)]


def fails(what: Callable[[], object]) -> bool:
    """Whether Kafka still refuses it: an ACL takes a moment to apply."""
    try:
        what()
    except BrokerRefused:
        return True
    return False


@pytest.mark.behaviour("OUT-7")
def test_a_commit_wakes_it_and_at_rest_it_looks_once_a_second(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    topic, looks = place.topics(1), list[str]()
    asked = Relay._rows
    monkeypatch.setattr("offsetstore.relay._AT_REST", 600.0)

    def look(relay: Relay, statement: str, **values: object) -> Any:
        looks.append(statement)
        return asked(relay, statement, **values)

    monkeypatch.setattr(Relay, "_rows", look)
    with running(place.relay()):
        put(place.store, numbered(topic, [0]))
        place.wait_until_empty()
        for number in range(1, 6):
            time.sleep(0.1)
            put(place.store, numbered(topic, [number]))
            place.wait_until_empty()  # in a tenth of the time after which it would look by itself

        monkeypatch.setattr("offsetstore.relay._AT_REST", 1.0)
        put(place.store, numbered(topic, [6]))
        place.wait_until_empty()
        time.sleep(1)
        before, began = len(looks), time.monotonic()
        time.sleep(4)
        # Twice a second would be eight; what it does after a batch may come late.
        assert 1 <= len(looks) - before <= time.monotonic() - began + 2


@pytest.mark.behaviour("OUT-7")
def test_behind_a_pooler_it_looks_once_a_second_and_says_so(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    topic = place.topics(1)
    with (
        Pooler(place.url) as pooler,
        OffsetStore.connect(pooler.url) as store,
        running(Relay(store, place.broker, anchor=place.anchor)),
    ):
        for number in range(2):
            put(store, numbered(topic, [number]))
            place.wait_until_empty()
    assert place.values(topic) == [0, 1]
    assert caplog.text.count("LISTEN does not work behind a pooler") == 1


@pytest.mark.behaviour("OUT-3")
def test_rows_of_overlapping_transactions_and_a_long_one_elsewhere_hold_nothing_up(place: Place) -> None:
    topic = place.topics(1)
    with psycopg.connect(place.url) as slow:
        slow.execute("SELECT pg_current_xact_id()")
        slow.execute(b"INSERT INTO outbox (consumer_group, topic, value) VALUES ('billing', %s, '0')", [topic])
        put(place.store, numbered(topic, [1]))  # a higher id, and committed before
        place.relay().drain()
        assert place.values(topic) == [1]
        slow.commit()
    place.relay().drain()
    assert place.values(topic) == [1, 0]


@pytest.mark.behaviour("OUT-3")
def test_a_row_that_is_committed_between_those_that_were_sent_is_not_deleted_with_them(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, send = place.topics(1), Outlet.send

    def then_commit(outlet: Outlet, mark: Mark, rows: Sequence[OutboxRow], **options: Any) -> Any:
        refusal = send(outlet, mark, rows, **options)
        if rows:
            slow.commit()
        return refusal

    put(place.store, numbered(topic, [0]))
    with psycopg.connect(place.url) as slow:
        slow.execute(b"INSERT INTO outbox (consumer_group, topic, value) VALUES ('billing', %s, '1')", [topic])
        put(place.store, numbered(topic, [2]))
        monkeypatch.setattr(Outlet, "send", then_commit)
        place.relay().drain()
    assert place.values(topic) == [0, 2, 1]


@pytest.mark.behaviour("OUT-2")
def test_it_goes_on_after_its_connections_and_its_producer_have_broken(place: Place) -> None:
    topic = place.topics(1)
    with running(place.relay(most=10)):
        put(place.store, numbered(topic, range(30)))
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


@pytest.mark.behaviour("OUT-4")
def test_a_transaction_that_kafka_has_ended_is_done_again(place: Place) -> None:
    """A relay that stands still for longer than its transaction may take; as one that is fenced, but nobody has."""
    topic = place.topics(1)
    relay = place.relay()
    with running(relay):
        put(place.store, numbered(topic, [0]))
        place.wait_until_empty()
        other = place.broker.outlet(relay.group, anchor=place.anchor)
        other.fence()
        other.close()
        put(place.store, numbered(topic, [1]))
        place.wait_until_empty()
    assert place.values(topic) == [0, 1]


@pytest.mark.behaviour("OUT-5")
def test_a_transaction_that_has_lost_its_end_is_ended_as_the_page_says_and_each_row_is_there_once(
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
    lose_ends(place, relay, hanging, of_offsets=True)

    settings = {"bootstrap.servers": place.servers, "isolation.level": "read_committed"}
    # Once the coordinator has loaded the group, it tells of what no transaction is about to change.
    assert place.broker.committed_offsets(relay.group, [TopicPartition(hanging, 0)]) == {}
    with monkeypatch.context() as context, closing(Broker(settings, timeout=10)) as hasty:
        context.setattr("offsetstore.kafka.committed._STABLE_SHARE", 0.2)  # the rest is for what tells the cause
        for asks in (
            lambda: hasty.committed_offsets(relay.group, [TopicPartition(place.anchor, 0)]),
            Relay(place.store, hasty, anchor=place.anchor).drain,
        ):
            with pytest.raises(BrokerUnavailable, match=r"an open Kafka transaction blocks .*docs/outbox\.md"):
                asks()
    with monkeypatch.context() as context:
        context.setattr(admin, "_SECONDS", 5.0)
        with pytest.raises(BrokerUnavailable, match=r"a transaction is open; found 1 committed records"):
            place.values(hanging)
    do_what_the_page_says(place, relay.group, tmp_path)
    place.relay().drain()

    assert place.values(ended) == place.values(hanging) == [0, 1, 2]
    assert place.left() == 0


def ending_at(point: str) -> Callable[[str], None]:
    def reach(name: str) -> None:
        if name == point:
            raise failpoints.FailpointReached

    return reach


@pytest.mark.behaviour("OUT-5")
def test_records_alone_that_have_lost_the_end_of_their_transaction_hold_no_relay_up_and_are_not_lost(
    place: Place, tmp_path: Path
) -> None:
    hanging, other = place.topics(1), place.topics(1)
    relay = place.relay()
    put(place.store, [*numbered(hanging, [0]), *numbered(other, [0])])
    relay.drain()
    put(place.store, [*numbered(hanging, [1, 2]), *numbered(other, [1, 2])])
    relay.drain()
    lose_ends(place, relay, hanging, of_offsets=False)
    put(place.store, numbered(other, [3]))
    place.relay().drain()
    assert place.values(other) == [0, 1, 2, 3]

    install_kafka_tools(tmp_path)
    page = (ROOT / "docs/runbook.md").read_text(encoding="utf-8").partition("## HangingTransaction")[2]
    find, describe = [shlex.split(line) for line in re.findall(r"^\$ (.*)$", page, re.MULTILINE)[:2]]
    ours = {"localhost:9092": place.servers, "payments": hanging}
    [found] = run_tool(tmp_path, [*find, "--max-transaction-timeout", "0"], ours)
    [shown] = run_tool(tmp_path, describe, ours)
    assert (found["ProducerId"], found["Partition"]) == (shown["ProducerId"], "0")
    assert found["StartOffset"] == shown["CurrentTransactionStartOffset"]

    at = ck.TopicPartition(hanging, 0, int(found["StartOffset"]))
    with ck.Consumer({"bootstrap.servers": place.servers, "group.id": "none", "isolation.level": "read_uncommitted",
                      "enable.auto.commit": False}) as consumer:  # fmt: skip
        consumer.assign([at])
        lost = consumer.consume(2, timeout=30)
    outbox_page = (ROOT / "docs/outbox.md").read_text(encoding="utf-8")
    abort = re.findall(r"^ +\$ (kafka-transactions .* abort .*)$", outbox_page, re.MULTILINE)[0]
    run_tool(tmp_path, shlex.split(abort), {**ours, "payment-events": hanging, "2046": found["StartOffset"]})
    with ck.Producer({"bootstrap.servers": place.servers}) as producer:
        for record in lost:
            producer.produce(hanging, record.value(), record.key(), headers=record.headers())
    assert place.values(hanging) == [0, 1, 2]


def lose_ends(place: Place, relay: Relay, topic: str, *, of_offsets: bool) -> None:
    """Kill the broker, and cut off the end of the last transaction in this topic, and in that of committed offsets."""
    another = place.broker.outlet(relay.group, anchor=place.anchor)
    another.fence()  # Kafka lets it begin once the transaction has its end everywhere, and does not write one again
    another.close()
    place.kafka.kill()
    logs = place.kafka.directory / "data"
    [log] = logs.glob(f"{topic}-0/*.log")
    start, producer = last_batch(log)
    assert producer is not None
    os.truncate(log, start)
    if of_offsets:
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


def do_what_the_page_says(place: Place, transactional_id: str, scratch: Path) -> None:
    """Its steps 2 to 4, with what Kafka's tool prints in place of the page's examples."""
    install_kafka_tools(scratch)
    page = (ROOT / "docs/outbox.md").read_text(encoding="utf-8")
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


def test_the_role_of_a_relay_needs_no_more_than_what_is_printed(place: Place) -> None:
    topic = place.topics(1)
    put(place.store, [*numbered(topic, [0]), OutboxRecord("a-topic-that-nobody-made", None, b"")])
    role = f"relay_{place.url.rpartition('/')[2]}"
    place.query(f"CREATE ROLE {role} LOGIN")
    try:
        place.query(f"GRANT SELECT ON offsetstore_version, store_identity TO {role}")
        with OffsetStore.connect(place.url.replace("postgres@", f"{role}@")) as limited:
            with pytest.raises(MissingPrivilege, match=r"may not relay the outbox.*--relay-role"):
                Relay(limited, place.broker, anchor=place.anchor).drain()
            for line in grant_relay(role, schema="public"):
                place.query(line)
            Relay(limited, place.broker, anchor=place.anchor).drain()
    finally:
        place.query(f"DROP OWNED BY {role}")
        place.query(f"DROP ROLE {role}")
    assert place.values(topic) == [0]
    assert place.query("SELECT count(*)::int FROM outbox_refused") == [(1,)]


def test_without_brokers_or_in_a_copy_of_the_store_it_does_not_begin(place: Place) -> None:
    nowhere = Broker({"bootstrap.servers": "127.0.0.1:1"}, timeout=1)
    with pytest.raises(BrokerUnavailable, match="no answer from Kafka"):
        Relay(place.store, nowhere, anchor=place.anchor).run()
    nowhere.close()
    assert place.query("SELECT * FROM outbox_relays") == []

    place.query("UPDATE store_identity SET home = 'elsewhere'")
    with pytest.raises(StoreMoved):
        place.relay().run()


def test_bad_arguments_are_refused(place: Place) -> None:
    with pytest.raises(ConfigurationError, match="most must be 1 or more rows"):
        place.relay(most=0)
    with pytest.raises(ConfigurationError, match=r"the name of the anchor is not valid.*a b"):
        Relay(place.store, place.broker, anchor="a b")
    with pytest.raises(ConfigurationError, match="on_uncertain is unknown"):
        place.relay(on_uncertain="maybe")
    with InMemoryOffsetStore() as memory, pytest.raises(ConfigurationError, match=r"in memory.*store\.outbox"):
        Relay(memory, place.broker)

"""What a relay reads of the outbox: rows that are no records, too much at once, hidden rows, and no answer at all."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Event
from typing import Any, cast
from unittest.mock import Mock

import psycopg
import pytest

from offsetstore import Broker, OffsetStore, Relay, Retries
from offsetstore.errors import BrokerUnavailable, ConfigurationError, StoreUnavailable, TransactionLost
from offsetstore.operations.people import ask
from offsetstore.postgres import outbox
from offsetstore.postgres.outbox import FETCH, Portions, Reader, as_row
from offsetstore.protocol.events import OutboxRests, OutboxWaits
from offsetstore.protocol.outbox import CheckToken, KafkaMark, Mark, OutboxRecord, OutboxRow, Read, Take, WriteBatch
from offsetstore.relay import _LEAVING, _RENEW, _SILENCE
from tests.integration.conftest import Query
from tests.support.background import in_background
from tests.support.outbox import numbered, put
from tests.support.recorder import Recorder
from tests.support.slow_proxy import SlowProxy, Weather
from tests.support.tcp import server_of, url_at
from tests.support.waiting import wait_until

HEADERS = "its headers are not a list of pairs of a name and a value in base64"
TOPIC = "Kafka allows no topic of this name"
UNREADABLE = (
    *('{"ab": "aGk="}', '"text"', "7", "{}", '["ab"]', "[7]", "[[]]", '[["a"]]', '[["a", 1]]', "[" * 990 + "]" * 990),
    *('[["a", "aGk=", "more"]]', '[[7, "aGk="]]', '[["a", "not base64"]]', '[["a", "aGk"]]', '[["a", [1]]]'),
    *('[[null, "aGk="]]', '[[null, null, ["//8="]]]', '[[null, null, ["AA=="]]]', '[["a", 1e99999]]'),
)


def reader(store: OffsetStore, *, largest: int = 1_000_000) -> Reader:
    return Reader(lambda query: ask(store.database, query), Portions(), largest=largest)


@pytest.mark.behaviour("OUT-9")
def test_a_row_whose_headers_are_none_says_so_in_its_own_row(store: OffsetStore, query: Query) -> None:
    put(store, numbered("events", [1]))
    for headers in ("null", "[]", *UNREADABLE):
        query(f"INSERT INTO outbox (consumer_group, topic, headers) VALUES ('billing', 'events', '{headers}')")
    put(store, [OutboxRecord("events", b"key", b"value", (("größe", b"7"), ("none", None)))])

    first, null, empty, *wrong, last = reader(store).look("{}", 100)

    assert (first.wrong, null.headers, null.wrong, empty.headers, empty.wrong) == (None, None, None, (), None)
    assert (last.wrong, last.headers) == (None, (("größe", b"7"), ("none", None)))
    told = dict(zip(UNREADABLE, [(row.wrong, row.headers, row.topic) for row in wrong], strict=True))
    assert told == dict.fromkeys(UNREADABLE, (HEADERS, None, "events"))


@pytest.mark.behaviour("OUT-9")
def test_a_row_whose_topic_can_t_be_says_so_in_its_own_row() -> None:
    for topic in ("", "a b", ".", "..", "x" * 250, "größe", "a\nb"):
        assert as_row((7, topic, None, b"", None, None)) == OutboxRow(7, topic, None, b"", wrong=TOPIC)
    assert as_row((7, "events", None, b"", None, None)) == OutboxRow(7, "events", None, b"")


@pytest.mark.behaviour("OUT-9")
def test_a_row_that_is_larger_than_the_producer_takes_is_not_read(store: OffsetStore) -> None:
    put(store, [OutboxRecord("events", b"12345", bytes(n)) for n in (95, 96)])
    put(store, [OutboxRecord("events", None, None, (("a", bytes(n)),)) for n in (75, 750)])

    rows = reader(store, largest=100).look("{}", 10)

    too_large = (f"it has {size} bytes, the relay's message.max.bytes is 100" for size in (101, 1011))
    assert [row.wrong for row in rows] == [None, next(too_large), None, next(too_large)]
    assert [row.value for row in rows] == [bytes(95), None, None, None]
    assert reader(store, largest=100).fetch([row.id for row in rows]) == rows


LARGE = (("trace", bytes(7_000_000)),)
"""Base64 makes 9 MB of it, and compression some kilobytes."""


@pytest.mark.behaviour("OUT-1", "OUT-2")
@pytest.mark.parametrize(
    "record",
    [OutboxRecord("events", None, b"", LARGE), OutboxRecord("events", None, bytes(9_000_000))],
    ids=["headers", "value"],
)
def test_large_records_are_written_with_several_statements_and_sent_one_by_one(
    store: OffsetStore, record: OutboxRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[int] = []
    one = outbox.OutboxStatements.one

    def watched(session: outbox.OutboxStatements, statement: str, **values: object) -> object:
        if statement == outbox.WRITE_OUTBOX:
            sent.append(len(cast("list[str]", values["topics"])))
        return one(session, statement, **values)

    monkeypatch.setattr(outbox.OutboxStatements, "one", watched)
    put(store, [record] * 4)
    assert max(sent) <= 2
    assert sum(sent) == 4

    [row] = reader(store, largest=10_000_000).look("{}", 10)
    assert (row.value, row.headers) == (record.value, record.headers)


@pytest.mark.behaviour("OUT-12")
def test_under_a_statement_timeout_it_reads_less_at_once_and_then_more_again(
    offsetstore_database: str, store: OffsetStore, query: Query
) -> None:
    put(store, numbered("events", range(400)))
    query("ALTER TABLE outbox RENAME TO rows_of_outbox")
    query("CREATE VIEW outbox AS SELECT * FROM rows_of_outbox WHERE pg_sleep(0.002) IS NOT NULL")
    query("DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET statement_timeout = 300', current_database()); END $$")
    with OffsetStore.connect(offsetstore_database) as limited:
        reading = reader(limited)
        rows = reading.look("{}", 400)
        assert 25 <= len(rows) <= 100
        assert [row.id for row in reading.fetch(range(1, 201))] == [*range(1, 201)]
        few = reading._portions.of(1024)
        for _ in range(10):
            reading.look("{}", 1)
        assert reading._portions.of(1024) == 2 * few


class Given:
    """A database that gives up what is too much: more rows than some, or one of these."""

    def __init__(self, most: int, *bad: int) -> None:
        self.most, self.bad = most, bad

    def tuples(self, statement: str, **values: Any) -> list[tuple[Any, ...]]:
        ids = [*map(int, str(values["ids"])[1:-1].split(","))] if statement == FETCH else range(10)[: values["most"]]
        if values["largest"] >= 0 and (len(ids) > self.most or {*ids} & {*self.bad}):
            raise StoreUnavailable("the database cancelled a statement") from cancelled()
        return [(id_, "events", None, None, None, None) for id_ in ids]

    def __call__(self, query: Callable[[Any], Any]) -> Any:
        return query(self)


def cancelled() -> psycopg.Error:
    """As the server says it."""
    error = psycopg.errors.QueryCanceled("canceling statement due to statement timeout")
    error.sqlstate = "57014"
    return error


@pytest.mark.behaviour("OUT-9", "OUT-12")
def test_a_row_that_can_t_be_read_alone_is_named_if_it_can_be_without_its_contents() -> None:
    given = Given(4, 0, 7)
    reading = Reader(given, Portions(), largest=100)
    assert [(row.id, row.wrong) for row in reading.look("{}", 10)] == [(0, "it can't be read: StoreUnavailable")]
    rows = reading.fetch(range(10))
    assert [row.id for row in rows] == [*range(10)]
    assert {row.id for row in rows if row.wrong} == {0, 7}


@pytest.mark.behaviour("OUT-9", "OUT-12")
def test_a_row_that_could_not_be_read_for_a_while_is_not_named() -> None:
    """A lock or a load is over when the row is read without its contents."""

    class Passing(Given):
        def tuples(self, statement: str, **values: Any) -> list[tuple[Any, ...]]:
            if values["largest"] < 0:
                self.bad = ()
            return super().tuples(statement, **values)

    read: list[Callable[[Reader], Any]] = [lambda reading: reading.look("{}", 10), lambda reading: reading.fetch([0])]
    for one in read:
        rows = one(Reader(Passing(4, 0), Portions(), largest=100))
        assert [(row.id, row.wrong) for row in rows] == [(0, None)]


@pytest.mark.behaviour("OUT-12")
def test_what_is_no_answer_makes_nothing_smaller() -> None:
    def lost(_query: Callable[[Any], Any]) -> Any:
        raise StoreUnavailable("the connection was lost") from psycopg.OperationalError("gone")

    portions = Portions()
    with pytest.raises(StoreUnavailable, match="lost"):
        Reader(lost, portions, largest=100).look("{}", 10)
    assert portions.of(10) == 10


@pytest.mark.behaviour("OUT-2", "OUT-12")
def test_under_a_statement_timeout_rows_that_were_sent_are_deleted_in_parts(
    offsetstore_database: str, store: OffsetStore, query: Query
) -> None:
    put(store, numbered("events", range(300)))
    query("CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(0.002); RETURN OLD; END'")
    query("CREATE TRIGGER slow BEFORE DELETE ON outbox FOR EACH ROW EXECUTE FUNCTION slow()")
    query("DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET statement_timeout = 200', current_database()); END $$")
    with OffsetStore.connect(offsetstore_database) as limited:
        relay = Relay(limited, Broker({"bootstrap.servers": "127.0.0.1:1"}))
        relay._do(Take())
        done = WriteBatch(Mark(1, "word"), (), tuple(range(1, 301)))
        with pytest.raises(StoreUnavailable):
            relay._do(done)
        for _ in range(10):
            with suppress(StoreUnavailable):
                relay._do(done)
                break
    assert relay._portions.of(1024) == 1024, "what is read is not what was slow"
    assert query("SELECT count(*)::int FROM outbox") == [(0,)]
    assert query("SELECT sent, batch FROM outbox_relays") == [(300, 1)]


@pytest.mark.behaviour("OUT-12")
@pytest.mark.parametrize("table", ["outbox", "outbox_refused", "outbox_relays"])
def test_row_level_security_is_refused_for_whom_it_applies_to(
    offsetstore_database: str, store: OffsetStore, query: Query, table: str
) -> None:
    role = f"relay_{offsetstore_database.rpartition('/')[2]}"
    query(f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY")
    broker = Broker({"bootstrap.servers": "127.0.0.1:1"}, timeout=1)
    assert Relay(store, broker)._peek().number is None  # the owner sees all
    query(f"CREATE ROLE {role} LOGIN")
    try:
        query(f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {role}")
        with OffsetStore.connect(offsetstore_database.replace("postgres@", f"{role}@")) as limited:
            relay = Relay(limited, broker)
            for begin in (relay.drain, relay.run):
                with pytest.raises(ConfigurationError, match=rf"row-level security.*active for {table}\b"):
                    begin()
            query(f"ALTER ROLE {role} BYPASSRLS")
            with pytest.raises(BrokerUnavailable):
                relay.drain()
    finally:
        query(f"DROP OWNED BY {role}")
        query(f"DROP ROLE {role}")


@pytest.mark.behaviour("OUT-12")
@pytest.mark.parametrize("what", ["a read", "a lock", "a record"])
def test_a_database_that_takes_all_and_answers_nothing_is_given_up(
    offsetstore_database: str, store: OffsetStore, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """A proxy acknowledges what it forgets: no setting of TCP notices."""
    monkeypatch.setattr("offsetstore.relay._SILENCE", 1.0)
    monkeypatch.setattr("offsetstore.relay._TAKEOVER", 1.0)
    put(store, numbered("events", range(3)))
    with (
        SlowProxy(server_of(offsetstore_database), random.Random(7)) as proxy,  # noqa: S311
        OffsetStore.connect(f"{url_at(offsetstore_database, proxy.port)}?connect_timeout=2") as far,
    ):
        relay = Relay(far, Broker({"bootstrap.servers": "127.0.0.1:1"}))
        relay._take()
        steps = {
            "a read": Read(),
            "a lock": CheckToken(),
            "a record": WriteBatch(Mark(1, "word"), (1, 2, 3), before=""),
        }
        proxy.weather = Weather(delay=10_000)
        watch = relay._watch()
        began = time.monotonic()
        try:
            with pytest.raises((StoreUnavailable, TransactionLost)):
                relay._do(steps[what])
        finally:
            watch.stop()
        assert time.monotonic() - began < 15
        assert not relay._waits


class Hanging:
    """A Kafka that never answers."""

    largest = 1_000_000
    kept = None

    def __init__(self) -> None:
        self.is_asked, self.is_over = Event(), Event()

    def outlet(self, *_: object, **__: object) -> Hanging:
        return self

    def position(self, **_: object) -> KafkaMark:
        self.is_asked.set()
        self.is_over.wait(60)
        raise BrokerUnavailable("no answer from Kafka")

    def close(self) -> None:
        pass


@pytest.mark.behaviour("OUT-12")
def test_a_relay_that_is_told_to_stop_leaves_whatever_it_waits_for(
    store: OffsetStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("offsetstore.relay._LEAVING", 0.5)
    kafka: Any = Hanging()
    relay = Relay(store, kafka)
    done = in_background(relay.run)
    assert kafka.is_asked.wait(60)
    relay.stop()
    done.result(20)
    assert "stops without having ended its work" in caplog.text
    kafka.is_over.set()
    wait_until(lambda: not any("offsetstore-relay" in one.name for one in threading.enumerate()))  # it uses the store
    assert _LEAVING + 10 <= 30


class Renewing(Hanging):
    """A Kafka that answers a start, and counts how often its mark is set again."""

    kept = Mark(4, "four")

    def __init__(self) -> None:
        super().__init__()
        self.renewed = 0

    def fence(self) -> None: ...

    def position(self, **_: object) -> KafkaMark:
        return KafkaMark("cluster", 4, "four")

    def renew(self) -> None:
        self.renewed += 1


@pytest.fixture
def _renewing(query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relay has sent four batches, and the next one renews its mark all the time."""
    monkeypatch.setattr("offsetstore.relay._RENEW", 0.0)
    monkeypatch.setattr("offsetstore.relay._RETRIES", Retries(shortest=0.05, longest=0.05))
    query("INSERT INTO outbox_relays (shard, token, owner, batch, word, cluster_id) "
          "VALUES (0, gen_random_uuid(), 'relay', 4, 'four', 'cluster')")  # fmt: skip


def run_until(store: OffsetStore, kafka: Any, condition: Callable[[], object]) -> None:
    """Run a relay until then."""
    relay = Relay(store, kafka)
    done = in_background(relay.run)
    try:
        wait_until(condition)
    finally:
        relay.stop()
    done.result(60)


@pytest.mark.usefixtures("_renewing")
@pytest.mark.behaviour("OUT-5", "OUT-12")
def test_kafka_s_mark_is_set_again_while_the_database_does_not_answer(
    store: OffsetStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its offset may expire after ten minutes."""
    assert _RENEW <= 300 - _SILENCE
    monkeypatch.setattr(Relay, "_check", Mock(side_effect=StoreUnavailable("away")))
    monkeypatch.setattr(Relay, "_look", Mock(side_effect=StoreUnavailable("away")))
    kafka = Renewing()
    run_until(store, kafka, lambda: kafka.renewed >= 3)


class Unwritable(Renewing):
    """One that takes its mark, and no rows."""

    def __init__(self) -> None:
        super().__init__()
        self.marks: list[Mark] = []

    def lacking(self, _topics: object) -> dict[str, Any]:
        return {}

    def send(self, mark: Mark, rows: Sequence[OutboxRow], **_: object) -> None:
        if rows:
            raise BrokerUnavailable("the partition has no leader")
        self.marks.append(mark)


@pytest.mark.usefixtures("_renewing")
@pytest.mark.behaviour("OUT-5", "OUT-12")
def test_kafka_s_mark_is_set_again_while_the_first_partition_can_not_be_written_to(store: OffsetStore) -> None:
    put(store, numbered("events", [1]))
    kafka = Unwritable()
    run_until(store, kafka, lambda: len(kafka.marks) >= 3)
    assert {*kafka.marks} == {Mark(4, "four")}


@pytest.mark.usefixtures("_renewing")
@pytest.mark.behaviour("OUT-13")
def test_the_end_of_an_outage_is_told_although_there_is_nothing_to_send(
    offsetstore_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told, looks = Recorder(), iter([StoreUnavailable("away")])

    def look(_relay: Relay, _step: object) -> tuple[()]:
        for error in looks:
            raise error
        return ()

    monkeypatch.setattr("offsetstore.relay._RENEW", _RENEW)  # nothing is sent for the mark's sake
    monkeypatch.setattr(Relay, "_look", look)
    with OffsetStore.connect(offsetstore_database, observers=[told]) as store:
        run_until(store, Renewing(), lambda: told.of(OutboxRests))
    assert [type(event) for event in told.events] == [OutboxWaits, OutboxRests]

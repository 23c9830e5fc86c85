"""The relay and its tables, with a Kafka that is a double; the real one is in `test_relay`."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Generator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Any

import psycopg
import pytest

from offsetstore import OffsetStore, Relay
from offsetstore.errors import (
    BrokerError,
    BrokerUnavailable,
    ConfigurationError,
    MissingPrivilege,
    OutboxUncertain,
    RelayFenced,
    SinkError,
    StoreMoved,
    TopicMissing,
)
from offsetstore.kafka.outlet import ProducerEnded
from offsetstore.postgres.grants import grant_relay
from offsetstore.postgres.outbox import Reader
from offsetstore.protocol.events import OutboxBlocked, OutboxWaits
from offsetstore.protocol.outbox import (
    CheckToken,
    Mark,
    OnUncertain,
    OutboxRecord,
    OutboxRow,
    Read,
    Take,
    WriteBatch,
)
from offsetstore.runtime import failpoints
from offsetstore.testing import InMemoryOffsetStore
from tests.integration.conftest import Query
from tests.integration.kafka.conftest import delete_late, hurry
from tests.support.background import in_background
from tests.support.outbox import numbered, put
from tests.support.pooler import Pooler
from tests.support.recorder import Recorder
from tests.support.relayed import FakeKafka, running
from tests.support.waiting import wait_until

RECOVERY = Path(__file__).parents[3] / "docs" / "relay-recovery.md"


@dataclass(frozen=True)
class Place:
    """A store, and a Kafka of this test alone."""

    store: OffsetStore
    url: str
    query: Query
    recorder: Recorder
    kafka: Any = field(default_factory=FakeKafka)

    def relay(self, **arguments: Any) -> Relay:
        return Relay(self.store, self.kafka, **arguments)

    def put(self, *numbers: int, topic: str = "events") -> None:
        put(self.store, numbered(topic, numbers))

    def left(self) -> int:
        return self.query("SELECT count(*)::int FROM outbox")[0][0]

    def wait_until_empty(self) -> None:
        wait_until(lambda: self.left() == 0)


@pytest.fixture
def place(offsetstore_database: str, query: Query, monkeypatch: pytest.MonkeyPatch) -> Generator[Place]:
    recorder = Recorder()
    hurry(monkeypatch, trial=0.02)
    with OffsetStore.connect(offsetstore_database, observers=[recorder]) as store:
        yield Place(store, offsetstore_database, query, recorder)


@pytest.mark.behaviour("OUT-4")
def test_a_relay_that_another_one_has_replaced_reads_and_records_nothing(place: Place) -> None:
    stale = place.relay()
    stale._do(Take())
    place.relay().drain()
    place.put(0)
    before = place.query("SELECT * FROM outbox_relays")

    for step in (
        lambda: stale._do(CheckToken()),
        lambda: stale._do(Read()),
        lambda: stale._do(WriteBatch(Mark(1, "a word"), done=(1,))),
    ):
        with pytest.raises(RelayFenced):
            step()

    assert place.left() == 1
    assert place.query("SELECT * FROM outbox_relays") == before


@pytest.mark.behaviour("OUT-4")
@pytest.mark.parametrize("is_replaced", [True, False])
def test_a_relay_that_kafka_ends_before_it_has_sent_anything_is_fenced_if_another_one_has_the_token(
    place: Place, *, is_replaced: bool
) -> None:
    """Else it would be started again, and take over from its successor."""
    error = BrokerUnavailable("Kafka ended the producer")

    def end(*_: object) -> None:
        if is_replaced:
            place.relay()._take()
        raise error

    place.kafka.before_send = end
    with pytest.raises(RelayFenced if is_replaced else BrokerUnavailable) as caught:
        place.relay().run()
    assert error in {caught.value, caught.value.__cause__}


@pytest.mark.behaviour("OUT-4")
@pytest.mark.parametrize("times", [1, 9])
def test_a_relay_that_its_predecessor_fences_late_begins_again_and_not_without_end(place: Place, *, times: int) -> None:
    """The predecessor has looked at the token before it was taken; then it fences, and ends."""
    relay, begun = place.relay(), list[int]()

    def fenced(*_: object) -> None:
        begun.append(1)
        if len(begun) <= times:
            raise ProducerEnded("Kafka ended the producer")
        relay.stop()

    place.kafka.before_send = fenced
    with pytest.raises(ProducerEnded) if times > 1 else nullcontext():
        relay.run()
    assert len(begun) == (2 if times == 1 else 4)


@pytest.mark.behaviour("OUT-4")
def test_a_second_relay_that_can_t_work_does_not_end_the_first(place: Place) -> None:
    """Kafka does not answer it, or does not give it the id."""
    with running(place.relay()):
        place.put(0)
        place.wait_until_empty()
        before = place.query("SELECT token FROM outbox_relays")
        other: Any = FakeKafka()
        other.mark = place.kafka.mark
        for trouble in ("is_away", "refuses_producers"):
            setattr(other, trouble, True)
            with pytest.raises(BrokerError) as caught:
                Relay(place.store, other).run()
            setattr(other, trouble, False)
            assert not isinstance(caught.value, RelayFenced)
        assert place.query("SELECT token FROM outbox_relays") == before
        place.put(1)
        place.wait_until_empty()
    assert place.kafka.values() == [0, 1]


@pytest.mark.behaviour("OUT-5")
def test_a_batch_that_kafka_may_have_is_sent_again_or_skipped_as_a_person_says(place: Place) -> None:
    """As after the loss of both: the batch that is open is recorded, and Kafka's number is another."""
    place.relay().drain()
    for number, decision in ((0, "repeat"), (1, "skip")):
        place.put(number)
        place.query("UPDATE outbox_relays SET batch = batch + 7, ids = (SELECT array_agg(id) FROM outbox)")
        with pytest.raises(OutboxUncertain, match=r"an earlier batch.*1 rows of batch"):
            place.relay().drain()
        place.relay(on_uncertain=decision).drain()
        assert place.left() == 0
    assert place.kafka.values() == [0]


@pytest.mark.behaviour("OUT-5")
@pytest.mark.parametrize(
    ("in_kafka", "decision"),
    [([0, 1, 2], "skip"), ([2], "repeat"), ([0, 2], "repeat")],
    ids=["the named rows", "none of the named rows", "one of the named rows"],
)
def test_after_the_page_s_steps_each_row_of_a_restored_database_is_in_kafka_once(
    place: Place, in_kafka: list[int], decision: OnUncertain
) -> None:
    """The batch that the backup has named 0 and 1. Later on 2 was sent, too; 3 was not."""
    [named] = re.findall(r"`(SELECT \* FROM outbox WHERE [^`]+)`", RECOVERY.read_text(encoding="utf-8"))
    place.relay().drain()
    place.put(0, 1, 2, 3)
    place.kafka.rows = [OutboxRow(number, "events", None, b"%d" % number) for number in in_kafka]
    place.kafka.mark = Mark(9, "after the backup")
    place.query("UPDATE outbox_relays SET ids = (SELECT array_agg(id ORDER BY id) FROM outbox WHERE id <= 2)")
    with pytest.raises(OutboxUncertain, match=r"later batches.*2 rows of batch"):
        place.relay().drain()

    assert place.query(f"SELECT id FROM ({named}) AS named ORDER BY 1") == [(1,), (2,)]
    is_there = f"convert_from(value, 'UTF8')::int IN ({', '.join(map(str, in_kafka))})"
    place.query(f"DELETE FROM outbox WHERE id NOT IN (SELECT id FROM ({named}) AS named) AND {is_there}")
    if decision == "repeat":
        place.query(f"DELETE FROM outbox WHERE {is_there}")
    place.relay(on_uncertain=decision).drain()
    place.put(4)
    place.relay().drain()
    assert sorted(place.kafka.values()) == [0, 1, 2, 3, 4]
    assert place.left() == 0


@pytest.mark.behaviour("OUT-2", "OUT-10")
def test_a_row_that_is_set_aside_while_it_is_about_to_be_sent_is_not_in_kafka_and_one_that_is_sent_is_left(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    record, taken = Relay._record, list[int]()

    def take_first(relay: Relay, step: WriteBatch) -> None:
        if step.ids and not taken:
            taken.extend(step.ids[:1])
            assert place.store.set_aside("billing", taken, reason="ticket 19").executed
        record(relay, step)
        if step.ids and step.ids[0] == 2:
            with pytest.raises(ConfigurationError, match=r"no such rows .* are in the outbox, and not being sent.*2"):
                place.store.set_aside("billing", [2], reason="ticket 19")

    monkeypatch.setattr(Relay, "_record", take_first)
    place.put(0, 1, 2)
    with running(place.relay()):
        place.wait_until_empty()
    assert place.kafka.values() == [1, 2]
    assert place.query("SELECT id, error FROM outbox_refused")[0][1].endswith(": ticket 19")
    [waited] = place.recorder.of(OutboxWaits)
    assert "rows were taken out of the outbox when they were about to be sent" in str(waited.error)


@pytest.mark.behaviour("OUT-4", "OUT-6", "OUT-9")
def test_rows_of_topics_that_can_t_be_written_to_wait_in_their_order_and_kafka_s_mark_is_kept_meanwhile(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kafka forgets an offset that nobody has committed for seven days."""
    place.kafka.missing |= {"events", "other"}
    place.put(0, 1, 2)
    with pytest.raises(TopicMissing):
        place.relay().drain()
    monkeypatch.setattr("offsetstore.relay._RENEW", 0.0)
    before = len(place.kafka.sends)
    with running(place.relay(most=2)):
        place.put(0, 1, 2, topic="other")
        wait_until(lambda: len(place.recorder.of(OutboxBlocked)) >= 3)
        assert place.left() == 6
        wait_until(lambda: len(place.kafka.sends) > before + 3)
        assert {rows for _, rows in place.kafka.sends[before:]} == {0}
        place.kafka.missing.discard("other")
        wait_until(lambda: place.left() == 3)
        place.put(3)
        place.kafka.missing.clear()
        place.wait_until_empty()
    assert place.kafka.values("other") == [0, 1, 2]
    assert place.kafka.values() == [0, 1, 2, 3]


@pytest.mark.behaviour("OUT-2")
@pytest.mark.parametrize(("table", "done"), [("DELETE ON outbox", [0]), ("INSERT ON outbox_refused", [])])
def test_rows_that_something_in_the_database_keeps_end_it_and_are_not_sent_again(
    place: Place, table: str, done: list[int]
) -> None:
    place.query("CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'")
    place.query(f"CREATE TRIGGER keep BEFORE {table} FOR EACH ROW EXECUTE FUNCTION keep()")
    others = [] if done else [OutboxRecord("events", None, bytes(2_000_000))]
    put(place.store, [*numbered("events", [0]), *others])

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
    assert place.kafka.values() == done


@pytest.mark.behaviour("OUT-5")
def test_each_start_sets_kafka_s_number_again_lest_it_expires(place: Place) -> None:
    """Whether there are rows or not: processes may live shorter than a day, or only drain."""
    place.relay().drain()
    place.relay().drain()
    relay = place.relay()
    with running(relay):
        wait_until(lambda: relay._listener is not None)  # it rests
    assert place.kafka.sends == [(0, 0)] * 3


@pytest.mark.behaviour("OUT-2")
def test_a_batch_that_takes_too_long_is_sent_in_smaller_ones(place: Place) -> None:
    def slow(_: Mark, rows: Sequence[OutboxRow]) -> None:
        if len(rows) > 20:
            raise BrokerUnavailable("no answer from Kafka")

    place.kafka.before_send = slow
    place.put(*range(100))
    with running(place.relay()):
        place.wait_until_empty()
    assert place.kafka.values() == [*range(100)]
    assert [size for _, size in place.kafka.sends if size][:4] == [100, 50, 25, 12]


@pytest.mark.behaviour("OUT-2")
def test_a_record_of_its_own_whose_outcome_is_not_known_is_waited_for(place: Place) -> None:
    """A COMMIT that waits for a replica, say, while its connection is gone."""
    relay = place.relay()
    relay._do(Take())
    with psycopg.connect(place.url) as open_:
        open_.execute("UPDATE outbox_relays SET batch = 7")
        checked = in_background(lambda: relay._do(CheckToken()))
        wait_until(lambda: place.query("SELECT 1 FROM pg_locks WHERE NOT granted"))
        assert not checked.done()
        open_.commit()
    checked.result(60)


@pytest.mark.behaviour("OUT-2", "OUT-4")
@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_batch_is_produced_while_it_is_recorded_and_committed_only_after_that(
    place: Place, monkeypatch: pytest.MonkeyPatch, *, is_replaced: bool
) -> None:
    produced = Event()

    def reach(name: str) -> None:
        if name == "outbox_in_transaction":
            produced.set()

    monkeypatch.setattr(failpoints, "reach", reach)
    relay = place.relay()
    done = in_background(relay.run)
    wait_until(lambda: relay._listener is not None)  # it rests
    produced.clear()
    with psycopg.connect(place.url) as other:
        other.execute("UPDATE outbox_relays SET token = gen_random_uuid()")
        place.put(*range(1, 5))
        assert produced.wait(60)
        assert not done.done()
        assert place.left() == 4
        if is_replaced:
            other.commit()
            with pytest.raises(RelayFenced):
                done.result(60)
            assert place.kafka.values() == []
        else:
            other.rollback()
            place.wait_until_empty()
            relay.stop()
            done.result(60)
            assert place.kafka.values() == [*range(1, 5)]


@pytest.mark.behaviour("OUT-2")
def test_what_is_being_recorded_is_waited_for_before_it_begins_anew(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, failed, checked = Event(), Event(), Event()
    record, check = Relay._record, Relay._check

    def record_late(relay: Relay, step: WriteBatch) -> None:
        assert step.mark.number != 2 or slow.wait(60)
        record(relay, step)

    def fail_once(mark: Mark, _: object) -> None:
        if mark.number == 2 and not failed.is_set():
            failed.set()
            raise BrokerUnavailable("no answer from Kafka")

    def watched(relay: Relay) -> None:
        checked.set()
        check(relay)

    monkeypatch.setattr(Relay, "_record", record_late)
    monkeypatch.setattr(Relay, "_check", watched)
    place.kafka.before_send = fail_once
    place.put(*range(4))
    with running(place.relay(most=2)):
        assert failed.wait(60)
        assert not checked.wait(0.5)
        slow.set()
        place.wait_until_empty()
    assert place.kafka.values() == [*range(4)]


@pytest.mark.behaviour("OUT-2")
def test_rows_that_are_still_being_deleted_are_not_looked_for_again(place: Place) -> None:
    delete_late(place.query)
    place.put(*range(10))
    place.query("DELETE FROM outbox WHERE value IN ('3', '5')")  # so that not all ids follow one another
    place.relay(most=2).drain()
    assert place.kafka.values() == [0, 1, 2, 4, 6, 7, 8, 9]


@pytest.mark.behaviour("OUT-2", "OUT-6")
def test_what_is_recorded_instead_of_a_refused_batch_waits_for_that_batch_s_record(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    record, at_once, most = Relay._record, list[WriteBatch](), list[int]()

    def watched(relay: Relay, step: WriteBatch) -> None:
        at_once.append(step)
        most.append(len(at_once))
        threading.Event().wait(0.2)
        record(relay, step)
        at_once.remove(step)

    def is_refused(row: OutboxRow) -> bool:
        return row.value == b"2"

    monkeypatch.setattr(Relay, "_record", watched)
    place.kafka.refuses = is_refused
    place.put(*range(5))
    place.relay(most=2).drain()
    assert place.kafka.values() == [0, 1, 3, 4]
    assert place.query("SELECT count(*)::int FROM outbox_refused") == [(1,)]
    assert max(most) == 1


@pytest.mark.behaviour("OUT-3")
def test_a_row_that_is_committed_later_than_higher_ones_holds_nothing_up_and_is_not_deleted_with_those_around_it(
    place: Place,
) -> None:
    place.put(0)
    with psycopg.connect(place.url) as slow:
        slow.execute("INSERT INTO outbox (consumer_group, topic, value) VALUES ('billing', 'events', '1')")
        place.put(2)

        def commit(_: Mark, rows: Sequence[OutboxRow]) -> None:
            if rows:
                slow.commit()

        place.kafka.before_send = commit
        place.relay().drain()
    assert place.kafka.values() == [0, 2, 1]


@pytest.mark.behaviour("OUT-7")
def test_a_commit_wakes_it_and_at_rest_it_looks_at_most_once_in_its_interval(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, asked = list[str](), Reader._rows
    monkeypatch.setattr("offsetstore.relay._AT_REST", 600.0)

    def look(reader: Reader, statement: str, **values: Any) -> Any:
        looks.append(statement)
        return asked(reader, statement, **values)

    monkeypatch.setattr(Reader, "_rows", look)
    relay = place.relay()
    with running(relay):
        for number in range(5):
            place.put(number)
            place.wait_until_empty()  # long before it would look by itself
            wait_until(lambda: relay._listener is not None)
        monkeypatch.setattr("offsetstore.relay._AT_REST", 0.5)
        place.put(6)
        place.wait_until_empty()
        before, began = len(looks), time.monotonic()
        wait_until(lambda: len(looks) >= before + 3)
        assert time.monotonic() - began >= 0.5  # what it does after a batch may come late


@pytest.mark.behaviour("OUT-7")
def test_behind_a_pooler_it_looks_once_a_second_and_says_so(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    with (
        Pooler(place.url) as pooler,
        OffsetStore.connect(pooler.url) as store,
        running(Relay(store, place.kafka)),
    ):
        for number in range(2):
            put(store, numbered("events", [number]))
            place.wait_until_empty()
    assert place.kafka.values() == [0, 1]
    assert caplog.text.count("LISTEN does not work behind a pooler") == 1


def test_the_role_of_a_relay_needs_no_more_than_what_is_printed(place: Place) -> None:
    put(place.store, [*numbered("events", [0]), OutboxRecord("events", None, bytes(2_000_000))])
    role = f"relay_{place.url.rpartition('/')[2]}"
    place.query(f"CREATE ROLE {role} LOGIN")
    try:
        place.query(f"GRANT SELECT ON offsetstore_version, store_identity TO {role}")
        with OffsetStore.connect(place.url.replace("postgres@", f"{role}@")) as limited:
            with pytest.raises(MissingPrivilege, match=r"may not relay the outbox.*--relay-role"):
                Relay(limited, place.kafka).drain()
            for line in grant_relay(role, schema="public"):
                place.query(line)
            Relay(limited, place.kafka).drain()
    finally:
        place.query(f"DROP OWNED BY {role}")
        place.query(f"DROP ROLE {role}")
    assert place.kafka.values() == [0]
    assert place.query("SELECT count(*)::int FROM outbox_refused") == [(1,)]


def test_without_brokers_or_in_a_copy_of_the_store_it_does_not_begin(place: Place) -> None:
    place.kafka.is_away = True
    with pytest.raises(BrokerUnavailable, match="no answer from Kafka"):
        place.relay().run()
    assert place.query("SELECT * FROM outbox_relays") == []

    place.query("UPDATE store_identity SET home = 'elsewhere'")
    place.kafka.is_away = False
    with pytest.raises(StoreMoved):
        place.relay().run()


def test_bad_arguments_are_refused(place: Place) -> None:
    wrong: dict[str, dict[str, Any]] = {
        "most must be 1 or more rows": {"most": 0},
        r"the name of the anchor is not valid.*a b": {"anchor": "a b"},
        "on_uncertain is unknown": {"on_uncertain": "maybe"},
    }
    for told, arguments in wrong.items():
        with pytest.raises(ConfigurationError, match=told):
            place.relay(**arguments)
    with InMemoryOffsetStore() as memory, pytest.raises(ConfigurationError, match=r"in memory.*store\.outbox"):
        Relay(memory, place.kafka)

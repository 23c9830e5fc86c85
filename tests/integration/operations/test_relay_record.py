"""Whether a relay runs is seen from outside, by its heartbeat; the relay here sends nothing."""

from __future__ import annotations

import random
from collections.abc import Callable, Generator
from contextlib import nullcontext

import pytest

from offsetstore import Broker, OffsetStore, Relay
from offsetstore.errors import BrokerUnavailable, ConfigurationError, MissingPrivilege, RelayFenced, StoreUnavailable
from offsetstore.operations import relay_record
from offsetstore.operations.people import ask, read_overview
from offsetstore.operations.relay_record import RelayRecord
from offsetstore.protocol.events import OutboxBlocked, OutboxRests, OutboxSent, OutboxWaits
from offsetstore.protocol.outbox import RelayStatus
from tests.integration.conftest import Query
from tests.support.background import in_background
from tests.support.slow_proxy import SlowProxy, Weather
from tests.support.tcp import server_of, url_at
from tests.support.waiting import wait_until

pytestmark = pytest.mark.behaviour("OUT-13")

AGO = "clock_timestamp() - interval '{} s'"
TAKE = (
    "INSERT INTO outbox_relays (shard, token, owner) VALUES (0, gen_random_uuid(), '{}') "
    "ON CONFLICT (shard) DO UPDATE SET token = excluded.token, owner = excluded.owner, taken_at = clock_timestamp()"
)


@pytest.fixture(autouse=True)
def without_heartbeats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay_record, "INTERVAL", 3600)


@pytest.fixture
def start(store: OffsetStore) -> Callable[[str], RelayRecord]:
    return lambda owner: RelayRecord(store.database, owner, right="relay the outbox")


def told(store: OffsetStore) -> RelayStatus | None:
    return ask(store.database, lambda session: read_overview(session, None)).relay


def state(store: OffsetStore) -> str | None:
    found = told(store)
    return found and found.state


def told_of(store: OffsetStore) -> tuple[str, str | None]:
    """The state, and whose it is."""
    found = told(store)
    assert found is not None
    return found.state, found.owner


def wait_until_told(store: OffsetStore, error: str | None) -> RelayStatus:
    """Wait until the relay says that this is in its way."""

    def look() -> RelayStatus | None:
        found = told(store)
        return found if found is not None and found.error == error else None

    found = wait_until(look)
    assert found is not None
    return found


def end(record: RelayRecord, error: Exception | None) -> None:
    """Let it run and end with this error."""
    with pytest.raises(type(error)) if error else nullcontext(), record.running():
        if error is not None:
            raise error


def test_a_relay_is_live_while_it_runs_and_tells_how_it_ended(
    store: OffsetStore, start: Callable[[str], RelayRecord], query: Query
) -> None:
    assert told(store) is None
    record = start("first")
    with record.running():
        query(TAKE.format("first"))
        assert state(store) == "live"
    record._write(None)
    assert state(store) == "ended", "an end is not taken back"

    end(start("second"), ConfigurationError("no such topic"))
    assert (found := told(store)) is not None
    assert (found.state, found.owner, found.error) == ("failed", "second", "no such topic.")
    end(start("second"), ValueError("a record's secret"))
    assert query("SELECT error FROM relay_runs ORDER BY started_at DESC LIMIT 1") == [("ValueError",)]
    end(start("third"), RelayFenced("another relay has taken the outbox over"))
    assert state(store) == "fenced"


def test_what_it_waits_for_and_each_topic_that_is_blocked_are_told_until_it_sends_or_rests(
    store: OffsetStore, start: Callable[[str], RelayRecord], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay_record, "INTERVAL", 0.05)
    record, error = start("relay"), BrokerUnavailable("no answer")
    waits, rests = OutboxWaits(group="relay", error=error, wait=1.0), OutboxRests(group="relay", blocked=0)
    sent = OutboxSent(group="relay", rows=3, seconds=0.1)
    gone, full = (
        OutboxBlocked(group="relay", topic=topic, row=row, error="no topic")
        for row, topic in enumerate(("gone", "full"))
    )
    with record.running():
        for over in (sent, rests):
            record.on(waits)
            wait_until_told(store, str(error))
            record.on(over)
            assert wait_until_told(store, None).sent_at is not None
        for event in (gone, full, sent):  # of other topics
            record.on(event)
        wait_until_told(store, "row 0 blocks topic gone: no topic; row 1 blocks topic full: no topic")
        record.on(rests)
        wait_until_told(store, None)
        monkeypatch.setattr(relay_record, "_BLOCKED", 0.2)
        record.on(gone)
        wait_until_told(store, "row 0 blocks topic gone: no topic")
        wait_until_told(store, None)  # it is told no more


def test_a_relay_without_heartbeats_is_silent_and_one_that_sends_nothing_is_stalled(
    store: OffsetStore, start: Callable[[str], RelayRecord], query: Query
) -> None:
    with start("relay").running():
        query(f"INSERT INTO outbox (consumer_group, topic, created_at) VALUES ('billing', 'a', {AGO.format(400)})")
        assert state(store) == "live", "it has just begun"
        for column, ago, expected in (
            ("started_at", 400, "stalled"),
            ("sent_at", 10, "live"),
            ("seen_at", 20, "silent"),
        ):
            query(f"UPDATE relay_runs SET {column} = {AGO.format(ago)}")
            assert state(store) == expected
        query("ALTER TABLE relay_runs RENAME TO away")  # later trouble harms nothing
    query("ALTER TABLE away RENAME TO relay_runs")
    assert state(store) == "silent", "nobody could say that it ended"


def test_a_trial_that_failed_while_another_one_ran_hides_neither_its_life_nor_its_end(
    store: OffsetStore, start: Callable[[str], RelayRecord], query: Query
) -> None:
    with start("first").running():
        query(TAKE.format("first"))
        for _ in range(4):
            end(start("second"), ConfigurationError("no such topic"))
        assert told_of(store) == ("live", "first"), "in its first minute, too: those that failed came later"
        query(f"UPDATE relay_runs SET started_at = {AGO.format(70)} WHERE owner = 'first'")
        assert told_of(store) == ("live", "first")
    assert told_of(store) == ("ended", "first")


def test_one_that_fails_at_each_start_is_failed_although_it_is_live(
    store: OffsetStore, start: Callable[[str], RelayRecord]
) -> None:
    for _ in range(3):
        end(start("relay"), ConfigurationError("no such topic"))
    with start("relay").running():
        assert state(store) == "failed"


def test_old_runs_are_deleted_but_not_the_one_that_goes_on(
    store: OffsetStore, start: Callable[[str], RelayRecord], query: Query
) -> None:
    with start("first").running():
        query(
            "INSERT INTO relay_runs (run_id, owner, ended_at, ending) "
            "SELECT gen_random_uuid(), 'second', clock_timestamp(), 'failed' FROM generate_series(1, 200)"
        )
        end(start("third"), None)
        assert query("SELECT count(*)::int FROM relay_runs") == [(101,)]
        assert query("SELECT count(*)::int FROM relay_runs WHERE owner = 'first'") == [(1,)]
        query(f"UPDATE relay_runs SET seen_at = {AGO.format(3601)} WHERE owner = 'first'")
        end(start("third"), None)
        assert query("SELECT count(*)::int FROM relay_runs WHERE owner = 'first'") == [(0,)]


def test_a_live_relay_that_was_replaced_and_does_not_know_it_yet_is_not_shown(
    store: OffsetStore, start: Callable[[str], RelayRecord], query: Query
) -> None:
    query(TAKE.format("earlier"))
    assert state(store) == "unknown", "one of an earlier release"
    with start("first").running():
        query(TAKE.format("first"))
        with start("second").running():
            query(TAKE.format("second"))
            query(f"UPDATE relay_runs SET seen_at = {AGO.format(0)}")
            assert told_of(store) == ("live", "second")
            query(f"UPDATE outbox_relays SET taken_at = {AGO.format(30)}")
            query(f"UPDATE relay_runs SET started_at = {AGO.format(400)} WHERE owner = 'first'")
            times = f"started_at = {AGO.format(31)}, seen_at = {AGO.format(20)}"
            query(f"UPDATE relay_runs SET {times} WHERE owner = 'second'")
            assert told_of(store) == ("silent", "second")
            query("DELETE FROM relay_runs WHERE owner = 'second'")
            assert told_of(store) == ("unknown", "second")


@pytest.fixture
def forgetful(offsetstore_database: str) -> Generator[tuple[OffsetStore, SlowProxy]]:
    """A store behind a proxy, which is used and has a connection for heartbeats."""
    with (
        SlowProxy(server_of(offsetstore_database), random.Random(7)) as proxy,  # noqa: S311
        OffsetStore.connect(f"{url_at(offsetstore_database, proxy.port)}?connect_timeout=2") as far,
    ):
        with RelayRecord(far.database, "earlier", right="relay the outbox").running():
            pass
        yield far, proxy


@pytest.mark.behaviour("OUT-12")
def test_heartbeats_go_on_after_a_connection_was_forgotten_and_a_start_that_can_t_be_recorded_has_an_end(
    forgetful: tuple[OffsetStore, SlowProxy], monkeypatch: pytest.MonkeyPatch, query: Query
) -> None:
    monkeypatch.setattr(relay_record, "INTERVAL", 0.5)
    monkeypatch.setattr("offsetstore.relay._LEAVING", 0.5)
    far, proxy = forgetful

    def seen() -> object:
        return query("SELECT seen_at FROM relay_runs WHERE owner = 'relay'")

    with RelayRecord(far.database, "relay", right="relay the outbox").running():
        pieces, proxy.weather = proxy.happened["pieces"], Weather(delay=10_000)
        wait_until(lambda: proxy.happened["pieces"] > pieces)
        proxy.weather, last = Weather(), seen()
        wait_until(lambda: seen() != last)

    proxy.weather = Weather(delay=10_000)
    relay = Relay(far, Broker({"bootstrap.servers": "127.0.0.1:1"}))
    stopped = in_background(relay.run)
    relay.stop()
    stopped.result(20)
    monkeypatch.setattr(relay_record, "_SILENCE", 0.5)
    with pytest.raises(StoreUnavailable, match="no answer"):
        relay.drain()


def test_a_right_that_is_missing_is_named_before_anything_is_done(offsetstore_database: str, query: Query) -> None:
    role, done = "relay_of_0011", list[str]()
    query(f"CREATE ROLE {role} LOGIN; GRANT SELECT ON offsetstore_version, store_identity TO {role}")
    try:
        with OffsetStore.connect(offsetstore_database.replace("postgres@", f"{role}@")) as store:
            record = RelayRecord(store.database, "relay", right="relay the outbox")
            with pytest.raises(MissingPrivilege, match="may not relay the outbox"), record.running():
                done.append("fenced")
    finally:
        query(f"DROP OWNED BY {role}; DROP ROLE {role}")
    assert done == []

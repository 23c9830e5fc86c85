"""Whether a relay runs is seen from outside, by its heartbeat; the relay here sends nothing."""

from __future__ import annotations

import random
from collections.abc import Callable, Generator

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
    found = store.group_state("billing").relay
    overview = ask(store.database, lambda session: read_overview(session, None)).relay
    assert (found and (found.state, found.owner)) == (overview and (overview.state, overview.owner))
    return found


def state(store: OffsetStore) -> str | None:
    found = told(store)
    return None if found is None else found.state


def end(record: RelayRecord, error: Exception | None) -> None:
    with record.running():
        if error is not None:
            raise error


def test_a_relay_is_live_while_it_runs_and_tells_how_it_ended(
    store: OffsetStore, start: Callable[[str], RelayRecord], query: Query
) -> None:
    assert told(store) is None
    with start("first").running():
        query(TAKE.format("first"))
        assert state(store) == "live"
    assert state(store) == "ended"

    with pytest.raises(ConfigurationError):
        end(start("second"), ConfigurationError("no such topic"))
    found = told(store)
    assert found is not None
    assert (found.state, found.owner, found.error) == ("failed", "second", "no such topic.")
    with pytest.raises(ValueError, match="secret"):
        end(start("second"), ValueError("a record's secret"))
    assert query("SELECT error FROM relay_runs ORDER BY started_at DESC LIMIT 1") == [("ValueError",)]
    with pytest.raises(RelayFenced):
        end(start("third"), RelayFenced("another relay has taken the outbox over"))
    assert state(store) == "fenced"


def test_what_it_waits_for_is_told_until_it_sends_again_or_rests(
    store: OffsetStore, start: Callable[[str], RelayRecord], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay_record, "INTERVAL", 0.05)
    record, error = start("relay"), BrokerUnavailable("no answer")
    with record.running():
        record.on(OutboxWaits(group="relay", error=error, wait=1.0))
        wait_until(lambda: (found := told(store)) is not None and found.error == str(error))
        record.on(OutboxSent(group="relay", rows=3, seconds=0.1))
        wait_until(lambda: (found := told(store)) is not None and found.error is None and found.sent_at is not None)
        record.on(OutboxWaits(group="relay", error=error, wait=1.0))
        wait_until(lambda: (found := told(store)) is not None and found.error == str(error))
        record.on(OutboxRests(group="relay", blocked=0))
        wait_until(lambda: (found := told(store)) is not None and found.error is None)


def test_each_topic_that_is_blocked_is_told_until_none_is(
    store: OffsetStore, start: Callable[[str], RelayRecord], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay_record, "INTERVAL", 0.05)
    record = start("relay")
    with record.running():
        for row, topic in enumerate(("gone", "full")):
            record.on(OutboxBlocked(group="relay", topic=topic, row=row, error="no topic"))
        record.on(OutboxSent(group="relay", rows=3, seconds=0.1))  # of other topics
        both = "row 0 blocks topic gone: no topic; row 1 blocks topic full: no topic"
        wait_until(lambda: (found := told(store)) is not None and found.error == both and found.sent_at is not None)
        record.on(OutboxRests(group="relay", blocked=0))
        wait_until(lambda: (found := told(store)) is not None and found.error is None)
        monkeypatch.setattr(relay_record, "_BLOCKED", 0.2)
        record.on(OutboxBlocked(group="relay", topic="gone", row=0, error="no topic"))
        wait_until(lambda: (found := told(store)) is not None and found.error is not None)
        wait_until(lambda: (found := told(store)) is not None and found.error is None)  # it is told no more


def test_a_relay_without_heartbeats_is_silent_and_one_that_sends_nothing_is_stalled(
    store: OffsetStore, start: Callable[[str], RelayRecord], query: Query
) -> None:
    with start("relay").running():
        query(f"INSERT INTO outbox (consumer_group, topic, created_at) VALUES ('billing', 'a', {AGO.format(400)})")
        assert state(store) == "live", "it has just begun"
        query(f"UPDATE relay_runs SET started_at = {AGO.format(400)}")
        assert state(store) == "stalled"
        query(f"UPDATE relay_runs SET sent_at = {AGO.format(10)}")
        assert state(store) == "live"
        query(f"UPDATE relay_runs SET seen_at = {AGO.format(20)}")
        assert state(store) == "silent"


def test_a_second_one_that_fails_at_its_start_does_not_hide_the_first(
    store: OffsetStore, start: Callable[[str], RelayRecord], query: Query
) -> None:
    with start("first").running():
        query(TAKE.format("first"))
        for _ in range(4):
            with pytest.raises(ConfigurationError):
                end(start("second"), ConfigurationError("no such topic"))
        query(f"UPDATE relay_runs SET started_at = {AGO.format(70)} WHERE owner = 'first'")
        found = told(store)
        assert found is not None
        assert (found.state, found.owner) == ("live", "first")


def test_a_trial_that_failed_while_another_one_ran_hides_neither_its_life_nor_its_end(
    store: OffsetStore, start: Callable[[str], RelayRecord], query: Query
) -> None:
    with start("first").running():
        query(TAKE.format("first"))
        for _ in range(3):
            with pytest.raises(ConfigurationError):
                end(start("second"), ConfigurationError("no such topic"))
        assert state(store) == "live", "in its first minute, too: those that failed came later"
    found = told(store)
    assert found is not None
    assert (found.state, found.owner) == ("ended", "first")


def test_one_that_fails_at_each_start_is_failed_although_it_is_live(
    store: OffsetStore, start: Callable[[str], RelayRecord]
) -> None:
    for _ in range(3):
        with pytest.raises(ConfigurationError):
            end(start("relay"), ConfigurationError("no such topic"))
    with start("relay").running():
        assert state(store) == "failed"


def test_one_of_an_earlier_release_is_unknown(
    store: OffsetStore, start: Callable[[str], RelayRecord], query: Query
) -> None:
    query(TAKE.format("earlier"))
    assert state(store) == "unknown"
    with start("relay").running():
        assert state(store) == "live"
    assert state(store) == "ended"
    query(TAKE.format("earlier"))
    assert state(store) == "unknown"


def test_an_end_is_not_taken_back_and_old_runs_are_deleted(
    store: OffsetStore, start: Callable[[str], RelayRecord], query: Query
) -> None:
    record = start("relay")
    end(record, None)
    record._write(None)
    assert state(store) == "ended"
    query(
        "INSERT INTO relay_runs (run_id, owner, started_at, seen_at) "
        f"SELECT gen_random_uuid(), 'old', {AGO.format(86400)}, {AGO.format(86000)} FROM generate_series(1, 200)"
    )
    end(start("relay"), None)
    assert query("SELECT count(*)::int FROM relay_runs") == [(100,)]
    assert state(store) == "ended"


def test_the_run_of_a_relay_that_goes_on_is_kept_however_often_another_one_fails(
    store: OffsetStore, start: Callable[[str], RelayRecord], query: Query
) -> None:
    with start("first").running():
        query(
            "INSERT INTO relay_runs (run_id, owner, ended_at, ending) "
            "SELECT gen_random_uuid(), 'second', clock_timestamp(), 'failed' FROM generate_series(1, 200)"
        )
        end(start("third"), None)
        assert query("SELECT count(*)::int FROM relay_runs WHERE owner = 'first'") == [(1,)]
        query(f"UPDATE relay_runs SET seen_at = {AGO.format(3601)} WHERE owner = 'first'")
        end(start("third"), None)
        assert query("SELECT count(*)::int FROM relay_runs WHERE owner = 'first'") == [(0,)]


def test_a_live_relay_that_was_replaced_and_does_not_know_it_yet_is_not_shown(
    store: OffsetStore, start: Callable[[str], RelayRecord], query: Query
) -> None:
    with start("first").running():
        query(TAKE.format("first"))
        with start("second").running():
            query(TAKE.format("second"))
            query(f"UPDATE relay_runs SET seen_at = {AGO.format(0)}")
            found = told(store)
            assert found is not None
            assert (found.state, found.owner) == ("live", "second")
            query(f"UPDATE outbox_relays SET taken_at = {AGO.format(30)}")
            query(f"UPDATE relay_runs SET started_at = {AGO.format(400)} WHERE owner = 'first'")
            query(
                f"UPDATE relay_runs SET started_at = {AGO.format(31)}, seen_at = {AGO.format(20)} "
                "WHERE owner = 'second'"
            )
            found = told(store)
            assert found is not None
            assert (found.state, found.owner) == ("silent", "second")
            query("DELETE FROM relay_runs WHERE owner = 'second'")
            found = told(store)
            assert found is not None
            assert (found.state, found.owner) == ("unknown", "second"), "one of an earlier release"


def test_later_trouble_harms_nothing(store: OffsetStore, start: Callable[[str], RelayRecord], query: Query) -> None:
    with start("relay").running():
        query("ALTER TABLE relay_runs RENAME TO away")
    query("ALTER TABLE away RENAME TO relay_runs")
    assert state(store) == "live", "nobody could say that it ended"


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
def test_heartbeats_go_on_after_a_connection_was_forgotten(
    forgetful: tuple[OffsetStore, SlowProxy], monkeypatch: pytest.MonkeyPatch, query: Query
) -> None:
    monkeypatch.setattr(relay_record, "INTERVAL", 0.5)
    far, proxy = forgetful

    def seen() -> object:
        return query("SELECT seen_at FROM relay_runs WHERE owner = 'relay'")

    with RelayRecord(far.database, "relay", right="relay the outbox").running():
        pieces, proxy.weather = proxy.happened["pieces"], Weather(delay=10_000)
        wait_until(lambda: proxy.happened["pieces"] > pieces)
        proxy.weather, last = Weather(), seen()
        wait_until(lambda: seen() != last)


@pytest.mark.behaviour("OUT-12")
def test_a_relay_whose_start_can_t_be_recorded_can_be_stopped_and_does_not_wait_for_ever(
    forgetful: tuple[OffsetStore, SlowProxy], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay_record, "INTERVAL", 0.5)
    monkeypatch.setattr("offsetstore.relay._LEAVING", 0.5)
    far, proxy = forgetful
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

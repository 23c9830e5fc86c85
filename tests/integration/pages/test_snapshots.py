"""The snapshot that all pages share: what becomes of it when something fails, hangs, or is known in part."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from unittest.mock import Mock

import httpx
import pytest

from offsetstore import OffsetStore, TopicPartition
from offsetstore.errors import BrokerUnavailable, MissingPrivilege, StoreUnavailable
from offsetstore.monitoring.dashboard import snapshots as module
from offsetstore.monitoring.dashboard.serving import DashboardServer, Settings
from offsetstore.testing import StaticBroker
from tests.integration.pages.conftest import P0, P1, P2, give, rows_of, text_of
from tests.support.waiting import wait_until

pytestmark = pytest.mark.behaviour("DASH-2")


def test_a_first_snapshot_that_fails_is_told_and_taken_again(
    store: OffsetStore, broker: StaticBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    give(store, "billing", {P0: 4})

    def fail(*_arguments: object, **_options: object) -> None:
        raise RuntimeError

    with monkeypatch.context() as patched:
        patched.setattr(store, "lag", fail)
        server = DashboardServer(store, broker, Settings(port=0))
        server.snapshots.start()
        assert server.snapshots.latest().trouble == "RuntimeError"
    server.snapshots.take()
    assert server.snapshots.latest().trouble is None
    assert "billing" in server.snapshots.latest().groups
    server.snapshots.close()
    server.close()


def test_each_outage_is_logged_also_if_no_samples_may_be_written(
    store: OffsetStore,
    broker: StaticBroker,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    snapshots = module.Snapshots(store, broker)
    monkeypatch.setattr(store, "record_samples", Mock(side_effect=MissingPrivilege("the role may not write samples")))
    give(store, "billing", {P0: 4})
    for _ in range(2):
        broker.error = BrokerUnavailable("no answer")
        snapshots.take()
        snapshots.take()
        broker.error = None
        snapshots.take()
        snapshots.take()
    told = [record.getMessage() for record in caplog.records if record.name == module.__name__]
    assert [line.split(":")[0] for line in told] == ["no answer", "no samples for curves are kept", "no answer"]


def test_of_refreshes_that_wait_for_another_one_is_enough(
    store: OffsetStore, server: DashboardServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, go_on, taken = threading.Event(), threading.Event(), list[int]()

    def slow(*_arguments: object, **_options: object) -> None:
        taken.append(1)
        began.set()
        go_on.wait(30)
        raise StoreUnavailable("it was slow")

    monkeypatch.setattr(store, "lag", slow)
    with ThreadPoolExecutor(10) as threads:
        threads.submit(server.snapshots.refresh)
        assert began.wait(30)
        waiting = [threads.submit(server.snapshots.refresh) for _ in range(9)]
        wait_until(lambda: sum(one.done() for one in waiting) == 8)
        go_on.set()
        assert all(one.result(30) for one in waiting)
    assert len(taken) == 2


def test_a_snapshot_that_hangs_makes_the_last_one_an_old_one(
    store: OffsetStore, server: DashboardServer, client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    give(store, "billing", {P0: 4})
    server.snapshots.take()
    assert "Not up to date" not in client.get("/").text
    monkeypatch.setattr(module, "_LATE", timedelta(0))  # as if that was long ago
    page = client.get("/")
    assert "Not up to date. no answer from the database or Kafka since " in text_of(page)
    assert rows_of(page.text, "groups")[0].startswith("billing")


def test_without_kafka_lags_are_unknown_and_a_topic_of_which_it_does_not_tell_makes_them_a_part(
    store: OffsetStore, server: DashboardServer, client: httpx.Client, broker: StaticBroker
) -> None:
    refunds = TopicPartition("refunds", 0)
    broker.set_log(refunds, 0, 10)
    give(store, "billing", {P0: 4, P1: 10, P2: 10, refunds: 1})
    server.snapshots.take()
    assert " live 15 " in rows_of(client.get("/").text, "groups")[0]
    broker.unanswered["refunds"] = BrokerUnavailable("refunds has no leader")
    server.snapshots.take()
    assert " live ≥ 6 " in rows_of(client.get("/").text, "groups")[0]
    broker.error = BrokerUnavailable("no answer")
    server.snapshots.take()
    page = client.get("/")
    assert " live - - " in rows_of(page.text, "groups")[0]
    assert "Not up to date. no answer" in text_of(page)
    broker.error = None
    server.snapshots.take()
    assert "Not up to date" not in text_of(client.get("/"))


def test_the_list_says_in_a_few_words_what_is_worse_than_being_behind(
    store: OffsetStore, server: DashboardServer, client: httpx.Client, broker: StaticBroker
) -> None:
    give(store, "billing", {P0: 4}, stay=False)
    server.snapshots.take()
    assert "ahead" not in text_of(client.get("/"))
    broker.set_committed({P0: 9})
    server.snapshots.take()
    assert "billing Kafka's copies are 5 offsets ahead of the store" in text_of(client.get("/"))
    broker.set_log(P0, 6, 10)
    server.snapshots.take()
    assert "billing records were removed from Kafka unread" in text_of(client.get("/"))

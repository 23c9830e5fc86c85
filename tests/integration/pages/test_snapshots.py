"""The snapshot that all pages share: what becomes of it when something fails, hangs, or is known in part."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from unittest.mock import Mock

import pytest

from offsetstore import OffsetStore, TopicPartition
from offsetstore.errors import BrokerUnavailable, MissingPrivilege, StoreUnavailable
from offsetstore.monitoring.dashboard import snapshots as module
from offsetstore.monitoring.dashboard.serving import DashboardServer
from offsetstore.testing import StaticBroker
from tests.integration.pages.conftest import GROUP, P0, P1, P2, Site, give, rows_of, text_of
from tests.support.waiting import wait_until

pytestmark = pytest.mark.behaviour("DASH-2")


def test_a_first_snapshot_that_fails_is_told_and_taken_again(
    store: OffsetStore, broker: StaticBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    give(store, GROUP, {P0: 4})
    snapshots = module.Snapshots(store, broker)
    with monkeypatch.context() as patched:
        patched.setattr(store, "lag", Mock(side_effect=RuntimeError))
        snapshots.start()
        assert snapshots.latest().trouble == "RuntimeError"
    snapshots.take()
    snapshots.close()
    assert (snapshots.latest().trouble, snapshots.latest().groups.keys()) == (None, {GROUP})


def test_each_outage_is_logged_also_if_no_samples_may_be_written(
    store: OffsetStore, broker: StaticBroker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    snapshots = module.Snapshots(store, broker)
    monkeypatch.setattr(store, "record_samples", Mock(side_effect=MissingPrivilege("the role may not write samples")))
    give(store, GROUP, {P0: 4})
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


def test_a_snapshot_that_hangs_makes_the_last_one_an_old_one(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.give(GROUP, {P0: 4})
    assert "Not up to date" not in site.page()
    monkeypatch.setattr(module, "_LATE", timedelta(0))  # as if that was long ago
    page = site.page()
    assert "Not up to date. no answer from the database or Kafka since " in text_of(page)
    assert rows_of(page, "groups")[0].startswith("billing")


def test_without_kafka_lags_are_unknown_and_a_topic_of_which_it_does_not_tell_makes_them_a_part(site: Site) -> None:
    refunds = TopicPartition("refunds", 0)
    site.broker.set_log(refunds, 0, 10)
    site.give(GROUP, {P0: 4, P1: 10, P2: 10, refunds: 1})
    assert " live 15 " in site.rows("groups")[0]
    site.broker.unanswered["refunds"] = BrokerUnavailable("refunds has no leader")
    site.take()
    assert " live ≥ 6 " in site.rows("groups")[0]
    site.broker.error = BrokerUnavailable("no answer")
    site.take()
    assert " live - - " in site.rows("groups")[0]
    assert "Not up to date. no answer" in site.text()
    site.broker.error = None
    site.take()
    assert "Not up to date" not in site.text()


def test_the_list_says_in_a_few_words_what_is_worse_than_being_behind(site: Site) -> None:
    site.give(GROUP, {P0: 4}, stay=False)
    assert "ahead" not in site.text()
    site.broker.set_committed({P0: 9})
    site.take()
    assert "billing Kafka's copies are 5 offsets ahead of the store" in site.text()
    site.broker.set_log(P0, 6, 10)
    site.take()
    assert "billing records were removed from Kafka unread" in site.text()

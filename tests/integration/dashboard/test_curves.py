"""The curves of a group's page, in a browser: they are drawn, stay when they change, and can be read without seeing."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from offsetstore import OffsetRange, OffsetStore, TopicPartition
from offsetstore.monitoring.dashboard.serving import DashboardServer, Settings
from offsetstore.operations.people import people
from offsetstore.operations.samples import Sample, record_samples
from offsetstore.store.sessions import transaction
from offsetstore.testing import StaticBroker
from tests.support.browser import Pages

pytestmark = pytest.mark.needs_program("chromium")

P0 = TopicPartition("payments", 0)
_DRAWN = """() => [...document.querySelectorAll("figure.chart canvas")].map(canvas => {
  const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
  return pixels.some(value => value > 0);
})"""


@pytest.fixture
def store(offsetstore_database: str) -> Iterator[OffsetStore]:
    """An hour of samples."""
    with OffsetStore.connect(offsetstore_database) as store:
        claim = store.claim("billing", topics=["payments"], mirror_every=None)
        with store.transaction(claim) as tx:
            tx.lock({P0: OffsetRange(0, 4)})
            tx.advance({P0: OffsetRange(0, 4)})
        now = datetime.now(UTC)
        for number in range(360):
            at = now - timedelta(seconds=10 * (360 - number))
            sample = Sample(at=at, stored=number * 50, lag=59, batches=number, batch_seconds=number * 1.5, epoch=1)
            with transaction(store.database, name="a test") as session:
                record_samples(people(session), {"billing": sample})
        yield store


@pytest.fixture
def server(store: OffsetStore) -> Iterator[DashboardServer]:
    broker = StaticBroker.with_topics({"payments": 3}, end=10)
    now = int(time.time() * 1000)
    broker.records[P0] = {offset: now - (10 - offset) * 60_000 for offset in range(10)}
    with DashboardServer(store, broker, Settings(port=0)) as server:
        yield server


@pytest.mark.behaviour("DASH-2", "DASH-5")
def test_curves_change_without_being_made_anew(store: OffsetStore, server: DashboardServer, pages: Pages) -> None:
    page = pages.open(f"{server.url}group?group=billing", times=10)
    assert page.evaluate(_DRAWN) == [True, True, True]
    for label in ("Lag: now 6, peak 59.", "Records per second: now ", "Seconds per batch: now "):
        assert page.get_by_role("img", name=label).count() == 1
    page.evaluate("document.querySelectorAll('canvas').forEach((canvas, at) => canvas.dataset.at = at)")
    server.snapshots.close()
    lag = server.snapshots.latest().lag
    assert lag is not None
    just_after = lag.store.at + timedelta(microseconds=1)  # in the slot up to which the page draws
    sample = Sample(at=just_after, stored=20_000, lag=100, epoch=1)
    with transaction(store.database, name="a test") as session:
        record_samples(people(session), {"billing": sample})
    page.get_by_text("Lag: now 100, peak 100.").wait_for()
    kept = page.evaluate("[...document.querySelectorAll('canvas')].map(canvas => canvas.dataset.at)")
    assert kept == ["0", "1", "2"]

"""A partition's page: its numbers, its metadata, the decisions about it and its dead letters."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from urllib.parse import urlencode

import httpx
import pytest

from offsetstore import Claim, OffsetRange, OffsetStore, TopicPartition
from offsetstore.monitoring.dashboard.serving import DashboardServer
from offsetstore.offsets import CommittedOffset, Watermarks
from offsetstore.protocol.letters import LetterError, NewLetter, Payload
from offsetstore.store.sessions import transaction
from offsetstore.testing import StaticBroker
from tests.integration.pages.conftest import P0, P1, P2, advance, rows_of, text_of

pytestmark = pytest.mark.behaviour("DASH-1")

GROUP = "billing"


@pytest.fixture
def claim(store: OffsetStore, broker: StaticBroker, server: DashboardServer) -> Iterator[Claim]:
    """A job that has stored 4, 10 and 10."""
    claim = store.claim(GROUP, broker, mirror_every=None)
    advance(store, claim, {P0: OffsetRange(0, 4), P1: OffsetRange(0, 10), P2: OffsetRange(0, 10)})
    server.snapshots.take()
    yield claim
    claim.close()


def show(client: httpx.Client, tp: TopicPartition = P0) -> str:
    answer = client.get(f"/partition?{urlencode({'group': GROUP, 'topic': tp.topic, 'partition': tp.partition})}")
    assert answer.status_code == 200
    return answer.text


@pytest.mark.usefixtures("claim")
def test_it_has_all_numbers(server: DashboardServer, client: httpx.Client, broker: StaticBroker) -> None:
    payments = broker.current.topics["payments"]
    broker.current = replace(
        broker.current,
        topics={"payments": replace(payments, partitions={**payments.partitions, 0: Watermarks(1, 10)})},
        committed={P0: CommittedOffset(3)},
    )
    broker.last_stable[P0] = 8
    server.snapshots.take()
    text = text_of(show(client))
    assert "Stored 4 Lag 6 Behind" in text
    assert "Headroom 3 Log begins 1 Log ends 10" in text
    assert "Last stable offset 8: 2 offsets are behind an open transaction" in text
    assert "Committed in Kafka 3 Last advance" in text
    assert "Topic id, stored payments-id Topic id, Kafka's payments-id" in text
    assert "Epoch 1 " in text


@pytest.mark.usefixtures("claim")
def test_a_time_that_is_a_bound_is_marked(server: DashboardServer, client: httpx.Client, broker: StaticBroker) -> None:
    del broker.records[P0][4], broker.records[P0][5]  # compacted, and the next record may not be read
    broker.may_read = False
    server.snapshots.take()
    page = show(client)
    assert "Behind ≤ 7m" in text_of(page)
    assert 'title="At most: the record may be younger"' in page


@pytest.mark.usefixtures("claim")
def test_a_loss_and_a_pin_are_told_in_words(
    store: OffsetStore, server: DashboardServer, client: httpx.Client, broker: StaticBroker
) -> None:
    payments = broker.current.topics["payments"]
    logs = {**payments.partitions, 0: Watermarks(7, 10)}
    broker.current = replace(broker.current, topics={"payments": replace(payments, partitions=logs)})
    store.reset(GROUP, {P0: 2}, reason="again")
    server.snapshots.take()
    text = text_of(show(client))
    assert "Stored 2 pinned" in text
    assert "Headroom -5 records were removed unread" in text


@pytest.mark.usefixtures("claim")
def test_a_partition_that_no_job_reads_says_so(
    server: DashboardServer, client: httpx.Client, broker: StaticBroker
) -> None:
    broker.current = type(broker).with_topics({"payments": 4}, end=10).current
    server.snapshots.take()
    text = text_of(show(client, TopicPartition("payments", 3)))
    assert "Stored none: no job of the group reads the partition yet" in text
    assert "Log ends 10" in text


@pytest.mark.behaviour("DASH-4")
@pytest.mark.usefixtures("claim")
def test_metadata_are_inert_visible_and_cut(store: OffsetStore, client: httpx.Client) -> None:
    store.write_metadata(GROUP, P0, {"at": "</pre><script>\u202eabc"}, reason="a test")
    page = show(client)
    [pre] = re.findall(r"<pre[^>]*>(.*?)</pre>", page)
    assert "<" not in pre
    assert "\u202e" not in page
    assert text_of(pre) == '{"at":"</pre><script>\\u202eabc"}'
    store.write_metadata(GROUP, P0, "x" * 100_000, reason="a test")
    page = show(client)
    assert len(page) < 40_000
    assert "And 80,002 characters more" in text_of(page)


@pytest.mark.usefixtures("claim")
def test_decisions_about_it_are_listed_the_newest_first(store: OffsetStore, client: httpx.Client) -> None:
    store.write_metadata(GROUP, P1, "other", reason="of another partition")
    for number in range(60):
        store.write_metadata(GROUP, P0, number, reason=f"reason {number} <i>", actor="ana\u202e")
    page = show(client)
    rows = rows_of(page, "decisions")
    assert len(rows) == 50
    assert re.search(r"UTC metadata 4 4 ana\\u202e as postgres reason 59 <i>$", rows[0])
    assert rows[-1].endswith("reason 10 <i>")
    assert "<i>" not in page
    assert "These are the last 50." in text_of(page)
    assert "of another partition" not in page


def write_letters(store: OffsetStore, count: int) -> None:
    error = LetterError("RowsRefused", "no <b>", constraint="positive")
    payload = Payload(None, b"SECRET", None, None, None)
    letters = [NewLetter(P0, offset, "refused", error, 3, None, payload) for offset in range(count)]
    with transaction(store.database, name="a test") as session:
        session.share_group(GROUP)
        session.lock_group_partitions(GROUP)
        session.write_letters(GROUP, letters)


@pytest.mark.usefixtures("claim")
def test_its_dead_letters_are_listed_without_their_contents(store: OffsetStore, client: httpx.Client) -> None:
    write_letters(store, 25)
    page = show(client)
    rows = rows_of(page, "letters")
    assert len(rows) == 20
    assert all(re.fullmatch(r"\d+ dead refused RowsRefused, positive 3 .* UTC", row) for row in rows)
    assert "More dead letters" in page
    assert "SECRET" not in page
    assert rows_of(show(client, P1), "letters") == ["There are none: each record that was read is in the results."]


@pytest.mark.usefixtures("claim")
def test_a_partition_that_there_is_not_is_not_found(client: httpx.Client) -> None:
    for query in ("", "&topic=payments", "&topic=payments&partition=9", "&topic=refunds&partition=0", "&partition=x"):
        assert client.get(f"/partition?group={GROUP}{query}").status_code == 404, query

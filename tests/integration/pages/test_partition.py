"""A partition's page: its numbers, its metadata, the decisions about it and its dead letters."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from offsetstore import OffsetRange, TopicPartition
from offsetstore.offsets import CommittedOffset, Watermarks
from offsetstore.protocol.letters import LetterError, NewLetter, Payload
from tests.integration.pages.conftest import GROUP, P0, P1, P2, Site, advance, rows_of, text_of

pytestmark = pytest.mark.behaviour("DASH-1")

RANGES = {P0: OffsetRange(0, 4), P1: OffsetRange(0, 10), P2: OffsetRange(0, 10)}
ERROR = LetterError("RowsRefused", "no <b>", constraint="positive")
LETTERS = [
    NewLetter(P0, offset, "refused", ERROR, 3, None, Payload(None, b"SECRET", None, None, None))
    for offset in range(4, 29)
]


@pytest.fixture
def site(site: Site) -> Site:
    """With a job that has stored 4, 10 and 10."""
    advance(site.store, site.store.claim(GROUP, site.broker, mirror_every=None), RANGES)
    site.take()
    return site


def show(site: Site, tp: TopicPartition = P0) -> str:
    return site.page("/partition", topic=tp.topic, partition=tp.partition)


def test_it_has_all_numbers(site: Site) -> None:
    payments = site.broker.current.topics["payments"]
    site.broker.current = replace(
        site.broker.current,
        topics={"payments": replace(payments, partitions={**payments.partitions, 0: Watermarks(1, 10)})},
        committed={P0: CommittedOffset(3)},
    )
    site.broker.last_stable[P0] = 8
    site.take()
    text = text_of(show(site))
    assert "Stored 4 Lag 6 Behind" in text
    assert "Headroom 3 Log begins 1 Log ends 10" in text
    assert "Last stable offset 8: 2 offsets are behind an open transaction" in text
    assert "Committed in Kafka 3 Last advance" in text
    assert "Topic id, stored payments-id Topic id, Kafka's payments-id" in text
    assert "Epoch 1 " in text

    del site.broker.records[P0][4], site.broker.records[P0][5]  # compacted, and the next record may not be read
    site.broker.may_read = False
    site.take()
    page = show(site)
    assert "Behind ≤ 7m" in text_of(page)
    assert 'title="At most: the record may be younger"' in page


def test_a_loss_a_pin_and_a_partition_that_no_job_reads_are_told_in_words(site: Site) -> None:
    payments = site.broker.current.topics["payments"]
    logs = {**payments.partitions, 0: Watermarks(7, 10), 3: Watermarks(0, 10)}
    site.broker.current = replace(site.broker.current, topics={"payments": replace(payments, partitions=logs)})
    site.store.reset(GROUP, {P0: 2}, reason="again")
    site.take()
    text = text_of(show(site))
    assert "Stored 2 pinned" in text
    assert "Headroom -5 records were removed unread" in text
    text = text_of(show(site, TopicPartition("payments", 3)))
    assert "Stored none: no job of the group reads the partition yet" in text
    assert "Log ends 10" in text
    for wrong in (
        {},
        {"topic": "payments"},
        {"topic": "payments", "partition": 9},
        {"topic": "refunds", "partition": 0},
        {"partition": "x"},
    ):
        assert site.get("/partition", **wrong).status_code == 404, wrong


@pytest.mark.behaviour("DASH-4")
def test_metadata_are_inert_visible_and_cut(site: Site) -> None:
    site.store.write_metadata(GROUP, P0, {"at": "</pre><script>\u202eabc"}, reason="a test")
    page = show(site)
    [pre] = re.findall(r"<pre[^>]*>(.*?)</pre>", page)
    assert "<" not in pre
    assert "\u202e" not in page
    assert text_of(pre) == '{"at":"</pre><script>\\u202eabc"}'
    site.store.write_metadata(GROUP, P0, "x" * 100_000, reason="a test")
    page = show(site)
    assert len(page) < 40_000
    assert "And 80,002 characters more" in text_of(page)


def test_decisions_and_dead_letters_are_listed_the_letters_without_their_contents(site: Site) -> None:
    advance(site.store, site.claim(), {P0: OffsetRange(4, 29)}, LETTERS)
    site.store.write_metadata(GROUP, P1, "other", reason="of another partition")
    for number in range(60):
        site.store.write_metadata(GROUP, P0, number, reason=f"reason {number} <i>", actor="ana\u202e")
    page = show(site)
    rows = rows_of(page, "decisions")
    assert len(rows) == 50
    assert re.search(r"UTC metadata 29 29 ana\\u202e as postgres reason 59 <i>$", rows[0])
    assert rows[-1].endswith("reason 10 <i>")
    assert "<i>" not in page
    assert "These are the last 50." in text_of(page)
    assert "of another partition" not in page

    rows = rows_of(page, "letters")
    assert len(rows) == 20
    assert all(re.fullmatch(r"\d+ dead refused RowsRefused, positive 3 .* UTC", row) for row in rows)
    assert "More dead letters" in page
    assert "SECRET" not in page
    assert rows_of(show(site, P1), "letters") == ["There are none: each record that was read is in the results."]

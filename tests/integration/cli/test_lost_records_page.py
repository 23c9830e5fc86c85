"""docs/lost-records.md: its commands run as they stand there, and the job starts again."""

from __future__ import annotations

from contextlib import closing
from uuid import UUID

import pytest

from offsetstore import Broker, OffsetStore, TopicPartition
from offsetstore.errors import LogTruncated
from offsetstore.kafka.admin import NewRecord, produce
from offsetstore.offsets import EpochPair, StoredOffset, Token, Watermarks
from offsetstore.protocol.log_evidence import look
from offsetstore.store.sessions import transaction
from offsetstore.testing.fixtures import NewTopic
from tests.integration.cli.conftest import DOCS, Here, advance, blocks, words


def test_a_partition_that_lost_records_is_reset_and_its_job_starts_where_the_logs_part(
    here: Here, offsetstore_database: str, servers: str, offsetstore_topic: NewTopic, offsetstore_group: str
) -> None:
    tp = TopicPartition(offsetstore_topic(1), 0)
    produce(servers, tp.topic, [NewRecord(b"x", partition=0)] * 80)
    broker = Broker({"bootstrap.servers": servers})
    names = {"billing": offsetstore_group, "payments:0": f"{tp.topic}:0", "localhost:9092": servers}
    with OffsetStore.connect(offsetstore_database) as store, closing(broker):
        with store.claim(offsetstore_group, broker, topics=[tp.topic], mirror_every=None) as claim:
            advance(store, claim, {tp: 60})
        with transaction(store.database, name="a claim before") as session:
            session.lock_partitions(offsetstore_group, [tp])
            token = store.offsets(offsetstore_group)[tp].token
            session.write_suspects(offsetstore_group, token, {tp: "the log ended at 50, below the stored offset 60"})
        with pytest.raises(LogTruncated, match="lost records"):
            store.claim(offsetstore_group, broker, topics=[tp.topic], mirror_every=None)

        for _, text in blocks("lost-records.md", "console"):
            here(*(names.get(word, word) for word in words(text)))

        with store.claim(offsetstore_group, broker, topics=[tp.topic], mirror_every=None) as claim:
            assert claim.starting is not None
            assert claim.starting.offsets == {tp: 50}


def test_the_page_tells_a_cut_that_is_known_from_an_end_that_may_have_grown_since() -> None:
    """A log that was cut at 30 and has grown to 50 ends at 50, too."""
    page = (DOCS / "lost-records.md").read_text(encoding="utf-8")
    tp = TopicPartition("payments", 0)
    row = StoredOffset(60, Token(1, UUID(int=1)), pair=EpochPair(60, 4))
    ended = look({tp: row}, {tp: Watermarks(0, 50, high=50, leader_epoch=5)}, lambda _: {tp: 30}).lost[tp]
    parted = look({tp: row}, {tp: Watermarks(0, 80, high=80, leader_epoch=5)}, lambda _: {tp: 50}).lost[tp]
    assert ("ended at 50" in ended, "30" in ended, "parts at offset 50" in parted) == (True, False, True)
    assert "`parts at offset 50` names the cut. **`ended at 50` does not**" in page

"""Large metadata that an advance keeps are not written again."""

from __future__ import annotations

import pytest

from offsetstore import OffsetRange, OffsetStore, TopicPartition
from offsetstore.testing import StaticBroker
from tests.integration.conftest import Query

P0 = TopicPartition("payments", 0)
TOAST = """
SELECT pg_relation_size(reltoastrelid) FROM pg_class WHERE oid = 'kafka_partitions'::regclass
"""


@pytest.mark.behaviour("META-4", "META-11")
def test_a_megabyte_that_is_kept_stays_where_it_is(offsetstore_database: str, query: Query) -> None:
    with OffsetStore.connect(offsetstore_database) as store:
        claim = store.claim("billing", StaticBroker.with_topics({"payments": 1}, end=1000), mirror_every=None)
        # Random enough that it can't be compressed to much less.
        before = 0
        text = "".join(chr(0x4E00 + number * 7919 % 20_000) for number in range(340_000))
        for until in range(1, 101):
            with store.transaction(claim) as tx:
                tx.lock({P0: OffsetRange(until - 1, until)})
                if until == 1:
                    tx.advance(tx.ranges, metadata=text)
                    continue
                tx.finish(tx.ranges)
            if until == 2:
                [(before,)] = query(TOAST)
        [(after,)] = query(TOAST)

    assert before > 100_000
    assert after == before
    assert query("SELECT next_offset, length(metadata) FROM kafka_partitions") == [(100, len(text) + 2)]

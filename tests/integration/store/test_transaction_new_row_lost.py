"""A COMMIT that gets lost on the way, of the transaction that made a partition's row: nobody else can see that row."""

from __future__ import annotations

import pytest

from offsetstore import OffsetRange, OffsetStore, Retries, Timeouts, TopicPartition
from offsetstore.errors import TransactionLost
from offsetstore.testing import StaticBroker
from tests.integration.conftest import Query
from tests.integration.transacting import GROUP, process
from tests.support.proxy import CommitProxy, Lost

NEW = TopicPartition("payments", 7)
RANGE = OffsetRange(40, 43)


@pytest.mark.behaviour("TX-10", "TX-11")
def test_the_old_transaction_has_ended_before_it_is_said_to_be_lost(
    offsetstore_database: str, results: str, query: Query
) -> None:
    """The server still waits for the COMMIT: until its transaction is ended, the next one would wait for the row."""
    retries = Retries(attempts=1)
    with (
        CommitProxy(offsetstore_database) as proxy,
        OffsetStore.connect(proxy.url, timeouts=Timeouts(lock=0.2, commit=4), retries=retries) as store,
    ):
        claim = store.claim(GROUP, StaticBroker.with_topics({"payments": 1}, end=100))
        with proxy.losing(Lost.CONNECTION), pytest.raises(TransactionLost):
            process(store, claim, NEW, range_=RANGE)

        process(store, claim, NEW, range_=RANGE)

        assert query("SELECT record FROM results ORDER BY 1") == [(40,), (41,), (42,)]
        assert store.offsets(GROUP)[NEW].next_offset == 43

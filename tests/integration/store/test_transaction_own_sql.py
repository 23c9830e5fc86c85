"""SQL of the job's own, inside its transaction, that touches the rows which `lock` has locked for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from offsetstore import OffsetRange, OffsetStore
from offsetstore.errors import StaleClaim
from offsetstore.testing import StaticBroker
from tests.integration.transacting import GROUP, P0, P1, lock, write

if TYPE_CHECKING:
    from offsetstore import Claim
    from tests.integration.conftest import Query


@pytest.fixture
def claim(store: OffsetStore, results: str) -> Claim:
    return store.claim(GROUP, StaticBroker.with_topics({"payments": 2}, end=100))


@pytest.mark.behaviour("TX-2", "TX-3")
@pytest.mark.parametrize("column", ["next_offset = 2", "epoch = epoch + 1", "claim_id = gen_random_uuid()"])
def test_a_row_that_was_changed_under_its_own_lock_takes_results_and_offsets_with_it(
    store: OffsetStore, claim: Claim, query: Query, column: str
) -> None:
    """No other transaction can do that: the lock is ours. Only the comparison inside the UPDATE sees it."""

    def job() -> None:
        with store.transaction(claim) as tx:
            left = lock(tx, P0, P1, range_=OffsetRange(0, 3))
            write(tx, [0, 1, 2])
            tx.connection.exec_driver_sql(f"UPDATE kafka_partitions SET {column} WHERE partition = 1")
            tx.advance(left)

    with pytest.raises(StaleClaim, match="changed although they were locked") as caught:
        job()

    assert (caught.value.found, caught.value.expected) == ("1 unchanged rows", "2")
    assert query("SELECT * FROM results") == []
    assert {row.next_offset for row in store.offsets(GROUP).values()} == {0}

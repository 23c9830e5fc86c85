"""How many rows PostgreSQL expects. If it expects one, it may compare the whole list of partitions with every row."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from offsetstore import OffsetStore
from offsetstore.postgres import statements
from tests.integration.conftest import Query
from tests.integration.store.meeting import broker
from tests.integration.transacting import GROUP
from tests.support.plans import expected_plan

COUNT = 1000
PARTITIONS = {"topics": ["payments"] * COUNT, "partitions": list(range(COUNT))}
TOKEN = {"epoch": 2, "claim_id": UUID(int=1)}
ADVANCE = {
    **TOKEN,
    "froms": [0] * COUNT,
    "untils": [1] * COUNT,
    "texts": None,
    "text_numbers": None,
    "transaction_id": UUID(int=2),
    "moved_before": 0,
}
STATEMENTS: dict[str, dict[str, Any]] = {
    statements.LOCK_PARTITIONS: {},
    statements.ADVANCE: ADVANCE,
    statements.UNPIN: TOKEN,
    statements.CONTEST: TOKEN,
}


@pytest.mark.parametrize("group", [GROUP, "new"])
def test_a_claim_that_is_newer_than_the_statistics_is_expected_to_have_rows(
    store: OffsetStore, query: Query, group: str
) -> None:
    for known in (GROUP, "another"):
        store.claim(known, broker(COUNT), mirror_every=None)
    query("ANALYZE kafka_partitions")
    store.claim(group, broker(COUNT), mirror_every=None)

    for statement, values in STATEMENTS.items():
        plan = expected_plan(store, statement, {"group": group, **PARTITIONS, **values})
        [expected] = [node["Plan Rows"] for node in plan if "Scan on kafka_partitions" in scan(node)]
        assert expected > COUNT / 10, statement


def scan(node: dict[str, Any]) -> str:
    return f"{node['Node Type']} on {node.get('Relation Name')}"

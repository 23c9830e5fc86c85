"""How a decision that the pages lead to finds its letters among many: by an index, and a bounded number."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pytest

from offsetstore import OffsetStore
from offsetstore.local.postgres.server import PostgresServer
from offsetstore.monitoring.dashboard.views.letters import ON_A_PAGE, WITHIN
from offsetstore.operations.letters import MOST
from offsetstore.postgres import stored_letters
from offsetstore.testing.fixtures import copy_database
from tests.integration.dashboard.conftest import GROUP
from tests.support.plans import executed_plan

pytestmark = pytest.mark.behaviour("DASH-1")

MANY = 50_000


@pytest.fixture(scope="module")
def template(offsetstore_postgres: PostgresServer, offsetstore_template: str) -> Iterator[str]:
    """Two groups with 50,000 letters each; one in ten is settled, and one of the oldest has an error of its own."""
    name = f"crowded_{uuid4().hex[:12]}"
    copy_database(offsetstore_postgres, name, template=offsetstore_template)
    fill = f"""
        INSERT INTO dead_letters (consumer_group, topic, partition, record_offset, state, cause, payload, error_class,
                                  constraint_name, attempts, created_at)
        SELECT g, 'payments', n % 10, n, CASE n % 10 WHEN 0 THEN 'replayed' WHEN 1 THEN 'requested' ELSE 'dead' END,
               'refused', 'kept', 'RowsRefused', CASE WHEN n = 2 THEN 'rare' ELSE 'common' END, 1,
               TIMESTAMPTZ '2025-03-01 00:00Z' + n * INTERVAL '1 second'
        FROM generate_series(1, {MANY}) AS n, (VALUES ('{GROUP}'), ('another')) AS groups (g)
    """
    for statement in (fill, "ANALYZE dead_letters"):
        offsetstore_postgres.sql(statement, database=name)
    yield name
    offsetstore_postgres.drop_database(name)


@pytest.fixture
def offsetstore_database(offsetstore_postgres: PostgresServer, template: str) -> Iterator[str]:
    name = f"test_{uuid4().hex[:12]}"
    yield copy_database(offsetstore_postgres, name, template=template)
    offsetstore_postgres.drop_database(name)


def of(*states: str, **chosen: object) -> dict[str, object]:
    names = ("cause", "topic", "partition", "error_class", "sqlstate", "table", "constraint", "column")
    after = ("after_at", "after_topic", "after_partition", "after_offset", "after_topic_id")
    fixed = {"group": GROUP, "states": list(states), "limit": ON_A_PAGE, "within": WITHIN, "up_to": WITHIN}
    return {**dict.fromkeys((*names, *after)), **fixed, **chosen}


CHOOSE = {"payloads": ["kept"], "limit": MOST + 1}
ERROR = {"cause": "refused", "error_class": "RowsRefused", "sqlstate": "", "table": "", "column": ""}


@pytest.mark.parametrize(
    ("chosen", "index", "most"),
    [
        ({**ERROR, "constraint": "rare"}, "dead_letters_error_idx", 1),
        ({"constraint": "rare"}, "dead_letters_error_idx", 1),
        # In the order in which letters are locked, until there are enough; two of ten partitions have no dead ones.
        ({**ERROR, "constraint": "common"}, "dead_letters_pkey", MANY * 2 // 10 + MOST + 100),
    ],
    ids=["rare", "rare, by its constraint", "common"],
)
def test_a_decision_about_an_error_locks_the_letters_that_it_decides_about(
    store: OffsetStore, chosen: dict[str, object], index: str, most: int
) -> None:
    steps = executed_plan(store, stored_letters.LOCK_FITTING, of("dead", **CHOOSE, **chosen))
    scans = [node for node in steps if node.get("Relation Name") == "dead_letters"]

    assert [node.get("Index Name") for node in scans] == [index]
    assert sum(node["Actual Rows"] + node.get("Rows Removed by Filter", 0) for node in scans) <= most

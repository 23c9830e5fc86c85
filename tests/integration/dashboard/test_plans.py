"""How the pages' queries find their rows among many, with the dashboard's role: by an index, and a bounded number."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest

from offsetstore import OffsetStore
from offsetstore.local.postgres.server import PostgresServer
from offsetstore.monitoring.dashboard.views import history
from offsetstore.monitoring.dashboard.views.letters import ON_A_PAGE, WITHIN
from offsetstore.operations.letters import MOST
from offsetstore.postgres import statements, stored_letters
from offsetstore.protocol.letters import OPEN
from offsetstore.protocol.stored_letters import STATES
from offsetstore.testing.fixtures import copy_database
from tests.integration.conftest import Query
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


@pytest.mark.parametrize(
    ("statement", "values"),
    [
        (stored_letters.COUNT_LETTERS_UP_TO, of(*STATES)),
        (stored_letters.LETTER_ERRORS_WITHIN, of(*OPEN)),
        (stored_letters.LIST_LETTERS_WITHIN, of(*OPEN, constraint="rare")),
        (stored_letters.LIST_LETTERS_WITHIN, of(*STATES, topic="payments", partition=3)),
    ],
    ids=["counts", "errors", "a rare error", "a partition"],
)
def test_a_query_about_letters_looks_at_so_many_of_each_state_and_no_more(
    reader: OffsetStore, statement: str, values: dict[str, Any]
) -> None:
    scans = [node for node in executed_plan(reader, statement, values) if node.get("Relation Name") == "dead_letters"]

    assert {node.get("Index Name") for node in scans} == {"dead_letters_list_idx"}
    read = sum(node["Actual Rows"] * node["Actual Loops"] for node in scans)
    assert 0 < read <= (WITHIN + 2) * len(values["states"])


CHOOSE = {"payloads": ["kept"], "limit": MOST + 1}
ERROR = {"cause": "refused", "error_class": "RowsRefused", "sqlstate": "", "table": "", "column": ""}


@pytest.mark.parametrize("statement", [stored_letters.CHOOSE_FITTING, stored_letters.LOCK_FITTING])
@pytest.mark.parametrize(
    ("chosen", "index", "most"),
    [
        ({**ERROR, "constraint": "rare"}, "dead_letters_error_idx", 1),
        ({"constraint": "rare"}, "dead_letters_error_idx", 1),
        ({**ERROR, "constraint": "absent"}, "dead_letters_error_idx", 0),
        # In the order in which letters are locked, until there are enough; two of ten partitions have no dead ones.
        ({**ERROR, "constraint": "common"}, "dead_letters_pkey", MANY * 2 // 10 + MOST + 100),
    ],
    ids=["rare", "rare, by its constraint", "absent", "common"],
)
def test_a_decision_about_an_error_reads_the_letters_that_it_decides_about(  # noqa: PLR0917
    reader: OffsetStore, store: OffsetStore, statement: str, chosen: dict[str, object], index: str, most: int
) -> None:
    steps = executed_plan(store, statement, of("dead", **CHOOSE, **chosen))
    scans = [node for node in steps if node.get("Relation Name") == "dead_letters"]

    assert [node.get("Index Name") for node in scans] == [index]
    assert sum(node["Actual Rows"] + node.get("Rows Removed by Filter", 0) for node in scans) <= most


@pytest.mark.parametrize("constraint", ["rare", "common", None])
def test_letters_of_an_error_without_their_records_are_counted_by_the_index(
    reader: OffsetStore, query: Query, constraint: str | None
) -> None:
    query("UPDATE dead_letters SET payload = 'left out' WHERE record_offset IN (2, 3)")
    query("ANALYZE dead_letters")
    steps = executed_plan(reader, stored_letters.COUNT_WITHOUT_PAYLOAD, of("dead", **ERROR, constraint=constraint))
    scans = [node for node in steps if node.get("Relation Name") == "dead_letters"]

    assert [node.get("Index Name") for node in scans] == ["dead_letters_error_idx"]
    assert 1 <= sum(node["Actual Rows"] + node.get("Rows Removed by Filter", 0) for node in scans) <= 2


def test_one_letter_is_found_by_its_key(reader: OffsetStore) -> None:
    key = {"topics": ["payments"], "partitions": [3], "offsets": [13], "topic_ids": [None]}
    steps = executed_plan(reader, stored_letters.LETTER, {"group": GROUP, **key})
    scans = [node for node in steps if node.get("Relation Name") == "dead_letters"]

    assert {node.get("Index Name") for node in scans} == {"dead_letters_pkey"}
    assert sum(node["Actual Rows"] * node["Actual Loops"] for node in scans) <= 2


def test_a_rare_error_is_found_in_the_end(reader: OffsetStore) -> None:
    after, looks = None, 0
    while True:
        page = reader.letters(GROUP, state="dead", constraint="rare", after=after, within=WITHIN)
        after, looks = page.next, looks + 1
        if page.letters or after is None:
            break
    assert [letter.offset for letter in page.letters] == [2]
    assert looks == MANY * 8 // 10 // WITHIN


def test_a_page_of_a_long_history_is_read_by_the_index_and_no_more_than_that(query: Query, reader: OffsetStore) -> None:
    query(f"""
        INSERT INTO offset_history (consumer_group, topic, partition, event, from_offset, to_offset, epoch, claim_id,
                                    actor, reason)
        SELECT g, 'payments', n % 100, CASE n % 10 WHEN 0 THEN 'reset' ELSE 'adopt' END, 0, n, 1, gen_random_uuid(),
               'ana', 'ticket 17'
        FROM generate_series(1, {MANY}) AS n, (VALUES ('{GROUP}'), ('another')) AS groups (g)
    """)
    query("ANALYZE offset_history")
    most = history.ON_A_PAGE + 1
    middle = reader.history(GROUP, limit=MANY // 2)[0].id
    for before in (None, middle):
        for events, looked_at in ((None, most), (["reset"], most * 20)):
            asked = {"since": None, "events": events, "topic": None, "partition": None}
            values = {"group": GROUP, **asked, "limit": most, "before": before}
            steps = executed_plan(reader, statements.HISTORY, values)
            scans = [node for node in steps if node.get("Relation Name") == "offset_history"]
            assert [node["Node Type"] for node in scans] == ["Index Scan"]
            assert scans[0]["Actual Rows"] == most
            assert scans[0].get("Rows Removed by Filter", 0) < looked_at

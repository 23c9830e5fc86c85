"""docs/deploy.md, roles.md, starting.md and failover.md: their commands and code run as they stand there."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from offsetstore import OffsetStore, StartPolicy, TopicPartition
from offsetstore.errors import StoreRewound
from offsetstore.offsets import CommittedOffset
from offsetstore.protocol.store_facts import Stamp
from offsetstore.testing import StaticBroker
from tests.integration.cli.conftest import Here, Run, advance, blocks, words
from tests.integration.conftest import Query

GROUP = "billing"
TP = TopicPartition("payments", 0)
PRIVILEGES = """
SELECT table_schema || '.' || table_name, string_agg(privilege_type, ', ' ORDER BY privilege_type)
FROM information_schema.role_table_grants WHERE grantee = '{role}' AND table_name IN ('orders', 'totals', 'samples')
GROUP BY 1 ORDER BY 1
"""


def test_deploy_md_migrates_checks_and_prints_the_sql(run: Run, offsetstore_empty_database: str) -> None:
    [(_, text)] = blocks("deploy.md", "console")
    here = Here(run, offsetstore_empty_database)
    migrated, checked, sql = (here(*words(line)) for line in text.splitlines())
    assert migrated.startswith("Migrated from no tables to revision ")
    assert checked.startswith("The tables are at revision ")
    assert "CREATE TABLE kafka_partitions" in sql


@pytest.fixture
def roles(offsetstore_database: str, query: Query) -> Iterator[dict[str, str]]:
    """The page's roles and tables of results; roles are the server's, so they have names of this test's own."""
    names = {name: f"{name}_of_{offsetstore_database.rpartition('/')[2]}" for name in ("billing_job", "grafana")}
    for name in names.values():
        query(f"CREATE ROLE {name} LOGIN")
    query("CREATE SCHEMA app")
    query("CREATE TABLE app.orders (id bigserial, n bigint)")
    query("CREATE TABLE app.totals (n bigint PRIMARY KEY, total bigint)")
    yield names
    for name in names.values():
        query(f"DROP OWNED BY {name}")
        query(f"DROP ROLE {name}")


def test_what_roles_md_prints_for_psql_lets_the_job_write_its_tables_and_the_dashboard_its_samples(
    here: Here, roles: dict[str, str], offsetstore_database: str, query: Query
) -> None:
    [(_, text)] = blocks("roles.md", "console")
    command, piped, psql = text.partition("|")
    assert (piped, shlex.split(psql)) == ("|", ["psql", "-1", "-v", "ON_ERROR_STOP=1", "sales"])
    printed = here(*(roles.get(word, word) for word in words(command)))
    with psycopg.connect(offsetstore_database) as as_psql:
        as_psql.execute(printed.encode())

    assert query(PRIVILEGES.format(role=roles["billing_job"])) == [
        ("app.orders", "INSERT"),
        ("app.totals", "INSERT, SELECT, UPDATE"),
        ("public.samples", "SELECT, UPDATE"),
    ]
    assert query(PRIVILEGES.format(role=roles["grafana"])) == [("public.samples", "INSERT, SELECT, UPDATE")]


@pytest.mark.parametrize("page", ["starting.md", "failover.md"])
def test_the_policy_of_the_page_starts_a_job_whose_database_went_back_at_the_stored_offset(
    offsetstore_database: str, page: str
) -> None:
    broker = StaticBroker.with_topics({"payments": 1}, end=100)
    [(_, block)] = blocks(page, "python")
    with OffsetStore.connect(offsetstore_database) as store:
        advance(store, store.claim(GROUP, broker, mirror_every=None), {TP: 40})
        broker.commit(GROUP, {TP: CommittedOffset(60, Stamp(store.identity().store_id, 1).text())})
        with pytest.raises(StoreRewound):
            store.claim(GROUP, broker, mirror_every=None)

        names: dict[str, Any] = {"store": store, "broker": broker, "StartPolicy": StartPolicy}
        exec(block, names)  # noqa: S102 - the page's own words
        with names["claim"] as claim:
            assert claim.starting.offsets == {TP: 40}

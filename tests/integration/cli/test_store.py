"""``offsetstore store``, as docs/failover.md tells it: what a database is that is another one than before."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from offsetstore import OffsetStore, Relay, TopicPartition
from offsetstore.errors import ForeignStore, OutboxUncertain, StoreMoved
from offsetstore.local.postgres import PostgresServer
from offsetstore.offsets import CommittedOffset
from offsetstore.protocol.starting import StartPolicy
from offsetstore.protocol.store_facts import Stamp
from offsetstore.store.claim import ClaimRequest
from offsetstore.store.fleet import join
from offsetstore.testing import StaticBroker
from offsetstore.text import documentation
from tests.integration.cli.conftest import Here, Run, advance, blocks, words
from tests.support.outbox import numbered, put
from tests.support.relayed import FakeKafka

RECOVERY = documentation("relay-recovery")

GROUP = "billing"
TP = TopicPartition("payments", 0)
STATUS = ("status", "-g", GROUP)
MOVED, NEW_ID = (words(text) for _, text in blocks("failover.md", "console"))


def broker() -> StaticBroker:
    return StaticBroker.with_topics({"payments": 1}, end=100)


@pytest.fixture
def copy(offsetstore_postgres: PostgresServer, offsetstore_database: str) -> Iterator[str]:
    """Another database with the same tables, as a pg_upgrade or a restore leaves them; 40 is stored."""
    with OffsetStore.connect(offsetstore_database) as store:
        advance(store, store.claim(GROUP, broker(), mirror_every=None), {TP: 40})
    name = offsetstore_database.rpartition("/")[2]
    yield offsetstore_postgres.create_database(f"{name}_copy", template=name)
    offsetstore_postgres.drop_database(f"{name}_copy")


@pytest.fixture
def there(run: Run, copy: str) -> Here:
    """Calls commands with the copy."""
    return Here(run, copy)


@pytest.mark.behaviour("START-27")
def test_the_step_after_a_pg_upgrade_or_a_switch_lets_the_jobs_go_on(there: Here, copy: str) -> None:
    assert "The store's tables are in another database than before: no job starts." in there(*STATUS)
    assert there.json(*STATUS)["database"] == "moved"
    with OffsetStore.connect(copy) as store:
        with pytest.raises(StoreMoved):
            store.claim(GROUP, broker())
        store_id = store.identity().store_id

        assert there(*MOVED[:-1]).startswith(f"Store {store_id} would move from database ")
        assert store.identity().is_elsewhere
        at_home = f"Store {store_id} is at home in this database"
        assert there(*MOVED) == f"{at_home}.\nStart its jobs.\n"
        claim = store.claim(GROUP, broker(), mirror_every=None)
        assert claim.starting is not None
        assert claim.starting.offsets == {TP: 40}
        assert there(*MOVED) == f"{at_home} already; nothing was written.\n"
    assert "database" not in there(*STATUS)
    assert there.json(*STATUS)["database"] == "home"
    assert "pg_upgrade to 18, ticket 17" in there("history", "-g", GROUP, "--event", "moved")


@pytest.mark.behaviour("START-27", "START-9")
def test_the_step_for_a_copy_makes_it_another_store_with_a_group_of_its_own_in_kafka(
    there: Here, copy: str, offsetstore_database: str
) -> None:
    kafka = broker()
    with OffsetStore.connect(offsetstore_database) as original:
        stamp = Stamp(original.identity().store_id, 1)
    kafka.commit(GROUP, {TP: CommittedOffset(60, stamp.text())})

    made = there.json(*NEW_ID)
    with OffsetStore.connect(copy) as store:
        assert made["store_id"] == str(store.identity().store_id) != str(stamp.store_id)
        with pytest.raises(ForeignStore):
            store.claim(GROUP, kafka)
        assert "given another store id by" in there(*STATUS)
        claim = store.claim(GROUP, broker(), kafka_group="billing-staging", mirror_every=None)
        assert claim.starting is not None
        assert claim.starting.offsets == {TP: 40}
    assert there(*NEW_ID).splitlines()[1:] == [
        "Give each of its jobs a kafka_group= of its own.",
        f"If the outbox has rows, the original sends them: empty it before a relay starts. See {RECOVERY}.",
    ]


def test_a_group_of_a_copy_may_be_renamed_instead_as_the_page_says_for_consumers(there: Here, copy: str) -> None:
    there(*NEW_ID)
    with OffsetStore.connect(copy) as store:
        store.rename_group(GROUP, "billing-staging", reason="a consumer has no kafka_group=")
        request = ClaimRequest(
            "billing-staging", broker(), ("payments",), StartPolicy(), "refuse", 5.0, "billing-staging"
        )
        with join(store, request):
            assert store.offsets("billing-staging")[TP].next_offset == 40


@pytest.mark.behaviour("OUT-5", "START-27")
def test_the_relay_of_a_copy_sends_its_own_rows_alone_after_the_statements_of_the_page(there: Here, copy: str) -> None:
    """Before, it ends: the original's last batch is recorded in the copy, and Kafka has none under the copy's id."""
    there(*NEW_ID)
    [(_, statements)] = blocks("relay-recovery.md", "sql")
    kafka: Any = FakeKafka()
    with OffsetStore.connect(copy) as store, psycopg.connect(copy, autocommit=True) as connection:
        put(store, numbered("events", [0, 1]))
        connection.execute(
            "INSERT INTO outbox_relays (shard, token, owner, batch, ids)"
            " VALUES (0, gen_random_uuid(), 'the original', 5, '{1}')"
        )
        connection.execute(
            "INSERT INTO outbox_refused (id, consumer_group, topic, created_at, error)"
            " SELECT id, consumer_group, topic, created_at, 'too large' FROM outbox WHERE id = 2"
        )
        with pytest.raises(OutboxUncertain):
            Relay(store, kafka).drain()

        connection.execute(statements.encode())
        put(store, numbered("events", [7]))
        Relay(store, kafka).drain()
    assert kafka.values() == [7]
    assert there.json("outbox", "list", "-g", GROUP)["rows"] == []

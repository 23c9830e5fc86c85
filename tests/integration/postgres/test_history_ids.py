"""Ids of the history and of the outbox after a switch of logical replication, which copies rows and no sequences."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from offsetstore import OffsetRange, OffsetStore
from offsetstore.errors import SchemaError
from offsetstore.postgres import session
from offsetstore.postgres.grants import grant_runtime
from offsetstore.protocol.outbox import OutboxRecord
from offsetstore.testing import StaticBroker
from tests.integration.conftest import Query
from tests.integration.transacting import GROUP, P0, P1, process
from tests.support.outbox import put

LAGS = "SELECT setval(pg_get_serial_sequence('offset_history', 'id'), {next}, false)"
FILL = """
INSERT INTO offset_history (id, consumer_group, event, epoch, claim_id, actor, reason) OVERRIDING SYSTEM VALUE
SELECT n, 'other', 'claim', 1, gen_random_uuid(), 'a job', '' FROM generate_series({first}, {last}) AS n
"""


def broker() -> StaticBroker:
    return StaticBroker.with_topics({"payments": 2}, end=100)


@pytest.fixture
def runtime_url(offsetstore_database: str, query: Query) -> Iterator[str]:
    """The database as a job's own role sees it, which may not set sequences."""
    role = f"job_{offsetstore_database.rpartition('_')[2]}"
    for statement in (f"CREATE ROLE {role} LOGIN", *grant_runtime(role, schema="public")):
        query(statement)
    yield offsetstore_database.replace("postgres@", f"{role}@")
    query(f"DROP OWNED BY {role}; DROP ROLE {role}")


def test_claims_resets_and_new_partitions_go_on_where_the_ids_lag_behind_the_rows(
    runtime_url: str, query: Query, results: str
) -> None:
    query(f"GRANT INSERT ON {results} TO PUBLIC")
    query(FILL.format(first=1, last=40))
    query(FILL.format(first=42, last=5000))  # 41 is free: a claim that was rolled back
    query(LAGS.format(next=41))
    with OffsetStore.connect(runtime_url) as store:
        claim = store.claim(GROUP, topics=["payments"])
        process(store, claim, P0, range_=OffsetRange(0, 3))
        query(LAGS.format(next=1))
        process(store, claim, P1, range_=OffsetRange(0, 3))  # its row is made here, with a line of history
        query(LAGS.format(next=1))
        store.reset(GROUP, {P0: 1}, reason="read again")

        assert [line.event for line in store.history(GROUP)] == ["claim", "adopt", "adopt", "reset"]
    ids = [number for (number,) in query(f"SELECT id FROM offset_history WHERE consumer_group = '{GROUP}' ORDER BY id")]
    assert ids[0] > 5000, "after what was there, not in a gap of it"
    assert query("SELECT count(*) FROM offset_history") == [(4999 + 4,)]
    assert query("SELECT record FROM results") == [(0,), (1,), (2,)] * 2


def test_where_they_lag_too_far_the_owner_is_told_what_to_do_and_that_helps(
    store: OffsetStore, query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "_IDS_TO_TAKE", (10, 20))
    query(FILL.format(first=1, last=200))
    query(LAGS.format(next=1))

    with pytest.raises(SchemaError, match="the last row has id 200") as caught:
        store.claim(GROUP, broker())

    assert store.offsets(GROUP) == {}
    step = caught.value.next_step
    query(step[step.index("SELECT") : -1])
    assert store.claim(GROUP, broker(), mirror_every=None).token.epoch == 1


@pytest.mark.behaviour("OUT-3")
@pytest.mark.parametrize("last", ["outbox", "outbox_refused", "outbox_relays"])
def test_a_store_that_was_moved_goes_on_after_the_ids_of_its_outbox(
    offsetstore_database: str, query: Query, last: str
) -> None:
    insert = "(id, consumer_group, topic) OVERRIDING SYSTEM VALUE SELECT n, 'billing', 'events'"
    if last == "outbox_refused":
        insert = "(id, consumer_group, topic, error, created_at) SELECT n, 'billing', 'events', '', now()"
    if last == "outbox_relays":
        query("INSERT INTO outbox_relays (shard, token, owner, ids) VALUES (0, gen_random_uuid(), 'r', '{39,40}')")
    else:
        query(f"INSERT INTO {last} {insert} FROM generate_series(39, 40) AS n")
    with OffsetStore.connect(offsetstore_database) as store:
        put(store, [OutboxRecord("events", None, b"before")])
        query("UPDATE store_identity SET home = 'elsewhere'")
        store.moved(reason="blue/green, ticket 17", dry_run=True)
        store.moved(reason="blue/green, ticket 17")
        put(store, [OutboxRecord("events", None, b"after")])
    assert query("SELECT id, convert_from(value, 'UTF8') FROM outbox WHERE value IS NOT NULL ORDER BY id") == [
        (1, "before"), (41, "after")
    ]  # fmt: skip

"""Who is fenced by a claim, when, and by which claims not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from offsetstore import Claim, OffsetRange, OffsetStore, StartPolicy, TopicPartition
from offsetstore.errors import (
    BrokerUnavailable,
    NoStartingOffset,
    OffsetOutOfRange,
    OffsetStoreError,
    StaleClaim,
    TopicMissing,
    TopicRecreated,
    WrongCluster,
)
from offsetstore.local.postgres.server import PostgresServer
from offsetstore.store import heartbeat
from offsetstore.testing import StaticBroker
from tests.integration.conftest import Contents, Query

P0 = TopicPartition("payments", 0)
P1 = TopicPartition("payments", 1)
NEW = TopicPartition("payments", 2)
R0 = TopicPartition("refunds", 0)


def broker() -> StaticBroker:
    return StaticBroker.with_topics({"payments": 2, "refunds": 1}, end=100)


def write(store: OffsetStore, claim: Claim, tp: TopicPartition) -> None:
    """Write one record of a partition that was never advanced."""
    with store.transaction(claim) as tx:
        plan = tx.lock({tp: OffsetRange(0, 1)})
        tx.connection.exec_driver_sql("INSERT INTO results VALUES (1)")
        tx.advance({tp: plan[tp].remaining})


@pytest.mark.behaviour("START-14")
def test_a_claim_of_fewer_topics_leaves_the_other_rows_where_they_are_and_fences_them(
    store: OffsetStore, results: str
) -> None:
    first = store.claim("billing", broker())
    write(store, first, R0)

    second = store.claim("billing", broker(), topics=["payments"])

    assert store.offsets("billing")[R0].next_offset == 1
    assert {row.token for row in store.offsets("billing").values()} == {second.token}
    with pytest.raises(StaleClaim), store.transaction(first) as tx:
        tx.lock({R0: OffsetRange(1, 2)})


@pytest.mark.behaviour("START-14")
def test_after_a_restored_backup_two_equal_epochs_are_told_apart(
    offsetstore_postgres: PostgresServer, offsetstore_database: str
) -> None:
    name = offsetstore_database.rpartition("/")[2]
    backup = f"{name}_backup"
    with OffsetStore.connect(offsetstore_database) as store:
        store.claim("billing", broker()).close()
    offsetstore_postgres.create_database(backup, template=name)
    with OffsetStore.connect(offsetstore_database) as store:
        lost = store.claim("billing", broker())
        lost.close()
        offsetstore_postgres.drop_database(name)
        offsetstore_postgres.create_database(name, template=backup)
        offsetstore_postgres.drop_database(backup)

        store.moved(reason="restored")
        winner = store.claim("billing", broker())

        assert lost.token.epoch == winner.token.epoch == 2
        for tp in (P0, R0, NEW):
            with pytest.raises(StaleClaim), store.transaction(lost) as tx:
                tx.lock({tp: OffsetRange(0, 1)})


@pytest.mark.behaviour("START-16")
@pytest.mark.parametrize("look", ["before the fence", "under the locks"])
@pytest.mark.parametrize("error", [BrokerUnavailable("no answer"), TopicMissing("no topic")], ids=lambda e: e.what)
def test_a_broker_that_fails_fences_nobody(
    store: OffsetStore, contents: Contents, results: str, look: str, error: OffsetStoreError
) -> None:
    first = store.claim("billing", broker())
    failing = broker()
    failing.script = [error] if look == "before the fence" else [None, error]
    before = contents()

    with pytest.raises(type(error)):
        store.claim("billing", failing)

    assert contents() == before
    write(store, first, P0)


@pytest.mark.parametrize("look", ["before the fence", "under the locks"])
@pytest.mark.parametrize(
    ("error", "policy", "logs"),
    [
        (OffsetOutOfRange, StartPolicy(), {"payments": {0: (50, 100), 1: (0, 100)}}),
        (TopicRecreated, StartPolicy(), {"payments": {0: (0, 100)}}),
        (NoStartingOffset, StartPolicy(auto_offset_reset="none"), {"payments": {0: (0, 100), 1: (0, 9), 7: (0, 9)}}),
    ],
    ids=["out of range", "recreated", "no offset"],
)
def test_a_start_that_cant_be_decided_fences_nobody(
    store: OffsetStore,
    contents: Contents,
    results: str,
    *,
    look: str,
    error: type[Exception],
    policy: StartPolicy,
    logs: dict[str, dict[int, tuple[int, int]]],
) -> None:
    first = store.claim("billing", broker())
    write(store, first, P0)
    write(store, first, P1)
    found = broker()
    # Each of the attempts looks twice; the truth comes last, so that only the look in question can have failed.
    shown = StaticBroker.with_logs(logs).current
    found.script = [shown] * 3 if look == "before the fence" else [None, shown] * 3
    before = contents()

    with pytest.raises(error):
        store.claim("billing", found, topics=["payments"], policy=policy)

    assert contents() == before
    assert store.owner("billing") is not None
    with store.transaction(first) as tx:
        plan = tx.lock({P0: OffsetRange(1, 2)})
        tx.advance({P0: plan[P0].remaining})


def test_another_cluster_fences_nobody(store: OffsetStore, contents: Contents, query: Query) -> None:
    store.claim("billing", broker())
    query("UPDATE kafka_partitions SET cluster_id = 'cluster-2'")
    before = contents()

    with pytest.raises(WrongCluster, match="found cluster; expected cluster-2"):
        store.claim("billing", broker())

    assert contents() == before


CLAIM = """
import sys
from offsetstore import OffsetStore
OffsetStore.connect(sys.argv[1]).claim("billing", topics=["payments", "refunds"])
"""


def test_a_job_killed_in_its_claim_has_changed_nothing(
    store: OffsetStore,
    offsetstore_database: str,
    contents: Contents,
    results: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(heartbeat, "INTERVAL", 3600)  # no heartbeat between the two looks
    first = store.claim("billing", broker())
    before = contents()

    done = subprocess.run(
        [sys.executable, "-c", CLAIM, offsetstore_database],
        env={**os.environ, "OFFSETSTORE_FAILPOINT": "in_claim:1:kill"},
        capture_output=True,
        text=True,
        check=False,
        timeout=180,
    )

    assert done.returncode == -signal.SIGKILL
    assert "failpoint in_claim: kill" in done.stderr
    assert contents() == before
    write(store, first, P0)
    second = store.claim("billing", broker())
    assert second.token.epoch == 2
    write(store, second, P1)

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
    TopicMissing,
    TopicRecreated,
    WrongCluster,
)
from offsetstore.store import heartbeat
from offsetstore.testing import StaticBroker
from tests.integration.conftest import Contents, Query

P0 = TopicPartition("payments", 0)
P1 = TopicPartition("payments", 1)


def broker() -> StaticBroker:
    return StaticBroker.with_topics({"payments": 2, "refunds": 1}, end=100)


def write(store: OffsetStore, claim: Claim, tp: TopicPartition) -> None:
    """Write one record of a partition that was never advanced."""
    with store.transaction(claim) as tx:
        plan = tx.lock({tp: OffsetRange(0, 1)})
        tx.connection.exec_driver_sql("INSERT INTO results VALUES (1)")
        tx.advance({tp: plan[tp].remaining})


UNDECIDED: dict[str, tuple[type[OffsetStoreError], StartPolicy, dict[str, dict[int, tuple[int, int]]] | None]] = {
    "no broker": (BrokerUnavailable, StartPolicy(), None),
    "no topic": (TopicMissing, StartPolicy(), None),
    "out of range": (OffsetOutOfRange, StartPolicy(), {"payments": {0: (50, 100), 1: (0, 100)}}),
    "recreated": (TopicRecreated, StartPolicy(), {"payments": {0: (0, 100)}}),
    "no offset": (
        NoStartingOffset,
        StartPolicy(auto_offset_reset="none"),
        {"payments": {0: (0, 100), 1: (0, 9), 7: (0, 9)}},
    ),
}


@pytest.mark.behaviour("START-16")
@pytest.mark.parametrize("look", ["before the fence", "under the locks"])
@pytest.mark.parametrize("name", UNDECIDED)
def test_a_start_that_cant_be_decided_fences_nobody(
    store: OffsetStore, contents: Contents, results: str, look: str, name: str
) -> None:
    error, policy, logs = UNDECIDED[name]
    first = store.claim("billing", broker())
    write(store, first, P0)
    write(store, first, P1)
    found = broker()
    shown = error("told") if logs is None else StaticBroker.with_logs(logs).current
    # Each of the attempts looks twice; the truth comes last, so that only the look in question can have failed.
    found.script = [shown] * 3 if look == "before the fence" else [None, shown] * 3
    before = contents()

    with pytest.raises(error):
        store.claim("billing", found, topics=["payments"], policy=policy)

    assert contents() == before
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

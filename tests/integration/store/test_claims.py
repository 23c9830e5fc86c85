"""What a claim does to the tables when nobody is in its way, and when it can't start."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import time
import weakref
from typing import Any

import pytest
from sqlalchemy import Engine

from offsetstore import OffsetRange, OffsetStore, StartPolicy
from offsetstore.errors import (
    BrokerUnavailable,
    ClaimInUse,
    ConfigurationError,
    NoStartingOffset,
    OffsetStoreError,
    StoreUnavailable,
    TopicRecreated,
)
from offsetstore.store import heartbeat
from offsetstore.testing import StaticBroker
from tests.integration.conftest import Contents
from tests.integration.store.meeting import P0, P1, advance, broker
from tests.support.trips import sent_statements


def test_a_partition_created_while_the_claim_waits_is_seen_by_its_second_look(store: OffsetStore) -> None:
    growing = broker()
    growing.script = [None, lambda: growing.set_log(P1, 0, 0)]

    assert json.loads(store.claim("billing", growing).starting_offsets) == {"payments": {"0": 0, "1": 0}}


@pytest.mark.behaviour("START-22")
def test_a_second_query_on_one_claim_is_refused_and_each_claim_has_a_checkpoint_of_its_own(store: OffsetStore) -> None:
    first, second = (store.claim("a/../b c", topics=["payments"]) for _ in range(2))
    first.bind("one")
    first.bind("one")
    with pytest.raises(ClaimInUse, match=r"found query two; expected query one"):
        first.bind("two")

    assert first.checkpoint("/checkpoints/") == f"/checkpoints/a%2F%2E%2E%2Fb%20c/1-{first.token.claim_id}"
    assert second.checkpoint("/checkpoints") == f"/checkpoints/a%2F%2E%2E%2Fb%20c/2-{second.token.claim_id}"


def test_arguments_that_cant_be_right_are_named(store: OffsetStore) -> None:
    refused: list[tuple[dict[str, Any], str]] = [
        ({"group": ""}, "group must be a name"),
        ({"group": "a\0b"}, "group can't be stored; found a NUL, character 2 of 3"),
        ({"kafka_group": "a\0b"}, "kafka_group can't be stored"),
        ({"topics": []}, "names no topics"),
        ({"takeover": "ask"}, "takeover has an unknown value"),
        ({"takeover_timeout": -1}, "takeover_timeout must be 0 or more seconds"),
        ({"takeover_timeout": float("nan")}, "takeover_timeout must be 0 or more seconds"),
        ({"mirror_every": 0}, "mirror_every"),
        ({"mirror_every": float("nan")}, "mirror_every"),
    ]
    for wrong, words in refused:
        call: dict[str, Any] = {"group": "billing", "topics": ["payments"], **wrong}
        with pytest.raises(ConfigurationError, match=words):
            store.claim(**call)
    assert store.owner("billing") is None


@pytest.mark.behaviour("START-19")
def test_a_claim_of_ten_thousand_partitions_takes_as_many_statements_as_one_of_one(offsetstore_database: str) -> None:
    counted: list[int] = []
    seconds: list[float] = []
    with OffsetStore.connect(offsetstore_database) as store:
        for group, partitions in (("small", 1), ("large", 10_000)):
            asked = broker(partitions)
            for _ in range(2):  # the first inserts all rows, the second finds them
                asked.asked.clear()
                began = time.monotonic()
                with sent_statements() as sent:
                    store.claim(group, asked, mirror_every=None)
                seconds.append(time.monotonic() - began)
                counted.append(len(sent))
                assert len(asked.asked) == 2
        assert len(store.offsets("large")) == 10_000

    assert counted[:2] == counted[2:]
    assert max(seconds) < 10, seconds


def test_the_users_own_engine_stays_open_when_the_store_is_closed(engine: Engine) -> None:
    with OffsetStore.connect(engine) as store:
        store.claim("billing", topics=["payments"])

    with engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM consumer_groups").scalar_one() == 1


def test_a_store_lets_go_of_a_closed_claim_unless_its_close_has_failed(store: OffsetStore) -> None:
    closed, failed = (store.claim(group, broker(), mirror_every=None) for group in ("billing", "refunds"))
    tried: list[str] = []

    def last() -> None:
        tried.append("last")
        raise StoreUnavailable("no")

    failed.at_close(last)
    closed.close()
    with pytest.raises(StoreUnavailable):
        failed.close()
    let_go = weakref.ref(closed)
    del closed, failed

    store.claim("other", broker())
    gc.collect()
    store.close()

    assert let_go() is None
    assert len(tried) == 2


# -- who is not fenced

UNDECIDED: dict[str, tuple[type[OffsetStoreError], StartPolicy, dict[str, dict[int, tuple[int, int]]] | None]] = {
    "no broker": (BrokerUnavailable, StartPolicy(), None),
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
    store: OffsetStore, contents: Contents, look: str, name: str
) -> None:
    error, policy, logs = UNDECIDED[name]
    first = store.claim("billing", broker(2))
    advance(store, first, OffsetRange(0, 1), P0, P1)
    found = broker(2)
    shown = error("told") if logs is None else StaticBroker.with_logs(logs).current
    # Each of the attempts looks twice; the truth comes last, so that only the look in question can have failed.
    found.script = [shown] * 3 if look == "before the fence" else [None, shown] * 3
    before = contents()

    with pytest.raises(error):
        store.claim("billing", found, topics=["payments"], policy=policy)

    assert contents() == before
    advance(store, first, OffsetRange(1, 2), P0)


CLAIM = """
import sys
from offsetstore import OffsetStore
OffsetStore.connect(sys.argv[1]).claim("billing", topics=["payments", "refunds"])
"""


def test_a_job_killed_in_its_claim_has_changed_nothing(
    store: OffsetStore, offsetstore_database: str, contents: Contents, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeat, "INTERVAL", 3600)  # no heartbeat between the two looks
    first = store.claim("billing", broker(2))
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
    advance(store, first, OffsetRange(0, 1), P0)
    second = store.claim("billing", broker(2))
    assert second.token.epoch == 2
    advance(store, second, OffsetRange(0, 1), P1)

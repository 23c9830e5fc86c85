"""`offsetstore reset`, while a job goes on: what is decided is decided under the group's locks, and that is printed."""

from __future__ import annotations

import json
from threading import Event
from typing import Any

import psycopg
import pytest

from offsetstore import Claim, OffsetRange, OffsetStore, TopicPartition
from tests.integration.cli.conftest import Run
from tests.support.background import in_background
from tests.support.waiting import wait_until

P0 = TopicPartition("payments", 0)
WAITING = """
SELECT pid FROM pg_stat_activity
WHERE datname = current_database() AND wait_event_type = 'Lock' AND application_name LIKE 'offsetstore:%:admin'
"""
REASON = ("--reason", "ticket 17", "--execute")


def wait_for_the_reset(url: str) -> None:
    """Until it waits for a lock."""
    with psycopg.connect(url, autocommit=True) as look:
        wait_until(lambda: look.execute(WAITING).fetchall())


def advance(store: OffsetStore, claim: Claim, until: int) -> None:
    with store.transaction(claim) as tx:
        tx.advance({P0: tx.lock({P0: OffsetRange(0, until)})[P0].remaining})


@pytest.mark.behaviour("OPS-10")
def test_what_a_job_stores_between_the_plan_and_the_fence_is_what_is_moved_printed_and_recorded(
    run: Run, offsetstore_database: str, offsetstore_group: str
) -> None:
    has_locked = Event()
    with OffsetStore.connect(offsetstore_database) as store:
        claim = store.claim(offsetstore_group, topics=["payments"])
        advance(store, claim, 1000)

        def job() -> None:
            with store.transaction(claim) as tx:
                left = tx.lock({P0: OffsetRange(1000, 1500)})[P0].remaining
                has_locked.set()
                wait_for_the_reset(offsetstore_database)
                tx.advance({P0: left})

        running = in_background(job)
        assert has_locked.wait(60)
        arguments = ["reset", "-g", offsetstore_group, "-t", "payments", "--shift-by", "-100", "--force", *REASON]
        result = run(*arguments, "--format", "json", url=offsetstore_database)
        running.result(60)

        assert result.exit_code == 0, result.output
        printed: dict[str, Any] = json.loads(result.stdout)
        [moved] = printed["partitions"]
        [recorded] = [line for line in store.history(offsetstore_group) if line.event == "reset"]
        done = store.offsets(offsetstore_group)[P0].next_offset
    assert (moved["stored"], moved["new"]) == (recorded.from_offset, recorded.to_offset) == (1500, 1400)
    assert done == 1400
    assert printed["fenced"] == {"name": claim.owner, "epoch": 1, "claim_id": str(claim.token.claim_id)}

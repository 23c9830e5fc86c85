"""`offsetstore reset` on real servers: what it moves, what Kafka's own tool makes of it, and while a job goes on."""

from __future__ import annotations

from pathlib import Path
from threading import Event

import psycopg
import pytest

from offsetstore import Broker, OffsetRange, OffsetStore, TopicPartition
from offsetstore.kafka.admin import delete_records
from offsetstore.local.kafka import KafkaBroker
from tests.integration.cli.conftest import Here, advance
from tests.support.background import in_background
from tests.support.consumer_groups import consumer_groups_tool, reset_by_tool
from tests.support.waiting import wait_until

P0 = TopicPartition("payments", 0)
REASON = ("--reason", "ticket 17")
WAITING = """
SELECT pid FROM pg_stat_activity
WHERE datname = current_database() AND wait_event_type = 'Lock' AND application_name LIKE 'offsetstore:%:admin'
"""


@pytest.fixture
def stopped(offsetstore_database: str, servers: str, payments: str, offsetstore_group: str) -> str:
    """A group whose job has stopped at 4, 5 and 0 of `payments`."""
    broker = Broker({"bootstrap.servers": servers})
    with OffsetStore.connect(offsetstore_database) as store:
        claim = store.claim(offsetstore_group, broker, topics=[payments], mirror_every=None)
        advance(store, claim, {TopicPartition(payments, 0): 4, TopicPartition(payments, 1): 5})
    return offsetstore_group


def stored(url: str, group: str) -> list[int]:
    with OffsetStore.connect(url) as store:
        return [row.next_offset for _, row in sorted(store.offsets(group).items())]


def test_it_prints_the_plan_and_with_execute_moves_the_partitions_named_to_where_it_was_told(
    here: Here, stopped: str, payments: str, offsetstore_database: str, servers: str
) -> None:
    reset = ("reset", "-g", stopped, *REASON)
    printed = here(*reset, "-t", payments, "--to-earliest", brokers=servers).splitlines()
    assert [line.split() for line in printed[:4]] == [
        ["partition", "stored", "new", "moves", "beginning", "end"],
        [f"{payments}-0", "4", "0", "-4", "0", "10"],
        [f"{payments}-1", "5", "0", "-5", "0", "10"],
        [f"{payments}-2", "0", "0", "+0", "0", "10"],
    ]
    assert printed[4:-1] == [
        f"{stopped} would read 9 offsets again, in 3 partitions.",
        "Remove their results before you start the job, or they will be stored twice.",
        "Nothing was written. Add --execute to do it.",
    ]
    for options, words in (
        (["--to-offset", "11"], ["the log does not hold offset 11", "from 0 to 10", "--to-latest"]),
        (["--shift-by", "-6"], ["the shift goes below offset 0", "-2", "Shift by less"]),
    ):
        refused = here.fail(1, *reset, "-t", f"{payments}:0", *options, "--execute", brokers=servers)
        assert [word for word in (f"{payments}-0", *words) if word not in refused] == []
    assert stored(offsetstore_database, stopped) == [4, 5, 0]

    delete_records(servers, payments, {0: 2})
    for options, expected in (
        (["--to-latest"], [10, 5, 10]),
        (["--by-duration", "PT1H"], [2, 5, 0]),
        (["--to-datetime", "2100-01-01T00:00+01:00"], [10, 5, 10]),
    ):
        assert "\nDone: " in here(*reset, "-t", f"{payments}:0,2", *options, "--execute", brokers=servers)
        assert stored(offsetstore_database, stopped) == expected


@pytest.mark.behaviour("OPS-1")
def test_kafkas_own_tool_and_this_one_read_each_others_csv(
    here: Here, stopped: str, offsetstore_database: str, offsetstore_kafka: KafkaBroker, tmp_path: Path
) -> None:
    ours, theirs = tmp_path / "ours.csv", tmp_path / "theirs.csv"
    reset = ("reset", "-g", stopped, *REASON)
    ours.write_text(here(*reset, "--all-topics", "--shift-by", "1", "--format", "csv"))
    reset_by_tool(offsetstore_kafka, stopped, "--from-file", str(ours), "--execute")
    shown = consumer_groups_tool(offsetstore_kafka, stopped)
    assert {number: row["CURRENT-OFFSET"] for (_, number), row in shown.items()} == {"0": "5", "1": "6", "2": "1"}
    theirs.write_text(reset_by_tool(offsetstore_kafka, stopped, "--all-topics", "--shift-by", "2", "--export"))
    here(*reset, "--from-file", str(theirs), "--execute")
    assert stored(offsetstore_database, stopped) == [7, 8, 3]

    found = here.json(*reset, "--all-topics", "--to-current")
    keys = {"group", "reason", "executed", "plan", "live", "fenced", "replayed_letters", "to_datetime", "partitions"}
    assert found.keys() == keys
    assert (found["executed"], found["live"], found["fenced"]) == (False, False, None)
    assert found["partitions"][0].keys() == {"topic", "partition", "stored", "new", "beginning", "end", "suspect"}


@pytest.mark.behaviour("OPS-10")
def test_what_a_job_stores_between_the_plan_and_the_fence_is_what_is_moved_printed_and_recorded(
    here: Here, offsetstore_database: str, offsetstore_group: str
) -> None:
    """What is decided is decided under the group's locks."""
    has_locked = Event()
    with OffsetStore.connect(offsetstore_database) as store:
        claim = store.claim(offsetstore_group, topics=["payments"])
        advance(store, claim, {P0: 1000})

        def job() -> None:
            with store.transaction(claim) as tx, psycopg.connect(offsetstore_database, autocommit=True) as look:
                left = tx.lock({P0: OffsetRange(1000, 1500)})[P0].remaining
                has_locked.set()
                wait_until(lambda: look.execute(WAITING).fetchall())  # until the reset waits for a lock
                tx.advance({P0: left})

        running = in_background(job)
        assert has_locked.wait(60)
        arguments = ("-t", "payments", "--shift-by", "-100", "--force", "--execute")
        printed = here.json("reset", "-g", offsetstore_group, *REASON, *arguments)
        running.result(60)

        [moved] = printed["partitions"]
        [recorded] = [line for line in store.history(offsetstore_group) if line.event == "reset"]
        done = store.offsets(offsetstore_group)[P0].next_offset
    assert (moved["stored"], moved["new"]) == (recorded.from_offset, recorded.to_offset) == (1500, 1400)
    assert done == 1400
    assert printed["fenced"] == {"name": claim.owner, "epoch": 1, "claim_id": str(claim.token.claim_id)}

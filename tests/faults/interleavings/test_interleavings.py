"""Two transactions of one group in every order of their steps, each on a connection of its own; with claims in between.

The steps are lock, compare, write, advance and commit (or rollback); before a partition that the claim does not know,
the group's row is shared and the partition's inserted. A member of a fleet takes partitions in the same steps, and then
writes its token instead of results. A claim locks the group's row, locks the partitions' rows,
writes the tokens and commits. Lock and compare are two steps here, although `tx.lock` is one call. What one statement
does is one step: the order in which it locks its rows shows where a third transaction holds one of them.

Of each order is checked, in `interleaving_jobs`: nobody deadlocks or hangs, each transaction ends as if it had been
alone from its lock to its commit, each record below the stored offset is in the results once, and the advances that the
database itself has noted are a chain. The tests say how many orders there are, and in which ways they end.
"""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pytest

from offsetstore import OffsetRange, OffsetStore, TopicPartition
from offsetstore.local.postgres.server import PostgresServer
from offsetstore.postgres.database import PostgresDatabase
from offsetstore.postgres.url import make_engine
from offsetstore.testing import StaticBroker
from offsetstore.testing.fixtures import copy_database
from tests.faults.interleavings.jobs import (
    ASSIGN,
    CLAIM,
    FOUND,
    JOIN,
    KAFKA_GROUP,
    KNOWN,
    KNOWN_PARTITIONS,
    NEW,
    P0,
    P1,
    P2,
    TABLES,
    UNKNOWN,
    Job,
    Jobs,
)
from tests.support.postgres import Database

NEWER, NEWEST = (TopicPartition(NEW.topic, NEW.partition + more) for more in (1, 2))
KAFKA = StaticBroker.with_topics({P0.topic: 3}, end=100)
RANGE = OffsetRange(0, 3)
LONGER = OffsetRange(0, 5)
NEXT = OffsetRange(3, 6)

# Fewer turns where there are three actors: a step that is left out is part of the one before it.
SHORT = ("lock", "commit")
SHORT_UNKNOWN = ("share group", "lock", "commit")
SHORT_CLAIM = ("claim's lock group", "claim's lock", "claim's commit")


@pytest.fixture(scope="module")
def jobs(offsetstore_postgres: PostgresServer, offsetstore_template: str) -> Iterator[Jobs]:
    """One database for all tests of this file: each order has a group of its own."""
    name = f"test_{uuid4().hex[:12]}"
    database = Database(copy_database(offsetstore_postgres, name, template=offsetstore_template))
    database.execute(TABLES)
    engine = make_engine(database.url)
    with OffsetStore.connect(engine) as store:
        assert isinstance(store.database, PostgresDatabase)
        jobs = Jobs(store.database, database)
        yield jobs
        jobs.close()
    engine.dispose()
    database.close()
    offsetstore_postgres.drop_database(name)


# -- two tasks of one job: the same token


@pytest.mark.behaviour("TX-4")
def test_of_two_tasks_with_one_range_the_first_applies_it_and_the_second_skips_it(jobs: Jobs) -> None:
    explored = jobs.explore(a=Job({P0: RANGE}), b=Job({P0: RANGE}))

    assert explored.orders == 252
    assert explored.endings == {("apply", "skip"), ("skip", "apply")}


@pytest.mark.behaviour("TX-4", "TX-5")
def test_the_longer_range_of_two_is_cropped_where_the_shorter_came_first(jobs: Jobs) -> None:
    explored = jobs.explore(short=Job({P0: RANGE}), long=Job({P0: LONGER}))

    assert explored.orders == 252
    assert explored.endings == {("apply", "crop"), ("skip", "apply")}


@pytest.mark.behaviour("TX-6")
def test_a_range_that_comes_before_the_one_below_it_is_a_gap(jobs: Jobs) -> None:
    explored = jobs.explore(below=Job({P0: RANGE}), above=Job({P0: NEXT}))

    assert explored.orders == 252
    assert explored.endings == {("apply", "apply"), ("apply", "OffsetGap")}


@pytest.mark.behaviour("TX-8")
def test_tasks_that_share_one_of_their_partitions_never_deadlock(jobs: Jobs) -> None:
    explored = jobs.explore(a=Job({P0: RANGE, P1: RANGE}), b=Job({P2: RANGE, P1: RANGE}))

    assert explored.orders == 252
    assert explored.endings == {("apply apply", "skip apply"), ("apply skip", "apply apply")}


@pytest.mark.behaviour("TX-8")
def test_tasks_that_ask_for_the_same_partitions_in_opposite_orders_never_deadlock(jobs: Jobs) -> None:
    explored = jobs.explore(a=Job({P0: RANGE, P1: RANGE}), b=Job({P1: RANGE, P0: RANGE}))

    assert explored.orders == 252
    assert explored.endings == {("apply apply", "skip skip"), ("skip skip", "apply apply")}


UP_DOWN_MIDDLE = {
    ("apply apply apply", "skip skip skip", "skip"),
    ("skip skip skip", "apply apply apply", "skip"),
    ("apply skip apply", "skip skip skip", "apply"),
    ("skip skip skip", "apply skip apply", "apply"),
}


@pytest.mark.behaviour("TX-8")
def test_a_third_task_that_holds_a_row_in_the_middle_makes_no_deadlock(jobs: Jobs) -> None:
    """While it holds that row, two others stand in the middle of their statements: only their order saves them."""
    explored = jobs.explore(
        up=Job(dict.fromkeys([P0, P1, P2], RANGE), steps=SHORT),
        down=Job(dict.fromkeys([P2, P1, P0], RANGE), steps=SHORT),
        middle=Job({P1: RANGE}, steps=SHORT),
    )

    assert explored.orders == 90
    assert explored.endings == UP_DOWN_MIDDLE


@pytest.mark.behaviour("TX-8")
def test_tasks_without_a_partition_in_common_never_wait(jobs: Jobs) -> None:
    steps = ("lock", "write", "commit")
    explored = jobs.explore(a=Job({P0: RANGE}, steps=steps), b=Job({P1: RANGE}, steps=steps))

    assert explored.orders == 20
    assert explored.endings == {("apply", "apply")}
    assert len(explored.runs) == 20
    assert not any(turn.waiting for run in explored.runs for turn in run.played.turns)


@pytest.mark.behaviour("TX-2")
def test_what_is_rolled_back_is_applied_by_the_other(jobs: Jobs) -> None:
    explored = jobs.explore(a=Job({P0: RANGE}, ends="rollback"), b=Job({P0: RANGE}))

    assert explored.orders == 252
    assert explored.endings == {("rolled back", "apply")}


# -- a partition that the claim does not know


@pytest.mark.behaviour("TX-10")
def test_one_of_two_tasks_creates_a_partitions_row(jobs: Jobs) -> None:
    explored = jobs.explore(a=Job({NEW: RANGE}, steps=UNKNOWN), b=Job({NEW: RANGE}, steps=UNKNOWN))

    assert explored.orders == 3432
    assert explored.endings == {("apply", "skip"), ("skip", "apply")}


@pytest.mark.behaviour("TX-8", "TX-10")
def test_tasks_that_create_rows_in_opposite_orders_never_deadlock(jobs: Jobs) -> None:
    """As above, with a third that has inserted the row in the middle."""
    steps = ("insert", "commit")
    explored = jobs.explore(
        up=Job(dict.fromkeys([NEW, NEWER, NEWEST], RANGE), steps=steps),
        down=Job(dict.fromkeys([NEWEST, NEWER, NEW], RANGE), steps=steps),
        middle=Job({NEWER: RANGE}, steps=steps),
    )

    assert explored.orders == 90
    assert explored.endings == UP_DOWN_MIDDLE


@pytest.mark.behaviour("TX-8", "TX-10")
def test_a_task_with_a_new_partition_besides_never_deadlocks_with_one_without(jobs: Jobs) -> None:
    explored = jobs.explore(a=Job({P0: RANGE, NEW: RANGE}, steps=UNKNOWN), b=Job({P0: RANGE}))

    assert explored.orders == 792
    assert explored.endings == {("apply apply", "skip"), ("skip apply", "apply")}


@pytest.mark.behaviour("TX-2", "TX-10")
def test_a_row_whose_creation_is_rolled_back_is_created_by_the_other(jobs: Jobs) -> None:
    steps = ("share group", "insert", "lock", "advance", "commit")
    explored = jobs.explore(
        a=Job({NEW: RANGE}, steps=steps, ends="rollback"), b=Job({NEW: RANGE}, steps=steps, ends="commit")
    )

    assert explored.orders == 252
    assert explored.endings == {("rolled back", "apply")}


# -- one stale token, from a claim before the group's last, and one that is not


@pytest.mark.behaviour("START-14")
def test_a_stale_task_writes_nothing_and_keeps_nobody_from_writing(jobs: Jobs) -> None:
    explored = jobs.explore(stale=Job({P0: RANGE}, token="stale"), fresh=Job({P0: RANGE}))

    assert explored.orders == 252
    assert explored.endings == {("StaleClaim", "apply")}


@pytest.mark.behaviour("START-14", "TX-10")
def test_a_stale_task_creates_no_row(jobs: Jobs) -> None:
    explored = jobs.explore(
        stale=Job({NEW: RANGE}, token="stale", steps=UNKNOWN), fresh=Job({NEW: RANGE}, steps=UNKNOWN)
    )

    assert explored.orders == 3432
    assert explored.endings == {("StaleClaim", "apply")}


# -- claims: whoever locks before a claim commits is waited for, whoever locks after it is stale


@pytest.mark.behaviour("START-13", "START-14")
def test_a_job_that_takes_over_goes_on_where_the_old_one_ended_or_applies_what_it_could_not(jobs: Jobs) -> None:
    explored = jobs.explore(
        old=Job({P0: RANGE}), new=Job({P0: RANGE}, token="own", steps=(*CLAIM, *KNOWN), broker=KAFKA)
    )

    assert explored.orders == 2002
    assert explored.endings == {("apply", "claimed skip"), ("StaleClaim", "claimed apply")}


@pytest.mark.behaviour("START-13", "START-14", "TX-10")
def test_a_job_that_takes_over_from_one_that_creates_a_row(jobs: Jobs) -> None:
    explored = jobs.explore(
        old=Job({P0: RANGE, NEW: RANGE}, steps=UNKNOWN),
        new=Job({P0: RANGE}, token="own", steps=(*CLAIM, *KNOWN)),
    )

    assert explored.orders == 11440
    assert explored.endings == {("apply apply", "claimed skip"), ("StaleClaim", "claimed apply")}


@pytest.mark.behaviour("START-14")
def test_of_two_jobs_that_take_over_the_last_goes_on(jobs: Jobs) -> None:
    new = Job({P0: RANGE}, token="own", steps=(*SHORT_CLAIM, *SHORT), broker=KAFKA)
    explored = jobs.explore(a=new, b=new)

    assert explored.orders == 252
    assert explored.endings == {
        ("claimed apply", "claimed skip"),
        ("claimed skip", "claimed apply"),
        ("claimed apply", "StaleClaim"),
        ("StaleClaim", "claimed apply"),
    }


BOTH_AND_A_CLAIM = {
    ("apply", "skip", "claimed"),
    ("skip", "apply", "claimed"),
    ("apply", "StaleClaim", "claimed"),
    ("StaleClaim", "apply", "claimed"),
    ("StaleClaim", "StaleClaim", "claimed"),
}


@pytest.mark.behaviour("START-13", "START-14")
def test_a_claim_anywhere_between_two_tasks_fences_those_that_have_not_locked(jobs: Jobs) -> None:
    claim = Job(token="own", steps=("claim's lock group", "claim's commit"), broker=KAFKA)
    explored = jobs.explore(a=Job({P0: RANGE}), b=Job({P0: RANGE}), claim=claim)

    assert explored.orders == 16632
    assert explored.endings == BOTH_AND_A_CLAIM


@pytest.mark.behaviour("START-13", "START-14", "TX-8")
def test_a_claim_anywhere_between_tasks_that_share_one_of_their_partitions(jobs: Jobs) -> None:
    explored = jobs.explore(
        a=Job({P0: RANGE, P1: RANGE}, steps=SHORT),
        b=Job({P2: RANGE, P1: RANGE}, steps=SHORT),
        claim=Job(token="own", steps=SHORT_CLAIM, broker=KAFKA),
    )

    assert explored.orders == 210
    assert explored.endings == {
        ("apply apply", "skip apply", "claimed"),
        ("apply skip", "apply apply", "claimed"),
        ("apply apply", "StaleClaim", "claimed"),
        ("StaleClaim", "apply apply", "claimed"),
        ("StaleClaim", "StaleClaim", "claimed"),
    }


@pytest.mark.behaviour("START-13", "START-14", "TX-10")
def test_a_claim_anywhere_between_two_tasks_that_create_a_row(jobs: Jobs) -> None:
    explored = jobs.explore(
        a=Job({NEW: RANGE}, steps=SHORT_UNKNOWN),
        b=Job({NEW: RANGE}, steps=SHORT_UNKNOWN),
        claim=Job(token="own", steps=SHORT_CLAIM),
    )

    assert explored.orders == 1680
    assert explored.endings == BOTH_AND_A_CLAIM


@pytest.mark.behaviour("START-13", "START-14", "TX-2")
def test_a_claim_anywhere_between_a_task_that_rolls_back_and_one_that_commits(jobs: Jobs) -> None:
    explored = jobs.explore(
        a=Job({P0: RANGE}, steps=SHORT, ends="rollback"),
        b=Job({P0: RANGE}, steps=SHORT),
        claim=Job(token="own", steps=SHORT_CLAIM, broker=KAFKA),
    )

    assert explored.orders == 210
    assert explored.endings == {
        ("rolled back", "apply", "claimed"),
        ("rolled back", "StaleClaim", "claimed"),
        ("StaleClaim", "apply", "claimed"),
        ("StaleClaim", "StaleClaim", "claimed"),
    }


# -- members of a fleet: ``a`` has the known partitions, until others take them

SHORT_ASSIGN = ("assign's lock", "assign's commit")
TAKES = Job({P0: RANGE}, member="b", takes=(P0,), steps=(*ASSIGN, *SHORT))


@pytest.mark.behaviour("CONS-3")
def test_whoever_takes_a_partition_goes_on_where_its_owner_ended_or_fences_it(jobs: Jobs) -> None:
    explored = jobs.explore(owner=Job({P0: RANGE}, member="a"), taker=TAKES)

    assert explored.orders == 462
    assert explored.endings == {("apply", "took skip"), ("PartitionLost", "took apply")}


@pytest.mark.behaviour("CONS-3", "TX-2")
def test_what_the_owner_rolls_back_is_applied_by_whoever_takes_the_partition(jobs: Jobs) -> None:
    explored = jobs.explore(owner=Job({P0: RANGE}, member="a", ends="rollback"), taker=TAKES)

    assert explored.orders == 462
    assert explored.endings == {("rolled back", "took apply"), ("PartitionLost", "took apply")}


@pytest.mark.behaviour("CONS-6")
def test_of_two_members_that_take_a_partition_the_last_has_it(jobs: Jobs) -> None:
    steps = (*SHORT_ASSIGN, *SHORT)
    explored = jobs.explore(
        b=Job({P0: RANGE}, member="b", takes=(P0,), steps=steps),
        c=Job({P0: RANGE}, member="c", takes=(P0,), steps=steps),
    )

    assert explored.orders == 70
    assert explored.endings == {
        ("took apply", "took skip"),
        ("took skip", "took apply"),
        ("PartitionLost", "took apply"),
        ("took apply", "PartitionLost"),
    }


@pytest.mark.behaviour("CONS-6", "TX-8")
def test_members_that_take_partitions_in_opposite_orders_never_deadlock(jobs: Jobs) -> None:
    """While the owner holds a row in the middle, two others stand in the middle of their statements."""
    up = (*KNOWN_PARTITIONS, NEW)
    explored = jobs.explore(
        up=Job(member="b", takes=up, steps=SHORT_ASSIGN),
        down=Job(member="c", takes=(*reversed(up),), steps=SHORT_ASSIGN),
        owner=Job({P1: RANGE}, member="a", steps=SHORT),
    )

    assert explored.orders == 90
    assert explored.endings == {("took", "took", "apply"), ("took", "took", "PartitionLost")}


@pytest.mark.behaviour("CONS-13", "CONS-6")
def test_one_of_two_members_makes_the_row_of_a_new_partition_and_the_last_has_it(jobs: Jobs) -> None:
    """Whoever comes second must not put the offset back to where the partition began."""
    steps = ("assign's insert", "assign's lock", "assign's commit", *SHORT)
    explored = jobs.explore(
        b=Job({NEW: RANGE}, member="b", takes=(NEW,), steps=steps),
        c=Job({NEW: RANGE}, member="c", takes=(NEW,), steps=steps),
    )

    assert explored.orders == 252
    assert explored.endings == {
        ("took apply", "took skip"),
        ("took skip", "took apply"),
        ("PartitionLost", "took apply"),
        ("took apply", "PartitionLost"),
    }


@pytest.mark.behaviour("CONS-6")
def test_a_member_that_takes_its_own_partition_again_keeps_its_older_transactions_out_meanwhile(jobs: Jobs) -> None:
    explored = jobs.explore(
        older=Job({P0: RANGE}, member="a", steps=("begin", *SHORT), may_be_lost=True),
        again=Job({P0: RANGE}, member="a", takes=(P0,), steps=("release", *SHORT_ASSIGN, *SHORT)),
    )

    assert explored.orders == 56
    assert explored.endings == {("PartitionLost", "took apply"), ("apply", "took skip"), ("skip", "took apply")}


@pytest.mark.behaviour("CONS-4")
def test_a_job_that_takes_over_fences_members_that_write_or_take_partitions(jobs: Jobs) -> None:
    explored = jobs.explore(
        owner=Job({P1: RANGE}, member="a", steps=SHORT),
        taker=Job(member="b", takes=(P0,), steps=("assign's share group", "assign's commit")),
        job=Job(token="own", steps=SHORT_CLAIM, broker=KAFKA),
    )

    assert explored.orders == 210
    assert explored.endings == {
        (wrote, took, "claimed") for wrote in ("apply", "StaleClaim") for took in ("took", "StaleClaim")
    }


@pytest.mark.behaviour("CONS-4")
def test_a_process_that_joins_during_a_claim_is_fenced_by_it_or_fences_it(jobs: Jobs) -> None:
    explored = jobs.explore(
        job=Job({P0: RANGE}, token="own", steps=(*SHORT_CLAIM, *SHORT), broker=KAFKA),
        fleet=Job(joins="another", steps=FOUND),
    )

    assert explored.orders == 462
    assert explored.endings == {("claimed apply", "joined"), ("StaleClaim", "joined")}


@pytest.mark.behaviour("CONS-12")
def test_another_fleet_fences_members_that_write_or_take_partitions(jobs: Jobs) -> None:
    explored = jobs.explore(
        owner=Job({P1: RANGE}, member="a", steps=SHORT),
        taker=Job(member="b", takes=(P0,), steps=("assign's share group", "assign's commit")),
        fleet=Job(
            joins="another", steps=("join's commit", "join's lock group", "join's write tokens", "join's commit")
        ),
    )

    assert explored.orders == 420
    assert explored.endings == {
        (wrote, took, "joined") for wrote in ("apply", "StaleClaim") for took in ("took", "StaleClaim")
    }


@pytest.mark.behaviour("CONS-3")
def test_a_process_that_joins_a_fleet_waits_for_no_member_and_fences_none(jobs: Jobs) -> None:
    explored = jobs.explore(
        owner=Job({P0: RANGE}, member="a", steps=SHORT),
        taker=Job(member="b", takes=(P1,), steps=SHORT_ASSIGN),
        new=Job(joins=KAFKA_GROUP, steps=JOIN),
    )

    assert explored.orders == 90
    assert explored.endings == {("apply", "took", "joined")}
    assert not any(turn.waiting for run in explored.runs for turn in run.played.turns)

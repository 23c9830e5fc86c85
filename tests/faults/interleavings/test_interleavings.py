"""Two transactions of one group in every order of their steps, each on a connection of its own; with claims in between.

The steps are lock, compare, write, advance and commit (or rollback); before a partition that the claim does not know,
the group's row is shared and the partition's inserted. A member of a fleet takes partitions in the same steps, and then
writes its token instead of results. A claim locks the group's row, locks the partitions' rows,
writes the tokens and commits. Lock and compare are two steps here, although `tx.lock` is one call. What one statement
does is one step: the order in which it locks its rows shows where a third transaction holds one of them.

Of each order is checked, in `jobs`: nobody deadlocks or hangs, each transaction ends as if it had been
alone from its lock to its commit, each record below the stored offset is in the results once, and the advances that the
database itself has noted are a chain. The tests say in which ways they end.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from typing import Any
from uuid import uuid4

import pytest

from offsetstore import OffsetRange, OffsetStore, TopicPartition
from offsetstore.local.postgres import PostgresServer
from offsetstore.postgres.database import PostgresDatabase
from offsetstore.postgres.url import make_engine
from offsetstore.testing import StaticBroker
from offsetstore.testing.fixtures import copy_database
from tests.faults.interleavings.jobs import (
    ASSIGN,
    CLAIM,
    FOUND,
    KAFKA_GROUP,
    KNOWN,
    KNOWN_PARTITIONS,
    NEW,
    P0,
    P1,
    P2,
    TABLES,
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


def case(name: str, behaviours: str, *, endings: AbstractSet[tuple[str, ...]], **jobs: Job) -> Any:
    return pytest.param(jobs, endings, id=name, marks=pytest.mark.behaviour(*behaviours.split()))


UP_DOWN_MIDDLE = {
    ("apply apply apply", "skip skip skip", "skip"),
    ("skip skip skip", "apply apply apply", "skip"),
    ("apply skip apply", "skip skip skip", "apply"),
    ("skip skip skip", "apply skip apply", "apply"),
}
INSERT = ("insert", "commit")
SHORT_ASSIGN = ("assign's lock", "assign's commit")
NEW_ASSIGN = ("assign's insert", "assign's commit", *SHORT)
SHORT_SHARE = ("assign's share group", "assign's commit")
SHORT_FOUND = ("join's lock group", "join's write tokens")
CLAIMING = Job(token="own", steps=SHORT_CLAIM, broker=KAFKA)
TAKING_OVER = Job({P0: RANGE}, token="own", steps=(*SHORT_CLAIM, *SHORT), broker=KAFKA)

CASES = [
    # Two tasks of one job: the same token.
    case(
        "the longer range of two is cropped where the shorter came first",
        "TX-4 TX-5",
        endings={("apply", "crop"), ("skip", "apply")},
        short=Job({P0: RANGE}),
        long=Job({P0: LONGER}),
    ),
    case(
        "a range that comes before the one below it is a gap",
        "TX-6",
        endings={("apply", "apply"), ("apply", "OffsetGap")},
        below=Job({P0: RANGE}),
        above=Job({P0: NEXT}),
    ),
    # While the third holds that row, two others stand in the middle of their statements: only their order saves them.
    case(
        "a third task that holds a row in the middle makes no deadlock",
        "TX-8",
        endings=UP_DOWN_MIDDLE,
        up=Job(dict.fromkeys([P0, P1, P2], RANGE), steps=SHORT),
        down=Job(dict.fromkeys([P2, P1, P0], RANGE), steps=SHORT),
        middle=Job({P1: RANGE}, steps=SHORT),
    ),
    # A partition that the claim does not know.
    case(
        "tasks that create rows in opposite orders never deadlock",
        "TX-8 TX-10",
        endings=UP_DOWN_MIDDLE,
        up=Job(dict.fromkeys([NEW, NEWER, NEWEST], RANGE), steps=INSERT),
        down=Job(dict.fromkeys([NEWEST, NEWER, NEW], RANGE), steps=INSERT),
        middle=Job({NEWER: RANGE}, steps=INSERT),
    ),
    case(
        "a task with a new partition besides never deadlocks with one without",
        "TX-8 TX-10",
        endings={("apply apply", "skip"), ("skip apply", "apply")},
        a=Job({P0: RANGE, NEW: RANGE}, steps=("share group", "insert", *SHORT)),
        b=Job({P0: RANGE}, steps=SHORT),
    ),
    case(
        "a row whose creation is rolled back is created by the other",
        "TX-2 TX-10",
        endings={("rolled back", "apply")},
        a=Job({NEW: RANGE}, steps=("share group", "insert", "lock", "advance", "commit"), ends="rollback"),
        b=Job({NEW: RANGE}, steps=("share group", "insert", "lock", "advance", "commit")),
    ),
    case(
        "a stale task creates no row",
        "START-14 TX-10",
        endings={("StaleClaim", "apply")},
        stale=Job({NEW: RANGE}, token="stale", steps=("share group", "insert", *SHORT)),
        fresh=Job({NEW: RANGE}, steps=("share group", "insert", *SHORT)),
    ),
    # Claims: whoever locks before a claim commits is waited for, whoever locks after it is stale.
    case(
        "a job that takes over goes on where the old one ended or applies what it could not",
        "START-13 START-14",
        endings={("apply", "claimed skip"), ("StaleClaim", "claimed apply")},
        old=Job({P0: RANGE}),
        new=Job({P0: RANGE}, token="own", steps=(*CLAIM, *KNOWN), broker=KAFKA),
    ),
    case(
        "of two jobs that take over the last goes on",
        "START-14",
        endings={
            ("claimed apply", "claimed skip"),
            ("claimed skip", "claimed apply"),
            ("claimed apply", "StaleClaim"),
            ("StaleClaim", "claimed apply"),
        },
        a=TAKING_OVER,
        b=TAKING_OVER,
    ),
    case(
        "a claim anywhere between tasks that share one of their partitions",
        "START-13 START-14 TX-8",
        endings={
            ("apply apply", "skip apply", "claimed"),
            ("apply skip", "apply apply", "claimed"),
            ("apply apply", "StaleClaim", "claimed"),
            ("StaleClaim", "apply apply", "claimed"),
            ("StaleClaim", "StaleClaim", "claimed"),
        },
        a=Job({P0: RANGE, P1: RANGE}, steps=SHORT),
        b=Job({P2: RANGE, P1: RANGE}, steps=SHORT),
        claim=CLAIMING,
    ),
    case(
        "a claim anywhere between two tasks that create a row",
        "START-13 START-14 TX-10",
        endings={
            ("apply", "skip", "claimed"),
            ("skip", "apply", "claimed"),
            ("apply", "StaleClaim", "claimed"),
            ("StaleClaim", "apply", "claimed"),
            ("StaleClaim", "StaleClaim", "claimed"),
        },
        a=Job({NEW: RANGE}, steps=SHORT_UNKNOWN),
        b=Job({NEW: RANGE}, steps=SHORT_UNKNOWN),
        claim=Job(token="own", steps=SHORT_CLAIM),
    ),
    case(
        "a claim anywhere between a task that rolls back and one that commits",
        "START-13 START-14 TX-2",
        endings={
            ("rolled back", "apply", "claimed"),
            ("rolled back", "StaleClaim", "claimed"),
            ("StaleClaim", "apply", "claimed"),
            ("StaleClaim", "StaleClaim", "claimed"),
        },
        a=Job({P0: RANGE}, steps=SHORT, ends="rollback"),
        b=Job({P0: RANGE}, steps=SHORT),
        claim=CLAIMING,
    ),
    # Members of a fleet: ``a`` has the known partitions, until others take them.
    case(
        "whoever takes a partition goes on where its owner ended or fences it",
        "CONS-3",
        endings={("apply", "took skip"), ("PartitionLost", "took apply")},
        owner=Job({P0: RANGE}, member="a"),
        taker=Job({P0: RANGE}, member="b", takes=(P0,), steps=(*ASSIGN, *SHORT)),
    ),
    case(
        "what the owner rolls back is applied by whoever takes the partition",
        "CONS-3 TX-2",
        endings={("rolled back", "took apply"), ("PartitionLost", "took apply")},
        owner=Job({P0: RANGE}, member="a", steps=SHORT, ends="rollback"),
        taker=Job({P0: RANGE}, member="b", takes=(P0,), steps=(*SHORT_ASSIGN, *SHORT)),
    ),
    # While the owner holds a row in the middle, two others stand in the middle of their statements.
    case(
        "members that take partitions in opposite orders never deadlock",
        "CONS-6 TX-8",
        endings={("took", "took", "apply"), ("took", "took", "PartitionLost")},
        up=Job(member="b", takes=(*KNOWN_PARTITIONS, NEW), steps=SHORT_ASSIGN),
        down=Job(member="c", takes=(NEW, *reversed(KNOWN_PARTITIONS)), steps=SHORT_ASSIGN),
        owner=Job({P1: RANGE}, member="a", steps=SHORT),
    ),
    # Whoever comes second must not put the offset back to where the partition began.
    case(
        "one of two members makes the row of a new partition and the last has it",
        "CONS-13 CONS-6",
        endings={
            ("took apply", "took skip"),
            ("took skip", "took apply"),
            ("PartitionLost", "took apply"),
            ("took apply", "PartitionLost"),
        },
        b=Job({NEW: RANGE}, member="b", takes=(NEW,), steps=NEW_ASSIGN),
        c=Job({NEW: RANGE}, member="c", takes=(NEW,), steps=NEW_ASSIGN),
    ),
    case(
        "a member that takes its own partition again keeps its older transactions out meanwhile",
        "CONS-6",
        endings={("PartitionLost", "took apply"), ("apply", "took skip"), ("skip", "took apply")},
        older=Job({P0: RANGE}, member="a", steps=("begin", *SHORT), may_be_lost=True),
        again=Job({P0: RANGE}, member="a", takes=(P0,), steps=("release", *SHORT_ASSIGN, *SHORT)),
    ),
    case(
        "a job that takes over fences members that write or take partitions",
        "CONS-4",
        endings={(wrote, took, "claimed") for wrote in ("apply", "StaleClaim") for took in ("took", "StaleClaim")},
        owner=Job({P1: RANGE}, member="a", steps=SHORT),
        taker=Job(member="b", takes=(P0,), steps=SHORT_SHARE),
        job=Job(token="own", steps=("claim's lock group", "claim's commit"), broker=KAFKA),
    ),
    case(
        "a process that joins during a claim is fenced by it or fences it",
        "CONS-4",
        endings={("claimed apply", "joined"), ("StaleClaim", "joined")},
        job=TAKING_OVER,
        fleet=Job(joins="another", steps=FOUND),
    ),
    case(
        "another fleet fences members that write or take partitions",
        "CONS-12",
        endings={(wrote, took, "joined") for wrote in ("apply", "StaleClaim") for took in ("took", "StaleClaim")},
        owner=Job({P1: RANGE}, member="a", steps=SHORT),
        taker=Job(member="b", takes=(P0,), steps=SHORT_SHARE),
        fleet=Job(joins="another", steps=SHORT_FOUND),
    ),
]


@pytest.mark.parametrize(("parts", "endings"), CASES)
def test_in_every_order(jobs: Jobs, parts: dict[str, Job], endings: set[tuple[str, ...]]) -> None:
    assert {tuple(run.endings.values()) for run in jobs.explore(**parts)} == endings


@pytest.mark.behaviour("CONS-3", "TX-8")
def test_nobody_waits_without_a_partition_in_common_or_for_a_process_that_joins_the_fleet(jobs: Jobs) -> None:
    apart = jobs.explore(a=Job({P0: RANGE}, steps=SHORT), b=Job({P1: RANGE}, steps=SHORT))
    joining = jobs.explore(
        owner=Job({P0: RANGE}, member="a", steps=SHORT),
        taker=Job(member="b", takes=(P1,), steps=SHORT_ASSIGN),
        new=Job(joins=KAFKA_GROUP, steps=("join's share group",)),
    )

    assert len(apart) == 6
    assert len(joining) == 30
    assert not any(turn.has_waiting for run in (*apart, *joining) for turn in run.played.turns)

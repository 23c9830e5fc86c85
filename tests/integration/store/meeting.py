"""Jobs, claims and members that meet: what they write, and how the database shows that one waits for another."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeAlias

from offsetstore import Claim, OffsetRange, OffsetStore, StartPolicy, TopicPartition
from offsetstore.store.claim import ClaimRequest
from offsetstore.store.fleet import Member, join
from offsetstore.testing import StaticBroker
from tests.integration.conftest import Query, Rows
from tests.support.waiting import wait_until

GROUP = "billing"
P0, P1, P2 = (TopicPartition("payments", number) for number in range(3))
DEADLOCKS = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
Joins: TypeAlias = Callable[..., Member]


def broker(partitions: int = 1) -> StaticBroker:
    return StaticBroker.with_topics({"payments": partitions}, end=1000)


def waiting(query: Query) -> Rows:
    """The processes of ours that wait for a lock."""
    return query(
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database() "
        "AND wait_event_type = 'Lock' AND application_name LIKE 'offsetstore:%'"
    )


def wait_for_waiting(query: Query) -> Rows:
    return wait_until(lambda: waiting(query))


def advance(store: OffsetStore, claim: Claim, range_: OffsetRange, *partitions: TopicPartition) -> None:
    """Process without results."""
    with store.transaction(claim) as tx:
        tx.lock(dict.fromkeys(partitions, range_))
        tx.advance(tx.ranges)


@contextmanager
def joining(store: OffsetStore, **request: Any) -> Generator[Joins]:
    """Members of the group's fleet, which leave at the end."""
    made: list[Member] = []
    first = ClaimRequest(GROUP, broker(3), ("payments",), StartPolicy(), "refuse", 0.5, GROUP)

    def joins(**changes: Any) -> Member:
        made.append(join(store, replace(first, **{**request, **changes})))
        return made[-1]

    yield joins
    for member in made:
        member.close()

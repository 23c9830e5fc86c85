"""A paused group: its job waits before it computes a batch, with no transaction open and nothing locked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

from offsetstore.errors import StoreUnavailable
from offsetstore.protocol.events import Paused, Resumed
from offsetstore.store.sessions import read

if TYPE_CHECKING:
    from collections.abc import Callable

    from offsetstore.offsets import Pause, StoredOffset, TopicPartition
    from offsetstore.protocol.database import GroupRow
    from offsetstore.store.claim import Claim

INTERVAL: Final = 1.0
"""Seconds between two looks at a group that is paused."""

_T = TypeVar("_T")


class GroupPaused(Exception):
    """The group is paused: nothing was computed or written."""

    def __init__(self, pause: Pause) -> None:
        super().__init__(str(pause))
        self.pause = pause


def read_offsets(claim: Claim) -> dict[TopicPartition, StoredOffset]:
    """Read the group's rows, and in the same round trip whether it is paused.

    :raises GroupPaused: it is. A stale claim gets the rows, which show that it is stale.
    """
    owner, rows = claim.read(lambda session: session.read_group(claim.group))
    pause = _pause_of(claim, owner)
    if pause is not None:
        raise GroupPaused(pause)
    return rows


def is_paused(claim: Claim) -> bool:
    """Whether the group is paused, and still the claim's."""
    return _pause_of(claim, claim.read(lambda session: session.group(claim.group))) is not None


def when_not_paused(claim: Claim, work: Callable[[], _T], sleep: Callable[[float], None]) -> _T:
    """Call ``work``; if the group is paused, wait until it no longer is, and call it again.

    The wait also ends if the claim is stale: ``work`` then raises `StaleClaim`. It does not end if the database can't
    be reached: that may be what the group was paused for.

    :param work: raises `GroupPaused` before it computes anything.
    :param sleep: waits so many seconds; raises an error if there is no reason to go on.
    """
    while True:
        try:
            return work()
        except GroupPaused as paused:
            pause = paused.pause
        _wait(claim, pause, sleep)


def _wait(claim: Claim, pause: Pause, sleep: Callable[[float], None]) -> None:
    claim.observers.on(Paused(group=claim.group, pause=pause))
    while True:
        sleep(INTERVAL)
        try:
            owner = read(claim.database, lambda session: session.group(claim.group))
        except StoreUnavailable:
            continue
        if _pause_of(claim, owner) is None:
            break
    if owner is not None and owner.token == claim.token:
        claim.observers.on(Resumed(group=claim.group))


def _pause_of(claim: Claim, owner: GroupRow | None) -> Pause | None:
    """The group's pause, ``None`` for a stale claim."""
    return owner.pause if owner is not None and owner.token == claim.token else None

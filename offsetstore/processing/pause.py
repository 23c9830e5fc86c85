"""A paused group: its job waits before it computes a batch, with no transaction open and nothing locked."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final, TypeVar

from offsetstore.errors import OffsetStoreError
from offsetstore.offsets import Pause, StoredOffset, TopicPartition
from offsetstore.processing.unit import Unit, commit
from offsetstore.protocol.database import GroupRow
from offsetstore.protocol.events import PauseChanged
from offsetstore.runtime.functions import without_frames
from offsetstore.store.claim import Claim
from offsetstore.store.sessions import deciding, end_pause, read

INTERVAL: Final = 1.0
"""Seconds between two looks at a paused group."""

# The clocks of the database and of this process may differ.
_GRACE: Final = timedelta(minutes=1)
_WARN: Final = 60.0
"""Seconds between two warnings that the database does not answer."""

_T = TypeVar("_T")

_log = logging.getLogger("offsetstore")


class GroupPaused(Exception):
    """The group is paused: nothing was computed or written."""

    def __init__(self, pause: Pause) -> None:
        super().__init__(str(pause))
        self.pause = pause


def read_unless_paused(claim: Claim) -> dict[TopicPartition, StoredOffset]:
    """Read the group's rows, and whether it is paused.

    :raises GroupPaused: it is paused.
    :raises StaleClaim: the group was renamed.
    """
    # One round trip, since each batch asks: so a pause costs nothing (decision 0035).
    owner, rows = claim.read(lambda session: session.read_group(claim.group))
    # Only a rename leaves no rows; after any other takeover, the rows' tokens show that the claim is stale.
    if not rows and (owner is None or owner.token != claim.group_token):
        commit(claim, Unit())  # raises StaleClaim, or else the read was outdated
    pause = _pause_of(claim, owner)
    if pause is not None:
        raise GroupPaused(pause)
    return rows


def is_paused(claim: Claim) -> bool:
    """Whether the group is paused and still belongs to the claim; asked once, without retries."""
    return _pause_of(claim, _owner(claim)) is not None


def when_not_paused(claim: Claim, work: Callable[[], _T], sleep: Callable[[float], None]) -> _T:
    """Call ``work``; if the group is paused, wait until it is resumed, and call ``work`` again.

    The wait also ends if the claim is stale: ``work`` then raises `StaleClaim`. While the database can't be reached, or
    lacks our tables, the wait goes on; if `Pause.until` is set, until a minute after that.

    :param work: raises `GroupPaused` before it computes anything.
    :param sleep: sleeps this many seconds; raises if the job is being stopped.
    """
    while True:
        try:
            return work()
        except GroupPaused as paused:
            pause = without_frames(paused).pause
        _wait(claim, pause, sleep)


def _wait(claim: Claim, pause: Pause, sleep: Callable[[float], None]) -> None:
    claim.observers.on(PauseChanged(group=claim.group, pause=pause))
    warned = -math.inf
    while True:
        sleep(INTERVAL)
        try:
            owner = _owner(claim)
        # The group may be paused because the database is restarted, moved or restored: an outage ends no wait.
        except Exception as error:  # noqa: BLE001
            without_frames(error)
            if pause.until is not None and datetime.now(UTC) > pause.until + _GRACE:
                claim.observers.on(PauseChanged(group=claim.group, pause=None))
                return  # the batch meets the error, and has retries
            if time.monotonic() > warned + _WARN:
                warned = time.monotonic()
                _log.warning("group %r is paused, and the database does not answer: %s", claim.group, _name(error))
            continue
        if _pause_of(claim, owner) is None:
            break
    if owner is not None and owner.token == claim.group_token:
        claim.observers.on(PauseChanged(group=claim.group, pause=None))


def _owner(claim: Claim) -> GroupRow | None:
    return read(claim.database, lambda session: session.group(claim.group))


def _name(error: Exception) -> str:
    return str(error) if isinstance(error, OffsetStoreError) else type(error).__name__


def _pause_of(claim: Claim, owner: GroupRow | None) -> Pause | None:
    """The group's pause; ``None`` if the claim is stale."""
    if owner is None or owner.token != claim.group_token:
        return None
    # Reads write nothing, so the history gets its line from the first one that looks and may write (decision 0061).
    if owner.ended is not None:
        _record_end(claim)
    return owner.pause


def _record_end(claim: Claim) -> None:
    """Record in the history that the pause ended by itself; if that fails, the next look tries again."""
    group, again = claim.group, "The next batch tries again."
    try:
        with deciding(claim.database, group, name="pause", lock_timeout=INTERVAL, again=again) as session:
            session.lock_group(group)
            end_pause(session, group, session.group(group), claim.owner)
    except Exception as error:  # noqa: BLE001 - a missing line in the history must not stop the batch
        _log.warning("could not record that the pause of group %r has ended: %s", group, _name(without_frames(error)))

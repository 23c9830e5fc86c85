"""Taking a group over: the job start.

Kafka is asked first, so that a dead broker fences nobody; what can be seen to be wrong is seen before the fence. Then,
in one transaction: lock the group's row, lock all its partitions (which waits for a stale job's open transaction), ask
Kafka for the log ends again, resolve, and write the new token to every row of the group.
"""

from __future__ import annotations

import logging
import time
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING

from offsetstore.errors import (
    BrokerError,
    GroupBusy,
    GroupRenamed,
    KafkaGroupInUse,
    LockTimeout,
    OffsetOutOfRange,
    StoreUnavailable,
    TopicRecreated,
    TransactionLost,
)
from offsetstore.offsets import Token, TopicPartition
from offsetstore.postgres import errors
from offsetstore.protocol import failpoints
from offsetstore.protocol.database import HistoryEvent, renamed
from offsetstore.protocol.resolver import resolve
from offsetstore.protocol.stamp import latest_epoch
from offsetstore.store import adoption
from offsetstore.store.claim import Claim, ClaimRequest, name_prefix, this_process
from offsetstore.store.decisions import decisions, new_offsets
from offsetstore.store.resolving import resolve_unlocked

if TYPE_CHECKING:
    from collections.abc import Sequence

    from offsetstore.protocol.database import GroupRow, Session
    from offsetstore.protocol.policy import StartPolicy
    from offsetstore.protocol.starting import StartingOffsets
    from offsetstore.store.adoption import QueryCheckpoint
    from offsetstore.store.store import OffsetStore

_log = logging.getLogger(__name__)

_ATTEMPTS = 3
_AGAIN = "Claim again; whether this one happened after all, the group's history tells."
_PAUSE = 0.5
# What a claim waits for after the stale transactions in its way were terminated.
_GRACE = 15.0


def take(store: OffsetStore, request: ClaimRequest) -> Claim:
    """Take the group over, see `OffsetStore.claim`.

    A log end that comes from a broker which lags behind its leader looks like a shorter topic, so a start that is out
    of range is asked for again before it is believed; a claim that lost its connection is made again.
    """
    deadline = time.monotonic() + request.takeover_timeout
    # One id for all attempts: where a COMMIT happened and its answer was lost, the next attempt meets itself.
    claim_id = uuid.uuid4()
    attempt = 0
    while True:
        # A restart is believed in last of all: it would read a whole topic again.
        careful = request if attempt == _ATTEMPTS - 1 else replace(request, policy=_without_restart(request.policy))
        try:
            return _attempt(store, careful, claim_id)
        except (OffsetOutOfRange, TopicRecreated, TransactionLost, StoreUnavailable):
            attempt += 1
            if attempt == _ATTEMPTS:
                raise
            time.sleep(_PAUSE)
        except GroupBusy:
            left = deadline - time.monotonic()
            if request.takeover != "wait" or left <= 0:
                raise
            attempt = 0
            time.sleep(min(_PAUSE, left))


def _without_restart(policy: StartPolicy) -> StartPolicy:
    return replace(policy, on_recreated="fail")


def _attempt(store: OffsetStore, request: ClaimRequest, claim_id: uuid.UUID) -> Claim:
    try:
        # All that can be seen to be wrong is seen here, before anybody's transaction is waited for, or ended.
        if request.takeover != "fence":
            _check_owner(store.owner(request.group), request, claim_id)
        # Before Kafka is asked: a live job may advance meanwhile, and must not seem to be beyond the end.
        stored = store.offsets(request.group)
        view = request.view()
        adopted = adoption.read_for(request.checkpoint, stored, view)
        if view is not None:
            starts = adopted and adopted.starts(request.policy, stored, view.topics)
            resolve_unlocked(store, request.group, stored, view, request.policy, adopted=starts)
        has_members = _has_members(request)
        return _fence(store, request, claim_id, adopted, has_members=has_members)
    except Exception as error:
        if errors.is_connection_lost(error):
            raise TransactionLost(
                "the connection to the database was lost during the claim", found=errors.words(error), next_step=_AGAIN
            ) from errors.stripped(error)
        if errors.is_repeatable(error):
            raise TransactionLost(
                "the database gave up the claim's transaction (a deadlock, or a serialization failure)",
                found=errors.words(error),
                next_step="Claim again.",
            ) from errors.stripped(error)
        if errors.is_lock_timeout(error):
            raise LockTimeout(
                f"group {request.group!r} is locked by somebody who is no job of this group", found=errors.words(error)
            ) from errors.stripped(error)
        if (unavailable := errors.unavailable(error)) is not None:
            raise unavailable from errors.stripped(error)
        errors.raise_stripped(error)
        raise


def _has_members(request: ClaimRequest) -> bool:
    """Whether another application uses the group that the claim would copy its offsets to."""
    broker = request.mirrored_to
    if broker is None:
        return False
    try:
        has_members = broker.has_members(request.kafka_group)
    except BrokerError as error:
        if request.policy.on_members == "refuse":
            raise
        # Kafka refuses every commit while there are members, and the mirror compares before each.
        _log.warning("whether group %r has members in Kafka could not be seen: %s", request.kafka_group, error)
        return False
    if has_members and request.policy.on_members == "refuse":
        raise KafkaGroupInUse(
            f"the group {request.kafka_group!r} has members in Kafka: another application uses it",
            found='members, and on_members="refuse"',
            expected="a group that only this job has",
        )
    return has_members


def _fence(
    store: OffsetStore,
    request: ClaimRequest,
    claim_id: uuid.UUID,
    adopted: QueryCheckpoint | None,
    *,
    has_members: bool,
) -> Claim:
    name = name_prefix(request.group)
    session = store.database.begin(name=f"{name}claim", lock_timeout=request.takeover_timeout + _GRACE)
    try:
        with store.database.unblocking(session, after=request.takeover_timeout, older_than=name):
            token, partitions, starting, owner = _claim(request, session, claim_id, store.database.store_id(), adopted)
        failpoints.reach("in_claim")
        session.commit()
    except BaseException:
        session.rollback()
        raise
    for tp, start in starting.starts.items() if starting else ():
        if start.skipped:
            _log.warning("%s starts at %d and skips %s: %s", tp, start.offset, start.skipped, start.reason.value)
    return Claim(
        store, request, token=token, partitions=partitions, starting=starting, owner=owner, has_members=has_members
    )


def _claim(
    request: ClaimRequest, session: Session, claim_id: uuid.UUID, store_id: uuid.UUID, adopted: QueryCheckpoint | None
) -> tuple[Token, set[TopicPartition], StartingOffsets | None, str]:
    group = request.group
    before = session.lock_group(group)
    if request.takeover != "fence":
        _check_owner(session.group(group), request, claim_id)
    rows = session.lock_partitions(group, None)
    if not rows:
        _refuse_renamed(group, session.history(group))
    view = request.view()
    starts = adopted.starts(request.policy, rows, view.topics) if adopted and view else None
    starting = (
        None if view is None else resolve(rows, view, request.policy, store_id=store_id, group=group, adopted=starts)
    )
    copied = latest_epoch(view.committed.values(), store_id) if view is not None else 0
    token = Token(max(before.epoch, copied) + 1, claim_id)
    owner = this_process()
    session.write_group(group, token, owner)
    history = [HistoryEvent("claim", None, None, None, token, owner, f"takeover={request.takeover}")]
    partitions = set(rows)
    if starting is not None and view is not None:
        session.set_partitions(group, token, new_offsets(rows, starting, view))
        decided = decisions(rows, starting, token, owner)
        history += adopted.told(decided, starting, request.policy) if adopted else decided
        partitions |= starting.starts.keys()
    session.append_history(group, history)
    return token, partitions, starting, owner


def _refuse_renamed(group: str, history: Sequence[HistoryEvent]) -> None:
    """A supervisor starts a job again under the name that it knows: it would read all of the topic once more."""
    if (last := renamed(history)) is not None:
        raise GroupRenamed(f"the group {group!r} was renamed", found=last.reason, expected="a claim by its new name")


def _check_owner(owner: GroupRow | None, request: ClaimRequest, claim_id: uuid.UUID) -> None:
    if owner is None or owner.token.claim_id == claim_id or not owner.is_live:
        return
    raise GroupBusy(f"group {request.group!r} has a live owner", found=owner.in_words())

"""A claim: one job's right to write for a consumer group, until the next claim.

`take` is the job start. Kafka is asked first, so that a dead broker fences nobody; what can be seen to be wrong is
seen before the fence. Then, in one transaction: lock the group's row, lock all its partitions (which waits for a stale
job's open transaction), ask Kafka for the log ends again, resolve, and write the new token to every row of the group.
"""

from __future__ import annotations

import getpass
import hashlib
import logging
import math
import os
import socket
import threading
import time
import uuid
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, Self, get_args
from urllib.parse import quote

from offsetstore import failpoints
from offsetstore.errors import (
    ClaimInUse,
    ConfigurationError,
    GroupBusy,
    LockTimeout,
    OffsetOutOfRange,
    StoreUnavailable,
    TopicRecreated,
    TransactionLost,
)
from offsetstore.offsets import StoredOffset, Token, TopicPartition
from offsetstore.resolver import resolve
from offsetstore.stamp import Stamp, latest_epoch
from offsetstore.starting import Reason, Start, StartingOffsets
from offsetstore.store import adoption, failures
from offsetstore.store.heartbeat import LIVE, Heartbeat
from offsetstore.store.mirror import EVERY, Mirror, MirrorTarget
from offsetstore.store.session import HistoryEvent, NewOffset

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

    from offsetstore.offsets import BrokerView
    from offsetstore.policy import StartPolicy
    from offsetstore.ports import BrokerOffsets, CheckpointFiles
    from offsetstore.store.adoption import QueryCheckpoint
    from offsetstore.store.session import GroupRow, Session
    from offsetstore.store.store import OffsetStore

Takeover = Literal["fence", "wait", "refuse"]

_log = logging.getLogger(__name__)

_ATTEMPTS = 3
_PAUSE = 0.5
# What a claim waits for after the stale transactions in its way were terminated.
_GRACE = 15.0

_EVENTS = {
    Reason.RECREATED_RESTART: "restart",
    Reason.DATA_LOSS_ACCEPTED: "skip",
    Reason.REWOUND_STORED: "rewound",
    Reason.REWOUND_KAFKA: "rewound",
}
# What Kafka has must not win over these the next time, until the mirror has overwritten it.
_PINS = {Reason.RECREATED_RESTART, Reason.REWOUND_STORED, Reason.REWOUND_KAFKA}


@dataclass(frozen=True, slots=True)
class ClaimRequest:
    """What a claim was asked for; see `OffsetStore.claim`."""

    group: str
    broker: BrokerOffsets | None
    topics: tuple[str, ...]
    policy: StartPolicy
    takeover: Takeover
    takeover_timeout: float
    kafka_group: str
    mirror_every: float | None = EVERY
    checkpoint: CheckpointFiles | None = None

    def __post_init__(self) -> None:
        """Refuse what can't be right, before anything is asked.

        :raises ConfigurationError: naming the argument.
        """
        if not self.group or "\0" in self.group:
            what = "not a consumer group"
            raise ConfigurationError(what, found=repr(self.group), expected="a name")
        if not self.topics:
            what = "the claim names no topics"
            raise ConfigurationError(what, expected='topics=["..."], or a broker made from Spark\'s options')
        if self.takeover not in get_args(Takeover):
            what = "there is no such takeover"
            raise ConfigurationError(what, found=repr(self.takeover), expected=" or ".join(get_args(Takeover)))
        if not 0 <= self.takeover_timeout < math.inf:
            what = "not a takeover_timeout"
            raise ConfigurationError(what, found=self.takeover_timeout, expected="seconds, from 0 upwards")
        if self.mirror_every is not None and not 0 < self.mirror_every < math.inf:
            what = "not a mirror_every"
            raise ConfigurationError(what, found=self.mirror_every, expected="seconds, above 0, or None for no mirror")

    def view(self) -> BrokerView | None:
        """What Kafka says now, ``None`` without a broker."""
        if self.broker is None:
            return None
        return self.broker.view(self.kafka_group, self.topics, timestamp_ms=self.policy.timestamp_ms)


class Claim:
    """The right to write for ``group``, made by `OffsetStore.claim`.

    ``token`` is what every write is checked against, ``partitions`` the partitions whose rows it knows to exist,
    ``starting`` how the start was resolved (``None`` without a broker), ``mirror`` what copies its offsets to Kafka
    (``None`` if nothing does), ``owner`` who it is, for people.
    """

    def __init__(
        self,
        store: OffsetStore,
        request: ClaimRequest,
        *,
        token: Token,
        partitions: set[TopicPartition],
        starting: StartingOffsets | None,
        owner: str,
    ) -> None:
        self.store = store
        self.group = request.group
        self.broker = request.broker
        self.topics = request.topics
        self.token = token
        self.partitions = partitions
        self.starting = starting
        self.owner = owner
        self.name = f"{name_prefix(request.group)}{token.epoch}:{token.claim_id.hex[:8]}"
        self.checkpoint_base: str | None = None
        self.keeps_checkpoint = False
        self._query_id: str | None = None
        self._binding = threading.Lock()
        self._heartbeat = Heartbeat(store.database, token.claim_id, self.name)
        self.mirror = self._start_mirror(request)

    def _start_mirror(self, request: ClaimRequest) -> Mirror | None:
        # One of the user's own making may have been made before there was a mirror.
        if self.starting is None or request.mirror_every is None or not hasattr(request.broker, "commit"):
            return None
        assert request.broker is not None
        ignored = frozenset(self.partitions - self.starting.starts.keys())
        target = MirrorTarget(request.broker, request.kafka_group, request.mirror_every, ignored)
        stamp = Stamp(self.store.database.store_id(), self.token.epoch)
        return Mirror(self.store.database, self, stamp, target)

    @property
    def starting_offsets(self) -> str:
        """Spark's ``startingOffsets``, naming every partition of every topic.

        :raises ConfigurationError: the claim was made without a broker.
        """
        if self.starting is None:
            what = "the claim was made without a broker, so it does not know the partitions"
            raise ConfigurationError(
                what,
                next_step="Pass Broker.from_spark(options) to store.claim, or keep a checkpoint of your own.",
            )
        return self.starting.json()

    def checkpoint(self, base: str, *, keep: bool = False) -> str:
        """A checkpoint location of this claim alone, ``<base>/<group>/<epoch>-<claim id>``.

        Spark ignores ``startingOffsets`` once a checkpoint exists, so each claim gets a fresh one and the store
        decides. The sink removes old ones after its first committed batch.

        :param base: any path that Spark takes.
        :param keep: for a query with state: ``<base>/<group>/kept``, the same for every claim and never removed. The
            sink then holds the checkpoint and the database against each other, see docs/stateful.md.
        """
        self.checkpoint_base = f"{base.rstrip('/')}/{quote(self.group, safe='').replace('.', '%2E')}"
        self.keeps_checkpoint = keep
        own = "kept" if keep else f"{self.token.epoch}-{self.token.claim_id}"
        return f"{self.checkpoint_base}/{own}"

    def bind(self, query_id: str) -> None:
        """Tie the claim to the first streaming query that writes with it.

        In memory is enough: a claim lives in one process, and its token nowhere else.

        :raises ClaimInUse: it is tied to another query.
        """
        with self._binding:  # two queries may come at once
            if self._query_id is None:
                self._query_id = query_id
        if self._query_id != query_id:
            what = f"the claim of group {self.group!r} is used by a second streaming query"
            raise ClaimInUse(what, found=f"query {query_id}", expected=f"query {self._query_id}")

    def close(self) -> None:
        """Leave: copy the last offsets to Kafka, and tell the next claim that it need not wait. The offsets stay."""
        if self.mirror is not None:
            self.mirror.close()
        self._heartbeat.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Claim of {self.group!r}, {self.token}>"


def name_prefix(group: str) -> str:
    """How the ``application_name`` of all transactions of a group begins; PostgreSQL keeps 63 bytes of it."""
    return f"offsetstore:{hashlib.sha256(group.encode()).hexdigest()[:12]}:"


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
            resolve(stored, view, request.policy, store_id=store.database.store_id(), adopted=starts)
        return _fence(store, request, claim_id, adopted)
    except Exception as error:
        if failures.is_connection_lost(error):
            what = "the connection to the database was lost during the claim"
            raise TransactionLost(what, next_step="Claim again.") from error
        if failures.is_repeatable(error):
            what = "the database gave up the claim's transaction (a deadlock, or a serialization failure)"
            raise TransactionLost(what, next_step="Claim again.") from error
        if failures.is_lock_timeout(error):
            what = f"group {request.group!r} is locked by somebody who is no job of this group"
            raise LockTimeout(what) from error
        raise


def _fence(store: OffsetStore, request: ClaimRequest, claim_id: uuid.UUID, adopted: QueryCheckpoint | None) -> Claim:
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
    return Claim(store, request, token=token, partitions=partitions, starting=starting, owner=owner)


def _claim(
    request: ClaimRequest, session: Session, claim_id: uuid.UUID, store_id: uuid.UUID, adopted: QueryCheckpoint | None
) -> tuple[Token, set[TopicPartition], StartingOffsets | None, str]:
    group = request.group
    before = session.lock_group(group)
    if request.takeover != "fence":
        _check_owner(session.group(group), request, claim_id)
    rows = session.lock_partitions(group, None)
    view = request.view()
    starts = adopted.starts(request.policy, rows, view.topics) if adopted and view else None
    starting = None if view is None else resolve(rows, view, request.policy, store_id=store_id, adopted=starts)
    copied = latest_epoch(view.committed.values(), store_id) if view is not None else 0
    token = Token(max(before.epoch, copied) + 1, claim_id)
    owner = this_process()
    session.write_group(group, token, owner)
    history = [HistoryEvent("claim", None, None, None, token, owner, f"takeover={request.takeover}")]
    partitions = set(rows)
    if starting is not None and view is not None:
        session.set_partitions(group, token, _new_offsets(rows, starting, view))
        decisions = _decisions(rows, starting, token, owner)
        history += adopted.told(decisions, starting, request.policy) if adopted else decisions
        partitions |= starting.starts.keys()
    session.append_history(group, history)
    return token, partitions, starting, owner


def _check_owner(owner: GroupRow | None, request: ClaimRequest, claim_id: uuid.UUID) -> None:
    if owner is None or owner.token.claim_id == claim_id or owner.alive_for is None or owner.alive_for >= LIVE:
        return
    what = f"group {request.group!r} has a live owner"
    seen = owner.alive_for.total_seconds()
    raise GroupBusy(what, found=f"{owner.owner}, {owner.token}, seen {seen:.0f} s ago")


def _new_offsets(
    rows: Mapping[TopicPartition, StoredOffset], starting: StartingOffsets, view: BrokerView
) -> dict[TopicPartition, NewOffset]:
    new: dict[TopicPartition, NewOffset] = {}
    for tp, start in starting.starts.items():
        row = rows.get(tp)
        # After a restart Kafka's own offset is the old log's: it must not win the next time.
        is_restart = start.reason is Reason.RECREATED_RESTART
        known = None if is_restart else row
        new[tp] = NewOffset(
            start.offset,
            # An id that this broker does not tell is not forgotten.
            view.topics[tp.topic].topic_id or (known.topic_id if known else None),
            view.cluster_id or (known.cluster_id if known else None),
            start.reason in _PINS or (row is not None and row.pinned) or _passes_over(start),
        )
    for tp in starting.vanished:
        new[tp] = NewOffset(0, view.topics[tp.topic].topic_id, view.cluster_id, pinned=True)
    return {tp: value for tp, value in sorted(new.items()) if not _same(rows.get(tp), value)}


def _passes_over(start: Start) -> bool:
    """Below what Kafka has: an adopted offset, and a rewound row whose records are gone too."""
    if start.committed is None or start.offset >= start.committed.next_offset:
        return False
    is_accepted = start.reason is Reason.DATA_LOSS_ACCEPTED
    return start.reason is Reason.CHECKPOINT or (is_accepted and (not start.stored or bool(Stamp.of(start.committed))))


def _same(row: StoredOffset | None, new: NewOffset) -> bool:
    # A pin is renewed: its epoch shall be above those of all copies that were seen.
    if row is None or new.pinned:
        return False
    return NewOffset(row.next_offset, row.topic_id, row.cluster_id, row.pinned) == new


def _decisions(
    rows: Mapping[TopicPartition, StoredOffset], starting: StartingOffsets, token: Token, owner: str
) -> list[HistoryEvent]:
    events = [
        HistoryEvent(_EVENTS.get(start.reason, "adopt"), tp, _before(start), start.offset, token, owner, _why(start))
        for tp, start in starting.starts.items()
        if _before(start) != start.offset or _EVENTS.get(start.reason) == "rewound"
    ]
    return events + [
        HistoryEvent(
            "restart", tp, rows[tp].next_offset, 0, token, owner, "vanished from Kafka, and a restart was asked for"
        )
        for tp in starting.vanished
    ]


def _before(start: Start) -> int | None:
    return None if start.stored is None else start.stored.next_offset


def _why(start: Start) -> str:
    return start.reason.value if start.skipped is None else f"{start.reason.value}; skips {start.skipped}"


def this_process() -> str:
    """Who acts, for people: user, host and process id."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):
        user = f"uid {os.getuid()}"
    return f"{user}@{socket.gethostname()}:{os.getpid()}"

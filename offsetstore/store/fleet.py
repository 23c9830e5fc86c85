"""Members of a fleet: how a process joins a claim that others share, and takes and gives back partitions.

To found a fleet is to claim the whole group, see `offsetstore.store.acquire`; to take partitions is the same for these
alone, under a share of the group's row, which keeps claims out but no other member. See `offsetstore.protocol.runs`.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Collection, Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import replace

from offsetstore.errors import (
    ConfigurationError,
    LockTimeout,
    OffsetStoreError,
    PartitionLost,
    StaleClaim,
    TopicMissing,
)
from offsetstore.offsets import BrokerView, EpochPair, StoredOffset, Token, TopicPartition, Watermarks
from offsetstore.protocol.database import GroupRow, Session
from offsetstore.protocol.log_evidence import look
from offsetstore.protocol.runs import fleet_name, may_share
from offsetstore.protocol.starting import StartingOffsets
from offsetstore.runtime import failpoints
from offsetstore.runtime.functions import dropped
from offsetstore.store.acquire import (
    AGAIN,
    Asked,
    Evidence,
    ask,
    decided,
    decisions,
    lock_whole,
    resolve_again,
    until_believed,
    write_starts,
    write_whole,
)
from offsetstore.store.claim import Acquired, Claim, ClaimRequest
from offsetstore.store.heartbeat import new_run, recording_refusals
from offsetstore.store.identity import name_prefix, taken_by, this_process
from offsetstore.store.log_watch import LOOK_SECONDS
from offsetstore.store.sessions import Connected, deciding, fencing, patiently, read, transaction
from offsetstore.store.term import Terms, begin

_SOON = 1.0  # seconds until a terminated connection has ended
_PAIRS_LOCK = 1.0
_TAKE_AGAIN = "Assign the partitions again; that changes nothing where they were taken."


class Member(Claim):
    """One process of a fleet: a claim whose ``token`` is only in the rows of the partitions that it has taken.

    ``fleet`` is the token of the group's row, which all members share, and ``fleet_name`` tells the cluster and the
    group in Kafka. ``starting`` is where the whole group starts, for the member that has founded the fleet.
    ``partitions`` are the member's own: a transaction with any other raises `PartitionLost`, and may be repeated
    without it. Once it ``is_lost``, the group is no longer the fleet's. ``doubts`` are partitions that could not be
    taken because their logs end below the stored offsets, and since when, by the monotonic clock: for half a minute a
    new leader may not know the end.
    """

    is_member = True

    def __init__(
        self, store: Connected, request: ClaimRequest, acquired: Acquired, fleet: Token, fleet_name: str
    ) -> None:
        self.fleet = fleet  # the first heartbeat may be sent before this returns
        self.fleet_name = fleet_name
        self._request = request
        self.doubts: dict[TopicPartition, float] = {}
        super().__init__(store, request, acquired)

    @property
    def group_token(self) -> Token:
        """The fleet's: `token` is this member's."""
        return self.fleet

    def new_terms(self, partitions: Collection[TopicPartition]) -> Terms:
        """Return `terms`: new ones begin with `assign` alone.

        :raises PartitionLost: it does not have one of the partitions.
        """
        terms = self.terms
        for tp in partitions:
            if tp not in terms:
                raise self.no_term(tp)
        return terms

    def no_term(self, tp: TopicPartition) -> OffsetStoreError:
        """See `ClaimInfo`."""
        if self.is_lost:
            return StaleClaim(
                f"group {self.group!r} is no longer this fleet's", topic_partition=tp, found=self.taken_by
            )
        return PartitionLost(
            "this member of the fleet does not have the partition",
            topic_partition=tp,
            expected=f"one of its {len(self.terms)} partitions",
        )

    def assign(self, partitions: Collection[TopicPartition]) -> StartingOffsets:
        """Take the partitions, whoever has them, and resolve where they start, as a claim does for all.

        It waits for the former owner's open transaction, and ends it after the request's ``takeover_timeout``. What was
        known of these partitions is forgotten: letters, failures, metadata and positions are read anew.

        :return: where they start; nothing without partitions.
        :raises StaleClaim: the group is no longer the fleet's; or where they start is a decision of the policy, which
            is made for the whole group: by the next process that joins, since that founds a fleet.
        :raises OffsetOutOfRange: a log ends below its stored offset, which may pass: see ``doubts``.
        :raises StartError: where they start can't be decided safely; nothing was taken.
        :raises BrokerError: a request to Kafka failed; nothing was taken.
        """
        wanted = frozenset(partitions)
        for tp in sorted(wanted):
            self._require_topic(tp, "member.assign")
        self.require_open()
        # Before they are taken: a transaction could find a new row beside what is kept of an old term (decision 0090).
        self.release(wanted)
        if not wanted:
            return StartingOffsets({})
        request = replace(self._request, partitions=wanted, takeover="fence")
        try:
            acquired = until_believed(
                self, request, lambda asked, evidence: _assign(self, asked, evidence), proven=self._proven
            )
        except StaleClaim as error:
            self.lose(by=self.taken_by if error.found is None else str(error.found))
            raise
        assert acquired.starting is not None
        with self._binding:
            self.terms = {**self.terms, **acquired.terms}
        self.forget_doubts(wanted)
        return acquired.starting

    def _proven(self, confirmed: Mapping[TopicPartition, str]) -> dict[TopicPartition, str]:
        """The logs that have been too short for so long that a new leader does not explain it.

        Leaders change when members come and go, and what is recorded stays until an operator resets (decision 0090).
        """
        now = time.monotonic()
        for tp in confirmed:
            self.doubts.setdefault(tp, now)
        return {tp: what for tp, what in confirmed.items() if now - self.doubts[tp] >= LOOK_SECONDS}

    def unblock(self, partitions: Collection[TopicPartition]) -> None:
        """End an assignment that has held the rows for longer than the request's ``takeover_timeout``: it is frozen.

        Raises nothing.
        """
        # Nothing else that holds the rows is ended: it may be this member's own transaction (decision 0090).
        group, timeout = self.group, self._request.takeover_timeout
        with (
            dropped(OffsetStoreError),  # the next attempt meets it, too
            deciding(self.database, group, name="unblock", lock_timeout=timeout + _SOON, again=_TAKE_AGAIN) as session,
            self.database.unblocking(session, after=timeout, older_than=f"{name_prefix(group)}assign"),
        ):
            session.lock_partitions(group, partitions)

    def find_lost(self, pairs: Mapping[TopicPartition, EpochPair]) -> set[TopicPartition]:
        """The partitions whose logs may have lost records that were read; `assign` tells of what is stored."""
        find = self._request.find_truncated
        return set() if find is None else {*find(pairs)}

    def write_pairs(self, pairs: Mapping[TopicPartition, EpochPair], *, asks: bool = True) -> None:
        """Write how far these logs were read, and in which leader epoch: an assignment compares the log with that.

        A former pair of another epoch is compared before it is replaced. If the log has lost that, it stays, and this
        member goes on no further (see `require_log`).

        :param pairs: the next offset of each partition, and the epoch of the record before it.
        :param asks: whether Kafka may be asked; else a pair of another epoch is left as it is.
        :raises BrokerError: a log could not be compared; the other pairs are written.
        """
        stored = read(
            self.database,
            lambda session: session.read_partitions(self.group, sorted(pairs)),
            name=self.name,
            lock_timeout=_PAIRS_LOCK,
            dedicated=True,
        )
        rows = {tp: row for tp, row in stored.items() if row.token == self.token}
        logs = {tp: _as_read(row, pairs[tp]) for tp, row in rows.items()}
        looked = look(rows, logs, self._request.find_truncated if asks else None)
        kept = {tp: looked.pair(tp, row, min(row.next_offset, logs[tp].end), logs[tp]) for tp, row in rows.items()}
        new = {tp: pair for tp, pair in kept.items() if pair is not None and _is_news(pair, rows[tp].pair)}
        if new:
            with transaction(self.database, name=self.name, lock_timeout=_PAIRS_LOCK, dedicated=True) as session:
                session.write_pairs(self.group, self.token, new)
        if looked.truncated:
            self.note_lost(looked.truncated)
        looked.expect_told()

    def release(self, partitions: Collection[TopicPartition]) -> None:
        """Give partitions back: from now on no transaction of this member locks them.

        A transaction that has locked them goes on with the terms that it has: whoever takes them waits for it. Nothing
        is written, so their rows keep this member's token until then.
        """
        released = frozenset(partitions)
        with self._binding:
            self.terms = {tp: term for tp, term in self.terms.items() if tp not in released}

    def forget_doubts(self, partitions: Iterable[TopicPartition]) -> None:
        """Forget that these partitions' logs were too short: Kafka assigns them to somebody else."""
        for tp in partitions:
            self.doubts.pop(tp, None)

    def lose(self, lost: Terms | None = None, *, by: str | None = None) -> None:
        """Record that others have taken the partitions of these terms; without any, that the fleet lost the group."""
        if lost is None:
            super().lose(by=by)
            return
        with self._binding:
            self.terms = {tp: term for tp, term in self.terms.items() if lost.get(tp) is not term}

    def _beat(self, session: Session) -> bool:
        member_id = self.token.claim_id
        if session.beat_member(self.group, self.fleet, member_id):
            return True
        owner = session.group(self.group)
        is_ours = owner is not None and owner.token == self.fleet
        if not is_ours:
            self.taken_by = taken_by(session, self.group)
        elif not self.is_closed:  # it was silent for so long that its row was trimmed
            session.add_member(self.group, self.fleet, member_id, self.owner)
        return is_ours

    def _end_beat(self, session: Session) -> None:
        session.drop_member(self.group, self.token.claim_id)


def _as_read(row: StoredOffset, read: EpochPair) -> Watermarks:
    """What a member knows of a log that it reads. No epoch is lower than what was known before: see `EpochPair`."""
    epoch = read.leader_epoch if row.pair is None else max(read.leader_epoch, row.pair.leader_epoch)
    return Watermarks(0, read.offset, high=max(read.offset, row.next_offset), leader_epoch=epoch)


def _is_news(pair: EpochPair, known: EpochPair | None) -> bool:
    """Whether it covers as much as the former one: since control records are not read, it may end before that."""
    return known is None or (pair != known and pair.offset >= known.offset)


def join(store: Connected, request: ClaimRequest) -> Member:
    """Join the fleet that has the group; if there is no live one of this cluster and Kafka group, found one.

    A new fleet fences what has the group, as a claim does: a job, unless the request's ``takeover`` spares it, and
    another fleet in any case. It starts with a row for each partition, so that members resolve no more than their own.

    :raises GroupBusy: a job is live, and is to be spared.
    :raises StartError, BrokerError, LockTimeout: as a claim does, if the fleet is to be founded. A fleet can be joined
        although partitions can't start: whoever takes them gets the error.
    """
    if request.broker is None:
        raise ConfigurationError("a fleet needs a broker: Kafka deals out the partitions to its members")
    request = replace(request, shared=True, mirror_every=None)
    # The same for all attempts: if a COMMIT happened and its answer was lost, the next one finds its own fleet.
    fleet_id, member_id = uuid.uuid4(), uuid.uuid4()
    with recording_refusals(store, request.group):
        fleet, name, acquired = until_believed(
            store, request, lambda asked, evidence: _join(store, asked, fleet_id, member_id, evidence)
        )
    return Member(store, request, acquired, fleet, name)


def _join(
    store: Connected, request: ClaimRequest, fleet_id: uuid.UUID, member_id: uuid.UUID, evidence: Evidence
) -> tuple[Token, str, Acquired]:
    """Return the fleet's token and name, and what the new member has of its own."""
    group = request.group

    def is_shared(view: BrokerView) -> bool:
        name = fleet_name(view.cluster_id, request.kafka_group)
        return _shared(read(store.database, lambda session: session.group(group)), name)

    asked = ask(store, request, fleet_id, evidence, is_shared=is_shared)
    assert asked.view is not None
    assert asked.starting is not None
    fleet, store_id = fleet_name(asked.view.cluster_id, request.kafka_group), asked.identity.store_id
    token = starting = fenced = None
    if not decided(asked.starting):
        # Whatever holds the group's row for longer than a lock may take is ended by founding a fleet (decision 0090).
        with dropped(LockTimeout):
            token = _enter(store, request, fleet, member_id, asked=asked, evidence=evidence)
    if token is None:
        if asked.passed_over is not None:
            ask(store, request, fleet_id, evidence)  # all of its partitions have to start
        token, starting, store_id, fenced = _found_fleet(
            store, request, fleet, evidence, fleet_id=fleet_id, member_id=member_id
        )
    if starting is not None:
        starting = replace(starting, similar=asked.starting.similar)
    return token, fleet, Acquired(Token(token.epoch, member_id), {}, starting, this_process(), store_id, fenced)


def _shared(owner: GroupRow | None, fleet: str, *, decides: bool = False) -> bool:
    return owner is not None and may_share(owner.fleet, fleet, is_live=owner.is_live, decides=decides)


def _enter(
    store: Connected, request: ClaimRequest, fleet: str, member_id: uuid.UUID, *, asked: Asked, evidence: Evidence
) -> Token | None:
    """Become a member of the fleet and return its token; ``None`` if it does not have the group."""
    group = request.group
    new = {*request.topics}.difference(tp.topic for tp in asked.stored)
    # A share of the group's row waits for no member that takes partitions, and ends no transaction of theirs. But the
    # start of a new topic is decided for all of its partitions at once, under the lock: the first member that took one
    # would make the topic a known one, whose other partitions are read from their beginnings (decision 0090).
    waits = deciding(store.database, group, name="join", lock_timeout=store.timeouts.lock, again=AGAIN)
    with (
        fencing(store.database, group, request.takeover_timeout, name="join", again=AGAIN) if new else waits as session
    ):
        if new:
            session.lock_group(group)
        else:
            session.share_group(group)
        owner = session.group(group)
        if owner is None or not _shared(owner, fleet):
            return None
        if topics := new.difference(tp.topic for tp in session.read_partitions(group)) if new else ():
            _begin_topics(session, group, owner.token, topics, asked=asked, evidence=evidence)
        _add(session, request, owner.token, member_id)
        return owner.token


def _begin_topics(
    session: Session, group: str, fleet: Token, topics: Collection[str], *, asked: Asked, evidence: Evidence
) -> None:
    """Write where these topics start, which have no rows yet, with the fleet's token, as founding it does."""
    assert asked.view is not None
    assert asked.starting is not None
    for tp, error in sorted((asked.passed_over or {}).items()):
        if tp.topic in topics:
            raise error
    starts = {tp: start for tp, start in asked.starting.starts.items() if tp.topic in topics}
    starting = replace(asked.starting, starts=starts, vanished=())
    write_starts(session, group, fleet, {}, view=asked.view, starting=starting, looked=evidence.unlocked)
    session.append_history(group, decisions({}, starting, fleet, this_process()))


def _add(session: Session, request: ClaimRequest, fleet: Token, member_id: uuid.UUID) -> None:
    group, owner = request.group, this_process()
    session.trim_members(group, fleet.claim_id)
    session.add_member(group, fleet, member_id, owner)
    session.begin_run(group, Token(fleet.epoch, member_id), new_run(owner, request.topics), of_member=True)


def _found_fleet(
    store: Connected,
    request: ClaimRequest,
    fleet: str,
    evidence: Evidence,
    *,
    fleet_id: uuid.UUID,
    member_id: uuid.UUID,
) -> tuple[Token, StartingOffsets | None, uuid.UUID, str | None]:
    """Return the fleet's token, where it starts, the store's id, and whom it has fenced.

    If another process has founded it meanwhile, the start and the fenced one are ``None``.
    """
    group = request.group
    with fencing(store.database, group, request.takeover_timeout, name="join", again=AGAIN) as session:
        locked = lock_whole(session, request, fleet_id, evidence, schema=store.database.schema)
        owner = locked.owner
        assert locked.starting is not None
        # Another process may have founded the fleet, or made the decision, since nothing was locked.
        if owner is not None and _shared(owner, fleet, decides=bool(decided(locked.starting))):
            token, starting, fenced = owner.token, None, None
        else:
            starting = locked.starting
            why = f"takeover={request.takeover}, for a fleet of group {request.kafka_group!r} in Kafka"
            founded = write_whole(session, request, fleet_id, locked, evidence, why=why, fleet=fleet)
            token, fenced = founded.token, founded.fenced
        _add(session, request, token, member_id)
        failpoints.reach("in_claim")
    return token, starting, locked.store_id, fenced


@contextmanager
def _holding(
    member: Member,
    timeout: float,
    partitions: Collection[TopicPartition],
    new: Mapping[TopicPartition, int] | None = None,
) -> Generator[tuple[Session, Collection[TopicPartition]]]:
    """Hold the partitions' rows and a share of the group's row; end what keeps the former for ``timeout`` seconds.

    :param new: where partitions start that may have no rows; the block gets the partitions whose rows were made.
    :raises StaleClaim: the group is no longer the fleet's.
    """
    group, database = member.group, member.database
    with patiently(database, group, timeout, name="assign", again=_TAKE_AGAIN) as session:
        # Whatever else holds the group's row is about to fence this member, and is left alone: only a frozen member
        # that looks up its COMMIT is ended (decision 0090).
        with database.unblocking(session, after=timeout, older_than=f"{name_prefix(group)}{member.fleet.epoch}:"):
            token = session.share_group(group)
        if token != member.fleet:
            raise StaleClaim(
                f"group {group!r} is no longer this fleet's: it was claimed, reset or renamed",
                found=taken_by(session, group),
                expected=str(member.fleet),
            )
        with database.unblocking(session, after=timeout, older_than=name_prefix(group)):
            # Missing rows are made before any is locked: a second member that makes the same row waits here, and does
            # not put back what the first has stored (decision 0090).
            made = session.insert_partitions(group, member.token, dict(new)) if new else ()
            session.lock_partitions(group, sorted(partitions))
        yield session, made


def _assign(member: Member, request: ClaimRequest, evidence: Evidence) -> Acquired:
    """Take the request's partitions: lock their rows, resolve, and write the member's token to them."""
    group, token, wanted = request.group, member.token, sorted(request.partitions or ())
    # Before the locks: a member that is frozen while it waits for Kafka must not hold rows of others (decision 0090).
    asked = ask(member, request, token.claim_id, evidence)
    assert asked.view is not None
    assert asked.starting is not None
    offsets = asked.starting.offsets
    for tp in wanted:
        if tp not in offsets:
            raise TopicMissing("Kafka has assigned the partition, and does not show it yet", topic_partition=tp)
    new = {tp: offsets[tp] for tp in wanted}
    with _holding(member, request.takeover_timeout, wanted, new) as (session, made):
        rows = {tp: row for tp, row in session.read_partitions(group, wanted).items() if tp not in made}
        starting = resolve_again(session, request, asked, rows)
        # A topic that is restarted partition by partition would put back members that have gone on (decision 0090).
        for tp in decided(starting):
            raise StaleClaim(
                "where the partition starts is decided for the whole group, by the next process that joins",
                topic_partition=tp,
                found=starting.starts[tp].reason.value,
                next_step="Start this process again: it founds a fleet, which fences the other members.",
            )
        session.take_partitions(group, token, wanted)
        new_rows = write_starts(
            session, group, token, rows, view=asked.view, starting=starting, looked=evidence.unlocked
        )
        session.append_history(group, decisions(rows, starting, token, member.owner))
        metadata = {
            tp: row.metadata
            for tp, row in rows.items()
            if tp not in new_rows or new_rows[tp].next_offset == row.next_offset
        }
        terms = begin(session, group, wanted, metadata)
        failpoints.reach("in_claim")
    return Acquired(token, terms, starting, member.owner, member.store_id)

"""Members of a fleet: how a process joins a claim that others share, and takes and gives back partitions.

To found a fleet is to claim the whole group, see `offsetstore.store.acquire`; to take partitions is the same for these
alone, under a share of the group's row, which keeps claims out and no other member. See `offsetstore.protocol.fleet`.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection
from dataclasses import replace

from offsetstore.errors import ConfigurationError, OffsetStoreError, PartitionLost, StaleClaim, TopicMissing
from offsetstore.offsets import Token, TopicPartition
from offsetstore.protocol import failpoints
from offsetstore.protocol.database import Session
from offsetstore.protocol.fleet import fleet_name, may_share
from offsetstore.protocol.starting import StartingOffsets
from offsetstore.store.acquire import (
    AGAIN,
    Evidence,
    ask,
    decided,
    decisions,
    lock_whole,
    resolve_locked,
    until_believed,
    write_starts,
    write_whole,
)
from offsetstore.store.claim import Acquired, Claim, ClaimRequest
from offsetstore.store.identity import name_prefix, this_process
from offsetstore.store.sessions import Connected, deciding, fencing, patiently
from offsetstore.store.term import Terms, begin

_TAKE_AGAIN = "Assign the partitions again; that changes nothing where they were taken."


class Member(Claim):
    """One process of a fleet: a claim whose ``token`` only the rows of the partitions that it has taken have.

    ``fleet`` is the token of the group's row, which all members share. ``partitions`` are those that it has: a
    transaction with any other raises `PartitionLost`, and without those it may be made again. Once it ``is_lost``, the
    group is no longer the fleet's.
    """

    def __init__(self, store: Connected, request: ClaimRequest, acquired: Acquired, fleet: Token) -> None:
        self.fleet = fleet  # the first heartbeat may be sent before this returns
        self._request = request
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
            return StaleClaim(f"group {self.group!r} is no longer this fleet's", topic_partition=tp)
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
        :raises StartError: where they start can't be decided safely; nothing was taken.
        :raises BrokerError: a request to Kafka failed; nothing was taken.
        """
        wanted = frozenset(partitions)
        for tp in sorted(wanted):
            self._require_topic(tp, "member.assign")
        self.require_open()
        # Before they are taken, or a transaction could find a row that is new with what is kept of the former term.
        self.release(wanted)
        if not wanted:
            return StartingOffsets({})
        request = replace(self._request, partitions=wanted, takeover="fence")
        try:
            acquired = until_believed(self, request, lambda asked, evidence: _assign(self, asked, evidence))
        except StaleClaim:
            self.lose()
            raise
        assert acquired.starting is not None
        with self._binding:
            self.terms = {**self.terms, **acquired.terms}
        return acquired.starting

    def release(self, partitions: Collection[TopicPartition]) -> None:
        """Give partitions back: from now on no transaction of this member locks them.

        One that has locked them goes on, with what it has of their terms: whoever takes them waits for it. Nothing is
        written, so their rows keep this member's token until then.
        """
        given = frozenset(partitions)
        with self._binding:
            self.terms = {tp: term for tp, term in self.terms.items() if tp not in given}

    def lose(self, partitions: Collection[TopicPartition] = ()) -> None:
        """Record that others have these partitions; without any, that the group is no longer the fleet's."""
        if partitions:
            self.release(partitions)
        else:
            super().lose()

    def _beat(self, session: Session) -> bool:
        return session.beat_member(self.group, self.fleet.claim_id, self.token.claim_id, self.owner)

    def _end_beat(self, session: Session) -> None:
        session.drop_member(self.group, self.token.claim_id)


def join(store: Connected, request: ClaimRequest) -> Member:
    """Join the fleet that has the group; if there is none of this cluster and Kafka group, found one.

    A new fleet fences what has the group, as a claim does: a job, unless the request's ``takeover`` spares it, and
    another fleet in any case. It starts with a row for each partition, so that members resolve no more than their own.

    :raises GroupBusy: a job is live, and is to be spared.
    :raises StartError, BrokerError, LockTimeout: as a claim does.
    """
    if request.broker is None:
        raise ConfigurationError("a fleet needs a broker: Kafka deals out the partitions to its members")
    request = replace(request, shared=True, mirror_every=None)
    # The same for all attempts: if a COMMIT happened and its answer was lost, the next one finds its own fleet.
    fleet_id, member_id = uuid.uuid4(), uuid.uuid4()
    fleet, acquired = until_believed(
        store, request, lambda asked, evidence: _join(store, asked, fleet_id, member_id, evidence)
    )
    return Member(store, request, acquired, fleet)


def _join(
    store: Connected, request: ClaimRequest, fleet_id: uuid.UUID, member_id: uuid.UUID, evidence: Evidence
) -> tuple[Token, Acquired]:
    """Return the fleet's token, and what the new member has of its own."""
    asked = ask(store, request, fleet_id, evidence)
    assert asked.view is not None
    assert asked.starting is not None
    fleet = fleet_name(asked.view.cluster_id, request.kafka_group)
    group, found = request.group, None
    if not decided(asked.starting):
        # A share is enough, and waits for no member that takes partitions, nor ends its transaction.
        with deciding(store.database, group, name="join", lock_timeout=store.timeouts.lock, again=AGAIN) as session:
            session.share_group(group)
            found = _enter(session, group, fleet, member_id)
    if found is None:
        found = _found_fleet(store, request, fleet, evidence, fleet_id=fleet_id, member_id=member_id)
    token = Token(found.epoch, member_id)
    return found, Acquired(token, {}, None, this_process(), asked.identity.store_id)


def _found_fleet(
    store: Connected,
    request: ClaimRequest,
    fleet: str,
    evidence: Evidence,
    *,
    fleet_id: uuid.UUID,
    member_id: uuid.UUID,
) -> Token:
    group = request.group
    with fencing(store.database, group, request.takeover_timeout, name="join", again=AGAIN) as session:
        locked = lock_whole(session, request, fleet_id, evidence, schema=store.database.schema)
        owner = session.group(group)
        assert locked.starting is not None
        # Another process may have founded the fleet, or made the decision, since nothing was locked.
        if not may_share(owner and owner.fleet, fleet, decides=bool(decided(locked.starting))):
            why = f"takeover={request.takeover}, for a fleet of group {request.kafka_group!r} in Kafka"
            write_whole(session, request, fleet_id, locked, evidence, why=why)
            session.end_beat(fleet_id)  # a fleet has those of its members
            session.write_fleet(group, fleet)
        token = _enter(session, group, fleet, member_id)
        failpoints.reach("in_claim")
    assert token is not None
    return token


def _enter(session: Session, group: str, fleet: str, member_id: uuid.UUID) -> Token | None:
    """Become a member of the fleet, and return its token, if it has the group. Needs a share of the group's row."""
    owner = session.group(group)
    if owner is None or not may_share(owner.fleet, fleet, decides=False):
        return None
    session.trim_members(group, owner.token.claim_id)
    session.beat_member(group, owner.token.claim_id, member_id, this_process())
    return owner.token


def _assign(member: Member, request: ClaimRequest, evidence: Evidence) -> Acquired:
    """Take the request's partitions: lock their rows, resolve, and write the member's token to them."""
    group, token, wanted = request.group, member.token, sorted(request.partitions or ())
    asked = ask(member, request, token.claim_id, evidence)
    assert asked.starting is not None
    offsets = asked.starting.offsets
    for tp in wanted:
        if tp not in offsets:
            raise TopicMissing("Kafka has assigned the partition, and does not show it yet", topic_partition=tp)
    timeout = request.takeover_timeout
    with patiently(member.database, group, timeout, name="assign", again=_TAKE_AGAIN) as session:
        # Nothing is ended for the group's row: a claim that has it is about to fence this member.
        if (found := session.share_group(group)) != member.fleet:
            raise StaleClaim(
                f"group {group!r} is no longer this fleet's: it was claimed, reset or renamed",
                found=str(found or "no row"),
                expected=str(member.fleet),
            )
        with member.database.unblocking(session, after=timeout, older_than=name_prefix(group)):
            # Rows that are missing are made first: of two members that make one, the second then waits for it here.
            made = session.insert_partitions(group, token, {tp: offsets[tp] for tp in wanted})
            session.lock_partitions(group, wanted)
        rows = {tp: row for tp, row in session.read_partitions(group).items() if tp not in made}
        view, starting = resolve_locked(session, request, rows, evidence, store_id=member.store_id)
        assert view is not None
        assert starting is not None
        for tp in decided(starting):
            raise StaleClaim(
                "where the partition starts is decided for the whole group, by the next process that joins",
                topic_partition=tp,
                found=starting.starts[tp].reason.value,
                next_step="Start this process again: it founds a fleet, which fences the other members.",
            )
        session.take_partitions(group, token, wanted)
        new = write_starts(session, group, token, rows, view=view, starting=starting, looked=evidence.unlocked)
        session.append_history(group, decisions(rows, starting, token, member.owner))
        kept = {tp: rows[tp] for tp in wanted if tp in rows}
        metadata = {
            tp: row.metadata for tp, row in kept.items() if tp not in new or new[tp].next_offset == row.next_offset
        }
        terms = begin(session, group, wanted, metadata)
        failpoints.reach("in_claim")
    return Acquired(token, terms, starting, member.owner, member.store_id)

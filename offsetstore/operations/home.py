"""What an operator decides about a store whose tables are in another database: it was moved, or it is a copy.

Only the tables' owner may: the answer decides whose results count, and a job must not give it for itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID, uuid4

from offsetstore.errors import MissingPrivilege
from offsetstore.offsets import Token
from offsetstore.operations.operation import By, History, Operation, Plan, digest_of, held_by, write_token
from offsetstore.operations.people import ListedGroup, people, read_groups
from offsetstore.postgres.errors import needing
from offsetstore.postgres.session import PostgresSession
from offsetstore.protocol.database import Database, GroupRow, HistoryEvent, Session
from offsetstore.protocol.store_facts import StoreIdentity
from offsetstore.store.sessions import transaction

# A claim inserts or updates a row before it reads the identity.
LOCK_CLAIMS: Final = "LOCK TABLE {s}consumer_groups IN SHARE ROW EXCLUSIVE MODE"
SET_IDENTITY: Final = "UPDATE {s}store_identity SET store_id = :store_id, home = :home"
LOCK_OUTBOX: Final = "LOCK TABLE {s}outbox IN SHARE ROW EXCLUSIVE MODE"  # so that nobody takes an id meanwhile
# Logical replication copies no sequences, and the order of the outbox is that of its ids.
GO_ON_WITH_IDS: Final = """
SELECT setval(s.name, greatest(nextval(s.name), o.id, r.id, b.id))
FROM (SELECT CAST(pg_get_serial_sequence(:table, 'id') AS regclass) AS name) AS s,
     (SELECT max(id) AS id FROM {s}outbox) AS o,
     (SELECT max(id) AS id FROM {s}outbox_refused) AS r,
     (SELECT max(i.id) AS id FROM {s}outbox_relays CROSS JOIN LATERAL unnest(ids) AS i (id)) AS b
"""


@dataclass(frozen=True, slots=True)
class StoreDecided(Plan):
    """What was decided about the store; for a dry run, what would be.

    :param before: the store's identity before the decision.
    :param after: the identity that the decision gives it.
    :param groups: the groups whose history records it, with their owners before it; a new id fences them.
    """

    before: StoreIdentity
    after: StoreIdentity
    groups: dict[str, GroupRow]

    @property
    def identity(self) -> StoreIdentity:
        return self.after if self.executed else self.before

    @property
    def is_empty(self) -> bool:
        return self.before == self.after


class _OfStore(Operation[StoreDecided]):
    """A decision about the store."""

    group = ""

    def begin(self, database: Database, by: By) -> AbstractContextManager[Session]:
        return transaction(database, name="offsetstore:admin", lock_timeout=by.lock_timeout)


@dataclass(frozen=True)
class MoveStore(_OfStore):
    """Take this database for the store's home; see `OffsetStore.moved`."""

    def plan(self, session: Session) -> StoreDecided:
        before = session.identity()
        # Without a known home nothing is compared, and a copy of the database would pass for this one (decision 0050).
        if before.here is None:
            raise MissingPrivilege(
                "the role may not read which database this is; nothing was written",
                next_step="Let it call pg_control_system(): GRANT EXECUTE ON FUNCTION pg_control_system() TO the role.",
            )
        is_home = before.home == before.here
        groups = [] if is_home else [group for group in read_groups(people(session)) if group.partitions]
        after = StoreIdentity(before.store_id, before.here, before.here)
        return _plan("moved", before, after, groups, [group.group for group in groups])

    def locked(self, session: Session) -> Iterator[StoreDecided]:
        plan = self.plan(session)
        # If the store is at home, nothing will be written, and no claim needs to wait.
        if not plan.is_empty:
            # Meanwhile it may have been given an id, or have been moved.
            lock_identity(people(session))
            plan = self.plan(session)
        yield plan

    def write(self, session: Session, plan: StoreDecided, by: By) -> History:
        tx = people(session)
        set_identity(tx, plan.after.store_id, plan.after.home)
        with needing("let the outbox go on after its ids"):
            tx.run(LOCK_OUTBOX)
            tx.run(GO_ON_WITH_IDS, table=f"{tx.place}outbox")
        why = f"from database {plan.before.home or 'unknown'} to {plan.after.home}: {by.reason}"
        return {group: [by.event("moved", owner.token, why)] for group, owner in plan.groups.items()}


@dataclass(frozen=True)
class NewStoreId(_OfStore):
    """Make this database another store; see `OffsetStore.new_id`.

    What the groups have in Kafka is the original's. A contested row adopts nothing, whether it is pinned or not: where
    Kafka has a copy of the original's, the start ends in `ForeignStore`.
    """

    # Drawn: an id computed from the database would, in a copy of the server's files, be the original's (decision 0050).
    store_id: UUID = field(default_factory=uuid4)

    def plan(self, session: Session) -> StoreDecided:
        before = session.identity()
        # Any other name was given up by a rename or a delete.
        listed = read_groups(people(session))
        groups = [group for group in listed if group.partitions or group.owner.alive_for is not None]
        owners = [[group.group, held_by(group.owner, {})] for group in groups]
        return _plan("new-id", before, StoreIdentity(self.store_id, before.here, before.here), groups, owners)

    def locked(self, session: Session) -> Iterator[StoreDecided]:
        lock_identity(people(session))
        yield self.plan(session)

    def write(self, session: Session, plan: StoreDecided, by: By) -> History:
        set_identity(people(session), plan.after.store_id, plan.after.home)
        why = f"this database is a copy of store {plan.before.store_id}, and is store {self.store_id} now: {by.reason}"
        history: dict[str, Sequence[HistoryEvent]] = {}
        for group in plan.groups:
            token = Token(session.lock_group(group).epoch + 1, uuid4())
            rows = session.lock_group_partitions(group)
            # A running job would go on stamping its copies in Kafka with the old id.
            write_token(session, group, token, by.who)
            session.contest(group, token, rows)
            history[group] = [by.event("new-id", token, why)]
        return history


def _plan(
    event: str, before: StoreIdentity, after: StoreIdentity, groups: Sequence[ListedGroup], facts: object
) -> StoreDecided:
    digest = digest_of(event, "", str(before.store_id), before.home, before.here, facts)
    return StoreDecided(before, after, {group.group: group.owner for group in groups}, digest=digest)


def lock_identity(session: PostgresSession) -> StoreIdentity:
    """Lock out claims and other changes of the identity until the transaction ends; then read the identity."""
    with needing("change which store this is"):
        session.run(LOCK_CLAIMS)
    return session.identity()


def set_identity(session: PostgresSession, store_id: UUID, home: str | None) -> None:
    """Write the store's id and home. Claims wait until the transaction ends."""
    with needing("change which store this is"):
        session.run(LOCK_CLAIMS)
        session.run(SET_IDENTITY, store_id=store_id, home=home)

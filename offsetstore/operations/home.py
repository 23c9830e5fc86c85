"""What an operator says about the store itself if its tables are in another database: it was moved, or it is a copy.

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
    """What was said about the store; for a dry run, what would be.

    :param before: which store it was.
    :param after: which store it is then.
    :param groups: those whose history records it, with their owners of before; a new id fences them.
    """

    before: StoreIdentity
    after: StoreIdentity
    groups: dict[str, GroupRow]

    @property
    def identity(self) -> StoreIdentity:
        """Which store it is now."""
        return self.after if self.executed else self.before

    @property
    def is_empty(self) -> bool:
        """Whether the store is at home already."""
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
        if before.here is None:
            raise MissingPrivilege(
                "the role may not read which database this is; nothing was written",
                next_step="Let it call pg_control_system(): GRANT EXECUTE ON FUNCTION pg_control_system() TO the role.",
            )
        is_home = before.home == before.here
        groups = [] if is_home else [one for one in read_groups(people(session)) if one.partitions]
        after = StoreIdentity(before.store_id, before.here, before.here)
        return _plan("moved", before, after, groups, [one.group for one in groups])

    def locked(self, session: Session) -> Iterator[StoreDecided]:
        """A store that is at home is left alone."""
        plan = self.plan(session)
        if not plan.is_empty:
            lock_identity(people(session))  # it may have been given an id meanwhile, or have been moved
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

    store_id: UUID = field(default_factory=uuid4)

    def plan(self, session: Session) -> StoreDecided:
        before = session.identity()
        # The others were renamed or deleted.
        groups = [one for one in read_groups(people(session)) if one.partitions or one.owner.alive_for is not None]
        owners = [[one.group, held_by(one.owner, {})] for one in groups]
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
            write_token(session, group, token, by.who)  # a job that runs stamps with the id of before
            session.contest(group, token, rows)
            history[group] = [by.event("new-id", token, why)]
        return history


def _plan(
    event: str, before: StoreIdentity, after: StoreIdentity, groups: Sequence[ListedGroup], facts: object
) -> StoreDecided:
    digest = digest_of(event, "", str(before.store_id), before.home, before.here, facts)
    return StoreDecided(before, after, {one.group: one.owner for one in groups}, digest=digest)


def lock_identity(session: PostgresSession) -> StoreIdentity:
    """Lock out claims, and others who would change it, until the transaction ends; then read which store it is."""
    with needing("change which store this is"):
        session.run(LOCK_CLAIMS)
    return session.identity()


def set_identity(session: PostgresSession, store_id: UUID, home: str | None) -> None:
    """Make it another store, or give it another home. Claims wait until the transaction ends."""
    with needing("change which store this is"):
        session.run(LOCK_CLAIMS)
        session.run(SET_IDENTITY, store_id=store_id, home=home)

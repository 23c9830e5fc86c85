"""What an operator says about the store itself if its tables are in another database: it was moved, or it is a copy.

Only the tables' owner may: the answer decides whose results count, and a job must not give it for itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from uuid import uuid4

from offsetstore.errors import MissingPrivilege
from offsetstore.offsets import Token
from offsetstore.operations.admin import expect_decision, write_token
from offsetstore.operations.plans import digest_of, expect_plan, held_by
from offsetstore.protocol.database import Database, GroupRow, HistoryEvent, ListedGroup, Session
from offsetstore.protocol.store_facts import StoreIdentity
from offsetstore.store.identity import this_process
from offsetstore.store.sessions import read, transaction

_NAME = "offsetstore:admin"


@dataclass(frozen=True, slots=True)
class StoreDecided:
    """What was said about the store; for a dry run, what would be.

    :param identity: which store it is now.
    :param groups: those whose history records it, with their owners of before; a new id fences them.
    :param digest: for ``if_plan``.
    :param executed: whether anything was written.
    """

    identity: StoreIdentity
    groups: dict[str, GroupRow]
    digest: str
    executed: bool = False


def moved(
    database: Database, *, reason: str, actor: str | None, lock_timeout: float, dry_run: bool, if_plan: str | None
) -> StoreDecided:
    """Take this database for the store's home; see `OffsetStore.moved`."""
    expect_decision(reason, actor)

    def look(session: Session, identity: StoreIdentity) -> StoreDecided:
        if identity.here is None:
            raise MissingPrivilege(
                "the role may not read which database this is; nothing was written",
                next_step="Let it call pg_control_system(): GRANT EXECUTE ON FUNCTION pg_control_system() TO the role.",
            )
        is_home = identity.home == identity.here
        groups = [] if is_home else [one for one in session.groups() if one.partitions]
        names = [one.group for one in groups]
        return expect_plan(_plan("moved", identity, groups, names), if_plan)

    if dry_run:
        return read(database, lambda session: look(session, session.identity()))
    with transaction(database, name=_NAME, lock_timeout=lock_timeout) as session:
        before = session.identity()
        if before.home != before.here:
            before = session.lock_identity()  # it may have been given an id meanwhile, or have been moved
        found = look(session, before)
        after = StoreIdentity(before.store_id, before.here, before.here)
        if after != before:
            session.set_identity(after.store_id, after.home)
            why = f"from database {before.home or 'unknown'} to {after.home}: {reason}"
            for group, owner in found.groups.items():
                line = HistoryEvent("moved", None, None, None, owner.token, actor or this_process(), why)
                session.append_history(group, [line])
    database.check_schema()
    return replace(found, identity=after, executed=after != before)


def new_id(
    database: Database, *, reason: str, actor: str | None, lock_timeout: float, dry_run: bool, if_plan: str | None
) -> StoreDecided:
    """Make this database another store; see `OffsetStore.new_id`.

    What the groups have in Kafka is the original's. A contested row adopts nothing, whether it is pinned or not: where
    Kafka has a copy of the original's, the start ends in `ForeignStore`.
    """
    expect_decision(reason, actor)
    who = actor or this_process()

    def look(session: Session, identity: StoreIdentity) -> StoreDecided:
        # The others were renamed or deleted.
        groups = [one for one in session.groups() if one.partitions or one.owner.alive_for is not None]
        owners = [[one.group, held_by(one.owner, {})] for one in groups]
        return expect_plan(_plan("new-id", identity, groups, owners), if_plan)

    if dry_run:
        return read(database, lambda session: look(session, session.identity()))
    with transaction(database, name=_NAME, lock_timeout=lock_timeout) as session:
        before = session.lock_identity()
        found = look(session, before)
        after = StoreIdentity(uuid4(), before.here, before.here)
        session.set_identity(after.store_id, after.home)
        for group in found.groups:
            token = Token(session.lock_group(group).epoch + 1, uuid4())
            rows = session.lock_group_partitions(group)
            write_token(session, group, token, who)  # a job that runs stamps with the id of before
            session.contest(group, token, rows)
            why = f"this database is a copy of store {before.store_id}, and is store {after.store_id} now: {reason}"
            session.append_history(group, [HistoryEvent("new-id", None, None, None, token, who, why)])
    database.check_schema()
    return replace(found, identity=after, executed=True)


def _plan(event: str, identity: StoreIdentity, groups: Sequence[ListedGroup], facts: object) -> StoreDecided:
    digest = digest_of(event, "", str(identity.store_id), identity.home, identity.here, facts)
    return StoreDecided(identity, {one.group: one.owner for one in groups}, digest)

"""What an operator says about the store itself if its tables are in another database: it was moved, or it is a copy.

Only the tables' owner may: the answer decides whose results count, and a job must not give it for itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import uuid4

from offsetstore.errors import MissingPrivilege
from offsetstore.offsets import Token
from offsetstore.protocol.database import HistoryEvent
from offsetstore.protocol.store_facts import StoreIdentity
from offsetstore.store.admin import expect_reason, write_token
from offsetstore.store.identity import this_process
from offsetstore.store.sessions import transaction

if TYPE_CHECKING:
    from offsetstore.protocol.database import Database

_NAME = "offsetstore:admin"


def moved(database: Database, *, reason: str, actor: str | None, lock_timeout: float) -> StoreIdentity:
    """Take this database for the store's home; see `OffsetStore.moved`."""
    expect_reason(reason)
    with transaction(database, name=_NAME, lock_timeout=lock_timeout) as session:
        before = session.identity()
        if before.here is None:
            raise MissingPrivilege(
                "the role may not read which database this is; nothing was written",
                next_step="Let it call pg_control_system(): GRANT EXECUTE ON FUNCTION pg_control_system() TO the role.",
            )
        if before.home != before.here:
            before = session.lock_identity()  # it may have been given an id meanwhile, or have been moved
        after = StoreIdentity(before.store_id, before.here, before.here)
        if after != before:
            session.set_identity(after.store_id, after.home)
            why = f"from database {before.home or 'unknown'} to {after.home}: {reason}"
            for one in session.groups():
                if one.partitions:
                    line = HistoryEvent("moved", None, None, None, one.owner.token, actor or this_process(), why)
                    session.append_history(one.group, [line])
    database.check_schema()
    return after


def new_id(database: Database, *, reason: str, actor: str | None, lock_timeout: float) -> StoreIdentity:
    """Make this database another store; see `OffsetStore.new_id`.

    What the groups have in Kafka is the original's. A contested row adopts nothing, whether it is pinned or not: where
    Kafka has a copy of the original's, the start ends in `ForeignStore`.
    """
    expect_reason(reason)
    who = actor or this_process()
    with transaction(database, name=_NAME, lock_timeout=lock_timeout) as session:
        before = session.lock_identity()
        after = StoreIdentity(uuid4(), before.here, before.here)
        session.set_identity(after.store_id, after.home)
        for one in session.groups():
            group = one.group
            if not one.partitions and one.owner.alive_for is None:
                continue  # renamed or deleted
            token = Token(session.lock_group(group).epoch + 1, uuid4())
            rows = session.lock_group_partitions(group)
            write_token(session, group, token, who)  # a job that runs stamps with the id of before
            session.contest(group, token, rows)
            why = f"this database is a copy of store {before.store_id}, and is store {after.store_id} now: {reason}"
            session.append_history(group, [HistoryEvent("new-id", None, None, None, token, who, why)])
    database.check_schema()
    return after

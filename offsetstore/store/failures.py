"""Which database error means what: by SQLSTATE, whether SQLAlchemy wrapped it or psycopg raised it (COPY does)."""

from __future__ import annotations

import psycopg
from sqlalchemy.exc import DBAPIError

from offsetstore.errors import LockTimeout, StoreUnavailable, TransactionLost

LOCK_NOT_AVAILABLE = "55P03"
_REPEATABLE = frozenset({"40001", "40P01"})
# The server ended the connection: shutdowns (57P01 to 57P03), and the idle-in-transaction limit.
_CONNECTION_ENDED = frozenset({"57P01", "57P02", "57P03", "57P05", "25P03", "25P04"})
# The disk, the memory, the number of connections or locks; errors of the system that the server runs on.
_SHORTAGE = ("53", "58")


class MemoryLockTimeout(Exception):
    """What an in-memory database raises where PostgreSQL answers 55P03."""


class MemoryConnectionLost(Exception):
    """What an in-memory database raises where the connection to PostgreSQL would be gone."""


def driver_error(error: BaseException) -> psycopg.Error | None:
    """Psycopg's error inside ``error``, if there is one."""
    if isinstance(error, DBAPIError) and isinstance(error.orig, psycopg.Error):
        return error.orig
    return error if isinstance(error, psycopg.Error) else None


def words(error: BaseException) -> str:
    """The database's or the driver's own first words: what comes after them can quote a row's values."""
    inner = driver_error(error)
    if inner is None:
        return type(error).__name__
    lines = (inner.diag.message_primary or str(inner)).splitlines()
    return f"{type(inner).__name__}: {lines[0].strip() if lines else 'no words'}"


def is_lock_timeout(error: BaseException) -> bool:
    """A lock was not had within ``lock_timeout``; the transaction is gone."""
    if isinstance(error, MemoryLockTimeout):
        return True
    inner = driver_error(error)
    return inner is not None and inner.sqlstate == LOCK_NOT_AVAILABLE


def is_repeatable(error: BaseException) -> bool:
    """A serialization failure or a deadlock: the whole transaction may be tried again."""
    inner = driver_error(error)
    return inner is not None and inner.sqlstate in _REPEATABLE


def shortage(error: BaseException) -> StoreUnavailable | None:
    """What to raise where the server lacks something, such as room on its disk: no record is to blame."""
    inner = driver_error(error)
    if inner is None or inner.sqlstate is None or not inner.sqlstate.startswith(_SHORTAGE):
        return None
    what = "the database gave the transaction up because its server lacks something; nothing was written"
    return StoreUnavailable(
        what,
        found=f"SQLSTATE {inner.sqlstate}, {words(inner)}",
        next_step="See to the server, such as room on its disk; the job, started anew, goes on where it was.",
    )


def may_pass(error: BaseException) -> bool:
    """Whether all of the work, done again in a new transaction, may succeed."""
    return isinstance(error, (LockTimeout, StoreUnavailable, TransactionLost)) or is_repeatable(error)


def is_connection_lost(error: BaseException) -> bool:
    """The connection is gone: an open transaction will not happen, one in COMMIT may have."""
    if isinstance(error, MemoryConnectionLost):
        return True
    inner = driver_error(error)
    if inner is None:
        return False
    state = inner.sqlstate
    if state is None:
        # libpq's own words carry no SQLSTATE; neither do errors of the client's own making, such as a closed cursor.
        return isinstance(inner, psycopg.OperationalError)
    return state.startswith("08") or state in _CONNECTION_ENDED

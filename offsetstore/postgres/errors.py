"""The one place where a driver's error becomes ours: by SQLSTATE, wrapped by SQLAlchemy or raised by psycopg (COPY)."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import psycopg
from psycopg.pq import DiagnosticField
from sqlalchemy.exc import DBAPIError, StatementError

from offsetstore.errors import ConnectionLost, LockTimeout, OffsetStoreError, StoreUnavailable, TransactionConflict

if TYPE_CHECKING:
    from collections.abc import Generator

LOCK_NOT_AVAILABLE = "55P03"
_REPEATABLE = frozenset({"40001", "40P01"})
# The server ended the connection: shutdowns (57P01 to 57P03), and the idle-in-transaction limit.
_CONNECTION_ENDED = frozenset({"57P01", "57P02", "57P03", "57P05", "25P03", "25P04"})
# The disk, the memory, the number of connections or locks; errors of the system that the server runs on.
_SHORTAGE = ("53", "58")
_READ_ONLY = "25006"
_CANCELLED = "57014"

# Files of PostgreSQL's languages: where a function or trigger raised the error, and its author wrote the message.
_LANGUAGES = ("pl_", "plperl", "plpy", "pltcl")
# What an error may keep: names of the catalogue, never DETAIL, HINT or CONTEXT, which quote rows.
_NAMES: Final = (
    DiagnosticField.SQLSTATE,
    DiagnosticField.SCHEMA_NAME,
    DiagnosticField.TABLE_NAME,
    DiagnosticField.COLUMN_NAME,
    DiagnosticField.DATATYPE_NAME,
    DiagnosticField.CONSTRAINT_NAME,
)

_E = TypeVar("_E", bound=BaseException)


def translate(error: BaseException) -> BaseException:
    """Return our error for the database's, with the driver's as its cause; else the error without a row's values.

    Ours are `LockTimeout`, `ConnectionLost`, `TransactionConflict` and `StoreUnavailable`: what has nothing to do with
    the rows.
    """
    ours = _ours(error)
    if ours is None:
        return stripped(error)
    ours.__cause__ = stripped(error)
    return ours


@contextmanager
def translated() -> Generator[None]:
    """Raise what `translate` returns."""
    try:
        yield
    except Exception as error:
        if (ours := translate(error)) is not error:
            raise ours from ours.__cause__
        raise


def _ours(error: BaseException) -> OffsetStoreError | None:
    if is_lock_timeout(error):
        return LockTimeout("could not acquire a lock within lock_timeout", found=words(error))
    if is_connection_lost(error):
        return ConnectionLost("the connection to the database was lost", found=words(error))
    if is_repeatable(error):
        return TransactionConflict(
            "the database gave the transaction up (a deadlock, or a serialization failure); nothing was written",
            found=words(error),
        )
    return unavailable(error)


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
    return f"{type(inner).__name__}: {_first_line(inner)}"


def _first_line(error: psycopg.Error) -> str:
    diagnostic = error.diag
    if (diagnostic.source_file or "").startswith(_LANGUAGES):
        return "raised by a function or trigger, whose message may quote a row"
    lines = (diagnostic.message_primary or str(error)).splitlines()
    return lines[0].strip() if lines else "no words"


def stripped(error: _E) -> _E | psycopg.Error | StatementError:
    """Return the database's error without what may quote a row, and without what led to it; another's, as it is.

    It is of the same class, with the same SQLSTATE, and the names of table, column and constraint. What is left out are
    DETAIL, HINT and CONTEXT, the statement with its parameters, and all but the first line of the message. A group of
    errors becomes one of stripped errors.
    """
    if isinstance(error, psycopg.Error):
        return _stripped_driver(error).with_traceback(error.__traceback__)
    if isinstance(error, StatementError):
        return _stripped_alchemy(error).with_traceback(error.__traceback__)
    if isinstance(error, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", error)
        inner = [stripped(one) for one in group.exceptions]
        for one in inner:
            strip_chain(one)
        return cast("_E", group.derive(inner).with_traceback(group.__traceback__))
    return error


def raise_stripped(error: BaseException) -> None:
    """Raise the database's error as `stripped` makes it; return, where it is another's."""
    if (bare := stripped(error)) is not error:
        raise bare from None


def strip_chain(error: BaseException) -> None:
    """Strip the database's errors among those that ``error`` was raised from, or in the handling of.

    Those that are not shown (``raise ... from None``) are let go.
    """
    waiting = [error]
    seen: set[int] = set()
    while waiting:
        error = waiting.pop()
        if id(error) in seen:
            continue
        seen.add(id(error))
        cause, context, is_hidden = error.__cause__, error.__context__, error.__suppress_context__
        error.__context__ = None if is_hidden or context is None else stripped(context)
        if cause is not None:
            error.__cause__ = stripped(cause)
        waiting += [one for one in (error.__cause__, error.__context__) if one is not None]


def _stripped_driver(error: psycopg.Error) -> psycopg.Error:
    diagnostic = error.diag
    values = (error.sqlstate, *(getattr(diagnostic, name.name.lower()) for name in _NAMES[1:]))
    names = {name: value.encode() for name, value in zip(_NAMES, values, strict=True) if value}
    return type(error)(_first_line(error), info=cast("Any", names) or None)


def _stripped_alchemy(error: StatementError) -> StatementError:
    if not isinstance(error, DBAPIError) or not isinstance(error.orig, psycopg.Error):
        return StatementError(
            f"{type(error.orig).__name__} (its text is left out)", "", None, None, hide_parameters=True
        )
    return type(error)(
        None,
        None,
        _stripped_driver(error.orig),
        hide_parameters=True,
        connection_invalidated=error.connection_invalidated,
    )


def is_lock_timeout(error: BaseException) -> bool:
    """A lock was not had within ``lock_timeout``; the transaction is gone."""
    inner = driver_error(error)
    return inner is not None and inner.sqlstate == LOCK_NOT_AVAILABLE


def is_repeatable(error: BaseException) -> bool:
    """A serialization failure or a deadlock: the whole transaction may be tried again."""
    inner = driver_error(error)
    return inner is not None and inner.sqlstate in _REPEATABLE


def unavailable(error: BaseException) -> StoreUnavailable | None:
    """What to raise where the server can't do the work now, whatever the rows are: no record is to blame.

    It lacks something, such as room on its disk (classes 53 and 58); it is read-only (25006); or the statement was
    cancelled (57014). The transaction is gone.
    """
    inner = driver_error(error)
    state = None if inner is None else inner.sqlstate
    if inner is None or state is None:
        return None
    if state.startswith(_SHORTAGE):
        what = "the database gave the transaction up because its server lacks something; nothing was written"
        step = "See to the server, such as room on its disk; the job, started anew, goes on where it was."
    elif state == _READ_ONLY:
        what = "the database takes no writes: it is a standby, or read-only by its settings; nothing was written"
        step = (
            "Connect to the primary: several hosts in the URL and target_session_attrs=read-write find it. If this is "
            "the primary, see default_transaction_read_only (ALTER ROLE or ALTER DATABASE ... SET)."
        )
    elif state == _CANCELLED:
        what = "the database cancelled a statement; nothing was written"
        step = (
            "If it ran into statement_timeout, raise it for this role (ALTER ROLE ... SET), or make batches smaller; "
            "otherwise see who called pg_cancel_backend."
        )
    else:
        return None
    return StoreUnavailable(what, found=f"SQLSTATE {state}, {words(inner)}", next_step=step)


def is_connection_lost(error: BaseException) -> bool:
    """The connection is gone: an open transaction will not happen, one in COMMIT may have."""
    inner = driver_error(error)
    if inner is None:
        return False
    state = inner.sqlstate
    if state is None:
        # libpq's own words carry no SQLSTATE; neither do errors of the client's own making, such as a closed cursor.
        return isinstance(inner, psycopg.OperationalError)
    return state.startswith("08") or state in _CONNECTION_ENDED

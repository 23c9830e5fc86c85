"""The one place that translates drivers' errors, by SQLSTATE: wrapped by SQLAlchemy, or raised by psycopg (COPY)."""

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
# Out of disk, memory, connections or locks; errors of the server's operating system.
_SHORTAGE = ("53", "58")
_READ_ONLY = "25006"
_CANCELLED = "57014"

# Source files of PostgreSQL's languages: a function or trigger raised the error, and its author wrote the message.
_LANGUAGES = ("pl_", "plperl", "plpy", "pltcl")
# The fields that an error keeps: names from the catalog, never DETAIL, HINT or CONTEXT, which quote rows.
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
    """Return our error for the database's, with the driver's as its cause; else the error without row values.

    Ours are `LockTimeout`, `ConnectionLost`, `TransactionConflict` and `StoreUnavailable`, which do not concern the
    rows.
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
            "the database aborted the transaction (a deadlock or a serialization failure); nothing was written",
            found=words(error),
        )
    return unavailable(error)


def driver_error(error: BaseException) -> psycopg.Error | None:
    """Psycopg's error inside ``error``, if there is one."""
    if isinstance(error, DBAPIError) and isinstance(error.orig, psycopg.Error):
        return error.orig
    return error if isinstance(error, psycopg.Error) else None


def words(error: BaseException) -> str:
    """The first line of the database's or the driver's message; the rest can quote row values."""
    inner = driver_error(error)
    if inner is None:
        return type(error).__name__
    return f"{type(inner).__name__}: {_first_line(inner)}"


def _first_line(error: psycopg.Error) -> str:
    diagnostic = error.diag
    if (diagnostic.source_file or "").startswith(_LANGUAGES):
        return "raised by a function or trigger, whose message may quote a row"
    lines = (diagnostic.message_primary or str(error)).splitlines()
    return lines[0].strip() if lines else "no message"


def stripped(error: _E) -> _E | psycopg.Error | StatementError:
    """Return a database error without its chain and anything that may quote a row; return other errors as they are.

    It keeps its class, its SQLSTATE, and the names of table, column and constraint. It loses DETAIL, HINT and CONTEXT,
    the statement with its parameters, and all but the first line of the message. An exception group becomes a group of
    stripped errors.
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
    """Raise a database error as `stripped` returns it; return if it is another error."""
    if (bare := stripped(error)) is not error:
        raise bare from None


def strip_chain(error: BaseException) -> None:
    """Strip the database errors in the chain of ``error``: its causes and contexts.

    Hidden contexts (``raise ... from None``) are dropped.
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
    # A subclass of the application's own may be made in another way.
    kind = next(one for one in type(error).__mro__ if one.__module__.startswith("psycopg"))
    return cast("type[psycopg.Error]", kind)(_first_line(error), info=cast("Any", names) or None)


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
    """Whether a lock could not be acquired within ``lock_timeout``; the transaction is aborted."""
    inner = driver_error(error)
    return inner is not None and inner.sqlstate == LOCK_NOT_AVAILABLE


def is_repeatable(error: BaseException) -> bool:
    """Whether it is a serialization failure or a deadlock: the whole transaction may be retried."""
    inner = driver_error(error)
    return inner is not None and inner.sqlstate in _REPEATABLE


def unavailable(error: BaseException) -> StoreUnavailable | None:
    """Return our error if the server can't do the work now, and no record is to blame.

    It is out of resources or has a system error (classes 53 and 58), it is read-only (25006), or the statement was
    cancelled (57014). The transaction is aborted.
    """
    inner = driver_error(error)
    state = None if inner is None else inner.sqlstate
    if inner is None or state is None:
        return None
    if state.startswith(_SHORTAGE):
        what = "the server ran out of disk, memory or connections, or had a system error; nothing was written"
        step = "Check the server, for example its free disk space, and start the job again: it continues where it was."
    elif state == _READ_ONLY:
        what = "the database accepts no writes: it is a standby, or read-only by its settings; nothing was written"
        step = (
            "Connect to the primary: several hosts in the URL and target_session_attrs=read-write find it. If this is "
            "the primary, check default_transaction_read_only (ALTER ROLE or ALTER DATABASE ... SET)."
        )
    elif state == _CANCELLED:
        what = "the database cancelled a statement; nothing was written"
        step = (
            "If it ran into statement_timeout, raise it for this role (ALTER ROLE ... SET), or make batches smaller; "
            "otherwise find out who called pg_cancel_backend."
        )
    else:
        return None
    return StoreUnavailable(what, found=f"SQLSTATE {state}, {words(inner)}", next_step=step)


def is_connection_lost(error: BaseException) -> bool:
    """Whether the connection is gone: an open transaction is rolled back, one in COMMIT may have been committed."""
    inner = driver_error(error)
    if inner is None:
        return False
    state = inner.sqlstate
    if state is None:
        # libpq's own errors have no SQLSTATE; neither do those that psycopg raises itself, such as a closed cursor.
        return isinstance(inner, psycopg.OperationalError)
    return state.startswith("08") or state in _CONNECTION_ENDED

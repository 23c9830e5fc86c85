"""The one place that names drivers' errors and turns them into ours.

They come wrapped by SQLAlchemy, or from psycopg itself (COPY). `translated` is for the store's statements: all their
errors become ours. `refusals` is for statements that write results: there an SQLSTATE says something about the server
only if the server itself raised the error, since triggers and functions can raise any. All other errors of the job's
own SQL stay the database's, without row values (decision 0025).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeVar, cast
from uuid import uuid4

import psycopg
from psycopg.pq import DiagnosticField
from sqlalchemy.exc import DBAPIError, PendingRollbackError, SQLAlchemyError, StatementError

from offsetstore.errors import (
    ConnectionLost,
    FunctionFailed,
    InvalidText,
    LockTimeout,
    MissingPrivilege,
    OffsetStoreError,
    RowsRefused,
    SchemaError,
    SchemaMissing,
    SinkError,
    StoreUnavailable,
    TargetRefused,
    TransactionConflict,
)
from offsetstore.postgres.schema import quoted
from offsetstore.protocol.arguments import misplaced
from offsetstore.runtime.functions import chain, without_frames

DATABASE_ERRORS: Final = (psycopg.Error, SQLAlchemyError)
"""What SQLAlchemy and psycopg raise."""
VALUE_ERRORS: Final = (ArithmeticError, TypeError, ValueError, psycopg.DataError)
"""What SQLAlchemy's types and psycopg's adapters raise for a value that they can't send; most of them quote it."""
NO_TABLE: Final = (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName)
WRONG_OBJECT: Final = psycopg.errors.WrongObjectType
IN_USE: Final = psycopg.errors.ObjectInUse
ROLE: Final = "ROLE"
"""Stands for a role whose name is not known yet; see `PostgresDatabase.translate`."""

LOCK_NOT_AVAILABLE = "55P03"
_REPEATABLE = frozenset({"40001", "40P01"})
# After an error of these severities the server has closed the connection; no function can raise one.
_FATAL = frozenset({"FATAL", "PANIC"})
_OF_POOLER = ("08", "57P")
# Out of disk, memory, connections or locks; errors of the server's operating system.
_SHORTAGE = ("53", "58")
# Another server that this one asks does not answer, or ends meanwhile: postgres_fdw, dblink.
_OF_ANOTHER_SERVER = ("08", "57P")
_NO_FOREIGN_SERVER = psycopg.errors.FdwUnableToEstablishConnection
# Of class 08, too, but it comes from a writer's own binary COPY.
_MALFORMED = psycopg.errors.ProtocolViolation
_DAMAGED = (psycopg.errors.DataCorrupted, psycopg.errors.IndexCorrupted)
_READ_ONLY = "25006"
_CANCELLED = "57014"
_NOT_NULL = "23502"
# Features, prepared statements, cursors, databases, schemas, and what is missing or not allowed: SQL of the user's own
# that can't be tried with single rows is then reported as wrong, and not called again (decision 0047).
_OF_THE_SQL = ("0A", "26", "34", "3D", "3F", "42")
_NOT_GRANTED = "42501"
# "syntax error at or near" quotes the statement, which may contain values.
_SYNTAX_ERROR = "42601"
_NEXT_STEPS = {
    "23": "Correct the rows in the transform, or the table's constraint.",
    "22": "Correct or cast the values in the transform.",
    "42501": (
        "The role may write to the table, so a policy (row-level security) or a trigger refuses the row, or the "
        "privilege was revoked just now: correct the rows in the transform, the policy, or what the trigger's function "
        "may do."
    ),
    "55000": (
        "If the table, or a partition of it, is published for logical replication, give it a replica identity: ALTER "
        "TABLE ... REPLICA IDENTITY USING INDEX ..., or FULL."
    ),
}
_FITS_NO_PARTITION = (
    "Create the partition, or one that is DEFAULT: CREATE TABLE ... PARTITION OF {table} ...; if you write to a "
    "partition, name its parent; or correct the rows in the transform."
)
_OF_A_FUNCTION = (
    "PostgreSQL's log has its message, which may quote the row: correct such rows in the transform, or the function or "
    "trigger."
)
_REFUSABLE: Final = ("password", "dbname")
_REQUIRES_AUTH: Final = 160_000
"""The version of libpq that knows ``require_auth``."""
_CHANGED_TABLES = "Undo what was changed in offsetstore's tables (names, columns, constraints, triggers, rules)."

# Source files of PostgreSQL's languages: a function or trigger raised the error, and its author wrote the message.
_LANGUAGES = ("pl_", "plperl", "plpy", "pltcl")
# PL/pgSQL passes the server's own errors on as they are: only errors of its RAISE name its source file.
_PLPGSQL = "pl_"
# The fields that an error keeps: names from the catalog, and where it comes from; never DETAIL, HINT or CONTEXT, which
# quote rows.
_NAMES: Final = (
    DiagnosticField.SQLSTATE,
    DiagnosticField.SEVERITY_NONLOCALIZED,
    DiagnosticField.SOURCE_FILE,
    DiagnosticField.SCHEMA_NAME,
    DiagnosticField.TABLE_NAME,
    DiagnosticField.COLUMN_NAME,
    DiagnosticField.DATATYPE_NAME,
    DiagnosticField.CONSTRAINT_NAME,
)

_E = TypeVar("_E", bound=BaseException)


def translate(error: BaseException) -> BaseException:
    """Return our error for the database's, with the driver's as its cause; else the error without row values.

    Ours are `LockTimeout`, `ConnectionLost`, `TransactionConflict` and `StoreUnavailable`, which say nothing about the
    rows.
    """
    ours = _ours(error)
    if ours is None:
        return stripped(error)
    ours.__cause__ = stripped(error)
    return ours


@contextmanager
def translated() -> Generator[None]:
    """Raise our error for any database error of the store's own statements."""
    try:
        yield
    except DATABASE_ERRORS as error:
        if (ours := of_database(error)) is None:
            raise
        raise ours from stripped(error)


@contextmanager
def naming_texts(values: Mapping[str, object]) -> Generator[None]:
    """Name the value whose text can't be sent.

    :raises InvalidText: one has a character that PostgreSQL can't store.
    """
    try:
        yield
    except (psycopg.DataError, UnicodeEncodeError):
        for name, value in values.items():
            for text in cast("list[object]", value if isinstance(value, list) else [value]):
                if isinstance(text, str) and (found := misplaced(text)) is not None:
                    raise InvalidText(f"{name} can't be stored, and nothing has it", found=found) from None
        raise


def refused_at_commit(error: BaseException) -> RowsRefused | None:
    """Return our error if COMMIT refuses rows that are checked then, ``None`` for other errors."""
    inner = driver_error(error)
    if inner is None or inner.sqlstate is None or is_of_server(error) or is_repeatable(error):
        return None
    return _refused(inner, inner.sqlstate, None, ())


@contextmanager
def refusals(
    table: object,
    columns: Collection[str] = (),
    *,
    sql_of: str | None = None,
    is_splittable: bool = False,
    copied: str | None = None,
    grants: Sequence[str] | None = None,
) -> Generator[None]:
    """Turn the database's refusals into `RowsRefused`.

    Errors leave the block without a cause: py4j and `logging` print causes.

    :param table: its name; ``None`` if only the database knows it.
    :param columns: names to look for in the error's context, if the error itself names no column.
    :param sql_of: whose SQL it is, if it is the user's own.
    :param is_splittable: whether that SQL can be tried with the rows of single records.
    :param copied: the name of the table that the rows are copied to, in their order: the error gets the hint.
    :param grants: the arguments with which `offsetstore grants` prints the privileges on the table, beside the role's.
    :raises RowsRefused: the database refuses the data or the statement, or the driver can't send a value. PostgreSQL
        quotes values in messages, DETAIL and CONTEXT, so nothing of the original is kept.
    :raises SinkError: the database refuses the user's own SQL, or that SQL has swallowed an error.
    :raises psycopg.Error: stripped, if the server can't do the work now; SQLAlchemy's instead, if that was raised.
    """
    try:
        yield
    except (psycopg.Error, StatementError, PendingRollbackError) as last:
        error = _failed_first(last)
        refused = _refusal(error, table, columns, sql_of, is_splittable=is_splittable)
        inner = driver_error(error)
        if isinstance(refused, RowsRefused) and copied is not None and inner is not None:
            refused.row = _row_in_context(inner.diag.context, copied)
        raise refused from None
    except Exception as error:
        if isinstance(error, MissingPrivilege) and grants is not None:
            error.granted_by("--role", ROLE, *grants)
        # The user's own error may have been raised from the database's, or be a group of these.
        strip_chain(error)
        raise_stripped(error)
        raise


@contextmanager
def before_rows(table: object, quoted: str) -> Generator[None]:
    """Turn a refusal that comes before the first row into `TargetRefused`: no record can be at fault (decision 0047).

    :param table: the target.
    :param quoted: its name in SQL.
    :raises MissingPrivilege: the role may not write to it.
    :raises TargetRefused: the database refuses it.
    :raises LockTimeout: it is locked.
    """
    try:
        yield
    except (psycopg.Error, StatementError) as error:
        inner = driver_error(error)
        state = None if inner is None else inner.sqlstate
        if is_lock_timeout(error):
            locked = LockTimeout(f"could not acquire a lock on {table} within lock_timeout", found=words(error))
            locked.table = quoted
            raise locked from None
        if inner is None or state is None or is_of_server(error):
            raise
        if state == _NOT_GRANTED and not _is_of_a_function(inner):
            raise MissingPrivilege(
                f"the role may not write to {table}; nothing was written", found=words(error)
            ) from None
        raise TargetRefused(
            f"the database lets no row into {table}; nothing was written",
            found=f"SQLSTATE {state}, {words(error)}",
            next_step=_NEXT_STEPS.get(state, "See PostgreSQL's log."),
        ) from None


@contextmanager
def refusing_letters() -> Generator[None]:
    """Turn a refusal of dead letters into `SinkError`: no record is at fault. Used around a block with `translated`.

    :raises SinkError: the database refuses the letters.
    """
    try:
        yield
    except OffsetStoreError as ours:
        inner = driver_error(ours.__cause__)
        is_known = isinstance(ours, (MissingPrivilege, SinkError))
        if is_known or inner is None or inner.sqlstate is None or _ours(inner) is not None:
            raise
        raise SinkError(
            "the database refused to store dead letters; nothing was written",
            found=f"SQLSTATE {inner.sqlstate}, {words(inner)}",
            next_step="Look for triggers and constraints of your own on the table dead_letters.",
        ) from None


@contextmanager
def needing(right: str | tuple[str, str]) -> Generator[None]:
    """Say what a missing privilege prevents. Used around a block with `translated`.

    :param right: what the role must be allowed to do, as in "read dead letters"; with the option of `offsetstore
        grants` for such roles, if there is one.
    :raises MissingPrivilege: the role may not do it.
    """
    try:
        yield
    except MissingPrivilege as error:
        what, option = (right, None) if isinstance(right, str) else right
        denied = MissingPrivilege(f"the role may not {what}; nothing was written", found=error.found)
        raise (denied if option is None else denied.granted_by(option, ROLE)) from None


def of_database(error: BaseException) -> OffsetStoreError | None:
    """Return our error for any error of the database in a statement of the store's, ``None`` for other errors."""
    inner = driver_error(error)
    if inner is None:
        return None
    if (ours := swallowed(error) if is_swallowed(error) else _ours(error)) is not None:
        return ours
    state = f" (SQLSTATE {inner.sqlstate})" if inner.sqlstate else ""
    found = f"{_first_line(inner)}{state}"
    if inner.sqlstate == _NOT_GRANTED:
        return MissingPrivilege("the database's role may not do that", found=found).granted_by("--role", ROLE)
    if isinstance(inner, (psycopg.ProgrammingError, psycopg.IntegrityError)) and inner.sqlstate:
        kind = SchemaMissing if isinstance(inner, NO_TABLE) else SchemaError
        what = "offsetstore's tables are not as its migrations made them"
        return kind(what, found=found, next_step=_CHANGED_TABLES)
    return StoreUnavailable("the database refused a statement", found=found, next_step="See PostgreSQL's log.")


def of_store(error: BaseException) -> OffsetStoreError | None:
    """As `of_database`, for statements that may be the user's: what these lack is not missing in our tables."""
    ours = of_database(error)
    return None if isinstance(ours, (SchemaError, MissingPrivilege)) else ours


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


def driver_error(error: BaseException | None) -> psycopg.Error | None:
    """Psycopg's error, also where SQLAlchemy has wrapped it."""
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
    if _is_of_a_function(error):
        return "raised by a function or trigger, whose message may quote a row"
    lines = (error.diag.message_primary or str(error)).splitlines()
    return lines[0].strip() if lines else "no message"


def _is_of_a_function(error: psycopg.Error) -> bool:
    """Whether a function or trigger of the database raised it, and its author chose the SQLSTATE and the message."""
    return (error.diag.source_file or "").startswith(_LANGUAGES)


def stripped(error: _E) -> _E | psycopg.Error | StatementError:
    """Return a database error without its chain and anything that may quote a row; return other errors as they are.

    It keeps its class, its SQLSTATE, and the names of table, column and constraint. It loses DETAIL, HINT and CONTEXT,
    the statement with its parameters, and all but the first line of the message. An exception group becomes a group of
    stripped errors.
    """
    if isinstance(error, (psycopg.Error, StatementError)):
        bare = _stripped_driver(error) if isinstance(error, psycopg.Error) else _stripped_alchemy(error)
        bare.__traceback__ = error.__traceback__
        without_frames(error)
        return bare
    # An ORM Session's error quotes the error that it met first.
    if isinstance(error, PendingRollbackError):
        return cast("_E", PendingRollbackError("(its text is left out)").with_traceback(error.__traceback__))
    if isinstance(error, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", error)
        inner = [stripped(_failed_first(member)) for member in group.exceptions]
        for member in inner:
            strip_chain(member)
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
        if is_hidden and context is not None:
            without_frames(context, but_for=cause)
        error.__context__ = None if is_hidden or context is None else stripped(_failed_first(context))
        if cause is not None:
            error.__cause__ = stripped(_failed_first(cause))
        waiting += [linked for linked in (error.__cause__, error.__context__) if linked is not None]


def _stripped_driver(error: psycopg.Error) -> psycopg.Error:
    diagnostic = error.diag
    values = (error.sqlstate, *(getattr(diagnostic, name.name.lower()) for name in _NAMES[1:]))
    names = {name: value.encode() for name, value in zip(_NAMES, values, strict=True) if value}
    # An application's own subclass may take other arguments.
    kind = next(base for base in type(error).__mro__ if base.__module__.startswith("psycopg"))
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


def is_denied(error: BaseException) -> bool:
    """Whether the role lacks a privilege, unless a function of the user's says so."""
    inner = driver_error(error)
    return inner is not None and inner.sqlstate == _NOT_GRANTED and not _is_of_a_function(inner)


def is_repeatable(error: BaseException) -> bool:
    """Whether it is a serialization failure or a deadlock: the whole transaction may be repeated (decision 0008)."""
    inner = driver_error(error)
    return inner is not None and inner.sqlstate in _REPEATABLE


def unavailable(error: BaseException) -> StoreUnavailable | None:
    """Return our error if the server can't do the work now, and no record is at fault.

    It is out of resources or has a system error (classes 53 and 58), another server that it needs does not answer
    (classes 08 and 57P), its files are damaged, it is read-only (25006), or the statement was cancelled (57014). The
    transaction is aborted.
    """
    inner = driver_error(error)
    state = None if inner is None else inner.sqlstate
    if state is None or is_connection_lost(error):
        return None
    if state.startswith(_SHORTAGE):
        what = "the server ran out of disk, memory or connections, or had a system error; nothing was written"
        step = "Check the server, for example its free disk space, and start the job again: it continues where it was."
    elif isinstance(inner, _NO_FOREIGN_SERVER) or (
        state.startswith(_OF_ANOTHER_SERVER) and not isinstance(inner, _MALFORMED)
    ):
        what = "the server can't reach another one, of a foreign table or of dblink; nothing was written"
        step = "Make sure the other server answers, and start the job again: it continues where it was."
    elif isinstance(inner, _DAMAGED):
        what = "the server has found damaged data, in a table or an index; nothing was written"
        step = "See PostgreSQL's log. Stop the job until the table or the index is restored."
    elif state == _READ_ONLY:
        what = "the database accepts no writes: it is a standby, or read-only by its settings; nothing was written"
        step = (
            "Connect to the primary: several hosts in the URL and target_session_attrs=read-write find it. If this is "
            "the primary, check default_transaction_read_only (ALTER ROLE or ALTER DATABASE ... SET)."
        )
    elif state == _CANCELLED:
        what = "the database cancelled a statement; nothing was written"
        step = (
            "If statement_timeout expired, raise it for this role (ALTER ROLE ... SET), or make batches smaller; "
            "otherwise find out who called pg_cancel_backend."
        )
    else:
        return None
    return StoreUnavailable(what, found=f"SQLSTATE {state}, {words(error)}", next_step=step)


def is_given_up(error: BaseException) -> bool:
    """Whether it is a `StoreUnavailable` with which the server gave up a statement: a smaller one may succeed."""
    inner = driver_error(error.__cause__)
    is_told = inner is not None and inner.sqlstate is not None and not is_connection_lost(inner)
    return isinstance(error, StoreUnavailable) and is_told


def is_connection_lost(error: BaseException) -> bool:
    """Whether the connection is gone: an open transaction is rolled back, one in COMMIT may have been committed."""
    inner = driver_error(error)
    if inner is None:
        return False
    if inner.sqlstate is None:
        # libpq's own errors have no SQLSTATE; neither do those that psycopg raises itself, such as a closed cursor.
        return isinstance(inner, psycopg.OperationalError)
    # Only a pooler's error names no source file; a pooler may close the connection after a mere ERROR.
    severity, is_of_pooler = inner.diag.severity_nonlocalized, inner.diag.source_file is None
    return severity in _FATAL or (is_of_pooler and inner.sqlstate.startswith(_OF_POOLER))


def is_refused(error: StoreUnavailable) -> bool:
    """Whether the server refuses the password, or has no such database; only for servers that ask for a password.

    libpq gives no SQLSTATE for that, and the text may be in any language. So connections with a random password, and to
    a random database, are tried: the server's answer to one of them is then the same, but for the name. A server that
    is out of connections answers otherwise. Wrong passwords may lock a role, so ask seldom.
    """
    inner = driver_error(error.__cause__)
    made = None if inner is None else inner.pgconn
    if made is None or not (made.used_password or made.needs_password):
        return False
    given = {option.keyword.decode(): option.val.decode() for option in made.info if option.val}
    return made.needs_password or any(_is_answered_alike(made.error_message, given, name) for name in _REFUSABLE)


def _is_answered_alike(answer: bytes, given: Mapping[str, str], name: str) -> bool:
    if psycopg.pq.version() < _REQUIRES_AUTH:
        return False
    other = uuid4().hex
    # Other methods are left out: a server that passes passwords on, as to LDAP, may answer so because LDAP is down.
    trial = {**given, name: other, "require_auth": "scram-sha-256,md5"}
    try:
        psycopg.connect(**cast("dict[str, Any]", trial)).close()
    except psycopg.OperationalError as error:
        if error.pgconn is None:
            return False
        named = error.pgconn.error_message.replace(other.encode(), given.get(name, "").encode())
        return named == answer and (name == "password" or named != error.pgconn.error_message)
    return False


def is_of_server(error: BaseException) -> bool:
    """Whether the server itself says that it can't do the work now: a function can raise any SQLSTATE.

    PL/pgSQL passes the server's errors on as they are. Other languages don't, so theirs count as the server's.
    """
    inner = driver_error(error)
    is_raised = inner is not None and (inner.diag.source_file or "").startswith(_PLPGSQL)
    return not is_raised and _ours(error) is not None


def is_swallowed(error: BaseException) -> bool:
    """Whether the transaction had failed before: an error was swallowed, and this error does not say which."""
    return _had_failed(_failed_first(error))


def _had_failed(error: BaseException) -> bool:
    """Whether the server itself says that the transaction has failed: a function can raise that SQLSTATE, too."""
    inner = driver_error(error)
    is_failed = isinstance(inner, psycopg.errors.InFailedSqlTransaction) and not _is_of_a_function(inner)
    return is_failed or isinstance(error, PendingRollbackError)


def swallowed(error: BaseException) -> SinkError:
    return SinkError(
        "a function swallowed an error of the database, after which the transaction takes no statement",
        found=words(error),
        next_step="Let the error pass, or run what may fail in a savepoint: connection.begin_nested(), or an ORM "
        'Session with join_transaction_mode="create_savepoint".',
    )


def _failed_first(error: _E) -> _E | psycopg.Error | StatementError:
    """The error that made the transaction fail, if it is in this error's chain; else this error.

    They differ where a function catches an error and goes on with SQL, without a savepoint.
    """
    if not _had_failed(error):
        return error
    errors = (linked for linked in chain(error) if isinstance(linked, (psycopg.Error, StatementError)))
    return next((linked for linked in errors if driver_error(linked) is not None and not _had_failed(linked)), error)


def _refusal(
    error: psycopg.Error | StatementError | PendingRollbackError,
    table: object,
    columns: Collection[str],
    sql_of: str | None,
    *,
    is_splittable: bool,
) -> Exception:
    inner = driver_error(error)
    state = None if inner is None else inner.sqlstate
    if is_swallowed(error):
        return swallowed(error)
    if inner is not None and state is not None:
        if is_of_server(error):
            return stripped(error)
        if sql_of is not None and not is_splittable and state.startswith(_OF_THE_SQL):
            return _wrong_sql(inner, state, sql_of)
        return _refused(inner, state, table, columns)
    of_client = inner or cast("StatementError", error).orig
    return _not_sent(of_client, table, sql_of) if isinstance(of_client, VALUE_ERRORS) else stripped(error)


def _not_sent(error: BaseException, table: object, sql_of: str | None) -> RowsRefused:
    what = f"a value can't be sent to the database for {table or 'the SQL of ' + (sql_of or 'a writer')}"
    name = type(error).__name__
    # A type of SQLAlchemy that fails in the user's own SQL is as often a bug as a bad value (decision 0047).
    if sql_of is not None and not isinstance(error, psycopg.Error):
        return FunctionFailed(what, found=name, error_class=name, text=what)
    return RowsRefused(what, table=str(table) if table else None, found=name)


def _wrong_sql(error: psycopg.Error, sqlstate: str, sql_of: str) -> SinkError:
    position = error.diag.statement_position
    place = f", at character {position}" if position else ""
    said = f"a syntax error{place}" if sqlstate == _SYNTAX_ERROR else words(error)
    step = "Grant the role what the SQL needs." if sqlstate == "42501" else "Correct the function's SQL."
    return SinkError(f"the database refused the SQL of {sql_of}", found=f"SQLSTATE {sqlstate}, {said}", next_step=step)


def _refused(error: psycopg.Error, sqlstate: str, table: object, columns: Collection[str]) -> RowsRefused:
    diagnostic = error.diag
    column = diagnostic.column_name or _column_in_context(diagnostic.context, columns)
    named = f"{diagnostic.schema_name}.{diagnostic.table_name}" if diagnostic.table_name else None
    constraint = diagnostic.constraint_name
    kind = type(error).__name__
    refused = _rows_refused(kind, sqlstate, table, named=named, column=column, constraint=constraint)
    if _is_of_a_function(error):
        return refused.because("raised by a function or trigger of the database", _OF_A_FUNCTION)
    if isinstance(error, psycopg.errors.CheckViolation) and named is not None and constraint is None:
        # A violated CHECK has a name; only a row that fits no partition comes without one.
        in_sql = f"{quoted(diagnostic.schema_name or '')}.{quoted(diagnostic.table_name or '')}"
        why = f"the row fits no partition of {named}, or not into {named} itself"
        return refused.because(why, _FITS_NO_PARTITION.format(table=in_sql))
    return refused


def null_refused(table: object, named: str, column: str) -> RowsRefused:
    """Make the error that `refusals` would raise for a NULL in a column that is NOT NULL.

    :param table: as `refusals` takes it.
    :param named: the table as the database names it, with its schema.
    """
    kind = psycopg.errors.NotNullViolation.__name__
    return _rows_refused(kind, _NOT_NULL, table, named=named, column=column, constraint=None)


def _rows_refused(
    kind: str,
    sqlstate: str,
    table: object,
    *,
    named: str | None,
    column: str | None,
    constraint: str | None,
) -> RowsRefused:
    where = named or (str(table) if table else None)
    what = f"the database refused rows for {table or where or 'its tables'}: {kind} (SQLSTATE {sqlstate})"
    if constraint:
        what += f", constraint {constraint} of {where}"
    if column:
        what += f", column {column}"
    return RowsRefused(
        what,
        table=where,
        column=column,
        constraint=constraint,
        sqlstate=sqlstate,
        next_step=_NEXT_STEPS.get(sqlstate, _NEXT_STEPS.get(sqlstate[:2])),
    )


def _row_in_context(context: str | None, table: str) -> int | None:
    """Find the number in ``COPY payments, line 3: "12x"``, the last line; the word "line" may be translated.

    A row's text can look like such a line, and another table may have that name: this is a hint (decision 0047).
    """
    _, _, last = f"\n{context or ''}".rpartition("\n")
    found = re.match(rf"COPY {re.escape(table)}, [^\W\d]+ (\d{{1,18}})(?![^:,])", last)
    return None if found is None else int(found[1])


def _column_in_context(context: str | None, columns: Collection[str]) -> str | None:
    """Find the column in ``COPY payments, line 3, column amount: "12x"``, and none of the value after it."""
    copies = [line for line in (context or "").splitlines() if line.startswith("COPY ")]
    _, _, place = (copies or [""])[-1].partition(", line ")
    _, _, named = place.partition(", column ")
    return max((name for name in columns if named == name or named.startswith(f"{name}:")), key=len, default=None)

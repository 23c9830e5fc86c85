"""Our migrations, run from the installed package or from an application's own deployment.

`upgrade` is one transaction that first takes a transaction-level advisory lock, so that concurrent deployments migrate
once, even through PgBouncer.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, MutableMapping
from contextlib import contextmanager
from importlib.resources import files
from io import StringIO
from typing import Any, Final, TypeAlias

import alembic.context
import alembic.op
from alembic import command
from alembic.config import Config
from alembic.environment import EnvironmentContext
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import Connection, text
from sqlalchemy.schema import CreateSchema

from offsetstore.errors import ConfigurationError, LockTimeout, MissingPrivilege, OffsetStoreError, TransactionConflict
from offsetstore.postgres.database import check_encoding, described, expect_runs_on
from offsetstore.postgres.errors import DATABASE_ERRORS, driver_error, is_denied, translate, words
from offsetstore.postgres.schema import VERSION_TABLE, metadata, quoted
from offsetstore.postgres.statements import MAY_MIGRATE, MIGRATION_BLOCKERS
from offsetstore.postgres.url import make_engine, schema_or_default

# Any constant that nothing else uses: "offsetst" in ASCII.
_LOCK = 0x6F66_6673_6574_7374
_IN_ENV = (
    "Call it inside `with context.begin_transaction():`; with transaction_per_migration=True, inside `with "
    "connection.begin():` before context.configure."
)
LOCK_TIMEOUT: Final = 2.0
"""Seconds. While a migration waits for a lock, all others who want the table wait behind it, readers too."""


def upgrade(
    connection: Connection, *, schema: str | None = None, revision: str = "head", lock_timeout: float = LOCK_TIMEOUT
) -> str | None:
    """Bring our tables to ``revision``, in the connection's transaction, which the caller commits.

    Tables of a later revision are left alone if this version runs on them. Returns the revision that they had before,
    ``None`` if there were none.

    :param schema: the schema of the tables, created if it does not exist. ``None``: the first of the search path.
    :param lock_timeout: seconds to wait for any one lock.
    :raises ConfigurationError: the connection is in AUTOCOMMIT, so half of it could remain; or an env.py calls it
        outside of its transaction, so none of it would be committed.
    :raises LockTimeout: a lock was not available within that time. It names who held it; nothing was changed.
    :raises MissingPrivilege: the role may not migrate. It names who may; nothing was changed.
    :raises SchemaNotAtHead: the tables are of a later revision that this version does not run on.
    """
    _expect_transaction(connection)
    # Before the revision is read: another deployment may be doing the work.
    _wait_for_others(connection)
    with _allowed(connection, schema):
        found = current_revision(connection, schema=schema)
    if found is None or found in revisions():
        _run(command.upgrade, connection, schema, revision, lock_timeout)
    else:
        # A later revision is no error: a pod of the version before may migrate as it starts again (decision 0056).
        expect_runs_on(found, schema=schema)
    return found


def downgrade(
    connection: Connection, *, schema: str | None = None, revision: str = "base", lock_timeout: float = LOCK_TIMEOUT
) -> None:
    """Take our tables back to ``revision``; at ``"base"`` they are gone, and the offsets with them.

    Parameters and errors are those of `upgrade`.
    """
    _expect_transaction(connection)
    _run(command.downgrade, connection, schema, revision, lock_timeout)


def current_revision(connection: Connection, *, schema: str | None = None) -> str | None:
    """The current revision of the tables, ``None`` if there are none."""
    options = {"version_table": VERSION_TABLE, "version_table_schema": schema}
    with _without_translation(connection, schema):
        return MigrationContext.configure(connection, opts=options).get_current_revision()


def revisions() -> list[str]:
    """All revisions that this version knows, oldest first."""
    return [script.revision for script in ScriptDirectory.from_config(config()).walk_revisions()][::-1]


def config() -> Config:
    """Alembic's configuration for the migrations that are installed with this package."""
    made = Config()
    # In a value of Alembic's configuration, a percent sign begins an interpolation.
    made.set_main_option("script_location", str(files("offsetstore.migrations")).replace("%", "%%"))
    made.set_main_option("path_separator", "os")
    return made


def _expect_transaction(connection: Connection) -> None:
    if getattr(connection.connection.driver_connection, "autocommit", False):
        raise ConfigurationError(
            "the migrations need a transaction, but the connection is in autocommit mode",
            found="AUTOCOMMIT",
            next_step="Pass a connection of `engine.begin()`.",
        )
    if getattr(alembic.context, "_proxy", None) is not None and not connection.in_transaction():
        # Alembic would take a transaction that we begin for the application's, and commit neither.
        raise ConfigurationError(
            "the migrations were called from an env.py outside of its transaction, and would not be committed",
            next_step=_IN_ENV,
        )


@contextmanager
def _without_translation(connection: Connection, schema: str | None) -> Generator[None]:
    """Resolve names by the search path alone: SQLAlchemy does not translate names in text, and half of our SQL is text.

    :raises ConfigurationError: ``schema_translate_map`` has a schema for our tables; pass it as ``schema`` instead.
    """
    given = connection.get_execution_options().get("schema_translate_map")
    if given and schema is None and given.get(None) is not None:
        raise ConfigurationError(
            "the connection's schema_translate_map does not apply to offsetstore's tables",
            found=f"{{None: {given[None]!r}}}",
            expected="the schema as an argument",
            next_step=f"Pass schema={given[None]!r}, to OffsetStore.connect too.",
        )
    connection.execution_options(schema_translate_map=None)
    try:
        yield
    finally:
        connection.execution_options(schema_translate_map=given)


@contextmanager
def _allowed(connection: Connection, schema: str | None) -> Generator[None]:
    """Name who may migrate if the role may not; `offsetstore grants` never grants that.

    :raises MissingPrivilege: the role does not own the tables, or may not create any.
    """
    try:
        # With a savepoint, the transaction can still ask who may after the error.
        with connection.begin_nested():
            yield
    except DATABASE_ERRORS as error:
        if not is_denied(error):
            raise
        allowed = connection.execute(text(MAY_MIGRATE), {"table": VERSION_TABLE, "schema": schema}).one()
        role, place = quoted(allowed.role), f"SCHEMA {quoted(allowed.schema)}"
        if not allowed.has_schema:
            place = f"DATABASE {quoted(allowed.database)}"
        raise MissingPrivilege(
            f"the role {role} may not migrate the tables; nothing was changed",
            found=words(error),
            next_step=f"Connect as {quoted(allowed.owner)}, who owns the tables."
            if allowed.owner
            else f"Run in psql, as the owner of the database: `GRANT CREATE ON {place} TO {role}`; or connect as that "
            "owner.",
        ) from None


@contextmanager
def _waiting_briefly(connection: Connection, schema: str | None, lock_timeout: float) -> Generator[None]:
    """Bound the waits for locks inside the block, in this transaction alone.

    :raises LockTimeout: names who holds the locks now, and held them when the wait began.
    """
    settings = text("SELECT set_config('lock_timeout', :wanted, true)")
    before = connection.execute(text("SELECT current_setting('lock_timeout')")).scalar_one()
    try:
        # With a savepoint, the transaction can still ask who holds the locks after the error.
        with connection.begin_nested():
            connection.execute(settings, {"wanted": f"{max(1, round(lock_timeout * 1000))}ms"})
            yield
            connection.execute(settings, {"wanted": before})
    except DATABASE_ERRORS as error:
        if not isinstance(translate(error), LockTimeout | TransactionConflict):
            raise
        place = "" if schema is None else f"{quoted(schema)}."
        asked = {"tables": [place + name for name in (*metadata.tables, VERSION_TABLE)], "seconds": lock_timeout}
        holders = connection.execute(text(MIGRATION_BLOCKERS), asked).all()
        raise LockTimeout(
            f"could not lock the tables within {lock_timeout:g} s; nothing was changed",
            found="; ".join(map(_holder, holders)) or "a lock whose holder has gone since",
            next_step="Migrate again when they have ended, or end them: SELECT pg_terminate_backend(pid).",
        ) from None


def _holder(row: Any) -> str:
    since = "" if row.seconds is None else f" for {row.seconds:.0f} s"
    who = f"{described(row)}{since}" if row.pid else "a prepared transaction"
    return f"{who} has locked {row.tables}"


def _run(what: Any, connection: Connection, schema: str | None, revision: str, lock_timeout: float) -> None:
    made = config()
    made.attributes["lock_timeout"] = lock_timeout
    made.attributes["connection"] = connection
    made.attributes["schema"] = schema
    with _restoring_alembic():
        what(made, revision)


@contextmanager
def _restoring_alembic() -> Generator[None]:
    """Let an application's env.py, or one of its revisions, call us and continue.

    ``alembic.context`` and ``alembic.op`` hold one running environment each, which Alembic clears at its end.
    """
    running: list[Any] = [getattr(module, "_proxy", None) for module in (alembic.context, alembic.op)]
    try:
        yield
    finally:
        for proxy in running:
            if proxy is not None:
                proxy._install_proxy()  # noqa: SLF001 - Alembic has no public way


def upgrade_as_sql(*, schema: str | None = None, since: str = "base") -> str:
    """The SQL of `upgrade` from revision ``since``, as one transaction; needs no database."""
    made = config()
    made.output_buffer = StringIO()
    made.attributes["schema"] = schema
    with _restoring_alembic():
        command.upgrade(made, f"{since}:head", sql=True)
    return made.output_buffer.getvalue()


def run_environment(context: EnvironmentContext | Any) -> None:
    """Migrate for ``migrations/env.py``, on the given connection or on one to OFFSETSTORE_URL.

    Alembic's command line takes the schema as ``-x schema=...`` or from OFFSETSTORE_SCHEMA, and writes SQL instead of
    running it with ``--sql``.
    """
    attributes = context.config.attributes
    schema: str | None = attributes.get("schema")
    if "schema" not in attributes:
        schema = schema_or_default(context.get_x_argument(as_dictionary=True).get("schema"))
    if context.is_offline_mode():
        _write_sql(context, schema)
        return
    connection: Connection | None = attributes.get("connection")
    if connection is not None:
        _migrate(context, connection, schema)
        return
    with _own_connection(context.config.get_alembic_option("sqlalchemy.url")) as own:
        try:
            _migrate(context, own, schema)
        except OffsetStoreError as error:
            raise CommandError(str(error)) from None


@contextmanager
def _own_connection(url: str | None) -> Generator[Connection]:
    """Give Alembic's command line a connection; expected errors are shown as one line, not as a traceback."""
    try:
        engine = make_engine(url)
    except ConfigurationError as error:
        raise CommandError(str(error)) from error
    # In REPEATABLE READ, which may be the database's default, a migration that waited for the lock would continue with
    # its old snapshot.
    engine.update_execution_options(isolation_level="READ COMMITTED")
    try:
        try:
            connection = engine.connect()
        except DATABASE_ERRORS as error:
            raise CommandError(
                f"the database can't be reached, or refused the request: {driver_error(error) or error}"
            ) from error
        with connection, connection.begin():
            yield connection
    finally:
        engine.dispose()


def _wait_for_others(connection: Connection) -> None:
    """Wait until no other migration runs, and make others wait until the end of the transaction."""
    connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})


def _migrate(context: EnvironmentContext | Any, connection: Connection, schema: str | None) -> None:
    check_encoding(connection)
    _wait_for_others(connection)
    lock_timeout = context.config.attributes.get("lock_timeout", LOCK_TIMEOUT)
    with (
        _without_translation(connection, schema),
        _allowed(connection, schema),
        _waiting_briefly(connection, schema, lock_timeout),
        _in_schema(connection, schema),
    ):
        context.configure(
            connection=connection,
            target_metadata=metadata,
            version_table=VERSION_TABLE,
            include_name=_ours,
            compare_server_default=True,
            transaction_per_migration=False,
        )
        with context.begin_transaction():
            context.run_migrations()


def _write_sql(context: EnvironmentContext | Any, schema: str | None) -> None:
    context.configure(dialect_name="postgresql", version_table=VERSION_TABLE, literal_binds=True)
    with context.begin_transaction():
        context.execute(f"SELECT pg_advisory_xact_lock({_LOCK})")
        context.execute(f"SET LOCAL lock_timeout TO '{LOCK_TIMEOUT:g}s'")
        if schema is not None:
            context.execute(CreateSchema(schema, if_not_exists=True))
            context.execute(f"SET LOCAL search_path TO {quoted(schema)}")
        context.run_migrations()


@contextmanager
def _in_schema(connection: Connection, schema: str | None) -> Generator[None]:
    """Resolve unqualified names in ``schema`` inside the block, in this transaction alone."""
    if schema is None:
        yield
        return
    path = quoted(schema)
    # IF NOT EXISTS alone would need the privilege to create schemas even if the schema exists.
    if connection.execute(text("SELECT to_regnamespace(:path) IS NULL"), {"path": path}).scalar_one():
        connection.execute(CreateSchema(schema))
    before = connection.execute(text("SELECT current_setting('search_path')")).scalar_one()
    search_path = text("SELECT set_config('search_path', :path, true)")
    connection.execute(search_path, {"path": path})
    yield
    # After an error there is nothing to restore: the setting ends with the transaction.
    connection.execute(search_path, {"path": before})


def _ours(name: str | None, kind: str, _: Any) -> bool:
    return kind != "table" or name in metadata.tables


OURS = frozenset({*metadata.tables, VERSION_TABLE})
"""The names of all our tables."""


IncludeName: TypeAlias = Callable[[str | None, str, MutableMapping[str, str | None]], bool]
"""Alembic's ``include_name`` of ``context.configure``: whether autogenerate considers a name of a kind (schema, table,
column, index and so on)."""


def exclude(include_name: IncludeName | None = None, *, schema: str | None = None) -> IncludeName:
    """Make an ``include_name`` that leaves our tables out, for ``context.configure`` of an application's env.py.

    :param include_name: the application's own, called for everything else.
    :param schema: the argument of `upgrade`. Without it, tables with our names are left alone in every schema, so that
        none is ever dropped; with it, the application may have tables of the same names (``heartbeats``, say)
        elsewhere.
    """

    def include(name: str | None, kind: str, parents: MutableMapping[str, str | None]) -> bool:
        if kind == "table" and name in OURS and _is_our_schema(parents.get("schema_name"), schema):
            return False
        return include_name is None or include_name(name, kind, parents)

    return include


def _is_our_schema(found: str | None, schema: str | None) -> bool:
    """Whether ``found`` is our schema; Alembic gives ``None`` for the connection's default one."""
    if found is not None or schema is None:
        return schema in {None, found}
    try:
        return alembic.context.get_context().dialect.default_schema_name in {None, schema}
    except NameError:
        # No env.py is running: rather ignore a table than drop it.
        return True

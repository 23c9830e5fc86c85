"""Our migrations, run from the installed package or from an application's own deployment.

`upgrade` is one transaction that first takes a transaction-level advisory lock, so that concurrent deployments migrate
once, even through PgBouncer.
"""

from __future__ import annotations

from contextlib import contextmanager
from importlib.resources import files
from io import StringIO
from typing import TYPE_CHECKING, Any

import alembic.context
import alembic.op
from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import text
from sqlalchemy.schema import CreateSchema

from offsetstore.errors import ConfigurationError
from offsetstore.postgres.database import check_encoding
from offsetstore.postgres.errors import DATABASE_ERRORS, driver_error
from offsetstore.postgres.schema import VERSION_TABLE, metadata, quoted
from offsetstore.postgres.url import make_engine

if TYPE_CHECKING:
    from collections.abc import Generator

    from alembic.environment import EnvironmentContext
    from sqlalchemy import Connection

# Any constant that nothing else uses: "offsetst" in ASCII.
_LOCK = 0x6F66_6673_6574_7374
_IN_ENV = (
    "Call it inside `with context.begin_transaction():`; with transaction_per_migration=True, inside `with "
    "connection.begin():` before context.configure."
)


def upgrade(connection: Connection, *, schema: str | None = None, revision: str = "head") -> None:
    """Bring our tables to ``revision``, in the connection's transaction, which the caller commits.

    :param schema: the schema of the tables, created if it does not exist. ``None``: the first of the search path.
    :raises ConfigurationError: the connection is in AUTOCOMMIT, so half of it could remain; or an env.py calls it
        outside of its transaction, so none of it would be committed.
    """
    _run(command.upgrade, connection, schema, revision)


def downgrade(connection: Connection, *, schema: str | None = None, revision: str = "base") -> None:
    """Take our tables back to ``revision``; at ``"base"`` they are gone, and the offsets with them.

    Parameters and errors are those of `upgrade`.
    """
    _run(command.downgrade, connection, schema, revision)


def current_revision(connection: Connection, *, schema: str | None = None) -> str | None:
    """The current revision of the tables, ``None`` if there are none."""
    options = {"version_table": VERSION_TABLE, "version_table_schema": schema}
    return MigrationContext.configure(connection, opts=options).get_current_revision()


def revisions() -> list[str]:
    """All revisions that this version knows, oldest first."""
    return sorted(script.revision for script in ScriptDirectory.from_config(config()).walk_revisions())


def config() -> Config:
    """Alembic's configuration for the migrations that are installed with this package."""
    made = Config()
    made.set_main_option("script_location", str(files("offsetstore.migrations")).replace("%", "%%"))
    made.set_main_option("path_separator", "os")
    return made


def _run(what: Any, connection: Connection, schema: str | None, revision: str) -> None:
    if getattr(connection.connection.driver_connection, "autocommit", False):
        raise ConfigurationError(
            "the migrations need a transaction, but the connection is in autocommit mode",
            found="AUTOCOMMIT",
            next_step="Pass a connection of `engine.begin()`.",
        )
    if _running(alembic.context) is not None and not connection.in_transaction():
        # Alembic would take a transaction that we begin for the application's, and commit neither.
        raise ConfigurationError(
            "the migrations were called from an env.py outside of its transaction, and would not be committed",
            next_step=_IN_ENV,
        )
    made = config()
    made.attributes["connection"] = connection
    made.attributes["schema"] = schema
    with _restoring_alembic():
        what(made, revision)


@contextmanager
def _restoring_alembic() -> Generator[None]:
    """Let an application's env.py, or one of its revisions, call us and continue.

    ``alembic.context`` and ``alembic.op`` hold one running environment each, which Alembic clears at its end.
    """
    running = [_running(module) for module in (alembic.context, alembic.op)]
    try:
        yield
    finally:
        for proxy in running:
            if proxy is not None:
                proxy._install_proxy()  # noqa: SLF001 - Alembic has no public way


def _running(module: Any) -> Any:
    return getattr(module, "_proxy", None)


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

    Alembic's command line takes the schema as ``-x schema=...``, and writes SQL instead of running it with ``--sql``.
    """
    attributes = context.config.attributes
    schema: str | None = attributes.get("schema") or context.get_x_argument(as_dictionary=True).get("schema")
    if context.is_offline_mode():
        _write_sql(context, schema)
        return
    connection: Connection | None = attributes.get("connection")
    if connection is not None:
        _migrate(context, connection, schema)
        return
    with _own_connection(context.config.get_alembic_option("sqlalchemy.url")) as own:
        _migrate(context, own, schema)


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


def wait_for_others(connection: Connection) -> None:
    """Wait until no other migration runs, and make others wait until the end of the transaction."""
    connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})


def _migrate(context: EnvironmentContext | Any, connection: Connection, schema: str | None) -> None:
    check_encoding(connection)
    wait_for_others(connection)
    with _in_schema(connection, schema):
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

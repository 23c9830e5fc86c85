"""Our migrations, run from the installed package or from an application's own deploy.

`upgrade` is one transaction with a transaction-scoped advisory lock at its start, so that five deploys at once migrate
once, also through PgBouncer.
"""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING, Any

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from sqlalchemy import text

from offsetstore.store.schema import VERSION_TABLE, metadata
from offsetstore.store.url import make_engine

if TYPE_CHECKING:
    from alembic.environment import EnvironmentContext
    from sqlalchemy import Connection, Engine

# Any constant does, as long as nobody else uses it: "offsetstore" in ASCII, folded to 63 bits.
_LOCK = 0x6F66_6673_6574_7374


def upgrade(connection: Connection, *, revision: str = "head") -> None:
    """Bring our tables to ``revision``, in the connection's transaction, which the caller commits."""
    _run(command.upgrade, connection, revision)


def downgrade(connection: Connection, *, revision: str = "base") -> None:
    """Take our tables back to ``revision``; at ``"base"`` they are gone, and the offsets with them."""
    _run(command.downgrade, connection, revision)


def current_revision(connection: Connection) -> str | None:
    """The revision of the tables that are there, ``None`` if there are none."""
    return MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE}).get_current_revision()


def config() -> Config:
    """Alembic's configuration for the migrations that are installed with this package."""
    made = Config()
    made.set_main_option("script_location", str(files("offsetstore.migrations")).replace("%", "%%"))
    made.set_main_option("path_separator", "os")
    return made


def _run(what: Any, connection: Connection, revision: str) -> None:
    made = config()
    made.attributes["connection"] = connection
    what(made, revision)


def run_environment(context: EnvironmentContext | Any) -> None:
    """What ``migrations/env.py`` does: on the connection it was given, or on OFFSETSTORE_URL's."""
    connection: Connection | None = context.config.attributes.get("connection")
    if connection is not None:
        _migrate(context, connection)
        return
    engine: Engine = make_engine(context.config.get_main_option("sqlalchemy.url"))
    try:
        with engine.begin() as own:
            _migrate(context, own)
    finally:
        engine.dispose()


def _migrate(context: EnvironmentContext | Any, connection: Connection) -> None:
    connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
    context.configure(
        connection=connection,
        target_metadata=metadata,
        version_table=VERSION_TABLE,
        include_name=_ours,
        transaction_per_migration=False,
    )
    with context.begin_transaction():
        context.run_migrations()


def _ours(name: str | None, kind: str, _: Any) -> bool:
    return kind != "table" or name in metadata.tables

"""``offsetstore migrate``: the tables, for a deployment."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from offsetstore.cli import options
from offsetstore.cli.exits import fail
from offsetstore.cli.output import print_lines
from offsetstore.errors import ExitCode, SchemaError, SchemaNotAtHead
from offsetstore.postgres.database import PostgresDatabase
from offsetstore.postgres.migrate import current_revision, revisions, upgrade, upgrade_as_sql, wait_for_others
from offsetstore.postgres.schema import HEAD
from offsetstore.postgres.url import make_engine

if TYPE_CHECKING:
    from collections.abc import Generator

_LOCK_SECONDS = 60.0
_IDLE_SECONDS = 120.0


@click.command()
@options.database_options
@click.option("--check", is_flag=True, help="Change nothing; the exit code says whether the tables are at head.")
@click.option("--sql", is_flag=True, help="Print the SQL instead of running it; needs no database.")
@click.option(
    "--since", metavar="REVISION", help="With --sql: the current revision of the tables; by default there are none."
)
def migrate(*, url: str | None, schema: str | None, check: bool, sql: bool, since: str | None) -> None:
    """Create or upgrade offsetstore's tables.

    Brings them to head, the revision of this version, in one transaction. Several migrations at once do no harm: they
    wait for each other, and the first one does the work. The role needs the privileges to create tables and schemas;
    the job's own role does not (see `offsetstore grants`).

    \b
    Exit codes:
      0  the tables are at head
      1  with --check: they are not, or there are none
      2  wrong usage
      3  the database can't be reached or refuses, or a later version migrated it

    \b
    Example:
      offsetstore migrate --sql --schema jobs | psql -v ON_ERROR_STOP=1 sales
    """  # noqa: D301 - \b is click's mark, and this is how click wants it
    _refuse_together(check=check, sql=sql, since=since)
    if sql:
        # Never wrapped or escaped, not even at a terminal.
        click.echo(upgrade_as_sql(schema=schema, since=since or "base"), nl=False)
        return
    with _opened(options.require_url(url), schema) as database:
        if check:
            _check(database)
        else:
            _migrate(database, schema)


def _refuse_together(*, check: bool, sql: bool, since: str | None) -> None:
    if check and sql:
        raise click.UsageError("--check and --sql can't be used together.")
    if since is not None and not sql:
        raise click.UsageError("--since requires --sql; otherwise the revision is read from the database.")
    if since is not None and since not in revisions():
        raise click.BadParameter(f"{since!r} is not one of {', '.join(sorted(revisions()))}.", param_hint="--since")


@contextmanager
def _opened(url: str, schema: str | None) -> Generator[PostgresDatabase]:
    database = PostgresDatabase(make_engine(url), schema=schema, idle_timeout=_IDLE_SECONDS, owned=True)
    try:
        yield database
    finally:
        database.close()


def _check(database: PostgresDatabase) -> None:
    try:
        database.check_schema()
    except SchemaError as error:
        fail(error, code=ExitCode.NO)
    print_lines(f"The tables are at revision {HEAD}, which is head.")


def _migrate(database: PostgresDatabase, schema: str | None) -> None:
    session = database.begin(name="offsetstore:migrate", lock_timeout=_LOCK_SECONDS)
    try:
        wait_for_others(session.connection)  # before reading the revision: another one may do the work
        before = current_revision(session.connection, schema=schema)
        _refuse_unknown(before)
        upgrade(session.connection, schema=schema)
        session.commit()
    except BaseException:
        session.rollback()
        raise
    if before == HEAD:
        print_lines(f"The tables are already at revision {HEAD}, which is head.")
    else:
        print_lines(
            f"Migrated from {f'revision {before}' if before else 'no tables'} to revision {HEAD}, which is head."
        )


def _refuse_unknown(revision: str | None) -> None:
    if revision is not None and revision not in revisions():
        raise SchemaNotAtHead(
            "the tables have a revision that this version of offsetstore does not know; nothing was changed",
            found=f"revision {revision}",
            expected=f"revision {HEAD} or an earlier one",
            next_step="Upgrade offsetstore: a newer version has migrated this database.",
        )

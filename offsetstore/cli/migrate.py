"""``offsetstore migrate``: the tables, for a deploy."""

from __future__ import annotations

from contextlib import contextmanager
from importlib.resources import files
from typing import TYPE_CHECKING

import click

from offsetstore.cli import options
from offsetstore.cli.exits import ExitCode, fail
from offsetstore.cli.output import print_lines
from offsetstore.errors import SchemaError, SchemaNotAtHead
from offsetstore.store.database import PostgresDatabase
from offsetstore.store.migrate import current_revision, upgrade
from offsetstore.store.schema import HEAD
from offsetstore.store.url import make_engine

if TYPE_CHECKING:
    from collections.abc import Generator

_LOCK_SECONDS = 60.0
_IDLE_SECONDS = 120.0


@click.command()
@options.database_options
@click.option("--check", is_flag=True, help="Change nothing; exit code 1 where the tables are not at head.")
def migrate(*, url: str | None, schema: str | None, check: bool) -> None:
    """Bring the database's tables to this version's revision.

    All in one transaction. Several at once do no harm: they wait for each other, and the first one does the work. The
    role needs the right to create tables; the job's own role does not.
    """
    with _opened(options.require_url(url), schema) as database:
        if check:
            _check(database)
        else:
            _migrate(database, schema)


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
        before = current_revision(session.connection, schema=schema)
        _refuse_unknown(before)
        upgrade(session.connection, schema=schema)
        session.commit()
    except BaseException:
        session.rollback()
        raise
    if before == HEAD:
        print_lines(f"The tables are at revision {HEAD} already, which is head.")
    else:
        print_lines(
            f"Migrated from {f'revision {before}' if before else 'no tables'} to revision {HEAD}, which is head."
        )


def _refuse_unknown(revision: str | None) -> None:
    installed = {file.name.partition("_")[0] for file in files("offsetstore.migrations.versions").iterdir()}
    if revision is not None and revision not in installed:
        what = "the tables are of a revision that this version of offsetstore does not know; nothing was changed"
        raise SchemaNotAtHead(
            what,
            found=f"revision {revision}",
            expected=f"revision {HEAD} or an earlier one",
            next_step="Upgrade offsetstore: a newer version has migrated this database.",
        )

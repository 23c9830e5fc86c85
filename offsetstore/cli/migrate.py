"""The tables: ``offsetstore migrate`` for a deployment, ``store`` after a move to another database."""

from __future__ import annotations

import shlex
import time
from contextlib import closing
from typing import Final

import click

from offsetstore.cli import options
from offsetstore.cli.asking import Decide, decide_options
from offsetstore.cli.output import even_unread, fail, print_text
from offsetstore.errors import ExitCode, LockTimeout, SchemaError
from offsetstore.postgres.database import PostgresDatabase, schemas_with_tables
from offsetstore.postgres.migrate import revisions, upgrade, upgrade_as_sql
from offsetstore.postgres.schema import HEAD, quoted
from offsetstore.postgres.url import make_engine
from offsetstore.protocol.store_facts import is_earlier, runs_on
from offsetstore.text import visible

_PATIENCE = 60.0  # seconds for which it tries to get the locks
_PAUSE = 3.0  # seconds in which others get the tables
_RUN_ON_LATER = "0009"  # code from here on runs on later revisions, earlier code on its own alone (decision 0056)
_IDLE_SECONDS = 120.0  # after which the server ends a transaction that is left open


@click.command()
@options.database_options
@click.option(
    "--check", is_flag=True, help="Change nothing; the exit code says whether this version runs on the tables."
)
@click.option("--force", is_flag=True, help="Make a second store, although another schema of the database has one.")
@click.option("--sql", is_flag=True, help="Print the SQL instead of running it; needs no database.")
@click.option(
    "--since", metavar="REVISION", help="With --sql: the current revision of the tables; by default there are none."
)
def migrate(*, database: options.DatabaseOptions, check: bool, force: bool, sql: bool, since: str | None) -> None:
    """Create or upgrade offsetstore's tables.

    Brings them to head, the revision of this version, in one transaction; tables of a later version on which this one
    runs are left alone. Several migrations at once do no harm: they wait for each other, and the first one does the
    work. If others hold the tables' locks, it tries again for a minute, and blocks nobody for more than two seconds.
    The role needs the privileges to create tables and schemas; the job's own role does not (see `offsetstore grants`).

    \b
    Exit codes:
      0  this version runs on the tables
      1  with --check: it does not, or there are none
      2  wrong usage
      3  the database can't be reached or refuses, its locks can't be had, or
         this version does not run on what a later one has made of the tables

    \b
    Example:
      offsetstore migrate --sql --schema jobs | psql -v ON_ERROR_STOP=1 sales
    """  # noqa: D301 - \b is click's mark, and this is how click wants it
    if check and sql:
        raise click.UsageError("--check and --sql can't be used together.")
    if since is not None and not sql:
        raise click.UsageError("--since requires --sql; otherwise the revision is read from the database.")
    if since is not None and since not in revisions():
        raise click.BadParameter(f"{since!r} is not one of {', '.join(sorted(revisions()))}.", param_hint="--since")
    if sql:
        # Never wrapped or escaped, not even at a terminal.
        click.echo(upgrade_as_sql(schema=database.schema, since=since or "base"), nl=False)
        return
    engine = make_engine(options.require_url(database.url))
    with closing(PostgresDatabase(engine, schema=database.schema, idle_timeout=_IDLE_SECONDS, owned=True)) as opened:
        if check:
            _check(opened)
        else:
            _migrate(opened, database.schema, force=force)


def _check(database: PostgresDatabase) -> None:
    try:
        database.check_schema()
    except SchemaError as error:
        fail(error, code=ExitCode.NO)
    print_text(f"The tables are at revision {_in_words(database.revision)}.")


def _migrate(database: PostgresDatabase, schema: str | None, *, force: bool) -> None:
    before = _attempt_patiently(database, schema, force=force)
    # Tables of a later revision, too: a pod of the version before, which migrates first, must start (decision 0056).
    if runs_on(HEAD, before):
        print_text(f"The tables are already at revision {_in_words(before)}.")
        return
    with even_unread():
        print_text(f"Migrated from {f'revision {before}' if before else 'no tables'} to revision {_in_words(HEAD)}.")
        if before is not None and not runs_on(before, HEAD):
            print_text("Earlier versions of offsetstore do not run on these tables: start every job with this one.")
        elif before is not None and is_earlier(before, _RUN_ON_LATER):
            print_text(
                f"Jobs of code before revision {_RUN_ON_LATER} go on, but can't be started again on these tables: "
                "replace each with this version."
            )


def _attempt_patiently(database: PostgresDatabase, schema: str | None, *, force: bool) -> str | None:
    """Migrate, trying again while others hold the locks; return the revision from before."""
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            return _attempt(database, schema, force=force)
        except LockTimeout as error:
            if time.monotonic() >= deadline:
                raise
            click.echo(f"Waiting: {visible(error.found)}.", err=True)
        time.sleep(_PAUSE)


def _attempt(database: PostgresDatabase, schema: str | None, *, force: bool) -> str | None:
    # The limit is for other migrations; the tables' locks have LOCK_TIMEOUT, since their readers wait behind it.
    session = database.begin(name="offsetstore:migrate", lock_timeout=_PATIENCE)
    try:
        # Before the upgrade, after which this schema has tables, too.
        others = schemas_with_tables(session.connection)
        before = upgrade(session.connection, schema=schema)
        if before is None and not force:
            _expect_none(others)
        session.commit()
    except BaseException:
        session.rollback()
        raise
    return before


def _expect_none(others: list[str]) -> None:
    if others:
        raise SchemaError(
            "the database has a store already, in another schema; nothing was changed",
            found=f"tables in {', '.join(map(quoted, others))}",
            next_step=f"To migrate that one, add --schema {shlex.quote(others[0])}; to make a second one, add --force.",
        )


def _in_words(revision: str | None) -> str:
    return f"{revision}, which is head" if revision == HEAD else f"{revision}, a later one, on which this version runs"


_KEYS: Final = "store_id=identity.store_id home=identity.home executed plan=digest groups[group=@ live=is_live]"


@click.group()
def store() -> None:
    """Say whether the store was moved to this database, or copied."""


@store.command()
@decide_options()
def moved(*, decide: Decide) -> None:
    """Say that the store was moved: its jobs go on in this database.

    For a start that ended in StoreMoved after pg_upgrade, a switch to a logical replica, or a restore in place of the
    lost database. No job may run on the other database any more: the two would take each other's offsets for their
    own. Only the owner of the tables may say so. If the store is at home already, nothing is written.

    Exit code 1 if the plan is not --if-plan (the new one is printed).

    \b
    Keys of --format json:
      store_id, home, executed, plan (for --if-plan)
      groups[]  group, live: those whose history records it

    \b
    Example, with OFFSETSTORE_URL set:
      offsetstore store moved --reason "pg_upgrade to 18, ticket 17" --execute
    """  # noqa: D301 - \b is click's mark, and this is how click wants it
    decide(_KEYS, lambda opened: opened.moved(**decide.how))


@store.command()
@decide_options()
def new_id(*, decide: Decide) -> None:
    """Say that this database is a copy: it becomes a store of its own.

    For a start that ended in StoreMoved in a copy whose original goes on, and for a copy of the server's files, which
    can't be told from its original. Jobs that run in this database are fenced. What their groups have in Kafka is the
    original's: start each with a kafka_group= of its own. Only the owner of the tables may say so, and it can't be
    taken back.

    Exit code 1 if the plan is not --if-plan (the new one is printed).

    \b
    Keys of --format json:
      store_id, home, executed, plan (for --if-plan)
      groups[]  group, live: those that it fences

    \b
    Example, with OFFSETSTORE_URL set:
      offsetstore store new-id --reason "staging, copied for a rehearsal" \\
          --execute
    """  # noqa: D301 - as above
    decide(_KEYS, lambda opened: opened.new_id(**decide.how))

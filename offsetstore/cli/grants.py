"""``offsetstore grants``: what the job's role may do, for a deploy."""

from __future__ import annotations

import click

from offsetstore.cli.options import names
from offsetstore.postgres.grants import grant_dashboard, grant_runtime

# In comments: what depends on tables that are not ours, or on what a database's owner has decided for everybody.
_NOTES = """\
-- Not in here: rights on the tables of your results (Append: INSERT; Upsert: SELECT, INSERT, UPDATE), and what PUBLIC
-- has by default: CONNECT and TEMPORARY on the database (an Upsert makes a temporary table).
-- On PostgreSQL 14, PUBLIC may also create tables in the schema public: REVOKE CREATE ON SCHEMA public FROM PUBLIC."""


def _name_or_none(context: click.Context, parameter: click.Parameter, value: str | None) -> object:
    return None if value is None else names(context, parameter, value)


@click.command()
@click.option(
    "--role", required=True, callback=names, metavar="ROLE", help="The job's role; the tables' owner is another."
)
@click.option("--dashboard-role", callback=_name_or_none, metavar="ROLE", help="A role that may only read.")
@click.option(
    "--schema",
    default="public",
    show_default=True,
    callback=names,
    metavar="NAME",
    help="Schema of the tables.",
)
def grants(*, role: str, dashboard_role: str | None, schema: str) -> None:
    """Print the GRANTs of the job's role.

    Nothing is run, and no database is needed. Give it to psql as the tables' owner, after `offsetstore migrate`; and
    after each migration, because new tables need grants of their own.

    The job's role reads and writes our tables, and makes and drops tables of its own in the schema
    offsetstore_staging; it has no DDL elsewhere. Where several jobs have roles of their own, run it for each.

    \b
    Example:
      offsetstore grants --role billing_job | psql -1 -v ON_ERROR_STOP=1 sales
    """  # noqa: D301 - \b is click's mark, and this is how click wants it
    lines = [*grant_runtime(role, schema=schema)]
    if dashboard_role is not None:
        lines += grant_dashboard(dashboard_role, schema=schema)
    # Neither wrapped nor escaped, at a terminal either: it is SQL, and the names are the caller's own.
    click.echo(_NOTES)
    for line in lines:
        click.echo(f"{line};")

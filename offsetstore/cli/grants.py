"""``offsetstore grants``: the privileges of the job's role, for a deployment."""

from __future__ import annotations

import click

from offsetstore.cli.options import names
from offsetstore.postgres.grants import grant_dashboard, grant_runtime
from offsetstore.postgres.url import SCHEMA_VARIABLE

# Comments, because these depend on the user's own tables, or concern all roles of the database.
_NOTES = """\
-- Not included: privileges on the tables of your results (Append: INSERT; Upsert: SELECT, INSERT, UPDATE), and those
-- that PUBLIC has by default: CONNECT and TEMPORARY on the database (an Upsert creates a temporary table).
-- On PostgreSQL 14, PUBLIC may also create tables in the schema public: REVOKE CREATE ON SCHEMA public FROM PUBLIC."""


def _name_or_none(context: click.Context, parameter: click.Parameter, value: str | None) -> object:
    return None if value is None else names(context, parameter, value)


@click.command()
@click.option(
    "--role", required=True, callback=names, metavar="ROLE", help="The job's role, which does not own the tables."
)
@click.option(
    "--dashboard-role",
    callback=_name_or_none,
    metavar="ROLE",
    help="Another role, which may only read, and write samples.",
)
@click.option(
    "--schema",
    default="public",
    show_default=True,
    envvar=SCHEMA_VARIABLE,
    show_envvar=True,
    callback=names,
    metavar="NAME",
    help="Schema of the tables.",
)
def grants(*, role: str, dashboard_role: str | None, schema: str) -> None:
    """Print the GRANT statements for the job's role.

    Runs nothing and needs no database. Pass the output to psql, as the owner of the tables, after every
    `offsetstore migrate`: new tables need grants of their own.

    The job's role reads and writes offsetstore's tables, and creates and drops its own tables in the schema
    offsetstore_staging; it may run no DDL elsewhere. If each job has a role of its own, run this for each role.

    \b
    Example:
      offsetstore grants --role billing_job | psql -1 -v ON_ERROR_STOP=1 sales
    """  # noqa: D301 - \b is click's mark, and this is how click wants it
    lines = [*grant_runtime(role, schema=schema)]
    if dashboard_role is not None:
        lines += grant_dashboard(dashboard_role, schema=schema)
    # Never wrapped or escaped, not even at a terminal: it is SQL, and the names are the user's own.
    click.echo(_NOTES)
    for line in lines:
        click.echo(f"{line};")

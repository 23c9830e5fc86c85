"""``offsetstore grants``: the privileges of the job's role, for a deployment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from offsetstore.cli import options
from offsetstore.errors import ConfigurationError
from offsetstore.postgres.grants import grant_dashboard, grant_outbox, grant_relay, grant_runtime, grant_target
from offsetstore.postgres.url import SCHEMA_VARIABLE
from offsetstore.writers.table.catalogue import TableName

_F = TypeVar("_F", bound="Callable[..., Any] | click.Command")

# Comments, because these depend on the user's own tables, or concern all roles of the database.
_NOTES = """\
-- Not included: the tables of your results that --append and --upsert do not name, what their triggers and policies
-- need, and CONNECT on the database, which PUBLIC has by default.
-- On PostgreSQL 14, PUBLIC may also create tables in the schema public: REVOKE CREATE ON SCHEMA public FROM PUBLIC."""


def _table_option(name: str, writer: str) -> Callable[[_F], _F]:
    return click.option(
        f"--{name}",
        multiple=True,
        callback=options.parsed(_table),
        metavar="TABLE",
        help=f"A table that the job writes to by {writer}: TABLE or SCHEMA.TABLE, as in the job. May be repeated.",
    )


def _table(text: str) -> TableName:
    try:
        return TableName.parse(options.name(text))
    except ConfigurationError as error:
        raise ValueError(f"{error.what}: {error.found}; expected {error.expected}.") from None


@click.command()
@click.option(
    "--role",
    callback=options.names,
    metavar="ROLE",
    help="The job's role, which does not own the tables.",
)
@click.option(
    "--dashboard-role",
    callback=options.names,
    metavar="ROLE",
    help="Another role, which may only read, and write samples.",
)
@click.option(
    "--relay-role",
    callback=options.names,
    metavar="ROLE",
    help="The role of `offsetstore relay`; it may be the job's.",
)
@click.option(
    "--outbox-role",
    callback=options.names,
    metavar="ROLE",
    help="The role of an application that only puts records into the outbox (offsetstore.outbox).",
)
@_table_option("append", "Append")
@_table_option("upsert", "Upsert")
@click.option(
    "--schema",
    default="public",
    show_default=True,
    envvar=SCHEMA_VARIABLE,
    show_envvar=True,
    callback=options.names,
    metavar="NAME",
    help="Schema of the tables.",
)
def grants(
    *,
    role: str | None,
    dashboard_role: str | None,
    relay_role: str | None,
    outbox_role: str | None,
    append: tuple[TableName, ...],
    upsert: tuple[TableName, ...],
    schema: str,
) -> None:
    """Print the GRANT statements for the roles that use the tables.

    Runs nothing and needs no database. Pass the output to psql, as the owner of the tables, after every
    `offsetstore migrate`: new tables need grants of their own.

    Name one role or several. The job's role reads and writes offsetstore's tables; it may run no DDL. If each job has a
    role of its own, run this for each role.

    --append and --upsert add what the role needs on the tables of its results: USAGE on the schema, the privileges on
    the table, USAGE on the sequences of its defaults, and TEMPORARY on the database where rows go through a temporary
    table (an Upsert; an Append under row-level security). The owner of these tables must run them.

    \b
    Example:
      offsetstore grants --role billing_job --append app.orders |
          psql -1 -v ON_ERROR_STOP=1 sales
    """  # noqa: D301 - \b is click's mark, and this is how click wants it
    if role is None and (append or upsert or not (dashboard_role or relay_role or outbox_role)):
        raise click.UsageError(
            "Name the job's role with --role, or another one with --relay-role, --outbox-role or --dashboard-role."
        )
    lines: list[str] = []
    if role is not None:
        lines += grant_runtime(role, schema=schema)
        for table in append:
            lines += grant_target(role, table.schema, table.name, upsert=False)
        for table in upsert:
            lines += grant_target(role, table.schema, table.name, upsert=True)
    if relay_role is not None:
        lines += grant_relay(relay_role, schema=schema)
    if outbox_role is not None:
        lines += grant_outbox(outbox_role, schema=schema)
    if dashboard_role is not None:
        lines += grant_dashboard(dashboard_role, schema=schema)
    # Never wrapped or escaped, not even at a terminal: it is SQL, and the names are the user's own.
    click.echo(_NOTES)
    for line in lines:
        click.echo(f"{line};")

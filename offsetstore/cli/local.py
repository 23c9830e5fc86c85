"""``offsetstore local``: a PostgreSQL and a Kafka on this machine, without Docker."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

import click
from rich.console import Console
from rich.markup import escape

from offsetstore.errors import ExitCode
from offsetstore.local import stack
from offsetstore.local.stack import ServiceStatus


@click.group()
def local() -> None:
    """Run PostgreSQL and Kafka on this machine, without Docker.

    They listen on 127.0.0.1 alone. Kafka needs Java 17 or newer; its jars (45 MB) are downloaded once, to
    OFFSETSTORE_CACHE or the user's cache directory. Data stay over `down` and `up`.
    `up` prints the exports for a job again; `submit` runs a job; `down --delete-data` discards the data.
    """


@local.command()
def up() -> None:
    """Start the servers that are not running, and print how a job connects to them.

    Two exports for a shell go to standard output, and all else to standard error.

    \b
    Example:
      eval "$(offsetstore local up)"
    """  # noqa: D301 - \b is click's mark, and this is how click wants it
    services = stack.up()
    _show(services, to_stderr=True)
    addresses = {service.name: service.address for service in services}
    click.echo("\nFor a job in this shell:", err=True)
    click.echo(f"export OFFSETSTORE_URL={shlex.quote(addresses['PostgreSQL'])}")
    click.echo(f"export OFFSETSTORE_BOOTSTRAP_SERVERS={shlex.quote(addresses['Kafka'])}")


@local.command()
@click.pass_context
def status(context: click.Context) -> None:
    """Show each server's state and address. Exit code 1 if one of them is not running."""
    services = stack.status()
    if not services:
        click.echo("There is no local stack. `offsetstore local up` makes one.")
    else:
        _show(services)
    if not services or not all(service.running for service in services):
        context.exit(ExitCode.NO)


# Options that follow the job are the job's.
@local.command(context_settings={"allow_interspersed_args": False})
@click.argument("job", type=click.Path(exists=True, dir_okay=False))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def submit(job: str, arguments: tuple[str, ...]) -> None:
    """Run a job with this Python, a small Spark and the running stack.

    As `spark-submit JOB ARGUMENTS...`, with the Kafka connector and PostgreSQL's JDBC driver. OFFSETSTORE_URL and
    OFFSETSTORE_BOOTSTRAP_SERVERS are the stack's unless they are set. Further options of spark-submit go into
    PYSPARK_SUBMIT_ARGS, with `pyspark-shell` as the last word. The exit code is the job's.
    """
    from offsetstore.local.spark import submit  # noqa: PLC0415 - pyspark takes a second

    submit(job, arguments)


@local.command()
@click.option("--delete-data", is_flag=True, help="Also remove the databases, the topics and all that is in them.")
def down(*, delete_data: bool) -> None:
    """Stop the servers. Their data are kept, unless --delete-data is given."""
    stopped = stack.down(delete_data=delete_data)
    for service in stopped:
        click.echo(f"{service.name} stopped.")
    if not stopped:
        click.echo("Nothing was running.")


def _show(services: Sequence[ServiceStatus], *, to_stderr: bool = False) -> None:
    # Lines are not wrapped: a URL or a path that was folded can't be copied.
    console = Console(soft_wrap=True, highlight=False, stderr=to_stderr)
    for service in services:
        state = f"[green]running[/], pid {service.pid}" if service.running else "[red]stopped[/]"
        console.print(f"{service.name}: {state}")
        console.print(f"  {escape(_without_password(service.address))}")
        console.print(f"  {escape(str(service.directory))}")


def _without_password(address: str) -> str:
    """Hide the password in what stays on the screen; `up` shows it once, since the job needs it."""
    scheme, separator, rest = address.partition("://")
    login, at, host = rest.rpartition("@")
    return f"{scheme}{separator}{login.partition(':')[0]}{at}{host}" if separator else address

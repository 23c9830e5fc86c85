"""``offsetstore dashboard``: pages with what groups, jobs and letters are doing."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

import click

from offsetstore.cli import options
from offsetstore.cli.output import print_lines
from offsetstore.monitoring.dashboard.serving import DashboardServer, Settings
from offsetstore.store.store import OffsetStore

if TYPE_CHECKING:
    from pathlib import Path

TOKEN: Final = "OFFSETSTORE_DASHBOARD_TOKEN"  # noqa: S105 - the variable's name


@click.command()
@options.broker_options(required=True, kafka_group=False)
@options.kafka_groups_option
@options.database_options
@click.option("--port", type=click.IntRange(0, 65535), default=9466, show_default=True, help="0 takes any free port.")
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    metavar="ADDRESS",
    help=f"The address to listen on. One that others can reach needs a token in {TOKEN}.",
)
@click.option(
    "--allowed-host",
    "allowed_hosts",
    multiple=True,
    metavar="NAME",
    help="A name under which browsers may ask for the pages, besides localhost. May be repeated.",
)
def dashboard(
    *,
    bootstrap_servers: str,
    broker_option: tuple[str, ...],
    broker_config: Path | None,
    timeout: float,
    kafka_groups: dict[str, str],
    url: str | None,
    schema: str | None,
    port: int,
    host: str,
    allowed_hosts: tuple[str, ...],
) -> None:
    """Serve pages that show how groups, jobs and dead letters are.

    A page for each group has its lag, its partitions, the runs of its job and their errors, its dead letters and its
    history.

    It reads the database and Kafka every ten seconds, and writes nothing but the samples from which it draws its
    curves. The role that `offsetstore grants --dashboard` prints is enough: it can't read the contents of records.

    \b
    Example, with OFFSETSTORE_URL set:
      offsetstore dashboard -b localhost:9092
    """  # noqa: D301 - \b is click's mark, and this is how click wants it
    address = options.require_url(url)
    broker = options.make_broker(bootstrap_servers, broker_option, broker_config, timeout)
    settings = Settings(host=host, port=port, allowed_hosts=allowed_hosts, token=os.environ.get(TOKEN) or None)
    try:
        with OffsetStore.connect(address, schema=schema) as store:
            server = DashboardServer(store, broker, settings, kafka_groups=kafka_groups)
            print_lines(f"The dashboard is at {server.url}")
            server.run()
    finally:
        broker.close()

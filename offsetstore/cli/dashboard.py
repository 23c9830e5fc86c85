"""``offsetstore dashboard``: pages with what groups, jobs and letters are doing."""

from __future__ import annotations

import os
from contextlib import ExitStack, closing
from typing import Final

import click

from offsetstore import Broker
from offsetstore.cli import options
from offsetstore.cli.output import print_text
from offsetstore.errors import ConfigurationError
from offsetstore.monitoring.dashboard.context import Deciding
from offsetstore.monitoring.dashboard.serving import DashboardServer, DashboardSettings
from offsetstore.offset_store import OffsetStore
from offsetstore.runtime.background import as_main_work

TOKEN: Final = "OFFSETSTORE_DASHBOARD_TOKEN"  # noqa: S105 - the variable's name
ACTIONS_URL: Final = "OFFSETSTORE_ACTIONS_URL"


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
    help="Another host name under which browsers may open the pages, besides localhost. May be repeated.",
)
@click.option(
    "--allow-actions",
    is_flag=True,
    help="Let the pages reset, pause and resume groups, and decide about dead letters and refused rows of the outbox.",
)
@click.option(
    "--actions-url",
    metavar="URL",
    envvar=ACTIONS_URL,
    show_envvar=True,
    help="The same database as --url, with a role that may decide; for --allow-actions.",
)
def dashboard(
    *,
    kafka: options.Kafka,
    kafka_groups: dict[str, str],
    database: options.DatabaseOptions,
    port: int,
    host: str,
    allowed_hosts: tuple[str, ...],
    allow_actions: bool,
    actions_url: str | None,
) -> None:
    """Serve pages that show how groups, jobs and dead letters are.

    A page for each group has its lag, its partitions, the runs of its job and their errors, its dead letters and its
    history.

    It reads the database and Kafka every ten seconds, and writes nothing but the samples from which it draws its
    curves. The role that `offsetstore grants --dashboard-role` prints is enough: it can't read the contents of records.

    With --allow-actions the pages have forms too: each shows its plan, and asks for a reason and for the group's name.
    They write with the role of --actions-url, such as one that `offsetstore grants --role` prints; the pages still read
    with that of --url. Who can connect, or has the token, may then decide.

    \b
    Example, with OFFSETSTORE_URL set:
      offsetstore dashboard -b localhost:9092
    """  # noqa: D301 - \b is click's mark, and this is how click wants it
    address = options.require_url(database.url)
    deciding = actions_url if allow_actions else None
    if allow_actions and not deciding:
        raise ConfigurationError(
            "actions need a database URL of their own",
            found=f"neither --actions-url nor {ACTIONS_URL}",
            expected="the same database, with a role that may decide",
            next_step=f"Set {ACTIONS_URL}, or leave out --allow-actions.",
        )
    settings = DashboardSettings(host=host, port=port, allowed_hosts=allowed_hosts, token=os.environ.get(TOKEN) or None)
    with ExitStack() as opened:

        def connect() -> Broker:
            return opened.enter_context(closing(kafka.connect()))

        broker = connect()
        store = opened.enter_context(options.connect(address, database.schema, role=options.READS))
        actions = None
        if deciding is not None:
            decider = opened.enter_context(OffsetStore.connect(deciding, schema=database.schema))
            # A broker of its own: a snapshot uses the other one for seconds. A store of its own: a mistake in a page
            # can't decide anything with the role that only reads (decision 0046).
            actions = Deciding(decider, connect(), kafka_groups)
        server = DashboardServer(store, broker, settings, kafka_groups=kafka_groups, actions=actions)
        print_text(f"The dashboard is at {server.url}")
        # A snapshot of 10,000 partitions keeps 200,000 objects, which a page would wait for (decision 0046).
        with as_main_work():
            server.run()

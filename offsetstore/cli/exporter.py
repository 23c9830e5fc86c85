"""``offsetstore exporter``: all groups' lag and state for Prometheus."""

from __future__ import annotations

import threading

import click

from offsetstore.cli import options
from offsetstore.cli.output import print_text
from offsetstore.monitoring.exporter import MAX_PARTITION_SERIES, Exporter
from offsetstore.monitoring.web import Server, serving_text, url_host
from offsetstore.runtime.background import as_main_work


@click.command()
@options.broker_options(required=True, kafka_group=False)
@options.kafka_groups_option
@options.database_options
@click.option("--port", type=click.IntRange(0, 65535), default=9465, show_default=True, help="0 takes any free port.")
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    metavar="ADDRESS",
    help="The address to listen on. There is no password: let only Prometheus through.",
)
@click.option(
    "--interval",
    type=options.Seconds(1, 3600),
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="From one refresh to the next.",
)
@click.option(
    "--max-partition-series",
    type=click.IntRange(0),
    default=MAX_PARTITION_SERIES,
    show_default=True,
    metavar="NUMBER",
    help="Above this number, all per-partition series are omitted.",
)
def exporter(
    *,
    kafka: options.Kafka,
    database: options.DatabaseOptions,
    kafka_groups: dict[str, str],
    port: int,
    host: str,
    interval: float,
    max_partition_series: int,
) -> None:
    """Serve all groups' lag and state for Prometheus.

    It reads the database and Kafka at intervals, needs SELECT and DESCRIBE, and serves the result at /metrics until it
    is stopped. While the database or Kafka does not answer, it goes on, and says so in offsetstore_exporter_up.

    Where READ of a topic is allowed too, the lag in time is right also where compaction has removed the first unread
    records: a few of them are read.

    \b
    Example, with OFFSETSTORE_URL set:
      offsetstore exporter -b localhost:9092
    """  # noqa: D301 - \b is click's mark, and this is how click wants it
    address = options.require_url(database.url)
    broker = kafka.connect()
    # It connects when it refreshes: without a database it goes on, and says so in offsetstore_exporter_up.
    made = Exporter(
        lambda: options.connect(address, database.schema, role=options.READS),
        broker,
        kafka_groups=kafka_groups,
        max_partition_series=max_partition_series,
    )
    server = Server(serving_text(lambda: made.text), host=host, port=port)
    try:
        # Before it answers: invalid settings end it here, and the first scrape gets figures.
        made.refresh()
        server.start()
        print_text(f"Metrics are at http://{url_host(host)}:{server.port}/metrics")
        with as_main_work():
            made.run(interval, threading.Event())
    finally:
        server.close()
        made.close()
        broker.close()

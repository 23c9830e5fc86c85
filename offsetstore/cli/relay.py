"""``offsetstore relay``: the outbox goes to Kafka."""

from __future__ import annotations

import signal
from typing import cast

import click

from offsetstore.cli import options
from offsetstore.cli.output import print_text
from offsetstore.protocol.outbox import ANCHOR, OnUncertain
from offsetstore.relay import Relay


@click.command()
@options.broker_options(required=True, kafka_group=False)
@options.database_options
@click.option(
    "--anchor",
    default=ANCHOR,
    show_default=True,
    callback=options.names,
    metavar="TOPIC",
    help="The topic that holds the relay's offset, created if missing. Never change it.",
)
@click.option(
    "--on-uncertain",
    type=click.Choice(["fail", "repeat", "skip"]),
    default="fail",
    show_default=True,
    help="If it is not known whether the last batch is in Kafka: end, produce it again, or take it for produced.",
)
def relay(*, kafka: options.Kafka, database: options.Database, anchor: str, on_uncertain: str) -> None:
    """Produce the outbox to Kafka, exactly once.

    It runs until it is stopped, through outages once it has begun. SIGTERM ends it with exit code 0. One relay serves a
    store: a second one takes over, and the first ends with exit code 6. Readers need isolation.level=read_committed.

    Exit code 1 if it is not known whether the last batch is in Kafka; the message says what to look for.

    \b
    Example, with OFFSETSTORE_URL set:
      offsetstore relay -b localhost:9092 -o compression.type=lz4
    """  # noqa: D301 - \b is click's mark, and this is how click wants it
    broker = kafka.connect()
    before = signal.getsignal(signal.SIGTERM)
    try:
        with database.open() as store:
            running = Relay(store, broker, anchor=anchor, on_uncertain=cast("OnUncertain", on_uncertain))

            def stop(_signal: int, _frame: object) -> None:
                running.stop()

            signal.signal(signal.SIGTERM, stop)
            print_text(f"Producing the outbox of store {store.database.store_id()} to Kafka")
            running.run()
    finally:
        signal.signal(signal.SIGTERM, before)

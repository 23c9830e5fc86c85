"""``offsetstore relay``: the outbox goes to Kafka."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from typing import Final, cast

import click

from offsetstore.cli import options
from offsetstore.cli.output import print_text
from offsetstore.protocol.events import Event, OutboxRefused, OutboxRests, OutboxSent
from offsetstore.protocol.outbox import ANCHOR, OnUncertain
from offsetstore.relay import RELAY_ROLE, Relay
from offsetstore.text import counted

_MINUTE: Final = 60.0


class SentLines:
    """Prints what was sent: one line a minute while rows are sent, one when there are no more, and then nothing.

    Two lines are at least a minute apart, so that a row now and then fills no log.
    """

    def __init__(self, tell: Callable[[str], None] = print_text, clock: Callable[[], float] = time.monotonic) -> None:
        self._tell = tell
        self._clock = clock
        self._guard = threading.Lock()
        self._rows = self._aside = self._blocked = 0
        self._began: float | None = None  # when the next line's first rows began to be sent
        self._last = 0.0  # when the last row was sent
        self._told = -_MINUTE
        self._rests = False
        self._later: threading.Timer | None = None

    def on(self, event: Event) -> None:
        """Count the event's rows, and print a line if one is due."""
        with self._guard:
            now = self._clock()
            match event:
                case OutboxSent():
                    self._began = now - event.seconds if self._began is None else self._began
                    self._rows, self._last, self._rests = self._rows + event.rows, now, False
                    if now - max(self._began, self._told) >= _MINUTE:
                        self._print("")
                case OutboxRefused():
                    self._aside += len(event.errors)
                case OutboxRests():
                    self._blocked, self._rests = event.blocked, True
                    if (wait := self._told + _MINUTE - now) <= 0:
                        self._print_rest()
                    # No event comes while the relay is at rest: a timer prints the line once a minute has passed.
                    elif self._later is None:
                        self._later = threading.Timer(wait, self._print_later)
                        self._later.daemon = True
                        self._later.start()
                case _:
                    pass

    def _print_later(self) -> None:
        with self._guard:
            self._later = None
            if self._rests:
                self._print_rest()

    def _print_rest(self) -> None:
        self._print(f"; rows of {counted(self._blocked, 'topic')} wait" if self._blocked else "; the outbox is empty")

    def _print(self, more: str) -> None:
        if self._began is None:
            return
        seconds = max(self._last - self._began, 0.001)
        aside = f", {self._aside:,} set aside" if self._aside else ""
        rate = f" in {seconds:,.0f} s ({self._rows / seconds:,.0f} a second)" if seconds >= 1 else ""
        self._tell(f"{self._rows:,} {'row' if self._rows == 1 else 'rows'} sent{rate}{aside}{more}")
        self._rows = self._aside = 0
        self._began, self._told = None, self._clock()


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
def relay(*, kafka: options.Kafka, database: options.DatabaseOptions, anchor: str, on_uncertain: str) -> None:
    """Produce the outbox to Kafka, exactly once.

    It runs until it is stopped, through outages once it has begun. SIGTERM ends it within 30 seconds, with exit code 0.
    One relay serves a store: a second one takes over, and the first ends with exit code 6. Readers need
    isolation.level=read_committed. While it sends, it prints a line of figures a minute.

    Exit code 1 if it is not known whether the last batch is in Kafka; the message says what to look for.

    \b
    Example, with OFFSETSTORE_URL set:
      offsetstore relay -b localhost:9092 -o compression.type=lz4
    """  # noqa: D301 - \b is click's mark, and this is how click wants it
    broker = kafka.connect()
    before = signal.getsignal(signal.SIGTERM)
    try:
        with database.open(role=RELAY_ROLE) as store:
            store.observers = store.observers.with_one(SentLines())
            running = Relay(store, broker, anchor=anchor, on_uncertain=cast("OnUncertain", on_uncertain))

            def stop(_signal: int, _frame: object) -> None:
                running.stop()

            signal.signal(signal.SIGTERM, stop)
            print_text(f"Producing the outbox of store {store.database.store_id()} to Kafka")
            running.run()
    finally:
        signal.signal(signal.SIGTERM, before)

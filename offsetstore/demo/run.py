"""The demo from start to end: servers, flights, the two jobs one after the other, the count, and what it proves.

While it runs it shows a moving bar for each step at a terminal, elsewhere a line now and then.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from offsetstore.demo.flights import Ledger, choose, count_produced, produce_flights, read_flights, records_of
from offsetstore.demo.job_settings import JobSettings
from offsetstore.demo.kills import POISON_POINTS, DemoJob, DemoSupervisor, JobName, JobResult, plan
from offsetstore.demo.tables import add_rules, connected
from offsetstore.kafka.admin import NewRecord
from offsetstore.kafka.broker import Broker
from offsetstore.lazy import find
from offsetstore.local.kafka import KafkaBroker
from offsetstore.local.postgres import PostgresServer
from offsetstore.local.spark import quick_conf, spark_conf
from offsetstore.offset_store import OffsetStore
from offsetstore.postgres.migrate import upgrade

BATCHES: Final = 24
"""About how many micro-batches the input is cut into."""

_LINE_SECONDS: Final = 5.0
_INTERVAL: Final = 1000


class Screen:
    """Where the demo prints. Steps are begun, shown and ended one after the other.

    :param progress: disabled if there is no terminal.
    """

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._next, self._last = 0.0, ""

    def say(self, text: str) -> None:
        """Show a line that stays."""
        self._progress.console.print(Text(text, style="yellow"), soft_wrap=True)

    def begin(self, name: str, total: int | None = None) -> None:
        """Begin a step; without a total, its length is not known."""
        self._name, self._total = name, total
        self._task = self._progress.add_task(name, total=total, count="", note="")
        self._line("...")

    def show(self, done: int, note: str = "") -> None:
        """Show how far the step is."""
        count = f"{done:,} of {self._total:,}" if self._total else ""
        self._progress.update(self._task, completed=done, count=count, note=escape(note))
        if time.monotonic() >= self._next:
            self._line(count, note)

    def counted(self, records: Iterable[NewRecord]) -> Iterator[NewRecord]:
        """Pass the records on, and show how many have passed."""
        for number, record in enumerate(records, 1):
            if number % _INTERVAL == 0:
                self.show(number)
            yield record

    def end(self, note: str) -> None:
        """Stop the step's clock."""
        total = self._total or 1
        self._progress.update(self._task, total=total, completed=total, note=escape(note))
        self._progress.stop_task(self._task)
        self._line("done", note)

    def _line(self, *parts: str) -> None:
        self._next = time.monotonic() + _LINE_SECONDS
        line = f"{self._name}: {', '.join(part for part in parts if part)}"
        if self._progress.disable and line != self._last:
            self._last = line
            self.say(line)


@contextmanager
def open_screen() -> Generator[Screen]:
    """Open a screen on standard output."""
    console = Console(highlight=False)
    columns = (
        TextColumn("{task.description:<22}"),
        BarColumn(bar_width=28, complete_style="cyan", finished_style="green"),
        TextColumn("{task.fields[count]:>18}"),
        TimeElapsedColumn(),
        TextColumn("[dim]{task.fields[note]}"),
    )
    with Progress(*columns, console=console, refresh_per_second=8, disable=not console.is_terminal) as progress:
        yield Screen(progress)


LEAST_KILLS: Final = 4
"""The fewest kills in the middle of a batch."""
LEAST_BATCHES: Final = 20
"""The fewest batches, without the killed ones."""


Results: TypeAlias = Mapping["JobName", JobResult]


def is_proven(produced: int, flights: int, results: Results) -> bool:
    """Whether Kafka has all flights, the job was killed as often as required, and its results are exact.

    The at-least-once job's figures are not checked, only its kills.
    """
    killed = all(result.kills_in_batch >= LEAST_KILLS for result in results.values())
    ours = results.get("offsetstore")
    exact = ours is None or (
        ours.findings.exact
        and ours.findings.stored + ours.findings.letters == produced
        and ours.looks_apart == 0
        and ours.batches - len(ours.kills) >= LEAST_BATCHES
    )
    return produced == flights and killed and exact


def run_demo(
    screen: Screen, logs: Path, *, flights: int, seed: int, jobs: Sequence[DemoJob], poison: int, dashboard: bool
) -> tuple[int, dict[JobName, JobResult]]:
    """Run the demo. Everything that it starts is stopped, even after an error.

    :param logs: a directory for the output of the jobs.
    :param flights: how many in all.
    :param poison: how many of them are broken, and become dead letters.
    :param dashboard: whether the dashboard is served meanwhile.
    :return: how many records Kafka has, and each job's result.
    :raises MissingDependency: no Java, no flights, or something can't be downloaded.
    :raises DemoFailed: a job ended by itself, or hung.
    """
    ledger = Ledger()
    screen.begin("Servers")
    notice = partial(screen.show, 0)
    # What the jobs need is fetched here, where it is shown.
    quick_conf(spark_conf(notice=notice), notice=notice)
    with (
        tempfile.TemporaryDirectory(prefix="offsetstore-demo-") as checkpoints,
        PostgresServer() as postgres,
        KafkaBroker(notice=notice) as kafka,
        ExitStack() as pages,
    ):
        with connected(postgres.url) as connection:
            upgrade(connection)
        screen.end("PostgreSQL and Kafka are up")
        if dashboard:
            address = pages.enter_context(serve_dashboard(postgres.url, kafka.bootstrap_servers))
            screen.say(f"The dashboard, until the demo ends: {address}")
        screen.begin("Flights into Kafka", flights)
        records = records_of(read_flights(flights), choose(poison, flights, seed), ledger)
        produce_flights(kafka.bootstrap_servers, screen.counted(records))
        produced = count_produced(kafka.bootstrap_servers)
        screen.end(f"{produced:,} records")
        batch = math.ceil(flights / BATCHES)
        settings = JobSettings(postgres.url, kafka.bootstrap_servers, Path(checkpoints), batch, poison > 0)
        results: dict[JobName, JobResult] = {}
        for job in jobs:
            with connected(settings.url) as connection:
                job.tables.create(connection)
                if poison:
                    add_rules(connection)
            screen.begin(job.title, flights)
            kills = plan(seed, (*job.points, *POISON_POINTS) if poison else job.points)
            supervisor = DemoSupervisor(job, settings, kills, logs, screen.show, screen.say)
            results[job.name] = supervisor.run(ledger)
            screen.end(supervisor.note)
        return produced, results


@contextmanager
def serve_dashboard(url: str, bootstrap_servers: str) -> Generator[str]:
    """Serve the dashboard on a free port, and yield its address.

    :raises MissingDependency: a package that the dashboard needs is not installed.
    """
    serving = partial(find, "offsetstore.monitoring.dashboard.serving", what="--dashboard", extra="dashboard")
    with (
        closing(Broker({"bootstrap.servers": bootstrap_servers})) as broker,
        OffsetStore.connect(url, schema="public") as store,
        serving("DashboardServer")(store, broker, serving("DashboardSettings")(port=0)) as server,
    ):
        yield server.url

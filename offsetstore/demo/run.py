"""The demo from its start to its findings: servers, flights, the two jobs one after the other, the count."""

from __future__ import annotations

import math
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from offsetstore.demo.flights import Ledger, read_flights
from offsetstore.demo.produce import count_produced, produce_flights
from offsetstore.demo.results import NAMES, Result
from offsetstore.demo.settings import BATCHES, JobSettings
from offsetstore.demo.supervise import JOBS, Supervisor
from offsetstore.demo.tables import create_tables
from offsetstore.demo.verify import verify
from offsetstore.local.kafka.server import KafkaBroker
from offsetstore.local.postgres.server import PostgresServer
from offsetstore.local.spark.launch import quick_conf, spark_conf
from offsetstore.postgres.migrate import upgrade
from offsetstore.postgres.url import make_engine

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from offsetstore.demo.flights import Flight
    from offsetstore.demo.kills import JobName
    from offsetstore.demo.screen import Bar, Screen
    from offsetstore.demo.settings import Atomicity, Staging

_INTERVAL: Final = 1000


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run."""

    flights: int
    seed: int
    jobs: Collection[JobName]
    atomicity: Atomicity = "batch"
    staging: Staging = "auto"


def run_demo(plan: Plan, screen: Screen, logs: Path) -> tuple[int, dict[JobName, Result]]:
    """Run it. All that is started is stopped, even after an error.

    :return: how many records Kafka has, and each job's result.
    :raises MissingDependency: no Java, no flights, or something can't be downloaded.
    :raises DemoFailed: a job ended by itself, or hung.
    """
    ledger = Ledger()
    bar = screen.bar("Servers", None)

    def notice(text: str) -> None:
        bar.show(0, text)

    quick_conf(spark_conf(notice=notice), notice=notice)  # fetch what the jobs need here, where it is shown
    with (
        tempfile.TemporaryDirectory(prefix="offsetstore-demo-") as checkpoints,
        PostgresServer() as postgres,
        KafkaBroker(notice=notice) as kafka,
    ):
        _migrate(postgres.url)
        bar.end("PostgreSQL and Kafka are up")
        bar = screen.bar("Flights into Kafka", plan.flights)
        flights = ledger.entering(read_flights(plan.flights))
        produce_flights(kafka.bootstrap_servers, _shown(flights, bar))
        produced = count_produced(kafka.bootstrap_servers)
        bar.show(produced)
        bar.end(f"{produced:,} records")
        settings = JobSettings(
            postgres.url,
            kafka.bootstrap_servers,
            Path(checkpoints),
            math.ceil(plan.flights / BATCHES),
            plan.atomicity,
            plan.staging,
        )
        results: dict[JobName, Result] = {}
        for job in JOBS:
            if job.name not in plan.jobs:
                continue
            create_tables(settings.url, job.tables)
            bar = screen.bar(NAMES[job.name], ledger.flights)
            run = Supervisor(job, settings, plan.seed, logs, bar.show, screen.say).run()
            results[job.name] = Result(run, verify(settings.url, job.tables, ledger))
            bar.end(f"{len(run.kills)} kills, {run.runs - 1} restarts, {run.batches} batches")
        return produced, results


def _migrate(url: str) -> None:
    engine = make_engine(url)
    try:
        with engine.begin() as connection:
            upgrade(connection)
    finally:
        engine.dispose()


def _shown(flights: Iterable[Flight], bar: Bar) -> Iterator[Flight]:
    for number, flight in enumerate(flights):
        if number % _INTERVAL == 0:
            bar.show(number)
        yield flight

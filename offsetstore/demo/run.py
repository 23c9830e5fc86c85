"""The demo from start to end: servers, flights, the two jobs one after the other, the count, and what it proves."""

from __future__ import annotations

import math
import signal
import tempfile
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

from offsetstore.demo.day_totals import TOPIC as DAY_TOTALS
from offsetstore.demo.day_totals import Events, create_day_totals, verify_events
from offsetstore.demo.fleet import FleetSupervisor
from offsetstore.demo.flights import Ledger, count_produced, produce_flights, read_flights
from offsetstore.demo.job_settings import BATCHES, PARTITIONS, Atomicity, JobSettings
from offsetstore.demo.kills import CONSUMER_POINTS, CONSUMER_TARGETS, POINTS, POISON_POINTS, JobName
from offsetstore.demo.poison import add_rules, choose, records_of
from offsetstore.demo.relaying import KilledRelay
from offsetstore.demo.screen import Bar, Screen
from offsetstore.demo.supervise import JOBS, JobRun, Supervisor
from offsetstore.demo.tables import Findings, connected, verify
from offsetstore.kafka.admin import Record, create_topic, read_committed
from offsetstore.kafka.broker import Broker
from offsetstore.lazy import load
from offsetstore.local.kafka.server import KafkaBroker
from offsetstore.local.postgres.server import PostgresServer
from offsetstore.offset_store import OffsetStore
from offsetstore.postgres.migrate import upgrade

NAMES: Final[dict[JobName, str]] = {"offsetstore": "offsetstore", "at_least_once": "at-least-once"}
LEAST_KILLS: Final = 4
"""The fewest kills in the middle of a batch."""
LEAST_RELAY_KILLS: Final = 4
"""The fewest kills of the relay, if there is one."""
LEAST_BATCHES: Final = 20
"""The fewest batches, without the killed ones."""
_INTERVAL: Final = 1000


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run.

    :param flights: how many in all.
    :param consumer: whether our job is a consumer's processes, without Spark.
    :param outbox: whether our job also produces the days' totals.
    :param poison: how many of them are broken, and become dead letters.
    :param dashboard: whether the dashboard is served meanwhile.
    """

    flights: int
    seed: int
    jobs: Collection[JobName]
    atomicity: Atomicity = "batch"
    poison: int = 0
    dashboard: bool = False
    consumer: bool = False
    outbox: bool = False


@dataclass(frozen=True, slots=True)
class Result:
    """One job: what happened, and what it left.

    :param events: what it has produced, by way of the outbox.
    :param relay_kills: the points at which the relay was killed meanwhile.
    """

    run: JobRun
    findings: Findings
    events: Events | None = None
    relay_kills: Sequence[str] = ()

    @property
    def looks_apart(self) -> int:
        """How many looks saw rows and letters that the stored offsets don't match: none, if all change at once."""
        return sum(look.passed != look.offsets for look in self.run.looks)

    @property
    def kills_in_batch(self) -> int:
        """How many kills hit a batch that had begun and was not done, and ended the process."""
        return sum(kill.in_batch and kill.exit_status == -signal.SIGKILL for kill in self.run.kills)

    def as_json(self) -> dict[str, Any]:
        """Return it for the report."""
        produced = {"events": self.events.as_json(), "relay_kills": self.relay_kills} if self.events else {}
        return (
            self.findings.as_json()
            | produced
            | {
                "seconds": round(self.run.seconds, 1),
                "runs": self.run.runs,
                "batches": self.run.batches,
                "looks": len(self.run.looks),
            }
        )


Results: TypeAlias = Mapping["JobName", Result]


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
        and ours.run.batches - len(ours.run.kills) >= LEAST_BATCHES
        and (ours.events is None or (ours.events.exact and len(ours.relay_kills) >= LEAST_RELAY_KILLS))
    )
    return produced == flights and killed and exact


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

    if not plan.consumer:  # fetch what the jobs need here, where it is shown
        quick_conf, spark_conf = (load(__name__, name, _LAZY) for name in ("quick_conf", "spark_conf"))
        quick_conf(spark_conf(notice=notice), notice=notice)
    with (
        tempfile.TemporaryDirectory(prefix="offsetstore-demo-") as checkpoints,
        PostgresServer() as postgres,
        KafkaBroker(notice=notice) as kafka,
        ExitStack() as pages,
    ):
        with connected(postgres.url) as connection:
            upgrade(connection)
        bar.end("PostgreSQL and Kafka are up")
        if plan.dashboard:
            address = pages.enter_context(serve_dashboard(postgres.url, kafka.bootstrap_servers))
            screen.say(f"The dashboard, until the demo ends: {address}")
        bar = screen.bar("Flights into Kafka", plan.flights)
        broken = choose(plan.poison, plan.flights, plan.seed)
        records = records_of(read_flights(plan.flights), broken, ledger)
        produce_flights(kafka.bootstrap_servers, _shown(records, bar))
        produced = count_produced(kafka.bootstrap_servers)
        bar.show(produced)
        bar.end(f"{produced:,} records")
        settings = JobSettings(
            postgres.url,
            kafka.bootstrap_servers,
            Path(checkpoints),
            math.ceil(plan.flights / BATCHES),
            plan.atomicity,
            dead_letters=plan.poison > 0,
            outbox=plan.outbox,
        )
        results: dict[JobName, Result] = {}
        for job in JOBS:
            if job.name not in plan.jobs:
                continue
            with connected(settings.url) as connection:
                job.tables.create(connection)
                if settings.dead_letters:
                    add_rules(connection)
            bar = screen.bar(NAMES[job.name], ledger.flights)
            where = job, settings, plan.seed, logs, bar.show, screen.say
            if plan.consumer:
                supervisor = FleetSupervisor(*where, CONSUMER_POINTS, CONSUMER_TARGETS, flights=ledger.flights)
            else:
                supervisor = Supervisor(*where, POISON_POINTS if plan.poison else POINTS[job.name])
            if plan.outbox and job.name == "offsetstore":
                results[job.name] = _run_with_relay(supervisor, ledger)
            else:
                results[job.name] = Result(supervisor.run(), verify(settings.url, job.tables, ledger))
            bar.end(supervisor.note)
        return produced, results


def _run_with_relay(supervisor: Supervisor, ledger: Ledger) -> Result:
    """Run the job with a relay beside it, until all that it has produced is in Kafka."""
    settings = supervisor.settings
    create_topic(settings.bootstrap_servers, DAY_TOTALS, partitions=PARTITIONS)
    with connected(settings.url) as connection:
        create_day_totals(connection)
    with KilledRelay(settings, supervisor.seed, supervisor.logs, supervisor.say) as relay:
        run = supervisor.run()
        relay.finish()
    found = [(one.key(), one.value()) for one in read_committed(settings.bootstrap_servers, DAY_TOTALS)]
    events = verify_events(settings.url, found, ledger)
    return Result(run, verify(settings.url, supervisor.job.tables, ledger), events, relay.kills)


def _shown(records: Iterable[Record], bar: Bar) -> Iterator[Record]:
    for number, record in enumerate(records):
        if number % _INTERVAL == 0:
            bar.show(number)
        yield record


_LAZY = {
    "DashboardServer": ("offsetstore.monitoring.dashboard.serving", "dashboard"),
    "Settings": ("offsetstore.monitoring.dashboard.serving", "dashboard"),
    "quick_conf": ("offsetstore.local.spark.launch", "demo"),
    "spark_conf": ("offsetstore.local.spark.launch", "demo"),
}


@contextmanager
def serve_dashboard(url: str, bootstrap_servers: str) -> Generator[str]:
    """Serve it on a free port, and yield its address.

    :raises MissingDependency: a package that it needs is not installed.
    """
    settings = load(__name__, "Settings", _LAZY)(port=0)
    broker = Broker({"bootstrap.servers": bootstrap_servers})
    try:
        with (
            OffsetStore.connect(url, schema="public") as store,
            load(__name__, "DashboardServer", _LAZY)(store, broker, settings) as server,
        ):
            yield server.url
    finally:
        broker.close()

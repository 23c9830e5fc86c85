"""``offsetstore demo``: the command."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path
from types import FrameType
from typing import NoReturn, get_args

import click

from offsetstore.cli.output import Table, print_text
from offsetstore.demo.flights import ALL
from offsetstore.demo.job_settings import Atomicity
from offsetstore.demo.kills import POINTS, JobName
from offsetstore.demo.report import equation, summary, write_report
from offsetstore.demo.run import Plan, is_proven, run_demo
from offsetstore.demo.screen import open_screen
from offsetstore.errors import ExitCode

_LEAST_GOOD = 10  # flights for each broken one


@click.command()
@click.option("--seed", default=13, show_default=True, help="Decides when and in which order the jobs are killed.")
@click.option(
    "--flights",
    type=click.IntRange(1000, ALL),
    default=ALL,
    show_default=True,
    metavar="COUNT",
    help="How many flights, for a shorter run.",
)
@click.option(
    "--only",
    type=click.Choice(list(POINTS)),
    help="Run one of the two jobs.",
)
@click.option(
    "--atomicity",
    type=click.Choice(get_args(Atomicity)),
    default="batch",
    show_default=True,
    help="One transaction for a micro-batch, or one for each of its Kafka partitions, in parallel.",
)
@click.option(
    "--poison",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    metavar="COUNT",
    help="Corrupt COUNT flights, chosen by the seed; each must become a dead letter. Runs our job alone, "
    "and kills it six times: the other would end at the first of them.",
)
@click.option(
    "--consumer",
    is_flag=True,
    help="Land the flights by two processes of `offsetstore consume`, without Spark. Runs our job alone.",
)
@click.option(
    "--outbox",
    is_flag=True,
    help="Also produce each new total of a day to Kafka, by `offsetstore relay`, which is killed four times, and read "
    "them back with read_committed.",
)
@click.option("--dashboard", is_flag=True, help="Serve the dashboard meanwhile; its address is printed.")
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("build/demo"),
    show_default=True,
    help="Where the report and the jobs' logs go.",
)
@click.pass_context
def demo(
    context: click.Context,
    *,
    seed: int,
    flights: int,
    only: str | None,
    atomicity: Atomicity,
    poison: int,
    consumer: bool,
    outbox: bool,
    dashboard: bool,
    output: Path,
) -> None:
    """Land 336,776 flights exactly once, while the job is killed.

    Starts a PostgreSQL and a Kafka of its own, produces the flights that left New York City in 2013, and runs the job
    as its own process, which gets SIGKILL in the middle of four of its batches and is started again. Then the same
    with the at-least-once job that people write today. Both are counted against the CSV; report.html shows the picture.

    Needs Java 17 or newer, and downloads jars (55 MB) the first time. Exit code 1 if a flight or an event is missing or
    there twice, a sum, a total or a dead letter is wrong, or a kill did not happen.
    """
    if poison:
        _check_poison(poison, flights, only, atomicity)
    for option, is_given in {"--consumer": consumer, "--outbox": outbox}.items():
        if is_given:
            _check_way(option, only, atomicity, poison)
    if poison or consumer:
        only = "offsetstore"
    signal.signal(signal.SIGTERM, _interrupt)  # so that the servers are stopped then, too
    logs = output / "logs"
    shutil.rmtree(logs, ignore_errors=True)
    logs.mkdir(parents=True)
    jobs: list[JobName] = [job for job in POINTS if only in {None, job}]
    with open_screen() as screen:
        produced, results = run_demo(
            Plan(flights, seed, jobs, atomicity, poison, dashboard, consumer, outbox), screen, logs
        )
    click.echo()
    (head, *jobs_of), rows = summary(produced, results)
    print_text(Table([head, *(f"#{name}" for name in jobs_of)], rows))
    page = write_report(output, produced, results, seed)
    click.echo(f"\nThe picture: {page}")
    if not is_proven(produced, flights, results):
        context.exit(ExitCode.NO)
    if poison:
        click.echo(equation(produced, results["offsetstore"].findings))


def _check_poison(poison: int, flights: int, only: str | None, atomicity: Atomicity) -> None:
    """Refuse what does not go together.

    :raises click.UsageError: see its text.
    """
    if poison * _LEAST_GOOD > flights:
        raise click.UsageError(f"--poison: at most {flights // _LEAST_GOOD:,} of {flights:,} flights")
    if only == "at_least_once":
        raise click.UsageError("--poison: the at-least-once job has no dead letters; it would end at the first of them")
    if atomicity == "partition":
        raise click.UsageError(
            "--poison needs --atomicity batch: for each partition alone, a function writes both tables, and dead "
            "letters need the rows of single records"
        )


def _check_way(option: str, only: str | None, atomicity: Atomicity, poison: int) -> None:
    """Refuse what does not go together.

    :raises click.UsageError: see its text.
    """
    if only == "at_least_once":
        raise click.UsageError(f"{option} is about our job, which --only at_least_once leaves out")
    if atomicity == "partition":
        raise click.UsageError(f"{option} needs --atomicity batch: it has several outputs")
    if poison:
        raise click.UsageError(f"{option} does not go with --poison")


def _interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt

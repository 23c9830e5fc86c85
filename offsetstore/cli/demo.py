"""``offsetstore demo``: the command."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path
from types import FrameType
from typing import Final, NoReturn

import click

from offsetstore.cli.output import print_text
from offsetstore.cli.tables import Table
from offsetstore.demo.flights import ALL
from offsetstore.demo.kills import JOBS
from offsetstore.demo.report import summary, write_report
from offsetstore.demo.run import is_proven, open_screen, run_demo
from offsetstore.errors import ExitCode

_LEAST_GOOD: Final = 10  # flights for each broken one


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
@click.option("--only", type=click.Choice([job.name for job in JOBS]), help="Run one of the two jobs.")
@click.option(
    "--poison",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    metavar="COUNT",
    help="Corrupt COUNT flights, chosen by the seed; each must become a dead letter. Runs our job alone, "
    "and kills it six times: the other would end at the first of them.",
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
    poison: int,
    dashboard: bool,
    output: Path,
) -> None:
    """Land 336,776 flights exactly once, while the job is killed.

    Starts a PostgreSQL and a Kafka of its own, produces the flights that left New York City in 2013, and runs the job
    as its own process, which gets SIGKILL in the middle of four of its batches and is started again. Then the same
    with the at-least-once job that people write today. Both are counted against the CSV; report.html shows the picture.

    Needs Java 17 or newer, and downloads jars (55 MB) the first time. Exit code 1 if a flight is missing or there
    twice, a sum or a dead letter is wrong, or a kill did not happen.
    """
    if poison * _LEAST_GOOD > flights:
        raise click.UsageError(f"--poison: at most {flights // _LEAST_GOOD:,} of {flights:,} flights")
    if poison and only == "at_least_once":
        raise click.UsageError("--poison: the at-least-once job has no dead letters; it would end at the first of them")
    only = "offsetstore" if poison else only
    # SIGTERM, too, has to stop the servers.
    signal.signal(signal.SIGTERM, _interrupt)
    logs = output / "logs"
    shutil.rmtree(logs, ignore_errors=True)
    logs.mkdir(parents=True)
    with open_screen() as screen:
        produced, results = run_demo(
            screen,
            logs,
            flights=flights,
            seed=seed,
            jobs=[job for job in JOBS if only in {None, job.name}],
            poison=poison,
            dashboard=dashboard,
        )
    click.echo()
    (head, *names), rows = summary(produced, results)
    print_text(Table([head, *(f"#{name}" for name in names)], rows))
    page = write_report(output, produced, results, seed)
    click.echo(f"\nThe picture: {page}")
    if not is_proven(produced, flights, results):
        context.exit(ExitCode.NO)
    if poison:
        found = results["offsetstore"].findings
        click.echo(f"{produced:,} flights = {found.stored:,} landed + {found.letters:,} dead letters, none twice")


def _interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt

"""``make chaos``: the whole matrix, again and again with other seeds (``python -m tests.faults.chaos.harness -h``)."""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TypeAlias

import click

from tests.faults.chaos.harness.job import Way
from tests.faults.chaos.harness.registry import Fault, load
from tests.faults.chaos.harness.run import Result, Stage
from tests.faults.chaos.harness.table import read
from tests.support.checkout import commit_of

_ROOT = Path(__file__).parents[4]
_LONG = 2
"""Faults that ask for so few seeds run at length."""

Planned: TypeAlias = tuple[Fault, Way, int]


@click.command()
@click.option("--seeds", type=click.IntRange(1), help="How many seeds of each fault; by default what each asks for.")
@click.option("--first", default=0, show_default=True, help="The first seed.")
@click.option(
    "--only",
    multiple=True,
    metavar="TEXT",
    help="The fault of this name, else those whose name or row contains it; may be repeated.",
)
@click.option("--way", type=click.Choice(["batch", "partition"]), help="One way of writing alone.")
@click.option("--hours", type=float, help="Begin no run after so many hours.")
@click.option("--minutes", type=float, help="Begin no run after so many minutes.")
@click.option("--chosen-by", metavar="COMMIT", help="One seed of each, in an order that the commit's hash decides.")
@click.option("--again", is_flag=True, help="Run also what has been run on this commit, and held.")
@click.option("--list", "list_", is_flag=True, help="List the faults, and run none.")
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    default=_ROOT / "build" / "chaos",
    help="Where results and logs go, build/chaos by default.",
)
@click.pass_context
def chaos(
    context: click.Context,
    *,
    seeds: int | None,
    first: int,
    only: tuple[str, ...],
    way: Way | None,
    hours: float | None,
    minutes: float | None,
    chosen_by: str | None,
    again: bool,
    list_: bool,
    output: Path,
) -> None:
    """Break the job in every way of the matrix, and hold it against what was produced.

    One JSON line a run goes to runs.jsonl. A run that is there for this commit, and held, is not run again: stop and
    start as you like. With uncommitted changes, all are run. Exit code 1 if a run failed.
    """
    faults = _chosen(only)
    if list_:
        for one in faults:
            click.echo(f"{one.name:48} {','.join(one.ways):24} {one.seeds:3} seeds  {one.row}")
        return
    output = output.absolute()  # executors work elsewhere
    output.mkdir(parents=True, exist_ok=True)
    commit = commit_of(_ROOT)
    lines = output / "runs.jsonl"
    # Two trees with changes have the same name.
    before = [] if again or commit.endswith("-dirty") else read(lines, commit)
    done = {(one["fault"], one["way"], one["seed"]) for one in before if not one["violations"]}
    plan = list(_plan(faults, seeds, first, way)) if chosen_by is None else _chosen_by(chosen_by, faults)
    wanted = [one for one in plan if (one[0].name, *one[1:]) not in done]
    behind = len(plan) - len(wanted)
    click.echo(f"{len(wanted)} runs of {len(faults)} faults, commit {commit}; {behind} were done before")
    bad = 0
    if not wanted:
        return
    limit = (hours or 0) * 3600 + (minutes or 0) * 60
    with Stage(output / "stage", commit=commit) as stage:
        deadline = time.monotonic() + limit if limit else None
        for number, (fault, way_, seed) in enumerate(wanted, 1):
            if deadline is not None and time.monotonic() > deadline:
                click.echo("The time is over; the same command goes on.")
                break
            result = stage.run(fault, way_, seed)
            with lines.open("a") as file:
                file.write(json.dumps(asdict(result)) + "\n")
            bad += bool(result.violations)
            click.echo(f"{number}/{len(wanted)} {_told(result)}")
            click.echo(f'    again: make chaos ONLY="{fault.name}" WAY={way_} SEED={seed}')
    context.exit(1 if bad else 0)


def _chosen(only: tuple[str, ...]) -> list[Fault]:
    faults = load()
    if not only:
        return list(faults.values())
    names: set[str] = set()
    for word in only:
        found = [word] if word in faults else [n for n, one in faults.items() if word in n or word in one.row]
        if not found:
            raise click.UsageError(f"no fault's name or row contains {word!r}; --list shows them.")
        names |= {*found}
    return [one for name, one in faults.items() if name in names]


def _chosen_by(commit: str, faults: Sequence[Fault]) -> list[Planned]:
    """Shuffle the faults by a commit's hash, with a seed of each, without those at length and root's."""
    dice = random.Random(commit)  # noqa: S311 - to be repeated
    short = [fault for fault in faults if fault.seeds > _LONG and (fault.name != "disk-full" or os.geteuid() == 0)]
    plan = [(fault, dice.randrange(fault.seeds)) for fault in short]
    dice.shuffle(plan)
    return [(fault, fault.ways[seed % len(fault.ways)], seed) for fault, seed in plan]


def _plan(faults: list[Fault], seeds: int | None, first: int, way: Way | None) -> Iterator[Planned]:
    """Each fault with each seed; the ways take turns, so that all have been there after three seeds."""
    most = max((seeds or fault.seeds for fault in faults), default=0)
    for seed in range(first, first + most):
        for fault in faults:
            if seed >= first + (seeds or fault.seeds):
                continue
            if way is None:
                yield fault, fault.ways[seed % len(fault.ways)], seed
            elif way in fault.ways:
                yield fault, way, seed


def _told(result: Result) -> str:
    outcome = "held" if not result.violations else "FAILED"
    recovered = "" if result.seconds_to_recover is None else f", caught up in {result.seconds_to_recover:.1f} s"
    text = f"{outcome:7}{result.fault} [{result.way}] seed {result.seed}: {result.seconds:.0f} s{recovered}"
    if not result.violations:
        return text
    told = [*result.violations, *(f"done: {one}" for one in result.evidence), *(f"log: {one}" for one in result.logs)]
    return "\n".join([text, *(f"    {one}" for one in told)])


if __name__ == "__main__":
    chaos()

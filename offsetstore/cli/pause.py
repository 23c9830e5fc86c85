"""``offsetstore pause`` and ``offsetstore resume``."""

from __future__ import annotations

from datetime import datetime

import click

from offsetstore.cli import options
from offsetstore.cli.exits import decide
from offsetstore.cli.output import document, print_digest, print_json, print_lines
from offsetstore.operations.pauses import PauseDecided


@click.command()
@options.group_option
@click.option(
    "--until",
    callback=options.moment,
    metavar="TIME",
    help="When the pause ends by itself (2025-03-01T00:00Z), by the database's clock; without it, at `resume`.",
)
@options.dry_run_options
@options.database_options
@options.format_option
def pause(
    *,
    group: str,
    until: datetime | None,
    how: options.How,
    database: options.Database,
    format_: str,
) -> None:
    """Pause a consumer group.

    Its running job finishes the batch that it is computing and waits before the next one; so does a job that starts
    while the group is paused. It keeps its claim and holds no locks. A second pause replaces the first; a reset or a
    new name keeps it.

    \b
    Exit codes:
      0  done; with --dry-run: it can be done
      1  there is no such group, it was renamed, or the plan is not --if-plan
         (the new one is printed): another pause was made, or ended
      2  wrong usage, or a time that has passed
      3  the database can't be reached or refuses

    \b
    Keys of --format json:
      group
      executed  whether it was done
      plan      for --if-plan
      replaced  at, until, reason of the pause before; null if there was none
      paused    at, until, reason

    \b
    Example, with OFFSETSTORE_URL set:
      offsetstore pause -g billing --reason "the database is upgraded, ticket 17"
    """  # noqa: D301 - \b is click's mark, and this is how click wants it
    decide(database, lambda store: store.pause(group, until=until, **how), lambda done: _print_paused(done, format_))


@click.command()
@options.group_option
@options.dry_run_options
@options.database_options
@options.format_option
def resume(
    *,
    group: str,
    how: options.How,
    database: options.Database,
    format_: str,
) -> None:
    """End a consumer group's pause.

    A job that waits goes on within a second or two. If the group is not paused, nothing is written.

    \b
    Exit codes:
      0  done, or the group was not paused; with --dry-run: it can be done
      1  there is no such group, it was renamed, or the plan is not --if-plan
         (the new one is printed): another pause was made, or ended
      2  wrong usage
      3  the database can't be reached or refuses

    \b
    Keys of --format json:
      group
      executed  whether anything was written
      plan      for --if-plan
      ended     at, until, reason of the pause; null if there was none

    \b
    Example, with OFFSETSTORE_URL set:
      offsetstore resume -g billing --reason "the upgrade is done, ticket 17"
    """  # noqa: D301 - \b is click's mark, and this is how click wants it
    decide(database, lambda store: store.resume(group, **how), lambda done: _print_resumed(done, format_))


def _print_paused(done: PauseDecided, format_: str) -> None:
    group, made = done.group, done.after
    assert made is not None
    if format_ == "json":
        print_json(document(done, "group executed plan=digest replaced=before paused=after"))
        return
    end = "`offsetstore resume` ends it" if made.until is None else f"It ends at {made.until.isoformat()}"
    if done.executed:
        print_lines(f"Paused {group}. {end}.", "A running job waits before its next batch.")
        return
    print_lines(f"Would pause {group}. {end}.")
    if done.before is not None:
        print_lines(f"That replaces a pause: {done.before}.")
    _print_plan(done)


def _print_resumed(done: PauseDecided, format_: str) -> None:
    if format_ == "json":
        print_json(document(done, "group executed plan=digest ended=before"))
    elif done.before is None:
        print_lines(f"{done.group} was not paused; nothing was written.")
    elif done.executed:
        print_lines(f"Resumed {done.group}, {done.before}.")
    else:
        print_lines(f"Would resume {done.group}, {done.before}.")
        _print_plan(done)


def _print_plan(done: PauseDecided) -> None:
    print_lines("Nothing was written.")
    print_digest(done.digest, execute=False)

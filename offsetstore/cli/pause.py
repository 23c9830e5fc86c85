"""``offsetstore pause`` and ``offsetstore resume``."""

from __future__ import annotations

from datetime import datetime
from typing import Final

import click

from offsetstore.cli import options
from offsetstore.cli.asking import Decide, decide_options

_KEYS: Final = "group executed plan=digest"


@click.command()
@options.group_option
@click.option(
    "--until",
    callback=options.moment,
    metavar="TIME",
    help="When the pause ends by itself (2025-03-01T00:00Z), by the database's clock; without it, at `resume`.",
)
# Without --execute: a pause is urgent, and loses nothing (decision 0051).
@decide_options(at_once=True)
def pause(*, group: str, until: datetime | None, decide: Decide) -> None:
    """Pause a consumer group.

    Its running job finishes the batch that it is computing and waits before the next one; so does a job that starts
    while the group is paused. It keeps its claim and holds no locks. A second pause replaces the first; a reset or a
    new name keeps it.

    Exit code 1 if there is no such group, if it was renamed, or if the plan is not --if-plan (the new one is printed):
    another pause was made, or ended.

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
    decide(f"{_KEYS} replaced=before paused=after", lambda store: store.pause(group, until=until, **decide.how))


@click.command()
@options.group_option
@decide_options(at_once=True)
def resume(*, group: str, decide: Decide) -> None:
    """End a consumer group's pause.

    A job that waits goes on within a second or two. If the group is not paused, nothing is written.

    Exit code 1 as for `offsetstore pause`.

    \b
    Keys of --format json:
      group
      executed  whether anything was written
      plan      for --if-plan
      ended     at, until, reason of the pause; null if there was none

    \b
    Example, with OFFSETSTORE_URL set:
      offsetstore resume -g billing --reason "the upgrade is done, ticket 17"
    """  # noqa: D301 - as above
    decide(f"{_KEYS} ended=before", lambda store: store.resume(group, **decide.how))

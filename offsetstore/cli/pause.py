"""``offsetstore pause`` and ``offsetstore resume``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from offsetstore.cli import options
from offsetstore.cli.output import print_json, print_lines

if TYPE_CHECKING:
    from datetime import datetime

    from offsetstore.offsets import Pause


@click.command()
@options.group_option
@click.option(
    "--until",
    callback=options.moment,
    metavar="TIME",
    help="When the pause ends by itself (2025-03-01T00:00Z), by the database's clock; without it, at `resume`.",
)
@options.reason_option
@options.database_options
@options.format_option
def pause(
    *, group: str, until: datetime | None, reason: str, url: str | None, schema: str | None, format_: str
) -> None:
    """Pause a consumer group.

    Its running job finishes the batch that it is computing and waits before the next one; so does a job that starts
    while the group is paused. It keeps its claim and holds no locks. A second pause replaces the first; a reset or a
    new name keeps it.

    \b
    Exit codes:
      0  done
      1  there is no such group, or it was renamed
      2  wrong usage, or a time that has passed
      3  the database can't be reached or refuses

    \b
    Keys of --format json:
      group
      paused   at, until, reason

    \b
    Example, with OFFSETSTORE_URL set:
      offsetstore pause -g billing --reason "the database is upgraded, ticket 17"
    """  # noqa: D301 - \b is click's mark, and this is how click wants it
    with options.open_store(url, schema) as store:
        made = store.pause(group, until=until, reason=reason)
    if format_ == "json":
        print_json({"group": group, "paused": document(made)})
        return
    end = "`offsetstore resume` ends it" if made.until is None else f"It ends at {made.until.isoformat()}"
    print_lines(f"Paused {group}. {end}.", "A running job waits before its next batch.")


@click.command()
@options.group_option
@options.reason_option
@options.database_options
@options.format_option
def resume(*, group: str, reason: str, url: str | None, schema: str | None, format_: str) -> None:
    """End a consumer group's pause.

    A job that waits goes on within a second or two. If the group is not paused, nothing is written.

    \b
    Exit codes:
      0  done, or the group was not paused
      1  there is no such group, or it was renamed
      2  wrong usage
      3  the database can't be reached or refuses

    \b
    Keys of --format json:
      group
      ended    at, until, reason of the pause; null if there was none

    \b
    Example, with OFFSETSTORE_URL set:
      offsetstore resume -g billing --reason "the upgrade is done, ticket 17"
    """  # noqa: D301 - \b is click's mark, and this is how click wants it
    with options.open_store(url, schema) as store:
        ended = store.resume(group, reason=reason)
    if format_ == "json":
        print_json({"group": group, "ended": document(ended)})
    elif ended is None:
        print_lines(f"{group} was not paused; nothing was written.")
    else:
        print_lines(f"Resumed {group}, {ended}.")


def document(pause: Pause | None) -> dict[str, object] | None:
    """Return what JSON documents tell of a pause."""
    if pause is None:
        return None
    until = None if pause.until is None else pause.until.isoformat()
    return {"at": pause.at.isoformat(), "until": until, "reason": pause.reason}

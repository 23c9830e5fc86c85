"""``offsetstore errors``: what a group's jobs stumbled over."""

from __future__ import annotations

from datetime import datetime
from typing import Final

import click

from offsetstore.cli import options
from offsetstore.cli.asking import AskOptions, ask_options
from offsetstore.cli.output import Table, document, print_followed
from offsetstore.protocol.runs import SOURCES, ErrorSource

_COLUMNS: Final = "at, source, #times, #batch, error=error_class, text"
_KEYS: Final = "at epoch source error_class text sqlstate *topic_partition batch ranges times"


@click.command()
@options.group_option
@click.option(
    "--source",
    "sources",
    multiple=True,
    type=click.Choice(SOURCES),
    metavar="SOURCE",
    help=f"Only errors from this source: one of {', '.join(SOURCES)}. May be repeated.",
)
@options.lines_options("error")
@ask_options
def errors(
    *,
    group: str,
    since: datetime | None,
    sources: tuple[ErrorSource, ...],
    limit: int | None,
    follow: bool,
    ask: AskOptions,
) -> None:
    """Show the errors that a consumer group's jobs met.

    Each error that ended a batch, the job, a flush or idle work, that refused a start, each that was retried, and the
    first failure to copy the offsets to Kafka; the newest is the last line. The text is that of our own errors, which
    holds no values of rows: for others look into the job's log. An error that comes again within five seconds is one
    line. The newest thousand lines are kept.

    Exit code 1 if the store does not know the group, and 130 if --follow was interrupted.

    \b
    Keys of --format json; with --follow, each error is one line:
      group
      errors[]  at, epoch (of the run), source, error_class, text, sqlstate,
                topic, partition, batch, ranges (what the batch read), times

    \b
    Example, with OFFSETSTORE_URL set:
      offsetstore errors -g billing --source batch -n 5
    """  # noqa: D301 - \b is click's mark, and this is how click wants it
    with ask.about(group) as store:
        if follow:
            following = store.follow_errors(group, since=since, sources=sources, limit=limit)
            print_followed(following, _COLUMNS, _KEYS, as_json=ask.as_json)
            return
        found = store.errors(group, since=since, sources=sources, limit=limit)
    ask.show(document(found, f"group errors=.[{_KEYS}]", group=group), Table.of(_COLUMNS, found))

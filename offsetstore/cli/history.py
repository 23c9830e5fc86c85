"""``offsetstore history``: what was decided about a group."""

from __future__ import annotations

from datetime import datetime

import click

from offsetstore.cli import options
from offsetstore.cli.exits import fail_unknown
from offsetstore.cli.output import Column, print_followed, print_json, print_table
from offsetstore.protocol.database import EVENTS, HistoryEvent

_COLUMNS = (
    Column("at"),
    Column("event"),
    Column("partition"),
    Column("from", number=True),
    Column("to", number=True),
    Column("actor"),
    Column("reason"),
)


@click.command()
@options.group_option
@click.option(
    "--event",
    "events",
    multiple=True,
    type=click.Choice(EVENTS),
    metavar="EVENT",
    help=f"Only this event. May be repeated. One of {', '.join(EVENTS)}.",
)
@options.lines_options("event")
@options.database_options
@options.format_option
def history(
    *,
    group: str,
    since: datetime | None,
    events: tuple[str, ...],
    limit: int | None,
    follow: bool,
    url: str | None,
    schema: str | None,
    format_: str,
) -> None:
    """Show what was decided about a consumer group, and by whom.

    Each claim, reset, rename and pause, each offset that was adopted or skipped, metadata rewritten by hand, and what
    was decided about dead letters; the newest event is the last. Advances are not included.

    The exit code is 1 if the store does not know the group, and 130 if --follow was interrupted.

    \b
    Keys of --format json; with --follow, each event is one line:
      group
      events[]  at, event, topic, partition, from, to, epoch, claim_id, actor,
                reason, db_role (the database's role that wrote it)

    \b
    Example, with OFFSETSTORE_URL set:
      offsetstore history -g billing --event reset --since 2025-03-01T00:00Z
    """  # noqa: D301 - \b is click's mark, and this is how click wants it
    with options.open_store(url, schema) as store:
        if store.owner(group) is None:
            fail_unknown(group)
        if follow:
            following = store.follow_history(group, since=since, events=events, limit=limit)
            print_followed(following, _cells, _document, as_json=format_ == "json")
            return
        found = store.history(group, since=since, events=events, limit=limit)
    if format_ == "json":
        print_json({"group": group, "events": [_document(line) for line in found]})
    else:
        print_table(_COLUMNS, [_cells(line) for line in found])


def _cells(line: HistoryEvent) -> tuple[object, ...]:
    at = None if line.at is None else line.at.isoformat(timespec="seconds")
    return (at, line.event, line.topic_partition, line.from_offset, line.to_offset, line.actor, line.reason)


def _document(line: HistoryEvent) -> dict[str, object]:
    tp = line.topic_partition
    return {
        "at": None if line.at is None else line.at.isoformat(),
        "event": line.event,
        "topic": None if tp is None else tp.topic,
        "partition": None if tp is None else tp.partition,
        "from": line.from_offset,
        "to": line.to_offset,
        "epoch": line.token.epoch,
        "claim_id": str(line.token.claim_id),
        "actor": line.actor,
        "reason": line.reason,
        "db_role": line.db_role,
    }

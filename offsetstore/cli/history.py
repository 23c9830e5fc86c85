"""``offsetstore history``: what was decided about a group."""

from __future__ import annotations

from datetime import datetime
from typing import Final

import click

from offsetstore.cli import options
from offsetstore.cli.asking import AskOptions, ask_options
from offsetstore.cli.output import Table, document, print_followed
from offsetstore.protocol.database import EVENTS

_COLUMNS: Final = "at, event, partition=topic_partition, #from=from_offset, #to=to_offset, actor, reason"
_KEYS: Final = (
    "at event *topic_partition from=from_offset to=to_offset epoch=token.epoch "
    "claim_id=token.claim_id actor reason db_role"
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
@ask_options
def history(
    *, group: str, since: datetime | None, events: tuple[str, ...], limit: int | None, follow: bool, ask: AskOptions
) -> None:
    """Show what was decided about a consumer group, and by whom.

    Each claim, reset, rename and pause, each offset that was adopted or skipped, metadata rewritten by hand, and what
    was decided about dead letters; the newest event is the last. Advances are not included.

    Exit code 1 if the store does not know the group, and 130 if --follow was interrupted.

    \b
    Keys of --format json; with --follow, each event is one line:
      group
      events[]  at, event, topic, partition, from, to, epoch, claim_id, actor,
                reason, db_role (the database's role that wrote it)

    \b
    Example, with OFFSETSTORE_URL set:
      offsetstore history -g billing --event reset --since 2025-03-01T00:00Z
    """  # noqa: D301 - \b is click's mark, and this is how click wants it
    with ask.about(group) as store:
        if follow:
            following = store.follow_history(group, since=since, events=events, limit=limit)
            print_followed(following, _COLUMNS, _KEYS, as_json=ask.as_json)
            return
        found = store.history(group, since=since, events=events, limit=limit)
    ask.show(document(found, f"group events=.[{_KEYS}]", group=group), Table.of(_COLUMNS, found))

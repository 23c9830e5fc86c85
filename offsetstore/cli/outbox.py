"""``offsetstore outbox``: the rows that Kafka refuses, and what is decided about them."""

from __future__ import annotations

from typing import Any, Final

import click

from offsetstore.cli import options, sources
from offsetstore.cli.asking import AskOptions, Decide, decide_options, table_options
from offsetstore.cli.output import documents, mistyped
from offsetstore.cli.tables import Table
from offsetstore.operations import people
from offsetstore.operations.outbox import read_refused_of_all
from offsetstore.protocol.outbox import MOST_ROWS

_ROWS: Final = "#row=id, topic, error, ?written=created_at, refused=refused_at"
_ROW: Final = "id topic error created_at refused_at"
_DECIDED: Final = f"group reason executed plan=digest more rows[{_ROW}]"


def _which(given: dict[str, Any]) -> dict[str, Any]:
    ids, all_, topic = given.pop("ids"), given.pop("all_"), given.pop("topic")
    if (bool(ids) + all_ + (topic is not None)) != 1:
        raise click.UsageError("Name rows, or --topic, or --all: one of the three.")
    return {"ids": ids or None, "topic": topic, "limit": given.pop("limit")}


_which_options = options.together(
    click.argument("ids", nargs=-1, type=click.IntRange(0), metavar="[ROW]..."),
    click.option("--topic", "-t", metavar="TOPIC", help="All of this topic."),
    click.option("--all", "all_", is_flag=True, help="All of the group."),
    click.option(
        "--limit",
        "-n",
        type=options.COUNT,
        default=MOST_ROWS,
        show_default=True,
        metavar="N",
        help="At most N rows, in the order in which they were written.",
    ),
    options.gathered("which", _which),
)


@click.group()
def outbox() -> None:
    """List, retry and discard rows of the outbox that Kafka refuses.

    The relay sets them aside with their error, and sends the others. `status` says how many there are, and which row is
    the oldest that waits: `set-aside` takes one out of the way that blocks its topic.

    For rows that an application has put there (offsetstore.outbox), write its source in place of the group.
    """


@outbox.command("list")
@options.any_group_option
@click.option("--topic", "-t", metavar="TOPIC", help="Only of this topic.")
@click.option("--after", type=int, default=-1, metavar="ROW", help="Continue after this row.")
@click.option("--limit", "-n", type=options.COUNT, default=100, show_default=True, metavar="N", help="Rows per page.")
@table_options
def list_rows(*, group: str | None, topic: str | None, after: int, limit: int, ask: AskOptions) -> None:
    """List rows that Kafka refuses, with their errors, the first first. Records are not read.

    Exit code 1 if the store knows neither a group nor an application's source of this name.

    \b
    Keys of --format json:
      group   null for all groups and sources; then each row has its group, too
      rows[]  id, topic, error, created_at, refused_at

    \b
    Example, with OFFSETSTORE_URL set:
      offsetstore outbox list -g billing
    """  # noqa: D301 - \b is click's mark, and this is how click wants it
    groups: list[str] | None = None
    with ask.about(group, or_source=True) as store:
        if group is not None:
            rows = store.refused_rows(group, topic=topic, after=after, limit=limit)
            told = [*sources.source_lines(group, sources.source(store, group))] if store.owner(group) is None else []
            others = [] if rows or topic is None else store.refused_rows(group, limit=limit)
        else:
            found = people.ask(
                store.database, lambda session: read_refused_of_all(session, topic=topic, after=after, limit=limit)
            )
            rows, groups, others = [row for _, row in found], [name for name, _ in found], []
            told = [*sources.outbox_lines(sources.read_outbox(store))]
    notes = mistyped("rows", topic, {row.topic for row in others})
    notes += [f"There may be more: --after {rows[-1].id}"] if len(rows) == limit else []
    notes += told
    ask.show({"group": group, "rows": documents(rows, _ROW, groups)}, Table.of(_ROWS, rows, groups), *notes)


@outbox.command("retry")
@options.group_option
@_which_options
@decide_options()
def retry_rows(*, group: str, which: dict[str, Any], decide: Decide) -> None:
    """Put rows back into the outbox: those named, or all of a topic or of the group.

    Without --execute it prints what would be chosen and writes nothing. The relay sends them after all that is there.
    It must be run as the owner of the tables.

    Exit code 1 if there is no such group or source, or if the plan is not --if-plan (the new one is printed).

    \b
    Keys of --format json:
      group, reason
      executed  whether anything was written
      plan      for --if-plan
      more      how many rows --limit leaves as they are
      rows[]    id, topic, error, created_at, refused_at

    \b
    Example, with OFFSETSTORE_URL set:
      offsetstore outbox retry -g billing --topic payment-events \\
          --reason "the topic was created, ticket 17" --execute
    """  # noqa: D301 - as above
    decide(_DECIDED, lambda store: store.retry_refused(group, **which, **decide.how))


@outbox.command("discard")
@options.group_option
@_which_options
@decide_options()
def discard_rows(*, group: str, which: dict[str, Any], decide: Decide) -> None:
    """Delete rows that Kafka refuses: those named, or all of a topic or of the group. They never get into Kafka.

    Without --execute it prints what would be chosen and writes nothing. It must be run as the owner of the tables.

    Exit code 1 if there is no such group or source, or if the plan is not --if-plan (the new one is printed).

    \b
    Keys of --format json: those of `retry`

    \b
    Example, with OFFSETSTORE_URL set:
      offsetstore outbox discard -g billing 17 --reason "ticket 18" --execute
    """  # noqa: D301 - as above
    decide(_DECIDED, lambda store: store.discard_refused(group, **which, **decide.how))


@outbox.command("set-aside")
@options.group_option
@_which_options
@decide_options()
def set_rows_aside(*, group: str, which: dict[str, Any], decide: Decide) -> None:
    """Take rows that wait out of the outbox: those named, or all of a topic or of the group.

    They are then listed with those that Kafka refuses, until they are retried or discarded. Rows that a relay is
    sending are left out. Without --execute it prints what would be chosen and writes nothing. It must be run as the
    owner of the tables.

    Exit code 1 if there is no such group or source, or if the plan is not --if-plan (the new one is printed).

    \b
    Keys of --format json: those of `retry`; refused_at is null before

    \b
    Example, with OFFSETSTORE_URL set:
      offsetstore outbox set-aside -g billing 17 --execute \\
          --reason "it blocks, ticket 19"
    """  # noqa: D301 - as above
    decide(_DECIDED, lambda store: store.set_aside(group, **which, **decide.how))

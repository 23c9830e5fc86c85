"""A group's past: ``offsetstore history`` (what was decided), ``runs`` (of its job) and ``errors`` (that these met)."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Final

import click

from offsetstore.cli import options
from offsetstore.cli.asking import AskOptions, ask_options
from offsetstore.cli.output import Table, cell, document, print_followed
from offsetstore.protocol.database import EVENTS
from offsetstore.protocol.runs import SOURCES, ErrorSource, Run

_COLUMNS: Final = "at, event, partition=topic_partition, #from=from_offset, #to=to_offset, actor, reason"
_KEYS: Final = (
    "at event *topic_partition from=from_offset to=to_offset epoch=token.epoch "
    "claim_id=token.claim_id actor reason db_role"
)


def _show(
    found: Iterable[object], ask: AskOptions, *, group: str, of: str, columns: str, keys: str, follow: bool
) -> None:
    """Print the lines as they come, or all of them as one answer."""
    if follow:
        print_followed(found, columns, keys, as_json=ask.as_json)
        return
    lines = [*found]
    ask.show(document(lines, f"group {of}=.[{keys}]", group=group), Table.of(columns, lines))


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
    with ask.about(group, or_source=True) as store:
        find = store.follow_history if follow else store.history
        found = find(group, since=since, events=events, limit=limit)
        _show(found, ask, group=group, of="events", columns=_COLUMNS, keys=_KEYS, follow=follow)


_ERROR_COLUMNS: Final = "at, source, #times, #batch, error=error_class, text"
_ERROR_KEYS: Final = "at epoch source error_class text sqlstate *topic_partition batch ranges times"


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
        find = store.follow_errors if follow else store.errors
        found = find(group, since=since, sources=sources, limit=limit)
        _show(found, ask, group=group, of="errors", columns=_ERROR_COLUMNS, keys=_ERROR_KEYS, follow=follow)


_RUN_COLUMNS: Final = ("started", "until", "state", "phase", "#batch", "#rows", "#epoch", "owner")
_RUN_KEYS: Final = (
    "group runs=.[epoch=token.epoch claim_id=token.claim_id owner topics versions state member=is_member started_at "
    "seen_at ended_at "
    "phase=status.phase phase_seconds=status.phase_age batch=status.batch batch_offsets=status.batch_offsets "
    "last_batch_seconds=status.last_batch_age counters=status.counters memory_bytes=status.memory "
    "mirror_seconds=status.mirror_age mirror_error=status.mirror_error query_id=status.query_id "
    "application_id=status.application_id ui_url=status.ui_url]"
)


@click.command()
@options.group_option
@click.option("--limit", "-n", type=click.IntRange(1), metavar="N", help="Only the last N runs.")
@ask_options
def runs(*, group: str, limit: int | None, ask: AskOptions) -> None:
    """Show the runs of a consumer group's job, and how each ended.

    A run is a claim of the group, or a process of a consumer, all of which share a claim and its epoch. It records
    itself with each heartbeat, every five seconds; the newest run is the last line. The newest thousand are kept.

    \b
    States:
      live    it sends heartbeats
      ended   it ended cleanly
      failed  its last batch ended the query, or another error the job;
              see offsetstore errors
      fenced  another claim, a reset or a rename took the group from it
      silent  its heartbeats stopped without notice: it was killed (for memory,
              for example), hangs, or can't reach the database. A run that was
              silent when the next one replaced it stays silent

    The figures of a silent run are as of its last heartbeat.

    Exit code 1 if the store does not know the group.

    \b
    Keys of --format json; all times are the database's:
      group
      runs[]  epoch, claim_id, owner, topics, versions, state,
              member (whether it is a process of a consumer),
              started_at, seen_at (its last heartbeat; what follows is as of
              then), ended_at,
              phase (starting, idle, batch, paused, failed), phase_seconds,
              batch, batch_offsets, last_batch_seconds (since one ended well),
              counters, memory_bytes (of the driver's Python process),
              mirror_seconds (since Kafka had the stored offsets), mirror_error,
              query_id, application_id, ui_url

    \b
    Example, with OFFSETSTORE_URL set:
      offsetstore runs -g billing -n 5
    """  # noqa: D301 - \b is click's mark, and this is how click wants it
    with ask.about(group) as store:
        found = store.runs(group, limit=limit)
    notes: list[str] = []
    if any(run.state == "silent" for run in found):
        notes.append("The figures of a silent run are as of its last heartbeat.")
    if found and (error := found[-1].status.mirror_error) is not None:
        notes.append(f"The last run could not copy the offsets to Kafka: {error}")
    if not found:
        notes.append("0 runs: jobs and consumers of older releases recorded none.")
    ask.show(document(found, _RUN_KEYS, group=group), Table(_RUN_COLUMNS, [_row(run) for run in found]), *notes)


def _row(run: Run) -> tuple[object, ...]:
    status, until = run.status, None if run.state == "live" else run.until
    batch, rows = status.batch, status.counters.get("rows", 0)
    return cell(run.started_at), cell(until), run.state, status.phase, batch, rows, run.token.epoch, run.owner

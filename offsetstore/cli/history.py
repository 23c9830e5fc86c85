"""A group's past: ``offsetstore history`` (what was decided), ``runs`` (of its job) and ``errors`` (that these met)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Final

import click

from offsetstore.cli import options, sources
from offsetstore.cli.asking import AskOptions, expect_no_group, page_of_groups, table_options
from offsetstore.cli.output import documents, print_followed
from offsetstore.cli.tables import Table
from offsetstore.offset_store import OffsetStore
from offsetstore.operations import people
from offsetstore.operations.people import ErrorOfGroup
from offsetstore.protocol.database import EVENTS
from offsetstore.protocol.runs import SOURCES, ErrorSource, Run

_COLUMNS: Final = "at, event, partition=topic_partition, #from=from_offset, #to=to_offset, actor, reason"
_KEYS: Final = (
    "at event *topic_partition from=from_offset to=to_offset epoch=token.epoch "
    "claim_id=token.claim_id actor reason db_role"
)


def _show(
    found: Iterable[object],
    ask: AskOptions,
    *,
    group: str,
    of: str,
    columns: str,
    keys: str,
    follow: bool,
    notes: Iterable[str] = (),
) -> None:
    """Print the lines as they come, or all of them as one answer."""
    if follow:
        print_followed(((None, line) for line in found), columns, keys, as_json=ask.as_json)
        return
    lines = [*found]
    ask.show({"group": group, of: documents(lines, keys)}, Table.of(columns, lines), *notes)


@click.command()
@options.any_group_option
@click.option(
    "--event",
    "events",
    multiple=True,
    type=click.Choice(EVENTS),
    metavar="EVENT",
    help=f"Only this event. May be repeated. One of {', '.join(EVENTS)}.",
)
@options.lines_options("event")
@table_options
def history(
    *,
    group: str | None,
    since: datetime | None,
    events: tuple[str, ...],
    limit: int | None,
    follow: bool,
    ask: AskOptions,
) -> None:
    """Show what was decided about a consumer group, and by whom.

    Each claim, reset, rename and pause, each offset that was adopted or skipped, metadata rewritten by hand, and what
    was decided about dead letters; the newest event is the last. Advances are not included. Without --group: the last
    100 events of all groups, or --limit, among the newest 10,000; --follow needs a group.

    Exit code 1 if the store does not know the group, and 130 if --follow was interrupted.

    \b
    Keys of --format json; with --follow, each event is one line:
      group     null for all groups; then each event has its group, too
      events[]  at, event, topic, partition, from, to, epoch, claim_id, actor,
                reason, db_role (the database's role that wrote it)

    \b
    Example, with OFFSETSTORE_URL set:
      offsetstore history -g billing --event reset --since 2025-03-01T00:00Z
    """  # noqa: D301 - \b is click's mark, and this is how click wants it
    if group is None and follow:
        raise click.UsageError("--follow needs --group.")
    with ask.about(group, or_source=True) as store:
        if group is None:
            _show_of_all(store, ask, since=since, events=events, limit=limit)
            return
        find = store.follow_history if follow else store.history
        found = find(group, since=since, events=events, limit=limit)
        told = [*sources.source_lines(group, sources.source(store, group))] if store.owner(group) is None else []
        _show(found, ask, group=group, of="events", columns=_COLUMNS, keys=_KEYS, follow=follow, notes=told)


def _show_of_all(
    store: OffsetStore, ask: AskOptions, *, since: datetime | None, events: tuple[str, ...], limit: int | None
) -> None:
    most = limit or _LINES
    found, is_cut = people.ask(
        store.database,
        lambda session: people.read_history_of_all(
            session, since=since, events=events, limit=most, within=max(most, _LOOKED_AT)
        ),
    )
    groups, lines = [group for group, _ in found], [event for _, event in found]
    made = {"group": None, "events": documents(lines, _KEYS, groups)}
    ask.show(made, Table.of(_COLUMNS, lines, groups), *_of_more("events", len(lines), limit, is_cut=is_cut))


def _of_more(what: str, count: int, limit: int | None, *, is_cut: bool) -> Iterator[str]:
    """Say if a list of all groups may lack lines."""
    if is_cut:
        yield f"Only the newest {_LOOKED_AT:,} {what} of all groups were looked at: name a group for older ones."
    elif limit is None and count == _LINES:
        yield f"These are the last {_LINES}: --limit shows more."


_ERROR_COLUMNS: Final = "at, source, ?#times, ?#batch, error=error_class, text"
_ERROR_KEYS: Final = "at epoch source error_class text sqlstate *topic_partition batch ranges times"
_LINES: Final = 100  # of all groups, without --limit
_LOOKED_AT: Final = 10_000


@click.command()
@options.any_group_option
@click.option(
    "--source",
    "sources",
    multiple=True,
    type=click.Choice(SOURCES),
    metavar="SOURCE",
    help=f"Only errors from this source: one of {', '.join(SOURCES)}. May be repeated.",
)
@options.lines_options("error")
@table_options
def errors(
    *,
    group: str | None,
    since: datetime | None,
    sources: tuple[ErrorSource, ...],
    limit: int | None,
    follow: bool,
    ask: AskOptions,
) -> None:
    """Show the errors that consumer groups' jobs met.

    Each error that ended a batch, the job, a flush or idle work, that refused a start, each that was retried, and the
    first failure to copy the offsets to Kafka; the newest is the last line. The text is that of our own errors, which
    holds no values of rows: for others look into the job's log. An error that comes again within five seconds is one
    line. The newest thousand lines of each group are kept. Without --group: the last 100 errors of all groups, or
    --limit, among the newest 10,000.

    Exit code 1 if the store does not know the group, and 130 if --follow was interrupted.

    \b
    Keys of --format json; with --follow, each error is one line:
      group     null for all groups; then each error has its group, too
      errors[]  at, epoch (of the run), source, error_class, text, sqlstate,
                topic, partition, batch, ranges (what the batch read), times

    \b
    Examples, with OFFSETSTORE_URL set:
      offsetstore errors -g billing --source batch -n 5
      offsetstore errors --since 2025-03-01T00:00Z
    """  # noqa: D301 - \b is click's mark, and this is how click wants it
    with ask.about(group) as store:
        if group is not None:
            find = store.follow_errors if follow else store.errors
            found = find(group, since=since, sources=sources, limit=limit)
            _show(found, ask, group=group, of="errors", columns=_ERROR_COLUMNS, keys=_ERROR_KEYS, follow=follow)
            return

        def look(at: datetime | None, most: int = _LOOKED_AT) -> tuple[list[ErrorOfGroup], bool]:
            return people.ask(
                store.database,
                lambda session: people.read_errors_of_all(
                    session, since=at, sources=sources, limit=most, within=_LOOKED_AT
                ),
            )

        if follow:
            lines = people.follow(lambda at: look(at)[0], since=since, limit=limit or _LINES)
            print_followed(lines, _ERROR_COLUMNS, _ERROR_KEYS, as_json=ask.as_json)
            return
        of_all, is_cut = look(since, limit or _LINES)
    values, groups = [one.error for one in of_all], [one.group for one in of_all]
    made = {"group": None, "errors": documents(values, _ERROR_KEYS, groups)}
    ask.show(made, Table.of(_ERROR_COLUMNS, values, groups), *_of_more("errors", len(of_all), limit, is_cut=is_cut))


_RUN_COLUMNS: Final = ("started", "until", "state", "?phase", "?#batch", "#rows", "?#epoch", "owner")
_RUN_KEYS: Final = (
    "epoch=token.epoch claim_id=token.claim_id owner topics versions state member=is_member started_at seen_at "
    "ended_at phase=status.phase phase_seconds=status.phase_age batch=status.batch batch_offsets=status.batch_offsets "
    "last_batch_seconds=status.last_batch_age counters=status.counters memory_bytes=status.memory "
    "mirror_seconds=status.mirror_age mirror_error=status.mirror_error query_id=status.query_id "
    "application_id=status.application_id ui_url=status.ui_url"
)


@click.command()
@options.any_group_option
@click.option(
    "--limit",
    "-n",
    type=options.COUNT,
    metavar="N",
    help="Only the last N runs; without --group, of each group: by default, the last one.",
)
@click.option("--after", metavar="GROUP", help="Without --group: continue after this group.")
@table_options
def runs(*, group: str | None, limit: int | None, after: str | None, ask: AskOptions) -> None:
    """Show the runs of consumer groups' jobs, and how each ended.

    A run is a claim of the group, or a process of a consumer, all of which share a claim and its epoch. It records
    itself with each heartbeat, every five seconds; the newest run is the last line. The newest thousand are kept.
    Without --group: the last run of each group, 100 groups a page.

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
      group   null for all groups; then each run has its group, too
      next    without --group: for --after; null if this is the last page
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
    Examples, with OFFSETSTORE_URL set:
      offsetstore runs
      offsetstore runs -g billing -n 5
    """  # noqa: D301 - \b is click's mark, and this is how click wants it
    expect_no_group(group, after=after)
    notes: list[str] = []
    made: dict[str, object] = {"group": group}
    with ask.about(group) as store:
        if group is not None:
            found, groups = store.runs(group, limit=limit), None
            made["runs"] = documents(found, _RUN_KEYS)
        else:
            page = page_of_groups(store, after)
            found = people.ask(
                store.database, lambda session: people.read_runs_of_groups(session, page.names, limit=limit or 1)
            )
            groups = [run.group for run in found]
            made |= {"next": page.next, "runs": documents(found, _RUN_KEYS, groups)}
            if limit is None and found:
                notes.append("The last run of each group: -g GROUP shows all of it, and -n N the last N.")
            notes += page.notes
    if any(run.state == "silent" for run in found):
        notes.append("The figures of a silent run are as of its last heartbeat.")
    if group is not None and found and (error := found[-1].status.mirror_error) is not None:
        notes.append(f"The last run could not copy the offsets to Kafka: {error}")
    if not found:
        notes.append("0 runs: jobs and consumers of older releases recorded none.")
    ask.show(made, Table(_RUN_COLUMNS, [_row(run) for run in found]).in_groups(groups), *notes)


def _row(run: Run) -> tuple[object, ...]:
    status, until = run.status, None if run.state == "live" else run.until
    batch, rows = status.batch, status.counters.get("rows", 0)
    return run.started_at, until, run.state, status.phase, batch, rows, run.token.epoch, run.owner

"""``offsetstore runs``: what became of each run of a group's job."""

from __future__ import annotations

from datetime import datetime

import click

from offsetstore.cli import options
from offsetstore.cli.exits import fail_unknown
from offsetstore.cli.output import Column, print_json, print_lines, print_table
from offsetstore.protocol.runs import Run
from offsetstore.text import counted

_COLUMNS = (
    Column("started"),
    Column("until"),
    Column("state"),
    Column("phase"),
    Column("batch", number=True),
    Column("rows", number=True),
    Column("epoch", number=True),
    Column("owner"),
)


@click.command()
@options.group_option
@click.option("--limit", "-n", type=click.IntRange(1), metavar="N", help="Only the last N runs.")
@options.database_options
@options.format_option
def runs(*, group: str, limit: int | None, url: str | None, schema: str | None, format_: str) -> None:
    """Show the runs of a consumer group's job, and how each ended.

    A run is a claim of the group. It records itself with each heartbeat, every five seconds; the newest run is the
    last line. The newest thousand are kept.

    \b
    States:
      live    it sends heartbeats
      ended   it ended in good order
      failed  its last batch ended the query, or another error the job;
              see offsetstore errors
      fenced  another claim, a reset or a rename took the group from it
      silent  its heartbeats stopped without notice: it was killed (for memory,
              for example), hangs, or can't reach the database. A run that was
              silent when the next one replaced it stays silent

    The figures of a silent run are as of its last heartbeat.

    The exit code is 1 if the store does not know the group.

    \b
    Keys of --format json; all times are the database's:
      group
      runs[]  epoch, claim_id, owner, topics, versions, state,
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
    with options.open_store(url, schema) as store:
        if store.owner(group) is None:
            fail_unknown(group)
        found = store.runs(group, limit=limit)
    if format_ == "json":
        print_json({"group": group, "runs": [_document(run) for run in found]})
        return
    print_table(_COLUMNS, [_cells(run) for run in found])
    if any(run.state == "silent" for run in found):
        print_lines("", "The figures of a silent run are as of its last heartbeat.")
    if found and (error := found[-1].status.mirror_error) is not None:
        print_lines("", f"The last run could not copy the offsets to Kafka: {error}")
    if not found:
        print_lines("", f"{counted(0, 'run')}: the group was last claimed before runs were recorded.")


def _cells(run: Run) -> tuple[object, ...]:
    status = run.status
    return (
        _time(run.started_at),
        None if run.state == "live" else _time(run.until),
        run.state,
        status.phase,
        status.batch,
        status.counters.get("rows", 0),
        run.token.epoch,
        run.owner,
    )


def _time(at: datetime) -> str:
    return at.isoformat(timespec="seconds")


def _document(run: Run) -> dict[str, object]:
    status = run.status
    return {
        "epoch": run.token.epoch,
        "claim_id": str(run.token.claim_id),
        "owner": run.owner,
        "topics": list(run.topics),
        "versions": dict(run.versions),
        "state": run.state,
        "started_at": run.started_at.isoformat(),
        "seen_at": run.seen_at.isoformat(),
        "ended_at": None if run.ended_at is None else run.ended_at.isoformat(),
        "phase": status.phase,
        "phase_seconds": status.phase_age,
        "batch": status.batch,
        "batch_offsets": status.batch_offsets,
        "last_batch_seconds": status.last_batch_age,
        "counters": dict(status.counters),
        "memory_bytes": status.memory,
        "mirror_seconds": status.mirror_age,
        "mirror_error": status.mirror_error,
        "query_id": None if status.query_id is None else str(status.query_id),
        "application_id": status.application_id,
        "ui_url": status.ui_url,
    }

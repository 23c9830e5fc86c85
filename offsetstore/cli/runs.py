"""``offsetstore runs``: what became of each run of a group's job."""

from __future__ import annotations

from typing import Final

import click

from offsetstore.cli import options
from offsetstore.cli.asking import AskOptions, ask_options
from offsetstore.cli.output import Table, cell, document
from offsetstore.protocol.runs import Run

_COLUMNS: Final = ("started", "until", "state", "phase", "#batch", "#rows", "#epoch", "owner")
_KEYS: Final = (
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
    ask.show(document(found, _KEYS, group=group), Table(_COLUMNS, [_row(run) for run in found]), *notes)


def _row(run: Run) -> tuple[object, ...]:
    status, until = run.status, None if run.state == "live" else run.until
    batch, rows = status.batch, status.counters.get("rows", 0)
    return cell(run.started_at), cell(until), run.state, status.phase, batch, rows, run.token.epoch, run.owner

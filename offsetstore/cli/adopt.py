"""``offsetstore adopt``: what a job would take over from the checkpoint that it runs with today."""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

import click

from offsetstore.cli import options
from offsetstore.cli.output import Column, print_json, print_lines, print_table
from offsetstore.errors import UncertainBatch
from offsetstore.protocol.policy import OnUncertain, StartPolicy
from offsetstore.store.adoption import read_or_fail
from offsetstore.store.checkpoint_files import LocalFiles

if TYPE_CHECKING:
    from collections.abc import Mapping

    from offsetstore.offsets import StoredOffset, TopicPartition
    from offsetstore.store.adoption import QueryCheckpoint

_COLUMNS = (
    Column("partition"),
    Column("start", number=True),
    Column("committed batch ends", number=True),
    Column("uncertain", number=True),
)
_STORED = Column("stored", number=True)


def _name(context: click.Context, parameter: click.Parameter, value: str | None) -> str | tuple[str, ...] | None:
    return None if value is None else options.names(context, parameter, value)


@click.command()
@click.option(
    "--checkpoint",
    required=True,
    metavar="DIR",
    help='The "checkpointLocation" of the job that runs today: a local path, or a copy of its directories offsets, '
    "commits and sources.",
)
@click.option(
    "--dry-run",
    is_flag=True,
    help="Required: this command only shows. What adopts is the job itself, "
    'by store.claim(..., adopt_checkpoint="DIR").',
)
@click.option(
    "--on-uncertain",
    type=click.Choice(get_args(OnUncertain)),
    default="fail",
    show_default=True,
    help="Where the last batch began and was not committed: its results may be there or not.",
)
@click.option(
    "--group",
    "-g",
    metavar="GROUP",
    callback=_name,
    help="Look into the database too: what the store has of this group is not adopted.",
)
@options.database_options
@options.format_option
def adopt(
    *,
    checkpoint: str,
    dry_run: bool,
    on_uncertain: OnUncertain,
    group: str | None,
    url: str | None,
    schema: str | None,
    format_: str,
) -> None:
    """Show what a job would take over from a checkpoint.

    Reads the checkpoint of a query that runs today with plain Spark: where its last committed batch ends, and what
    was begun after it. Read-only. Stop that query first: while it runs, its checkpoint moves on. Whether the logs
    still hold these offsets is seen by the job's own start.

    Exit code 1 where a job would refuse to start: the last batch is uncertain, and --on-uncertain does not say what
    to do. Exit code 2 where there is no such checkpoint, or without --dry-run.

    \b
    Keys of --format json:
      checkpoint, group
      batch             the last committed one, or null
      uncertain_batch   the last one that began and was not committed, or null
      partitions[]      topic, partition, start (null: refused; where the store
                        has the partition: stored), ends, stored,
                        uncertain {from, until} or null

    \b
    Example:
      offsetstore adopt --checkpoint /checkpoints/billing --dry-run
    """  # noqa: D301 - \b is click's mark, and this is how click wants it
    if not dry_run:
        raise click.UsageError(
            "this command only shows: pass --dry-run. What adopts is the job itself, by "
            'store.claim(..., adopt_checkpoint="DIR").'
        )
    found = read_or_fail(LocalFiles(checkpoint), next_step="Correct --checkpoint.")
    stored = _stored(group, url, schema)
    topics = {tp.topic for tp in found.offsets}
    refusal: UncertainBatch | None = None
    try:
        starts = found.starts(StartPolicy(on_uncertain=on_uncertain), stored, topics)
    except UncertainBatch as error:
        refusal = error
        starts = found.starts(StartPolicy(on_uncertain="replay"), stored, topics)
        starts = {tp: start for tp, start in starts.items() if found.uncertain and tp not in found.uncertain}
    if format_ == "json":
        print_json(_document(group, found, starts, stored))
    else:
        _print(found, starts, stored if group is not None else None)
    if refusal is not None:
        refusal.next_step += " (To see where it would start then: --on-uncertain skip, or replay.)"
        raise refusal


def _stored(group: str | None, url: str | None, schema: str | None) -> Mapping[TopicPartition, StoredOffset]:
    if group is None:
        return {}
    with options.open_store(url, schema, otherwise=", or leave out --group") as store:
        return store.offsets(group)


def _start(
    tp: TopicPartition, starts: Mapping[TopicPartition, int], stored: Mapping[TopicPartition, StoredOffset]
) -> int | None:
    return stored[tp].next_offset if tp in stored else starts.get(tp)


def _print(
    found: QueryCheckpoint, starts: Mapping[TopicPartition, int], stored: Mapping[TopicPartition, StoredOffset] | None
) -> None:
    """Print it; ``stored`` is ``None`` where the store was not asked."""
    rows = [
        (tp, _start(tp, starts, stored or {}), end, found.uncertain.get(tp))
        for tp, end in sorted(found.offsets.items())
    ]
    if stored is None:
        print_table(_COLUMNS, rows)
    else:
        held = [stored[row[0]].next_offset if row[0] in stored else None for row in rows]
        print_table((*_COLUMNS, _STORED), [(*row, offset) for row, offset in zip(rows, held, strict=True)])
    print_lines("")
    if found.batch_id is None:
        print_lines("No batch of this checkpoint is committed: these are the offsets at which the query began.")
    else:
        print_lines(f"Batch {found.batch_id} is the last one that is committed.")
    if found.uncertain_id is not None:
        print_lines(
            f"Batch {found.uncertain_id} began and was not committed: whether its results are there, only the table "
            "that they are in can tell."
        )
    print_lines(f"A job would adopt {len(starts)} of {len(found.offsets)} partitions.")
    if stored is None:
        print_lines("The store was not asked: --group")


def _document(
    group: str | None,
    found: QueryCheckpoint,
    starts: Mapping[TopicPartition, int],
    stored: Mapping[TopicPartition, StoredOffset],
) -> dict[str, object]:
    return {
        "checkpoint": found.location,
        "group": group,
        "batch": found.batch_id,
        "uncertain_batch": found.uncertain_id,
        "partitions": [
            {
                "topic": tp.topic,
                "partition": tp.partition,
                "start": _start(tp, starts, stored),
                "ends": end,
                "stored": stored[tp].next_offset if tp in stored else None,
                "uncertain": {"from": found.uncertain[tp].from_, "until": found.uncertain[tp].until}
                if tp in found.uncertain
                else None,
            }
            for tp, end in sorted(found.offsets.items())
        ],
    }

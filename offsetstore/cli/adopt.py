"""``offsetstore adopt``: what a job would take over from the checkpoint of a plain Spark query."""

from __future__ import annotations

from collections.abc import Mapping
from typing import get_args

import click

from offsetstore.cli import options
from offsetstore.cli.output import columns, document, print_json, print_lines, print_table
from offsetstore.offsets import StoredOffset, TopicPartition
from offsetstore.operations.reads import Adoption, read_adoption
from offsetstore.protocol.policy import OnUncertain
from offsetstore.store.adoption import LocalFiles, read_or_fail
from offsetstore.text import counted

_COLUMNS = columns("partition, #start, #committed batch ends, #uncertain")
_STORED = columns("#stored")


def _name(context: click.Context, parameter: click.Parameter, value: str | None) -> str | tuple[str, ...] | None:
    return None if value is None else options.names(context, parameter, value)


@click.command()
@click.option(
    "--checkpoint",
    required=True,
    metavar="DIR",
    help='The "checkpointLocation" of the query: a local path. A copy of its directories offsets, commits and sources '
    "will do.",
)
@click.option(
    "--dry-run",
    is_flag=True,
    help="Required: this command only shows. The job itself adopts the checkpoint, "
    'with store.claim(..., adopt_checkpoint="DIR").',
)
@click.option(
    "--on-uncertain",
    type=click.Choice(get_args(OnUncertain)),
    default="fail",
    show_default=True,
    help="What to do about a last batch that was begun but not committed, whose results may or may not be stored.",
)
@click.option(
    "--group",
    "-g",
    metavar="GROUP",
    callback=_name,
    help="Also read the store: partitions that this group has a stored offset of are not adopted.",
)
@options.database_options
@options.format_option
def adopt(
    *,
    checkpoint: str,
    dry_run: bool,
    on_uncertain: OnUncertain,
    group: str | None,
    database: options.Database,
    format_: str,
) -> None:
    """Show what a job would take over from a checkpoint.

    Reads from the checkpoint of a plain Spark query where its last committed batch ends, and what was begun after it.
    Read-only. Stop that query first: while it runs, its checkpoint moves on. Whether Kafka's logs still hold these
    offsets is checked when the job starts.

    Exit code 1 if a job would refuse to start: the last batch is uncertain, and --on-uncertain does not say what to
    do. Exit code 2 if there is no such checkpoint, or without --dry-run.

    \b
    Keys of --format json:
      checkpoint, group
      batch             the last committed one, or null
      uncertain_batch   the last one that was begun but not committed, or null
      partitions[]      topic, partition, start (the stored offset if there is
                        one; null if refused), ends, stored,
                        uncertain {from, until} or null

    \b
    Example:
      offsetstore adopt --checkpoint /checkpoints/billing --dry-run
    """  # noqa: D301 - \b is click's mark, and this is how click wants it
    if not dry_run:
        raise click.UsageError(
            "this command changes nothing: pass --dry-run. The job itself adopts the checkpoint, with "
            'store.claim(..., adopt_checkpoint="DIR").'
        )
    found = read_or_fail(LocalFiles(checkpoint), next_step="Correct --checkpoint.")
    adoption = read_adoption(found, _stored(group, database), on_uncertain)
    if format_ == "json":
        print_json(_document(group, adoption))
    else:
        _print(adoption, asked_store=group is not None)
    if adoption.refusal is not None:
        adoption.refusal.next_step += " (To see where the job would then start: --on-uncertain skip, or replay.)"
        raise adoption.refusal


def _stored(group: str | None, database: options.Database) -> Mapping[TopicPartition, StoredOffset]:
    if group is None:
        return {}
    with database.open(otherwise=", or leave out --group") as store:
        return store.offsets(group)


def _print(adoption: Adoption, *, asked_store: bool) -> None:
    found, stored = adoption.checkpoint, adoption.stored
    rows = [(tp, adoption.start(tp), end, found.uncertain.get(tp)) for tp, end in sorted(found.offsets.items())]
    if asked_store:
        held = [stored[row[0]].next_offset if row[0] in stored else None for row in rows]
        print_table((*_COLUMNS, *_STORED), [(*row, offset) for row, offset in zip(rows, held, strict=True)])
    else:
        print_table(_COLUMNS, rows)
    print_lines("")
    if found.batch_id is None:
        print_lines("The checkpoint has no committed batch: these are the offsets at which the query began.")
    else:
        print_lines(f"Batch {found.batch_id} is the last one that is committed.")
    if found.uncertain_id is not None:
        print_lines(
            f"Batch {found.uncertain_id} was started but not committed: look in the results table to see whether "
            "its rows are stored."
        )
    print_lines(f"A job would adopt {len(adoption.adopted)} of {counted(len(found.offsets), 'partition')}.")
    if not asked_store:
        print_lines("The store was not read; name a --group to read it.")


def _document(group: str | None, adoption: Adoption) -> dict[str, object]:
    found = adoption.checkpoint
    partitions = [
        document(
            tp,
            "topic partition start ends stored uncertain",
            start=adoption.start(tp),
            ends=end,
            stored=adoption.stored[tp].next_offset if tp in adoption.stored else None,
            uncertain=found.uncertain.get(tp),
        )
        for tp, end in sorted(found.offsets.items())
    ]
    keys = "checkpoint=location group batch=batch_id uncertain_batch=uncertain_id partitions"
    return document(found, keys, group=group, partitions=partitions)

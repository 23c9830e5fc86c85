"""``offsetstore adopt``: what a job would take over from the checkpoint of a plain Spark query."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, get_args

import click

from offsetstore.cli import options
from offsetstore.cli.asking import AskOptions, ask_options
from offsetstore.cli.output import Table, document
from offsetstore.protocol.policy import OnUncertain
from offsetstore.store.adoption import Adoption, LocalFiles, read_adoption, read_or_fail
from offsetstore.text import counted

_COLUMNS: Final = ("partition", "#start", "#committed batch ends", "#uncertain", "#stored")
_KEYS: Final = "topic partition start ends stored uncertain"


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
    callback=options.names,
    help="Also read the store: partitions that this group has a stored offset of are not adopted.",
)
@ask_options
def adopt(*, checkpoint: str, dry_run: bool, on_uncertain: OnUncertain, group: str | None, ask: AskOptions) -> None:
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
    stored = {}
    if group is not None:
        with ask.open(otherwise=", or leave out --group") as store:
            stored = store.offsets(group)
    adoption = read_adoption(found, stored, on_uncertain)
    rows = [
        (tp, adoption.start(tp), end, found.uncertain.get(tp), stored[tp].next_offset if tp in stored else None)
        for tp, end in sorted(found.offsets.items())
    ]
    partitions = [
        document(tp, _KEYS, start=start, ends=end, stored=held, uncertain=uncertain)
        for tp, start, end, uncertain, held in rows
    ]
    keys = "checkpoint=location group batch=batch_id uncertain_batch=uncertain_id partitions"
    columns = len(_COLUMNS) if group is not None else len(_COLUMNS) - 1
    table = Table(_COLUMNS[:columns], [row[:columns] for row in rows])
    made = document(found, keys, group=group, partitions=partitions)
    ask.show(made, table, "", *_notes(adoption, asked_store=group is not None))
    if adoption.refusal is not None:
        raise adoption.refusal


def _notes(adoption: Adoption, *, asked_store: bool) -> Iterator[str]:
    checkpoint = adoption.checkpoint
    if checkpoint.batch_id is None:
        yield "The checkpoint has no committed batch: these are the offsets at which the query began."
    else:
        yield f"Batch {checkpoint.batch_id} is the last one that is committed."
    if checkpoint.uncertain_id is not None:
        started = f"Batch {checkpoint.uncertain_id} was started but not committed"
        yield f"{started}: look in the results table to see whether its rows are stored."
    yield f"A job would adopt {len(adoption.adopted)} of {counted(len(checkpoint.offsets), 'partition')}."
    if not asked_store:
        yield "The store was not read; name a --group to read it."

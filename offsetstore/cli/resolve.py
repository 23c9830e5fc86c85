"""``offsetstore resolve``: where a job would start; ``adopt``: what it would take over from a query's checkpoint."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any, Final, get_args

import click

from offsetstore.cli import options
from offsetstore.cli.asking import AskOptions, ask_options
from offsetstore.cli.output import document, print_json, print_text
from offsetstore.cli.tables import Table
from offsetstore.offset_store import resolve_starting_offsets
from offsetstore.offsets import count_offsets
from offsetstore.operations.group_state import lag_of
from offsetstore.protocol.starting import (
    OnDataLoss,
    OnRecreated,
    OnRewound,
    OnUncertain,
    Prefer,
    Reason,
    StartingOffsets,
    StartPolicy,
)
from offsetstore.store.adoption import Adoption, LocalFiles, read_adoption, read_or_fail
from offsetstore.text import counted

_COLUMNS: Final = ("partition", "#start", "#stored", "#committed", "#beginning", "#end", "reason")
_KEYS: Final = (
    "group kafka_group records partitions=starts[*@ start=offset reason explanation=reason.value "
    "stored=stored.next_offset committed=committed.next_offset beginning=log.beginning end=log.end skips=skipped] "
    "vanished[topic partition] warning starting_offsets"
)
_SHOWN = 5


@click.command()
@options.group_option
@click.option(
    "--topic",
    "-t",
    "topics",
    multiple=True,
    required=True,
    metavar="TOPIC",
    callback=options.names,
    help="May be repeated.",
)
@options.broker_options(required=True)
@options.database_options
@click.option("--no-store", is_flag=True, help="Use only the offsets committed in Kafka; needs no database.")
@click.option(
    "--prefer",
    type=click.Choice(get_args(Prefer)),
    default="larger",
    show_default=True,
    help="Which offset to use if both the store and Kafka have one.",
)
@click.option(
    "--auto-offset-reset",
    callback=options.start_time,
    metavar="[earliest|latest|none|TIME]",
    default="earliest",
    show_default=True,
    help="Where to start if neither has one; a time such as 2025-03-01T00:00Z is the first record at or after it.",
)
@click.option(
    "--on-data-loss",
    type=click.Choice(get_args(OnDataLoss)),
    default="fail",
    show_default=True,
    help="What to do if the next record is no longer in the log.",
)
@click.option(
    "--on-recreated",
    type=click.Choice(get_args(OnRecreated)),
    default="fail",
    show_default=True,
    help="What to do if the topic was deleted and created again since the offsets were stored.",
)
@click.option(
    "--on-rewound",
    type=click.Choice(get_args(OnRewound)),
    default="fail",
    show_default=True,
    help="What to do if the database is older than the copy of its offsets in Kafka, as after a restore.",
)
@click.option(
    "--format",
    "format_",
    type=click.Choice(["table", "json", "spark"]),
    default="table",
    show_default=True,
    help="For people, for programs, or the value of Spark's option startingOffsets.",
)
def resolve(
    *,
    group: str,
    topics: tuple[str, ...],
    kafka: options.Kafka,
    database: options.DatabaseOptions,
    no_store: bool,
    prefer: Prefer,
    auto_offset_reset: Any,
    on_data_loss: OnDataLoss,
    on_recreated: OnRecreated,
    on_rewound: OnRewound,
    format_: str,
) -> None:
    """Show where a job would start, and why.

    Reads the stored offsets, the committed offsets and the ends of the logs, and decides as a job does when it starts.
    Read-only: nothing is written, and a running job is not disturbed. Exit code 1 if a job would refuse to start.

    \b
    Keys of --format json:
      group, kafka_group
      records           offsets from the start to the end of the logs
      partitions[]      topic, partition, start, reason, explanation, stored,
                        committed, beginning, end, skips {from, until} or null
      vanished[]        topic, partition: stored, but no longer in Kafka
      warning           what to check if the store has no offsets of the group,
                        or null
      starting_offsets  what --format spark prints

    \b
    Example, with OFFSETSTORE_URL set:
      offsetstore resolve -g billing -t payments -b localhost:9092
    """  # noqa: D301 - \b is click's mark, and this is how click wants it
    policy = StartPolicy(prefer, auto_offset_reset, on_data_loss, on_recreated, on_rewound)
    broker = kafka.connect()
    without = ", or use only Kafka's committed offsets: --no-store"
    with nullcontext() if no_store else database.open(otherwise=without) as store:
        start = resolve_starting_offsets(
            broker, group=group, topics=topics, store=store, policy=policy, kafka_group=kafka.group
        )
    if format_ == "spark":
        click.echo(start.json())
    elif format_ == "json":
        named = {"group": group, "kafka_group": kafka.group or group}
        print_json(document(start, _KEYS, **named, records=_records(start), starting_offsets=json.loads(start.json())))
    else:
        print_text(*_text(group, start))


def _text(group: str, start: StartingOffsets) -> Iterator[str | Table]:
    rows = [
        (
            tp,
            partition.offset,
            partition.stored.next_offset if partition.stored else None,
            partition.committed.next_offset if partition.committed else None,
            partition.log.beginning,
            partition.log.end,
            partition.reason.name.lower(),
        )
        for tp, partition in start.starts.items()
    ]
    yield Table(_COLUMNS, rows)
    used = {partition.reason for partition in start.starts.values()}
    yield ""
    yield Table(("reason", "meaning"), [(reason.name.lower(), reason.value) for reason in Reason if reason in used])
    yield ""
    if skipped := {tp: partition.skipped for tp, partition in start.starts.items() if partition.skipped is not None}:
        first = ", ".join(f"{tp} {range_}" for tp, range_ in [*skipped.items()][:_SHOWN])
        more = f" and {len(skipped) - _SHOWN} more" if len(skipped) > _SHOWN else ""
        offsets = counted(count_offsets(skipped), "offset")
        yield f"Would skip {offsets} that the store has not seen: {first}{more}."
    yield from (f"{tp} has vanished from Kafka: its stored offset would go to 0." for tp in start.vanished)
    if start.warning is not None:
        yield f"A warning: {start.warning}"
    left, partitions = counted(_records(start), "offset"), counted(len(start.starts), "partition")
    yield f"{group} would start with {left} to read in {partitions}."


def _records(start: StartingOffsets) -> int:
    return sum(lag_of(partition.offset, partition.log) or 0 for partition in start.starts.values())


_ADOPTED_COLUMNS: Final = ("partition", "#start", "#committed batch ends", "#uncertain", "#stored")
_ADOPTED_KEYS: Final = "topic partition start ends stored uncertain"


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
        document(tp, _ADOPTED_KEYS, start=start, ends=end, stored=held, uncertain=uncertain)
        for tp, start, end, uncertain, held in rows
    ]
    keys = "checkpoint=location group batch=batch_id uncertain_batch=uncertain_id partitions"
    columns = len(_ADOPTED_COLUMNS) if group is not None else len(_ADOPTED_COLUMNS) - 1
    table = Table(_ADOPTED_COLUMNS[:columns], [row[:columns] for row in rows])
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

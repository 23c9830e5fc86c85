"""A group's stored offsets: ``offsetstore reset`` moves them, ``metadata`` shows and rewrites what is beside them."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import IO, Final

import click

from offsetstore.cli import options
from offsetstore.cli.asking import AskOptions, Decide, ask_options, decide_options, table_options
from offsetstore.cli.output import echo, even_unread, fail, fail_unknown
from offsetstore.cli.tables import Table
from offsetstore.errors import ExitCode, MetadataError
from offsetstore.offsets import MAX_OFFSET, MAX_PARTITION, TopicPartition
from offsetstore.operations.resets import Partitions, Reset, ResetTarget, ShiftBy, unknown_partition
from offsetstore.protocol.metadata import Metadata, from_json
from offsetstore.text import counted, visible

_RESET_KEYS: Final = (
    "group reason executed plan=digest live=met_live_owner fenced[name=owner epoch=token.epoch "
    "claim_id=token.claim_id] replayed_letters to_datetime partitions=moves[*topic_partition stored=from_offset "
    "new=to_offset beginning=log.beginning end=log.end suspect]"
)
# In the order of _target's arguments, and named as in kafka-consumer-groups.
_TARGETS: Final = (
    "--to-earliest",
    "--to-latest",
    "--to-current",
    "--to-offset",
    "--to-datetime",
    "--by-duration",
    "--shift-by",
    "--from-file",
)
_WITH_GROUP: Final = 4  # columns of a line that names its group


def _topic(_context: click.Context, _parameter: click.Parameter, value: tuple[str, ...]) -> dict[str, set[int] | None]:
    """Parse ``TOPIC`` and ``TOPIC:0,2``: the name of a topic has no colon."""
    found: dict[str, set[int] | None] = {}
    for text in value:
        topic, separator, numbers = text.partition(":")
        if not topic or "\0" in topic or topic in found:
            raise click.BadParameter(f"{text!r} names no topic, or one that was named already.")
        try:
            found[topic] = {int(number) for number in numbers.split(",")} if separator else None
        except ValueError:
            raise click.BadParameter(f"{text!r} is not TOPIC or TOPIC:0,2.") from None
    return found


@click.command()
@options.group_option
@click.option(
    "--topic",
    "-t",
    "topics",
    multiple=True,
    metavar="TOPIC[:0,2]",
    callback=_topic,
    help="All partitions of the topic for which the group has stored offsets, or only these. May be repeated.",
)
@click.option("--all-topics", is_flag=True, help="All partitions for which the group has stored offsets.")
@click.option("--to-earliest", is_flag=True, help="To the beginning of the log.")
@click.option("--to-latest", is_flag=True, help="To the end of the log.")
@click.option("--to-current", is_flag=True, help="To where they are: this pins them, and accepts evidence of loss.")
@click.option("--to-offset", type=click.IntRange(0, MAX_OFFSET), metavar="N", help="To this offset.")
@click.option(
    "--to-datetime",
    callback=options.moment,
    metavar="TIME",
    help="To the first record at or after this time (2025-03-01T00:00Z), or to the end if there is none.",
)
@click.option(
    "--by-duration",
    callback=options.duration,
    metavar="DURATION",
    help="To the first record at or after this long ago (2h, 30d, P1DT2H), by this machine's clock.",
)
@click.option("--shift-by", type=int, metavar="N", help="By N offsets; backwards if N is negative.")
@click.option(
    "--from-file",
    # utf-8-sig: some programs begin a CSV file with a byte-order mark.
    type=click.File(encoding="utf-8-sig"),
    metavar="FILE",
    help="To the offsets of a CSV file (- for standard input) with the lines topic,partition,offset, or of the group's "
    "lines of group,topic,partition,offset.",
)
@click.option(
    "--from-offset",
    type=click.IntRange(0, MAX_OFFSET),
    metavar="N",
    help="Reset only if this is the stored offset; otherwise do nothing.",
)
@options.broker_options(required=False, use=", for --to-earliest, --to-latest, --to-datetime, --by-duration")
@decide_options(force=True, csv="as --from-file reads it")
def reset(
    *,
    group: str,
    topics: dict[str, set[int] | None],
    all_topics: bool,
    to_earliest: bool,
    to_latest: bool,
    to_current: bool,
    to_offset: int | None,
    to_datetime: datetime | None,
    by_duration: timedelta | None,
    shift_by: int | None,
    from_file: IO[str] | None,
    from_offset: int | None,
    kafka: options.Kafka,
    decide: Decide,
) -> None:
    """Move a group's stored offsets.

    Without --execute it prints the plan and writes nothing. With --execute the plan is remade under the group's locks,
    from what a running job has stored by then, and the result is printed. A job that starts in the meantime
    is fenced only with --force. With --if-plan it does what the plan has shown, or nothing: another job or reset has
    another plan, as has another stored offset unless a job is live, which goes on storing.

    The offsets that it sets are pinned: the next start begins there, regardless of what Kafka has committed. If
    offsets move backwards, their records are processed again: remove their results before the job starts, or they will
    be there twice. An offset that Kafka's log does not hold is refused. Without brokers, --to-offset, --shift-by and
    --from-file are not checked against the log until the next start: so give them before you remove results.

    The CSV is that of kafka-consumer-groups: --format csv prints the new offsets and nothing else, for --from-file of
    either tool: neither the digest for --if-plan nor evidence of lost records.

    Exit code 1 if it is refused, also without --execute: there is no such group, a job is live and --force was not
    given, the stored offset is not --from-offset, the plan is not --if-plan (the new one is printed), or the log does
    not hold the offset; 2 if the store has no such partition; 4 if Kafka has no such topic.

    \b
    Keys of --format json:
      group, reason
      executed      whether it was done
      plan          for --if-plan
      live          whether a job was live
      fenced        name, epoch, claim_id of the job that was fenced; null if
                    the last one had left, and without --execute
      replayed_letters
                    dead letters in the range that were replayed: their rows
                    are in the results and would be written twice
      to_datetime   the time of --to-datetime, or to which --by-duration has
                    led: with --if-plan, name it; null for other targets
      partitions[]  topic, partition, stored, new, beginning, end
                    (these two are null if no broker was asked), suspect
                    (evidence that the log lost records, which the reset
                    accepts; null if there is none)

    \b
    Example, with OFFSETSTORE_URL set:
      offsetstore reset -g billing -t payments:0,2 --to-earliest \\
          -b localhost:9092 --reason "wrong rates, ticket 17" --execute
    """  # noqa: D301 - \b is click's mark, and this is how click wants it
    if decide.how["if_plan"] is not None and decide.format_ == "csv":
        raise click.UsageError("--if-plan does not go with --format csv, which would not show a plan that has changed.")
    target = _target(
        "earliest" if to_earliest else None,
        "latest" if to_latest else None,
        ShiftBy(0) if to_current else None,
        to_offset,
        to_datetime,
        led_to := None if by_duration is None else _ago(by_duration),
        None if shift_by is None else ShiftBy(shift_by),
        None if from_file is None else _read_offsets(from_file, group),
    )

    def show(done: Reset) -> None:
        if decide.format_ == "csv":
            _print_csv(done)
            return
        notes: list[str] = []
        # By the same duration, the plan would be another one at any later time.
        if led_to is not None and not done.executed:
            to = f"--by-duration leads to {led_to.isoformat()}"
            notes.append(f"{to}: repeat this plan with --to-datetime and that time.")
        time = target if isinstance(target, datetime) else None
        decide.print_plan(done, _RESET_KEYS, *notes, to_datetime=time)

    with decide.open() as store:
        done = decide.carry_out(
            lambda: store.reset(
                group,
                target,
                partitions=_partitions(topics, target, all_topics=all_topics),
                broker=kafka.find(),
                kafka_group=kafka.group,
                takeover=decide.takeover,
                from_offset=from_offset,
                **decide.how,
            ),
            show,
        )
    # Without --execute, too, the answer is no if --execute would refuse.
    if done.met_live_owner and not decide.force:
        raise click.exceptions.Exit(ExitCode.NO)


def _target(*values: Mapping[TopicPartition, int] | ResetTarget | None) -> Mapping[TopicPartition, int] | ResetTarget:
    named: list[tuple[str, Mapping[TopicPartition, int] | ResetTarget]] = [
        (name, value) for name, value in zip(_TARGETS, values, strict=True) if value is not None
    ]
    if len(named) != 1:
        found = ", ".join(name for name, _ in named) or "none"
        raise click.UsageError(f"Name one of {', '.join(_TARGETS)}; found {found}.")
    [(_, target)] = named
    return target


def _partitions(
    topics: dict[str, set[int] | None], target: Mapping[TopicPartition, int] | ResetTarget, *, all_topics: bool
) -> Partitions:
    if isinstance(target, Mapping):
        if topics or all_topics:
            raise click.UsageError("--from-file names the partitions: leave out --topic and --all-topics.")
        return None
    if bool(topics) == all_topics:
        raise click.UsageError("Name the partitions: either with --topic, or --all-topics.")
    return "all" if all_topics else topics


def _ago(duration: timedelta) -> datetime:
    try:
        return datetime.now(UTC) - duration
    except OverflowError:
        raise click.UsageError("--by-duration goes back to before the year 1.") from None


def _read_offsets(file: IO[str], group: str) -> dict[TopicPartition, int]:
    """Read the file of ``--from-file``; of one that names groups, the lines of this group."""
    found: dict[TopicPartition, int] = {}
    others = 0
    try:
        lines = [(number, line) for number, line in enumerate(csv.reader(file), start=1) if line]
    except (UnicodeDecodeError, csv.Error):
        raise click.UsageError("--from-file is not a CSV file in UTF-8.") from None
    for number, line in lines:
        of_group, *place = line if len(line) == _WITH_GROUP else (group, *line)
        try:
            topic, partition, offset = place
            tp, value = TopicPartition(topic.strip(), int(partition)), int(offset)
        except ValueError:
            raise click.UsageError(
                f"Line {number} of --from-file is not topic,partition,offset or group,topic,partition,offset."
            ) from None
        if of_group.strip() != group:
            others += 1
        elif tp in found:
            raise click.UsageError(f"Line {number} of --from-file names {visible(tp)} again.")
        else:
            found[tp] = value
    if not found:
        raise click.UsageError(f"--from-file has no offsets of group {visible(group)}.")
    if others:
        click.echo(f"Left out {counted(others, 'line')} of other groups.", err=True)
    return found


def _print_csv(done: Reset) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows((*move.topic_partition, move.to_offset) for move in done.moves)
    echo(text.getvalue(), nl=False)


_AS_IT_IS = Metadata(serializer=str, deserializer=str)


@click.group()
def metadata() -> None:
    """Show or rewrite the metadata of a consumer group's offsets."""


@metadata.command("get")
@options.group_option
@click.argument("topic", callback=options.names)
@click.argument("partition", type=click.IntRange(0, MAX_PARTITION), required=False)
@table_options
def get_metadata(*, group: str, topic: str, partition: int | None, ask: AskOptions) -> None:
    """Show the metadata of a topic's partitions, or of one, as text.

    Exit code 1 if the store has no offset of them.

    \b
    Keys of --format json:
      group, topic
      partitions[]  partition, stored, metadata (a text, or null)

    \b
    Example, with OFFSETSTORE_URL set:
      offsetstore metadata get -g billing payments 0
    """  # noqa: D301 - \b is click's mark, and this is how click wants it
    with ask.open() as store:
        if not (rows := store.offsets(group)):
            fail_unknown(store, group, "offsets of group")
    found = {tp: row for tp, row in rows.items() if tp.topic == topic and partition in {None, tp.partition}}
    if not found:
        tp = TopicPartition(topic, partition or 0)
        fail(unknown_partition(group, rows, tp), code=ExitCode.NO)
    partitions = [
        {"partition": tp.partition, "stored": row.next_offset, "metadata": row.metadata} for tp, row in found.items()
    ]
    rows = [(tp, row.next_offset, row.metadata) for tp, row in found.items()]
    made = {"group": group, "topic": topic, "partitions": partitions}
    ask.show(made, Table(("partition", "#stored", "metadata"), rows))


@metadata.command("set")
@options.group_option
@click.argument("topic", callback=options.names)
@click.argument("partition", type=click.IntRange(0, MAX_PARTITION))
@click.argument("value", required=False)
@click.option("--text", is_flag=True, help="Store VALUE as it is, for a job with a format of its own.")
@click.option("--clear", is_flag=True, help="Store none, instead of VALUE.")
@options.reason_option
@ask_options
def set_metadata(
    *,
    group: str,
    topic: str,
    partition: int,
    value: str | None,
    text: bool,
    clear: bool,
    reason: str,
    ask: AskOptions,
) -> None:
    """Rewrite the metadata of a partition, at the offset that is stored.

    VALUE is JSON, unless --text is given. No job is fenced: a running job's next batch keeps the new value, unless it
    writes one of its own. What it read when it claimed the group stays in its cache.

    Exit code 1 if there is no such group, 2 if VALUE is not JSON or the store has no such partition, and 5 if VALUE is
    too large.

    \b
    Keys of --format json:
      group, topic, partition, stored

    \b
    Example, with OFFSETSTORE_URL set:
      offsetstore metadata set -g billing payments 0 '{"checked": true}' \\
          --reason "ticket 17"
    """  # noqa: D301 - \b is click's mark, and this is how click wants it
    if (value is None) is not clear or (clear and text):
        raise click.UsageError("Give a VALUE, or --clear.")
    tp = TopicPartition(topic, partition)
    written: object = value
    if value is not None and not text:
        try:
            written = from_json(value)
        except MetadataError:
            raise click.UsageError(
                "VALUE is not JSON. A string needs quotes of its own, '\"like this\"'; --text stores any text as it is."
            ) from None
    formats = _AS_IT_IS if text else None
    with ask.open() as store:
        stored = store.write_metadata(group, tp, written, reason=reason, formats=formats)
    made = {"group": group, "topic": topic, "partition": partition, "stored": stored}
    with even_unread():
        ask.show(made, f"{'Cleared' if clear else 'Wrote'} the metadata of {tp} at offset {stored}.")

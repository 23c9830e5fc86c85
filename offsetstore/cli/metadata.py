"""``offsetstore metadata``: read and rewrite what is stored with a partition's offset."""

from __future__ import annotations

import click

from offsetstore.cli import options
from offsetstore.cli.asking import AskOptions, ask_options
from offsetstore.cli.output import Table, even_unread
from offsetstore.errors import ExitCode, MetadataError
from offsetstore.offsets import MAX_PARTITION, TopicPartition
from offsetstore.protocol.metadata import Metadata, from_json
from offsetstore.text import visible

_AS_IT_IS = Metadata(serializer=str, deserializer=str)


@click.group()
def metadata() -> None:
    """Show or rewrite the metadata of a consumer group's offsets."""


@metadata.command("get")
@options.group_option
@click.argument("topic", callback=options.names)
@click.argument("partition", type=click.IntRange(0, MAX_PARTITION), required=False)
@ask_options
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
        rows = store.offsets(group)
    found = {tp: row for tp, row in rows.items() if tp.topic == topic and partition in {None, tp.partition}}
    if not found:
        named = topic if partition is None else TopicPartition(topic, partition)
        click.echo(visible(f"The store has no offset of {named} for group {group!r}."), err=True)
        raise click.exceptions.Exit(ExitCode.NO)
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
      offsetstore metadata set -g billing payments 0 '{"checked": true}'
          --reason "ticket 17"
    """  # noqa: D301 - \b is click's mark, and this is how click wants it
    if (value is None) is not clear or (clear and text):
        raise click.UsageError("Give a VALUE, or --clear.")
    tp = TopicPartition(topic, partition)
    written = value if text or value is None else _from_json(value)
    formats = _AS_IT_IS if text else None
    with ask.open() as store:
        stored = store.write_metadata(group, tp, written, reason=reason, formats=formats)
    made = {"group": group, "topic": topic, "partition": partition, "stored": stored}
    with even_unread():
        ask.show(made, f"{'Cleared' if clear else 'Wrote'} the metadata of {tp} at offset {stored}.")


def _from_json(value: str) -> object:
    try:
        return from_json(value)
    except MetadataError:
        raise click.UsageError(
            "VALUE is not JSON. A string needs quotes of its own, '\"like this\"'; --text stores any text as it is."
        ) from None

"""``offsetstore groups`` lists, copies, renames and deletes groups; ``pause`` and ``resume``."""

from __future__ import annotations

from datetime import datetime
from typing import Final

import click

from offsetstore.cli import options
from offsetstore.cli.asking import AskOptions, Decide, ask_options, decide_options
from offsetstore.cli.output import Table, document
from offsetstore.operations.group_status import in_words
from offsetstore.text import short

_COLUMNS: Final = ("group", "state", "#epoch", "#partitions", "#changed", "#letters", "topics")
_KEYS: Final = (
    "groups=.[group state=owner.state epoch=owner.token.epoch owner=owner.owner claimed_at=owner.claimed_at "
    "heartbeat_age_seconds=owner.alive_for paused=owner.pause partitions topics changed_seconds_ago=advanced_for "
    "dead_letters]"
)
_NEW_NAME: Final = "group new executed plan=digest open_letters offsets[*@ stored=.]"
_DELETED: Final = (
    "group topics executed plan=digest live=met_live_owner contested "
    "dead_letters=.[open=open_letters settled=settled_letters] offsets[*@ stored=.] suspects=losses[*@ suspect=.]"
)

_naming_options = options.together(
    options.group_option,
    click.option("--to", "new", required=True, callback=options.names, metavar="NAME", help="The new name."),
)


@click.group()
def groups() -> None:
    """List, copy, rename and delete consumer groups."""


@groups.command("list")
@ask_options
def list_groups(*, ask: AskOptions) -> None:
    """List all consumer groups of the store.

    A group is "live" while its job sends heartbeats, "failed" if an error ended the last job, ends each soon after its
    start, or refuses that, "silent" if its heartbeats stopped without notice, "fenced" if the group was taken from it,
    "ended" if it ended cleanly or an operator has decided something since. "changed" is the time since a stored offset
    last changed. "epoch" is the number of the last claim or decision: `offsetstore status --help`. "letters" counts
    open dead letters. A name that was given up, or deleted, has no partitions.

    \b
    Keys of --format json:
      groups[]  group, state, epoch, owner, claimed_at,
                heartbeat_age_seconds, paused (at, until, reason; or null),
                partitions, topics[], changed_seconds_ago, dead_letters

    \b
    Example, with OFFSETSTORE_URL set:
      offsetstore groups list
    """  # noqa: D301 - \b is click's mark, and this is how click wants it
    with ask.open() as store:
        found = store.groups()
    rows = [
        (
            row.group,
            in_words(row.owner),
            row.owner.token.epoch,
            row.partitions,
            None if row.advanced_for is None else short(row.advanced_for),
            row.dead_letters,
            ", ".join(row.topics),
        )
        for row in found
    ]
    ask.show(document(found, _KEYS), Table(_COLUMNS, rows))


@groups.command("copy")
@_naming_options
@decide_options()
def copy_group(*, group: str, new: str, decide: Decide) -> None:
    """Give another name the stored offsets of a group, with their metadata.

    For a second job that begins where the first one is: a new version beside the old one, a test. The group and its
    job are left alone. Dead letters stay with the group, whose job replays them: both jobs would replay them twice.

    Exit code 1 if there is no such group, or if the plan is not --if-plan (the new one is printed); 2 if the other name
    is taken.

    \b
    Keys of --format json:
      group, new, executed, plan (for --if-plan)
      open_letters  how many dead letters stay with the group
      offsets[]     topic, partition, stored

    \b
    Example, with OFFSETSTORE_URL set:
      offsetstore groups copy -g billing --to billing-v2
          --reason "the new version runs beside the old one" --execute
    """  # noqa: D301 - as above
    decide(_NEW_NAME, lambda store: store.copy_group(group, new, **decide.how))


@groups.command("rename")
@_naming_options
@decide_options(force=True)
def rename_group(*, group: str, new: str, decide: Decide) -> None:
    """Give a group another name, with its offsets, metadata and dead letters.

    A job that is started under the old name again is refused: it would read the topics from the beginning. What was
    copied to Kafka stays there under the old name.

    Exit code 1 if there is no such group, if a job of it is live, or if the plan is not --if-plan (the new one is
    printed); 2 if the other name is taken.

    \b
    Keys of --format json:
      group, new, executed, plan (for --if-plan)
      open_letters  how many dead letters go along
      offsets[]     topic, partition, stored

    \b
    Example, with OFFSETSTORE_URL set:
      offsetstore groups rename -g billing --to invoicing
          --reason "the team's new name, ticket 17" --execute
    """  # noqa: D301 - as above
    decide(_NEW_NAME, lambda store: store.rename_group(group, new, takeover=decide.takeover, **decide.how))


@groups.command("delete")
@options.group_option
@click.option(
    "--topic",
    "-t",
    "topics",
    multiple=True,
    callback=options.names,
    metavar="TOPIC",
    help="Delete what the group has of this topic alone. Can be repeated.",
)
@click.option("--discard-letters", is_flag=True, help="Also delete dead letters that were not replayed or discarded.")
@decide_options(force=True)
def delete_group(*, group: str, topics: tuple[str, ...], discard_letters: bool, decide: Decide) -> None:
    """Delete a group: its offsets, their metadata, and its dead letters.

    With --topic, those of a topic that its job no longer reads: status, lag and alerts no longer look at it.

    A job that still runs writes nothing more. A job that is started under this name begins as that of a new group:
    what was copied to Kafka stays there, and no longer counts. The history stays, and has the offsets. The results are
    yours. Only the owner of the tables may delete.

    Exit code 1 if there is no such group, if a job of it is live, if it has open letters and --discard-letters was not
    given, or if the plan is not --if-plan (the new one is printed); 2 if it has no offsets of a topic, or of no others.

    \b
    Keys of --format json:
      group, executed, plan (for --if-plan)
      topics        as given; null for the whole group
      live          whether a job was live
      contested     whether another application used the group in Kafka
      dead_letters  open, settled: how many
      offsets[]     topic, partition, stored
      suspects[]    topic, partition, suspect (evidence that the log lost
                    records, which the delete clears)

    \b
    Example, with OFFSETSTORE_URL set:
      offsetstore groups delete -g billing --reason "ticket 17" --execute
      offsetstore groups delete -g billing --topic refunds
          --reason "read by another job now" --execute
    """  # noqa: D301 - as above
    takeover = decide.takeover
    decide(
        _DELETED,
        lambda store: store.delete_group(
            group, takeover=takeover, topics=topics or None, discard_letters=discard_letters, **decide.how
        ),
    )


_PAUSE_KEYS: Final = "group executed plan=digest"


@click.command()
@options.group_option
@click.option(
    "--until",
    callback=options.moment,
    metavar="TIME",
    help="When the pause ends by itself (2025-03-01T00:00Z), by the database's clock; without it, at `resume`.",
)
# Without --execute: a pause is urgent, and loses nothing (decision 0051).
@decide_options(at_once=True)
def pause(*, group: str, until: datetime | None, decide: Decide) -> None:
    """Pause a consumer group, at once.

    A pause loses nothing, so this needs no --execute; --dry-run shows the plan.

    The group's running job finishes the batch that it is computing and waits before the next one; so does a job that
    starts while the group is paused. It keeps its claim and holds no locks. A second pause replaces the first; a reset
    or a new name keeps it.

    Exit code 1 if there is no such group, if it was renamed, or if the plan is not --if-plan (the new one is printed):
    another pause was made, or ended.

    \b
    Keys of --format json:
      group
      executed  whether it was done
      plan      for --if-plan
      replaced  at, until, reason of the pause before; null if there was none
      paused    at, until, reason

    \b
    Example, with OFFSETSTORE_URL set:
      offsetstore pause -g billing --reason "the database is upgraded, ticket 17"
    """  # noqa: D301 - \b is click's mark, and this is how click wants it
    decide(f"{_PAUSE_KEYS} replaced=before paused=after", lambda store: store.pause(group, until=until, **decide.how))


@click.command()
@options.group_option
@decide_options(at_once=True)
def resume(*, group: str, decide: Decide) -> None:
    """End a consumer group's pause, at once.

    As for `offsetstore pause`, this needs no --execute. A job that waits goes on within a second or two. If the group
    is not paused, nothing is written.

    Exit code 1 as for `offsetstore pause`.

    \b
    Keys of --format json:
      group
      executed  whether anything was written
      plan      for --if-plan
      ended     at, until, reason of the pause; null if there was none

    \b
    Example, with OFFSETSTORE_URL set:
      offsetstore resume -g billing --reason "the upgrade is done, ticket 17"
    """  # noqa: D301 - as above
    decide(f"{_PAUSE_KEYS} ended=before", lambda store: store.resume(group, **decide.how))

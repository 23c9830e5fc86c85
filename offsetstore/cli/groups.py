"""``offsetstore groups``: list all groups, copy one, give one another name, delete one."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import Any, TypeVar

import click

from offsetstore.cli import options
from offsetstore.cli.exits import decide
from offsetstore.cli.output import columns, document, print_digest, print_json, print_lines, print_losses, print_table
from offsetstore.operations.group_status import in_words
from offsetstore.operations.names import DeletedGroup, NewName
from offsetstore.operations.operation import Decided
from offsetstore.protocol.database import GroupRow
from offsetstore.text import counted, short, visible

_F = TypeVar("_F", bound="Callable[..., Any]")

_COLUMNS = columns("group, state, #epoch, #partitions, #changed, #letters, topics")
_OFFSETS = columns("partition, #stored")
_KEYS = (
    "group state=owner.state epoch=owner.token.epoch owner=owner.owner claimed_at=owner.claimed_at "
    "heartbeat_age_seconds=owner.alive_for paused=owner.pause partitions topics changed_seconds_ago=advanced_for "
    "dead_letters"
)


@click.group()
def groups() -> None:
    """List, copy, rename and delete consumer groups."""


@groups.command("list")
@options.database_options
@options.format_option
def list_groups(*, database: options.Database, format_: str) -> None:
    """List all consumer groups of the store.

    A group is "live" while its job sends heartbeats, "failed" if an error ended the last job, "silent" if its
    heartbeats stopped without notice, "fenced" if the group was taken from it, "ended" if it ended in good order or an
    operator has decided something since. "changed" is the time since a stored offset last changed. "epoch" is the
    number of the last claim or decision: `offsetstore status --help`.
    "letters" counts open dead letters. A name that was given up, or deleted, has no partitions.

    \b
    Keys of --format json:
      groups[]  group, state, epoch, owner, claimed_at,
                heartbeat_age_seconds, paused (at, until, reason; or null),
                partitions, topics[], changed_seconds_ago, dead_letters

    \b
    Example, with OFFSETSTORE_URL set:
      offsetstore groups list
    """  # noqa: D301 - \b is click's mark, and this is how click wants it
    with database.open() as store:
        found = store.groups()
    if format_ == "json":
        print_json({"groups": [document(one, _KEYS) for one in found]})
        return
    print_table(
        _COLUMNS,
        [
            (
                one.group,
                in_words(one.owner),
                one.owner.token.epoch,
                one.partitions,
                None if one.advanced_for is None else short(one.advanced_for),
                one.dead_letters,
                ", ".join(one.topics),
            )
            for one in found
        ],
    )


def _naming_options(function: _F) -> _F:
    for option in reversed(
        (
            options.group_option,
            click.option("--to", "new", required=True, callback=options.names, metavar="NAME", help="The new name."),
            options.execute_options,
            options.database_options,
            options.format_option,
        )
    ):
        function = option(function)
    return function


@groups.command("copy")
@_naming_options
def copy_group(
    *,
    group: str,
    new: str,
    how: options.How,
    database: options.Database,
    format_: str,
) -> None:
    """Give another name the stored offsets of a group, with their metadata.

    For a second job that begins where the first one is: a new version beside the old one, a test. The group and its
    job are left alone. Dead letters stay with the group, whose job replays them: both jobs would replay them twice.

    \b
    Exit codes:
      0  done; without --execute: it can be done
      1  there is no such group, or the plan is not --if-plan (the new one is
         printed)
      2  wrong usage, or the other name is taken
      3  the database can't be reached or refuses

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
    decide(database, lambda store: store.copy_group(group, new, **how), lambda done: _print(done, format_, "copied"))


@groups.command("rename")
@_naming_options
@click.option("--force", is_flag=True, help="Do it even if a job is live: its next write fails with StaleClaim.")
def rename_group(
    *,
    group: str,
    new: str,
    how: options.How,
    force: bool,
    database: options.Database,
    format_: str,
) -> None:
    """Give a group another name, with its offsets, metadata and dead letters.

    A job that is started under the old name again is refused: it would read the topics from the beginning. What was
    copied to Kafka stays there under the old name.

    \b
    Exit codes:
      0  done; without --execute: it can be done
      1  there is no such group, a job of it is live, or the plan is not
         --if-plan (the new one is printed)
      2  wrong usage, or the other name is taken
      3  the database can't be reached or refuses

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
    decide(
        database,
        lambda store: store.rename_group(group, new, takeover="fence" if force else "refuse", **how),
        lambda done: _print(done, format_, "renamed", force=force),
    )


@groups.command("delete")
@options.group_option
@options.execute_options
@click.option(
    "--discard-letters", is_flag=True, help="Delete dead letters too that were neither replayed nor discarded."
)
@click.option("--force", is_flag=True, help="Do it even if a job is live: its next write fails with StaleClaim.")
@options.database_options
@options.format_option
def delete_group(
    *,
    group: str,
    how: options.How,
    discard_letters: bool,
    force: bool,
    database: options.Database,
    format_: str,
) -> None:
    """Delete a group: its offsets, their metadata, and its dead letters.

    A job that still runs writes nothing more. A job that is started under this name begins as that of a new group:
    what was copied to Kafka stays there, and no longer counts. The history stays, and has the offsets. The results are
    yours. Only the owner of the tables may delete.

    \b
    Exit codes:
      0  done; without --execute: it can be done
      1  there is no such group, a job of it is live, it has open letters
         and --discard-letters was not given, or the plan is not --if-plan
         (the new one is printed)
      2  wrong usage
      3  the database can't be reached or refuses, or the role may not delete

    \b
    Keys of --format json:
      group, executed, plan (for --if-plan)
      live          whether a job was live
      contested     whether another application used the group in Kafka
      dead_letters  open, settled: how many
      offsets[]     topic, partition, stored
      suspects[]    topic, partition, suspect (evidence that the log lost
                    records, which the delete clears)

    \b
    Example, with OFFSETSTORE_URL set:
      offsetstore groups delete -g billing --reason "ticket 17" --execute
    """  # noqa: D301 - as above
    takeover: Decided = "fence" if force else "refuse"
    decide(
        database,
        lambda store: store.delete_group(group, takeover=takeover, discard_letters=discard_letters, **how),
        lambda done: _print_deleted(done, format_, force=force),
    )


def _print_deleted(done: DeletedGroup, format_: str, *, force: bool) -> None:
    if format_ == "json":
        letters = {"open": done.open_letters, "settled": done.settled_letters}
        suspects = [document(one, "*tp suspect", tp=tp, suspect=one) for tp, one in done.losses.items()]
        keys = "group executed plan=digest live=met_live_owner contested dead_letters offsets suspects"
        print_json(document(done, keys, dead_letters=letters, offsets=_offsets(done), suspects=suspects))
        return
    print_table(_OFFSETS, [*done.offsets.items()])
    letters = done.open_letters + done.settled_letters
    and_letters = f" and {counted(letters, 'dead letter')} ({done.open_letters} open)" if letters else ""
    what = f"the offsets of {counted(len(done.offsets), 'partition')}{and_letters}"
    print_lines(f"{done.group} {'was' if done.executed else 'would be'} deleted: {what}.")
    if done.contested:
        print_lines("Another application uses this group in Kafka. A new job of this name begins at its offsets.")
    print_losses(done.losses)
    print_lines("Kafka keeps the copy of the offsets, which no longer counts. This removes it:")
    click.echo(
        f"  kafka-consumer-groups.sh --bootstrap-server HOST:PORT --delete --group {shlex.quote(visible(done.group))}"
    )
    if done.executed:
        print_lines("A job that starts under this name reads the topics anew, and writes the results again.")
        return
    _print_only_planned("deleted", done.owner, done.digest, force=force)


def _print(done: NewName, format_: str, word: str, *, force: bool = False) -> None:
    if format_ == "json":
        print_json(document(done, "group new executed plan=digest open_letters offsets", offsets=_offsets(done)))
        return
    print_table(_OFFSETS, [*done.offsets.items()])
    if done.open_letters and word == "copied":
        print_lines(f"{done.group} keeps its {counted(done.open_letters, 'open dead letter')}: its job replays them.")
    what = f"The offsets of {counted(len(done.offsets), 'partition')}"
    if done.executed:
        print_lines(f"{what} were {word} from {done.group} to {done.new}.")
        return
    print_lines(f"{what} would be {word} from {done.group} to {done.new}.")
    _print_only_planned("written", done.owner if word == "renamed" else None, done.digest, force=force)


def _print_only_planned(word: str, fenced: GroupRow | None, digest: str, *, force: bool) -> None:
    """Say how to do what was planned.

    :param fenced: the owner that the decision takes the group from, ``None`` if it takes it from nobody.
    """
    needs_force = False
    if fenced is not None and fenced.is_live:
        print_lines(f"A job is live: {fenced.in_words()}. It must be stopped first, or --force fences it.")
        needs_force = not force
    print_lines(f"Nothing was {word}.{'' if needs_force else ' Add --execute to do it.'}")
    print_digest(digest, force=needs_force)


def _offsets(done: NewName | DeletedGroup) -> list[dict[str, object]]:
    return [document(tp, "topic partition stored", stored=offset) for tp, offset in done.offsets.items()]

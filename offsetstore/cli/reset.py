"""``offsetstore reset``: move a group's stored offsets, in the words of kafka-consumer-groups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import click

from offsetstore.cli import options
from offsetstore.cli.exits import ExitCode, fail
from offsetstore.cli.output import Column, print_json, print_lines, print_table
from offsetstore.errors import ConfigurationError, GroupBusy, OffsetOutOfRange, WrongCluster
from offsetstore.offsets import MAX_OFFSET, TopicPartition
from offsetstore.store.heartbeat import LIVE

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime
    from pathlib import Path

    from offsetstore.offsets import BrokerView, StoredOffset, Watermarks
    from offsetstore.store.session import GroupRow

_COLUMNS = (
    Column("partition"),
    Column("stored", number=True),
    Column("new", number=True),
    Column("moves", number=True),
    Column("beginning", number=True),
    Column("end", number=True),
)
_CHOOSE = "Name an offset that the log holds, or use --to-earliest or --to-latest."
_SHIFT = "Shift by less, or use --to-earliest."
_TARGETS: Final = ("--to-earliest", "--to-latest", "--to-offset", "--to-datetime", "--shift-by")


@dataclass(frozen=True, slots=True)
class Target:
    """Where to: one of the five options, the others ``None`` or ``False``."""

    earliest: bool
    latest: bool
    offset: int | None
    time: datetime | None
    shift: int | None

    @property
    def needs_broker(self) -> bool:
        """Whether only Kafka knows."""
        return self.earliest or self.latest or self.time is not None

    @property
    def timestamp_ms(self) -> int | None:
        """As Kafka counts time."""
        return None if self.time is None else int(self.time.timestamp() * 1000)

    def of(self, tp: TopicPartition, stored: int, view: BrokerView | None) -> int:
        """The new offset of one partition, unchecked."""
        if self.offset is not None:
            return self.offset
        if self.shift is not None:
            return stored + self.shift
        assert view is not None
        log = view.topics[tp.topic].partitions[tp.partition]
        if self.time is not None:
            return (view.timestamps or {})[tp]
        return log.beginning if self.earliest else log.end


@dataclass(frozen=True, slots=True)
class Move:
    """What happens to one partition; ``log`` is ``None`` where no broker was asked."""

    tp: TopicPartition
    stored: int
    new: int
    log: Watermarks | None


def _topic(_context: click.Context, _parameter: click.Parameter, value: tuple[str, ...]) -> dict[str, set[int] | None]:
    """Read ``TOPIC`` and ``TOPIC:0,2``; a topic's name has no colon."""
    found: dict[str, set[int] | None] = {}
    for text in value:
        topic, separator, numbers = text.partition(":")
        if not topic or "\0" in topic or topic in found:
            what = f"{text!r} names no topic, or one that was named before."
            raise click.BadParameter(what)
        try:
            found[topic] = {int(number) for number in numbers.split(",")} if separator else None
        except ValueError:
            what = f"{text!r} is not TOPIC or TOPIC:0,2."
            raise click.BadParameter(what) from None
    return found


@click.command()
@options.group_option
@click.option(
    "--topic",
    "-t",
    "topics",
    multiple=True,
    required=True,
    metavar="TOPIC[:0,2]",
    callback=_topic,
    help="All partitions of the topic that the store has for the group, or those named. May be repeated.",
)
@click.option("--to-earliest", is_flag=True, help="To the beginning of the log.")
@click.option("--to-latest", is_flag=True, help="To the end of the log.")
@click.option("--to-offset", type=click.IntRange(0, MAX_OFFSET), metavar="N", help="To this offset.")
@click.option(
    "--to-datetime",
    callback=options.moment,
    metavar="TIME",
    help="To the first record at or after it, or the end; such as 2025-03-01T00:00Z.",
)
@click.option("--shift-by", type=int, metavar="N", help="By N offsets, backwards if N is negative.")
@click.option("--reason", required=True, metavar="TEXT", help="Why; the history keeps it.")
@click.option("--execute", is_flag=True, help="Do it. Without this nothing is written.")
@click.option("--force", is_flag=True, help="Do it although a job is live: its next write fails with StaleClaim.")
@options.broker_options(required=False, use=", for --to-earliest, --to-latest, --to-datetime")
@options.database_options
@options.format_option
@click.pass_context
def reset(
    context: click.Context,
    *,
    group: str,
    topics: dict[str, set[int] | None],
    to_earliest: bool,
    to_latest: bool,
    to_offset: int | None,
    to_datetime: datetime | None,
    shift_by: int | None,
    reason: str,
    execute: bool,
    force: bool,
    bootstrap_servers: str | None,
    broker_option: tuple[str, ...],
    broker_config: Path | None,
    kafka_group: str | None,
    timeout: float,
    url: str | None,
    schema: str | None,
    format_: str,
) -> None:
    """Move a group's stored offsets.

    Prints the plan; writes nothing without --execute. What is set is pinned: the next start begins there, whatever
    Kafka has for the group. Backwards, records are processed again, and are in the results twice unless they are
    removed there first. An offset outside of the log is refused. Without brokers, --to-offset and --shift-by can't be
    compared with the log; the next start does it.

    \b
    Exit codes:
      0  done; without --execute: it would be done
      1  refused, without --execute too: no such group, a live job and no
         --force, or the log does not hold an offset
      2  wrong usage, or the store has no such partition
      3  the database can't be reached or refuses
      4  Kafka can't be reached, refuses, or has no such topic

    \b
    Keys of --format json:
      group, reason
      executed      whether it was done
      live          whether a job was live
      partitions[]  topic, partition, stored, new, beginning, end
                    (the last two are null where no broker was asked)

    \b
    Example, with OFFSETSTORE_URL set:
      offsetstore reset -g billing -t payments:0,2 --to-earliest
          -b localhost:9092 --reason "wrong rates, ticket 17" --execute
    """  # noqa: D301 - \b is click's mark, and this is how click wants it
    target = _target(to_earliest, to_latest, to_offset, to_datetime, shift_by)
    if target.needs_broker and not bootstrap_servers:
        what = "Only Kafka knows the log's ends and times: name its brokers with --bootstrap-servers."
        raise click.UsageError(what)
    if not reason.strip():
        what = "a decision needs a reason."
        raise click.BadParameter(what, param_hint="--reason")
    broker = (
        options.make_broker(bootstrap_servers, broker_option, broker_config, timeout) if bootstrap_servers else None
    )
    with options.open_store(url, schema) as store:
        rows = _chosen(group, store.offsets(group), topics)
        view = broker.view(kafka_group or group, list(topics), timestamp_ms=target.timestamp_ms) if broker else None
        moves = _plan(rows, view, target)
        owner = store.owner(group)
        if execute:
            if _is_live(owner) and not force:
                fail(_busy(group, owner), code=ExitCode.NO)
            store.reset(group, {move.tp: move.new for move in moves}, reason=reason)
    if format_ == "json":
        print_json(_document(group, reason, moves, executed=execute, live=_is_live(owner)))
    else:
        _print(group, moves, owner, executed=execute, forced=force)
    if _is_live(owner) and not force:
        context.exit(ExitCode.NO)


def _target(earliest: bool, latest: bool, offset: int | None, time: datetime | None, shift: int | None) -> Target:  # noqa: FBT001 - click's values
    given = [earliest, latest, offset is not None, time is not None, shift is not None]
    if sum(given) != 1:
        named = ", ".join(name for name, is_there in zip(_TARGETS, given, strict=True) if is_there)
        what = f"Where to? One of {', '.join(_TARGETS)}; found {named or 'none'}."
        raise click.UsageError(what)
    return Target(earliest, latest, offset, time, shift)


def _chosen(
    group: str, rows: Mapping[TopicPartition, StoredOffset], topics: Mapping[str, set[int] | None]
) -> dict[TopicPartition, StoredOffset]:
    if not rows:
        what = f"the store has no offsets of group {group!r}"
        step = "Correct the name; a group gets its rows from the first claim."
        fail(ConfigurationError(what, next_step=step), code=ExitCode.NO)
    chosen: dict[TopicPartition, StoredOffset] = {}
    for topic, numbers in topics.items():
        there = {tp for tp in rows if tp.topic == topic}
        asked = there if numbers is None else {TopicPartition(topic, number) for number in numbers}
        if not asked or asked - there:
            what = f"the store has no offsets of group {group!r} for what was named"
            found = ", ".join(map(str, sorted(asked - there))) or topic
            held = ", ".join(map(str, sorted(there))) or ", ".join(sorted({tp.topic for tp in rows}))
            raise ConfigurationError(what, found=found, expected=f"of {held}")
        chosen |= {tp: rows[tp] for tp in sorted(asked)}
    return dict(sorted(chosen.items()))


def _plan(rows: Mapping[TopicPartition, StoredOffset], view: BrokerView | None, target: Target) -> list[Move]:
    moves: list[Move] = []
    for tp, row in rows.items():
        log = None if view is None else _log_of(tp, row, view)
        new = target.of(tp, row.next_offset, view)
        if not 0 <= new <= MAX_OFFSET:
            what = "the shift leads to what is no offset"
            raise OffsetOutOfRange(what, topic_partition=tp, found=new, expected="at least 0", next_step=_SHIFT)
        if log is not None and not log.beginning <= new <= log.end:
            what = f"the log does not hold offset {new}"
            held = f"from {log.beginning} to {log.end}"
            raise OffsetOutOfRange(what, topic_partition=tp, expected=held, next_step=_CHOOSE)
        moves.append(Move(tp, row.next_offset, new, log))
    return moves


def _log_of(tp: TopicPartition, row: StoredOffset, view: BrokerView) -> Watermarks:
    if row.cluster_id and view.cluster_id and row.cluster_id != view.cluster_id:
        what = "the stored offset belongs to another Kafka cluster"
        raise WrongCluster(what, topic_partition=tp, found=view.cluster_id, expected=row.cluster_id)
    log = view.topics[tp.topic].partitions.get(tp.partition)
    if log is None:
        what = "Kafka does not have this partition"
        raise ConfigurationError(what, topic_partition=tp, next_step="Name those that it has: --topic TOPIC:0,2.")
    return log


def _is_live(owner: GroupRow | None) -> bool:
    return owner is not None and owner.alive_for is not None and owner.alive_for < LIVE


def _busy(group: str, owner: GroupRow | None) -> GroupBusy:
    assert owner is not None
    what = f"a job of group {group!r} is live; nothing was written"
    step = "Stop it first, or fence it with --force."
    return GroupBusy(what, found=f"{owner.owner}, {owner.token}", next_step=step)


def _print(group: str, moves: list[Move], owner: GroupRow | None, *, executed: bool, forced: bool) -> None:
    print_table(
        _COLUMNS,
        [
            (
                move.tp,
                move.stored,
                move.new,
                f"{move.new - move.stored:+d}",
                move.log.beginning if move.log else None,
                move.log.end if move.log else None,
            )
            for move in moves
        ],
    )
    print_lines("")
    print_lines(*_consequences(group, moves, executed=executed))
    live = _is_live(owner)
    if live and executed:
        print_lines("The job that was live is fenced.")
    elif live:
        print_lines("A job is live: --force fences it." if forced else "A job is live: stop it first, or use --force.")
    if executed:
        print_lines("Done.")
    elif all(move.new == move.stored for move in moves):
        print_lines("Nothing was written. --execute would only pin them there.")
    else:
        print_lines("Nothing was written." if live and not forced else "Nothing was written. Add --execute to do it.")


def _consequences(group: str, moves: list[Move], *, executed: bool) -> list[str]:
    again = sum(max(0, move.stored - move.new) for move in moves)
    over = sum(max(0, move.new - move.stored) for move in moves)
    parts = [f"read {again} offsets again"] if again else []
    parts += [f"pass over {over}" if again else f"pass over {over} offsets"] if over else []
    if not parts:
        return [f"{group} is there already, in {len(moves)} partitions."]
    will = "will" if executed else "would"
    lines = [f"{group} {will} {' and '.join(parts)}, in {len(moves)} partitions."]
    if again:
        lines.append("Remove their results before you start the job, or they are there twice.")
    return lines


def _document(group: str, reason: str, moves: list[Move], *, executed: bool, live: bool) -> dict[str, object]:
    return {
        "group": group,
        "reason": reason,
        "executed": executed,
        "live": live,
        "partitions": [
            {
                "topic": move.tp.topic,
                "partition": move.tp.partition,
                "stored": move.stored,
                "new": move.new,
                "beginning": move.log.beginning if move.log else None,
                "end": move.log.end if move.log else None,
            }
            for move in moves
        ],
    }

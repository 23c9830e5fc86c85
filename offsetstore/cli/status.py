"""``offsetstore status``: how far a consumer group is."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, cast

import click

from offsetstore.cli import options
from offsetstore.cli.exits import ExitCode
from offsetstore.cli.output import Column, print_json, print_lines, print_table
from offsetstore.errors import BrokerError
from offsetstore.offsets import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime
    from pathlib import Path

    from offsetstore.offsets import BrokerView, StoredOffset, Watermarks
    from offsetstore.protocol.database import GroupRow, Session
    from offsetstore.store.store import OffsetStore

_DECISIONS = frozenset({"reset", "rename"})
_COLUMNS = (
    Column("partition"),
    Column("stored", number=True),
    Column("committed", number=True),
    Column("end", number=True),
    Column("lag", number=True),
    Column("epoch", number=True),
    Column("age", number=True),
)


@dataclass(frozen=True, slots=True)
class GroupState:
    """What the store holds of a group, and the database's clock at that moment.

    ``decision`` is ``reset`` or ``rename`` where the owner is no job: an operator did that, and no job came since.
    """

    name: str
    owner: GroupRow | None
    rows: Mapping[TopicPartition, StoredOffset]
    now: datetime
    decision: str | None

    @property
    def is_live(self) -> bool:
        """Whether a job owns the group and runs: what a claim and a reset go by, too."""
        return self.owner is not None and self.owner.is_live


@dataclass(frozen=True, slots=True)
class PartitionState:
    """One partition; ``None`` where there is nothing, or where nobody was asked. ``age`` is since the last change."""

    tp: TopicPartition
    row: StoredOffset | None
    committed: int | None
    log: Watermarks | None
    age: timedelta | None

    @property
    def lag(self) -> int | None:
        """Offsets from the stored one to the log's end."""
        if self.row is None or self.log is None:
            return None
        return max(0, self.log.end - self.row.next_offset)


@click.command()
@options.group_option
@options.broker_options(required=False, use="; without them only the store is shown")
@options.database_options
@options.format_option
@click.pass_context
def status(
    context: click.Context,
    *,
    group: str,
    bootstrap_servers: str | None,
    broker_option: tuple[str, ...],
    broker_config: Path | None,
    kafka_group: str | None,
    timeout: float,
    url: str | None,
    schema: str | None,
    format_: str,
) -> None:
    """Show how far a consumer group is, and who owns it.

    The lag is counted in offsets, from the stored one to the log's end. The age is the time since the stored offset
    last changed, by the database's clock. What is pinned was set by a decision, and wins over Kafka's offset until a
    job has copied it there. Where Kafka does not answer, what the store holds is shown all the same, and
    the exit code is 4. It is 1 where the store does not know the group.

    \b
    Keys of --format json:
      group
      owner         name, epoch, claim_id, claimed_at, heartbeat_age_seconds,
                    live; null where nobody has claimed the group
      lag           of all partitions, null where no broker was asked
      partitions[]  topic, partition, stored, committed, beginning, end, lag,
                    epoch, claim_id, pinned, updated_at, age_seconds

    \b
    Example, with OFFSETSTORE_URL set:
      offsetstore status -g billing -b localhost:9092
    """  # noqa: D301 - \b is click's mark, and this is how click wants it
    broker = (
        options.make_broker(bootstrap_servers, broker_option, broker_config, timeout) if bootstrap_servers else None
    )
    with options.open_store(url, schema) as store:
        state = _read(store, group)
    if state.owner is None and not state.rows:
        click.echo(f"The store knows no group {group!r}.", err=True)
        context.exit(ExitCode.NO)
    failure: BrokerError | None = None
    view: BrokerView | None = None
    topics = sorted({tp.topic for tp in state.rows})
    if broker is not None and topics:
        try:
            view = broker.view(kafka_group or group, topics)
        except BrokerError as error:
            failure = error
    partitions = _partitions(state, view)
    if format_ == "json":
        print_json(_document(state, partitions))
    else:
        _print(state, partitions)
    if failure is not None:
        raise failure


def _read(store: OffsetStore, group: str) -> GroupState:
    session = store.database.begin(name="offsetstore:status")
    try:
        owner, rows = session.group(group), session.read_partitions(group)
        # Asked last, so that no age is negative.
        now = session.connection.exec_driver_sql("SELECT clock_timestamp()").scalar_one()
        return GroupState(group, owner, rows, cast("datetime", now), _decision(session, group, owner))
    finally:
        session.rollback()


def _decision(session: Session, group: str, owner: GroupRow | None) -> str | None:
    """Ask the history, and only where nobody's heart beats: it can be long."""
    if owner is None or owner.alive_for is not None:
        return None
    last = next((line for line in reversed(session.history(group)) if line.token == owner.token), None)
    return last.event if last is not None and last.event in _DECISIONS else None


def _partitions(state: GroupState, view: BrokerView | None) -> list[PartitionState]:
    logs: dict[TopicPartition, Watermarks] = {}
    committed: dict[TopicPartition, int] = {}
    if view is not None:
        logs = {
            TopicPartition(topic, number): log
            for topic, topic_log in view.topics.items()
            for number, log in topic_log.partitions.items()
        }
        committed = {tp: offset.next_offset for tp, offset in view.committed.items()}
    found: list[PartitionState] = []
    for tp in sorted(state.rows.keys() | logs.keys()):
        row = state.rows.get(tp)
        age = state.now - row.updated_at if row is not None and row.updated_at is not None else None
        found.append(PartitionState(tp, row, committed.get(tp), logs.get(tp), age))
    return found


def _total_lag(partitions: list[PartitionState]) -> int | None:
    known = [one.lag for one in partitions if one.lag is not None]
    return sum(known) if known else None


def _stored_in_words(row: StoredOffset | None) -> str | None:
    if row is None:
        return None
    return f"{row.next_offset} (pinned)" if row.pinned else str(row.next_offset)


def _print(state: GroupState, partitions: list[PartitionState]) -> None:
    lag = _total_lag(partitions)
    print_lines(f"Group {state.name}: {_owner_in_words(state)}")
    print_table(
        _COLUMNS,
        [
            (
                one.tp,
                _stored_in_words(one.row),
                one.committed,
                one.log.end if one.log else None,
                one.lag,
                one.row.token.epoch if one.row else None,
                _short(one.age),
            )
            for one in partitions
        ],
    )
    if lag is not None:
        print_lines(f"Lag {lag} in {len(partitions)} partitions.")


def _owner_in_words(state: GroupState) -> str:
    owner = state.owner
    if owner is None:
        return "claimed by nobody yet"
    since = f"{_short(state.now - owner.claimed_at)} ago"
    if state.decision is not None:
        return f"epoch {owner.token.epoch} by a {state.decision} of {owner.owner}, {since}; no job has claimed it since"
    if owner.alive_for is None:
        life = "has left"
    elif owner.alive_for < timedelta(0) and not owner.is_live:
        life = f"silent, last heartbeat {_short(-owner.alive_for)} ahead of the database's clock"
    else:
        life = (
            f"{'live' if state.is_live else 'silent'}, last heartbeat {_short(max(timedelta(0), owner.alive_for))} ago"
        )
    return f"epoch {owner.token.epoch} of {owner.owner}, claimed {since}, {life}"


def _short(time: timedelta | None) -> str | None:
    if time is None:
        return None
    seconds = int(time.total_seconds())
    for unit, length in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length}{unit}"
    return f"{seconds}s"


def _document(state: GroupState, partitions: list[PartitionState]) -> dict[str, object]:
    owner = state.owner
    return {
        "group": state.name,
        "owner": {
            "name": owner.owner,
            "epoch": owner.token.epoch,
            "claim_id": str(owner.token.claim_id),
            "claimed_at": owner.claimed_at.isoformat(),
            "heartbeat_age_seconds": owner.alive_for.total_seconds() if owner.alive_for is not None else None,
            "live": state.is_live,
        }
        if owner is not None
        else None,
        "lag": _total_lag(partitions),
        "partitions": [_partition(one) for one in partitions],
    }


def _partition(one: PartitionState) -> dict[str, object]:
    row, log = one.row, one.log
    return {
        "topic": one.tp.topic,
        "partition": one.tp.partition,
        "stored": row.next_offset if row else None,
        "committed": one.committed,
        "beginning": log.beginning if log else None,
        "end": log.end if log else None,
        "lag": one.lag,
        "epoch": row.token.epoch if row else None,
        "claim_id": str(row.token.claim_id) if row else None,
        "pinned": row.pinned if row else None,
        "updated_at": row.updated_at.isoformat() if row and row.updated_at else None,
        "age_seconds": one.age.total_seconds() if one.age is not None else None,
    }

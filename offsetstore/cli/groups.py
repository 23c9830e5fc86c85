"""Consumer groups: list, copy, rename and delete them (``offsetstore groups``), ``pause``, ``resume``, ``status``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

import click

from offsetstore.cli import options, sources
from offsetstore.cli.asking import (
    AskOptions,
    Decide,
    decide_options,
    expect_no_group,
    page_of_groups,
    table_options,
)
from offsetstore.cli.output import document, fail_unknown_source
from offsetstore.cli.tables import Table
from offsetstore.errors import BrokerError
from offsetstore.offset_store import OffsetStore
from offsetstore.offsets import TopicPartition
from offsetstore.operations import people
from offsetstore.operations.group_state import GroupState, MemberState, PartitionState
from offsetstore.operations.group_status import (
    GroupStatus,
    behind,
    in_words,
    notes,
    state_of,
    state_of_owner,
)
from offsetstore.operations.people import ListedGroup, OutboxView
from offsetstore.protocol.database import TAKING
from offsetstore.protocol.letters import OPEN
from offsetstore.protocol.outbox import OutboxState
from offsetstore.protocol.store_facts import StoreIdentity
from offsetstore.text import command, counted, numbered, short

_LIST_COLUMNS: Final = ("group", "state", "?#epoch", "?#partitions", "#changed", "#letters", "?topics")
_LAG_COLUMNS: Final = ("group", "state", "#lag", "#behind", *_LIST_COLUMNS[2:])
_LIST_KEYS: Final = (
    "group state=state epoch=owner.token.epoch owner=owner.owner claimed_at=owner.claimed_at "
    "heartbeat_age_seconds=owner.alive_for paused=owner.pause partitions topics changed_seconds_ago=advanced_for "
    "dead_letters"
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
@table_options
def list_groups(*, ask: AskOptions) -> None:
    """List all consumer groups of the store.

    A group is "live" while its job sends heartbeats, "failed" if an error ended the last job, ends each soon after its
    start, or refuses that, "silent" if its heartbeats stopped without notice, "fenced" if the group was taken from it,
    "ended" if it ended cleanly or an operator has decided something since, and "paused" while an operator has paused
    it, whatever its job does. "changed" is the time since a stored offset last changed. "epoch" is the number of the
    last claim or decision: `offsetstore status --help`. "letters" counts open dead letters. A name that was given up,
    or deleted, has no partitions.

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
    ask.show({"groups": [_listed(row, None) for row in found]}, _list_table(found, {}, has_lag=False))


def _listed(row: ListedGroup, status: GroupStatus | None) -> dict[str, object]:
    return document(row, _LIST_KEYS, state=state_of_owner(row.owner) if status is None else status.state)


def _list_table(found: Sequence[ListedGroup], lags: Mapping[str, GroupStatus], *, has_lag: bool) -> Table:
    rows: list[tuple[object, ...]] = []
    for row in found:
        status = lags.get(row.group)
        words = in_words(row.owner, None if status is None else status.state)
        lag = (None, None) if status is None else (status.lag, behind(status))
        rows.append(
            (
                row.group,
                words,
                *(lag if has_lag else ()),
                row.owner.token.epoch,
                row.partitions,
                None if row.advanced_for is None else short(row.advanced_for),
                row.dead_letters,
                ", ".join(row.topics),
            )
        )
    return Table(_LAG_COLUMNS if has_lag else _LIST_COLUMNS, rows)


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
      offsetstore groups copy -g billing --to billing-v2 \\
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
      offsetstore groups rename -g billing --to invoicing \\
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
      offsetstore groups delete -g billing --topic refunds \\
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


_PAGE: Final = 100  # groups
_STATUS_COLUMNS: Final = ("partition", "#stored", "?#committed", "#end", "#lag", "?#epoch", "#age")
_MEMBERS: Final = ("member", "state", "?#heartbeat", "?#count", "partitions")
_STATUS_KEYS: Final = (
    "group state owner[name=owner epoch=token.epoch claim_id=token.claim_id claimed_at heartbeat_age_seconds=alive_for "
    "live=is_live state] members=of_members[member_id=member.member_id name=member.owner "
    "joined_at=member.joined_at heartbeat_age_seconds=member.alive_for live=member.is_live state partitions[*.]] "
    "paused=pause database dead_letters lag partitions[*@ stored=stored.next_offset "
    "committed=committed.next_offset beginning=log.beginning end=log.end lag headroom beyond_end "
    "epoch=stored.token.epoch claim_id=stored.token.claim_id pinned=stored.pinned contested=stored.contested "
    "suspect=stored.suspect "
    "error updated_at=stored.updated_at age_seconds=age] outbox[rows oldest row topic refused more] "
    f"{sources.KEYS}"
)
_OUTBOX: Final = "rows oldest row topic refused more"


@click.command()
@options.any_group_option
@options.broker_options(required=False, use="; without them, only the store is shown")
@click.option("--limit", "-n", type=options.COUNT, metavar="N", help="Without --group: groups per page (100).")
@click.option("--after", metavar="GROUP", help="Without --group: continue after this group.")
@table_options
def status(*, group: str | None, kafka: options.Kafka, limit: int | None, after: str | None, ask: AskOptions) -> None:
    """Show all groups, or one group's owner, offsets and lag.

    Without --group, each group has a line, as in `offsetstore groups list`; with brokers, also its lag, and whether it
    is "stalled": records are unread, and the job is silent or has stored nothing for 15 minutes.

    Each start of a job makes a claim of the group, and each claim has a higher epoch than the one before; so has a
    decision that takes the group from a job, such as a reset. A job writes only while the partition's epoch is its
    own. The lag is the number of offsets from the stored one to the end of the log. The age is the time since the
    stored offset last changed, by the database's clock. An offset is marked "pinned" if it was set by a decision:
    it takes precedence over Kafka's offset until a job has copied it there. It is marked "contested" if another
    application or a copy of the database used the group in Kafka while the job ran: see the page 'A refused start'
    of the documentation. It is marked "suspect" if the log is known to have lost records: each start fails until a
    reset. The lag of an offset beyond the log's end is not known, nor is that of an offset whose topic was created
    anew, or which belongs to another cluster. While the group is paused, its job waits. If the store's tables are
    in another database than before, or it is not known in which one, that is said too.

    The outbox and its relay have a line each once there are rows, or a relay was started. For the source of rows that
    an application has put into the outbox (offsetstore.outbox), in place of a group, these two are all.

    The processes of a consumer share the group's claim, and so its epoch, as members of one fleet: each is listed with
    the partitions that it was the last to take.

    If Kafka does not answer, the stored offsets are shown all the same, with exit code 4. Exit code 1 if the store
    does not know the group, and no row of the outbox has its name. Dead letters are counted if their records are
    not in the results, and may still get there.

    \b
    Keys of --format json without --group:
      group     null
      next      for --after; null if this is the last page
      groups[]  as of `offsetstore groups list`, and lag, behind_seconds (null
                without brokers, or if unknown)
      outbox[]  name (of a group, or an application's source), rows, oldest,
                row, topic, refused, more, as below
      relay     as below

    \b
    Keys of --format json if --group is an application's source:
      source, outbox, relay
                as below

    \b
    Keys of --format json with --group:
      group
      state         live, paused, stalled, silent, ended, failed or fenced
      owner         name, epoch, claim_id, claimed_at, heartbeat_age_seconds,
                    live, state of its job (live, silent, ended, failed or
                    fenced)
      members[]     of a fleet: member_id, name, joined_at, heartbeat_age_seconds,
                    live, state (live or silent), partitions[] (topic,
                    partition); its member_id is the claim_id of a partition
                    that it has taken
      paused        at, until, reason; null if the group is not paused
      database      "home", "moved" if the tables were in another database,
                    "unknown" if that can't be told
      dead_letters  dead, requested: how many there are; job_replays: whether
                    the owner's job replays requested ones, null if not known
      lag           of all partitions, null if one is not known
      partitions[]  topic, partition, stored, committed, beginning, end, lag,
                    headroom, beyond_end, epoch, claim_id, pinned, contested,
                    suspect, error, updated_at, age_seconds
      outbox        rows: how many are not known to be in Kafka yet; oldest:
                    when the oldest was written; row, topic: the first of
                    them, which may block others of its topic; refused: how
                    many Kafka refuses; more: whether the outbox has so many
                    rows that not all were counted; null if there are none
      relay         of the outbox: state (live, stalled, silent, ended, failed,
                    fenced, or unknown: one of an earlier release), owner,
                    since, until (its last heartbeat or end), sent_at, error;
                    null if none was ever started

    \b
    Examples, with OFFSETSTORE_URL set:
      offsetstore status
      offsetstore status -g billing -b localhost:9092
    """  # noqa: D301 - \b is click's mark, and this is how click wants it
    if group is None:
        _show_groups(kafka, ask, after, limit or _PAGE)
        return
    expect_no_group(group, limit=limit, after=after)
    with ask.open() as store:
        state, identity = store.group_state(group, kafka.find(), kafka_group=kafka.group), store.identity()
        if state is None:
            _show_source(store, group, ask)
            return
        # Its own rows are told apart from those of others, which one relay sends, too.
        outbox = sources.read_outbox(store)
        schema = store.database.schema
    letters = {**{name: state.dead_letters.get(name, 0) for name in OPEN}, "job_replays": state.replays_letters}
    database = "moved" if identity.is_elsewhere else "home" if identity.is_compared else "unknown"
    rows = [_partition_row(tp, part) for tp, part in state.partitions.items()]
    made = document(state, _STATUS_KEYS, state=state_of(state), database=database, dead_letters=letters)
    members = [Table(_MEMBERS, [*map(_member_row, state.of_members)])] if state.of_members else []
    ask.show(made, *_head(state, identity, schema, outbox), *members, Table(_STATUS_COLUMNS, rows), *_notes(state))
    # After the answer: what is stored is shown all the same.
    if (error := _unanswered(state)) is not None:
        raise error


def _show_groups(kafka: options.Kafka, ask: AskOptions, after: str | None, limit: int) -> None:
    if kafka.group is not None:
        raise click.UsageError("--kafka-group is the name of one group: give --group, too.")
    broker = kafka.find()
    with ask.open() as store:
        page = page_of_groups(store, after, limit)
        found = people.ask(store.database, lambda session: people.read_groups(session, page.names))
        lag = None if broker is None else store.lag(page.names, broker)
        outbox = sources.read_outbox(store)
    lags = {} if lag is None else {name: GroupStatus.of(group) for name, group in lag.groups.items()}
    made: list[dict[str, object]] = []
    for row in found:
        status = lags.get(row.group)
        made.append({**_listed(row, status), **document(status, "lag behind_seconds=lag_seconds")})
    notes = [f"{name}: {status.error}." for name, status in lags.items() if status.error is not None]
    notes += sources.outbox_lines(outbox)
    notes += ["0 groups: no job has claimed one yet."] if not found and after is None else page.notes
    table = _list_table(found, lags, has_lag=broker is not None)
    rows = [document(state, f"name {_OUTBOX}", name=name) for name, state in outbox.names.items()]
    more = {"outbox": rows, **document(outbox, sources.KEYS)}
    ask.show({"group": None, "next": page.next, "groups": made, **more}, *([table] if found else []), *notes)
    # After the answer: what is stored is shown all the same.
    if lag is not None and lag.broker_error is not None:
        raise lag.broker_error


def _show_source(store: OffsetStore, name: str, ask: AskOptions) -> None:
    """Show the rows of an application, whose name is no group's, and has no state."""
    found = sources.source(store, name)
    if found is None:
        fail_unknown_source(store, name)
    outbox = found.names.get(name, OutboxState())
    made = document(outbox, f"source outbox[{_OUTBOX}]", source=name, outbox=outbox)
    ask.show({**made, **document(found, sources.KEYS)}, *sources.source_lines(name, found))


def _unanswered(state: GroupState) -> BrokerError | None:
    """Why some of what Kafka has is missing."""
    of_group = state.kafka.error if state.kafka is not None and state.kafka.committed is None else None
    errors = (state.broker_error, of_group, *(topic.error for topic in state.topics.values()))
    return next((error for error in errors if isinstance(error, BrokerError)), None)


def _head(state: GroupState, identity: StoreIdentity, schema: str | None, outbox: OutboxView) -> Iterator[str]:
    yield f"Group {state.group}: {_owner_in_words(state)}"
    if identity.is_elsewhere:
        yield "The store's tables are in another database than before: no job starts. See `offsetstore store --help`."
    elif not identity.is_compared:
        yield "It is not known in which database the store is, so a copy of the database is not noticed."
    if state.pause is not None:
        yield f"The group is {state.pause}."
    if state.outbox is not None:
        yield from _outbox(state.outbox, state.read_at, command("outbox", "list", "-g", state.group, schema=schema))
    yield from sources.outbox_lines(outbox, but_for=state.group)
    if state.is_live and state.owner.state == "failed":
        failures = counted(state.owner.failures, "run")
        yield (
            f"{failures} failed or fell silent in 15 minutes, so the group counts as failed until a run has lasted a "
            "minute: see `offsetstore errors`."
        )
    if waiting := sum(state.dead_letters.values()):
        requested = state.dead_letters.get("requested", 0)
        by = "" if state.unreplayed is None else f" {state.unreplayed}"
        yield f"{counted(waiting, 'dead letter')}{f', {requested} to be replayed{by}' if requested else ''}."


def _outbox(outbox: OutboxState, at: datetime, listing: str) -> Iterator[str]:
    if outbox.oldest is not None:
        more = " or more" if outbox.more else ""
        first = f"The first is row {outbox.row}, for topic {outbox.topic}."
        yield f"{counted(outbox.rows, 'row')}{more} in the outbox, the oldest for {short(at - outbox.oldest)}. {first}"
    if outbox.refused:
        yield f"Kafka refuses {counted(outbox.refused, 'row')} of the outbox: `{listing}` names them."


def _partition_row(tp: TopicPartition, part: PartitionState) -> tuple[object, ...]:
    committed = part.committed.next_offset if part.committed else None
    epoch = part.stored.token.epoch if part.stored else None
    end = part.log.end if part.log else None
    stored = None
    if part.stored is not None:
        found = (("pinned", part.stored.pinned), ("contested", part.stored.contested), ("suspect", part.is_suspect))
        marks = [mark for mark, is_set in found if is_set]
        stored = f"{part.stored.next_offset} ({', '.join(marks)})" if marks else str(part.stored.next_offset)
    return tp, stored, committed, end, part.lag, epoch, None if part.age is None else short(part.age)


def _member_row(state: MemberState) -> tuple[object, ...]:
    member = state.member
    # A heartbeat may be ahead of the database's clock as it was read.
    age = short(max(timedelta(0), member.alive_for))
    return (
        member.owner,
        state.state,
        age,
        len(state.partitions),
        numbered(state.partitions) or None,
    )


def _notes(state: GroupState) -> Iterator[str]:
    yield from (f"{name}: {topic.error.what}." for name, topic in state.topics.items() if topic.error is not None)
    for tp, part in state.partitions.items():
        yield from (f"{tp}: {note}" for note in notes(part))
    if state.lag is not None:
        yield f"Lag {state.lag} in {counted(len(state.partitions), 'partition')}."


def _owner_in_words(state: GroupState) -> str:
    owner = state.owner
    since = f"{short(state.read_at - owner.claimed_at)} ago"
    if state.decision is not None:
        done = TAKING[state.decision]
        return f"epoch {owner.token.epoch}, {done} by {owner.owner} {since}; no job has claimed it since"
    life, seen = owner.state, owner.alive_for
    if seen is not None and owner.state == "silent" and seen < timedelta(0):
        life = f"silent, last heartbeat {short(-seen)} ahead of the database's clock"
    elif seen is not None and (owner.is_live or owner.state == "silent"):
        life = f"{owner.state}, last heartbeat {short(max(timedelta(0), seen))} ago"
    of = owner.owner if owner.fleet is None else f"a fleet, {counted(len(state.of_members), 'member')}"
    return f"epoch {owner.token.epoch} of {of}, claimed {since}, {life}"

"""Reads that only people need: an overview of many groups, history, runs, errors, and the store's facts.

A job's transaction needs none of them, so a store in memory has none of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import groupby
from operator import attrgetter
from typing import Any, Final, NamedTuple, TypeVar

from offsetstore.errors import ConfigurationError
from offsetstore.offsets import StoredOffset, Token, TopicPartition
from offsetstore.postgres import statements as sql
from offsetstore.postgres.errors import translated
from offsetstore.postgres.runs import REPLAYS
from offsetstore.postgres.schema import HEAD, metadata
from offsetstore.postgres.session import PostgresSession, group_row, history_event, stored_rows
from offsetstore.protocol.arguments import check_whole
from offsetstore.protocol.database import EVENTS, TAKING, Database, GroupRow, HistoryEvent, Session
from offsetstore.protocol.letters import LetterState
from offsetstore.protocol.outbox import MOST_COUNTED, OutboxState, RelayStatus, relay_state
from offsetstore.protocol.runs import (
    SOURCES,
    Ending,
    ErrorSource,
    FleetMember,
    JobError,
    Run,
    RunStatus,
    is_live,
    run_state,
)
from offsetstore.protocol.store_facts import runs_on
from offsetstore.store.sessions import read

_T = TypeVar("_T")
_Line = TypeVar("_Line", "HistoryEvent", "JobError", "ErrorOfGroup")

_INTERVAL: Final = 1.0
# A line has the time of its statement and not of the COMMIT, so a line that is older than the last may come later.
_OVERLAP: Final = timedelta(hours=1)


def people(session: Session) -> PostgresSession:
    """Return the session, for SQL that a job never needs.

    :raises ConfigurationError: the store is in memory.
    """
    if not isinstance(session, PostgresSession):
        raise ConfigurationError(
            "a store in memory has a job's side only",
            expected="a store in PostgreSQL, for dead letters, runs, errors, samples, lag, facts, groups and names",
            next_step="In tests, use the pytest fixture offsetstore_database (offsetstore.testing.fixtures); for dead "
            "letters in memory, store.dead_letters and store.decide_letters.",
        )
    return session


def ask(database: Database, query: Callable[[PostgresSession], _T], *, lock_timeout: float | None = None) -> _T:
    return read(database, lambda session: query(people(session)), lock_timeout=lock_timeout)


@dataclass(frozen=True, slots=True)
class ListedGroup:
    """One line of a list of groups.

    :param partitions: how many partitions have stored offsets; 0 for a name that was given up.
    :param topics: the topics of these partitions, in order.
    :param advanced_for: how long no stored offset has changed, by the database's clock; ``None`` without offsets.
    :param dead_letters: how many dead letters are open.
    """

    group: str
    owner: GroupRow
    partitions: int
    topics: tuple[str, ...]
    advanced_for: timedelta | None
    dead_letters: int


class OutboxView(NamedTuple):
    """What is in the outbox, by the names of groups and of applications' sources, and its relay, at one moment."""

    at: datetime
    names: Mapping[str, OutboxState]
    relay: RelayStatus | None


class ErrorOfGroup(NamedTuple):
    """An error in a list of all groups."""

    group: str
    error: JobError

    @property
    def at(self) -> datetime | None:
        return self.error.at


@dataclass(frozen=True, slots=True)
class LastRun:
    """The run of a group's last claim, as of the job's last heartbeat; for a fleet, the sum of its members' runs.

    ``batch_since`` is when the batch in flight began, ``None`` if there is none. The other fields are those of `Run`. A
    fleet replays letters if all live members do that have said whether they do.
    """

    batch_since: datetime | None
    ending: Ending | None
    counters: Mapping[str, int]
    memory: int | None
    topics: tuple[str, ...] = ()
    replays_letters: bool | None = None


@dataclass(frozen=True, slots=True)
class Requested:
    """Letters of one partition that are to be replayed: how many, and when the first of them was requested."""

    letters: int
    since: datetime | None


@dataclass(frozen=True, slots=True)
class StoreOverview:
    """What the database has of many groups, ``at`` a time of its own clock.

    ``groups`` were claimed at least once, by name. ``partitions`` holds their rows without the metadata, in order
    of (topic, partition), and ``letters`` how many of their dead letters are open; groups without any are left out of
    both. ``runs`` holds the run of their last claim; groups that were moved since then, or whose job recorded nothing,
    are left out. ``members`` holds the members of the fleets that have groups. ``outbox`` holds what groups have in the
    outbox; groups without rows are left out. ``outbox_sent`` is how many rows relays have sent in all. ``requested``
    holds the letters that are to be replayed, of each partition with such letters. ``relay`` is the relay that has the
    outbox, ``None`` if there never was one. ``decisions`` are those of `read_group`. ``oldest_transaction`` is how long
    the oldest open transaction that this role may see has been running.
    """

    at: datetime
    groups: Mapping[str, GroupRow]
    partitions: Mapping[str, Mapping[TopicPartition, StoredOffset]]
    letters: Mapping[str, Mapping[LetterState, int]]
    oldest_transaction: timedelta
    runs: Mapping[str, LastRun]
    members: Mapping[str, Sequence[FleetMember]] = field(default_factory=dict[str, "Sequence[FleetMember]"])
    outbox: Mapping[str, OutboxState] = field(default_factory=dict[str, OutboxState])
    outbox_sent: int = 0
    requested: Mapping[str, Mapping[TopicPartition, Requested]] = field(
        default_factory=dict[str, "Mapping[TopicPartition, Requested]"]
    )
    relay: RelayStatus | None = None
    decisions: Mapping[str, str] = field(default_factory=dict[str, str])


_ASKED: Final = "(CAST(:groups AS text[]) IS NULL OR {group} = ANY(CAST(:groups AS text[])))"

_RECENT: Final = """(SELECT r.started_at, r.seen_at, r.ending FROM {s}%s AS r WHERE r.consumer_group = g.consumer_group
                  ORDER BY %s LIMIT 10)"""

# What people ask, and no batch: how a fleet's last member ended, since the fleet ends as that member does; how many of
# the last runs failed or fell silent in 15 minutes, 0 once one has run for a minute (`offsetstore.protocol.runs.LOOP`);
# and whether the last start was refused (decision 0103). The group is a range as in HISTORY.
_SEEN: Final = f"""
       CASE WHEN g.fleet_id = g.claim_id THEN (
           SELECT m.ending FROM {{s}}member_runs AS m
           WHERE m.consumer_group = g.consumer_group AND m.epoch = g.epoch
           ORDER BY coalesce(m.ended_at, m.seen_at) DESC LIMIT 1) END AS fleet_ending,
       CASE WHEN (g.fleet_id = g.claim_id) IS NOT TRUE AND g.claimed_at < clock_timestamp() - interval '1 minute'
                 OR EXISTS (
                     SELECT FROM {{s}}group_members AS m
                     WHERE m.consumer_group = g.consumer_group AND m.fleet_id = g.claim_id
                       AND m.joined_at < clock_timestamp() - interval '1 minute'
                       AND m.beat_at > clock_timestamp() - interval '15 seconds')
            THEN 0
            ELSE (SELECT count(*)
                  FROM ({_RECENT % ("job_runs", "r.epoch DESC")}
                        UNION ALL {_RECENT % ("member_runs", "r.epoch DESC, r.started_at DESC")}) AS recent
                  WHERE started_at > clock_timestamp() - interval '15 minutes'
                    AND (ending = 'failed' OR (ending IS NULL AND seen_at < clock_timestamp() - interval '15 seconds')))
       END AS failures,
       (SELECT e.source = 'start' AND e.epoch = g.epoch
               AND e.at > greatest(g.claimed_at, r.ended_at, r.seen_at, (
                   SELECT max(coalesce(m.ended_at, m.seen_at)) FROM {{s}}member_runs AS m
                   WHERE m.consumer_group = g.consumer_group AND m.epoch = g.epoch))
        FROM {{s}}job_errors AS e
        WHERE (e.consumer_group, e.id) >= (g.consumer_group, 0)
          AND (e.consumer_group, e.id) < (g.consumer_group, 9223372036854775807)
        ORDER BY e.consumer_group DESC, e.id DESC LIMIT 1) AS is_refused"""  # noqa: S608 - constants alone

GROUPS: Final = f"""
SELECT g.consumer_group, {sql.OWNER}, {_SEEN}, p.partitions, p.topics, p.advanced_for, l.dead_letters
FROM {sql.OWNERS}
CROSS JOIN LATERAL (SELECT count(*) AS partitions, array_agg(DISTINCT p.topic ORDER BY p.topic) AS topics,
                           clock_timestamp() - max(p.updated_at) AS advanced_for
                    FROM {{s}}kafka_partitions AS p WHERE p.consumer_group = g.consumer_group) AS p
CROSS JOIN LATERAL (SELECT count(*) AS dead_letters FROM {{s}}dead_letters AS l
                    WHERE l.consumer_group = g.consumer_group AND l.state IN ('dead', 'requested')) AS l
WHERE g.epoch > 0 AND {_ASKED.format(group="g.consumer_group")}
ORDER BY g.consumer_group
"""  # noqa: S608 - constants alone

# A page of names: for reads that go group by group.
NAMES: Final = """
SELECT consumer_group FROM {s}consumer_groups
WHERE epoch > 0 AND (CAST(:after AS text) IS NULL OR consumer_group > CAST(:after AS text))
ORDER BY consumer_group LIMIT :limit
"""

OVERVIEW_GROUPS: Final = f"""
SELECT g.consumer_group, {sql.OWNER}, {_SEEN}
FROM {sql.OWNERS}
WHERE g.epoch > 0 AND {_ASKED.format(group="g.consumer_group")}
ORDER BY g.consumer_group
"""  # noqa: S608 - constants alone

OVERVIEW_OFFSETS: Final = f"""
SELECT p.consumer_group, p.topic, p.partition, p.next_offset, NULL AS metadata, p.topic_id, p.cluster_id, p.epoch,
       p.claim_id, p.transaction_id, p.pinned, p.updated_at, p.pinned_epoch, p.contested, p.epoch_offset,
       p.leader_epoch, p.suspect, p.suspect_at
FROM {{s}}kafka_partitions AS p
WHERE {_ASKED.format(group="p.consumer_group")}
ORDER BY p.consumer_group, p.topic, p.partition
"""  # noqa: S608 - constants alone

# Group by group, so that an index is used, however many letters are settled.
OVERVIEW_LETTERS: Final = f"""
SELECT g.consumer_group, l.state, l.letters
FROM {{s}}consumer_groups AS g
CROSS JOIN LATERAL (SELECT l.state, count(*) AS letters FROM {{s}}dead_letters AS l
                    WHERE l.consumer_group = g.consumer_group AND l.state IN ('dead', 'requested')
                    GROUP BY l.state) AS l
WHERE {_ASKED.format(group="g.consumer_group")}
"""  # noqa: S608 - constants alone

# By partition, since a job replays only letters of the topics that it reads (decision 0104).
REQUESTED: Final = f"""
SELECT l.consumer_group, l.topic, l.partition, count(*) AS letters, min(l.decided_at) AS since
FROM {{s}}dead_letters AS l
WHERE l.state = 'requested' AND {_ASKED.format(group="l.consumer_group")}
GROUP BY l.consumer_group, l.topic, l.partition
"""  # noqa: S608 - constants alone

OVERVIEW_RUNS: Final = f"""
SELECT g.consumer_group, CASE WHEN r.phase = 'batch' THEN r.phase_since END AS batch_since, r.ending,
       r.counters - '{REPLAYS}' AS counters, r.memory_bytes, to_jsonb(r.topics) AS topics,
       CAST(r.counters ->> '{REPLAYS}' AS boolean) AS replays
FROM {{s}}consumer_groups AS g
JOIN {{s}}job_runs AS r ON r.consumer_group = g.consumer_group AND r.epoch = g.epoch AND r.claim_id = g.claim_id
WHERE {_ASKED.format(group="g.consumer_group")}
UNION ALL
SELECT g.consumer_group, f.batch_since, CASE WHEN f.live = 0 THEN f.ending END, c.counters, f.memory_bytes, f.topics,
       f.replays
FROM {{s}}consumer_groups AS g
CROSS JOIN LATERAL (
    SELECT count(*) AS runs, count(*) FILTER (WHERE is_live) AS live,
           min(phase_since) FILTER (WHERE is_live AND phase = 'batch') AS batch_since,
           CAST(sum(memory_bytes) FILTER (WHERE is_live) AS bigint) AS memory_bytes,
           (array_agg(ending ORDER BY until DESC))[1] AS ending,
           (array_agg(to_jsonb(topics) ORDER BY is_live DESC, until DESC))[1] AS topics,
           coalesce(bool_and(replays) FILTER (WHERE is_live), (array_agg(replays ORDER BY until DESC))[1]) AS replays
    FROM (SELECT m.*, coalesce(m.ended_at, m.seen_at) AS until,
                 CAST(m.counters ->> '{REPLAYS}' AS boolean) AS replays,
                 m.ended_at IS NULL AND m.seen_at > clock_timestamp() - interval '15 seconds' AS is_live
          FROM {{s}}member_runs AS m
          WHERE m.consumer_group = g.consumer_group AND m.epoch = g.epoch) AS of_members) AS f
CROSS JOIN LATERAL (
    SELECT coalesce(jsonb_object_agg(counted.key, counted.number), '{{}}') AS counters
    FROM (SELECT n.key, sum(CAST(n.value AS bigint)) AS number
          FROM {{s}}member_runs AS m CROSS JOIN LATERAL jsonb_each(m.counters - '{REPLAYS}') AS n
          WHERE m.consumer_group = g.consumer_group AND m.epoch = g.epoch
          GROUP BY n.key) AS counted) AS c
WHERE g.fleet_id = g.claim_id AND f.runs > 0 AND {_ASKED.format(group="g.consumer_group")}
"""  # noqa: S608 - constants alone

# Only members of fleets that have their groups now, as in MEMBERS.
OVERVIEW_MEMBERS: Final = f"""
SELECT m.consumer_group, m.member_id, m.owner, m.joined_at, clock_timestamp() - m.beat_at AS alive_for
FROM {{s}}group_members AS m
JOIN {{s}}consumer_groups AS g
  ON g.consumer_group = m.consumer_group AND g.claim_id = m.fleet_id AND g.fleet_id = m.fleet_id
WHERE {_ASKED.format(group="m.consumer_group")}
ORDER BY m.consumer_group, m.joined_at, m.member_id
"""  # noqa: S608 - constants alone

# Reads a limited number of rows, by the primary key: a probe every few seconds must not read a backlog of millions.
OUTBOX_STATES: Final = f"""
WITH waiting AS (SELECT consumer_group, created_at, id FROM {{s}}outbox ORDER BY id LIMIT {MOST_COUNTED}),
aside AS (SELECT consumer_group FROM {{s}}outbox_refused ORDER BY id LIMIT {MOST_COUNTED})
SELECT found.*, (SELECT o.topic FROM {{s}}outbox AS o WHERE o.id = found.first) AS topic
FROM (
SELECT consumer_group, max(rows) AS rows, max(oldest) AS oldest, max(refused) AS refused, bool_or(more) AS more,
       min(first) AS first
FROM (SELECT consumer_group, count(*) AS rows, min(created_at) AS oldest, 0 AS refused,
             (SELECT count(*) FROM waiting) = {MOST_COUNTED} AS more, min(id) AS first
      FROM waiting WHERE {_ASKED.format(group="consumer_group")} GROUP BY consumer_group
      UNION ALL
      SELECT consumer_group, 0, NULL, count(*), false, NULL
      FROM aside WHERE {_ASKED.format(group="consumer_group")} GROUP BY consumer_group) AS both_tables
GROUP BY consumer_group) AS found
"""  # noqa: S608 - constants alone

# A live run comes before one that was started later and could not begin, but not if another relay has taken the outbox
# since it was started: at rest it learns that only with the next rows to send (decision 0103). Of runs that are over,
# the last one counts. ``failures`` are as in SEEN, of runs that were started before it.
RELAY: Final = """
SELECT o.owner AS taken_by, o.taken_at, r.owner, r.started_at, r.ending, r.sent_at, r.error, r.until,
       clock.now - r.seen_at AS silence, clock.now AS at, clock.now - first.created_at AS waited,
       CASE WHEN r.started_at < clock.now - interval '1 minute' THEN 0
            ELSE (SELECT count(*) FROM (SELECT f.* FROM {s}relay_runs AS f WHERE f.started_at < r.started_at
                                        ORDER BY f.started_at DESC LIMIT 10) AS f
                  WHERE f.started_at > clock.now - interval '15 minutes'
                    AND (f.ending = 'failed'
                         OR (f.ending IS NULL AND f.seen_at < clock.now - interval '15 seconds'))) END AS failures
FROM (SELECT clock_timestamp() AS now) AS clock
LEFT JOIN {s}outbox_relays AS o ON o.shard = 0
LEFT JOIN LATERAL (SELECT c.*, coalesce(c.ended_at, c.seen_at) AS until FROM {s}relay_runs AS c
                   ORDER BY (c.owner <> o.owner AND c.started_at < o.taken_at) IS NOT TRUE DESC,
                            (c.ended_at IS NULL AND c.seen_at > clock.now - interval '15 seconds') DESC,
                            until DESC, c.started_at DESC
                   LIMIT 1) AS r ON true
LEFT JOIN LATERAL (SELECT w.created_at FROM {s}outbox AS w ORDER BY w.id LIMIT 1) AS first ON true
WHERE o.shard IS NOT NULL OR r.run_id IS NOT NULL
"""

NOW: Final = "SELECT clock_timestamp() AS at"

OUTBOX_SENT: Final = "SELECT sent FROM {s}outbox_relays WHERE shard = 0"

# Of other roles' transactions, the server shows when they began to members of pg_read_all_stats alone.
OLDEST_TRANSACTION: Final = """
SELECT clock_timestamp() AS at,
       greatest(interval '0', clock_timestamp() - least(
           (SELECT min(a.xact_start) FROM pg_stat_activity AS a
            WHERE a.datname = current_database() AND a.backend_type = 'client backend'),
           (SELECT min(x.prepared) FROM pg_prepared_xacts AS x WHERE x.database = current_database()))) AS oldest
"""


def read_overview(session: PostgresSession, groups: Collection[str] | None) -> StoreOverview:
    """Read these groups, or all groups if ``None``, in one round trip."""
    asked = None if groups is None else list(groups)
    with translated():
        owners, offsets, letters, requested, runs, members, outbox, sent, relay, oldest = session.together(
            OVERVIEW_GROUPS,
            OVERVIEW_OFFSETS,
            OVERVIEW_LETTERS,
            REQUESTED,
            OVERVIEW_RUNS,
            OVERVIEW_MEMBERS,
            OUTBOX_STATES,
            OUTBOX_SENT,
            RELAY,
            OLDEST_TRANSACTION,
            groups=asked,
        )
    counts: dict[str, dict[LetterState, int]] = {}
    for row in letters.rows:
        counts.setdefault(row.consumer_group, {})[row.state] = row.letters
    asked_for: dict[str, dict[TopicPartition, Requested]] = {}
    for row in requested.rows:
        tp = TopicPartition(row.topic, row.partition)
        asked_for.setdefault(row.consumer_group, {})[tp] = Requested(row.letters, row.since)
    by_group = groupby(offsets.rows, key=attrgetter("consumer_group"))
    fleets: dict[str, list[FleetMember]] = {}
    for group, *member in members.rows:
        fleets.setdefault(group, []).append(FleetMember(*member))
    [last] = oldest.rows
    return StoreOverview(
        last.at,
        {row.consumer_group: _seen_row(row) for row in owners.rows},
        {name: stored_rows(rows) for name, rows in by_group},
        counts,
        last.oldest,
        {
            row.consumer_group: LastRun(
                row.batch_since, row.ending, row.counters, row.memory_bytes, tuple(row.topics), row.replays
            )
            for row in runs.rows
        },
        fleets,
        _outbox_states(outbox.rows),
        sum(row.sent for row in sent.rows),
        requested=asked_for,
        relay=_relay_status(relay.rows),
    )


def read_outbox(session: PostgresSession, name: str | None = None) -> OutboxView:
    """Read what is in the outbox, or what this group or source has there, in one round trip."""
    asked = None if name is None else [name]
    with translated():
        states, relay, now = session.together(OUTBOX_STATES, RELAY, NOW, groups=asked)
    return OutboxView(now.rows[0].at, _outbox_states(states.rows), _relay_status(relay.rows))


def _outbox_states(rows: Iterable[Any]) -> dict[str, OutboxState]:
    return {
        row.consumer_group: OutboxState(row.rows, row.oldest, row.refused, row.more, row.first, row.topic)
        for row in rows
    }


def read_group(session: PostgresSession, group: str) -> StoreOverview:
    """Read one group, and what an operator has decided about it since its last claim."""
    found = read_overview(session, [group])
    owner = found.groups.get(group)
    # The token of a decision has no heartbeat, so with one it is a job that has the group.
    if owner is None or owner.alive_for is not None:
        return found
    last = session.history(group, events=list(TAKING), limit=1)
    return replace(found, decisions={group: last[0].event}) if last and last[0].token == owner.token else found


def _relay_status(rows: Sequence[Any]) -> RelayStatus | None:
    if not rows:
        return None
    [row] = rows
    unknown = RelayStatus("unknown", row.taken_by, row.taken_at)
    if row.until is None:
        return unknown
    state = run_state(row.ending, row.silence, row.failures)
    # A live relay may not know yet that it was replaced: at rest it learns that with the next rows.
    told, may_be_other = (row.started_at, row.owner != row.taken_by) if state == "live" else (row.until, True)
    if may_be_other and row.taken_at is not None and row.taken_at > told:
        return unknown
    found = relay_state(state, waited=row.waited, idle=row.at - (row.sent_at or row.started_at))
    return RelayStatus(found, row.owner, row.started_at, row.until, row.sent_at, row.error)


# The group's next token may be a reset's or a rename's, which is no run: then the group's own row has the time. Members
# of a fleet share an epoch.
RUNS: Final = """
SELECT * FROM (
SELECT r.*, coalesce(min(r.started_at) OVER (ORDER BY r.epoch RANGE BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING),
                     CASE WHEN g.epoch > r.epoch THEN g.claimed_at END) AS next_at, clock_timestamp() AS read_at
FROM (SELECT j.*, false AS is_member FROM {s}job_runs AS j WHERE j.consumer_group = :group
      UNION ALL SELECT m.*, true FROM {s}member_runs AS m WHERE m.consumer_group = :group) AS r
LEFT JOIN {s}consumer_groups AS g ON g.consumer_group = r.consumer_group
ORDER BY r.epoch DESC, r.started_at DESC, r.claim_id DESC LIMIT CAST(:limit AS bigint)) AS last_ones
ORDER BY epoch, started_at, claim_id
"""

# The last runs of several groups, by the primary keys: all later runs than one that is read are read, too.
RUNS_OF_GROUPS: Final = """
SELECT last_ones.*, clock_timestamp() AS read_at
FROM unnest(CAST(:groups AS text[])) AS asked (consumer_group)
JOIN {s}consumer_groups AS g USING (consumer_group)
CROSS JOIN LATERAL (
SELECT r.*, coalesce(min(r.started_at) OVER (ORDER BY r.epoch RANGE BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING),
                     CASE WHEN g.epoch > r.epoch THEN g.claimed_at END) AS next_at
FROM ((SELECT j.*, false AS is_member FROM {s}job_runs AS j WHERE j.consumer_group = g.consumer_group
       ORDER BY j.epoch DESC LIMIT :limit)
      UNION ALL
      (SELECT m.*, true FROM {s}member_runs AS m WHERE m.consumer_group = g.consumer_group
       ORDER BY m.epoch DESC, m.started_at DESC, m.claim_id DESC LIMIT :limit)) AS r
ORDER BY r.epoch DESC, r.started_at DESC, r.claim_id DESC LIMIT :limit) AS last_ones
ORDER BY last_ones.consumer_group, last_ones.epoch, last_ones.started_at, last_ones.claim_id
"""

_ERRORS: Final = """
SELECT * FROM (
SELECT consumer_group, id, epoch, source, error_class, error_text, sqlstate, topic, partition, batch_id, ranges, times,
       at
FROM %s
WHERE %s
  AND (CAST(:since AS timestamptz) IS NULL OR at >= CAST(:since AS timestamptz))
  AND (CAST(:sources AS text[]) IS NULL OR source = ANY(CAST(:sources AS text[])))
ORDER BY %s id DESC LIMIT CAST(:limit AS bigint)) AS last_ones
ORDER BY id
"""
# The group is a range as in HISTORY.
ERRORS: Final = _ERRORS % (
    "{s}job_errors",
    "(consumer_group, id) >= (:group, 0) AND (consumer_group, id) < (:group, 9223372036854775807)",
    "consumer_group DESC,",
)
# By the primary key. No index has the times or the sources, so the filters look at the newest lines alone.
ERRORS_OF_ALL: Final = _ERRORS % (
    "(SELECT * FROM {s}job_errors ORDER BY id DESC LIMIT :within) AS newest",
    "true",
    "",
)
_OLDEST_WITHIN: Final = "SELECT at FROM {s}%s ORDER BY id DESC LIMIT 1 OFFSET :within - 1"
OLDEST_WITHIN: Final = _OLDEST_WITHIN % "job_errors"
OLDEST_EVENT_WITHIN: Final = _OLDEST_WITHIN % "offset_history"


# By the primary key, as ERRORS_OF_ALL. Lines without a group only take ids.
HISTORY_OF_ALL: Final = """
SELECT * FROM (
SELECT consumer_group, id, topic, partition, event, from_offset, to_offset, epoch, claim_id, actor, reason, at, db_role
FROM (SELECT * FROM {s}offset_history ORDER BY id DESC LIMIT :within) AS newest
WHERE consumer_group <> ''
  AND (CAST(:since AS timestamptz) IS NULL OR at >= CAST(:since AS timestamptz))
  AND (CAST(:events AS text[]) IS NULL OR event = ANY(CAST(:events AS text[])))
ORDER BY id DESC LIMIT :limit) AS last_ones
ORDER BY id
"""


def read_history_of_all(
    session: PostgresSession, *, since: datetime | None, events: Collection[str], limit: int, within: int
) -> tuple[list[tuple[str, HistoryEvent]], bool]:
    """Read the last lines of all groups' histories, oldest first, and whether there may be more than these.

    :param within: look only at this many of the newest lines.
    """
    asked = {"since": since, "events": list(events) or None, "limit": limit, "within": within}
    rows = session.rows(HISTORY_OF_ALL, **asked)
    is_cut = _is_cut(session, OLDEST_EVENT_WITHIN, len(rows), limit=limit, since=since, within=within)
    return [(row.consumer_group, history_event(row)) for row in rows], is_cut


def _is_cut(
    session: PostgresSession, statement: str, count: int, *, limit: int, since: datetime | None, within: int
) -> bool:
    """Whether lines may be missing because only ``within`` of them were looked at."""
    if count >= limit:
        return False
    oldest = session.first(statement, within=within)
    return oldest is not None and (since is None or oldest.at >= since)


def _seen_row(row: Any) -> GroupRow:
    """Return the group's row, with the columns of `_SEEN`."""
    owner = group_row([row])
    assert owner is not None
    # As long as one member is live, so is the fleet, whatever became of the others (decision 0103).
    ending = row.ending if owner.fleet is None or is_live(owner.alive_for) else row.fleet_ending
    is_refused = bool(row.is_refused) and not owner.is_live
    return replace(owner, ending=ending, failures=row.failures, is_refused=is_refused)


def read_names(session: PostgresSession, *, after: str | None, limit: int) -> list[str]:
    """Read a page of the names of groups that were ever claimed."""
    return [row.consumer_group for row in session.rows(NAMES, after=after, limit=limit)]


def read_groups(session: PostgresSession, groups: Collection[str] | None = None) -> list[ListedGroup]:
    """Read these groups, or all that were ever claimed, by name."""
    asked = None if groups is None else list(groups)
    return [
        ListedGroup(
            row.consumer_group,
            _seen_row(row),
            row.partitions,
            tuple(row.topics or ()),
            row.advanced_for,
            row.dead_letters,
        )
        for row in session.rows(GROUPS, groups=asked)
    ]


def read_owner(session: Session, group: str) -> GroupRow | None:
    """Read the group's row, with what lists and pages show of it; a store in memory has only a job's columns."""
    if not isinstance(session, PostgresSession):
        return session.group(group)
    row = session.first(OVERVIEW_GROUPS, groups=[group])
    return None if row is None else _seen_row(row)


def check_history(since: datetime | None, events: Collection[str], limit: int | None) -> None:
    """Refuse invalid arguments of `OffsetStore.history`.

    :raises ConfigurationError: naming the argument.
    """
    _check_list(since, events, EVENTS, "the history has no such events")
    check_limit(limit, "events")


def check_errors(since: datetime | None, sources: Collection[ErrorSource], limit: int | None) -> None:
    """Refuse invalid arguments of `OffsetStore.errors`.

    :raises ConfigurationError: naming the argument.
    """
    _check_list(since, sources, SOURCES, "errors have no such sources")
    check_limit(limit, "errors")


def check_limit(limit: int | None, what: str) -> None:
    """Refuse a limit below 1.

    :raises ConfigurationError: it is.
    """
    if limit is not None:
        check_whole("limit", limit, what, least=1)


def _check_list(since: datetime | None, asked: Collection[str], known: Collection[str], what: str) -> None:
    if since is not None and since.tzinfo is None:
        raise ConfigurationError(
            "since is a time without a zone", found=since.isoformat(), expected="a datetime with tzinfo, such as UTC"
        )
    if unknown := sorted(set(asked) - set(known)):
        raise ConfigurationError(what, found=", ".join(unknown), expected=", ".join(known))


def follow(
    read: Callable[[datetime | None], list[_Line]], *, since: datetime | None, limit: int | None
) -> Generator[_Line]:
    """Yield the lines that exist, or only the last ``limit`` of them, and then each line that is added.

    :param read: reads the lines since a time.
    """
    found = read(since)
    yield from found if limit is None else found[-limit:]
    while True:
        time.sleep(_INTERVAL)
        seen = set(found)
        bounds = [line.at - _OVERLAP for line in found if line.at is not None]
        bounds += [] if since is None else [since]
        found = read(max(bounds) if bounds else None)
        yield from (line for line in found if line not in seen)


def read_runs(session: PostgresSession, group: str, *, limit: int | None = None) -> list[Run]:
    """Read the group's runs, or only the last ``limit`` of them, the oldest first."""
    return [_run(row) for row in session.rows(RUNS, group=group, limit=limit)]


def read_runs_of_groups(session: PostgresSession, groups: Collection[str], *, limit: int) -> list[Run]:
    """Read the last runs of each of these groups, by group, the oldest first."""
    return [_run(row) for row in session.rows(RUNS_OF_GROUPS, groups=list(groups), limit=limit)]


def _run(row: Any) -> Run:
    def age(at: datetime | None) -> float | None:
        return None if at is None else (row.read_at - at).total_seconds()

    status = RunStatus(
        phase=row.phase,
        phase_age=age(row.phase_since) or 0.0,
        batch=row.batch_id,
        batch_offsets=row.batch_offsets,
        last_batch_age=age(row.last_batch_at),
        counters={name: count for name, count in row.counters.items() if name != REPLAYS},
        memory=row.memory_bytes,
        mirror_age=age(row.mirrored_at),
        mirror_error=row.mirror_error,
        query_id=row.query_id,
        application_id=row.application_id,
        ui_url=row.ui_url,
        replays_letters=row.counters.get(REPLAYS),
    )
    return Run(
        group=row.consumer_group,
        token=Token(row.epoch, row.claim_id),
        owner=row.owner,
        topics=tuple(row.topics),
        versions=row.versions,
        started_at=row.started_at,
        seen_at=row.seen_at,
        ended_at=row.ended_at,
        ending=row.ending,
        next_at=row.next_at,
        read_at=row.read_at,
        status=status,
        is_member=row.is_member,
    )


def read_errors(
    session: PostgresSession, group: str, *, since: datetime | None, sources: Collection[ErrorSource], limit: int | None
) -> list[JobError]:
    """Read the group's errors, the oldest first: since a time, of some sources, or only the last ``limit``."""
    rows = session.rows(ERRORS, group=group, since=since, sources=list(sources) or None, limit=limit)
    return [_job_error(row) for row in rows]


def read_errors_of_all(
    session: PostgresSession, *, since: datetime | None, sources: Collection[ErrorSource], limit: int, within: int
) -> tuple[list[ErrorOfGroup], bool]:
    """Read the last errors of all groups, the oldest first; and whether there may be more than these.

    :param within: look only at this many of the newest lines.
    """
    asked = list(sources) or None
    rows = session.rows(ERRORS_OF_ALL, since=since, sources=asked, limit=limit, within=within)
    is_cut = _is_cut(session, OLDEST_WITHIN, len(rows), limit=limit, since=since, within=within)
    return [ErrorOfGroup(row.consumer_group, _job_error(row)) for row in rows], is_cut


def _job_error(row: Any) -> JobError:
    return JobError(
        source=row.source,
        error_class=row.error_class,
        text=row.error_text,
        sqlstate=row.sqlstate,
        topic_partition=None if row.topic is None else TopicPartition(row.topic, row.partition),
        batch=row.batch_id,
        ranges=row.ranges,
        times=row.times,
        epoch=row.epoch,
        at=row.at,
    )


@dataclass(frozen=True, slots=True)
class TableFacts:
    """One table, from the server's statistics, which are a second or so behind, and lost in a crash.

    :param rows: an estimate.
    :param size: in bytes, with its indexes and TOAST.
    :param dead_rows: an estimate of the rows that VACUUM has not removed yet.
    :param updates: since the statistics were last reset.
    :param hot_updates: the updates that touched no index.
    """

    name: str
    rows: int
    size: int
    dead_rows: int = 0
    updates: int = 0
    hot_updates: int = 0
    vacuumed_at: datetime | None = None
    autovacuumed_at: datetime | None = None

    @property
    def hot_share(self) -> float | None:
        return self.hot_updates / self.updates if self.updates else None


@dataclass(frozen=True, slots=True)
class StoreFacts:
    """The store at one moment.

    :param at: by the database's clock.
    :param server: its name and version.
    :param schema: of our tables.
    :param revision: of our tables; like ``expected``, that of this version of offsetstore, ``None`` without tables.
    :param tables: our tables that exist, by name.
    :param oldest_transaction: how long the oldest open transaction of the database has been running.
    :param sees_all: whether that includes other roles' transactions, which takes ``pg_read_all_stats``.
    :param is_standby: whether the server is a replica, which can't be written to.
    """

    at: datetime
    server: str
    schema: str | None
    revision: str | None
    expected: str | None
    tables: tuple[TableFacts, ...]
    oldest_transaction: timedelta
    sees_all: bool
    is_standby: bool = False

    @property
    def is_as_expected(self) -> bool:
        """Whether this version of offsetstore runs on the tables."""
        return self.revision == self.expected or (self.expected is not None and runs_on(self.expected, self.revision))


SERVER: Final = """
SELECT current_setting('server_version') AS version, pg_is_in_recovery() AS is_standby,
       pg_has_role('pg_read_all_stats', 'USAGE') AS sees_all,
       (SELECT n.nspname FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
        WHERE c.oid = to_regclass(:place || 'kafka_partitions')) AS schema
"""

# Any role may read them: sizes and statistics are not the tables' contents.
TABLES: Final = """
SELECT c.relname AS name, s.n_live_tup AS rows, pg_total_relation_size(c.oid) AS size, s.n_dead_tup AS dead_rows,
       s.n_tup_upd AS updates, s.n_tup_hot_upd AS hot_updates, s.last_vacuum, s.last_autovacuum
FROM unnest(CAST(:tables AS text[])) AS asked (name)
JOIN pg_catalog.pg_class AS c ON c.oid = to_regclass(:place || asked.name)
JOIN pg_catalog.pg_stat_all_tables AS s ON s.relid = c.oid
ORDER BY c.relname COLLATE "C"
"""


def read_facts(session: PostgresSession) -> StoreFacts:
    """Read the facts in one round trip."""
    asked = (SERVER, TABLES, sql.REVISION, OLDEST_TRANSACTION)
    with translated():
        server, tables, revision, oldest = session.together(*asked, place=session.place, tables=list(metadata.tables))
    [of_server], [last] = server.rows, oldest.rows
    return StoreFacts(
        last.at,
        f"PostgreSQL {of_server.version}",
        of_server.schema,
        next((row.version_num for row in revision.rows), None),
        HEAD,
        tuple(TableFacts(*row) for row in tables.rows),
        last.oldest,
        of_server.sees_all,
        of_server.is_standby,
    )

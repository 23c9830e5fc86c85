"""Every statement of the protocol, as SQL, and how statements are sent: one at a time, or several in one round trip.

``{s}`` stands for the quoted schema and its dot, or for nothing. Values are bound (``:name``), never written into the
text; lists go in as arrays, so that a thousand partitions are one statement.

Where such a list is joined with the table, ``(SELECT :group)`` and ``CASE`` hide the group and the token from the
planner. For a group or an epoch that is newer than the last ANALYZE it would choose a slow plan: docs/scale.md.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, cast

import psycopg
from psycopg.rows import RowFactory, tuple_row

from offsetstore.postgres.errors import translated

_NAME: Final = re.compile(r"(?<!:):(\w+)")


@cache
def for_psycopg(statement: str, place: str) -> str:
    """The statement as psycopg takes it.

    :param place: the quoted schema and its dot, or nothing.
    """
    named = _NAME.sub(r"%(\1)s", statement.replace("%", "%%"))
    return named.replace("{s}", place.replace("%", "%%"))


BEGIN = "BEGIN ISOLATION LEVEL READ COMMITTED"

# The transaction's number is read at once: it shows later whether user code sent COMMIT (decision 0007). A commit must
# be on disk: a crash would take back what was reported, and mirrored to Kafka. ``pinned`` has the settings on which the
# texts between psycopg, COPY and the server depend (decision 0053); one column, since each takes time.
SETTINGS = """
SELECT CAST(pg_current_xact_id() AS text) AS transaction_number,
       current_setting('session_replication_role') AS session_replication_role,
       current_setting('row_security') AS row_security,
       set_config('application_name', :name, true) AS name,
       set_config('lock_timeout', :lock_timeout, true) AS lock_timeout,
       set_config('idle_in_transaction_session_timeout', :idle_timeout, true) AS idle_timeout,
       set_config('synchronous_commit',
                  CASE WHEN current_setting('synchronous_commit') IN ('off', 'local', 'remote_write')
                       THEN 'on' ELSE current_setting('synchronous_commit') END, true) AS synchronous_commit,
       concat(set_config('client_encoding', 'UTF8', true),
              set_config('standard_conforming_strings', 'on', true),
              set_config('bytea_output', 'hex', true),
              set_config('extra_float_digits', '1', true),
              set_config('array_nulls', 'on', true),
              set_config('xmloption', 'content', true),
              set_config('lc_monetary', 'C', true)) AS pinned
"""

# For queries outside of sessions.
ENCODINGS = "SELECT current_setting('server_encoding') AS server, set_config('client_encoding', 'UTF8', true) AS client"

IS_WHOLE = """
SELECT CAST(pg_current_xact_id_if_assigned() AS text) AS transaction_number,
       coalesce(nullif(current_setting('offsetstore.moved', true), ''), '0') AS moved
"""

CHECK_DEFERRED = "SET CONSTRAINTS ALL IMMEDIATE"

# For trials (decision 0036). ``SET CONSTRAINTS ALL DEFERRED`` would also defer constraints that begin as immediate.
SAVEPOINT = "SAVEPOINT offsetstore_{number}"
ROLLBACK_TO = "ROLLBACK TO SAVEPOINT offsetstore_{number}"
DEFER_AGAIN = "SET CONSTRAINTS {names} DEFERRED"
# For names that can't be deferred again: the constraints stay deferred, but everything is checked again next time.
CHECK_AND_TAKE_BACK = f"""
SAVEPOINT offsetstore_check;
{CHECK_DEFERRED};
ROLLBACK TO SAVEPOINT offsetstore_check;
RELEASE SAVEPOINT offsetstore_check"""

# In milliseconds; no row before PostgreSQL 17.
TRANSACTION_TIMEOUT = "SELECT CAST(setting AS bigint) AS setting FROM pg_settings WHERE name = 'transaction_timeout'"

# A name stands for all constraints of its schema with this name, and for those of the tables' partitions.
INITIALLY_DEFERRED = """
SELECT n.nspname AS schema, c.conname AS name,
       bool_and(c.condeferred) AND has_schema_privilege(n.oid, 'USAGE') AS by_name
FROM pg_catalog.pg_constraint AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.connamespace
WHERE NOT starts_with(n.nspname, 'pg_temp_')
GROUP BY n.oid, n.nspname, c.conname HAVING bool_or(c.condeferred AND c.conparentid = 0)
"""

CREATE_GROUP = """
INSERT INTO {s}consumer_groups (consumer_group, epoch, claim_id, owner)
VALUES (:group, 0, :no_claim, '')
ON CONFLICT (consumer_group) DO NOTHING
"""

# Claims lock the row, or two at once would take the same epoch.
LOCK_GROUP = "SELECT epoch, claim_id FROM {s}consumer_groups WHERE consumer_group = :group FOR UPDATE"

# FOR KEY SHARE would be weaker, and would read an old epoch without waiting.
SHARE_GROUP = "SELECT epoch, claim_id FROM {s}consumer_groups WHERE consumer_group = :group FOR SHARE"

# A fleet's heartbeat is the last of its members'. One in the future does not count (see `is_live`), and would hide the
# others.
OWNER = """g.epoch, g.claim_id, g.owner, g.claimed_at,
       clock_timestamp() - coalesce(h.beat_at, (SELECT max(m.beat_at) FROM {s}group_members AS m
                                                WHERE m.consumer_group = g.consumer_group
                                                  AND m.fleet_id = g.claim_id
                                                  AND m.beat_at < clock_timestamp() + interval '15 seconds'))
           AS alive_for,
       g.paused_at, g.paused_until, g.pause_reason,
       coalesce(g.paused_until <= clock_timestamp(), false) AS pause_ended, r.ending,
       CASE WHEN g.fleet_id = g.claim_id THEN g.fleet END AS fleet, g.fleet AS last_fleet"""

OWNERS = """{s}consumer_groups AS g
LEFT JOIN {s}heartbeats AS h ON h.claim_id = g.claim_id
LEFT JOIN {s}job_runs AS r ON r.consumer_group = g.consumer_group AND r.epoch = g.epoch AND r.claim_id = g.claim_id"""

GROUP = f"""
SELECT {OWNER}
FROM {OWNERS}
WHERE g.consumer_group = :group AND g.epoch > 0
"""  # noqa: S608 - constants alone

NAMES_OF_GROUPS = """
SELECT g.consumer_group FROM {s}consumer_groups AS g
WHERE EXISTS (SELECT FROM {s}kafka_partitions AS p WHERE p.consumer_group = g.consumer_group)
ORDER BY g.consumer_group
"""

END_OTHER_BEATS = """
DELETE FROM {s}heartbeats
WHERE claim_id IN (SELECT claim_id FROM {s}consumer_groups WHERE consumer_group = :group)
"""

WRITE_GROUP = """
UPDATE {s}consumer_groups
SET epoch = :epoch, claim_id = :claim_id, owner = :owner, claimed_at = clock_timestamp()
WHERE consumer_group = :group
"""

WRITE_PAUSE = """
UPDATE {s}consumer_groups SET paused_at = :at, paused_until = :until, pause_reason = :reason
WHERE consumer_group = :group
"""

# Of all topics: a job that is fenced in one partition is fenced in all.
WRITE_TOKENS = """
UPDATE {s}kafka_partitions SET epoch = :epoch, claim_id = :claim_id WHERE consumer_group = :group
"""

FIRST_BEAT = "INSERT INTO {s}heartbeats (claim_id) VALUES (:claim_id)"

# An UPDATE, so that a fenced job does not restore the row that the new claim has removed.
BEAT = "UPDATE {s}heartbeats SET beat_at = clock_timestamp() WHERE claim_id = :claim_id"

END_BEAT = "DELETE FROM {s}heartbeats WHERE claim_id = :claim_id"

WRITE_FLEET = "UPDATE {s}consumer_groups SET fleet = :fleet, fleet_id = claim_id WHERE consumer_group = :group"

TAKE_PARTITIONS = """
UPDATE {s}kafka_partitions AS p SET epoch = :epoch, claim_id = :claim_id
FROM unnest(CAST(:topics AS text[]), CAST(:partitions AS integer[])) AS taken (topic, partition)
WHERE p.consumer_group = (SELECT :group) AND p.topic = taken.topic AND p.partition = taken.partition
"""

ADD_MEMBER = """
INSERT INTO {s}group_members (consumer_group, member_id, fleet_id, owner)
VALUES (:group, :member_id, :fleet_id, :owner)
ON CONFLICT (consumer_group, member_id) DO UPDATE SET fleet_id = excluded.fleet_id, beat_at = clock_timestamp()
"""

# An UPDATE, so that a late heartbeat does not bring back a member that has left.
BEAT_MEMBER = """
UPDATE {s}group_members AS m SET beat_at = clock_timestamp() FROM {s}consumer_groups AS g
WHERE m.consumer_group = :group AND m.member_id = :member_id
  AND g.consumer_group = m.consumer_group AND g.epoch = :epoch AND g.claim_id = :claim_id AND m.fleet_id = g.claim_id
"""

DROP_MEMBER = "DELETE FROM {s}group_members WHERE consumer_group = :group AND member_id = :member_id"

# A member that is frozen in its heartbeat keeps its row locked, and must not hold up others (decision 0090).
TRIM_MEMBERS = """
DELETE FROM {s}group_members WHERE consumer_group = :group AND member_id IN (
    SELECT member_id FROM {s}group_members
    WHERE consumer_group = :group AND (fleet_id <> :fleet_id OR beat_at < clock_timestamp() - interval '1 day')
    FOR UPDATE SKIP LOCKED)
"""

MEMBERS = """
SELECT m.member_id, m.owner, m.joined_at, clock_timestamp() - m.beat_at AS alive_for
FROM {s}group_members AS m
JOIN {s}consumer_groups AS g
  ON g.consumer_group = m.consumer_group AND g.claim_id = m.fleet_id AND g.fleet_id = m.fleet_id
WHERE m.consumer_group = :group
ORDER BY m.joined_at, m.member_id
"""

NOW = "SELECT clock_timestamp()"

NOTHING = "SELECT 1 AS nothing"

READ_PARTITIONS = """
SELECT p.topic, p.partition, p.next_offset, p.metadata, p.topic_id, p.cluster_id, p.epoch, p.claim_id,
       p.transaction_id, p.pinned, p.updated_at, p.pinned_epoch, p.contested, p.epoch_offset, p.leader_epoch,
       p.suspect, p.suspect_at
FROM {s}kafka_partitions AS p
WHERE p.consumer_group = :group
ORDER BY p.topic, p.partition
"""

READ_THESE = READ_PARTITIONS.replace(
    "WHERE",
    """JOIN unnest(CAST(:topics AS text[]), CAST(:partitions AS integer[])) AS asked (topic, partition)
  ON p.topic = asked.topic AND p.partition = asked.partition
WHERE""",
).replace("= :group", "= (SELECT :group)")

# Each batch begins with this read, and metadata may be as long as 1 MiB.
READ_OFFSETS = READ_PARTITIONS.replace("p.metadata", "NULL AS metadata")

LOCK_ALL_PARTITIONS = READ_PARTITIONS + "FOR UPDATE OF p"

# Locked in the order of the key, or jobs would deadlock. All partitions that were last advanced by the same transaction
# come as one row: reading ten thousand rows takes longer than locking them. ``numbers`` are the partitions' places in
# the list, from 1.
LOCK_PARTITIONS = """
WITH locked AS MATERIALIZED (
SELECT p.next_offset, p.epoch, p.claim_id, p.transaction_id, asked.number
FROM {s}kafka_partitions AS p
JOIN unnest(CAST(:topics AS text[]), CAST(:partitions AS integer[])) WITH ORDINALITY AS asked (topic, partition, number)
  ON p.topic = asked.topic AND p.partition = asked.partition
WHERE p.consumer_group = (SELECT :group)
ORDER BY p.topic, p.partition
FOR UPDATE OF p
)
SELECT epoch, claim_id, transaction_id, array_agg(number) AS numbers, array_agg(next_offset) AS offsets
FROM locked GROUP BY epoch, claim_id, transaction_id
"""

INSERT_PARTITIONS = """
INSERT INTO {s}kafka_partitions (consumer_group, topic, partition, next_offset, epoch, claim_id)
SELECT :group, n.topic, n.partition, n.next_offset, :epoch, :claim_id
FROM unnest(CAST(:topics AS text[]), CAST(:partitions AS integer[]), CAST(:offsets AS bigint[]))
     AS n (topic, partition, next_offset)
ORDER BY n.topic COLLATE "C", n.partition
ON CONFLICT (consumer_group, topic, partition) DO NOTHING
RETURNING topic, partition
"""

SET_PARTITIONS = """
INSERT INTO {s}kafka_partitions AS p
       (consumer_group, topic, partition, next_offset, topic_id, cluster_id, pinned, contested, epoch_offset,
        leader_epoch, suspect, suspect_at, pinned_epoch, epoch, claim_id)
SELECT :group, n.topic, n.partition, n.next_offset, n.topic_id, n.cluster_id, n.pinned, n.contested, n.epoch_offset,
       n.leader_epoch, n.suspect, n.suspect_at, CASE WHEN n.pinned OR n.contested THEN :epoch ELSE 0 END, :epoch,
       :claim_id
FROM unnest(CAST(:topics AS text[]), CAST(:partitions AS integer[]), CAST(:offsets AS bigint[]),
            CAST(:topic_ids AS text[]), CAST(:cluster_ids AS text[]), CAST(:pinned AS boolean[]),
            CAST(:contested AS boolean[]), CAST(:epoch_offsets AS bigint[]), CAST(:leader_epochs AS integer[]),
            CAST(:suspects AS text[]), CAST(:suspect_ats AS timestamptz[]))
     AS n (topic, partition, next_offset, topic_id, cluster_id, pinned, contested, epoch_offset, leader_epoch, suspect,
           suspect_at)
ORDER BY n.topic COLLATE "C", n.partition
ON CONFLICT (consumer_group, topic, partition) DO UPDATE
SET next_offset = excluded.next_offset,
    metadata = CASE WHEN p.next_offset = excluded.next_offset THEN p.metadata END,
    topic_id = excluded.topic_id, cluster_id = excluded.cluster_id,
    pinned = excluded.pinned, contested = excluded.contested,
    epoch_offset = excluded.epoch_offset, leader_epoch = excluded.leader_epoch,
    suspect = excluded.suspect, suspect_at = excluded.suspect_at,
    pinned_epoch = greatest(p.pinned_epoch, excluded.pinned_epoch),
    updated_at = CASE WHEN p.next_offset = excluded.next_offset THEN p.updated_at ELSE clock_timestamp() END
"""

# Each text is sent once: ``text_numbers`` are their places in ``texts``, from 1, and NULL where the metadata is kept.
# The statement compares offset and token again, although the lock protects both. ROLLBACK TO takes the setting back
# with the rows, which shows that it happened (decision 0007).
ADVANCE = """
WITH moved AS (
UPDATE {s}kafka_partitions AS p
SET next_offset = n.until_offset,
    metadata = CASE WHEN n.text_number IS NULL THEN p.metadata ELSE (CAST(:texts AS text[]))[n.text_number] END,
    transaction_id = :transaction_id,
    updated_at = CASE WHEN n.until_offset = n.from_offset THEN p.updated_at ELSE clock_timestamp() END
FROM unnest(CAST(:topics AS text[]), CAST(:partitions AS integer[]),
            CAST(:froms AS bigint[]), CAST(:untils AS bigint[]), CAST(:text_numbers AS integer[]))
     AS n (topic, partition, from_offset, until_offset, text_number)
WHERE p.consumer_group = (SELECT :group) AND p.topic = n.topic AND p.partition = n.partition
  AND CASE WHEN p.next_offset = n.from_offset AND p.epoch = :epoch AND p.claim_id = :claim_id THEN true END
RETURNING 1)
SELECT count(*) AS moved,
       set_config('offsetstore.moved', CAST(count(*) + CAST(
           coalesce(nullif(current_setting('offsetstore.moved', true), ''), '0') AS bigint) AS text), true) AS kept
FROM moved
"""

# The same setting shows that a mark was rolled back (decision 0034). Each mark adds to it, or a later one would hide
# that.
COUNT_MARK = """
SELECT set_config('offsetstore.moved', CAST(1 + CAST(
           coalesce(nullif(current_setting('offsetstore.moved', true), ''), '0') AS bigint) AS text), true) AS kept
"""

READ_METADATA = """
SELECT partition, metadata, epoch, claim_id FROM {s}kafka_partitions
WHERE consumer_group = :group AND topic = :topic
  AND (CAST(:partition AS integer) IS NULL OR partition = CAST(:partition AS integer))
ORDER BY partition
"""

WRITE_METADATA = """
UPDATE {s}kafka_partitions AS p SET metadata = n.metadata
FROM unnest(CAST(:topics AS text[]), CAST(:partitions AS integer[]), CAST(:metadata AS text[]))
     AS n (topic, partition, metadata)
WHERE p.consumer_group = (SELECT :group) AND p.topic = n.topic AND p.partition = n.partition
  AND CASE WHEN p.epoch = :epoch AND p.claim_id = :claim_id THEN true END
"""

# ``appended`` counts the new rows whose ids follow those of all earlier rows. After a failover of logical replication,
# others would go into gaps of the past, and be read in the wrong order.
APPEND_HISTORY = """
WITH before AS (SELECT coalesce(max(id), 0) AS last FROM {s}offset_history),
appended AS (
INSERT INTO {s}offset_history
       (consumer_group, topic, partition, event, from_offset, to_offset, epoch, claim_id, actor, reason)
SELECT :group, e.topic, e.partition, e.event, e.from_offset, e.to_offset, e.epoch, e.claim_id, e.actor, e.reason
FROM unnest(CAST(:topics AS text[]), CAST(:partitions AS integer[]), CAST(:events AS text[]),
            CAST(:froms AS bigint[]), CAST(:tos AS bigint[]), CAST(:epochs AS bigint[]),
            CAST(:claim_ids AS uuid[]), CAST(:actors AS text[]), CAST(:reasons AS text[]))
     WITH ORDINALITY
     AS e (topic, partition, event, from_offset, to_offset, epoch, claim_id, actor, reason, number)
ORDER BY e.number
ON CONFLICT (id) DO NOTHING
RETURNING id)
SELECT count(*) FILTER (WHERE appended.id > before.last) AS appended, before.last
FROM before LEFT JOIN appended ON true GROUP BY before.last
"""

# Consumes ids of the identity's sequence, which a job's role may not set; ROLLBACK does not return ids.
TAKE_HISTORY_IDS = """
INSERT INTO {s}offset_history (consumer_group, event, epoch, claim_id, actor, reason)
SELECT '', '', 0, :no_claim, '', '' FROM generate_series(1, :count)
ON CONFLICT (id) DO NOTHING
"""

# The caller has locked the rows, in their order.
UNPIN = """
UPDATE {s}kafka_partitions AS p SET pinned = false, contested = false
FROM unnest(CAST(:topics AS text[]), CAST(:partitions AS integer[])) AS asked (topic, partition)
WHERE p.consumer_group = (SELECT :group) AND p.topic = asked.topic AND p.partition = asked.partition
  AND CASE WHEN (p.pinned OR p.contested) AND p.epoch = :epoch AND p.claim_id = :claim_id THEN true END
"""

CONTEST = """
UPDATE {s}kafka_partitions AS p SET contested = true, pinned_epoch = greatest(p.pinned_epoch, :epoch)
FROM unnest(CAST(:topics AS text[]), CAST(:partitions AS integer[])) AS asked (topic, partition)
WHERE p.consumer_group = (SELECT :group) AND p.topic = asked.topic AND p.partition = asked.partition
  AND CASE WHEN NOT p.contested AND p.epoch = :epoch AND p.claim_id = :claim_id THEN true END
"""

# Locked rows are left for the next time: this may neither wait for the job's transactions nor deadlock with them.
WRITE_PAIRS = """
UPDATE {s}kafka_partitions AS p SET epoch_offset = free.epoch_offset, leader_epoch = free.leader_epoch
FROM (
SELECT p.topic, p.partition, n.epoch_offset, n.leader_epoch
FROM {s}kafka_partitions AS p
JOIN unnest(CAST(:topics AS text[]), CAST(:partitions AS integer[]), CAST(:epoch_offsets AS bigint[]),
            CAST(:leader_epochs AS integer[])) AS n (topic, partition, epoch_offset, leader_epoch)
  ON p.topic = n.topic AND p.partition = n.partition
WHERE p.consumer_group = (SELECT :group) AND CASE WHEN p.epoch = :epoch AND p.claim_id = :claim_id THEN true END
FOR UPDATE OF p SKIP LOCKED) AS free
WHERE p.consumer_group = (SELECT :group) AND p.topic = free.topic AND p.partition = free.partition
"""

# The first evidence stays, or each refused start would replace what was found first, and when (decision 0049).
WRITE_SUSPECTS = """
UPDATE {s}kafka_partitions AS p SET suspect = n.suspect, suspect_at = clock_timestamp()
FROM unnest(CAST(:topics AS text[]), CAST(:partitions AS integer[]), CAST(:suspects AS text[]))
     AS n (topic, partition, suspect)
WHERE p.consumer_group = (SELECT :group) AND p.topic = n.topic AND p.partition = n.partition
  AND CASE WHEN p.suspect IS NULL AND p.epoch = :epoch AND p.claim_id = :claim_id THEN true END
RETURNING p.topic, p.partition
"""

BATCH_MARK = "SELECT batch_id FROM {s}batch_marks WHERE consumer_group = :group AND query_id = :query_id"

# Returns no row if the mark is already there: of two concurrent transactions, one sets the mark, and the other waits
# and gets no row. A window that fires without data moves no offset: only the mark shows that it was written.
MARK_BATCH = """
INSERT INTO {s}batch_marks AS m (consumer_group, query_id, batch_id) VALUES (:group, :query_id, :batch_id)
ON CONFLICT (consumer_group, query_id) DO UPDATE
SET batch_id = excluded.batch_id, updated_at = clock_timestamp()
WHERE m.batch_id < excluded.batch_id
RETURNING 1
"""

# The advisory lock stands for the row's, since ON CONFLICT has no SKIP LOCKED: a member's flushes must not wait for a
# tick under way. If two names have one hash, a turn is left out (decision 0092).
TAKE_TURN = """
INSERT INTO {s}batch_marks AS m (consumer_group, query_id, batch_id)
SELECT :group, :name, 0
WHERE pg_try_advisory_xact_lock(hashtextextended(:group || chr(10) || CAST(:name AS text), 0))
ON CONFLICT (consumer_group, query_id) DO UPDATE SET updated_at = clock_timestamp()
WHERE m.updated_at <= clock_timestamp() - make_interval(secs => :every)
RETURNING 1
"""

# A role that may not call the function does not know which database it is. That is found out by calling it: a provider
# may replace the function (decision 0050).
_HERE = """(SELECT CAST(c.system_identifier AS text) || ':' || CAST(d.oid AS text)
        FROM pg_catalog.pg_control_system() AS c, pg_catalog.pg_database AS d
        WHERE d.datname = current_database())"""
IDENTITY = f"SELECT store_id, home, {_HERE} AS here FROM {{s}}store_identity"  # noqa: S608 - constants alone
IDENTITY_ALONE = "SELECT store_id, home, CAST(NULL AS text) AS here FROM {s}store_identity"
SAVE_IDENTITY = "SAVEPOINT offsetstore_identity"
KEEP_IDENTITY = "RELEASE SAVEPOINT offsetstore_identity"
LEAVE_IDENTITY = "ROLLBACK TO SAVEPOINT offsetstore_identity"

# Single columns are checked only where the whole table isn't granted: there are hundreds, and each claim asks.
MISSING_GRANTS = """
SELECT current_user AS role, n.nspname AS schema, needed.in_table, needed.privilege
FROM (SELECT to_regclass(:place || in_table) AS oid, in_table, privilege, columns
      FROM unnest(CAST(:tables AS text[]), CAST(:privileges AS text[]), CAST(:columns AS text[]))
           AS needed (in_table, privilege, columns) OFFSET 0) AS needed
JOIN pg_catalog.pg_class AS c ON c.oid = needed.oid JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
WHERE NOT has_table_privilege(needed.oid, privilege)
  AND (privilege = 'DELETE' OR EXISTS (SELECT FROM unnest(string_to_array(columns, ',')) AS one
                                       WHERE NOT has_column_privilege(needed.oid, one, privilege)))
ORDER BY in_table, privilege
"""

TAKE_HOME = f"UPDATE {{s}}store_identity SET home = {_HERE}"  # noqa: S608 - constants alone

# The group as a range keeps the planner off the primary key, where lines of other groups may lie between.
HISTORY = """
SELECT * FROM (
SELECT id, topic, partition, event, from_offset, to_offset, epoch, claim_id, actor, reason, at, db_role
FROM {s}offset_history
WHERE (consumer_group, id) >= (:group, 0)
  AND (consumer_group, id) < (:group, coalesce(CAST(:before AS bigint), 9223372036854775807))
  AND (CAST(:since AS timestamptz) IS NULL OR at >= CAST(:since AS timestamptz))
  AND (CAST(:events AS text[]) IS NULL OR event = ANY(CAST(:events AS text[])))
  AND (CAST(:topic AS text) IS NULL OR (topic = CAST(:topic AS text) AND partition = CAST(:partition AS integer)))
ORDER BY consumer_group DESC, id DESC LIMIT CAST(:limit AS bigint)) AS last_ones
ORDER BY id
"""

DELETED_EPOCHS = """
SELECT topic, max(epoch) AS epoch FROM {s}offset_history
WHERE consumer_group = :group AND event IN ('delete', 'delete-topic') GROUP BY topic
"""

# A row that is locked FOR UPDATE has its holder's transaction id as xmax (unless several share the lock).
LOCK_HOLDER = """
SELECT p.topic, p.partition, l.pid, a.application_name, a.state
FROM {s}kafka_partitions AS p
JOIN unnest(CAST(:topics AS text[]), CAST(:partitions AS integer[])) AS asked (topic, partition)
  ON p.topic = asked.topic AND p.partition = asked.partition
JOIN pg_locks AS l ON l.locktype = 'transactionid' AND l.transactionid = p.xmax AND l.granted
LEFT JOIN pg_stat_activity AS a ON a.pid = l.pid
WHERE p.consumer_group = (SELECT :group)
ORDER BY p.topic, p.partition
LIMIT 1
"""

# The modes that conflict with ROW EXCLUSIVE, which writes take.
TABLE_HOLDER = """
SELECT l.pid, a.application_name, a.state
FROM pg_locks AS l LEFT JOIN pg_stat_activity AS a ON a.pid = l.pid
WHERE l.locktype = 'relation' AND l.relation = to_regclass(:table) AND l.granted
  AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND l.mode IN ('ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
ORDER BY l.pid
LIMIT 1
"""

# Who may hold what a migration waited for, the longest first; transactions that began after the wait were not in its
# way.
MIGRATION_BLOCKERS = """
SELECT l.pid, coalesce(a.state, 'in a state that this role may not see') AS state,
       coalesce(nullif(a.application_name, ''), a.backend_type) AS application_name,
       extract(epoch FROM clock_timestamp() - a.xact_start) AS seconds,
       string_agg(DISTINCT c.relname, ', ' ORDER BY c.relname) AS tables
FROM pg_locks AS l LEFT JOIN pg_stat_activity AS a ON a.pid = l.pid JOIN pg_class AS c ON c.oid = l.relation
WHERE l.granted AND l.pid IS DISTINCT FROM pg_backend_pid()
  AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND l.relation IN (SELECT to_regclass(name) FROM unnest(CAST(:tables AS text[])) AS asked (name))
  AND (a.xact_start IS NULL OR a.xact_start < clock_timestamp() - make_interval(secs => :seconds))
GROUP BY l.pid, a.state, a.application_name, a.backend_type, a.xact_start
ORDER BY a.xact_start, l.pid
LIMIT 3
"""

# ``owner`` is the tables' owner; NULL if there are no tables, or the role is a member of it.
MAY_MIGRATE = """
SELECT current_user AS role, current_database() AS database, place.schema,
       EXISTS (SELECT FROM pg_namespace WHERE nspname = place.schema) AS has_schema,
       (SELECT pg_get_userbyid(c.relowner)
        FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
        WHERE c.relname = :table AND n.nspname = place.schema AND NOT pg_has_role(c.relowner, 'USAGE')) AS owner
FROM (SELECT coalesce(CAST(:schema AS text), current_schema(), 'public') AS schema) AS place
"""

# A role's statement_timeout could end the wait before the blockers are terminated.
UNBLOCKED = "SELECT pg_backend_pid(), set_config('statement_timeout', '0', true)"

# Connections of the same group alone, told by the prefix of their names (decision 0006).
TERMINATE_BLOCKERS = """
SELECT a.pid, a.application_name, pg_terminate_backend(a.pid)
FROM unnest(pg_blocking_pids(:pid)) AS blocker (pid)
JOIN pg_stat_activity AS a USING (pid)
WHERE starts_with(a.application_name, :prefix)
"""

SCHEMA_OF = """
SELECT n.nspname
FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
WHERE c.oid = to_regclass(:table)
"""

# Every role may read this about any schema.
SCHEMAS_WITH_TABLES = """
SELECT n.nspname
FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
WHERE c.relname = 'kafka_partitions' AND c.relkind = 'r'
  AND EXISTS (SELECT FROM pg_catalog.pg_class AS v
              WHERE v.relnamespace = n.oid AND v.relname = 'offsetstore_version' AND v.relkind = 'r')
ORDER BY n.nspname
"""

REVISION = "SELECT version_num FROM {s}offsetstore_version"


@dataclass(frozen=True, slots=True)
class StatementResult:
    """The rows of one statement, and how many it returned or changed."""

    rows: list[Any]
    count: int


def execute_together(
    connection: psycopg.Connection[Any],
    *statements: str,
    values: Mapping[str, object] | None = None,
    row_factory: RowFactory[Any] = tuple_row,
) -> list[StatementResult]:
    """Run the statements, and return their results. After an error the server skips the rest.

    :param values: by name, for ``%(name)s``; with ``None`` the text is sent as it is.
    """
    # ClientCursor writes the values into the text: only a message without parameters may hold several statements.
    # psycopg's pipeline ends with a Flush that switches ``idle_in_transaction_session_timeout`` off (decision 0029).
    cursor = psycopg.ClientCursor(connection, row_factory=row_factory)
    cursor.execute(cast("Any", ";\n".join(statements)), values)
    results: list[StatementResult] = []
    while True:
        results.append(StatementResult(cursor.fetchall() if cursor.description else [], cursor.rowcount))
        if not cursor.nextset():
            return results


class Statements(ABC):
    """How the parts of a session, and operations, run their statements. Errors are ours.

    ``place`` is the quoted schema and its dot, or nothing.
    """

    place: str

    @abstractmethod
    def together(self, *statements: str, **values: object) -> list[StatementResult]:
        """Send the statements in one round trip, if possible. Errors are the database's."""

    @abstractmethod
    def _send(self, statement: str, **values: object) -> StatementResult: ...

    def rows(self, statement: str, **values: object) -> list[Any]:
        with translated():
            return self._send(statement, **values).rows

    def one(self, statement: str, **values: object) -> Any:
        [row] = self.rows(statement, **values)
        return row

    def first(self, statement: str, **values: object) -> Any:
        """The first row, ``None`` if there is none."""
        return next(iter(self.rows(statement, **values)), None)

    def run(self, statement: str, **values: object) -> int:
        """Run a statement; return how many rows it changed."""
        with translated():
            return self._send(statement, **values).count


def as_array(elements: Iterable[object]) -> str:
    """Write a list as PostgreSQL's array literal; with ten thousand elements, psycopg takes four times as long."""
    return f"{{{','.join(map(str, elements))}}}"

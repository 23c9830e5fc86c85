"""Dead letters that are stored, on PostgreSQL: the statements, and what `StoredLetterSession` says of them.

A value of 10 MB stays where it is, in the table's TOAST, unless a statement's result names its column: sorting and
measuring it don't read it.
"""

# ruff: noqa: D102, S608 - the Protocol says what the methods do; statements are made of this file's constants alone

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any, Final

from offsetstore.offsets import OffsetRange, TopicPartition
from offsetstore.postgres.errors import needing
from offsetstore.postgres.letters import error_columns, read_headers, record_arrays
from offsetstore.postgres.schema import INDEXED
from offsetstore.postgres.together import Statements
from offsetstore.protocol.letters import (
    PAYLOADS,
    SEQUENCE_BYTES,
    Letter,
    LetterError,
    LetterKey,
    Payload,
    PayloadState,
    State,
)
from offsetstore.protocol.stored_letters import (
    STATES,
    ChosenLetter,
    ErrorGroup,
    FailedReplay,
    LetterCursor,
    LetterFilter,
)

_SUMMARY: Final = """l.topic, l.partition, l.record_offset, l.topic_id, l.state, l.cause, l.payload, l.error_class,
       l.sqlstate, l.table_name, l.constraint_name, l.column_name, l.attempts, l.times, l.forced,
       l.trace_id, l.created_at, l.decided_at, l.actor, l.reason"""

# Only where they are asked for: a dashboard's role may not read them.
_CONTENTS: Final = """, l.key, l.value, l.headers, l.timestamp_ms, l.timestamp_type, l.error_text, l.traceback,
       l.sequence"""

# What letters are grouped by, and told apart.
_OF_ERRORS: Final = """l.topic, l.partition, l.record_offset, l.topic_id, l.cause, l.error_class, l.sqlstate,
       l.table_name, l.constraint_name, l.column_name, l.created_at"""

_NO_SIZE: Final = ", 0 AS size"
_SIZE: Final = """,
       coalesce(octet_length(l.key), 0) + coalesce(octet_length(l.value), 0) + coalesce(pg_column_size(l.headers), 0)
       AS size"""


def _error_is(column: str, name: str) -> str:
    """Compare the beginning, which is indexed, and is all of a short name; the whole only of longer ones."""
    found, asked = f"coalesce(l.{column}, '')", f"CAST(:{name} AS text)"
    return f"""({asked} IS NULL OR left({found}, {INDEXED}) = left({asked}, {INDEXED})
       AND (length({asked}) < {INDEXED} OR {found} = {asked}))"""


_FITS: Final = f"""(CAST(:cause AS text) IS NULL OR l.cause = CAST(:cause AS text))
  AND (CAST(:topic AS text) IS NULL OR l.topic = CAST(:topic AS text))
  AND (CAST(:partition AS integer) IS NULL OR l.partition = CAST(:partition AS integer))
  AND {_error_is("error_class", "error_class")}
  AND {_error_is("sqlstate", "sqlstate")}
  AND {_error_is("table_name", "table")}
  AND {_error_is("constraint_name", "constraint")}
  AND {_error_is("column_name", "column")}"""

# The order in which letters are locked and replayed.
_KEY: Final = 'l.topic, l.partition, l.record_offset, l.topic_id COLLATE "C"'
_NEWEST: Final = "l.created_at DESC, l.topic DESC, l.partition DESC, l.record_offset DESC, l.topic_id DESC"

# Of the first letters, one more than asked for, keeps those that fit into the bytes, and at least one; ``more`` tells
# whether there are others.
_WITHIN: Final = """
SELECT * FROM (
SELECT l.*, row_number() OVER ordered AS number, sum(l.size) OVER ordered AS bytes, count(*) OVER () AS found
FROM (%s) AS l
WINDOW ordered AS (ORDER BY %s)) AS measured
WHERE number = 1 OR (number <= CAST(:limit AS bigint) AND (CAST(:max_bytes AS bigint) IS NULL OR bytes <= :max_bytes))
ORDER BY number
"""

# One scan of the index for each state, which ends after a page: an index on all states would be a second one, and a
# condition on several states would read all their letters.
_LIST: Final = """
SELECT l.* FROM unnest(CAST(:states AS text[])) AS asked (state)
CROSS JOIN LATERAL (
SELECT %s FROM {s}dead_letters AS l
WHERE l.consumer_group = :group AND l.state = asked.state
  AND (l.created_at, l.topic, l.partition, l.record_offset, l.topic_id)
      < (coalesce(CAST(:after_at AS timestamptz), 'infinity'), CAST(:after_topic AS text),
         CAST(:after_partition AS integer), CAST(:after_offset AS bigint), CAST(:after_topic_id AS text))
  AND %s
ORDER BY %s
LIMIT %s) AS l
ORDER BY %s
LIMIT %s"""
_PAGE: Final = "CAST(:limit AS bigint) + 1"


def _list(columns: str) -> str:
    return _WITHIN % (_LIST % (columns, _FITS, _NEWEST, _PAGE, _NEWEST, _PAGE), _NEWEST)


def _newest(columns: str) -> str:
    """Of all letters in these states, the newest ones, or those that follow a letter: ``:within`` of them."""
    return _LIST % (columns, "true", _NEWEST, "CAST(:within AS bigint)", _NEWEST, "CAST(:within AS bigint)")


LIST_LETTERS: Final = _list(_SUMMARY + _NO_SIZE)
LIST_LETTERS_WITH_CONTENTS: Final = _list(_SUMMARY + _CONTENTS + _SIZE)

# The letters that fit, and the last one that was looked at, from which the next page goes on.
LIST_LETTERS_WITHIN: Final = f"""
WITH newest AS MATERIALIZED (%s),
fitting AS (SELECT l.* FROM newest AS l WHERE {_FITS} ORDER BY {_NEWEST} LIMIT {_PAGE})
SELECT true AS fits, l.* FROM fitting AS l
UNION ALL
SELECT false AS fits, l.* FROM (SELECT l.* FROM newest AS l ORDER BY {_NEWEST}
                                OFFSET CAST(:within AS bigint) - 1) AS l
ORDER BY fits DESC, created_at DESC, topic DESC, partition DESC, record_offset DESC, topic_id DESC
""" % _newest(_SUMMARY)

# Without a topic's id, the newest letter of the record. ``n`` are the keys.
_NAMED: Final = """l.topic = n.topic AND l.partition = n.partition AND l.record_offset = n.record_offset
  AND (l.topic_id = n.topic_id
       OR n.topic_id IS NULL
          AND NOT EXISTS (SELECT FROM {s}dead_letters AS o
                          WHERE o.consumer_group = l.consumer_group AND o.topic = l.topic
                            AND o.partition = l.partition AND o.record_offset = l.record_offset
                            AND (o.created_at, o.topic_id) > (l.created_at, l.topic_id)))"""
_KEYS: Final = """unnest(CAST(:topics AS text[]), CAST(:partitions AS integer[]), CAST(:offsets AS bigint[]),
            CAST(:topic_ids AS text[])) AS n (topic, partition, record_offset, topic_id)"""


def _letter_statement(columns: str) -> str:
    return f"""
SELECT {columns}
FROM {{s}}dead_letters AS l
JOIN {_KEYS} ON {_NAMED}
WHERE l.consumer_group = (SELECT :group)
"""


LETTER: Final = _letter_statement(_SUMMARY)
LETTER_WITH_CONTENTS: Final = _letter_statement(_SUMMARY + _CONTENTS)

COUNT_LETTERS: Final = """
SELECT state, count(*) AS count FROM {s}dead_letters
WHERE consumer_group = :group AND state = ANY (CAST(:states AS text[]))
GROUP BY state
"""

# The order makes it read the index: of a state that few letters have, it would expect to find enough in the table soon.
COUNT_LETTERS_UP_TO: Final = """
SELECT asked.state, l.count FROM unnest(CAST(:states AS text[])) AS asked (state)
CROSS JOIN LATERAL (
SELECT count(*) AS count FROM (
SELECT FROM {s}dead_letters AS l WHERE l.consumer_group = :group AND l.state = asked.state
ORDER BY l.created_at DESC LIMIT CAST(:up_to AS bigint)) AS l) AS l
WHERE l.count > 0
"""

_ERRORS: Final = f"""
SELECT * FROM (
SELECT DISTINCT ON (l.cause, l.error_class, l.sqlstate, l.table_name, l.constraint_name, l.column_name)
       l.cause, l.error_class, l.sqlstate, l.table_name, l.constraint_name, l.column_name,
       count(*) OVER same AS count, min(l.created_at) OVER same AS first_at, max(l.created_at) OVER same AS last_at,
       l.topic, l.partition, l.record_offset, l.topic_id
FROM %s AS l
WHERE %s AND {_FITS}
WINDOW same AS (PARTITION BY l.cause, l.error_class, l.sqlstate, l.table_name, l.constraint_name, l.column_name)
ORDER BY l.cause, l.error_class, l.sqlstate, l.table_name, l.constraint_name, l.column_name, {_NEWEST}) AS errors
ORDER BY count DESC, last_at DESC
LIMIT :limit
"""
LETTER_ERRORS: Final = _ERRORS % (
    "{s}dead_letters",
    "l.consumer_group = :group AND l.state = ANY (CAST(:states AS text[]))",
)
LETTER_ERRORS_WITHIN: Final = _ERRORS % (f"({_newest(_OF_ERRORS)})", "true")

COUNT_REPLAYED: Final = """
SELECT count(*) AS count
FROM unnest(CAST(:topics AS text[]), CAST(:partitions AS integer[]), CAST(:froms AS bigint[]),
            CAST(:untils AS bigint[])) AS n (topic, partition, from_offset, until_offset)
JOIN {s}kafka_partitions AS p
  ON p.consumer_group = (SELECT :group) AND p.topic = n.topic AND p.partition = n.partition
JOIN {s}dead_letters AS l
  ON l.consumer_group = p.consumer_group AND l.topic = p.topic AND l.partition = p.partition
 AND l.record_offset >= n.from_offset AND l.record_offset < n.until_offset
 AND l.topic_id IN ('', coalesce(p.topic_id, l.topic_id))
WHERE l.state = 'replayed'
"""

_CHOSEN: Final = """l.topic, l.partition, l.record_offset, l.topic_id, l.state, l.payload, l.forced, l.times,
       l.attempts, l.created_at"""
_PAYLOAD: Final = "l.payload = ANY (CAST(:payloads AS text[]))"

CHOOSE_FITTING: Final = f"""
SELECT {_CHOSEN}
FROM {{s}}dead_letters AS l
WHERE l.consumer_group = :group AND l.state = ANY (CAST(:states AS text[])) AND {_PAYLOAD} AND {_FITS}
ORDER BY {_KEY}
LIMIT :limit
"""

CHOOSE_NAMED: Final = f"""
SELECT {_CHOSEN}
FROM {{s}}dead_letters AS l
JOIN {_KEYS} ON {_NAMED}
WHERE l.consumer_group = (SELECT :group) AND {_PAYLOAD}
ORDER BY {_KEY}
LIMIT :limit
"""

LOCK_FITTING: Final = CHOOSE_FITTING + "FOR UPDATE OF l\n"
LOCK_NAMED: Final = CHOOSE_NAMED + "FOR UPDATE OF l\n"

# Only where it is asked for: a dashboard's role may not read the sequence.
_OVERTAKEN: Final = f"{_CHOSEN}, coalesce(octet_length(l.sequence) > {SEQUENCE_BYTES}, false) AS overtaken"

# Not `<> 'kept'`, for which no index is searched.
COUNT_WITHOUT_PAYLOAD: Final = f"""
SELECT count(*) AS count FROM {{s}}dead_letters AS l
WHERE l.consumer_group = :group AND l.state = ANY (CAST(:states AS text[]))
  AND l.payload IN ('left out', 'erased') AND {_FITS}
"""

_EXACTLY: Final = """l.consumer_group = (SELECT :group) AND l.topic = n.topic AND l.partition = n.partition
  AND l.record_offset = n.record_offset AND l.topic_id = n.topic_id"""

# The caller has locked them, in their order.
DECIDE_LETTERS: Final = f"""
UPDATE {{s}}dead_letters AS l
SET state = :state, forced = :forced, decided_at = clock_timestamp(), actor = :actor, reason = :reason
FROM {_KEYS}
WHERE {_EXACTLY}
"""

# The digest goes too: who knows a key can tell that a letter was its. A trace leads to the record elsewhere.
ERASE_LETTERS: Final = f"""
UPDATE {{s}}dead_letters AS l
SET payload = 'erased', key = NULL, value = NULL, headers = NULL, error_text = NULL, traceback = NULL, sequence = NULL,
    trace_id = NULL
FROM {_KEYS}
WHERE {_EXACTLY}
"""

# ``created_at`` is in the index, and never later than ``decided_at``.
_PRUNABLE: Final = """l.consumer_group = :group AND l.state = ANY (CAST(:states AS text[]))
  AND l.created_at < :before AND l.decided_at < :before"""

PRUNABLE: Final = f"""
SELECT l.topic, l.partition, l.record_offset, l.topic_id
FROM {{s}}dead_letters AS l WHERE {_PRUNABLE} ORDER BY {_KEY} LIMIT :limit
"""
LOCK_PRUNABLE: Final = f"{PRUNABLE} FOR UPDATE OF l"

# The caller has locked them, in their order.
PRUNE_LETTERS: Final = f"DELETE FROM {{s}}dead_letters AS l USING {_KEYS} WHERE {_EXACTLY}"

HAS_REQUESTED: Final = """
SELECT EXISTS (SELECT FROM {s}dead_letters WHERE consumer_group = :group AND state = 'requested')
"""

# A sequence is a key of one topic, and ends with it: `e` of a topic that was deleted since keeps nothing waiting.
REQUESTED_LETTERS: Final = _WITHIN % (
    f"""
SELECT {_SUMMARY}{_CONTENTS}{_SIZE}
FROM {{s}}dead_letters AS l
WHERE l.consumer_group = :group AND l.state = 'requested' AND l.topic = ANY (CAST(:topics AS text[]))
  AND (CAST(:numbers AS integer[]) IS NULL OR (l.topic, l.partition) IN (
      SELECT asked.topic, asked.partition
      FROM unnest(CAST(:of_topics AS text[]), CAST(:numbers AS integer[])) AS asked (topic, partition)))
  AND EXISTS (SELECT FROM {{s}}kafka_partitions AS p
              WHERE p.consumer_group = l.consumer_group AND p.topic = l.topic AND p.partition = l.partition
                AND (l.record_offset < p.next_offset OR l.topic_id NOT IN ('', coalesce(p.topic_id, l.topic_id))))
  AND NOT EXISTS (SELECT FROM {{s}}dead_letters AS e
                  WHERE e.consumer_group = l.consumer_group AND e.sequence = l.sequence
                    AND e.record_offset < l.record_offset AND e.state = 'dead'
                    AND (e.topic_id = l.topic_id OR '' IN (e.topic_id, l.topic_id)))
ORDER BY {_KEY}
LIMIT CAST(:limit AS bigint) + 1""",
    _KEY,
)

MARK_REPLAYED: Final = f"""
UPDATE {{s}}dead_letters AS l SET state = 'replayed', decided_at = clock_timestamp(), actor = :actor
FROM {_KEYS}
WHERE {_EXACTLY} AND l.state = 'requested'
"""

RETURN_LETTERS: Final = f"""
UPDATE {{s}}dead_letters AS l
SET state = 'dead', attempts = l.attempts + 1, forced = false, cause = coalesce(n.cause, l.cause),
    error_class = n.error_class, sqlstate = n.sqlstate, table_name = n.table_name, constraint_name = n.constraint_name,
    column_name = n.column_name, error_text = n.error_text, traceback = n.traceback,
    decided_at = clock_timestamp(), actor = :actor, reason = 'the replay failed'
FROM unnest(CAST(:topics AS text[]), CAST(:partitions AS integer[]), CAST(:offsets AS bigint[]),
            CAST(:topic_ids AS text[]), CAST(:causes AS text[]), CAST(:classes AS text[]), CAST(:sqlstates AS text[]),
            CAST(:tables AS text[]), CAST(:constraints AS text[]), CAST(:columns AS text[]), CAST(:texts AS text[]),
            CAST(:tracebacks AS text[]))
     AS n (topic, partition, record_offset, topic_id, cause, error_class, sqlstate, table_name, constraint_name,
           column_name, error_text, traceback)
WHERE {_EXACTLY} AND l.state = 'requested'
"""

OPEN_SEQUENCES: Final = f"""
SELECT l.sequence, min(l.record_offset) AS record_offset
FROM {{s}}dead_letters AS l
JOIN {{s}}kafka_partitions AS p
  ON p.consumer_group = l.consumer_group AND p.topic = l.topic AND p.partition = l.partition
 AND l.record_offset < p.next_offset AND l.topic_id IN ('', coalesce(p.topic_id, l.topic_id))
WHERE l.consumer_group = :group AND l.sequence IS NOT NULL AND octet_length(l.sequence) = {SEQUENCE_BYTES}
  AND l.state IN ('dead', 'requested')
GROUP BY l.sequence
"""


class StoredLetterStatements(Statements):
    """A session's part that implements `StoredLetterSession`."""

    def letters(
        self,
        group: str,
        which: LetterFilter,
        *,
        after: LetterCursor | None,
        limit: int,
        max_bytes: int | None,
        within: int | None = None,
    ) -> tuple[list[Letter], LetterCursor | None]:
        values = {"group": group, "limit": limit, **_fitting(which), **_after(after)}
        if within is not None:
            rows = self.rows(LIST_LETTERS_WITHIN, within=within, **values)
            found = [_letter(row, contents=False) for row in rows if row.fits]
            last = next((_letter(row, contents=False) for row in rows if not row.fits), None)
            end = found[limit - 1] if len(found) > limit else last
            return found[:limit], None if end is None else LetterCursor.of(end)
        with needing("read the contents of dead letters"):
            statement = LIST_LETTERS if max_bytes is None else LIST_LETTERS_WITH_CONTENTS
            rows = self.rows(statement, max_bytes=max_bytes, **values)
        found = [_letter(row, contents=max_bytes is not None) for row in rows]
        return found, LetterCursor.of(found[-1]) if found and rows[0].found > len(rows) else None

    def letter(self, group: str, key: LetterKey, *, contents: bool) -> Letter | None:
        with needing("read the contents of dead letters"):
            rows = self.rows(LETTER_WITH_CONTENTS if contents else LETTER, group=group, **_named([key]))
        return next((_letter(row, contents=contents) for row in rows), None)

    def count_letters(
        self, group: str, states: Collection[State] = STATES, *, up_to: int | None = None
    ) -> dict[State, int]:
        if up_to is None:
            rows = self.rows(COUNT_LETTERS, group=group, states=[*states])
        else:
            rows = self.rows(COUNT_LETTERS_UP_TO, group=group, states=[*states], up_to=up_to)
        return {row.state: row.count for row in rows}

    def letter_errors(
        self, group: str, which: LetterFilter, *, limit: int, within: int | None = None
    ) -> list[ErrorGroup]:
        values = {"group": group, "limit": limit, **_fitting(which)}
        if within is None:
            rows = self.rows(LETTER_ERRORS, **values)
        else:
            rows = self.rows(LETTER_ERRORS_WITHIN, within=within, **values, **_after(None))
        return [ErrorGroup(*row[:9], example=_key(row)) for row in rows]  # as _ERRORS has them

    def count_replayed(self, group: str, ranges: Mapping[TopicPartition, OffsetRange]) -> int:
        return self.one(
            COUNT_REPLAYED,
            group=group,
            topics=[tp.topic for tp in ranges],
            partitions=[tp.partition for tp in ranges],
            froms=[range_.from_ for range_ in ranges.values()],
            untils=[range_.until for range_ in ranges.values()],
        ).count

    def choose_letters(
        self,
        group: str,
        which: LetterFilter | Collection[LetterKey],
        *,
        limit: int,
        payloads: Collection[PayloadState] = PAYLOADS,
        lock: bool = False,
        overtaken: bool = False,
    ) -> dict[LetterKey, ChosenLetter]:
        if isinstance(which, LetterFilter):
            statement, values = LOCK_FITTING if lock else CHOOSE_FITTING, _fitting(which)
        else:
            statement, values = LOCK_NAMED if lock else CHOOSE_NAMED, _named(which)
        if overtaken:
            statement = statement.replace(_CHOSEN, _OVERTAKEN)
        rows = self.rows(statement, group=group, limit=limit, payloads=[*payloads], **values)
        return {_key(row): ChosenLetter(*row[4:]) for row in rows}  # after the key, as _CHOSEN has them

    def count_without_payload(self, group: str, which: LetterFilter) -> int:
        return self.one(COUNT_WITHOUT_PAYLOAD, group=group, **_fitting(which)).count

    def decide_letters(
        self, group: str, keys: Collection[LetterKey], state: State, *, actor: str, reason: str, forced: bool = False
    ) -> None:
        self.run(DECIDE_LETTERS, group=group, state=state, actor=actor, reason=reason, forced=forced, **_named(keys))

    def erase_letters(self, group: str, keys: Collection[LetterKey]) -> None:
        self.run(ERASE_LETTERS, group=group, **_named(keys))

    def prunable(self, group: str, states: Collection[State], before: datetime, *, limit: int) -> tuple[LetterKey, ...]:
        return tuple(map(_key, self.rows(PRUNABLE, group=group, states=[*states], before=before, limit=limit)))

    def lock_prunable(
        self, group: str, states: Collection[State], before: datetime, *, limit: int
    ) -> tuple[LetterKey, ...]:
        with needing("delete dead letters"):
            return tuple(map(_key, self.rows(LOCK_PRUNABLE, group=group, states=[*states], before=before, limit=limit)))

    def prune_letters(self, group: str, keys: Collection[LetterKey]) -> int:
        with needing("delete dead letters"):
            return self.run(PRUNE_LETTERS, group=group, **_named(keys))

    def has_requested(self, group: str) -> bool:
        return self.one(HAS_REQUESTED, group=group)[0]

    def requested_letters(
        self,
        group: str,
        topics: Collection[str],
        partitions: Collection[TopicPartition] | None = None,
        *,
        limit: int,
        max_bytes: int,
    ) -> list[Letter]:
        of_topics = None if partitions is None else [tp.topic for tp in partitions]
        numbers = None if partitions is None else [tp.partition for tp in partitions]
        rows = self.rows(
            REQUESTED_LETTERS,
            group=group,
            topics=[*topics],
            of_topics=of_topics,
            numbers=numbers,
            limit=limit,
            max_bytes=max_bytes,
        )
        return [_letter(row, contents=True) for row in rows]

    def lock_letters(self, group: str, keys: Collection[LetterKey]) -> dict[LetterKey, ChosenLetter]:
        return self.choose_letters(group, keys, limit=len(keys), lock=True, overtaken=True)

    def mark_replayed(self, group: str, keys: Collection[LetterKey], *, actor: str) -> int:
        return self.run(MARK_REPLAYED, group=group, actor=actor, **_named(keys))

    def return_letters(self, group: str, failed: Mapping[LetterKey, FailedReplay], *, actor: str) -> int:
        return self.run(
            RETURN_LETTERS,
            group=group,
            actor=actor,
            causes=[one.cause for one in failed.values()],
            **error_columns(one.error for one in failed.values()),
            **_named(failed),
        )

    def open_sequences(self, group: str) -> dict[bytes, int]:
        return {bytes(row.sequence): row.record_offset for row in self.rows(OPEN_SEQUENCES, group=group)}


def _fitting(which: LetterFilter) -> dict[str, object]:
    return {
        "states": [*(which.states or STATES)],
        "cause": which.cause,
        "topic": which.topic,
        "partition": which.partition,
        "error_class": which.error_class,
        "sqlstate": which.sqlstate,
        "table": which.table,
        "constraint": which.constraint,
        "column": which.column,
    }


def _after(cursor: LetterCursor | None) -> dict[str, object]:
    at, topic, partition, offset, topic_id = cursor or (None,) * 5
    return {
        "after_at": at,
        "after_topic": topic,
        "after_partition": partition,
        "after_offset": offset,
        "after_topic_id": topic_id,
    }


def _named(keys: Collection[LetterKey]) -> dict[str, object]:
    listed = list(keys)
    return {
        **record_arrays((key.topic_partition, key.offset) for key in listed),
        "topic_ids": [key.topic_id for key in listed],
    }


def _key(row: Any) -> LetterKey:
    return LetterKey(TopicPartition(row.topic, row.partition), row.record_offset, row.topic_id)


def _letter(row: Any, *, contents: bool) -> Letter:
    is_kept = contents and row.payload == "kept"
    return Letter(
        TopicPartition(row.topic, row.partition),
        row.record_offset,
        row.topic_id,
        row.state,
        row.cause,
        LetterError(
            row.error_class,
            (row.error_text or "") if contents else "",
            row.sqlstate,
            row.table_name,
            row.constraint_name,
            row.column_name,
            row.traceback if contents else None,
        ),
        row.attempts,
        row.times,
        row.sequence if contents else None,
        Payload(row.key, row.value, read_headers(row.headers), row.timestamp_ms, row.timestamp_type)
        if is_kept
        else None,
        row.payload,
        forced=row.forced,
        trace_id=row.trace_id,
        created_at=row.created_at,
        decided_at=row.decided_at,
        actor=row.actor,
        reason=row.reason,
    )

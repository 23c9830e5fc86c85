"""A job's dead letters on PostgreSQL: the statements, and the session's part for `LetterSession`.

A value of 10 MB stays in the table's TOAST unless a statement's result names its column: sorting and measuring don't
read it.
"""

# ruff: noqa: S608 - statements are made of this file's constants alone

from __future__ import annotations

import base64
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final, cast

from offsetstore.offsets import OffsetRange, TopicPartition, in_parts
from offsetstore.postgres.errors import refusing_letters, translated
from offsetstore.postgres.statements import Statements
from offsetstore.protocol.database import NewOffset
from offsetstore.protocol.letters import (
    SEQUENCE_BYTES,
    ChosenLetter,
    Failed,
    FailedReplay,
    Headers,
    Letter,
    LetterError,
    LetterKey,
    NewLetter,
    Payload,
    writable,
)

CHUNK: Final = 16 << 20
"""Bytes of keys, values and headers that are sent with one statement."""

# One record, one letter: group, topic, partition, offset and topic id name it. An id from a sequence would not:
# logical replication does not copy sequences (decision 0036).
WRITE_LETTERS: Final = """
INSERT INTO {s}dead_letters AS l
       (consumer_group, topic, partition, record_offset, topic_id, state, cause, payload, key, value, headers,
        timestamp_ms, timestamp_type, error_class, sqlstate, table_name, constraint_name, column_name, error_text,
        traceback, attempts, sequence, trace_id)
SELECT :group, n.topic, n.partition, n.record_offset,
       coalesce((SELECT max(p.topic_id) FROM {s}kafka_partitions AS p
                 WHERE p.consumer_group = (SELECT :group) AND p.topic = n.topic), ''),
       'dead', n.cause, n.payload, n.key, n.value, CAST(n.headers AS jsonb), n.timestamp_ms, n.timestamp_type,
       n.error_class, n.sqlstate, n.table_name, n.constraint_name, n.column_name, n.error_text, n.traceback,
       n.attempts, n.sequence, n.trace_id
FROM unnest(CAST(:topics AS text[]), CAST(:partitions AS integer[]), CAST(:offsets AS bigint[]),
            CAST(:causes AS text[]), CAST(:payloads AS text[]), CAST(:keys AS bytea[]), CAST(:values AS bytea[]),
            CAST(:headers AS text[]), CAST(:timestamps AS bigint[]), CAST(:timestamp_types AS smallint[]),
            CAST(:classes AS text[]), CAST(:sqlstates AS text[]), CAST(:tables AS text[]),
            CAST(:constraints AS text[]), CAST(:columns AS text[]), CAST(:texts AS text[]),
            CAST(:tracebacks AS text[]), CAST(:attempts AS integer[]), CAST(:sequences AS bytea[]),
            CAST(:trace_ids AS text[]))
     AS n (topic, partition, record_offset, cause, payload, key, value, headers, timestamp_ms, timestamp_type,
           error_class, sqlstate, table_name, constraint_name, column_name, error_text, traceback, attempts, sequence,
           trace_id)
ORDER BY n.topic COLLATE "C", n.partition, n.record_offset
ON CONFLICT (consumer_group, topic, partition, record_offset, topic_id) DO UPDATE
SET state = 'dead', cause = excluded.cause, payload = excluded.payload, key = excluded.key, value = excluded.value,
    headers = excluded.headers, timestamp_ms = excluded.timestamp_ms, timestamp_type = excluded.timestamp_type,
    error_class = excluded.error_class, sqlstate = excluded.sqlstate, table_name = excluded.table_name,
    constraint_name = excluded.constraint_name, column_name = excluded.column_name,
    error_text = excluded.error_text, traceback = excluded.traceback, attempts = excluded.attempts,
    times = l.times + 1, sequence = excluded.sequence, forced = false, trace_id = excluded.trace_id,
    decided_at = NULL, actor = NULL, reason = NULL
"""

LETTERS_AHEAD: Final = """
SELECT l.topic, l.partition, max(l.record_offset) AS record_offset
FROM {s}kafka_partitions AS p
JOIN {s}dead_letters AS l
  ON l.consumer_group = p.consumer_group AND l.topic = p.topic AND l.partition = p.partition
 AND l.record_offset >= p.next_offset AND l.topic_id IN ('', coalesce(p.topic_id, l.topic_id))
WHERE p.consumer_group = :group AND l.state IN ('dead', 'requested')
GROUP BY l.topic, l.partition
"""

# OVERTAKE appends a byte: a sequence of this length has not been overtaken.
LETTERS_IN_SEQUENCE: Final = f"""
SELECT l.topic, l.partition, max(l.record_offset) AS record_offset
FROM {{s}}dead_letters AS l
WHERE l.consumer_group = :group AND l.sequence IS NOT NULL AND octet_length(l.sequence) = {SEQUENCE_BYTES}
  AND l.state IN ('dead', 'requested')
GROUP BY l.topic, l.partition
"""

# The letters that a batch passes, locked in the order in which decisions lock letters.
_PASSED: Final = "WITH passed AS MATERIALIZED (\nSELECT l.topic, l.partition, l.record_offset, l.topic_id\n"
_LOCKED: Final = 'ORDER BY l.topic, l.partition, l.record_offset, l.topic_id COLLATE "C"\nFOR UPDATE OF l)\n'
_IS_PASSED: Final = """FROM passed
WHERE l.consumer_group = (SELECT :group) AND l.topic = passed.topic AND l.partition = passed.partition
  AND l.record_offset = passed.record_offset AND l.topic_id = passed.topic_id
"""

OVERTAKE: Final = f"""
{_PASSED}FROM unnest(CAST(:topics AS text[]), CAST(:partitions AS integer[]), CAST(:untils AS bigint[]))
     AS n (topic, partition, until_offset)
JOIN {{s}}dead_letters AS l
  ON l.consumer_group = (SELECT :group) AND l.topic = n.topic AND l.partition = n.partition
 AND l.record_offset < n.until_offset
WHERE l.state IN ('dead', 'requested') AND l.sequence IS NOT NULL AND octet_length(l.sequence) = {SEQUENCE_BYTES}
{_LOCKED}UPDATE {{s}}dead_letters AS l SET sequence = l.sequence || decode('00', 'hex')
{_IS_PASSED}"""

# All letters that OVERTAKE and SUPERSEDE lock, in one order.
LOCK_PASSED: Final = f"""
{_PASSED}FROM unnest(CAST(:topics AS text[]), CAST(:partitions AS integer[]), CAST(:froms AS bigint[]),
            CAST(:untils AS bigint[])) AS n (topic, partition, from_offset, until_offset)
JOIN {{s}}dead_letters AS l
  ON l.consumer_group = (SELECT :group) AND l.topic = n.topic AND l.partition = n.partition
 AND l.record_offset < n.until_offset
WHERE l.state IN ('dead', 'requested')
  AND (l.record_offset >= n.from_offset
       OR l.sequence IS NOT NULL AND octet_length(l.sequence) = {SEQUENCE_BYTES})
{_LOCKED}SELECT count(*) AS count FROM passed
"""

_IN_RANGES: Final = """FROM unnest(CAST(:topics AS text[]), CAST(:partitions AS integer[]), CAST(:froms AS bigint[]),
            CAST(:untils AS bigint[])) AS n (topic, partition, from_offset, until_offset)
JOIN {s}kafka_partitions AS p
  ON p.consumer_group = (SELECT :group) AND p.topic = n.topic AND p.partition = n.partition
JOIN {s}dead_letters AS l
  ON l.consumer_group = (SELECT :group) AND l.topic = n.topic AND l.partition = n.partition
 AND l.record_offset >= n.from_offset AND l.record_offset < n.until_offset
 AND l.topic_id IN ('', coalesce(p.topic_id, l.topic_id))
WHERE l.state IN ('dead', 'requested')"""

LETTERS_IN: Final = f"SELECT l.topic, l.partition, l.record_offset, l.sequence {_IN_RANGES}"

SUPERSEDE: Final = f"""
{_PASSED}{_IN_RANGES}
  AND (l.topic, l.partition, l.record_offset) NOT IN (
      SELECT g.topic, g.partition, g.record_offset
      FROM unnest(CAST(:gone_topics AS text[]), CAST(:gone_partitions AS integer[]), CAST(:gone_offsets AS bigint[]))
           AS g (topic, partition, record_offset))
{_LOCKED}UPDATE {{s}}dead_letters AS l
SET state = 'superseded', decided_at = clock_timestamp(), actor = :actor, reason = 'the job has read the record again'
{_IS_PASSED}"""

ADOPT_LETTERS: Final = """
UPDATE {s}dead_letters AS l SET topic_id = n.topic_id
FROM unnest(CAST(:topics AS text[]), CAST(:topic_ids AS text[])) AS n (topic, topic_id)
WHERE l.consumer_group = (SELECT :group) AND l.topic = n.topic AND l.topic_id = ''
  AND NOT EXISTS (SELECT FROM {s}dead_letters AS o
                  WHERE o.consumer_group = l.consumer_group AND o.topic = l.topic AND o.partition = l.partition
                    AND o.record_offset = l.record_offset AND o.topic_id = n.topic_id)
"""

FAILURES: Final = """
SELECT topic, partition, record_offset, attempts, errors FROM {s}failures WHERE consumer_group = :group
"""

WRITE_FAILURES: Final = """
INSERT INTO {s}failures AS f (consumer_group, topic, partition, record_offset, attempts, errors)
SELECT :group, n.topic, n.partition, n.record_offset, n.attempts, CAST(n.errors AS jsonb)
FROM unnest(CAST(:topics AS text[]), CAST(:partitions AS integer[]), CAST(:offsets AS bigint[]),
            CAST(:attempts AS integer[]), CAST(:errors AS text[]))
     AS n (topic, partition, record_offset, attempts, errors)
ORDER BY n.topic COLLATE "C", n.partition, n.record_offset
ON CONFLICT (consumer_group, topic, partition, record_offset) DO UPDATE
SET attempts = excluded.attempts, errors = excluded.errors, last_at = clock_timestamp()
"""

END_FAILURES: Final = """
DELETE FROM {s}failures AS f
USING unnest(CAST(:topics AS text[]), CAST(:partitions AS integer[]), CAST(:untils AS bigint[]))
      AS n (topic, partition, until_offset)
WHERE f.consumer_group = (SELECT :group) AND f.topic = n.topic AND f.partition = n.partition
  AND f.record_offset < n.until_offset
"""

# Attempts belong to the earlier decision: to another log, or to records that were to be passed.
DROP_FAILURES: Final = """
DELETE FROM {s}failures AS f
USING unnest(CAST(:topics AS text[]), CAST(:partitions AS integer[]), CAST(:offsets AS bigint[]),
             CAST(:topic_ids AS text[]))
      AS n (topic, partition, next_offset, topic_id)
WHERE f.consumer_group = (SELECT :group) AND f.topic = n.topic AND f.partition = n.partition
  AND NOT EXISTS (SELECT FROM {s}kafka_partitions AS p
                  WHERE p.consumer_group = f.consumer_group AND p.topic = f.topic AND p.partition = f.partition
                    AND p.next_offset = n.next_offset
                    AND (p.topic_id = n.topic_id OR p.topic_id IS NULL OR n.topic_id IS NULL))
"""

SUMMARY: Final = """l.topic, l.partition, l.record_offset, l.topic_id, l.state, l.cause, l.payload, l.error_class,
       l.sqlstate, l.table_name, l.constraint_name, l.column_name, l.attempts, l.times, l.forced,
       l.trace_id, l.created_at, l.decided_at, l.actor, l.reason"""

# Selected only on request: a dashboard's role may not read these columns.
CONTENTS: Final = """, l.key, l.value, l.headers, l.timestamp_ms, l.timestamp_type, l.error_text, l.traceback,
       l.sequence"""

SIZE: Final = """,
       coalesce(octet_length(l.key), 0) + coalesce(octet_length(l.value), 0) + coalesce(pg_column_size(l.headers), 0)
       AS size"""

# The order in which letters are locked and replayed.
KEY: Final = 'l.topic, l.partition, l.record_offset, l.topic_id COLLATE "C"'

# Keeps the letters that fit into ``max_bytes``, and at least one. The inner query reads one letter more than asked for,
# so that ``found`` shows whether there are others.
WITHIN: Final = """
SELECT * FROM (
SELECT l.*, row_number() OVER ordered AS number, sum(l.size) OVER ordered AS bytes, count(*) OVER () AS found
FROM (%s) AS l
WINDOW ordered AS (ORDER BY %s)) AS measured
WHERE number = 1 OR (number <= CAST(:limit AS bigint) AND (CAST(:max_bytes AS bigint) IS NULL OR bytes <= :max_bytes))
ORDER BY number
"""

KEYS: Final = """unnest(CAST(:topics AS text[]), CAST(:partitions AS integer[]), CAST(:offsets AS bigint[]),
            CAST(:topic_ids AS text[])) AS n (topic, partition, record_offset, topic_id)"""
EXACTLY: Final = """l.consumer_group = (SELECT :group) AND l.topic = n.topic AND l.partition = n.partition
  AND l.record_offset = n.record_offset AND l.topic_id = n.topic_id"""

CHOSEN: Final = """l.topic, l.partition, l.record_offset, l.topic_id, l.state, l.payload, l.forced, l.times,
       l.attempts, l.created_at"""

# Selected only on request: a dashboard's role may not read the sequence.
OVERTAKEN: Final = f"coalesce(octet_length(l.sequence) > {SEQUENCE_BYTES}, false) AS overtaken"

HAS_REQUESTED: Final = """
SELECT EXISTS (SELECT FROM {s}dead_letters WHERE consumer_group = :group AND state = 'requested')
"""

# Only letters below the stored offset, or of an earlier topic: the job itself reads the others' records again, and they
# would be written twice (decision 0036). A sequence is a key of one topic and ends with it, so an earlier letter (`e`)
# of a deleted topic keeps none waiting.
REQUESTED_LETTERS: Final = WITHIN % (
    f"""
SELECT {SUMMARY}{CONTENTS}{SIZE}
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
ORDER BY {KEY}
LIMIT CAST(:limit AS bigint) + 1""",
    KEY,
)

LOCK_LETTERS: Final = f"""
SELECT {CHOSEN}, {OVERTAKEN}
FROM {{s}}dead_letters AS l
JOIN {KEYS} ON {EXACTLY}
ORDER BY {KEY}
FOR UPDATE OF l
"""

MARK_REPLAYED: Final = f"""
UPDATE {{s}}dead_letters AS l SET state = 'replayed', decided_at = clock_timestamp(), actor = :actor
FROM {KEYS}
WHERE {EXACTLY} AND l.state = 'requested'
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
WHERE {EXACTLY} AND l.state = 'requested'
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


class LetterStatements(Statements):
    """A session's part that implements `LetterSession`."""

    def write_letters(self, group: str, letters: Sequence[NewLetter]) -> int:
        written = 0
        with refusing_letters():
            for part in in_parts(letters, _length, CHUNK):
                errors = error_columns(letter.error for letter in part)
                written += self.run(WRITE_LETTERS, group=group, **_columns(part), **errors)
        return written

    def open_letters(self, group: str) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
        with translated():
            ahead, in_sequence = self.together(LETTERS_AHEAD, LETTERS_IN_SEQUENCE, group=group)
        return _highest(ahead.rows), _highest(in_sequence.rows)

    def pass_letters(
        self,
        group: str,
        again: Mapping[TopicPartition, OffsetRange],
        below: Mapping[TopicPartition, OffsetRange],
        *,
        actor: str,
        gone: Collection[tuple[TopicPartition, int]] = (),
    ) -> None:
        # Each statement locks in order, but OVERTAKE's letters come before SUPERSEDE's: a job and a decision about all
        # letters would wait for each other.
        if again and below:
            self.rows(LOCK_PASSED, group=group, **_bounds({**again, **below}))
        if again:
            without = {f"gone_{name}": values for name, values in record_arrays(gone).items()}
            self.run(SUPERSEDE, group=group, actor=actor, **_bounds(again), **without)
        if below:
            self.run(OVERTAKE, group=group, **_ends(below))

    def letters_in(
        self, group: str, ranges: Mapping[TopicPartition, OffsetRange]
    ) -> dict[tuple[TopicPartition, int], bytes | None]:
        rows = self.rows(LETTERS_IN, group=group, **_bounds(ranges))
        return {(TopicPartition(row.topic, row.partition), row.record_offset): row.sequence for row in rows}

    def adopt_letters(self, group: str, topic_ids: Mapping[str, str]) -> None:
        self.run(ADOPT_LETTERS, group=group, topics=[*topic_ids], topic_ids=[*topic_ids.values()])

    def failures(self, group: str) -> dict[tuple[TopicPartition, int], Failed]:
        return {
            (TopicPartition(row.topic, row.partition), row.record_offset): Failed(row.attempts, row.errors)
            for row in self.rows(FAILURES, group=group)
        }

    def write_failures(self, group: str, failures: Mapping[tuple[TopicPartition, int], Failed]) -> None:
        self.run(
            WRITE_FAILURES,
            group=group,
            **record_arrays(failures),
            attempts=[failed.attempts for failed in failures.values()],
            errors=[json.dumps(dict(failed.errors)) for failed in failures.values()],
        )

    def pass_failures(self, group: str, ranges: Mapping[TopicPartition, OffsetRange]) -> None:
        self.run(END_FAILURES, group=group, **_ends(ranges))

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
        return [letter_of(row, contents=True) for row in rows]

    def lock_letters(self, group: str, keys: Collection[LetterKey]) -> dict[LetterKey, ChosenLetter]:
        return {key_of(row): ChosenLetter(*row[4:]) for row in self.rows(LOCK_LETTERS, group=group, **named(keys))}

    def mark_replayed(self, group: str, keys: Collection[LetterKey], *, actor: str) -> int:
        return self.run(MARK_REPLAYED, group=group, actor=actor, **named(keys))

    def return_letters(self, group: str, failed: Mapping[LetterKey, FailedReplay], *, actor: str) -> int:
        return self.run(
            RETURN_LETTERS,
            group=group,
            actor=actor,
            causes=[replay.cause for replay in failed.values()],
            **error_columns(replay.error for replay in failed.values()),
            **named(failed),
        )

    def open_sequences(self, group: str) -> dict[bytes, int]:
        return {bytes(row.sequence): row.record_offset for row in self.rows(OPEN_SEQUENCES, group=group)}

    def _drop_failures(self, group: str, offsets: Mapping[TopicPartition, NewOffset]) -> None:
        """Delete the attempts of partitions whose stored offset or topic will change."""
        self.run(
            DROP_FAILURES,
            group=group,
            topics=[tp.topic for tp in offsets],
            partitions=[tp.partition for tp in offsets],
            offsets=[new.next_offset for new in offsets.values()],
            topic_ids=[new.topic_id for new in offsets.values()],
        )


def _highest(rows: Iterable[Any]) -> dict[TopicPartition, int]:
    return {TopicPartition(row.topic, row.partition): row.record_offset for row in rows}


def _bounds(ranges: Mapping[TopicPartition, OffsetRange]) -> dict[str, object]:
    return {"froms": [range_.from_ for range_ in ranges.values()], **_ends(ranges)}


def _ends(ranges: Mapping[TopicPartition, OffsetRange]) -> dict[str, object]:
    return {
        "topics": [tp.topic for tp in ranges],
        "partitions": [tp.partition for tp in ranges],
        "untils": [range_.until for range_ in ranges.values()],
    }


def _length(letter: NewLetter) -> int:
    payload = letter.payload
    return 0 if payload is None else length(payload.key, payload.value, payload.headers)


def length(key: bytes | None, value: bytes | None, headers: Headers | None) -> int:
    """About how many bytes a record has."""
    in_headers = sum(len(name) + len(content or b"") for name, content in headers or ())
    return len(key or b"") + len(value or b"") + in_headers


def _columns(letters: Sequence[NewLetter]) -> dict[str, object]:
    """The columns of letters, except their errors'."""
    payloads = [letter.payload for letter in letters]
    return {
        **record_arrays((letter.topic_partition, letter.offset) for letter in letters),
        "causes": [letter.cause for letter in letters],
        "payloads": ["left out" if payload is None else "kept" for payload in payloads],
        "keys": [payload.key if payload else None for payload in payloads],
        "values": [payload.value if payload else None for payload in payloads],
        "headers": [headers_as_json(payload.headers) if payload else None for payload in payloads],
        "timestamps": [payload.timestamp_ms if payload else None for payload in payloads],
        "timestamp_types": [payload.timestamp_type if payload else None for payload in payloads],
        "attempts": [letter.attempts for letter in letters],
        "sequences": [letter.sequence for letter in letters],
        "trace_ids": [letter.trace for letter in letters],
    }


def record_arrays(records: Iterable[tuple[TopicPartition, int]]) -> dict[str, object]:
    """The arrays that name records: ``topics``, ``partitions`` and ``offsets``."""
    listed = list(records)
    return {
        "topics": [tp.topic for tp, _ in listed],
        "partitions": [tp.partition for tp, _ in listed],
        "offsets": [offset for _, offset in listed],
    }


def error_columns(errors: Iterable[LetterError]) -> dict[str, list[str | None]]:
    """The columns of errors, as the database can store them."""
    listed = list(errors)
    columns = {
        "classes": [error.error_class for error in listed],
        "sqlstates": [error.sqlstate for error in listed],
        "tables": [error.table for error in listed],
        "constraints": [error.constraint for error in listed],
        "columns": [error.column for error in listed],
        "texts": [error.text for error in listed],
        "tracebacks": [error.traceback for error in listed],
    }
    return {name: [None if text is None else writable(text) for text in column] for name, column in columns.items()}


def headers_as_json(headers: Headers | None) -> str | None:
    """Write headers as JSON: ``[[name, base64], …]``; a name that jsonb may not hold goes third, in base64."""
    if headers is None:
        return None
    return json.dumps([_header(name, None if value is None else _base64(value)) for name, value in headers])


def _header(name: str, value: str | None) -> list[str | None]:
    # jsonb can hold neither a NUL nor half a surrogate pair.
    is_plain = name.isascii() and "\0" not in name
    return [name, value] if is_plain else [None, value, _base64(name.encode("utf-8", "surrogatepass"))]


def read_headers(headers: Sequence[Sequence[str | None]] | None, *, strict: bool = False) -> Headers | None:
    """Read what `headers_as_json` has written.

    :param strict: whether others may have written them: then an error for what is not base64.
    """
    if headers is None:
        return None
    return tuple(
        (
            name if name is not None else base64.b64decode(cast("str", third[0])).decode("utf-8", "surrogatepass"),
            None if value is None else base64.b64decode(value, validate=strict),
        )
        for name, value, *third in headers
    )


def _base64(value: bytes) -> str:
    return base64.b64encode(value).decode()


def named(keys: Collection[LetterKey]) -> dict[str, object]:
    """The arrays that name letters: those of `record_arrays`, and ``topic_ids``."""
    listed = list(keys)
    return {
        **record_arrays((key.topic_partition, key.offset) for key in listed),
        "topic_ids": [key.topic_id for key in listed],
    }


def key_of(row: Any) -> LetterKey:
    return LetterKey(TopicPartition(row.topic, row.partition), row.record_offset, row.topic_id)


def letter_of(row: Any, *, contents: bool) -> Letter:
    """Make a row's letter.

    :param contents: whether the row has the columns of `CONTENTS`.
    """
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

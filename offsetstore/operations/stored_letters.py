"""Stored dead letters for people: filters, cursors in a list, and the statements that read and change letters."""

# ruff: noqa: S608 - statements are made of constants alone

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Final, NamedTuple

from offsetstore.errors import ConfigurationError
from offsetstore.offsets import MAX_OFFSET, MAX_PARTITION, OffsetRange, TopicPartition
from offsetstore.postgres.errors import needing
from offsetstore.postgres.letters import (
    CHOSEN,
    CONTENTS,
    EXACTLY,
    KEY,
    KEYS,
    OVERTAKEN,
    SIZE,
    SUMMARY,
    WITHIN,
    key_of,
    letter_of,
    named,
)
from offsetstore.postgres.schema import INDEXED
from offsetstore.postgres.session import PostgresSession
from offsetstore.protocol.arguments import check_text, check_whole
from offsetstore.protocol.letters import (
    CAUSES,
    PAYLOADS,
    STATES,
    Cause,
    ChosenLetter,
    Letter,
    LetterKey,
    LetterState,
    PayloadState,
)


@dataclass(frozen=True, slots=True)
class LetterFilter:
    """Chooses letters of a group that have all of these values. ``None`` is for any value, no states for all states.

    :param error_class: this and the parameters after it also take ``""``, for letters without such a value.
    """

    states: tuple[LetterState, ...] = ()
    cause: Cause | None = None
    topic: str | None = None
    partition: int | None = None
    error_class: str | None = None
    sqlstate: str | None = None
    table: str | None = None
    constraint: str | None = None
    column: str | None = None

    def __post_init__(self) -> None:
        if self.partition is not None:
            check_whole("partition", self.partition, most=MAX_PARTITION)
        for name in ("topic", "error_class", "sqlstate", "table", "constraint", "column"):
            if (text := getattr(self, name)) is not None:
                check_text(name, text)
        if unknown := [state for state in self.states if state not in STATES]:
            raise ConfigurationError(
                "a dead letter has no such state", found=", ".join(map(repr, unknown)), expected=", ".join(STATES)
            )
        if self.cause is not None and self.cause not in CAUSES:
            raise ConfigurationError(
                "a dead letter has no such cause", found=repr(self.cause), expected=", ".join(CAUSES)
            )

    def __str__(self) -> str:
        """``cause=refused, constraint=payments_pkey``: all values except the states."""
        values = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "states"}
        return ", ".join(f"{name}={value}" for name, value in values.items() if value is not None)


class LetterCursor(NamedTuple):
    """The place of a letter in a list, the newest letter first; with its group in a list of all groups."""

    created_at: datetime
    topic: str
    partition: int
    offset: int
    topic_id: str
    group: str = ""

    @classmethod
    def of(cls, letter: Letter, group: str = "") -> LetterCursor:
        tp = letter.topic_partition
        return cls(letter.created_at, tp.topic, tp.partition, letter.offset, letter.topic_id, group)

    @classmethod
    def parse(cls, text: str) -> LetterCursor:
        """Read what `__str__` has written.

        :raises ConfigurationError: it is something else.
        """
        try:
            at, topic, partition, offset, topic_id, group = json.loads(base64.urlsafe_b64decode(text.encode()))
            found = cls(datetime.fromisoformat(at), str(topic), int(partition), int(offset), str(topic_id), str(group))
            # Anything may be typed or pasted as a cursor; PostgreSQL would refuse what it can't store in its own words.
            is_storable = (
                found.created_at.tzinfo is not None
                and b"\0" not in (found.topic + found.topic_id + found.group).encode()
                and 0 <= found.partition <= MAX_PARTITION
                and 0 <= found.offset <= MAX_OFFSET
            )
        except (binascii.Error, ValueError, TypeError, OverflowError, RecursionError):
            found, is_storable = None, False
        if found is None or not is_storable:
            raise ConfigurationError("after is not a valid cursor", expected="the `next` of an earlier page")
        return found

    def __str__(self) -> str:
        """One word, for a command line or a URL."""
        fields_ = (self.created_at.isoformat(), *self[1:])
        return base64.urlsafe_b64encode(json.dumps(fields_).encode()).decode()


@dataclass(frozen=True, slots=True)
class ErrorGroup:
    """Letters with one cause and one error.

    :param first_at: when the first of the letters was written, by the database's clock.
    :param example: the newest letter.
    """

    cause: Cause
    error_class: str
    sqlstate: str | None
    table: str | None
    constraint: str | None
    column: str | None
    count: int
    first_at: datetime
    last_at: datetime
    example: LetterKey

    @property
    def which(self) -> LetterFilter:
        """A filter for these letters, in any state and of any topic, for a replay or a discard."""
        return LetterFilter(
            cause=self.cause,
            error_class=self.error_class,
            sqlstate=self.sqlstate or "",
            table=self.table or "",
            constraint=self.constraint or "",
            column=self.column or "",
        )


# The columns by which letters are grouped and told apart.
_OF_ERRORS: Final = """l.topic, l.partition, l.record_offset, l.topic_id, l.cause, l.error_class, l.sqlstate,
       l.table_name, l.constraint_name, l.column_name, l.created_at, l.consumer_group"""

_NO_SIZE: Final = ", 0 AS size"


def _error_is(column: str, name: str) -> str:
    # The index holds the beginnings of names (decision 0036); only a longer name needs a comparison of the whole.
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

_NEWEST: Final = "l.created_at DESC, l.topic DESC, l.partition DESC, l.record_offset DESC, l.topic_id DESC"

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
    return WITHIN % (_LIST % (columns, _FITS, _NEWEST, _PAGE, _NEWEST, _PAGE), _NEWEST)


def _newest(columns: str) -> str:
    """Select the newest ``:within`` letters in these states, or the ones after a letter."""
    return _LIST % (columns, "true", _NEWEST, "CAST(:within AS bigint)", _NEWEST, "CAST(:within AS bigint)")


# The newest letters of all groups: as `_LIST`, with a scan for each group and state. Two groups may have letters of one
# record: then the group is in the cursor, too.
_OF_ALL: Final = f"""
SELECT l.* FROM {{s}}consumer_groups AS g
CROSS JOIN unnest(CAST(:states AS text[])) AS asked (state)
CROSS JOIN LATERAL (
SELECT %s FROM {{s}}dead_letters AS l
WHERE l.consumer_group = g.consumer_group AND l.state = asked.state
  AND (l.created_at, l.topic, l.partition, l.record_offset, l.topic_id, l.consumer_group)
      < (coalesce(CAST(:after_at AS timestamptz), 'infinity'), CAST(:after_topic AS text),
         CAST(:after_partition AS integer), CAST(:after_offset AS bigint), CAST(:after_topic_id AS text),
         CAST(:after_group AS text))
ORDER BY {_NEWEST}
LIMIT CAST(:within AS bigint)) AS l
ORDER BY {_NEWEST}, l.consumer_group DESC
LIMIT CAST(:within AS bigint)"""

LIST_LETTERS: Final = _list(SUMMARY + _NO_SIZE)
LIST_LETTERS_WITH_CONTENTS: Final = _list(SUMMARY + CONTENTS + SIZE)

# The letters that match, and the last letter that was looked at, from which the next page continues.
_WITHIN: Final = f"""
WITH newest AS MATERIALIZED (%s),
fitting AS (SELECT l.* FROM newest AS l WHERE {_FITS} ORDER BY {_NEWEST}%s LIMIT {_PAGE})
SELECT true AS fits, l.* FROM fitting AS l
UNION ALL
SELECT false AS fits, l.* FROM (SELECT l.* FROM newest AS l ORDER BY {_NEWEST}%s
                                OFFSET CAST(:within AS bigint) - 1) AS l
ORDER BY fits DESC, created_at DESC, topic DESC, partition DESC, record_offset DESC, topic_id DESC%s
"""
LIST_LETTERS_WITHIN: Final = _WITHIN % (_newest(SUMMARY), "", "", "")
LIST_LETTERS_OF_ALL: Final = _WITHIN % (
    _OF_ALL % f"{SUMMARY}, l.consumer_group",
    *(", l.consumer_group DESC",) * 2,
    ", consumer_group DESC",
)

# Without a topic's id, the newest letter of the record. ``n`` are the keys.
_NAMED: Final = """l.topic = n.topic AND l.partition = n.partition AND l.record_offset = n.record_offset
  AND (l.topic_id = n.topic_id
       OR n.topic_id IS NULL
          AND NOT EXISTS (SELECT FROM {s}dead_letters AS o
                          WHERE o.consumer_group = l.consumer_group AND o.topic = l.topic
                            AND o.partition = l.partition AND o.record_offset = l.record_offset
                            AND (o.created_at, o.topic_id) > (l.created_at, l.topic_id)))"""


# PostgreSQL knows the groups that were frequent at its last ANALYZE; for a newer one it would expect a single row, and
# compare each key with all of its letters. `(SELECT :group)` hides the group from it (docs/scale.md).
def _letter_statement(columns: str) -> str:
    return f"""
SELECT {columns}
FROM {{s}}dead_letters AS l
JOIN {KEYS} ON {_NAMED}
WHERE l.consumer_group = (SELECT :group)
"""


LETTER: Final = _letter_statement(SUMMARY)
LETTER_WITH_CONTENTS: Final = _letter_statement(SUMMARY + CONTENTS)

COUNT_LETTERS: Final = """
SELECT state, count(*) AS count FROM {s}dead_letters
WHERE consumer_group = :group AND state = ANY (CAST(:states AS text[]))
GROUP BY state
"""

# The order makes PostgreSQL read the index: for a state that few letters have, it would expect a scan of the table to
# find enough of them soon.
COUNT_LETTERS_UP_TO: Final = """
SELECT asked.state, l.count FROM unnest(CAST(:states AS text[])) AS asked (state)
CROSS JOIN LATERAL (
SELECT count(*) AS count FROM (
SELECT FROM {s}dead_letters AS l WHERE l.consumer_group = :group AND l.state = asked.state
ORDER BY l.created_at DESC LIMIT CAST(:up_to AS bigint)) AS l) AS l
WHERE l.count > 0
"""

_SAME_ERROR: Final = (
    "l.consumer_group, l.cause, l.error_class, l.sqlstate, l.table_name, l.constraint_name, l.column_name"
)
_ERRORS: Final = f"""
SELECT * FROM (
SELECT DISTINCT ON ({_SAME_ERROR})
       l.cause, l.error_class, l.sqlstate, l.table_name, l.constraint_name, l.column_name,
       count(*) OVER same AS count, min(l.created_at) OVER same AS first_at, max(l.created_at) OVER same AS last_at,
       l.topic, l.partition, l.record_offset, l.topic_id, l.consumer_group
FROM %s AS l
WHERE %s AND {_FITS}
WINDOW same AS (PARTITION BY {_SAME_ERROR})
ORDER BY {_SAME_ERROR}, {_NEWEST}) AS errors
ORDER BY count DESC, last_at DESC
LIMIT :limit
"""
LETTER_ERRORS: Final = _ERRORS % (
    "{s}dead_letters",
    "l.consumer_group = :group AND l.state = ANY (CAST(:states AS text[]))",
)
LETTER_ERRORS_WITHIN: Final = _ERRORS % (f"({_newest(_OF_ERRORS)})", "true")
LETTER_ERRORS_OF_ALL: Final = _ERRORS % (f"({_OF_ALL % _OF_ERRORS})", "true")

# Only letters of the topics that exist now: those of a topic that was deleted since are not read again by a reset.
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

_PAYLOAD: Final = "l.payload = ANY (CAST(:payloads AS text[]))"

CHOOSE_FITTING: Final = f"""
SELECT {CHOSEN}
FROM {{s}}dead_letters AS l
WHERE l.consumer_group = :group AND l.state = ANY (CAST(:states AS text[])) AND {_PAYLOAD} AND {_FITS}
ORDER BY {KEY}
LIMIT :limit
"""

CHOOSE_NAMED: Final = f"""
SELECT {CHOSEN}
FROM {{s}}dead_letters AS l
JOIN {KEYS} ON {_NAMED}
WHERE l.consumer_group = (SELECT :group) AND {_PAYLOAD}
ORDER BY {KEY}
LIMIT :limit
"""

LOCK_FITTING: Final = CHOOSE_FITTING + "FOR UPDATE OF l\n"
LOCK_NAMED: Final = CHOOSE_NAMED + "FOR UPDATE OF l\n"

# Not `<> 'kept'`, for which PostgreSQL searches no index.
COUNT_WITHOUT_PAYLOAD: Final = f"""
SELECT count(*) AS count FROM {{s}}dead_letters AS l
WHERE l.consumer_group = :group AND l.state = ANY (CAST(:states AS text[]))
  AND l.payload IN ('left out', 'erased') AND {_FITS}
"""

# The caller has locked them, in their order.
DECIDE_LETTERS: Final = f"""
UPDATE {{s}}dead_letters AS l
SET state = :state, forced = :forced, decided_at = clock_timestamp(), actor = :actor, reason = :reason
FROM {KEYS}
WHERE {EXACTLY}
"""

# The digest of the key is erased, too: anyone who knows the key could tell that the letter was of it. A trace leads to
# the record elsewhere.
ERASE_LETTERS: Final = f"""
UPDATE {{s}}dead_letters AS l
SET payload = 'erased', key = NULL, value = NULL, headers = NULL, error_text = NULL, traceback = NULL, sequence = NULL,
    trace_id = NULL
FROM {KEYS}
WHERE {EXACTLY}
"""

# ``created_at`` is never later than ``decided_at``, and is in the index.
_PRUNABLE: Final = """l.consumer_group = :group AND l.state = ANY (CAST(:states AS text[]))
  AND l.created_at < :before AND l.decided_at < :before"""

PRUNABLE: Final = f"""
SELECT l.topic, l.partition, l.record_offset, l.topic_id
FROM {{s}}dead_letters AS l WHERE {_PRUNABLE} ORDER BY {KEY} LIMIT :limit
"""
LOCK_PRUNABLE: Final = f"{PRUNABLE} FOR UPDATE OF l"

# The caller has locked them, in their order.
PRUNE_LETTERS: Final = f"DELETE FROM {{s}}dead_letters AS l USING {KEYS} WHERE {EXACTLY}"


def list_letters(
    session: PostgresSession,
    group: str,
    which: LetterFilter,
    *,
    after: LetterCursor | None,
    limit: int,
    max_bytes: int | None,
    within: int | None = None,
) -> tuple[list[Letter], LetterCursor | None]:
    """Read letters, the newest first, and the cursor of the next page, ``None`` if there is none.

    :param max_bytes: read at most this many bytes of keys, values and headers, but at least one letter. ``None``: read
        no contents, not even from the table.
    :param within: look only at the first ``within`` letters in these states; for lists without contents.
    """
    values = {"group": group, "limit": limit, **_fitting(which), **_after(after)}
    if within is not None:
        rows = session.rows(LIST_LETTERS_WITHIN, within=within, **values)
        found = [letter_of(row, contents=False) for row in rows if row.fits]
        last = next((letter_of(row, contents=False) for row in rows if not row.fits), None)
        end = found[limit - 1] if len(found) > limit else last
        return found[:limit], None if end is None else LetterCursor.of(end)
    with needing("read the contents of dead letters"):
        statement = LIST_LETTERS if max_bytes is None else LIST_LETTERS_WITH_CONTENTS
        rows = session.rows(statement, max_bytes=max_bytes, **values)
    found = [letter_of(row, contents=max_bytes is not None) for row in rows]
    return found, LetterCursor.of(found[-1]) if found and rows[0].found > len(rows) else None


def list_letters_of_all(
    session: PostgresSession, which: LetterFilter, *, after: LetterCursor | None, limit: int, within: int
) -> tuple[list[tuple[str, Letter]], LetterCursor | None]:
    """Do as `list_letters` does, for all groups; with each letter comes its group. ``within`` is for each group."""
    rows = session.rows(LIST_LETTERS_OF_ALL, within=within, limit=limit, **_fitting(which), **_after(after))
    found = [(row.consumer_group, letter_of(row, contents=False), row.fits) for row in rows]
    fitting = [(group, letter) for group, letter, fits in found if fits]
    last = next(((group, letter) for group, letter, fits in found if not fits), None)
    end = fitting[limit - 1] if len(fitting) > limit else last
    return fitting[:limit], None if end is None else LetterCursor.of(end[1], end[0])


def list_letter_errors_of_all(
    session: PostgresSession, which: LetterFilter, *, limit: int, within: int
) -> list[tuple[str, ErrorGroup]]:
    """Do as `list_letter_errors` does, for all groups: with each error comes the group that it is of."""
    rows = session.rows(LETTER_ERRORS_OF_ALL, limit=limit, within=within, **_fitting(which), **_after(None))
    return [(row.consumer_group, ErrorGroup(*row[:9], example=key_of(row))) for row in rows]


def find_letter(session: PostgresSession, group: str, key: LetterKey, *, contents: bool) -> Letter | None:
    """Read one letter; without ``contents``, these are not even read from the table."""
    with needing("read the contents of dead letters"):
        rows = session.rows(LETTER_WITH_CONTENTS if contents else LETTER, group=group, **named([key]))
    return next((letter_of(row, contents=contents) for row in rows), None)


def count_letters(
    session: PostgresSession, group: str, states: Collection[LetterState] = STATES, *, up_to: int | None = None
) -> dict[LetterState, int]:
    """Count the letters in each of these states, no further than ``up_to``; a state without letters is left out."""
    if up_to is None:
        rows = session.rows(COUNT_LETTERS, group=group, states=[*states])
    else:
        rows = session.rows(COUNT_LETTERS_UP_TO, group=group, states=[*states], up_to=up_to)
    return {row.state: row.count for row in rows}


def list_letter_errors(
    session: PostgresSession, group: str, which: LetterFilter, *, limit: int, within: int | None = None
) -> list[ErrorGroup]:
    """Group letters by their errors, the most frequent error first.

    :param within: look only at the newest ``within`` letters in these states.
    """
    values = {"group": group, "limit": limit, **_fitting(which)}
    if within is None:
        rows = session.rows(LETTER_ERRORS, **values)
    else:
        rows = session.rows(LETTER_ERRORS_WITHIN, within=within, **values, **_after(None))
    # The columns are in the order of _ERRORS.
    return [ErrorGroup(*row[:9], example=key_of(row)) for row in rows]


def count_replayed(session: PostgresSession, group: str, ranges: Mapping[TopicPartition, OffsetRange]) -> int:
    """Count the replayed letters in the ranges, of the topics that exist now."""
    return session.one(
        COUNT_REPLAYED,
        group=group,
        topics=[tp.topic for tp in ranges],
        partitions=[tp.partition for tp in ranges],
        froms=[range_.from_ for range_ in ranges.values()],
        untils=[range_.until for range_ in ranges.values()],
    ).count


def choose_letters(
    session: PostgresSession,
    group: str,
    which: LetterFilter | Collection[LetterKey],
    *,
    limit: int,
    payloads: Collection[PayloadState] = PAYLOADS,
    lock: bool = False,
    overtaken: bool = False,
) -> dict[LetterKey, ChosenLetter]:
    """Find at most ``limit`` letters with such payloads, in order; with ``lock``, lock them FOR UPDATE.

    Letters are always locked in this order, after the rows of the group and of its partitions.

    :param overtaken: also read whether they were overtaken, which the dashboard's role may not.
    """
    if isinstance(which, LetterFilter):
        statement, values = LOCK_FITTING if lock else CHOOSE_FITTING, _fitting(which)
    else:
        statement, values = LOCK_NAMED if lock else CHOOSE_NAMED, named(which)
    if overtaken:
        statement = statement.replace(CHOSEN, f"{CHOSEN}, {OVERTAKEN}")
    rows = session.rows(statement, group=group, limit=limit, payloads=[*payloads], **values)
    # The columns after the key are in the order of CHOSEN.
    return {key_of(row): ChosenLetter(*row[4:]) for row in rows}


def count_without_payload(session: PostgresSession, group: str, which: LetterFilter) -> int:
    return session.one(COUNT_WITHOUT_PAYLOAD, group=group, **_fitting(which)).count


def decide_letters(
    session: PostgresSession,
    group: str,
    keys: Collection[LetterKey],
    state: LetterState,
    *,
    actor: str,
    reason: str,
    forced: bool = False,
) -> None:
    """Write the state of letters, which are locked."""
    session.run(DECIDE_LETTERS, group=group, state=state, actor=actor, reason=reason, forced=forced, **named(keys))


def erase_letters(session: PostgresSession, group: str, keys: Collection[LetterKey]) -> None:
    """Erase the contents of letters, which are locked."""
    session.run(ERASE_LETTERS, group=group, **named(keys))


def prunable(
    session: PostgresSession,
    group: str,
    states: Collection[LetterState],
    before: datetime,
    *,
    limit: int,
    lock: bool = False,
) -> tuple[LetterKey, ...]:
    """Find at most ``limit`` letters that were settled before a time, in order; with ``lock``, lock them FOR UPDATE."""
    values = {"group": group, "states": [*states], "before": before, "limit": limit}
    if not lock:
        return tuple(map(key_of, session.rows(PRUNABLE, **values)))
    with needing("delete dead letters"):
        return tuple(map(key_of, session.rows(LOCK_PRUNABLE, **values)))


def prune_letters(session: PostgresSession, group: str, keys: Collection[LetterKey]) -> int:
    """Delete letters, which are locked."""
    with needing("delete dead letters"):
        return session.run(PRUNE_LETTERS, group=group, **named(keys))


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
    at, topic, partition, offset, topic_id, group = cursor or (None,) * 6
    return {
        "after_at": at,
        "after_topic": topic,
        "after_partition": partition,
        "after_offset": offset,
        "after_topic_id": topic_id,
        "after_group": group,
    }

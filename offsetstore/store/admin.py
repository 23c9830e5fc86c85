"""What an operator decides about a group: move its offsets, give it another name. Each with a reason, in the history.

A job that runs meanwhile is fenced like by a claim: its open transaction is waited for, then its token is no longer
the rows'. Rows that were set are pinned, so that what Kafka still has does not win over the decision.
"""

from __future__ import annotations

import math
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from offsetstore.errors import ConfigurationError, LockTimeout, TransactionLost
from offsetstore.offsets import MAX_OFFSET, StoredOffset, Token, TopicPartition
from offsetstore.store import failures
from offsetstore.store.claims import name_prefix, this_process
from offsetstore.store.session import HistoryEvent, NewOffset

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

    from offsetstore.store.session import Database, Session

_GRACE: Final = 15.0
_AGAIN: Final = "Look at the group's history: it holds what was done. If it is not there, do it again."


def reset(
    database: Database,
    group: str,
    offsets: Mapping[TopicPartition, int],
    *,
    reason: str,
    actor: str | None,
    takeover_timeout: float,
) -> list[HistoryEvent]:
    """Set stored offsets; see `OffsetStore.reset`."""
    _expect_group(group)
    _expect_reason(reason, takeover_timeout)
    _expect_offsets(offsets)
    with _deciding(database, (group,), takeover_timeout) as session:
        before = session.lock_group(group)
        rows = session.lock_partitions(group, None)
        _expect_rows(group, rows, offsets)
        token, who = Token(before.epoch + 1, uuid4()), actor or this_process()
        _write_token(session, group, token, who)
        session.set_partitions(group, token, {tp: _pinned(rows[tp], offsets[tp]) for tp in sorted(offsets)})
        events = [
            HistoryEvent("reset", tp, rows[tp].next_offset, offset, token, who, reason)
            for tp, offset in sorted(offsets.items())
        ]
        session.append_history(group, events)
    return events


def rename_group(
    database: Database, group: str, new: str, *, reason: str, actor: str | None, takeover_timeout: float
) -> None:
    """Move a group's rows to another name; see `OffsetStore.rename_group`."""
    _expect_group(group)
    _expect_group(new)
    _expect_reason(reason, takeover_timeout)
    if group == new:
        what = "the group has that name already"
        raise ConfigurationError(what, found=repr(new), expected="another name")
    with _deciding(database, (group, new), takeover_timeout) as session:
        tokens = {name: session.lock_group(name) for name in sorted((group, new))}
        held = {name: session.lock_partitions(name, None) for name in sorted((group, new))}
        rows = held[group]
        if not rows:
            what = f"the store has no offsets of group {group!r}"
            raise ConfigurationError(what, next_step="Correct the name; `offsetstore status` shows a group.")
        if held[new]:
            what = f"there is a group {new!r} already"
            raise ConfigurationError(what, found=f"{len(held[new])} partitions", expected="a name without offsets")
        # Above both, so that neither's jobs hold it, and no copy in Kafka is of this epoch.
        token, who = Token(max(one.epoch for one in tokens.values()) + 1, uuid4()), actor or this_process()
        session.rename_group(group, new)
        # The old name keeps its row: a job that still runs under it is stale, and creates nothing.
        for name in (group, new):
            _write_token(session, name, token, who)
        session.set_partitions(new, token, {tp: _pinned(row, row.next_offset) for tp, row in rows.items()})
        session.append_history(group, [HistoryEvent("rename", None, None, None, token, who, f"to {new!r}: {reason}")])
        session.append_history(new, _arrivals(rows, token, who, f"from {group!r}: {reason}"))


def _arrivals(rows: Mapping[TopicPartition, StoredOffset], token: Token, who: str, why: str) -> list[HistoryEvent]:
    arrived = [HistoryEvent("rename", tp, None, row.next_offset, token, who, why) for tp, row in rows.items()]
    return [HistoryEvent("rename", None, None, None, token, who, why), *arrived]


def _pinned(row: StoredOffset, offset: int) -> NewOffset:
    return NewOffset(offset, row.topic_id, row.cluster_id, pinned=True)


def _write_token(session: Session, group: str, token: Token, who: str) -> None:
    """Fence whoever has the group. No job runs with the new token, so that no heartbeat is left for it."""
    session.write_group(group, token, who)
    session.end_beat(token.claim_id)


@contextmanager
def _deciding(database: Database, groups: tuple[str, ...], takeover_timeout: float) -> Generator[Session]:
    """One transaction, which the jobs of the groups can't hold up for longer than ``takeover_timeout``."""
    prefix = name_prefix(groups[0])
    session = database.begin(name=f"{prefix}admin", lock_timeout=takeover_timeout + _GRACE)
    try:
        with database.unblocking(session, after=takeover_timeout, older_than=prefix):
            yield session
        session.commit()
    except BaseException as error:
        session.rollback()
        if failures.is_lock_timeout(error):
            what = f"group {groups[0]!r} is locked by somebody who is no job of this group"
            raise LockTimeout(what) from error
        if failures.is_connection_lost(error) or failures.is_repeatable(error):
            what = "the connection to the database was lost, or the database gave up the transaction"
            raise TransactionLost(what, next_step=_AGAIN) from error
        if (shortage := failures.shortage(error)) is not None:
            raise shortage from error
        raise


def _expect_group(group: str) -> None:
    if not group or "\0" in group:
        what = "not a consumer group"
        raise ConfigurationError(what, found=repr(group), expected="a name")


def _expect_reason(reason: str, takeover_timeout: float) -> None:
    if not reason.strip():
        what = "a decision needs a reason, for those who read the history"
        raise ConfigurationError(what, found=repr(reason), expected="a sentence")
    if not 0 <= takeover_timeout < math.inf:
        what = "not a takeover_timeout"
        raise ConfigurationError(what, found=takeover_timeout, expected="seconds, from 0 upwards")


def _expect_offsets(offsets: Mapping[TopicPartition, int]) -> None:
    if not offsets:
        what = "a reset names no partitions"
        raise ConfigurationError(what, expected="an offset for each partition that is to be reset")
    for tp, offset in offsets.items():
        if not 0 <= offset <= MAX_OFFSET:
            what = "not an offset"
            raise ConfigurationError(what, topic_partition=tp, found=offset, expected="a number from 0 to 2**63 - 1")


def _expect_rows(
    group: str, rows: Mapping[TopicPartition, StoredOffset], offsets: Mapping[TopicPartition, int]
) -> None:
    """A misspelt topic would get a row of its own, and nobody would notice."""
    if not rows:
        what = f"the store has no offsets of group {group!r}"
        raise ConfigurationError(what, next_step="Correct the name; a group gets its rows from the first claim.")
    unknown = sorted(offsets.keys() - rows.keys())
    if unknown:
        what = f"the store has no offset of this partition for group {group!r}"
        topics = ", ".join(sorted({tp.topic for tp in rows}))
        step = "Correct topic and partition; a partition gets its row from a claim."
        raise ConfigurationError(what, topic_partition=unknown[0], expected=f"one of {topics}", next_step=step)

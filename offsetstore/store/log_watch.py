"""Looks whether logs have lost records that a running job has read, and keeps the leader epochs that tell it.

Every 30 s, and at a clean stop, in a thread beside the job: the stored offsets are read first, then the logs' ends and
leader epochs. So each claim with a broker is guarded, whether or not it copies its offsets to Kafka; a member of a
fleet knows the epochs of the records that it reads, see `Member.write_pairs`. Failures here do not affect the job;
what was found ends it with its next batch, and is recorded for later starts. See `offsetstore.protocol.log_evidence`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Generator, Mapping
from functools import partial
from typing import Final, TypeAlias

from offsetstore.errors import BrokerError
from offsetstore.offsets import StoredOffset, Token, TopicPartition, Watermarks
from offsetstore.protocol.database import HistoryEvent, LockedRow, Session
from offsetstore.protocol.log_evidence import LogLook, known_ids, look
from offsetstore.protocol.ports import BrokerOffsets
from offsetstore.runtime.background import Background
from offsetstore.runtime.functions import call, without_frames
from offsetstore.store.identity import ClaimInfo
from offsetstore.store.sessions import ClaimRows

# Also how long a low end is doubted: it may be a new leader's first answer (decision 0049).
LOOK_SECONDS = 30.0
"""Seconds from one look at the logs' leader epochs to the next, at least."""

_SOON = 5.0  # seconds from one turn to the next: until what was locked is written, or the rows are read again
# A loss is looked for three times within a second before it is believed, as by a claim (decision 0049).
_LOOKS: Final = 3
_FAILED_LOOKS: Final = 3
_LOOK_AGAIN_SECONDS: Final = 0.5
_SHOWN: Final = 5

Logs: TypeAlias = Mapping[TopicPartition, Watermarks]

_log = logging.getLogger(__name__)


def can_tell(broker: object) -> bool:
    """Whether the broker tells what a `LogWatch` asks; a user's own implementation may predate it."""
    return all(hasattr(broker, method) for method in ("log_ends", "find_truncated", "topic_ids"))


class LogWatch:
    """Looks in a daemon thread until it is stopped, or another claim has the rows.

    :param on_lost: called with the logs that lost records while the job ran, once they are found.
    """

    def __init__(
        self,
        claim: ClaimInfo,
        rows: ClaimRows,
        broker: BrokerOffsets,
        *,
        on_lost: Callable[[Mapping[TopicPartition, str]], object],
    ) -> None:
        self._claim = claim
        self._rows = rows
        self._broker = broker
        self._on_lost = on_lost
        self._look_at = time.monotonic() + LOOK_SECONDS
        self._lost: Mapping[TopicPartition, str] = {}
        self._lost_is_recorded = False
        self._failed_looks = 0
        self._seen: dict[TopicPartition, float] = {}
        self._is_over = self._given_up = False
        self._looks = Background("offsetstore-logs", self._turn, lambda: _SOON, at_end=self._last)
        self._looks.start()

    def stop(self, seconds: float) -> None:
        """Look for the last time and end, waiting at most ``seconds`` for that. It may be called again."""
        if not self._looks.stop(seconds) and seconds:
            self._given_up = True

    @property
    def is_idle(self) -> bool:
        """Whether its thread has ended, and so waits for no answer from Kafka."""
        return not self._looks.is_alive

    def _last(self) -> None:
        if not self._is_over and not self._given_up:
            self._turn()

    def _turn(self) -> bool:
        """Look if it is time, or if this is the last turn; return whether there is more to do."""
        now = time.monotonic()
        if now < self._look_at and not self._looks.is_stopping:
            return True
        # Rows before logs: then no record below a stored offset has a later epoch than the log's end (decision 0049).
        try:
            rows = self._rows.read()
        except Exception as error:  # noqa: BLE001 - the job's transactions report an unavailable database
            _log.debug("the stored offsets could not be read: %s", type(without_frames(error)).__name__)
            return True
        self._is_over = any(row.token != self._claim.token for row in rows.values())
        if rows and not self._is_over:
            self._look_at = now + LOOK_SECONDS
            self._look_at_logs(rows, now)
        return not self._is_over

    def _look_at_logs(self, rows: Mapping[TopicPartition, StoredOffset], now: float) -> None:
        """Look whether the logs have lost records below these offsets; write the pairs of the logs that have not."""
        try:
            logs = call(self._broker.log_ends, [tp for tp in rows if tp not in self._lost])
            for lost in self._find_lost({tp: rows[tp] for tp in logs}, logs, now):
                self._lost = {**self._lost, **lost}
                self._tell_lost(lost)
            self._failed_looks = 0
        except Exception as error:  # noqa: BLE001 - the next look asks again, and so does the next claim
            self._note_failed_look(error)
        if not self._lost or self._lost_is_recorded:
            return
        claim = self._claim
        self._lost_is_recorded = self._rows.write(
            lambda session: write_evidence(session, claim.group, claim.token, self._lost, actor=claim.owner)
        )

    def _tell_lost(self, lost: Mapping[TopicPartition, str]) -> None:
        self._on_lost(self._lost)
        self._lost_is_recorded = False
        _log.warning(
            "group %r: a log lost records that had been read; the next batch ends with LogTruncated: %s",
            self._claim.group,
            "; ".join(f"{tp}: {what}" for tp, what in sorted(lost.items())[:_SHOWN]),
        )

    def _find_lost(
        self, rows: Mapping[TopicPartition, StoredOffset], logs: Logs, now: float
    ) -> Generator[Mapping[TopicPartition, str]]:
        """Yield confirmed losses, the first of them before it asks Kafka about the others: that may fail.

        :param logs: the logs of the rows, read after these.
        """
        # First the logs that Kafka need not be asked about: if it can't tell of one, the others still get their pairs.
        seen = look(rows, logs, None)
        self._write_pairs(rows, logs, seen, rows.keys() - seen.lost.keys())
        # One answer can be a new leader's, which may know a low end for seconds; only a stop can't wait for more.
        former, self._seen = self._seen, {tp: self._seen.get(tp, now) for tp in seen.lost}
        stayed = {
            tp: what
            for tp, what in seen.lost.items()
            if self._looks.is_stopping or (tp in former and now - former[tp] >= LOOK_SECONDS)
        }
        if stayed and (lost := self._confirmed(rows, stayed)):
            yield lost
        looked = look(rows, logs, partial(call, self._broker.find_truncated))
        self._write_pairs(rows, logs, looked, looked.checked)
        parted = {tp: what for tp, what in looked.lost.items() if tp not in seen.lost}
        if parted and (lost := self._confirmed(rows, parted)):
            yield lost
        looked.expect_told()

    def _note_failed_look(self, error: Exception) -> None:
        without_frames(error)
        self._failed_looks += 1
        if self._failed_looks == _FAILED_LOOKS:
            _log.warning(
                "group %r: could not look at the logs for some time, so records that are lost meanwhile may not be "
                "noticed: %s",
                self._claim.group,
                error if isinstance(error, BrokerError) else type(error).__name__,
            )

    def _write_pairs(
        self,
        rows: Mapping[TopicPartition, StoredOffset],
        logs: Logs,
        looked: LogLook,
        partitions: Collection[TopicPartition],
    ) -> None:
        """Write the pairs that changed; if the job's transaction holds a row, look again at the next turn."""
        latest = {tp: looked.pair(tp, rows[tp], rows[tp].next_offset, logs[tp]) for tp in sorted(partitions)}
        pairs = {tp: pair for tp, pair in latest.items() if pair is not None and pair != rows[tp].pair}
        if not pairs:
            return
        written = 0

        def write(session: Session) -> None:
            nonlocal written
            written = session.write_pairs(self._claim.group, self._claim.token, pairs)

        if not self._rows.write(write) or written < len(pairs):
            self._look_at = time.monotonic()

    def _confirmed(
        self, rows: Mapping[TopicPartition, StoredOffset], lost: Mapping[TopicPartition, str]
    ) -> Mapping[TopicPartition, str]:
        """Look again before it is believed, as a claim does; and see that the log is still the same topic's."""
        for _ in range(_LOOKS - 1):
            time.sleep(_LOOK_AGAIN_SECONDS)
            again = look(rows, call(self._broker.log_ends, lost), partial(call, self._broker.find_truncated))
            lost = {tp: what for tp, what in again.lost.items() if tp in lost}
            if not lost:
                again.expect_told()
                return {}
        # A log whose topic is not known to be the same is left to the rules for recreated topics (decision 0023).
        known, ids = known_ids(rows), call(self._broker.topic_ids, {tp.topic for tp in lost})
        return {
            tp: what
            for tp, what in lost.items()
            if ids[tp.topic] and ids[tp.topic] == (rows[tp].topic_id or known.get(tp.topic))
        }


def write_evidence(
    session: Session,
    group: str,
    token: Token,
    lost: Mapping[TopicPartition, str],
    *,
    actor: str,
    doubtful: Mapping[TopicPartition, int] | None = None,
) -> None:
    """Write evidence of loss to rows that still have the token and have none yet, with history.

    :param doubtful: as `LogLook.doubtful`; it is no evidence if the offset is still the one that a reset has set, from
        an offset that the log still holds.
    """
    rows = session.lock_partitions(group, lost)
    ends = doubtful or {}
    sure = {
        tp: lost[tp]
        for tp, row in rows.items()
        if tp not in ends or not _is_as_reset(session, group, tp, row, ends[tp])
    }
    written = session.write_suspects(group, token, sure)
    session.append_history(
        group,
        [
            HistoryEvent("suspect", tp, rows[tp].next_offset, rows[tp].next_offset, token, actor, lost[tp])
            for tp in sorted(written)
        ],
    )


def _is_as_reset(session: Session, group: str, tp: TopicPartition, row: LockedRow, end: int) -> bool:
    # A reset without a broker can set an offset that the log never had: its end then shows no loss (decision 0049).
    last = session.history(group, events=["reset"], topic_partition=tp, limit=1)
    return bool(last) and last[0].to_offset == row.next_offset and (last[0].from_offset or 0) <= end

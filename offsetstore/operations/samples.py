"""Samples of groups, for trends: three rings of slots for each group, each overwritten in turn; and their SQL."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Final, NamedTuple, Self, TypeVar

from offsetstore.errors import ConfigurationError
from offsetstore.postgres.errors import needing, translated
from offsetstore.postgres.session import PostgresSession
from offsetstore.protocol.arguments import check_whole

_V = TypeVar("_V")

_LONGEST_GAP: Final = 3
"""Slots. Between samples that are further apart no rate is known: nobody measured."""


class Ring(NamedTuple):
    """A ring of slots, each of the same number of seconds."""

    seconds: int
    slots: int

    @property
    def span(self) -> timedelta:
        return timedelta(seconds=self.seconds * self.slots)


RINGS: Final = (Ring(10, 360), Ring(60, 1_440), Ring(1_800, 1_488))
"""One hour, 24 hours and 31 days, the finest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A group, as it was last measured in a slot. A value that could not be measured is ``None``.

    :param at: the time of the measurement, by the database's clock.
    :param stored: the sum of the stored offsets of its partitions.
    :param log_end: the sum of the ends of their logs.
    :param lag: offsets, the most in the slot.
    :param lag_seconds: the age of the oldest unread record, the most in the slot.
    :param headroom: offsets from the beginning of a log to the stored offset, the least of all partitions in the slot.
    :param batches: how many batches the current run has written or kept.
    :param batch_seconds: how long these batches took, in all.
    :param rows: how many rows the current run has written.
    :param memory: resident bytes of the driver's Python process.
    :param epoch: of the claim: with a new epoch, ``batches``, ``batch_seconds`` and ``rows`` begin at 0.
    """

    at: datetime
    stored: int
    log_end: int | None = None
    lag: int | None = None
    lag_seconds: float | None = None
    headroom: int | None = None
    batches: int | None = None
    batch_seconds: float | None = None
    rows: int | None = None
    memory: int | None = None
    epoch: int


@dataclass(frozen=True, slots=True)
class Selection:
    """Which samples to read: the newest in each of ``windows`` windows of ``step`` slots; the last window is now.

    ``step`` divides the ring, so that no window lies across its end.
    """

    ring: Ring
    span: timedelta
    step: int

    @classmethod
    def of(cls, span: timedelta, points: int | None = None) -> Self:
        """Choose the finest ring that covers the span.

        :param points: the largest number of windows.
        :raises ConfigurationError: an argument is invalid.
        """
        if not timedelta(0) < span <= RINGS[-1].span:
            raise ConfigurationError("span must be more than 0 and at most 31 days", found=span)
        if points is not None:
            check_whole("points", points, least=1)
        ring = next(ring for ring in RINGS if span <= ring.span)
        slots = _ceil(span, ring.seconds)
        least = 1 if points is None else -(-slots // points)
        # Each window costs one look into the key; reading all rows took forty times as long (decision 0044).
        return cls(ring, span, next(step for step in range(least, ring.slots + 1) if ring.slots % step == 0))

    @property
    def every(self) -> timedelta:
        return timedelta(seconds=self.ring.seconds * self.step)

    @property
    def windows(self) -> int:
        return _ceil(self.span, self.ring.seconds * self.step)

    def times(self, until: datetime) -> list[datetime]:
        """Return when each window begins; ``until`` is in the last one."""
        last = datetime.fromtimestamp(_window(until, self.every) * self.every.total_seconds(), UTC)
        return [last - number * self.every for number in reversed(range(self.windows))]

    def spread(self, samples: Sequence[Sample], values: Sequence[_V], until: datetime) -> list[_V | None]:
        """Put the value of each sample into its window of `times`, for a curve.

        A window without a sample repeats the value before it, if that is less than three windows old.
        """
        found = {_window(sample.at, self.every): value for sample, value in zip(samples, values, strict=True)}
        last = _window(until, self.every)
        spread: list[_V | None] = []
        for number in range(last - self.windows + 1, last + 1):
            # Samples are taken a bit more than ten seconds apart, so now and then a window has none.
            near = (found[at] for at in range(number, number - _LONGEST_GAP, -1) if at in found)
            spread.append(next(near, None))
        return spread


def _ceil(span: timedelta, seconds: int) -> int:
    return -(-span // timedelta(seconds=seconds))


def _window(at: datetime, every: timedelta) -> int:
    return int(at.timestamp() // every.total_seconds())


class Rate(NamedTuple):
    """What a group did from one sample to the next, ``None`` where that is not known.

    ``records`` are offsets a second; they do not depend on the run. ``rows`` are rows written a second, and
    ``batch_seconds`` is how long a batch took; both are ``None`` between two runs.
    """

    records: float | None = None
    rows: float | None = None
    batch_seconds: float | None = None


def rates(samples: Sequence[Sample], every: timedelta) -> list[Rate]:
    """Return a rate for each sample, since the sample before it; the first one's is not known.

    :param samples: oldest first.
    :param every: the time of a slot, as in `Selection.every`. Over more than three slots no rate is known.
    """
    return [Rate() for _ in samples[:1]] + [
        _rate(before, after) if after.at - before.at <= _LONGEST_GAP * every else Rate()
        for before, after in pairwise(samples)
    ]


def _rate(before: Sample, after: Sample) -> Rate:
    seconds = (after.at - before.at) / timedelta(seconds=1)
    records = _grown(before.stored, after.stored)
    # The counters are of a run: those of the next one begin at 0.
    if before.epoch != after.epoch:
        return Rate(_divided(records, seconds))
    batches = _grown(before.batches, after.batches)
    return Rate(
        _divided(records, seconds),
        _divided(_grown(before.rows, after.rows), seconds),
        _divided(_grown(before.batch_seconds, after.batch_seconds), batches),
    )


def _grown(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None or after < before else after - before


def _divided(number: float | None, by: float | None) -> float | None:
    return None if number is None or not by else number / by


_COLUMNS: Final = tuple(column.name for column in fields(Sample))
_RINGS: Final = ", ".join(f"({ring.seconds}, {ring.slots})" for ring in RINGS)
_NUMBER: Final = "CAST(floor(extract(epoch FROM {at}) / {resolution}) AS bigint)"
_IS_SAME: Final = (
    f"{_NUMBER.format(at='s.at', resolution='s.resolution')} = "
    f"{_NUMBER.format(at='excluded.at', resolution='s.resolution')}"
)

# All writers lock the rows in the same order. The epoch keeps samples from before a rename or a delete from coming
# back after it. Within a slot the worst lag counts, so that no peak vanishes; the latest of all else (decision 0044).
RECORD_SAMPLES: Final = f"""
INSERT INTO {{s}}samples AS s (consumer_group, resolution, slot, at, stored, log_end, lag, lag_seconds, headroom,
                               batches, batch_seconds, rows, memory, epoch)
SELECT n.consumer_group, ring.resolution,
       mod({_NUMBER.format(at="n.at", resolution="ring.resolution")}, ring.slots), n.at, n.stored, n.log_end, n.lag,
       n.lag_seconds, n.headroom, n.batches, n.batch_seconds, n.rows, n.memory, n.epoch
FROM unnest(CAST(:groups AS text[]), CAST(:at AS timestamptz[]), CAST(:stored AS bigint[]),
            CAST(:log_end AS bigint[]), CAST(:lag AS bigint[]), CAST(:lag_seconds AS double precision[]),
            CAST(:headroom AS bigint[]), CAST(:batches AS bigint[]), CAST(:batch_seconds AS double precision[]),
            CAST(:rows AS bigint[]), CAST(:memory AS bigint[]), CAST(:epoch AS bigint[]))
     AS n (consumer_group, at, stored, log_end, lag, lag_seconds, headroom, batches, batch_seconds, rows, memory, epoch)
JOIN {{s}}consumer_groups AS g ON g.consumer_group = n.consumer_group AND g.epoch = n.epoch
CROSS JOIN (VALUES {_RINGS}) AS ring (resolution, slots)
ORDER BY n.consumer_group COLLATE "C", ring.resolution
ON CONFLICT (consumer_group, resolution, slot) DO UPDATE
SET at = excluded.at, stored = excluded.stored, log_end = excluded.log_end,
    lag = CASE WHEN {_IS_SAME} THEN greatest(s.lag, excluded.lag) ELSE excluded.lag END,
    lag_seconds = CASE WHEN {_IS_SAME} THEN greatest(s.lag_seconds, excluded.lag_seconds) ELSE excluded.lag_seconds END,
    headroom = CASE WHEN {_IS_SAME} THEN least(s.headroom, excluded.headroom) ELSE excluded.headroom END,
    batches = excluded.batches, batch_seconds = excluded.batch_seconds, rows = excluded.rows,
    memory = excluded.memory, epoch = excluded.epoch
WHERE excluded.at > s.at OR NOT {_IS_SAME}
"""  # noqa: S608 - constants alone

# PostgreSQL expects a thousand windows, and would compile the statement for longer than it runs.
NO_JIT: Final = "SET LOCAL jit = off"

# A look into the key for each window, so that neither the size of the rings nor the number of groups matters.
SAMPLES: Final = f"""
SELECT s.*
FROM (SELECT clock_timestamp() AS now) AS clock
CROSS JOIN LATERAL generate_series(
    {_NUMBER.format(at="clock.now", resolution="CAST(:every AS bigint)")} - CAST(:windows AS bigint) + 1,
    {_NUMBER.format(at="clock.now", resolution="CAST(:every AS bigint)")}) AS w (number)
CROSS JOIN unnest(CAST(:groups AS text[])) AS asked (consumer_group)
CROSS JOIN LATERAL (
    SELECT s.* FROM {{s}}samples AS s
    WHERE s.consumer_group = asked.consumer_group AND s.resolution = CAST(:resolution AS integer)
      AND s.slot BETWEEN mod(w.number * CAST(:step AS bigint), CAST(:slots AS bigint))
                     AND mod(w.number * CAST(:step AS bigint), CAST(:slots AS bigint)) + CAST(:step AS bigint) - 1
      AND {_NUMBER.format(at="s.at", resolution="CAST(:every AS bigint)")} = w.number
      AND s.at > clock.now - CAST(:span AS interval)
    ORDER BY s.slot DESC LIMIT 1) AS s
ORDER BY s.consumer_group, s.at
"""  # noqa: S608 - constants alone

# In the order of RECORD_SAMPLES, before a rename or a delete, so that neither has to wait for the other.
LOCK_SAMPLES: Final = """
SELECT count(*) FROM (
SELECT FROM {s}samples AS s WHERE s.consumer_group = :group ORDER BY s.resolution, s.slot FOR UPDATE OF s) AS locked
"""

# The new name has a slot already if the group had this name before, and a sample was written while it was renamed.
RENAME_SAMPLES: Final = """
UPDATE {s}samples AS s SET consumer_group = :new
WHERE s.consumer_group = :group AND NOT EXISTS (
    SELECT FROM {s}samples AS o
    WHERE o.consumer_group = :new AND o.resolution = s.resolution AND o.slot = s.slot)
"""


def record_samples(session: PostgresSession, samples: Mapping[str, Sample]) -> None:
    """Write the groups' samples into all rings, in one statement.

    If the slot has a sample of the same time, the newer one keeps the larger lags and the smaller headroom. A group
    that was claimed or moved since its sample was taken is left out.
    """
    columns = {name: [getattr(sample, name) for sample in samples.values()] for name in _COLUMNS}
    with needing(("write samples", "--dashboard-role")):
        session.run(RECORD_SAMPLES, groups=list(samples), **columns)


def read_samples(session: PostgresSession, groups: Collection[str], selection: Selection) -> dict[str, list[Sample]]:
    """Read the samples of these groups, oldest first, in one statement."""
    found: dict[str, list[Sample]] = {group: [] for group in groups}
    with translated():
        _, result = session.together(
            NO_JIT,
            SAMPLES,
            groups=list(found),
            resolution=selection.ring.seconds,
            slots=selection.ring.slots,
            step=selection.step,
            every=selection.ring.seconds * selection.step,
            windows=selection.windows,
            span=selection.span,
        )
    for row in result.rows:
        found[row.consumer_group].append(Sample(**{name: getattr(row, name) for name in _COLUMNS}))
    return found

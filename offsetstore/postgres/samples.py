"""The samples of groups, on PostgreSQL: the statements, and what `SampleSession` says of them."""

# ruff: noqa: D102 - the Protocol says what the methods do

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from offsetstore.postgres.errors import needing, translated
from offsetstore.postgres.together import Result
from offsetstore.protocol.samples import RINGS, Sample, Selection

_RINGS: Final = ", ".join(f"({ring.seconds}, {ring.slots})" for ring in RINGS)
_NUMBER: Final = "CAST(floor(extract(epoch FROM {at}) / {resolution}) AS bigint)"
_IS_SAME: Final = (
    f"{_NUMBER.format(at='s.at', resolution='s.resolution')} = "
    f"{_NUMBER.format(at='excluded.at', resolution='s.resolution')}"
)

# All writers lock the rows in the same order. The epoch keeps what was measured before a rename or a delete from coming
# back after it.
RECORD_SAMPLES: Final = f"""
INSERT INTO {{s}}samples AS s (consumer_group, resolution, slot, at, stored, log_end, lag, lag_seconds, headroom,
                               batches, batch_seconds, rows, memory, epoch)
SELECT n.consumer_group, ring.resolution,
       mod({_NUMBER.format(at="n.at", resolution="ring.resolution")}, ring.slots), n.at, n.stored, n.log_end, n.lag,
       n.lag_seconds, n.headroom, n.batches, n.batch_seconds, n.rows, n.memory, n.epoch
FROM unnest(CAST(:groups AS text[]), CAST(:ats AS timestamptz[]), CAST(:stored AS bigint[]),
            CAST(:log_ends AS bigint[]), CAST(:lags AS bigint[]), CAST(:lag_seconds AS double precision[]),
            CAST(:headrooms AS bigint[]), CAST(:batches AS bigint[]), CAST(:batch_seconds AS double precision[]),
            CAST(:rows AS bigint[]), CAST(:memories AS bigint[]), CAST(:epochs AS bigint[]))
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

# A slot is there already if it was written while the group had this name before, and was being renamed.
RENAME_SAMPLES: Final = """
UPDATE {s}samples AS s SET consumer_group = :new
WHERE s.consumer_group = :group AND NOT EXISTS (
    SELECT FROM {s}samples AS o
    WHERE o.consumer_group = :new AND o.resolution = s.resolution AND o.slot = s.slot)
"""


class SampleStatements:
    """See the module. `PostgresSession` runs the statements."""

    _rows: Callable[..., list[Any]]
    _run: Callable[..., int]
    _send_together: Callable[..., list[Result]]

    def record_samples(self, samples: Mapping[str, Sample]) -> None:
        if not samples:
            return
        all_ = samples.values()
        with needing("write samples"):
            self._run(
                RECORD_SAMPLES,
                groups=list(samples),
                ats=[one.at for one in all_],
                stored=[one.stored for one in all_],
                log_ends=[one.log_end for one in all_],
                lags=[one.lag for one in all_],
                lag_seconds=[one.lag_seconds for one in all_],
                headrooms=[one.headroom for one in all_],
                batches=[one.batches for one in all_],
                batch_seconds=[one.batch_seconds for one in all_],
                rows=[one.rows for one in all_],
                memories=[one.memory for one in all_],
                epochs=[one.epoch for one in all_],
            )

    def samples(self, groups: Collection[str], selection: Selection) -> dict[str, list[Sample]]:
        found: dict[str, list[Sample]] = {group: [] for group in groups}
        with translated():
            _, result = self._send_together(
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
            found[row.consumer_group].append(
                Sample(
                    at=row.at,
                    stored=row.stored,
                    log_end=row.log_end,
                    lag=row.lag,
                    lag_seconds=row.lag_seconds,
                    headroom=row.headroom,
                    batches=row.batches,
                    batch_seconds=row.batch_seconds,
                    rows=row.rows,
                    memory=row.memory,
                    epoch=row.epoch,
                )
            )
        return found

    def _rename_samples(self, group: str, new: str) -> None:
        self._rows(LOCK_SAMPLES, group=group)
        self._run(RENAME_SAMPLES, group=group, new=new)

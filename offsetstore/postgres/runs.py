"""The runs of jobs and their errors on PostgreSQL: the statements, and the session's part for `RunSession`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from psycopg.types.json import Jsonb

from offsetstore.offsets import Token
from offsetstore.postgres.statements import Statements
from offsetstore.protocol.letters import writable
from offsetstore.protocol.runs import KEPT, Ending, JobError, NewRun, RunStatus

# A claim whose COMMIT got no answer is tried again, perhaps with the same epoch.
BEGIN_RUN: Final = """
INSERT INTO {s}job_runs AS r (consumer_group, epoch, claim_id, owner, topics, versions)
VALUES (:group, :epoch, :claim_id, :owner, CAST(:topics AS text[]), CAST(:versions AS jsonb))
ON CONFLICT (consumer_group, epoch) DO UPDATE
SET claim_id = excluded.claim_id, owner = excluded.owner, topics = excluded.topics, versions = excluded.versions,
    started_at = clock_timestamp(), seen_at = clock_timestamp(), ended_at = NULL, ending = NULL,
    phase = 'starting', phase_since = clock_timestamp(), batch_id = NULL, batch_offsets = NULL, last_batch_at = NULL,
    counters = '{}', memory_bytes = NULL, mirrored_at = NULL, mirror_error = NULL, query_id = NULL,
    application_id = NULL, ui_url = NULL
"""

REPLAYS: Final = "replays_letters"
"""Not a counter, but kept with them: whether the job replays dead letters."""

# Ages become times by the database's clock, which is read once.
WRITE_RUN: Final = """
UPDATE {s}job_runs AS r
SET seen_at = clock.now,
    ended_at = CASE WHEN CAST(:ending AS text) IS NOT NULL THEN coalesce(r.ended_at, clock.now) END,
    ending = CAST(:ending AS text),
    phase = :phase, phase_since = clock.now - CAST(:phase_age AS interval),
    batch_id = CAST(:batch AS bigint), batch_offsets = CAST(:batch_offsets AS bigint),
    last_batch_at = clock.now - CAST(:last_batch_age AS interval),
    counters = CAST(:counters AS jsonb), memory_bytes = CAST(:memory AS bigint),
    mirrored_at = clock.now - CAST(:mirror_age AS interval), mirror_error = CAST(:mirror_error AS text),
    query_id = CAST(:query_id AS uuid), application_id = CAST(:application_id AS text), ui_url = CAST(:ui_url AS text)
FROM (SELECT clock_timestamp() AS now) AS clock
WHERE r.consumer_group = :group AND r.epoch = :epoch AND r.claim_id = :claim_id
"""

APPEND_ERRORS: Final = """
INSERT INTO {s}job_errors
       (consumer_group, epoch, source, error_class, error_text, sqlstate, topic, partition, batch_id, ranges, times)
SELECT :group, :epoch, e.source, e.error_class, e.error_text, e.sqlstate, e.topic, e.partition, e.batch_id, e.ranges,
       e.times
FROM unnest(CAST(:sources AS text[]), CAST(:classes AS text[]), CAST(:texts AS text[]), CAST(:sqlstates AS text[]),
            CAST(:topics AS text[]), CAST(:partitions AS integer[]), CAST(:batches AS bigint[]),
            CAST(:ranges AS text[]), CAST(:times AS bigint[]))
     WITH ORDINALITY
     AS e (source, error_class, error_text, sqlstate, topic, partition, batch_id, ranges, times, number)
ORDER BY e.number
"""

TRIM_RUNS: Final = """
DELETE FROM {s}job_runs WHERE consumer_group = :group AND epoch <= (
    SELECT epoch FROM {s}job_runs WHERE consumer_group = :group ORDER BY epoch DESC OFFSET :keep LIMIT 1)
"""

# Members share an epoch. A member that has not ended may be older than a thousand that have.
TRIM_MEMBER_RUNS: Final = """
DELETE FROM {s}member_runs WHERE consumer_group = :group AND claim_id IN (
    SELECT r.claim_id FROM (SELECT epoch, started_at FROM {s}member_runs WHERE consumer_group = :group
                            ORDER BY epoch DESC, started_at DESC OFFSET :keep LIMIT 1) AS last
    JOIN {s}member_runs AS r ON r.consumer_group = :group AND (r.epoch, r.started_at) <= (last.epoch, last.started_at)
    WHERE r.ended_at IS NOT NULL OR r.seen_at < clock_timestamp() - interval '1 day'
    FOR UPDATE OF r SKIP LOCKED)
"""

TRIM_ERRORS: Final = """
DELETE FROM {s}job_errors WHERE consumer_group = :group AND id <= (
    SELECT id FROM {s}job_errors WHERE consumer_group = :group ORDER BY id DESC OFFSET :keep LIMIT 1)
"""

# The same in the members' table.
BEGIN_MEMBER_RUN: Final = BEGIN_RUN.replace("job_runs", "member_runs").replace(
    "group, epoch) DO", "group, claim_id) DO"
)
WRITE_MEMBER_RUN: Final = WRITE_RUN.replace("job_runs", "member_runs")


class RunStatements(Statements):
    """A session's part that implements `RunSession`."""

    def begin_run(self, group: str, token: Token, run: NewRun, *, of_member: bool = False) -> None:
        self.run(
            BEGIN_MEMBER_RUN if of_member else BEGIN_RUN,
            group=group,
            epoch=token.epoch,
            claim_id=token.claim_id,
            owner=run.owner,
            topics=list(run.topics),
            versions=Jsonb(dict(run.versions)),
        )

    def write_run(
        self, group: str, token: Token, status: RunStatus, ending: Ending | None, *, of_member: bool = False
    ) -> None:
        self.run(
            WRITE_MEMBER_RUN if of_member else WRITE_RUN,
            group=group,
            epoch=token.epoch,
            claim_id=token.claim_id,
            ending=ending,
            phase=status.phase,
            phase_age=timedelta(seconds=status.phase_age),
            batch=status.batch,
            batch_offsets=status.batch_offsets,
            last_batch_age=_interval(status.last_batch_age),
            counters=Jsonb(
                status.counters
                if status.replays_letters is None
                else {**status.counters, REPLAYS: status.replays_letters}
            ),
            memory=status.memory,
            mirror_age=_interval(status.mirror_age),
            mirror_error=None if status.mirror_error is None else writable(status.mirror_error),
            query_id=status.query_id,
            application_id=status.application_id,
            ui_url=status.ui_url,
        )

    def append_errors(self, group: str, token: Token, errors: Sequence[JobError], *, keep: int = KEPT) -> None:
        places = [error.topic_partition for error in errors]
        self.run(
            APPEND_ERRORS,
            group=group,
            epoch=token.epoch,
            sources=[error.source for error in errors],
            classes=[error.error_class for error in errors],
            texts=[None if error.text is None else writable(error.text) for error in errors],
            sqlstates=[error.sqlstate for error in errors],
            topics=[tp.topic if tp else None for tp in places],
            partitions=[tp.partition if tp else None for tp in places],
            batches=[error.batch for error in errors],
            ranges=[error.ranges for error in errors],
            times=[error.times for error in errors],
        )
        # The job itself trims, so that a crash loop fills no disk (decision 0041).
        for statement in (TRIM_RUNS, TRIM_MEMBER_RUNS, TRIM_ERRORS):
            self.run(statement, group=group, keep=keep)


def _interval(seconds: float | None) -> timedelta | None:
    return None if seconds is None else timedelta(seconds=seconds)

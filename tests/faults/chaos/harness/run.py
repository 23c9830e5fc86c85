"""Runs of faults on one PostgreSQL, one Kafka and a pool of job processes; one result each."""

from __future__ import annotations

import shutil
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from offsetstore.local.kafka import KafkaBroker
from offsetstore.local.postgres import PostgresServer
from tests.faults.chaos.harness.job import Way
from tests.faults.chaos.harness.process import JobPool
from tests.faults.chaos.harness.registry import Fault
from tests.faults.chaos.harness.scene import Scene
from tests.faults.chaos.harness.tables import migrate

_TEMPLATE = "faults_template"
_KAFKA = {
    # Quick clean-up, so that a fault need not wait for retention or for a compaction.
    "log.retention.check.interval.ms": "500",
    "log.cleaner.backoff.ms": "200",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
    "group.initial.rebalance.delay.ms": "0",
}


@dataclass(frozen=True, slots=True)
class Result:
    """One run; what goes into one line of runs.jsonl.

    ``evidence`` says what was done, ``errors`` how jobs ended, ``looks`` is how many snapshots the observer took, and
    ``logs`` are the jobs' own, where the run failed. ``seconds_to_recover`` counts from when the fault was gone.
    """

    fault: str
    row: str
    way: Way
    seed: int
    commit: str
    evidence: list[str]
    violations: list[str]
    errors: list[str]
    seconds_to_recover: float | None
    looks: int
    records: int
    jobs: int
    seconds: float
    logs: list[str]


class Stage:
    """The servers and the processes that runs share, one run at a time; a context manager."""

    def __init__(
        self,
        directory: Path,
        *,
        commit: str,
        postgres: PostgresServer | None = None,
        kafka: KafkaBroker | None = None,
    ) -> None:
        self.directory = directory
        self.commit = commit
        self._owns_postgres, self._owns_kafka = postgres is None, kafka is None
        self.postgres = postgres or PostgresServer(durability="none")
        self.kafka = kafka or KafkaBroker(settings=_KAFKA)
        self.pool = JobPool(directory / "processes")

    def __enter__(self) -> Self:
        try:
            self.postgres.start()
            self.kafka.start()
            migrate(self.postgres.create_database(_TEMPLATE))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.pool.close()
        if self._owns_kafka:
            self.kafka.close()
        if self._owns_postgres:
            self.postgres.close()
        else:
            self.postgres.drop_database(_TEMPLATE)

    def scene(self, fault: Fault, way: Way, seed: int) -> Scene:
        return Scene(
            fault,
            way,
            seed,
            postgres=self.postgres,
            kafka=self.kafka,
            pool=self.pool,
            template=_TEMPLATE,
            directory=self.directory / "runs" / f"{fault.name.replace('/', '-')}-{way}-{seed}",
        )

    def run(self, fault: Fault, way: Way, seed: int) -> Result:
        begin = time.monotonic()
        scene = self.scene(fault, way, seed)
        shutil.rmtree(scene.directory, ignore_errors=True)  # what a failed run has left: a gate, a checkpoint
        violations: list[str] = []
        with scene:
            try:
                fault.run(scene)
                violations += scene.verify()
            except Exception as error:  # noqa: BLE001 - a run that breaks off has failed, and the next one goes on
                violations.append(f"{type(error).__name__}: {error}\n{traceback.format_exc(limit=-6)}")
        if not violations:
            shutil.rmtree(scene.directory, ignore_errors=True)
        reports = [job.error for job in scene.jobs if job.error is not None]
        return Result(
            fault=fault.name,
            row=fault.row,
            way=way,
            seed=seed,
            commit=self.commit,
            evidence=scene.evidence,
            violations=violations,
            errors=[f"{report.class_name}: {report.text[:700]}" for report in reports],
            seconds_to_recover=None if scene.recovery is None else round(scene.recovery, 2),
            looks=scene.observer.count,
            records=scene.ledger.count,
            jobs=len(scene.jobs),
            seconds=round(time.monotonic() - begin, 2),
            logs=[str(log) for log in dict.fromkeys(job.process.log for job in scene.jobs)] if violations else [],
        )

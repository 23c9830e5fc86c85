"""The calls of a job whose transform is a handler, as they are under way, and held against what was done to the job."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import psutil

from tests.faults.chaos.harness.calls import Call, Worked, called_again, most_at_once, read, wrong
from tests.faults.chaos.harness.scene import Job, Scene, Violation
from tests.faults.chaos.means.letters import prepare
from tests.support.waiting import wait_until

_MOST = 5
CONCURRENCY = 8


class Calls:
    """Of one run.

    :param how: settings of `tests.faults.chaos.harness.calls.handler`; by default async functions and threads take
        turns over the seeds.
    """

    def __init__(self, scene: Scene, **how: Any) -> None:
        self._scene = scene
        self._log = scene.directory / "calls.jsonl"
        self._kills: dict[Job, list[float]] = defaultdict(list)
        self._stopped: set[Job] = set()
        turn = (scene.seed // len(scene.fault.ways)) % 2 == 0
        self._how: dict[str, Any] = {"is_async": turn, "concurrency": CONCURRENCY, **how}
        self._letters = prepare(scene)["dead_letters"]
        if self._letters["independent"]:
            self._letters["max_retries"] = 2  # so many attempts as a call that raises has

    def settings(self, **how: Any) -> dict[str, Any]:
        """What a job is started with."""
        return {"handler": {"log": str(self._log), **self._how, **how}, "dead_letters": self._letters}

    def all(self) -> list[Call]:
        """Those that have begun."""
        return read(self._log)

    def running(self, job: Job) -> list[Call]:
        """Those of a job that have not ended, in processes that live."""
        begun = [call for call in self.all() if call.epoch == job.epoch and call.ended is None]
        return [call for call in begun if psutil.pid_exists(call.pid)]

    def wait_until_running(self, job: Job, timeout: float = 60) -> list[Call]:
        """Wait until some calls of a job run."""
        return wait_until(lambda: self.running(job), timeout=timeout)

    def killed(self, job: Job) -> None:
        """A process of the job's tasks was killed just now."""
        self._kills[job].append(time.monotonic())

    def stopped(self, job: Job) -> None:
        """The job was stopped in order, in the middle of a micro-batch."""
        self._stopped.add(job)

    def check(self) -> str:
        """Hold the calls against what was done; return them in short.

        :raises Violation: one should not have been.
        """
        scene, calls = self._scene, self.all()
        jobs = [
            Worked(job.epoch, job.events, self._kills[job], was_cut=self._was_cut(job))
            for job in scene.jobs
            if job.told("claimed")
        ]
        produced = {
            (topic, partition, entry.offset)
            for (topic, _, partition), entries in scene.ledger.records.items()
            for entry in entries
        }
        found = wrong(calls, produced, jobs, topic_ids=_topic_ids(scene), concurrency=self._how["concurrency"])
        if found:
            more = f" and {len(found) - _MOST} more" if len(found) > _MOST else ""
            raise Violation(f"calls: {'; '.join(found[:_MOST])}{more}; see {self._log}")
        return (
            f"{len(calls)} calls for {len(produced)} records; {len(called_again(calls))} were called for again; "
            f"{most_at_once(calls)} ran at once in a task"
        )

    def _was_cut(self, job: Job) -> bool:
        return job.was_killed or job.error is not None or job in self._stopped


def _topic_ids(scene: Scene) -> Mapping[str, str]:
    return dict(scene.database.rows("SELECT DISTINCT topic, topic_id FROM kafka_partitions"))

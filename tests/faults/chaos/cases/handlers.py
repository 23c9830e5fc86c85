"""A handler is the transform: its processes die while calls run, its calls hang, and what is kept of them is lost."""

from __future__ import annotations

import time
from collections import defaultdict
from typing import Any, Final, cast

import psutil

from tests.faults.chaos.harness.calls import HANGING, Call, Worked, called_again, most_at_once, read, wrong
from tests.faults.chaos.harness.gate import Gate, Place
from tests.faults.chaos.harness.process import TARGETS, Target
from tests.faults.chaos.harness.registry import fault
from tests.faults.chaos.harness.scene import Job, Scene, Violation
from tests.faults.chaos.means.breaking import (
    executors,
    held,
    in_transaction,
    kill_process,
    terminate,
    terminate_others,
    wait_for_executors,
)
from tests.faults.chaos.means.letters import Poison, check_letters, prepare, scatter, scatter_bad, states
from tests.support.waiting import PATIENCE, wait_until

ROW: Final = "handlers in play"
MUST: Final = (
    "rows and letters once; each record called for, and again for at most the micro-batch that was under way; in order "
    "within a key"
)
NONE_AGAIN: Final = "rows and letters once; no call repeated"
STUCK: Final = "HandlerStuck, and nothing of the micro-batch stored; then rows and letters once"

_VICTIMS: Final[tuple[Target | None, ...]] = (*TARGETS, None)
"""``None`` is a Python worker."""
_TIMEOUT: Final = 2.0
_HANGS: Final = 3.0
"""Less than twice the timeout: a task that has to wait for longer than that ends."""


_MOST: Final = 5
_CONCURRENCY: Final = 8


class Calls:
    """The calls of a job whose transform is a handler, as they are under way, and held against what was done to it.

    :param how: settings of `tests.faults.chaos.harness.calls.handler`; by default async functions and threads take
        turns over the seeds.
    """

    def __init__(self, scene: Scene, **how: Any) -> None:
        self._scene = scene
        self._log = scene.directory / "calls.jsonl"
        self._kills: dict[Job, list[float]] = defaultdict(list)
        self.stopped: set[Job] = set()
        """Those that were stopped in order, in the middle of a micro-batch."""
        turn = (scene.seed // len(scene.fault.ways)) % 2 == 0
        self._how: dict[str, Any] = {"is_async": turn, "concurrency": _CONCURRENCY, **how}
        self._letters = prepare(scene)["dead_letters"]
        if self._letters["independent"]:
            self._letters["max_retries"] = 2  # so many attempts as a call that raises has

    def settings(self, **how: Any) -> dict[str, Any]:
        return {"handler": {"log": str(self._log), **self._how, **how}, "dead_letters": self._letters}

    def all(self) -> list[Call]:
        return read(self._log)

    def called(self) -> int:
        return len({call.place for call in self.all()})

    def running(self, job: Job) -> list[Call]:
        """Those of a job that have not ended, in processes that live."""
        begun = [call for call in self.all() if call.epoch == job.epoch and call.ended is None]
        return [call for call in begun if psutil.pid_exists(call.pid)]

    def wait_until_running(self, job: Job, timeout: float = 60) -> list[Call]:
        return wait_until(lambda: self.running(job), timeout=timeout)

    def kill(self, job: Job, pid: int, seen: str) -> None:
        self._kills[job].append(time.monotonic())
        kill_process(pid)
        self._scene.fired(f"process {pid} of job {job.pid} got SIGKILL, {seen}")

    def check(self) -> None:
        """Hold the calls against what was done, and the letters.

        :raises Violation: one should not have been.
        """
        scene, calls = self._scene, self.all()
        check_letters(scene)
        jobs = [
            Worked(job.epoch, job.events, self._kills[job], was_cut=self._was_cut(job))
            for job in scene.jobs
            if job.told("claimed")
        ]
        records = scene.ledger.records.items()
        produced = {(topic, partition, entry.offset) for (topic, _, partition), found in records for entry in found}
        ids = dict(scene.database.rows("SELECT DISTINCT topic, topic_id FROM kafka_partitions"))
        found = wrong(calls, produced, jobs, topic_ids=ids, concurrency=self._how["concurrency"])
        if found:
            raise Violation(f"calls: {'; '.join(found[:_MOST])}, {len(found)} in all; see {self._log}")
        scene.fired(
            f"{len(calls)} calls for {len(produced)} records; {len(called_again(calls))} were called for again; "
            f"{most_at_once(calls)} ran at once in a task"
        )

    def _was_cut(self, job: Job) -> bool:
        return job.was_killed or job.error is not None or job in self.stopped


@fault(row=ROW, must=MUST, seeds=30)
def handlers_killed_at_random(scene: Scene) -> None:
    """A handler, an upsert and dead_letters=, with good and bad records: twice SIGKILL while calls run, to Python, to
    Java, to both, or to a Python worker."""
    calls = Calls(scene)
    scatter_bad(scene, good=95, bad=5)
    with scene.supervise(**calls.settings()) as supervisor:
        for _ in range(2):
            scatter_bad(scene, good=95, bad=5)
            victim = supervisor.job
            calls.wait_until_running(victim, timeout=90)
            time.sleep(scene.random.choice([0, scene.random.uniform(0, 2)]))
            target = scene.random.choice(_VICTIMS)
            if target is None:
                scene.expect("SinkError")  # local Spark tries a task once; letters are looked for in the second try
                _kill_one(scene, calls, victim)
                if victim.has_ended:
                    supervisor.next_job(victim)
                continue
            supervisor.settings["records_per_trigger"] = 150
            under_way = f"{len(calls.running(victim))} calls and {len(in_transaction(scene))} transactions under way"
            supervisor.kill(target, f"{under_way}, letters {states(scene)}")
        scatter_bad(scene, good=45, bad=5)
        scene.caught_up()
    calls.check()


def _kill_one(scene: Scene, calls: Calls, job: Job, *, executor: bool = False) -> None:
    """End a worker that makes calls, or its executor, and wait until the micro-batch is over."""
    scatter_bad(scene, good=95, bad=5)
    running, done = calls.wait_until_running(job), job.batches_done
    pid = scene.random.choice(sorted({call.pid for call in running}))
    if executor:
        daemon = psutil.Process(pid).parent()
        assert daemon is not None
        pid = daemon.ppid()
        assert pid in executors(job)
    calls.kill(job, pid, f"{'an executor with ' if executor else ''}{len(running)} calls under way")
    wait_until(lambda: job.has_ended or job.batches_done > done, timeout=120)


@fault(row=ROW, must=MUST, seeds=6)
def handlers_killed_at_half(scene: Scene) -> None:
    """Python, Java or both get SIGKILL when half of the calls of one micro-batch of 600 records are made."""
    size = 600
    calls = Calls(scene)
    scatter_bad(scene, good=570, bad=30)
    settings = {**calls.settings(), "records_per_trigger": size}
    target = TARGETS[scene.seed % len(TARGETS)]
    with scene.supervise(**settings) as supervisor:
        wait_until(lambda: calls.called() >= size // 2, timeout=90)
        supervisor.kill(target, f"{calls.called()} of {size} records called for")
        scene.caught_up()
    calls.check()
    again = called_again(calls.all())
    assert size // 4 < len(again) <= size, f"{len(again)} records were called for again"


@fault(row=ROW, must=MUST, variants=("worker", "executor"), seeds=6)
def handlers_killed_in_a_task(scene: Scene) -> None:
    """SIGKILL to a Python worker that makes calls, or to its executor, twice, under a job with two executors."""
    calls = Calls(scene)
    scatter_bad(scene, good=190, bad=10)
    with scene.living(kind="cluster", **calls.settings()) as job:
        job.wait_for("done", timeout=120)
        for _ in range(2):
            wait_for_executors(job)
            _kill_one(scene, calls, job, executor=scene.variant == "executor")
    calls.check()


@fault(row=ROW, must=MUST, seeds=6)
def handlers_outcomes_lost_in_discovery(scene: Scene) -> None:
    """All calls of a micro-batch are made, some rows are refused, and the job stands still while it searches for these:
    the executor that keeps most outcomes gets SIGKILL."""
    calls = Calls(scene)
    scatter_bad(scene, good=190, bad=10)
    settings = {"kind": "cluster", "failpoint": "in_discovery:1:stop", **calls.settings()}
    with scene.living(within=120, **settings) as job, held(job) as where:
        wait_for_executors(job)
        victim = scene.random.choice(executors(job))
        calls.kill(job, victim, f"an executor, with {where}, {calls.called()} records called for")
    calls.check()


@fault(row=ROW, must=MUST, ways=("partition",), variants=("begun", "written"), seeds=3)
def handlers_outcomes_lost_in_a_task(scene: Scene) -> None:
    """A task has made all its calls, and has its transaction open, or has written all rows: its executor gets
    SIGKILL."""
    calls, gate = Calls(scene), Gate(scene.directory / "gate")
    scene.produce(200)  # with a bad one among them, the driver would write, and the next batches too
    with scene.living(within=120, kind="cluster", gate=str(gate.directory), **calls.settings()) as job:
        job.wait_for("done", scene.random.randint(1, 2), timeout=120)
        wait_for_executors(job)
        gate.shut(cast("Place", scene.variant))
        scene.produce(120)
        victim = scene.random.choice(wait_until(gate.waiting, timeout=90))
        calls.kill(job, victim.executor, f"the executor of {victim}")
        gate.open()
    calls.check()


@fault(row=ROW, must=NONE_AGAIN, seeds=6)
def handlers_backends_terminated(scene: Scene) -> None:
    """pg_terminate_backend for all connections of the job while calls run, and for those in a batch's transaction, in
    turn, twice each."""
    calls = Calls(scene)
    scatter_bad(scene, good=95, bad=5)
    with scene.living(**calls.settings()) as job:
        for _ in range(2):
            scatter_bad(scene, good=95, bad=5)
            done, running = job.batches_done, calls.wait_until_running(job)
            ended = terminate_others(scene)
            scene.fired(f"{ended} connections terminated, {len(running)} calls under way")
            job.wait_for("done", done + 1, timeout=90)
            scatter_bad(scene, good=95, bad=5)
            done, open_ones = job.batches_done, wait_until(lambda: in_transaction(scene), timeout=60)
            terminate(scene, open_ones)
            scene.fired(f"{', '.join(map(str, open_ones))} terminated")
            job.wait_for("done", done + 1, timeout=90)
    calls.check()


@fault(row=ROW, must="each a letter after its timeout; all others written; no call repeated", seeds=4)
def handlers_hanging_calls(scene: Scene) -> None:
    """Six calls among 200 take longer than they may, in threads or on a loop."""
    calls = Calls(scene, hangs=_HANGS, timeout=_TIMEOUT)
    hanging = scatter(scene, [Poison(amount=HANGING)], good=194, bad=6, letters=True)
    with scene.living(records_per_trigger=200, **calls.settings()) as job:
        job.wait_for("claimed")
    late = scene.database.rows(
        "SELECT topic, partition, record_offset FROM dead_letters WHERE error_class = 'HandlerTimeout' AND attempts = 1"
    )
    assert {*late} == hanging, f"letters of {late}, calls hung for {hanging}"
    lasted = [call for call in calls.all() if call.place in hanging]
    assert len(lasted) == len(hanging)
    scene.fired(f"{len(hanging)} calls hung, and became letters")
    calls.check()


@fault(row=ROW, must=STUCK, variants=("threads", "loop"), seeds=4)
def handlers_stuck(scene: Scene) -> None:
    """All calls in threads hang, or a call of an async function blocks its loop, for longer than they may; then the
    service is mended, and another process started: threads can't be ended."""
    is_async = scene.variant == "loop"
    calls = Calls(scene, is_async=is_async, timeout=_TIMEOUT, concurrency=4)
    scatter_bad(scene, good=190, bad=10)
    hanging = {"blocks": 2 * _HANGS} if is_async else {"seconds": [60, 60]}
    job = scene.start(records_per_trigger=200, **calls.settings(**hanging))
    first = calls.wait_until_running(job)[0]
    report = scene.expect_error(job, "HandlerStuck")
    took = time.monotonic() - first.begun
    job.wait_for("ended")
    job.kill("both")
    job.close()
    assert "at offset" in (report.found or ""), f"it does not name the record: {report.text}"
    # On two cores three tasks take two rounds, each of three timeouts at most: to fail, to be stuck, and to cancel.
    assert took < (2 * 3 * _TIMEOUT + 10) * PATIENCE, f"it ended {took:.1f} s after the first call"
    assert not any(scene.stored().values()), f"it has stored {scene.stored()}"
    assert not states(scene), f"it has left letters: {states(scene)}"
    scene.fired(f"job {job.pid} ended with HandlerStuck {took:.1f} s after its first call: {report.found}")
    scene.catch_up(records_per_trigger=200, **calls.settings())
    calls.check()


@fault(row=ROW, must="the query ends at once; rows and letters once", seeds=4)
def handlers_stopped(scene: Scene) -> None:
    """query.stop() while all calls hang for a minute."""
    calls = Calls(scene, timeout=30)
    scatter_bad(scene, good=190, bad=10)
    job = scene.start(**calls.settings(seconds=[60, 60]))
    running = calls.wait_until_running(job)
    begin = time.monotonic()
    job.stop()
    took = time.monotonic() - begin
    calls.stopped.add(job)
    assert took < 15 * PATIENCE, f"it took {took:.1f} s"
    scene.fired(f"job {job.pid} was stopped within {took:.1f} s, {len(running)} calls under way")
    scene.catch_up(records_per_trigger=200, **calls.settings())
    calls.check()

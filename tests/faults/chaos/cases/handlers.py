"""A handler is the transform: its processes die while calls run, its calls hang, and what is kept of them is lost."""

from __future__ import annotations

import os
import signal
import time
from typing import Final

import psutil

from tests.faults.chaos.cases.drivers import TARGETS
from tests.faults.chaos.harness.calls import HANGING, called_again
from tests.faults.chaos.harness.gate import Gate
from tests.faults.chaos.harness.process import Target
from tests.faults.chaos.harness.registry import fault
from tests.faults.chaos.harness.scene import Job, Scene
from tests.faults.chaos.means.backends import in_transaction, terminate, terminate_others
from tests.faults.chaos.means.calls import Calls
from tests.faults.chaos.means.executors import executors, wait_for_executors, wait_until_gone
from tests.faults.chaos.means.held import held
from tests.faults.chaos.means.letters import check_letters, scatter_bad, scatter_changed, states
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
                _kill_worker(scene, calls, victim)
                if victim.has_ended:
                    supervisor.next_job(victim)
                continue
            under_way = f"{len(calls.running(victim))} calls and {len(in_transaction(scene))} transactions"
            supervisor.settings["records_per_trigger"] = 150
            victim.kill(target)
            scene.fired(f"{target} of job {victim.pid} got SIGKILL, {under_way} under way, letters {states(scene)}")
            supervisor.next_job(victim)
        scatter_bad(scene, good=45, bad=5)
        scene.caught_up()
    check_letters(scene)
    scene.fired(calls.check())


def _kill_worker(scene: Scene, calls: Calls, victim: Job) -> None:
    """End one that makes calls, and wait until the micro-batch is over."""
    scatter_bad(scene, good=95, bad=5)
    running = calls.wait_until_running(victim)
    pid = scene.random.choice(sorted({call.pid for call in running}))
    done = victim.batches_done
    os.kill(pid, signal.SIGKILL)
    calls.killed(victim)
    wait_until_gone(pid)
    scene.fired(f"worker {pid} of job {victim.pid} got SIGKILL, {len(running)} calls under way")
    wait_until(lambda: victim.has_ended or victim.batches_done > done, timeout=90)


@fault(row=ROW, must=MUST, seeds=6)
def handlers_killed_at_half(scene: Scene) -> None:
    """Python, Java or both get SIGKILL when half of the calls of one micro-batch of 600 records are made."""
    size = 600
    calls = Calls(scene)
    scatter_bad(scene, good=570, bad=30)
    settings = {**calls.settings(), "records_per_trigger": size}
    target = TARGETS[scene.seed % len(TARGETS)]
    with scene.supervise(**settings) as supervisor:
        victim = supervisor.job
        wait_until(lambda: len({call.place for call in calls.all()}) >= size // 2, timeout=90)
        victim.kill(target)
        called = {call.place for call in calls.all()}
        scene.fired(f"{target} of job {victim.pid} got SIGKILL when {len(called)} of {size} records were called for")
        supervisor.next_job(victim)
        scene.caught_up()
    check_letters(scene)
    scene.fired(calls.check())
    again = called_again(calls.all())
    assert size // 4 < len(again) <= size, f"{len(again)} records were called for again"


@fault(row=ROW, must=MUST, variants=("worker", "executor"), seeds=6)
def handlers_killed_in_a_task(scene: Scene) -> None:
    """SIGKILL to a Python worker that makes calls, or to its executor, twice, under a job with two executors."""
    calls = Calls(scene)
    scatter_bad(scene, good=190, bad=10)
    with scene.supervise(kind="cluster", **calls.settings()) as supervisor:
        job = supervisor.job
        job.wait_for("done", timeout=120)
        for _ in range(2):
            wait_for_executors(job)
            if scene.variant == "worker":
                _kill_worker(scene, calls, job)
            else:
                _kill_executor(scene, calls, job)
        scene.caught_up()
        assert supervisor.jobs == [job], "the job was to live on"
    check_letters(scene)
    scene.fired(calls.check())


def _kill_executor(scene: Scene, calls: Calls, job: Job) -> None:
    """End one whose worker makes calls."""
    scatter_bad(scene, good=95, bad=5)
    running = calls.wait_until_running(job)
    daemon = psutil.Process(running[-1].pid).parent()
    assert daemon is not None
    executor, done = daemon.ppid(), job.batches_done
    assert executor in executors(job)
    os.kill(executor, signal.SIGKILL)
    calls.killed(job)
    wait_until_gone(executor)
    scene.fired(f"executor {executor} got SIGKILL, {len(running)} calls under way")
    job.wait_for("done", done + 1, timeout=120)


@fault(row=ROW, must=MUST, seeds=6)
def handlers_outcomes_lost_in_discovery(scene: Scene) -> None:
    """All calls of a micro-batch are made, some rows are refused, and the job stands still while it searches for these:
    the executor that keeps most outcomes gets SIGKILL."""
    calls = Calls(scene)
    scatter_bad(scene, good=190, bad=10)
    with scene.supervise(kind="cluster", failpoint="in_discovery:1:stop", **calls.settings()) as supervisor:
        job = supervisor.job
        with held(job) as where:
            wait_for_executors(job)
            made = len({call.place for call in calls.all()})
            victim = scene.random.choice(executors(job))
            os.kill(victim, signal.SIGKILL)
            calls.killed(job)
            wait_until_gone(victim)
            scene.fired(f"executor {victim} got SIGKILL with {where}, {made} records called for")
        scene.caught_up(timeout=120)
        assert supervisor.jobs == [job], "the job was to live on"
    check_letters(scene)
    scene.fired(calls.check())


@fault(row=ROW, must=MUST, ways=("partition",), variants=("begun", "written"), seeds=3)
def handlers_outcomes_lost_in_a_task(scene: Scene) -> None:
    """A task has made all its calls, and has its transaction open, or has written all rows: its executor gets
    SIGKILL."""
    calls, gate = Calls(scene), Gate(scene.directory / "gate")
    scene.produce(200)  # with a bad one among them, the driver would write, and the next batches too
    with scene.supervise(kind="cluster", gate=str(gate.directory), **calls.settings()) as supervisor:
        job = supervisor.job
        job.wait_for("done", scene.random.randint(1, 2), timeout=120)
        wait_for_executors(job)
        gate.shut("begun" if scene.variant == "begun" else "written")
        scene.produce(120)
        victim = scene.random.choice(wait_until(gate.waiting, timeout=90))
        os.kill(victim.executor, signal.SIGKILL)
        calls.killed(job)
        wait_until_gone(victim.executor)
        scene.fired(f"executor {victim.executor} got SIGKILL: {victim}")
        gate.open()
        scene.caught_up(timeout=120)
        assert supervisor.jobs == [job], "the job was to live on"
    check_letters(scene)
    scene.fired(calls.check())


@fault(row=ROW, must=NONE_AGAIN, seeds=6)
def handlers_backends_terminated(scene: Scene) -> None:
    """pg_terminate_backend for all connections of the job while calls run, and for those in a batch's transaction, in
    turn, twice each."""
    calls = Calls(scene)
    scatter_bad(scene, good=95, bad=5)
    with scene.supervise(**calls.settings()) as supervisor:
        job = supervisor.job
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
        scene.caught_up()
        assert supervisor.jobs == [job], "the job was to live on"
    check_letters(scene)
    scene.fired(calls.check())


@fault(row=ROW, must="each a letter after its timeout; all others written; no call repeated", seeds=4)
def handlers_hanging_calls(scene: Scene) -> None:
    """Six calls among 200 take longer than they may, in threads or on a loop."""
    calls = Calls(scene, hangs=_HANGS, timeout=_TIMEOUT)
    hanging = scatter_changed(scene, good=194, bad=6, amount=HANGING)
    with scene.supervise(records_per_trigger=200, **calls.settings()) as supervisor:
        scene.caught_up()
        assert len(supervisor.jobs) == 1, "the job was to live on"
    late = scene.database.rows(
        "SELECT topic, partition, record_offset FROM dead_letters WHERE error_class = 'HandlerTimeout' AND attempts = 1"
    )
    assert {*late} == hanging, f"letters of {late}, calls hung for {hanging}"
    lasted = [call for call in calls.all() if call.place in hanging]
    assert len(lasted) == len(hanging)
    scene.fired(f"{len(hanging)} calls hung, and became letters")
    check_letters(scene)
    scene.fired(calls.check())


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
    with scene.supervise(records_per_trigger=200, **calls.settings()):
        scene.caught_up()
    check_letters(scene)
    scene.fired(calls.check())


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
    calls.stopped(job)
    assert took < 15 * PATIENCE, f"it took {took:.1f} s"
    scene.fired(f"job {job.pid} was stopped within {took:.1f} s, {len(running)} calls under way")
    with scene.supervise(records_per_trigger=200, **calls.settings()):
        scene.caught_up()
    check_letters(scene)
    scene.fired(calls.check())

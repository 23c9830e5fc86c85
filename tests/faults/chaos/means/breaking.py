"""How a job is broken, wherever it stands: killed, frozen and taken over, or its database stopped under it."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from threading import Thread
from typing import Any, Final, TypeVar, cast

import psutil

from offsetstore.local.postgres import StopMode
from offsetstore.store.identity import name_prefix
from tests.faults.chaos.harness.process import TARGETS, Target
from tests.faults.chaos.harness.scene import Job, Scene, Supervisor
from tests.support.cluster import executors_below
from tests.support.waiting import PATIENCE, wait_until

MODES: Final = ("fast", "immediate")

_REPEATED = re.compile(r"attempt \d+ failed \((\w+)\)")
_CLAIM_SECONDS = 30.0
"""So long a claim may take beyond its takeover_timeout."""

# A claim's own transactions have two parts after the prefix, those of batches and tasks three (`Transaction`).
_OPEN = """
SELECT pid, application_name, state, coalesce(wait_event_type, ''), left(query, 60) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND xact_start IS NOT NULL
    AND application_name LIKE '{prefix}%:%:%' ORDER BY xact_start
"""
_OTHERS = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'
"""
_AFTER = """
SELECT topic || '-' || partition, from_offset, to_offset FROM offset_moves
WHERE advanced AND claim_id = '{old}' AND id > (SELECT min(id) FROM offset_moves WHERE claim_id = '{new}')
"""


_Event = TypeVar("_Event")


def drawn(scene: Scene, events: Sequence[_Event], count: int) -> list[_Event]:
    """So many of these in any order, all of them as often as the others."""
    plan = [*events] * -(-count // len(events))
    scene.random.shuffle(plan)
    return plan[:count]


def in_turn(scene: Scene) -> Target:
    """Whom to kill: the ways and the targets take turns, in all combinations over the seeds."""
    return TARGETS[(scene.seed // len(scene.fault.ways) + scene.seed) % len(TARGETS)]


def kill_at(scene: Scene, point: str, nth: int, more: Callable[[], object], **settings: Any) -> None:
    """Kill a supervised job that stands still at a point (OFFSETSTORE_FAILPOINT=...:hang), and see the next catch up.

    :param more: what comes in when the next one has been started.
    """
    with scene.supervise(failpoint=f"{point}:{nth}:hang", **settings) as supervisor:
        reached = supervisor.job.wait_for("reached", timeout=90)
        supervisor.settings["records_per_trigger"] = 150
        supervisor.kill(in_turn(scene), f"at {point}:{nth} (process {reached.what['pid']})")
        more()
        scene.caught_up()


def kill_at_random(scene: Scene, supervisor: Supervisor, *, batches: int, within: float) -> None:
    """Kill the job twice, each time at a random moment after so many batches at most."""
    for _ in range(2):
        supervisor.job.wait_for("begun", scene.random.randint(1, batches))
        time.sleep(scene.random.uniform(0, within))
        supervisor.kill()


def stop_database_at(scene: Scene, mode: str, more: Callable[[], object], **settings: Any) -> None:
    """Stop the server while a job stands still (a failpoint with :stop), which goes on before or after its start."""
    with scene.living(**settings) as job:
        with held(job) as where:
            before = scene.postgres.pid
            scene.postgres.stop(cast("StopMode", mode))
            if not (goes_on_first := scene.random.random() < 0.5):
                scene.postgres.start()
        if goes_on_first:
            time.sleep(scene.random.uniform(0, 1))
            scene.postgres.start()
        assert scene.postgres.pid not in {None, before}
        order = "before" if goes_on_first else "after"
        now = scene.postgres.pid
        scene.fired(f"PostgreSQL {before} was stopped ({mode}) with {where}, which went on {order} the start of {now}")
        more()


def terminate_at(scene: Scene, more: Callable[[], object], **settings: Any) -> None:
    """Terminate the backends that are in a transaction of a job which stands still."""
    with scene.living(**settings) as job:
        with held(job) as where:
            backends = in_transaction(scene)
            assert backends, "there was no transaction to end"
            terminate(scene, backends)
        scene.fired(f"{where}: {', '.join(map(str, backends))} terminated")
        more()


# -- standing still


@contextmanager
def held(job: Job) -> Generator[str]:
    """Wait until the job has stopped itself (a failpoint with ``:stop``); it goes on where the block ends.

    Yields where that is, for the evidence. It may be a Python worker of Spark's, while the driver waits for it. Each
    worker counts for itself: others that come to their stop are let go on, too.
    """
    where = wait_until_stopped(job)
    try:
        yield where
    finally:
        Thread(target=_let_go_on, args=(job,), daemon=True).start()


def wait_until_stopped(job: Job) -> str:
    """Wait until a failpoint with ``:stop`` has stopped a process of the job; return where."""
    reached = job.wait_for("reached", timeout=90).what
    # It says so before it stops itself: a SIGSTOP of ours in between would leave its own for after the SIGCONT.
    wait_until(lambda: stands(reached["pid"]))
    return f"process {reached['pid']} at {reached['point']}"


def _let_go_on(job: Job) -> None:
    released: set[int] = set()
    while not job.has_ended:
        for event in job.told("reached"):
            pid = event.what["pid"]
            with suppress(psutil.NoSuchProcess, ProcessLookupError):
                if pid not in released and psutil.Process(pid).status() == psutil.STATUS_STOPPED:
                    os.kill(pid, signal.SIGCONT)
                    released.add(pid)
        time.sleep(0.05)


def take_over(scene: Scene, first: Job, seen: str, *, may_commit: bool, batches: int = 3, **settings: Any) -> None:
    """Freeze the job with Java and all workers, let another one claim, and thaw it.

    :param may_commit: its next words to the database may be COMMIT, to a connection that the claim has ended.
    :param batches: the other one writes at most so many before the thaw, by chance.
    :param settings: of the other one.
    """
    first.freeze()
    workers = freeze(_workers(first))
    pids = [first.pid, first.jvm, *(one.pid for one in workers)]
    wait_until(lambda: all(stands(pid) for pid in pids))
    timeout = scene.random.choice([0.5, 2.0])
    begin = time.monotonic()
    second = scene.start(takeover_timeout=timeout, **settings)
    second.wait_for("claimed", timeout=90)
    waited = time.monotonic() - begin
    assert waited < (timeout + _CLAIM_SECONDS) * PATIENCE, f"the claim took {waited:.1f} s"
    scene.fired(f"SIGSTOP to {pids}, {seen}; claimed anew in {waited:.1f} s")
    scene.produce(60)
    second.wait_for("done", scene.random.randint(0, batches) or 1)
    thaw(workers)
    first.thaw()
    scene.produce(60)
    report = scene.expect_error(first, "StaleClaim", *(["CommitUnknown"] if may_commit else []), timeout=120)
    if report.class_name == "StaleClaim":
        assert second.claim_id in report.text, f"it does not name the owner: {report.text}"
    late = scene.database.rows(_AFTER.format(old=first.claim_id, new=second.claim_id))
    assert not late, f"the first job has written after the second one's claim: {late}"
    scene.caught_up()


def _workers(job: Job) -> list[psutil.Process]:
    """All processes of a job but the driver's Python and Java: the daemon that forks workers, and these."""
    with suppress(psutil.NoSuchProcess):
        return [one for one in psutil.Process(job.jvm).children(recursive=True) if one.pid != job.pid]
    return []


def freeze(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Stop them as they stand; return them."""
    frozen = [*processes]
    for one in frozen:
        with suppress(psutil.NoSuchProcess):
            one.suspend()
    wait_until(lambda: all(stands(one.pid) for one in frozen))
    return frozen


def thaw(frozen: Iterable[psutil.Process]) -> None:
    for one in frozen:
        with suppress(psutil.NoSuchProcess):
            one.resume()


def stands(pid: int) -> bool:
    """Whether the process is stopped, or gone."""
    try:
        return psutil.Process(pid).status() in {psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE}
    except psutil.NoSuchProcess:
        return True


# -- the job's connections, as the database's server sees them


@dataclass(frozen=True, slots=True)
class Backend:
    """One server process in a transaction of the job. ``waits_for`` is ``Lock`` where it waits for one."""

    pid: int
    name: str
    state: str
    waits_for: str
    query: str

    def __str__(self) -> str:
        return f"backend {self.pid} ({self.state}: {' '.join(self.query.split())[:40]})"


def in_transaction(scene: Scene) -> list[Backend]:
    """Those that have a batch's or a task's transaction open now."""
    return [Backend(*row) for row in scene.database.rows(_OPEN.format(prefix=name_prefix(scene.group)))]


def is_gone(scene: Scene, pid: int) -> bool:
    return not scene.database.rows(f"SELECT 1 FROM pg_stat_activity WHERE pid = {pid}")


def terminate(scene: Scene, backends: list[Backend]) -> None:
    for one in backends:
        scene.database.rows(f"SELECT pg_terminate_backend({one.pid})")
    wait_until(lambda: all(is_gone(scene, one.pid) for one in backends))


def terminate_others(scene: Scene) -> int:
    """End all connections to the run's database but our own; return how many there were."""
    return len(scene.database.rows(_OTHERS))


# -- its executors, and its log


def executors(job: Job) -> list[int]:
    """Those that run now, of a job whose executors are children of its Java."""
    with suppress(psutil.NoSuchProcess):
        return executors_below(psutil.Process(job.jvm))
    return []


def wait_for_executors(job: Job, count: int = 2) -> None:
    wait_until(lambda: len(executors(job)) == count, timeout=90)


def kill_process(pid: int) -> None:
    """Send SIGKILL, and wait until the process has ended, whether or not somebody has taken notice."""

    def is_gone() -> bool:
        with suppress(psutil.NoSuchProcess):
            return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
        return True

    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    wait_until(is_gone)


def repeated_for(job: Job) -> list[str]:
    """The errors for which work has been done again, oldest first; of all jobs of its process."""
    return _REPEATED.findall(job.process.log.read_text(encoding="utf-8", errors="replace"))

"""The database goes down, or only the job's connections to it."""

from __future__ import annotations

import time
from typing import Final, cast

from offsetstore.local.postgres.server import StopMode
from tests.faults.chaos.harness.registry import fault
from tests.faults.chaos.harness.scene import Scene
from tests.faults.chaos.means.backends import in_transaction, is_gone, terminate, terminate_others
from tests.faults.chaos.means.held import held
from tests.support.waiting import wait_until

STOPPED: Final = "database stopped fast, immediately (crash)"
STOPPED_MUST: Final = "retried"
TERMINATED: Final = "backend terminated"
TERMINATED_MUST: Final = "whole transaction gone, retried"
MODES: Final = ("fast", "immediate")

OPEN: Final = ("after_lock", "in_copy", "before_advance", "before_commit")
"""Where a transaction is open."""

POINTS: Final = (*OPEN, "commit_sent", "after_commit", "before_lock")

LOST: Final = ("TransactionLost", "StoreUnavailable")
"""What a job ends with that has lost the database too often."""


@fault(row=STOPPED, must=STOPPED_MUST, variants=MODES, seeds=7)
def database_stopped(scene: Scene) -> None:
    """pg_ctl stop -m fast or immediate and start, while the job stands still at a named point; it goes on while the
    server is down, or when it is up again."""
    point = POINTS[scene.seed % len(POINTS)]
    scene.produce(400)
    with scene.supervise(failpoint=f"{point}:{scene.random.randint(1, 4)}:stop") as supervisor:
        victim = supervisor.job
        with held(victim) as where:
            before = scene.postgres.pid
            scene.postgres.stop(cast("StopMode", scene.variant))
            goes_on_first = scene.random.random() < 0.5
            if not goes_on_first:
                scene.postgres.start()
        if goes_on_first:
            time.sleep(scene.random.uniform(0, 1))
            scene.postgres.start()
        assert scene.postgres.pid not in {None, before}
        scene.fired(
            f"PostgreSQL {before} was stopped ({scene.variant}) with {where}, "
            f"which went on {'before' if goes_on_first else 'after'} the start of {scene.postgres.pid}"
        )
        scene.produce(100)
        scene.caught_up()
        assert supervisor.jobs == [victim], "the job was to live on"


@fault(row=STOPPED, must=STOPPED_MUST, variants=MODES, seeds=6)
def database_stopped_at_random(scene: Scene) -> None:
    """The server is stopped and started twice, each time at a random moment, while records keep coming."""
    scene.expect(*LOST)
    with scene.supervise() as supervisor:
        with scene.producing(rate=100):
            for _ in range(2):
                job = supervisor.job
                job.wait_for("begun", job.batches_done + scene.random.randint(1, 4))
                time.sleep(scene.random.uniform(0, 0.5))
                before, under_way = scene.postgres.pid, len(job.told("begun")) - job.batches_done
                scene.postgres.stop(cast("StopMode", scene.variant))
                time.sleep(scene.random.uniform(0, 1.5))
                scene.postgres.start()
                assert scene.postgres.pid != before
                scene.fired(f"PostgreSQL {before} was stopped ({scene.variant}), {under_way} batches under way")
        scene.caught_up()


@fault(row=STOPPED, must=STOPPED_MUST, seeds=6)
def database_away_for_long(scene: Scene) -> None:
    """The server is stopped, and stays away for longer than the job tries: it ends with a typed error, and is started
    again and again until the server is back."""
    scene.expect(*LOST)
    scene.produce(300)
    with scene.supervise(retries={"attempts": 2}) as supervisor:
        job = supervisor.job
        job.wait_for("begun", scene.random.randint(1, 4))
        scene.postgres.stop(scene.random.choice(MODES))
        job.wait_for("ended")
        assert job.error is not None
        time.sleep(scene.random.uniform(0, 3))
        scene.postgres.start()
        scene.fired(f"the job ended with {job.error.class_name} while the server was away: {job.error.what}")
        supervisor.next_job(job)
        scene.produce(100)
        scene.caught_up()


@fault(row=TERMINATED, must=TERMINATED_MUST, seeds=12)
def backend_terminated(scene: Scene) -> None:
    """pg_terminate_backend for the backends that are in a transaction of the job, standing still at a named point."""
    point = OPEN[scene.seed % len(OPEN)]
    scene.produce(400)
    with scene.supervise(failpoint=f"{point}:{scene.random.randint(1, 4)}:stop") as supervisor:
        victim = supervisor.job
        with held(victim) as where:
            backends = in_transaction(scene)
            assert backends, "there was no transaction to end"
            terminate(scene, backends)
        scene.fired(f"{where}: {', '.join(map(str, backends))} terminated")
        scene.produce(100)
        scene.caught_up()
        assert supervisor.jobs == [victim], "the job was to live on"


@fault(row=TERMINATED, must=TERMINATED_MUST, seeds=6)
def backends_terminated_at_random(scene: Scene) -> None:
    """pg_terminate_backend for all connections to the job's database, five times, while records keep coming."""
    scene.expect(*LOST)
    with scene.supervise() as supervisor:
        with scene.producing(rate=100):
            for _ in range(5):
                job = supervisor.job
                done = job.batches_done
                time.sleep(scene.random.uniform(0, 0.6))
                under_way = in_transaction(scene)
                ended = terminate_others(scene)
                scene.fired(f"{ended} connections terminated, {len(under_way)} of them in a batch's transaction")
                wait_until(lambda job=job, done=done: job.has_ended or job.batches_done > done, timeout=60)
        scene.caught_up()


@fault(row="long pause", must="transaction dead, no part of it visible", seeds=6)
def long_pause(scene: Scene) -> None:
    """The job gets SIGSTOP in an open transaction, for longer than idle_in_transaction_session_timeout allows; the
    server ends the transaction, and then the job goes on."""
    # In the middle of COPY the server waits for the client for ever: that is a takeover's business, not a time limit's.
    point = ("after_lock", "before_advance", "before_commit")[(scene.seed + scene.seed // 3) % 3]
    idle = scene.random.uniform(1.5, 3)
    settings = {"failpoint": f"{point}:{scene.random.randint(1, 4)}:stop", "timeouts": {"idle": idle}}
    scene.produce(400)
    with scene.supervise(**settings) as supervisor:
        victim = supervisor.job
        with held(victim) as where:
            victim.freeze()
            [backend, *_] = in_transaction(scene)
            begin = time.monotonic()
            wait_until(lambda: is_gone(scene, backend.pid), timeout=20)
            gone_after = time.monotonic() - begin
            time.sleep(scene.random.uniform(0, 1))
            victim.thaw()
        scene.fired(f"{where}: {backend} was ended by the server after {gone_after:.1f} s of silence ({idle:.1f} s)")
        scene.produce(100)
        scene.caught_up()
        assert supervisor.jobs == [victim], "the job was to live on"

"""The database goes down, or only the job's connections to it."""

from __future__ import annotations

import time
from typing import Final, cast

import psycopg

from offsetstore.local.postgres import StopMode
from tests.faults.chaos.harness.registry import fault
from tests.faults.chaos.harness.scene import Job, Scene
from tests.faults.chaos.means.breaking import (
    MODES,
    held,
    in_transaction,
    is_gone,
    repeated_for,
    stop_database_at,
    terminate_at,
    terminate_others,
)
from tests.support.proxy import CommitProxy, Lost
from tests.support.server_errors import OF_SERVER
from tests.support.waiting import PATIENCE, wait_until

STOPPED: Final = "database stopped fast, immediately (crash)"
STOPPED_MUST: Final = "retried"
TERMINATED: Final = "backend terminated"
TERMINATED_MUST: Final = "whole transaction gone, retried"

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
    failpoint = f"{point}:{scene.random.randint(1, 4)}:stop"
    stop_database_at(scene, scene.variant, lambda: scene.produce(100), failpoint=failpoint)


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
                before, under_way = scene.postgres.pid, job.under_way
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
        scene.fired(f"the job ended with {job.error.class_name} while the server was away: {job.error.text}")
        supervisor.next_job(job)
        scene.produce(100)
        scene.caught_up()


@fault(row=TERMINATED, must=TERMINATED_MUST, seeds=12)
def backend_terminated(scene: Scene) -> None:
    """pg_terminate_backend for the backends that are in a transaction of the job, standing still at a named point."""
    point = OPEN[scene.seed % len(OPEN)]
    scene.produce(400)
    terminate_at(scene, lambda: scene.produce(100), failpoint=f"{point}:{scene.random.randint(1, 4)}:stop")


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
    with scene.living(**settings) as victim:
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


# -- a COMMIT that does not arrive, or whose answer doesn't

ROW: Final = "COMMIT lost before / after it happened"
MUST: Final = "not applied and retried / found applied"
COMMIT_LOST: Final = {"before": Lost.COMMIT, "after": Lost.ANSWER, "half-open": Lost.CONNECTION}


@fault(row=ROW, must=MUST, variants=tuple(COMMIT_LOST), seeds=6)
def commit_lost(scene: Scene) -> None:
    """A proxy swallows COMMIT (and closes both connections), its answer, or COMMIT without telling the server, three
    times; the job alone finds out whether it happened."""
    how = COMMIT_LOST[scene.variant]
    stored: list[dict[int, int]] = []
    scene.produce(500)
    with CommitProxy(scene.url) as proxy, scene.living(url=proxy.url, timeouts={"commit": 4.0}) as job:
        for _ in range(3):
            job.wait_for("done", job.batches_done + scene.random.randint(1, 3))
            scene.produce(200)
            before = scene.stored()
            with proxy.losing(how, then=lambda: stored.append(scene.stored())) as fired:
                assert fired.wait(30 * PATIENCE), "no COMMIT came"
            scene.fired(f"{how.value}: stored {before} before, {stored[-1]} when it was lost")


@fault(
    row=ROW,
    must="the old job ends with StaleClaim or CommitUnknown, nothing is lost or there twice",
    variants=tuple(COMMIT_LOST),
    seeds=6,
)
def commit_lost_and_claimed(scene: Scene) -> None:
    """As before, and another job takes the group over before the first one notices, which ends when it can tell what
    became of its transaction, or that nobody can."""
    how = COMMIT_LOST[scene.variant]
    # Where the new owner has moved every row on by then, nothing can be told.
    scene.expect("StaleClaim", "CommitUnknown")
    scene.produce(500)
    taken: list[Job] = []
    with CommitProxy(scene.url) as proxy:
        old = scene.start(url=proxy.url, timeouts={"commit": 6.0})
        old.wait_for("done", scene.random.randint(1, 5))
        batches = scene.random.randint(0, 2)

        def take_over() -> None:
            new = scene.start(takeover_timeout=1.0)
            new.wait_for("claimed")
            if batches:
                new.wait_for("done", batches)
            taken.append(new)

        with proxy.losing(how, then=take_over) as fired:
            scene.produce(100)
            assert fired.wait(60 * PATIENCE), "no COMMIT came"
        old.wait_for("failed")
        assert old.error is not None
        scene.fired(
            f"{how.value}; epoch {taken[0].epoch} claimed in between, {batches} batches: {old.error.text[:150]}"
        )
        scene.produce(100)
        scene.caught_up()


# -- another session is in the way, or the database gives a transaction up

LOCK_ROW: Final = "lock held, deadlock, serialization failure in mid iterator"
LOCK_MUST: Final = "repeated whole, or LockTimeout; nothing in part"

_LOCK = "SELECT 1 FROM kafka_partitions WHERE consumer_group = %s AND partition = %s FOR UPDATE"
_TOUCH = "UPDATE sums SET records = records + 0 WHERE key = %s"
_TOUCH_OTHERS = "UPDATE sums SET records = records + 0 WHERE key <> %s"

_FAIL_ONCE = """
CREATE SEQUENCE landed_rows;
CREATE FUNCTION fail_once() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    -- A sequence goes on counting where a transaction is rolled back.
    IF nextval('landed_rows') IN ({numbers}) THEN
        {trouble}
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER fail_once BEFORE INSERT ON landed FOR EACH ROW EXECUTE FUNCTION fail_once();
"""


@fault(row=LOCK_ROW, must=LOCK_MUST, seeds=6)
def lock_held(scene: Scene) -> None:
    """A second session holds a partition's row for several of the job's lock timeouts, and leaves; the job repeats the
    batch until then."""
    scene.produce(400)
    with scene.living(timeouts={"lock": 0.3}) as job, psycopg.connect(scene.url) as other:
        job.wait_for("done", scene.random.randint(1, 3))
        before = len(repeated_for(job))
        partition = scene.random.randrange(scene.partitions)
        other.execute(_LOCK, (scene.group, partition))
        stored = scene.stored()
        scene.produce(100)
        times = scene.random.randint(1, 3)
        wait_until(lambda: len(repeated_for(job)) >= before + times)
        errors = repeated_for(job)[before:]
        assert set(errors) == {"LockTimeout"}, errors
        assert scene.stored()[partition] == stored[partition]
        other.rollback()
        scene.fired(f"partition {partition} was locked by another session, {len(errors)} attempts ended in LockTimeout")


@fault(row=LOCK_ROW, must=LOCK_MUST, seeds=6)
def lock_held_for_long(scene: Scene) -> None:
    """A second session holds a partition's row for longer than the job tries: it ends with LockTimeout, and the next
    one's claim waits until the lock is let go."""
    scene.expect("LockTimeout")
    scene.produce(400)
    settings = {"timeouts": {"lock": 0.3}, "retries": {"attempts": 2}}
    with scene.supervise(**settings) as supervisor, psycopg.connect(scene.url) as other:
        job = supervisor.job
        job.wait_for("done", scene.random.randint(1, 3))
        partition = scene.random.randrange(scene.partitions)
        other.execute(_LOCK, (scene.group, partition))
        scene.produce(100)
        report = scene.expect_error(job, "LockTimeout")
        scene.fired(f"partition {partition} was locked by another session: {report.text}")
        assert f"{scene.topic}-{partition}" in report.text
        assert str(other.info.backend_pid) in report.text, "it does not say who holds the lock"
        supervisor.next_job(job)
        other.rollback()
        scene.caught_up()


@fault(row=LOCK_ROW, must=LOCK_MUST, variants=("job", "other"), seeds=6)
def deadlock(scene: Scene) -> None:
    """A second session updates sums in the opposite order of their keys, so that it and the job wait for each other;
    the database gives up the job's transaction, or the other one."""
    # Whose time is over first is given up.
    ours, others = ("100ms", "30s") if scene.variant == "job" else ("30s", "100ms")
    name = scene.database.one("SELECT quote_ident(current_database())")
    scene.database.execute(f"ALTER DATABASE {name} SET deadlock_timeout = '{ours}'")
    scene.produce(300)
    with scene.living() as job, psycopg.connect(scene.url) as other:
        other.execute(f"SET deadlock_timeout = '{others}'")
        other.commit()
        job.wait_for("done", scene.random.randint(1, 3))
        before = len(repeated_for(job))
        last = scene.database.one("SELECT max(key) FROM sums")
        other.execute(_TOUCH, (last,))
        scene.produce(300)
        blocked = wait_until(lambda: [one for one in in_transaction(scene) if one.waits_for == "Lock"])[0]
        try:
            other.execute(_TOUCH_OTHERS, (last,))
            given_up = "the job's transaction"
        except psycopg.errors.DeadlockDetected:
            given_up = "the other session's"
        other.rollback()
        assert given_up == ("the job's transaction" if scene.variant == "job" else "the other session's")
        errors = wait_until(lambda: repeated_for(job)[before:]) if scene.variant == "job" else []
        told = f"{given_up} was given up, and the job's repeated for {errors}"
        scene.fired(f"{blocked} was in a deadlock with {other.info.backend_pid}; {told}")


@fault(row=LOCK_ROW, must=LOCK_MUST, variants=("53400", "57014"), seeds=6)
def given_up_in_mid_iterator(scene: Scene) -> None:
    """The server cancels the statement, or has no room for a temporary file, at some rows of a batch, when others of it
    have been copied in; the batch, or the task, is repeated from its input."""
    # Far enough apart that a repetition does not meet the next one at once.
    numbers = [scene.random.randint(1, 60) + 150 * i for i in range(3)]
    scene.database.execute(_FAIL_ONCE.format(numbers=", ".join(map(str, numbers)), trouble=OF_SERVER[scene.variant]))
    scene.produce(500)
    with scene.living() as job:
        begin = len(repeated_for(job))
    errors = repeated_for(job)[begin:]
    rows = scene.database.one("SELECT last_value FROM landed_rows")
    assert len(errors) >= 3, errors
    assert rows > scene.ledger.count, "nothing was repeated"
    scene.fired(f"SQLSTATE {scene.variant} at rows {numbers} of {rows}; repeated for {errors}")

"""Another session is in the way: of a partition's row, of the results' rows; or the database gives a transaction up."""

from __future__ import annotations

from typing import Final

import psycopg

from tests.faults.chaos.harness.registry import fault
from tests.faults.chaos.harness.scene import Scene
from tests.faults.chaos.means.backends import waiting_for_lock
from tests.faults.chaos.means.logs import repeated_for
from tests.support.server_errors import OF_SERVER
from tests.support.waiting import wait_until

ROW: Final = "lock held, deadlock, serialization failure in mid iterator"
MUST: Final = "repeated whole, or LockTimeout; nothing in part"

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


@fault(row=ROW, must=MUST, seeds=6)
def lock_held(scene: Scene) -> None:
    """A second session holds a partition's row for several of the job's lock timeouts, and leaves; the job repeats the
    batch until then."""
    scene.produce(400)
    with scene.supervise(timeouts={"lock": 0.3}) as supervisor, psycopg.connect(scene.url) as other:
        job = supervisor.job
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
        scene.caught_up()
        assert supervisor.jobs == [job], "the job was to live on"


@fault(row=ROW, must=MUST, seeds=6)
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


@fault(row=ROW, must=MUST, variants=("job", "other"), seeds=6)
def deadlock(scene: Scene) -> None:
    """A second session updates sums in the opposite order of their keys, so that it and the job wait for each other;
    the database gives up the job's transaction, or the other one."""
    # Whose time is over first is given up.
    ours, others = ("100ms", "30s") if scene.variant == "job" else ("30s", "100ms")
    scene.database.execute(f"ALTER DATABASE {_database(scene)} SET deadlock_timeout = '{ours}'")
    scene.produce(300)
    with scene.supervise() as supervisor, psycopg.connect(scene.url) as other:
        other.execute(f"SET deadlock_timeout = '{others}'")
        other.commit()
        job = supervisor.job
        job.wait_for("done", scene.random.randint(1, 3))
        before = len(repeated_for(job))
        last = scene.database.one("SELECT max(key) FROM sums")
        other.execute(_TOUCH, (last,))
        scene.produce(300)
        blocked = waiting_for_lock(scene)
        try:
            other.execute(_TOUCH_OTHERS, (last,))
            given_up = "the job's transaction"
        except psycopg.errors.DeadlockDetected:
            given_up = "the other session's"
        other.rollback()
        if scene.variant == "job":
            errors = wait_until(lambda: repeated_for(job)[before:])
            assert given_up == "the job's transaction"
            scene.fired(f"{blocked} was in a deadlock with {other.info.backend_pid}, and repeated for {errors}")
        else:
            assert given_up == "the other session's"
            scene.fired(f"{blocked} was in a deadlock with {other.info.backend_pid}, which was given up")
        scene.caught_up()
        assert supervisor.jobs == [job], "the job was to live on"


@fault(row=ROW, must=MUST, variants=("53400", "57014"), seeds=6)
def given_up_in_mid_iterator(scene: Scene) -> None:
    """The server cancels the statement, or has no room for a temporary file, at some rows of a batch, when others of it
    have been copied in; the batch, or the task, is repeated from its input."""
    # Far enough apart that a repetition does not meet the next one at once.
    numbers = [scene.random.randint(1, 60) + 150 * i for i in range(3)]
    scene.database.execute(_FAIL_ONCE.format(numbers=", ".join(map(str, numbers)), trouble=OF_SERVER[scene.variant]))
    scene.produce(500)
    with scene.supervise() as supervisor:
        job = supervisor.job
        begin = len(repeated_for(job))
        scene.caught_up()
        errors = repeated_for(job)[begin:]
        rows = scene.database.one("SELECT last_value FROM landed_rows")
        assert len(errors) >= 3, errors
        assert rows > scene.ledger.count, "nothing was repeated"
        scene.fired(f"SQLSTATE {scene.variant} at rows {numbers} of {rows}; repeated for {errors}")
        assert supervisor.jobs == [job], "the job was to live on"


def _database(scene: Scene) -> str:
    return scene.database.one("SELECT quote_ident(current_database())")

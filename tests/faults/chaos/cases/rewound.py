"""The database goes back in time, loses our tables, or is cloned, while Kafka keeps the copies of the offsets."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final, Literal

from offsetstore.local.postgres import PostgresServer, find_binaries, unprivileged_account
from offsetstore.postgres.migrate import downgrade, upgrade
from offsetstore.protocol.store_facts import Stamp
from offsetstore.testing.fixtures import copy_database
from tests.faults.chaos.harness.expected import Stretch
from tests.faults.chaos.harness.mirrored import committed
from tests.faults.chaos.harness.registry import fault
from tests.faults.chaos.harness.scene import Scene, Supervisor, stored_in
from tests.faults.chaos.harness.tables import TRIGGER, migrate
from tests.faults.chaos.means.kafka import in_kafka
from tests.support.postgres import Database
from tests.support.waiting import wait_until

ROW: Final = "database rewound, store lost"
MUST: Final = "StoreRewound; with the override, replayed, not skipped"
KINDS: Final[tuple[Literal["hot", "cold"], ...]] = ("hot", "cold")

LONG: Final = 5000
_LENGTHEN: Final = f"""
UPDATE kafka_partitions SET metadata = json_build_object('until', next_offset, 'why', repeat('x', {LONG}))
"""
"""Metadata that a copy in Kafka has no room for."""

_ALL_ROWS: Final = "TRUNCATE kafka_partitions, consumer_groups, heartbeats, batch_marks, offset_history"
_CONTESTED: Final = (
    "SELECT reason FROM offset_history WHERE event = 'contested' AND reason LIKE '%copy of this database%'"
)
_OBSERVING: Final = "SELECT 1 FROM pg_stat_activity WHERE state <> 'idle' AND application_name = 'observer'"


def back_up(scene: Scene, how: Literal["hot", "cold"] = "hot") -> Callable[[], None]:
    """Copy the server's files; return what restores them: what was committed since is gone.

    :param how: ``hot``: pg_basebackup while the server works; ``cold``: it is stopped for a copy of its files.
    """
    copy: Path = scene.postgres.directory / "backup"
    shutil.rmtree(copy, ignore_errors=True)
    if how == "hot":
        base_backup(scene.postgres, copy)
    else:
        scene.postgres.stop()
        # With their owner: the server refuses files that are not its account's.
        subprocess.run(["cp", "-a", str(scene.postgres.data), str(copy)], check=True)
        scene.postgres.start()

    def restore() -> None:
        scene.mirror_watch.is_exempt = True  # Kafka has what the database has no longer
        scene.postgres.stop("immediate")
        shutil.rmtree(scene.postgres.data)
        copy.rename(scene.postgres.data)
        scene.lost_since = time.monotonic()
        scene.postgres.start()

    return restore


def base_backup(server: PostgresServer, target: Path, *options: str) -> None:
    """Copy the server's files with pg_basebackup while it works.

    :param options: further ones of the program's.
    """
    account = unprivileged_account()
    program = find_binaries().reachable_by(account, home=server.directory).program("pg_basebackup")
    where = ["-d", server.url, "-D", str(target)]
    done = subprocess.run(
        [program, *where, "--checkpoint=fast", "--wal-method=stream", "--no-sync", *options],
        cwd=server.directory,
        capture_output=True,
        text=True,
        check=False,
        **account.popen_arguments,
    )
    assert done.returncode == 0, done.stderr


@fault(row=ROW, must=MUST, variants=("stored", "kafka", "stored-with-long-metadata"), seeds=6)
def database_restored(scene: Scene) -> None:
    """The server's files are replaced by a base backup (pg_basebackup, or a copy of its files), between two runs of the
    job; the first start is refused, the next ones have on_rewound="stored" or "kafka". With metadata that is too long
    to go along, Kafka has the stamp alone."""
    override = scene.variant.partition("-")[0]
    _run(scene, batches=scene.random.randint(2, 4))
    if override != scene.variant:
        scene.database.execute(_LENGTHEN)
    how = KINDS[scene.seed % 2]
    restore = back_up(scene, how)
    before = scene.stored()
    _run(scene, batches=scene.random.randint(2, 4))
    lost = scene.stored()
    copied = committed(scene.servers, scene.group, [scene.topic])
    assert {partition: copy.next_offset for (_, partition), copy in copied.items()} == lost
    assert all(Stamp.of(copy) is not None for copy in copied.values())
    if override != scene.variant:
        assert all(len(copy.metadata or "") < LONG for copy in copied.values())
    restore()
    assert scene.stored() == before != lost
    scene.fired(f"{how} backup restored: stored {before}, Kafka has {lost}")
    _refuse(scene, before, lost)
    scene.allow("rewound")
    with scene.supervise(policy={"on_rewound": override}) as supervisor:
        start = {
            int(p): offset for p, offset in supervisor.job.wait_for("claimed").what["starting"][scene.topic].items()
        }
        assert start == (before if override == "stored" else lost)
        scene.produce(100)
        scene.caught_up()


@fault(row=ROW, must=MUST, variants=("stored", "kafka"), seeds=6)
def database_restored_under_the_job(scene: Scene) -> None:
    """The server's files are replaced by a base backup while the job runs: it meets a gap, and no start is let through
    until it has on_rewound=."""
    scene.expect("OffsetGap", "StoreRewound", "TransactionLost", "StoreUnavailable")
    scene.allow("rewound")
    with scene.producing(rate=100), scene.supervise() as supervisor:
        job = supervisor.job
        job.wait_for("done", scene.random.randint(1, 3))
        restore = back_up(scene)
        copied = scene.stored()
        wait_until(lambda: _is_beyond(in_kafka(scene), copied), timeout=60)
        job.wait_for("done", job.batches_done + scene.random.randint(1, 2))
        assert not job.has_ended
        lost = scene.stored()
        restore()
        assert sum(scene.stored().values()) < sum(lost.values())
        scene.fired(f"backup restored under job {job.pid}: stored {scene.stored()}, it was at {lost} or above")
        job.wait_for("ended")
        refused = supervisor.next_job(job)
        assert job.error is not None
        report = scene.expect_error(refused, "StoreRewound")
        scene.fired(f"the job ended with {job.error.class_name}, and was not let through: {report.text}")
        supervisor.settings["policy"] = {"on_rewound": scene.variant}
        wait_until(lambda: supervisor.job.batches_done, timeout=60)
    scene.catch_up()


@fault(row=ROW, must=MUST, variants=("stored", "kafka"), seeds=6)
def rows_lost(scene: Scene) -> None:
    """All rows of our tables but the store's identity are removed; results and Kafka's copies stay. The first start is
    refused, the next ones have on_rewound="stored" or "kafka"."""
    _lost(scene, lambda: scene.database.execute(_ALL_ROWS))


@fault(row=ROW, must=MUST, variants=("stored", "kafka"), seeds=6)
def tables_lost(scene: Scene) -> None:
    """Our tables are dropped and migrated anew; results and Kafka's copies stay. The first start is refused, the next
    ones have on_rewound="stored" or "kafka"."""
    _migrate_anew(scene)  # or the store's identity would be that of the template which the database was copied from
    _lost(scene, lambda: _migrate_anew(scene))


@fault(
    row="the database cloned beside the original",
    must="the clone is told; the original undisturbed",
    variants=("template", "files"),
    seeds=6,
)
def database_cloned(scene: Scene) -> None:
    """CREATE DATABASE ... TEMPLATE between two runs; then a job starts in the clone while the original's runs, which is
    killed after that and starts again. Of two variants, in one the clone's home is set to be itself, as it is in a copy
    of the server's files: its job claims, and the original's mirror meets it."""
    _run(scene, batches=scene.random.randint(1, 3))
    name = scene.url.rpartition("/")[2]
    for sql in (
        f"ALTER DATABASE {name} ALLOW_CONNECTIONS false",
        f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'",
    ):
        scene.postgres.sql(sql)
    is_told = scene.variant == "template"
    make = scene.postgres.create_database if is_told else partial(copy_database, scene.postgres)
    clone = make(f"{name}_clone", template=name)
    scene.at_end.callback(scene.postgres.drop_database, f"{name}_clone")
    scene.postgres.sql(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")
    own = {"url": clone, "base": f"{scene.checkpoints}-clone", "policy": {"on_rewound": "stored"}, "mirror_every": 0.3}
    scene.expect("StoreUnavailable", "TransactionLost")
    with scene.producing(), scene.supervise(mirror_every=0.3) as supervisor:
        job = supervisor.job
        job.wait_for("done", scene.random.randint(1, 3))
        scene.mirror_watch.is_exempt = not is_told  # Kafka has what the clone has stored
        in_clone = scene.start(**own)
        if is_told:
            report = scene.expect_error(in_clone, "StoreMoved")
            scene.fired(f"the clone was told: {report.text}")
            in_clone.stop()
        else:
            scene.allow("contested")
            in_clone.wait_for("done", 2)
            wait_until(lambda: scene.database.rows(_CONTESTED), timeout=60)
            scene.fired(f"the original's mirror met the clone: {scene.database.rows(_CONTESTED)}")
            in_clone.stop()
            scene.jobs.remove(in_clone)  # the run's own account is of the run's own database
        # The clone's process is ready for it: it need not wait for a start of Java.
        supervisor.kill("both").wait_for("done", scene.random.randint(1, 3))
    scene.catch_up(records_per_trigger=1000)


def _lost(scene: Scene, lose: Callable[[], None]) -> None:
    _run(scene, batches=scene.random.randint(2, 4))
    if scene.random.random() < 0.5:
        scene.database.execute(_LENGTHEN)
        _run(scene, batches=1)
    lost = scene.stored()
    scene.mirror_watch.is_exempt = True
    scene.observer.is_paused = True
    wait_until(lambda: not scene.database.rows(_OBSERVING))
    lose()
    # From here on the history tells the second part alone; the results of the first part are there.
    scene.database.execute("TRUNCATE offset_moves")
    scene.lost_since = time.monotonic()
    scene.observer.looks.clear()
    scene.before = [Stretch(scene.topic, 0, partition, 0, offset) for partition, offset in lost.items()]
    scene.observer.is_paused = False
    _refuse(scene, {}, lost)
    scene.allow("rewound")
    scene.catch_up(100, policy={"on_rewound": scene.variant})


def _migrate_anew(scene: Scene) -> None:
    migrate(scene.url, downgrade, upgrade)
    scene.database.execute(TRIGGER)


def _run(scene: Scene, *, batches: int) -> None:
    """Run a job for some batches, and let it end in order, so that Kafka has a copy of all that is stored."""
    job = scene.start()
    for _ in range(batches):
        scene.produce(scene.random.randint(30, 90))
        done = job.batches_done
        job.wait_for("done", done + 1)
    scene.caught_up()
    job.stop()


def _refuse(scene: Scene, stored: dict[int, int], lost: dict[int, int]) -> None:
    """See a start without override end in StoreRewound, which says what was found and what can be done."""
    report = scene.refused("StoreRewound")
    partition = int((report.topic_partition or "").rpartition("-")[2])
    assert (f"offset {stored[partition]} stored" if stored else "no stored offset") in (report.found or "")
    assert str(lost[partition]) in (report.expected or "")
    assert all(way in report.next_step for way in ('on_rewound="stored"', 'on_rewound="kafka"'))
    scene.fired(f"refused: {report.text}")


# -- failover to a replica

FAILOVER: Final = "failover to a lagging replica"
FAILOVER_MUST: Final = "results and offsets go back together; StoreRewound or replay, nothing twice in the results"


class Replica:
    """Follows the scene's server by streaming replication until it is cut off."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._directory = scene.postgres.directory / "replica"
        self._directory.mkdir()
        unprivileged_account().own(self._directory)
        base_backup(scene.postgres, self._directory / "data", "--write-recovery-conf")
        self._server = scene.at_end.enter_context(PostgresServer(directory=self._directory, durability="none"))
        self._look = Database(self._server.database_url(scene.url.rpartition("/")[2]))
        scene.at_end.callback(self._look.close)

    def stored(self) -> dict[int, int]:
        return stored_in(self._look, self._scene.group, self._scene.topic)

    def cut_off(self) -> dict[int, int]:
        """Receive nothing more; return what is stored here, from now on for good.

        A replay that is only paused would not do: what was received is replayed at a promotion.
        """
        self._look.execute("ALTER SYSTEM SET primary_conninfo = ''")
        self._look.execute("SELECT pg_reload_conf()")
        wait_until(lambda: not self._look.rows("SELECT 1 FROM pg_stat_wal_receiver"))
        received = "pg_last_wal_receive_lsn() IS NOT DISTINCT FROM pg_last_wal_replay_lsn()"
        wait_until(lambda: self._look.one(f"SELECT {received}"))
        return self.stored()

    def take_over(self) -> None:
        """Crash the primary, promote the replica, and let it answer where the primary did."""
        scene = self._scene
        scene.mirror_watch.is_exempt = True  # Kafka may have what the replica never got
        port = scene.postgres.port
        scene.postgres.stop("immediate")
        assert self._look.one("SELECT pg_promote()")
        self._look.close()
        self._server.stop()
        scene.lost_since = time.monotonic()
        scene.at_end.enter_context(PostgresServer(directory=self._directory, port=port, durability="none"))


@fault(row=FAILOVER, must=FAILOVER_MUST, variants=("mirrored", "not-mirrored"))
def failover_to_a_lagging_replica(scene: Scene) -> None:
    """A pg_basebackup standby streams asynchronously, and is cut off while the job runs; later the primary is killed
    and the standby promoted in its place. In every second run the job claims anew in between, so that the standby does
    not know its claim. With the mirror the first start is refused, until it has on_rewound="stored"; without, the job
    replays what the standby never got."""
    scene.use_postgres(scene.at_end.enter_context(PostgresServer(durability="none")))
    scene.expect("OffsetGap", "StaleClaim", "StoreUnavailable", "TransactionLost")
    is_mirrored = scene.variant == "mirrored"
    settings = {"mirror_every": 0.3 if is_mirrored else None}
    with scene.producing(), scene.supervise(**settings) as supervisor:
        supervisor.job.wait_for("done", scene.random.randint(1, 3))
        replica = Replica(scene)
        copied = replica.stored()
        wait_until(lambda: _is_beyond(replica.stored(), copied), timeout=60)
        before = replica.cut_off()
        if scene.seed % 2:
            supervisor.kill("both").wait_for("claimed", timeout=120)
        job = supervisor.job
        job.wait_for("done", job.batches_done + scene.random.randint(1, 3), timeout=120)
        wait_until(lambda: _is_beyond(scene.stored(), before), timeout=60)
        if is_mirrored:
            wait_until(lambda: _is_beyond(in_kafka(scene), before), timeout=60)
        lost = scene.stored()
        replica.take_over()
        scene.fired(f"replica promoted: stored {before}, the primary was at {lost} or above")
        if is_mirrored:
            scene.allow("rewound")
            wait_until(lambda: _was_refused(scene, supervisor), timeout=90)
            supervisor.settings["policy"] = {"on_rewound": "stored"}
        wait_until(lambda: supervisor.job is not job and supervisor.job.batches_done, timeout=90)
        claimed = supervisor.job.wait_for("claimed").what["starting"][scene.topic]
        scene.fired(f"job {supervisor.job.pid} starts at {claimed}")
    scene.catch_up(**settings, records_per_trigger=1000)


def _is_beyond(found: dict[int, int], before: dict[int, int]) -> bool:
    return any(offset > before.get(partition, 0) for partition, offset in found.items())


def _was_refused(scene: Scene, supervisor: Supervisor) -> bool:
    for job in supervisor.jobs:
        if job.error is not None and job.error.class_name == "StoreRewound":
            scene.expect("StoreRewound")
            scene.fired(f"refused: {job.error.text}")
            return True
    return False

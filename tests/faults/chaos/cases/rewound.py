"""The database goes back in time, loses our tables, or is cloned, while Kafka keeps the copies of the offsets."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Final

from offsetstore.postgres.migrate import downgrade, upgrade
from offsetstore.postgres.url import make_engine
from offsetstore.protocol.stamp import Stamp
from offsetstore.testing.fixtures import copy_database
from tests.faults.chaos.harness.expected import Stretch
from tests.faults.chaos.harness.registry import fault
from tests.faults.chaos.harness.scene import Scene
from tests.faults.chaos.harness.tables import TRIGGER
from tests.faults.chaos.means.backup import Backup
from tests.faults.chaos.means.copies import copies
from tests.support.waiting import wait_until

ROW: Final = "database rewound, store lost"
MUST: Final = "StoreRewound; with the override, replayed, not skipped"
KINDS: Final = ("hot", "cold")

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
    backup = Backup(scene, how)
    before = scene.stored()
    _run(scene, batches=scene.random.randint(2, 4))
    lost = scene.stored()
    copied = copies(scene)
    assert {tp: copy.next_offset for tp, copy in copied.items()} == lost
    assert all(Stamp.of(copy) is not None for copy in copied.values())
    if override != scene.variant:
        assert all(len(copy.metadata or "") < LONG for copy in copied.values())
    backup.restore()
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
        backup = Backup(scene, "hot")
        _more_copied(scene)
        job.wait_for("done", job.batches_done + scene.random.randint(1, 2))
        assert not job.has_ended
        lost = scene.stored()
        backup.restore()
        assert sum(scene.stored().values()) < sum(lost.values())
        scene.fired(f"backup restored under job {job.pid}: stored {scene.stored()}, it was at {lost} or above")
        job.wait_for("ended")
        refused = supervisor.next_job(job)
        assert job.error is not None
        report = scene.expect_error(refused, "StoreRewound")
        scene.fired(f"the job ended with {job.error.class_name}, and was not let through: {report.text}")
        supervisor.settings["policy"] = {"on_rewound": scene.variant}
        wait_until(lambda: supervisor.job.batches_done, timeout=60)
    with scene.supervise():
        scene.caught_up()


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
        job.kill("both")
        # The clone's process is ready for it: it need not wait for a start of Java.
        supervisor.next_job(job).wait_for("done", scene.random.randint(1, 3))
    with scene.supervise(records_per_trigger=1000):
        scene.caught_up()


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
    with scene.supervise(policy={"on_rewound": scene.variant}):
        scene.produce(100)
        scene.caught_up()


def _migrate_anew(scene: Scene) -> None:
    engine = make_engine(scene.url)
    with engine.begin() as connection:
        downgrade(connection)
        upgrade(connection)
    engine.dispose()
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


def _more_copied(scene: Scene) -> None:
    """Wait until Kafka has got more than what is stored now."""
    stored = scene.stored()
    wait_until(
        lambda: any(copy.next_offset > stored[partition] for partition, copy in copies(scene).items()), timeout=60
    )


def _refuse(scene: Scene, stored: dict[int, int], lost: dict[int, int]) -> None:
    """See a start without override end in StoreRewound, which says what was found and what can be done."""
    refused = scene.start()
    report = scene.expect_error(refused, "StoreRewound")
    refused.close()
    partition = int((report.topic_partition or "").rpartition("-")[2])
    assert (f"offset {stored[partition]} stored" if stored else "no stored offset") in (report.found or "")
    assert str(lost[partition]) in (report.expected or "")
    assert all(way in report.next_step for way in ('on_rewound="stored"', 'on_rewound="kafka"'))
    scene.fired(f"refused: {report.text}")

"""Checkpoints that were deleted, are of an earlier time, or of another query: at a path of one's own, and kept ones."""

from __future__ import annotations

import json
import shutil
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import psycopg

from offsetstore.kafka import admin
from offsetstore.testing.fixtures import copy_database
from tests.faults.chaos.harness.registry import fault
from tests.faults.chaos.harness.scene import Scene
from tests.faults.chaos.harness.tables import DDL
from tests.faults.chaos.means.commands import offsetstore
from tests.support.waiting import wait_until

ROW: Final = "checkpoint deleted, old, from elsewhere, another query's"
SPARKS_OWN: Final = "StreamingQueryException"


def run_other(scene: Scene, batches: int, **settings: Any) -> dict[int, int]:
    """Let it write so many batches, and return where it has got to."""
    with _database(scene) as url:
        own: dict[str, Any] = {"group": f"{scene.group}-other", "url": url, "mirror_every": None}
        job = scene.start(**{**own, "records_per_trigger": 30, **settings})
        job.wait_for("done", batches, timeout=90)
        job.stop()
        # The run's own account is of the run's own database.
        scene.jobs.remove(job)
        with psycopg.connect(url) as connection:
            return dict(connection.execute("SELECT partition, next_offset FROM kafka_partitions").fetchall())


@contextmanager
def _database(scene: Scene) -> Generator[str]:
    name = f"other_{uuid4().hex[:12]}"
    url = copy_database(scene.postgres, name, template=scene.template)
    try:
        with psycopg.connect(url) as connection:
            connection.execute(DDL.encode())
        yield url
    finally:
        scene.postgres.drop_database(name)


@fault(
    row=ROW,
    must="what is in the results is cropped or skipped",
    variants=("deleted", "half-deleted", "old", "another-querys-behind"),
    seeds=6,
)
def own_checkpoint(scene: Scene) -> None:
    """A checkpoint at a path of one's own is deleted (or only its commits are), an older copy of it is put back, or one
    of another query that is not as far."""
    own = {"checkpoint": str(scene.directory / "own")}
    path = Path(own["checkpoint"])
    scene.produce(300)
    if scene.variant == "another-querys-behind":
        elsewhere = scene.directory / "elsewhere"
        ends = run_other(scene, 1, checkpoint=str(elsewhere), records_per_trigger=20)
        _run(scene, scene.random.randint(3, 5), **own)
        _replace(path, elsewhere)
        how = f"replaced by that of another query, which ends at {ends}"
    elif scene.variant == "old":
        _run(scene, scene.random.randint(1, 3), **own)
        copied, at = shutil.copytree(path, scene.directory / "copy"), scene.stored()
        _run(scene, scene.random.randint(2, 4), **own)
        _replace(path, Path(copied))
        how = f"put back to where it was at {at}"
    else:
        _run(scene, scene.random.randint(2, 5), **own)
        shutil.rmtree(path if scene.variant == "deleted" else path / "commits")
        how = scene.variant
    scene.fired(f"the checkpoint was {how}, stored {scene.stored()}")
    scene.catch_up(100, **own)


@fault(
    row=ROW,
    must="an error, nothing written; goes on when it is moved away",
    variants=("another-querys-ahead", "of-another-topic"),
    seeds=6,
)
def foreign_checkpoint(scene: Scene) -> None:
    """A checkpoint at a path of one's own is replaced by that of another query, which is further, or reads another
    topic."""
    own = {"checkpoint": str(scene.directory / "own")}
    elsewhere = scene.directory / "elsewhere"
    scene.produce(400)
    topic = scene.topic
    if scene.variant == "of-another-topic":
        topic = f"{scene.topic}-refunds"
        admin.create_topic(scene.servers, topic, partitions=scene.partitions)
        scene.produce(200, topic=topic)
    _run(scene, scene.random.randint(1, 2), **own)
    ends = run_other(scene, scene.random.randint(4, 6), checkpoint=str(elsewhere), topics=[topic])
    _replace(Path(own["checkpoint"]), elsewhere)
    scene.fired(f"the checkpoint is another query's, of {topic}, which ends at {ends}")
    # Spark repeats a batch that the checkpoint began, and finds out for itself when it has to plan the next one.
    expected = ["OffsetGap"] if scene.variant == "another-querys-ahead" else ["UnsupportedQuery", SPARKS_OWN]
    report = scene.refused(*expected, **own)
    if report.ours:
        assert "checkpoint" in report.next_step
    shutil.rmtree(own["checkpoint"])
    scene.catch_up(100, **own)


@fault(
    row=ROW,
    must="CheckpointAhead or CheckpointBehind, nothing written; goes on when it is moved away",
    ways=("batch",),
    variants=("old", "another-querys-ahead", "another-querys-behind"),
    seeds=6,
)
def kept_checkpoint(scene: Scene) -> None:
    """A kept checkpoint is put back to an older copy, or replaced by that of another group."""
    kept = _kept(scene, scene.group)
    scene.produce(500)
    few, many = scene.random.randint(1, 2), scene.random.randint(4, 6)
    if scene.variant == "old":
        _run(scene, few, checkpoint="keep")
        copied = Path(shutil.copytree(kept, scene.directory / "copy"))
        _run(scene, many, checkpoint="keep")
    else:
        ahead = scene.variant == "another-querys-ahead"
        _run(scene, few if ahead else many, checkpoint="keep")
        run_other(scene, many if ahead else few, checkpoint="keep")
        copied = _kept(scene, f"{scene.group}-other")
    _replace(kept, copied)
    scene.fired(f"the kept checkpoint is {scene.variant}")
    expected = "CheckpointAhead" if scene.variant == "another-querys-ahead" else "CheckpointBehind"
    for _ in range(scene.random.randint(1, 2)):
        scene.refused(expected, checkpoint="keep")
    _move_away(kept)
    scene.catch_up(100, checkpoint="keep")


@fault(
    row=ROW,
    must="it goes on at the stored offsets",
    ways=("batch",),
    seeds=6,
)
def kept_checkpoint_deleted(scene: Scene) -> None:
    """A kept checkpoint is deleted between two runs."""
    scene.produce(300)
    _run(scene, scene.random.randint(1, 4), checkpoint="keep")
    _move_away(_kept(scene, scene.group))
    scene.fired(f"the kept checkpoint was moved away at {scene.stored()}")
    scene.catch_up(100, checkpoint="keep")


def _run(scene: Scene, batches: int, **settings: Any) -> None:
    """Run until so many batches are written, and end by a kill or in order."""
    job = scene.start(**{"records_per_trigger": 30, **settings})
    job.wait_for("done", batches, timeout=90)
    if scene.random.random() < 0.5:
        scene.kill(job, "both")
    else:
        job.stop()


def _kept(scene: Scene, group: str) -> Path:
    return Path(scene.checkpoints) / group / "kept"


def _replace(old: Path, new: Path) -> None:
    shutil.rmtree(old)
    shutil.copytree(new, old)


def _move_away(kept: Path) -> None:
    kept.rename(kept.with_name("kept-before"))


# -- an operator moves the stored offsets back

_HOLD: Final = "SELECT FROM consumer_groups WHERE consumer_group = %s FOR UPDATE"
_WAITS: Final = """
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND wait_event_type = 'Lock' AND application_name LIKE 'offsetstore:%:admin'
"""
_TWICE: Final = """
SELECT count(*) FROM (SELECT seq FROM landed GROUP BY seq HAVING count(*) <> CASE WHEN seq <= {last} THEN 2 ELSE 1 END)
"""


@fault(
    row="reset backwards, job restarted three times",
    must="replayed once, and it sticks",
    variants=("stopped", "forced"),
    seeds=6,
)
def reset_backwards(scene: Scene) -> None:
    """`offsetstore reset --to-earliest`, of a job that was stopped, or with --force of one that runs; the job is then
    killed three times, at any moment."""
    scene.allow("reset")
    scene.produce(200)
    job = scene.start()
    scene.caught_up()
    before = scene.stored()
    last = scene.ledger.count
    # From here on, Kafka has more than the store, until the mirror has followed.
    scene.mirror_watch.is_exempt = True
    if scene.variant == "forced":
        scene.expect("StaleClaim")
        told = _reset(scene, "--force")
        assert "Fenced the live job" in told, told
        scene.produce(1)
        scene.expect_error(job, "StaleClaim")
    else:
        job.stop()
        told = _reset(scene)
    assert set(scene.stored().values()) == {0}
    scene.fired(f"reset from {before} to the beginning: {told.splitlines()[-1]}")
    for _ in range(3):
        victim = scene.start(records_per_trigger=scene.random.choice([20, 40]))
        count = scene.random.randint(0, 2)
        victim.wait_for("done", count) if count else victim.wait_for(scene.random.choice(["claimed", "begun"]))
        scene.kill(victim)
    scene.catch_up(50)
    wrong = scene.database.one(_TWICE.format(last=last))
    assert not wrong, f"{wrong} records are not there twice (before the reset) or once (after it)"
    resets = scene.database.rows("SELECT partition, count(*) FROM offset_history WHERE event = 'reset' GROUP BY 1")
    assert sorted(resets) == [(partition, 1) for partition in range(scene.partitions)]
    assert not scene.database.one("SELECT count(*) FROM kafka_partitions WHERE pinned")
    scene.mirror_watch.is_exempt = False


@fault(row="reset against a running job", must="printed = recorded = done; nothing else is read again")
def reset_meanwhile(scene: Scene) -> None:
    """`offsetstore reset --shift-by --force` of a job that runs, which has made its plan and is then held up on its way
    to the locks (by a transaction that holds the group's row), until the job has advanced."""
    scene.allow("reset")
    scene.expect("StaleClaim")
    scene.produce(200)
    job = scene.start()
    scene.caught_up()
    planned = scene.stored()
    back = scene.random.randint(1, min(planned.values()))
    # From here on, Kafka has more than the store, until the mirror has followed.
    scene.mirror_watch.is_exempt = True
    with psycopg.connect(scene.url) as holding, ThreadPoolExecutor(1) as pool:
        holding.execute(_HOLD, (scene.group,))
        resetting = pool.submit(_reset, scene, "--force", "--format", "json", target=("--shift-by", str(-back)))
        wait_until(lambda: scene.database.one(_WAITS), timeout=60)
        scene.produce(60)
        scene.caught_up()
        holding.rollback()
        told = json.loads(resetting.result(120))
    printed = {one["partition"]: (one["stored"], one["new"]) for one in told["partitions"]}
    recorded = {
        partition: (from_, to)
        for partition, from_, to in scene.database.rows(
            "SELECT partition, from_offset, to_offset FROM offset_history WHERE event = 'reset'"
        )
    }
    done = scene.stored()
    assert printed == recorded, f"printed {printed}, recorded {recorded}"
    assert {partition: to for partition, (_, to) in printed.items()} == done, f"printed {printed}, done {done}"
    assert all(to == from_ - back for from_, to in printed.values()), printed
    assert told["fenced"]["epoch"] == job.epoch, told
    scene.fired(f"planned from {planned}, back by {back} from {printed}")
    assert any(printed[partition][0] > offset for partition, offset in planned.items()), "no advance in between"
    scene.produce(1)
    scene.expect_error(job, "StaleClaim")
    scene.catch_up()
    scene.mirror_watch.is_exempt = False


def _reset(scene: Scene, *more: str, target: Sequence[str] = ("--to-earliest",)) -> str:
    where = ["-g", scene.group, "-t", scene.topic, *target, "-b", scene.servers]
    return offsetstore(scene, "reset", *where, "--execute", "--reason", "the rates were wrong", *more).strip()

"""Checkpoints that were deleted, are of an earlier time, or of another query: at a path of one's own, and kept ones."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, Final

from offsetstore.kafka import admin
from tests.faults.chaos.harness.registry import fault
from tests.faults.chaos.harness.scene import Scene
from tests.faults.chaos.means.other_query import run_other

ROW: Final = "checkpoint deleted, old, from elsewhere, another query's"
SPARKS_OWN: Final = "StreamingQueryException"


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
    with scene.supervise(**own):
        scene.produce(100)
        scene.caught_up()


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
    at = scene.stored()
    _replace(Path(own["checkpoint"]), elsewhere)
    scene.fired(f"the checkpoint is another query's, of {topic}, which ends at {ends}, stored {at}")
    job = scene.start(**own)
    if scene.variant == "another-querys-ahead":
        report = scene.expect_error(job, "OffsetGap", timeout=120)
    else:
        # Spark repeats a batch that the checkpoint began, and finds out for itself when it has to plan the next one.
        report = scene.expect_error(job, "UnsupportedQuery", SPARKS_OWN, timeout=120)
    assert scene.stored() == at, f"it has written: {report.text}"
    if report.ours:
        assert "checkpoint" in report.next_step
    job.wait_for("ended")
    job.close()
    shutil.rmtree(own["checkpoint"])
    with scene.supervise(**own):
        scene.produce(100)
        scene.caught_up()


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
    at = scene.stored()
    _replace(kept, copied)
    scene.fired(f"the kept checkpoint is {scene.variant}, stored {at}")
    expected = "CheckpointAhead" if scene.variant == "another-querys-ahead" else "CheckpointBehind"
    for _ in range(scene.random.randint(1, 2)):
        job = scene.start(checkpoint="keep")
        report = scene.expect_error(job, expected, timeout=120)
        assert scene.stored() == at, f"it has written: {report.text}"
        job.wait_for("ended")
        job.close()
    _move_away(kept)
    with scene.supervise(checkpoint="keep"):
        scene.produce(100)
        scene.caught_up()


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
    with scene.supervise(checkpoint="keep"):
        scene.produce(100)
        scene.caught_up()


def _run(scene: Scene, batches: int, **settings: Any) -> None:
    """Run until so many batches are written, and end by a kill or in order."""
    job = scene.start(**{"records_per_trigger": 30, **settings})
    job.wait_for("done", batches, timeout=90)
    if scene.random.random() < 0.5:
        job.kill("both")
        job.close()
    else:
        job.stop()


def _kept(scene: Scene, group: str) -> Path:
    return Path(scene.checkpoints) / group / "kept"


def _replace(old: Path, new: Path) -> None:
    shutil.rmtree(old)
    shutil.copytree(new, old)


def _move_away(kept: Path) -> None:
    kept.rename(kept.with_name("kept-before"))

"""The checkpoint of each claim: a fresh one, and the old ones go."""

from __future__ import annotations

from pathlib import Path

import pytest

from offsetstore import Append
from offsetstore.spark.checkpoints import prune
from tests.support.gate import Gate
from tests.support.transforms import events
from tests.support.world import World, made_unchecked


def directories(base: str | Path) -> set[str]:
    return {path.name for path in Path(base).iterdir()}


@pytest.mark.behaviour("START-15")
def test_old_checkpoints_are_pruned_after_the_first_committed_batch(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    topic = world.events_topic()
    group = f"{world.group}/b .. %41 ☃"
    made: list[str] = []
    for run in range(3):
        world.produce(topic, [str(run)])
        claim = world.claim(topic, group=group)
        made.append(Path(claim.checkpoint(world.checkpoints)).name)
        world.run(claim, events, Append("events"))
    [base] = Path(world.checkpoints).iterdir()
    # What is not a claim's own checkpoint is nobody's to remove, and nothing goes before something is committed.
    (base / "1-notes").mkdir()
    world.produce(topic, ["last"])
    claim = world.claim(topic, group=group)
    made.append(Path(claim.checkpoint(world.checkpoints)).name)
    gate = Gate(events)
    sink = made_unchecked(claim, gate, into=Append("events"))
    query = world.start(sink, world.read(claim), checkpoint=claim.checkpoint(world.checkpoints))
    gate.wait_until_reached()
    assert directories(base) == {*made, "1-notes"}
    gate.open()
    query.awaitTermination(60)

    assert directories(base) == {*made[1:], "1-notes"}
    assert world.database.column("SELECT value FROM events ORDER BY value") == ["0", "1", "2", "last"]
    assert world.stored(topic, group=group) == {0: 4}
    # A base that can't be listed costs a warning, and not the job.
    prune(world.spark, "nowhere://bucket/checkpoints", epoch=9, retain=3)
    assert "old checkpoints under nowhere://bucket" in caplog.text

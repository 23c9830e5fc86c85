"""Another tool moves the group's offsets in Kafka, or another application uses them, or they expire there."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Final

from tests.faults.chaos.harness.mirrored import consumer
from tests.faults.chaos.harness.registry import fault
from tests.faults.chaos.harness.scene import Scene
from tests.faults.chaos.means.kafka import (
    commit,
    expire,
    in_kafka,
    mirrored,
    read,
    set_offsets,
)
from tests.support.waiting import wait_until

ROW: Final = "group offsets moved by another tool, both ways; expired"
MUST: Final = (
    "`larger`: the start takes what Kafka has further on, and the history names the skip; `stored`: it takes the "
    "database's own; `agree`: OffsetsDisagree"
)
PREFER: Final = ("larger", "stored", "agree")


@fault(row=ROW, must=MUST, variants=PREFER)
def moved_forward(scene: Scene) -> None:
    """A stopped job's group is moved forward, by kafka-consumer-groups or a consumer's commit; then the job starts."""
    before = _stopped_job(scene)
    scene.produce(200)
    ends = scene.ends()
    some = [partition for partition in _some(scene) if ends[partition] > before[partition]]
    moved = {partition: scene.random.randint(before[partition] + 1, ends[partition]) for partition in some}
    wanted = [(number, before[number], at) for number, at in sorted(moved.items())]
    if scene.variant != "stored":
        scene.allow("adopt")
    _start_where_moved(scene, before, moved, "larger")
    assert _adopted(scene) == (wanted if scene.variant != "stored" else [])


@fault(row=ROW, must=MUST, variants=PREFER)
def moved_backward(scene: Scene) -> None:
    """A stopped job's group is moved backward in the same ways: what is in the results is not read again."""
    before = _stopped_job(scene)
    moved = {partition: scene.random.randint(0, before[partition] - 1) for partition in _some(scene)}
    _start_where_moved(scene, before, moved, "stored")
    assert _adopted(scene) == []


def _start_where_moved(scene: Scene, before: dict[int, int], moved: dict[int, int], agreed: str) -> None:
    """Move the offsets, and start the job, which is refused once if they have to agree."""
    how = set_offsets(scene, moved, by_tool=bool(scene.seed % 2))
    scene.fired(f"{how} moved {before} to {moved}")
    prefer = scene.variant
    if prefer == "agree":
        assert "prefer" in scene.refused("OffsetsDisagree", policy={"prefer": prefer}).next_step
        prefer = agreed
    mirrored(scene, 50, policy={"prefer": prefer})


@fault(row=ROW, must=MUST)
def moved_beyond_the_end(scene: Scene) -> None:
    """A stopped job's group is set to offsets that the log has not reached."""
    before = _stopped_job(scene)
    ends = scene.ends()
    moved = {partition: ends[partition] + scene.random.randint(1, 500) for partition in _some(scene)}
    set_offsets(scene, moved)  # the tool itself would not
    scene.fired(f"a consumer's commit moved {before} to {moved}, and the logs end at {ends}")
    report = scene.refused("OffsetOutOfRange")
    first = min(moved)
    assert report.topic_partition == f"{scene.topic}-{first}"
    assert str(moved[first]) in report.text
    assert 'prefer="stored"' in report.next_step
    mirrored(scene, 30, policy={"prefer": "stored"})
    assert _adopted(scene) == []


@fault(row=ROW, must=MUST, variants=PREFER)
def group_expired(scene: Scene) -> None:
    """The stopped job's group is deleted in Kafka with all its offsets; the job starts, and a second time."""
    before = _stopped_job(scene)
    expire(scene)
    assert not in_kafka(scene)
    scene.fired(f"the group was deleted, {before} is stored")
    policy = {"prefer": scene.variant, "auto_offset_reset": scene.random.choice(["earliest", "latest", "none"])}
    for _ in range(2):
        mirrored(scene, 60, policy=policy)
    assert _adopted(scene) == []


@fault(row=ROW, must=MUST, variants=("forward", "backward", "expired"), seeds=6)
def moved_under_a_running_job(scene: Scene) -> None:
    """The group's offsets are moved or deleted while the job runs, and soon after it is killed. What was moved is not
    overwritten, and the next start is refused until it is told what counts."""  # fmt: skip
    with scene.supervise(mirror_every=1.0, records_per_trigger=200) as supervisor:
        job = supervisor.job
        # What it has not read by then it reads afterwards, and a start that is refused reads nothing.
        with scene.producing():
            job.wait_for("done", scene.random.randint(2, 5))
            stored = scene.stored()
            scene.mirror_watch.is_exempt = True
            if scene.variant == "expired":
                wait_until(lambda: in_kafka(scene))
                expire(scene)
                scene.fired(f"the group was deleted under batch {job.batches_done}")
            else:
                ends = scene.ends()
                by = scene.random.randint(1, 40)
                moved = {
                    partition: min(ends[partition], stored[partition] + by)
                    if scene.variant == "forward"
                    else max(0, stored[partition] - by)
                    for partition in _some(scene)
                }
                _commit_until_noticed(scene, moved)
                scene.fired(f"Kafka's offsets were set to {moved}, where {stored} was stored")
                scene.expect("KafkaGroupContested")
        if scene.random.random() < 0.7:
            following = supervisor.kill(scene.random.choice(["python", "both"]))
            following.wait_for("claimed" if scene.variant == "expired" else "failed")
    scene.produce(50)
    if scene.variant != "expired":
        _decide_for_the_stored_offsets(scene)
    mirrored(scene, 0)
    assert _adopted(scene) == []


@fault(
    row="another application in the Kafka group",
    must="its offsets are not overwritten silently: the copying ends, the history says so, and a start is refused "
    "until it is told what counts",
    variants=("joins", "was-there"),
)
def another_application(scene: Scene) -> None:
    """A consumer subscribes with the job's group, while the job runs or before it starts; it reads, commits and leaves.
    The job goes on, is stopped or killed, and starts again."""  # fmt: skip
    scene.produce(150)
    scene.mirror_watch.is_exempt = True
    scene.expect("KafkaGroupContested")
    with ExitStack() as application:
        member = application.enter_context(consumer(scene.servers, scene.group, **{"auto.offset.reset": "earliest"}))
        member.subscribe([scene.topic])
        if scene.variant == "was-there":
            scene.allow("adopt")  # what it has committed before the job's first start
            read(member, scene.random.randint(5, 40))
        with scene.supervise() as supervisor:
            job = supervisor.job
            job.wait_for("done", scene.random.randint(1, 2))
            read(member, scene.random.randint(5, 40))
            wait_until(lambda: _contested(scene))
            application.close()
            left = in_kafka(scene)
            scene.produce(100)
            scene.caught_up()
            scene.fired(f"another application left the group at {left}, where {scene.stored()} is stored")
            if scene.random.random() < 0.5:
                supervisor.kill("both").wait_for("failed")
    assert in_kafka(scene) == left
    _decide_for_the_stored_offsets(scene)
    mirrored(scene, 50)


def _commit_until_noticed(scene: Scene, moved: Mapping[int, int]) -> None:
    """Commit, again where the mirror was between its look and its commit: that moment is open."""
    scene.allow("contested")
    while not _contested(scene):
        commit(scene, moved)
        wait_until(lambda: _contested(scene) or not moved.items() <= in_kafka(scene).items())


def _contested(scene: Scene) -> bool:
    scene.allow("contested")
    return bool(scene.database.rows("SELECT FROM offset_history WHERE event = 'contested'"))


def _decide_for_the_stored_offsets(scene: Scene) -> None:
    there = in_kafka(scene)
    report = scene.refused("KafkaGroupContested")
    assert "kafka_group=" in report.next_step
    assert in_kafka(scene) == there, "what another tool has committed was overwritten"
    mirrored(scene, 0, policy={"prefer": "stored"}, records_per_trigger=1000)


def _stopped_job(scene: Scene) -> dict[int, int]:
    """A job has read 150 records and was stopped, and Kafka has its offsets."""
    for partition in range(scene.partitions):
        scene.produce(10, partition=partition)
    stored = scene.run_once(120)
    assert in_kafka(scene) == stored
    return stored


def _some(scene: Scene) -> list[int]:
    return sorted(scene.random.sample(range(scene.partitions), scene.random.randint(1, scene.partitions)))


def _adopted(scene: Scene) -> list[tuple[int, int, int]]:
    """What the history has of adopted offsets: partition, from, to."""
    return scene.database.rows(
        "SELECT partition, from_offset, to_offset FROM offset_history "
        "WHERE event = 'adopt' AND from_offset IS NOT NULL ORDER BY id"
    )

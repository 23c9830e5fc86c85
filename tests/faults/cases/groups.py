"""Another tool moves the group's offsets in Kafka, or they expire there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tests.faults.harness.registry import fault
from tests.faults.means.group_offsets import commit, expire, in_kafka, set_offsets, wait_for_the_mirror
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from tests.faults.harness.scene import Scene

ROW: Final = "group offsets moved by another tool, both ways; expired"
MUST: Final = (
    "`larger`: the start takes what Kafka has further on, and the history names the skip; `stored`: it takes the "
    "database's own; `agree`: OffsetsDisagree"
)
PREFER: Final = ("larger", "stored", "agree")


@fault(row=ROW, must=MUST, name="moved-forward", variants=PREFER)
def moved_forward(scene: Scene) -> None:
    """A stopped job's group is moved forward, by kafka-consumer-groups or a consumer's commit; then the job starts."""
    before = _stopped_job(scene)
    scene.produce(200)
    ends = scene.ends()
    moved = {
        partition: scene.random.randint(before[partition] + 1, ends[partition])
        for partition in _some(scene)
        if ends[partition] > before[partition]
    }
    how = set_offsets(scene, moved, by_tool=bool(scene.seed % 2))
    scene.fired(f"{how} moved {before} to {moved}")
    policy: dict[str, Any] = {"prefer": scene.variant}
    if scene.variant == "agree":
        _disagrees(scene, policy)
        policy = {"prefer": "larger"}
    if policy["prefer"] == "larger":
        scene.allow("adopt")
    with scene.supervise(policy=policy) as supervisor:
        supervisor.job.wait_for("claimed")
        scene.produce(50)
        scene.caught_up()
        wait_for_the_mirror(scene)
    wanted = [(number, before[number], at) for number, at in sorted(moved.items())]
    assert _adopted(scene) == (wanted if policy["prefer"] == "larger" else [])


@fault(row=ROW, must=MUST, name="moved-backward", variants=PREFER)
def moved_backward(scene: Scene) -> None:
    """A stopped job's group is moved backward in the same ways: what is in the results is not read again."""
    before = _stopped_job(scene)
    moved = {partition: scene.random.randint(0, before[partition] - 1) for partition in _some(scene)}
    how = set_offsets(scene, moved, by_tool=bool(scene.seed % 2))
    scene.fired(f"{how} moved {before} to {moved}")
    policy: dict[str, Any] = {"prefer": scene.variant}
    if scene.variant == "agree":
        _disagrees(scene, policy)
        policy = {"prefer": "stored"}
    with scene.supervise(policy=policy):
        scene.produce(100)
        scene.caught_up()
        wait_for_the_mirror(scene)
    assert _adopted(scene) == []


@fault(row=ROW, must=MUST)
def moved_beyond_the_end(scene: Scene) -> None:
    """A stopped job's group is set to offsets that the log has not reached."""
    before = _stopped_job(scene)
    ends = scene.ends()
    moved = {partition: ends[partition] + scene.random.randint(1, 500) for partition in _some(scene)}
    set_offsets(scene, moved)  # the tool itself would not
    scene.fired(f"a consumer's commit moved {before} to {moved}, and the logs end at {ends}")
    report = scene.expect_error(scene.start(), "OffsetOutOfRange")
    first = min(moved)
    assert report.topic_partition == f"{scene.topic}-{first}"
    assert str(moved[first]) in report.text
    assert 'prefer="stored"' in report.next_step
    scene.produce(30)
    with scene.supervise(policy={"prefer": "stored"}):
        scene.caught_up()
        wait_for_the_mirror(scene)
    assert _adopted(scene) == []


@fault(row=ROW, must=MUST, name="group-expired", variants=PREFER)
def group_expired(scene: Scene) -> None:
    """The stopped job's group is deleted in Kafka with all its offsets; the job starts, and a second time."""
    before = _stopped_job(scene)
    expire(scene)
    assert not in_kafka(scene)
    scene.fired(f"the group was deleted, {before} is stored")
    policy = {"prefer": scene.variant, "auto_offset_reset": scene.random.choice(["earliest", "latest", "none"])}
    for _ in range(2):
        scene.produce(60)
        with scene.supervise(policy=policy):
            scene.caught_up()
            wait_for_the_mirror(scene)
    assert _adopted(scene) == []


@fault(row=ROW, must=MUST, name="moved-under-a-running-job", variants=("forward", "backward", "expired"), seeds=6)
def moved_while_running(scene: Scene) -> None:
    """The group's offsets are moved or deleted while the job runs, and soon after it is killed."""
    scene.allow("adopt")  # what is above the stored offset at the next start counts
    with scene.producing(rate=100), scene.supervise(mirror_every=1.0, records_per_trigger=200) as supervisor:
        job = supervisor.job
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
            commit(scene, moved)
            scene.fired(f"Kafka's offsets were set to {moved}, where {stored} was stored")
        if scene.random.random() < 0.7:
            job.kill(scene.random.choice(["python", "both"]))
            supervisor.next_job(job)
    scene.produce(50)
    with scene.supervise():
        scene.caught_up()
        wait_for_the_mirror(scene)


def _stopped_job(scene: Scene) -> dict[int, int]:
    """A job has read 150 records and was stopped, and Kafka has its offsets."""
    for partition in range(scene.partitions):
        scene.produce(10, partition=partition)
    scene.produce(120)
    job = scene.start()
    scene.caught_up()
    job.stop()
    stored = scene.stored()
    assert in_kafka(scene) == stored
    return stored


def _some(scene: Scene) -> list[int]:
    return sorted(scene.random.sample(range(scene.partitions), scene.random.randint(1, scene.partitions)))


def _disagrees(scene: Scene, policy: dict[str, Any]) -> None:
    report = scene.expect_error(scene.start(policy=policy), "OffsetsDisagree")
    assert "prefer" in report.next_step


def _adopted(scene: Scene) -> list[tuple[int, int, int]]:
    """What the history has of adopted offsets: partition, from, to."""
    return scene.database.rows(
        "SELECT partition, from_offset, to_offset FROM offset_history "
        "WHERE event = 'adopt' AND from_offset IS NOT NULL ORDER BY id"
    )

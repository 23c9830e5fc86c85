"""Logs lose records that were read, and grow again, under the same topic id: a broker's disk was restored."""

from __future__ import annotations

import time
from typing import Final, cast

from tests.faults.chaos.cases.logs import SPARK_ERRORS
from tests.faults.chaos.harness.process import Target
from tests.faults.chaos.harness.registry import fault
from tests.faults.chaos.harness.scene import Job, Scene
from tests.faults.chaos.means.commands import offsetstore
from tests.faults.chaos.means.group_offsets import wait_for_the_mirror
from tests.faults.chaos.means.older_logs import OlderLogs

ROW: Final = "log truncated and regrown, same topic id"
MUST: Final = "told by the leader epoch; the start is refused until a decision"
POLICIES: Final[tuple[dict[str, str], ...]] = ({}, {"on_data_loss": "earliest"})
# Longer than from one look of the mirror at the logs to the next.
LOOK: Final = 120
_SUSPECTS: Final = "SELECT partition, count(*) FROM offset_history WHERE event = 'suspect' GROUP BY 1 ORDER BY 1"


@fault(row=ROW, must=MUST, variants=("stopped", "killed"))
def regrown_between_runs(scene: Scene) -> None:
    """The job is stopped, or killed in a backlog; older copies replace the broker's logs of some partitions, and more
    records are produced than were lost. The job starts again, also with on_data_loss="earliest", and one start is
    killed. Each partition is reset, to where its logs part or to what is stored, and the job goes on."""
    older = _older_logs(scene)
    job = scene.start(records_per_trigger=30)
    scene.produce(scene.random.randint(100, 200))
    if scene.variant == "stopped":
        scene.caught_up()
        job.stop()
    else:
        job.wait_for("done", scene.random.randint(1, 4))
        _kill(scene, job)
    older.put_back()
    older.regrow()
    _refused_until_reset(scene, older)


@fault(row=ROW, must=MUST, variants=("told", "killed"))
def regrown_under_the_job(scene: Scene) -> None:
    """Older copies replace the broker's logs of some partitions while the job runs, or stands still (SIGSTOP), and more
    records are produced than were lost; then it runs until it ends with an error, or is killed before that. Starts are
    refused, and one is killed, until each partition is reset."""
    older = _older_logs(scene)
    job = scene.start()
    scene.produce(scene.random.randint(100, 200))
    scene.caught_up()
    if stands_still := scene.random.random() < 0.5:
        job.freeze()
    older.put_back()
    older.regrow()
    if stands_still:
        job.thaw()
    # Spark's own, where it sees an end before the log has grown.
    scene.expect("LogTruncated", *SPARK_ERRORS)
    with scene.producing(rate=20):
        if scene.variant == "told":
            report = scene.expect_error(job, "LogTruncated", *SPARK_ERRORS, timeout=LOOK)
            job.wait_for("ended")
            job.close()
            scene.fired(f"the job ended with {report.class_name} at {scene.stored()}")
        else:
            time.sleep(scene.random.uniform(0, 3))
            _kill(scene, job)
    _refused_until_reset(scene, older)


@fault(row="a refused start, then the log grows", must="still refused", variants=("recorded", "killed"))
def refused_then_grown(scene: Scene) -> None:
    """Older copies replace the broker's logs of some partitions, which then end below the stored offset; a start is
    refused; more records are produced than were lost, and the job starts again. One variant has no leader epoch of the
    lost records (no mirror, and the job was killed), so only the record of the refusal tells; in the other the first
    start is killed, which may have recorded nothing."""
    is_known = scene.variant == "killed"
    mirror_every = 0.3 if is_known else None
    older = _older_logs(scene, mirror_every=mirror_every)
    job = scene.start(mirror_every=mirror_every)
    scene.produce(scene.random.randint(60, 150))
    scene.caught_up()
    if is_known:
        job.stop()
        job = scene.start()
        job.wait_for("claimed")
    _kill(scene, job)
    older.put_back()
    if is_known:
        _kill_a_start(scene)
    else:
        refused = scene.start()
        # The first start finds only the early end; it records that for those after it.
        report = scene.expect_error(refused, "OffsetOutOfRange", "LogTruncated")
        scene.fired(f"refused: {report.text}")
        _give_back(refused)
    older.regrow()
    _refused_until_reset(scene, older)


def _older_logs(scene: Scene, *, mirror_every: float | None = 0.3) -> OlderLogs:
    """Run a job, copy some logs, and with a mirror run another job, which keeps the leader epochs of later records."""
    scene.produce(scene.random.randint(60, 150))
    first = scene.start(mirror_every=mirror_every)
    scene.caught_up()
    first.stop()
    older = OlderLogs(scene)
    if mirror_every is not None:
        second = scene.start(mirror_every=mirror_every)
        scene.produce(scene.random.randint(60, 150))
        scene.caught_up()
        second.stop()
    return older


def _refused_until_reset(scene: Scene, older: OlderLogs) -> None:
    scene.allow("suspect", "reset")
    before = scene.stored()
    policies = list(POLICIES)
    killed_after = scene.random.randrange(len(policies))
    left = sorted(older.ends)
    for number, policy in enumerate(policies):
        _refuse(scene, left, policy)
        if number == killed_after:
            _kill_a_start(scene)
    # Until the mirror has followed, Kafka has more.
    scene.mirror_watch.is_exempt = True
    scene.random.shuffle(left)
    while left:
        partition = left.pop()
        if scene.random.random() < 0.7:
            before[partition] = older.ends[partition]
        _reset(scene, partition, before[partition])
        if left:
            _refuse(scene, left, {})
    assert scene.stored() == before
    with scene.supervise():
        scene.produce(60)
        scene.caught_up()
        wait_for_the_mirror(scene)
    # From then on no further word is needed.
    with scene.supervise():
        scene.produce(30)
        scene.caught_up()
    told = scene.database.rows(_SUSPECTS)
    assert told == [(partition, 1) for partition in sorted(older.ends)], f"the history tells of {told}"


def _refuse(scene: Scene, partitions: list[int], policy: dict[str, str]) -> None:
    """See a start end in LogTruncated, of one of these partitions, and leave the offsets as they are."""
    before = scene.stored()
    refused = scene.start(policy=policy)
    report = scene.expect_error(refused, "LogTruncated")
    _give_back(refused)
    assert report.topic_partition in {f"{scene.topic}-{partition}" for partition in partitions}, report.text
    assert "offsetstore reset" in report.next_step
    assert not refused.told("claimed"), report.text
    assert scene.stored() == before
    scene.fired(f"refused with {policy}: {report.text}")


def _kill_a_start(scene: Scene) -> None:
    """Kill a job before its claim is refused, or just after that."""
    scene.expect("LogTruncated", "OffsetOutOfRange")
    job = scene.start()
    time.sleep(scene.random.uniform(0, 1.5))
    _kill(scene, job)
    assert not job.told("claimed")


def _kill(scene: Scene, job: Job) -> None:
    target = cast("Target", scene.random.choice(["python", "jvm", "both"]))
    job.kill(target)
    job.close()
    scene.fired(f"{target} of job {job.pid} was killed after {job.batches_done} batches, at {scene.stored()}")


def _give_back(job: Job) -> None:
    job.wait_for("ended")
    job.close()


def _reset(scene: Scene, partition: int, offset: int) -> None:
    where = ["-t", f"{scene.topic}:{partition}", "--to-offset", str(offset), "-b", scene.servers]
    # A job that was killed seems live for some seconds.
    why = ["--reason", "the broker's disk was restored", "--execute", "--force"]
    told = offsetstore(scene, "reset", "-g", scene.group, *where, *why)
    scene.fired(f"reset of partition {partition} to {offset}: {told.strip().splitlines()[-1]}")

"""Records go before the job has read them: by delete-records, and by retention."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

import confluent_kafka

from offsetstore.kafka import admin
from tests.faults.chaos.harness.registry import fault
from tests.faults.chaos.harness.scene import Scene
from tests.faults.chaos.means.commands import offsetstore
from tests.faults.chaos.means.kafka import alter_topic, beginnings, mirrored
from tests.support.waiting import wait_until

ROW: Final = "log truncated, retention past the store"
MUST: Final = "OffsetOutOfRange with the range"

# What Spark raises by itself where failOnDataLoss is true, before the sink is asked.
SPARK_ERRORS: Final = ("StreamingQueryException", "IllegalStateException", "SparkException", "SinkError")
# A consumer that has fetched a whole partition ahead would not notice.
SMALL_FETCHES: Final = {"kafka.max.partition.fetch.bytes": "1024", "kafka.fetch.max.bytes": "1024"}


@fault(row=ROW, must=MUST, variants=("delete-records", "retention"))
def records_are_gone_at_the_start(scene: Scene) -> None:
    """The job is stopped; records that it has not read are deleted, or retention takes the whole log; it starts."""
    scene.run_once(200)
    scene.produce(200)
    _cut(scene)
    _refused_then_accepted(scene)


@fault(row=ROW, must=MUST, variants=("delete-records", "retention"))
def records_are_gone_in_mid_run(scene: Scene) -> None:
    """The job stands still (SIGSTOP) in the middle of a backlog, of which a part is deleted; then it goes on."""
    for _ in range(20):  # as many batches of Kafka's, of which each is fetched whole
        scene.produce(25)
    job = scene.start(records_per_trigger=30, extra=SMALL_FETCHES)
    job.wait_for("done", scene.random.randint(1, 3))
    job.freeze()
    _cut(scene)
    job.thaw()
    # Spark itself refuses to go on; the next start says what is missing.
    scene.expect(*SPARK_ERRORS)
    job.wait_for("failed")
    job.wait_for("ended")
    _refused_then_accepted(scene)


def _cut(scene: Scene) -> None:
    """Remove records above the stored offset of one partition at least."""
    stored, ends = scene.stored(), scene.ends()
    if scene.variant == "retention":
        alter_topic(scene.servers, scene.topic, {"retention.ms": "1"})
        wait_until(lambda: beginnings(scene) == ends, timeout=60)
        alter_topic(scene.servers, scene.topic, {"retention.ms": "-1"})
    else:
        behind = [partition for partition, end in ends.items() if end > stored[partition]]
        chosen = scene.random.sample(behind, scene.random.randint(1, len(behind)))
        # Some with all of their records, where the log is empty then.
        # Far enough ahead: what a consumer has fetched is not lost.
        cuts = {
            number: scene.random.randint((stored[number] + ends[number] + 1) // 2, ends[number]) for number in chosen
        }
        cuts |= {number: ends[number] for number in chosen if scene.random.random() < 0.3}
        admin.delete_records(scene.servers, scene.topic, cuts)
    begin = beginnings(scene)
    missing = {partition: (stored[partition], at) for partition, at in begin.items() if at > stored[partition]}
    assert missing, f"stored {stored}, and the logs begin at {begin}"
    scene.fired(f"stored {stored}, and the logs begin at {begin}: missing {missing}")


def _refused_then_accepted(scene: Scene) -> None:
    report = scene.refused("OffsetOutOfRange")
    stored, begin = scene.stored(), beginnings(scene)
    partition = next(number for number in sorted(begin) if stored[number] < begin[number])
    assert report.topic_partition == f"{scene.topic}-{partition}"
    assert f"[{stored[partition]}, {begin[partition]})" in report.text, report.text
    assert "on_data_loss" in report.next_step
    scene.allow("skip")
    scene.catch_up(100, policy={"on_data_loss": "earliest"})
    skipped = scene.database.rows(
        "SELECT partition, from_offset, to_offset FROM offset_history WHERE event = 'skip' ORDER BY partition"
    )
    missing = [(number, stored[number], at) for number, at in sorted(begin.items()) if at > stored[number]]
    assert skipped == missing, f"skips {skipped} are recorded, and missing are {missing}"


# -- a broker's disk was restored: logs lose records, and grow again, under the same topic id

REGROWN_ROW: Final = "log truncated and regrown, same topic id"
REGROWN_MUST: Final = "told by the leader epoch; the start is refused until a decision"
POLICIES: Final[tuple[dict[str, str], ...]] = ({}, {"on_data_loss": "earliest"})
# Longer than from one look of the mirror at the logs to the next.
LOOK: Final = 120
_SUSPECTS: Final = "SELECT partition, count(*) FROM offset_history WHERE event = 'suspect' GROUP BY 1 ORDER BY 1"


class OlderLogs:
    """Copies of some partitions' logs, never of all, for which the broker is stopped; ``ends`` is where they end."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        chosen = sorted(scene.random.sample(range(scene.partitions), scene.random.randint(1, scene.partitions - 1)))
        ends = scene.ends()
        self.ends = {partition: ends[partition] for partition in chosen}
        scene.kafka.stop()
        for partition in chosen:
            shutil.copytree(self._log(partition), self._copy(partition))
        scene.kafka.start()
        self._wait_for(ends)

    def put_back(self) -> None:
        """Replace the logs by the copies, with the broker stopped. Records that were produced since are lost."""
        scene = self._scene
        stored, before = scene.stored(), scene.ends()
        assert all(stored[partition] > end for partition, end in self.ends.items()), f"{stored}, {self.ends}"
        scene.kafka.stop()
        for partition in self.ends:
            shutil.rmtree(self._log(partition))
            shutil.copytree(self._copy(partition), self._log(partition))
        scene.kafka.start()
        scene.ledger.cut(scene.topic, self.ends)
        now = {**before, **self.ends}
        self._wait_for(now)
        scene.fired(f"stored {stored}; the logs ended at {before}, and end at {now}")

    def regrow(self) -> None:
        scene = self._scene
        stored, ends = scene.stored(), scene.ends()
        for partition in self.ends:
            missing = stored[partition] - ends[partition]
            scene.produce(missing + scene.random.randint(1, 60), partition=partition)
        ends = scene.ends()
        assert all(ends[partition] > stored[partition] for partition in self.ends), f"{stored}, {ends}"
        scene.fired(f"stored {stored}; the logs have grown to {ends}")

    def _log(self, partition: int) -> Path:
        return self._scene.kafka.directory / "data" / f"{self._scene.topic}-{partition}"

    def _copy(self, partition: int) -> Path:
        return self._scene.directory / "older-logs" / str(partition)

    def _wait_for(self, ends: Mapping[int, int]) -> None:
        """Wait until Kafka can be asked again, and each log ends there."""

        def are_there() -> bool:
            with suppress(confluent_kafka.KafkaException):
                return self._scene.ends() == ends
            return False

        wait_until(are_there, timeout=60)


@fault(row=REGROWN_ROW, must=REGROWN_MUST, variants=("stopped", "killed"))
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
        scene.kill(job)
    older.put_back()
    older.regrow()
    _refused_until_reset(scene, older)


@fault(row=REGROWN_ROW, must=REGROWN_MUST, variants=("told", "killed"))
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
            job.finish()
            scene.fired(f"the job ended with {report.class_name} at {scene.stored()}")
        else:
            time.sleep(scene.random.uniform(0, 3))
            scene.kill(job)
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
    scene.kill(job)
    older.put_back()
    if is_known:
        _kill_a_start(scene)
    else:
        # The first start finds only the early end; it records that for those after it.
        scene.refused("OffsetOutOfRange", "LogTruncated")
    older.regrow()
    _refused_until_reset(scene, older)


def _older_logs(scene: Scene, *, mirror_every: float | None = 0.3) -> OlderLogs:
    """Run a job, copy some logs, and with a mirror run another job, which keeps the leader epochs of later records."""
    scene.run_once(scene.random.randint(60, 150), mirror_every=mirror_every)
    older = OlderLogs(scene)
    if mirror_every is not None:
        scene.run_once(scene.random.randint(60, 150), mirror_every=mirror_every)
    return older


def _refused_until_reset(scene: Scene, older: OlderLogs) -> None:
    scene.allow("suspect", "reset")
    before = scene.stored()
    killed_after = scene.random.randrange(len(POLICIES))
    left = sorted(older.ends)
    for number, policy in enumerate(POLICIES):
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
    mirrored(scene, 60)
    # From then on no further word is needed.
    scene.catch_up(30)
    told = scene.database.rows(_SUSPECTS)
    assert told == [(partition, 1) for partition in sorted(older.ends)], f"the history tells of {told}"


def _refuse(scene: Scene, partitions: list[int], policy: dict[str, str]) -> None:
    report = scene.refused("LogTruncated", policy=policy)
    assert report.topic_partition in {f"{scene.topic}-{partition}" for partition in partitions}, report.text
    assert "offsetstore reset" in report.next_step
    assert not scene.jobs[-1].told("claimed"), report.text


def _kill_a_start(scene: Scene) -> None:
    """Kill a job before its claim is refused, or just after that."""
    scene.expect("LogTruncated", "OffsetOutOfRange")
    job = scene.start()
    time.sleep(scene.random.uniform(0, 1.5))
    scene.kill(job)
    assert not job.told("claimed")


def _reset(scene: Scene, partition: int, offset: int) -> None:
    where = ["-t", f"{scene.topic}:{partition}", "--to-offset", str(offset), "-b", scene.servers]
    # A job that was killed seems live for some seconds.
    why = ["--reason", "the broker's disk was restored", "--execute", "--force"]
    told = offsetstore(scene, "reset", "-g", scene.group, *where, *why)
    scene.fired(f"reset of partition {partition} to {offset}: {told.strip().splitlines()[-1]}")

"""Records go before the job has read them: by delete-records, and by retention."""

from __future__ import annotations

from typing import Final

from offsetstore.kafka import admin
from tests.faults.chaos.harness.registry import fault
from tests.faults.chaos.harness.scene import Scene
from tests.faults.chaos.means.kafka_topics import alter_topic, beginnings
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
    scene.produce(200)
    job = scene.start()
    scene.caught_up()
    job.stop()
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
        wait_until(lambda: beginnings(scene.servers, scene.topic) == ends, timeout=60)
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
    begin = beginnings(scene.servers, scene.topic)
    missing = {partition: (stored[partition], at) for partition, at in begin.items() if at > stored[partition]}
    assert missing, f"stored {stored}, and the logs begin at {begin}"
    scene.fired(f"stored {stored}, and the logs begin at {begin}: missing {missing}")


def _refused_then_accepted(scene: Scene) -> None:
    report = scene.expect_error(scene.start(), "OffsetOutOfRange")
    stored, begin = scene.stored(), beginnings(scene.servers, scene.topic)
    partition = next(number for number in sorted(begin) if stored[number] < begin[number])
    assert report.topic_partition == f"{scene.topic}-{partition}"
    assert f"[{stored[partition]}, {begin[partition]})" in report.text, report.text
    assert "on_data_loss" in report.next_step
    scene.allow("skip")
    with scene.supervise(policy={"on_data_loss": "earliest"}):
        scene.produce(100)
        scene.caught_up()
    skipped = scene.database.rows(
        "SELECT partition, from_offset, to_offset FROM offset_history WHERE event = 'skip' ORDER BY partition"
    )
    missing = [(number, stored[number], at) for number, at in sorted(begin.items()) if at > stored[number]]
    assert skipped == missing, f"skips {skipped} are recorded, and missing are {missing}"

"""Logs with offsets that have no record, or none that the job may read: transactions."""

from __future__ import annotations

from typing import Final

from tests.faults.chaos.harness.registry import fault
from tests.faults.chaos.harness.scene import Scene
from tests.faults.chaos.means.kafka_topics import high_watermarks, last_stable_offsets
from tests.faults.chaos.means.kafka_transactions import Transactions
from tests.support.waiting import wait_until

ROW: Final = "transactional and compacted topics"
MUST: Final = "the job reaches the log's end; no OffsetGap where nothing is missing"
LEVELS: Final = ("read_committed", "read_uncommitted")


@fault(row=ROW, must=MUST, variants=LEVELS)
def aborted_transactions(scene: Scene) -> None:
    """Committed, aborted and plain records in turns, and an aborted end; the job is killed in their midst."""
    transactions = Transactions(scene, sees_all=scene.variant == "read_uncommitted")
    aborted = 0
    for _ in range(12):
        commits = scene.random.random() < 0.5
        transactions.write(scene.random.randint(3, 25), commits=commits)
        aborted += not commits
        if scene.random.random() < 0.4:
            scene.produce(scene.random.randint(1, 20))
    transactions.write(15, commits=False)
    with scene.supervise(extra=_extra(scene), records_per_trigger=scene.random.randint(20, 60)) as supervisor:
        job = supervisor.job
        job.wait_for("begun", scene.random.randint(1, 5))
        job.kill("both")
        supervisor.next_job(job)
        transactions.write(20, commits=True)
        transactions.write(5, commits=False)
        ends = high_watermarks(scene.servers, scene.topic)
        scene.fired(
            f"{aborted + 2} transactions were aborted, the logs end at {ends}, with {scene.ledger.count} records"
        )
        scene.caught_up(to=ends)


@fault(row=ROW, must=MUST, variants=LEVELS, seeds=9)
def hanging_transaction(scene: Scene) -> None:
    """A transaction stays open, with records behind it, while the job runs, is killed, and starts; then it ends: by
    commit, by abort, or because Kafka gives it up."""  # fmt: skip
    sees_all = scene.variant == "read_uncommitted"
    outcome = ("commit", "abort", "timeout")[(scene.seed + scene.seed // 3) % 3]
    scene.produce(100)
    hanging = Transactions(scene, sees_all=sees_all, timeout=15 if outcome == "timeout" else 300)
    hanging.begin(20, commits=outcome == "commit")
    stable = last_stable_offsets(scene.servers, scene.topic)
    scene.produce(100)
    Transactions(scene, sees_all=sees_all).write(20, commits=True)
    ends = high_watermarks(scene.servers, scene.topic)
    assert all(stable[partition] < ends[partition] for partition in ends), "no transaction is open"
    readable = ends if sees_all else stable
    with scene.supervise(extra=_extra(scene)) as supervisor:
        if outcome != "timeout":
            scene.caught_up(to=readable)
            job = supervisor.job
            job.kill("both")
            supervisor.next_job(job).wait_for("claimed")
            assert scene.stored() == readable
            hanging.end(commits=outcome == "commit")
        scene.fired(f"a transaction was open from {stable} on, below the end {ends}; it ended by {outcome}")
        ended = _wait_until_ended(scene)
        scene.produce(50)
        scene.caught_up(to=high_watermarks(scene.servers, scene.topic))
        assert all(ended[partition] > ends[partition] for partition in ends), "there is no marker"


@fault(
    row="open transaction at a restart under read_committed",
    must="OffsetOutOfRange, no restart of the topic; when the transaction has ended the job goes on, all of it once",
    variants=("commit", "abort"),
)
def open_at_a_restart(scene: Scene) -> None:
    """A job that reads uncommitted records has read beyond an open transaction and was stopped; it starts again with
    read_committed, every other time with on_recreated="restart"; then the transaction ends."""  # fmt: skip
    scene.produce(60)
    hanging = Transactions(scene, sees_all=True)  # the first job reads it all
    hanging.begin(20, commits=scene.variant == "commit")
    scene.produce(60)
    first = scene.start(extra={"kafka.isolation.level": "read_uncommitted"})
    scene.caught_up(to=high_watermarks(scene.servers, scene.topic))
    first.stop()
    stored, stable = scene.stored(), last_stable_offsets(scene.servers, scene.topic)
    assert all(stable[partition] < stored[partition] for partition in stored), "no transaction is open"
    policy = {"on_recreated": "restart" if scene.seed % 2 else "fail"}
    settings = {"extra": {"kafka.isolation.level": "read_committed"}, "policy": policy}
    report = scene.expect_error(scene.start(**settings), "OffsetOutOfRange")
    assert "open transaction" in report.next_step
    assert scene.stored() == stored
    scene.fired(f"{stored} was stored, and a transaction was open from {stable} on, with {policy}")
    hanging.end(commits=scene.variant == "commit")
    _wait_until_ended(scene)
    scene.produce(50)
    with scene.supervise(**settings):
        scene.caught_up(to=high_watermarks(scene.servers, scene.topic))


def _wait_until_ended(scene: Scene) -> dict[int, int]:
    def ended() -> dict[int, int]:
        highs = high_watermarks(scene.servers, scene.topic)
        return highs if last_stable_offsets(scene.servers, scene.topic) == highs else {}

    return wait_until(ended, timeout=60)


def _extra(scene: Scene) -> dict[str, str]:
    return {"kafka.isolation.level": scene.variant}

"""Logs with offsets that have no record, or none that the job may read: transactions."""

from __future__ import annotations

from typing import Any, Final
from uuid import uuid4

from tests.faults.chaos.harness.landing import living_rows
from tests.faults.chaos.harness.ledger import KEYS, flush, producer
from tests.faults.chaos.harness.registry import fault
from tests.faults.chaos.harness.scene import Scene
from tests.faults.chaos.means.kafka import (
    all_offsets,
    alter_topic,
    high_watermarks,
    last_stable_offsets,
    settled_offsets,
)
from tests.support.waiting import wait_until

ROW: Final = "transactional and compacted topics"
MUST: Final = "the job reaches the log's end; no OffsetGap where nothing is missing"
LEVELS: Final = ("read_committed", "read_uncommitted")

_SECONDS = 30


class Transactions:
    """One transactional producer, whose records are entered into the run's ledger if readers will see them.

    :param sees_all: whether the job reads uncommitted records too.
    :param timeout: seconds after which Kafka ends a transaction by itself.
    """

    def __init__(self, scene: Scene, *, sees_all: bool, timeout: float = 300) -> None:
        self._scene = scene
        self._sees_all = sees_all
        self._client: Any = producer(
            scene.servers,
            transactional_id=f"fault-{uuid4()}",
            transaction_timeout_ms=int(timeout * 1000),
            message_timeout_ms=int(min(timeout, 60) * 1000),
        )
        self._client.init_transactions(_SECONDS)
        self._touched: set[int] = set()

    def write(self, count: int, *, commits: bool) -> None:
        self.begin(count, commits=commits)
        self.end(commits=commits)

    def begin(self, count: int, *, commits: bool) -> None:
        """Write records in a transaction, all of which Kafka has acknowledged, and leave it open.

        :param commits: how it is going to end.
        """
        scene = self._scene
        self._client.begin_transaction()
        self._touched.clear()
        for number in range(count):
            partition = number if number < scene.partitions else scene.random.randrange(scene.partitions)
            self._touched.add(partition)
            scene.ledger.send(self._client, scene.topic, partition, kept=commits or self._sees_all)
        flush(self._client)

    def end(self, *, commits: bool) -> None:
        scene = self._scene
        before = high_watermarks(scene)
        if commits:
            self._client.commit_transaction(_SECONDS)
        else:
            self._client.abort_transaction(_SECONDS)

        def marked() -> bool:
            ends = high_watermarks(scene)
            return all(ends[partition] > before[partition] for partition in self._touched)

        wait_until(marked)


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
        supervisor.job.wait_for("begun", scene.random.randint(1, 5))
        supervisor.kill("both")
        transactions.write(20, commits=True)
        transactions.write(5, commits=False)
        ends = high_watermarks(scene)
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
    stable = last_stable_offsets(scene)
    scene.produce(100)
    Transactions(scene, sees_all=sees_all).write(20, commits=True)
    ends = high_watermarks(scene)
    assert all(stable[partition] < ends[partition] for partition in ends), "no transaction is open"
    readable = ends if sees_all else stable
    with scene.supervise(extra=_extra(scene)) as supervisor:
        if outcome != "timeout":
            scene.caught_up(to=readable)
            supervisor.kill("both").wait_for("claimed")
            assert scene.stored() == readable
            hanging.end(commits=outcome == "commit")
        scene.fired(f"a transaction was open from {stable} on, below the end {ends}; it ended by {outcome}")
        ended = _wait_until_ended(scene)
        scene.produce(50)
        scene.caught_up(to=high_watermarks(scene))
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
    scene.caught_up(to=high_watermarks(scene))
    first.stop()
    stored, stable = scene.stored(), last_stable_offsets(scene)
    assert all(stable[partition] < stored[partition] for partition in stored), "no transaction is open"
    policy = {"on_recreated": "restart" if scene.seed % 2 else "fail"}
    settings = {"extra": {"kafka.isolation.level": "read_committed"}, "policy": policy}
    report = scene.refused("OffsetOutOfRange", **settings)
    assert "open transaction" in report.next_step
    assert scene.stored() == stored
    scene.fired(f"{stored} was stored, and a transaction was open from {stable} on, with {policy}")
    hanging.end(commits=scene.variant == "commit")
    _wait_until_ended(scene)
    scene.produce(50)
    with scene.supervise(**settings):
        scene.caught_up(to=high_watermarks(scene))


def _wait_until_ended(scene: Scene) -> dict[int, int]:
    def ended() -> dict[int, int]:
        highs = high_watermarks(scene)
        return highs if last_stable_offsets(scene) == highs else {}

    return wait_until(ended, timeout=60)


def _extra(scene: Scene) -> dict[str, str]:
    return {"kafka.isolation.level": scene.variant}


# -- compaction and tombstones

# Small segments and no delay: all but the newest records can be compacted at once.
COMPACTED: Final = {
    "cleanup.policy": "compact",
    "segment.ms": "100",
    "min.cleanable.dirty.ratio": "0.001",
    "delete.retention.ms": "0",
}
KEPT: Final = {"cleanup.policy": "delete"}

# A COMMIT that was sent happens, also when the sender is dead.
_WRITING: Final = (
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'offsetstore:%'"
)


@fault(row=ROW, must=MUST, variants=("all-read", "half-read"))
def compacted_under_the_job(scene: Scene) -> None:
    """Keys are written again and again and some deleted (tombstones); the log is compacted when the job has read all or
    a part of it, so that its next record, too, may be gone; then the job goes on."""  # fmt: skip
    settings = {"transform": f"{living_rows.__module__}:{living_rows.__name__}"}
    scene.produce(250)
    _delete_keys(scene)
    if scene.variant == "all-read":
        scene.catch_up(**settings)
    else:
        job = scene.start(records_per_trigger=40, **settings)
        job.wait_for("done", scene.random.randint(1, 3))
        job.kill("both")
        wait_until(lambda: not scene.database.one(_WRITING))
    stored = scene.stored()
    assert scene.variant == "all-read" or stored != scene.ends(), "the job was too quick"
    scene.produce(100)
    _delete_keys(scene)
    _compact(scene, stored)
    with scene.supervise(records_per_trigger=scene.random.randint(20, 60), **settings):
        scene.caught_up()
        scene.produce(60)
        _delete_keys(scene)
        scene.caught_up()


def _delete_keys(scene: Scene) -> None:
    """Produce tombstones of some keys."""
    client: Any = producer(scene.servers)
    for number in scene.random.sample(range(KEYS), scene.random.randint(1, 4)):
        for partition in range(scene.partitions):
            client.produce(scene.topic, None, key=f"k{number:02}".encode(), partition=partition)
    flush(client)


def _compact(scene: Scene, stored: dict[int, int]) -> None:
    """Let Kafka compact, then keep what is left as it is, and take out of the ledger what nobody will ever read."""
    before = all_offsets(scene)
    alter_topic(scene.servers, scene.topic, COMPACTED)

    def is_compacted() -> bool:
        # A segment is closed when something is written to the next one.
        _delete_keys(scene)
        left = all_offsets(scene)
        return all(
            len([offset for offset in left[partition] if offset < before[partition][-1]]) < 3 * KEYS
            for partition in left
        )

    wait_until(is_compacted, timeout=60)
    alter_topic(scene.servers, scene.topic, KEPT)
    left = settled_offsets(scene)
    gone = {partition: sorted({*before[partition]} - {*left[partition]}) for partition in before}
    assert all(gone.values()), f"not compacted: {left}"
    next_gone = [partition for partition, offset in stored.items() if offset in gone[partition]]
    unread = 0
    for partition, offsets in gone.items():
        for offset in offsets:
            if offset >= stored[partition]:
                scene.ledger.remove(scene.topic, partition, offset)
                unread += 1
    scene.fired(
        f"{sum(map(len, gone.values()))} records were compacted away, {unread} of them unread; stored {stored}, and "
        f"the record at the stored offset is gone in partitions {next_gone}"
    )

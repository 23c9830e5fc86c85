"""Logs with offsets that have no record: compaction and tombstones."""

from __future__ import annotations

from typing import Any, Final

from tests.faults.chaos.cases.transactions import MUST, ROW
from tests.faults.chaos.harness.ledger import KEYS, flush, producer
from tests.faults.chaos.harness.registry import fault
from tests.faults.chaos.harness.scene import Scene
from tests.faults.chaos.means.kafka_topics import all_offsets, alter_topic, settled_offsets
from tests.support.waiting import wait_until

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
    settings = {"transform": f"tests.faults.chaos.means.living:{'rows' if scene.way == 'partition' else 'outputs'}"}
    scene.produce(250)
    _delete_keys(scene)
    if scene.variant == "all-read":
        with scene.supervise(**settings):
            scene.caught_up()
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
    before = all_offsets(scene.servers, scene.topic)
    alter_topic(scene.servers, scene.topic, COMPACTED)

    def is_compacted() -> bool:
        # A segment is closed when something is written to the next one.
        _delete_keys(scene)
        left = all_offsets(scene.servers, scene.topic)
        return all(
            len([offset for offset in left[partition] if offset < before[partition][-1]]) < 3 * KEYS
            for partition in left
        )

    wait_until(is_compacted, timeout=60)
    alter_topic(scene.servers, scene.topic, KEPT)
    left = settled_offsets(scene.servers, scene.topic)
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

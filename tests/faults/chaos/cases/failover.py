"""The database fails over to an asynchronous replica that has not received everything."""

from __future__ import annotations

from typing import Final

from offsetstore.local.postgres.server import PostgresServer
from tests.faults.chaos.harness.registry import fault
from tests.faults.chaos.harness.scene import Scene, Supervisor
from tests.faults.chaos.means.copies import copies
from tests.faults.chaos.means.replica import Replica
from tests.support.waiting import wait_until

ROW: Final = "failover to a lagging replica"
MUST: Final = "results and offsets go back together; StoreRewound or replay, nothing twice in the results"


@fault(row=ROW, must=MUST, variants=("mirrored", "not-mirrored"))
def failover_to_a_lagging_replica(scene: Scene) -> None:
    """A pg_basebackup standby streams asynchronously, and is cut off while the job runs; later the primary is killed
    and the standby promoted in its place. In every second run the job claims anew in between, so that the standby does
    not know its claim. With the mirror the first start is refused, until it has on_rewound="stored"; without, the job
    replays what the standby never got."""
    scene.use_postgres(scene.at_end.enter_context(PostgresServer(durability="none")))
    scene.expect("OffsetGap", "StaleClaim", "StoreUnavailable", "TransactionLost")
    is_mirrored = scene.variant == "mirrored"
    settings = {"mirror_every": 0.3 if is_mirrored else None}
    with scene.producing(), scene.supervise(**settings) as supervisor:
        supervisor.job.wait_for("done", scene.random.randint(1, 3))
        replica = Replica(scene)
        copied = replica.stored()
        wait_until(lambda: _is_beyond(replica.stored(), copied), timeout=60)
        before = replica.cut_off()
        if scene.seed % 2:
            job = supervisor.job
            job.kill("both")
            supervisor.next_job(job).wait_for("claimed", timeout=120)
        job = supervisor.job
        job.wait_for("done", job.batches_done + scene.random.randint(1, 3), timeout=120)
        wait_until(lambda: _is_beyond(scene.stored(), before), timeout=60)
        if is_mirrored:
            wait_until(lambda: _is_beyond(_copied(scene), before), timeout=60)
        lost = scene.stored()
        replica.take_over()
        scene.fired(f"replica promoted: stored {before}, the primary was at {lost} or above")
        if is_mirrored:
            scene.allow("rewound")
            wait_until(lambda: _refused(scene, supervisor), timeout=90)
            supervisor.settings["policy"] = {"on_rewound": "stored"}
        wait_until(lambda: supervisor.job is not job and supervisor.job.batches_done, timeout=90)
        claimed = supervisor.job.wait_for("claimed").what["starting"][scene.topic]
        scene.fired(f"job {supervisor.job.pid} starts at {claimed}")
    with scene.supervise(**settings, records_per_trigger=1000):
        scene.caught_up()


def _is_beyond(found: dict[int, int], before: dict[int, int]) -> bool:
    return any(offset > before.get(partition, 0) for partition, offset in found.items())


def _copied(scene: Scene) -> dict[int, int]:
    return {partition: copy.next_offset for partition, copy in copies(scene).items()}


def _refused(scene: Scene, supervisor: Supervisor) -> bool:
    """Whether a start was refused because Kafka has more than the replica."""
    for job in supervisor.jobs:
        if job.error is not None and job.error.class_name == "StoreRewound":
            scene.expect("StoreRewound")
            scene.fired(f"refused: {job.error.text}")
            return True
    return False

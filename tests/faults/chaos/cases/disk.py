"""The database's disk is full."""

from __future__ import annotations

from typing import Final

from offsetstore.local.postgres.server import PostgresServer
from tests.faults.chaos.harness.registry import fault
from tests.faults.chaos.harness.scene import Scene
from tests.faults.chaos.means.small_disk import small_disk
from tests.support.waiting import wait_until

ROW: Final = "disk full"
MUST: Final = "loud, recovers when there is room, no record blamed"

_SETTINGS: Final = {"max_wal_size": "32MB", "min_wal_size": "32MB", "autovacuum": "off"}


@fault(row=ROW, must=MUST, seeds=6)
def disk_full(scene: Scene) -> None:
    """PostgreSQL on a tmpfs of its own, which is filled while the job runs: it ends, and each start after it, until
    there is room again."""
    disk = scene.at_end.enter_context(small_disk(192))
    directory = disk.path / "server"
    server = PostgresServer(directory=directory, durability="none", settings=_SETTINGS)
    scene.use_postgres(scene.at_end.enter_context(server))
    scene.expect("StoreUnavailable", "TransactionLost")
    scene.produce(300)
    with scene.supervise() as supervisor:
        job = supervisor.job
        job.wait_for("done", scene.random.randint(1, 4))
        before = scene.stored()
        disk.fill()
        scene.produce(100 * scene.random.randint(1, 4))
        job.wait_for("failed")
        assert job.error is not None
        scene.fired(f"{disk.free} bytes free, stored {before}: {job.error.class_name}: {job.error.text[:300]}")
        refused = server.log.read_text(errors="replace").count("No space left on device")
        disk.make_room()
        if server.pid is None:  # where there is no room for its own log of changes, the server itself gives up
            server.start()
        wait_until(lambda: supervisor.job is not job)
        scene.fired(
            f"{refused} times 'No space left on device' in the server's log; {len(supervisor.jobs)} jobs so far"
        )
        scene.caught_up()

"""An asynchronous replica of the scene's server, which takes its place."""

from __future__ import annotations

import time

from offsetstore.local.postgres.binaries import unprivileged_account
from offsetstore.local.postgres.server import PostgresServer
from tests.faults.chaos.harness.scene import Scene
from tests.faults.chaos.means.backup import base_backup
from tests.support.postgres import Database
from tests.support.waiting import wait_until

_STORED = "SELECT consumer_group, topic, partition, next_offset FROM kafka_partitions"


class Replica:
    """Follows the scene's server by streaming replication until it is cut off."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._directory = scene.postgres.directory / "replica"
        self._directory.mkdir()
        unprivileged_account().own(self._directory)
        base_backup(scene.postgres, self._directory / "data", "--write-recovery-conf")
        self._server = scene.at_end.enter_context(PostgresServer(directory=self._directory, durability="none"))
        self._look = Database(self._server.database_url(scene.url.rpartition("/")[2]))
        scene.at_end.callback(self._look.close)

    def stored(self) -> dict[int, int]:
        """The stored offset of each partition of the run's topic, as far as it was replayed here."""
        wanted = (self._scene.group, self._scene.topic)
        return {partition: offset for g, t, partition, offset in self._look.rows(_STORED) if (g, t) == wanted}

    def cut_off(self) -> dict[int, int]:
        """Receive nothing more; return what is stored here, from now on for good.

        A replay that is only paused would not do: what was received is replayed at a promotion.
        """
        self._look.execute("ALTER SYSTEM SET primary_conninfo = ''")
        self._look.execute("SELECT pg_reload_conf()")
        wait_until(lambda: not self._look.rows("SELECT 1 FROM pg_stat_wal_receiver"))
        received = "pg_last_wal_receive_lsn() IS NOT DISTINCT FROM pg_last_wal_replay_lsn()"
        wait_until(lambda: self._look.one(f"SELECT {received}"))
        return self.stored()

    def take_over(self) -> None:
        """Crash the primary, promote the replica, and let it answer where the primary did."""
        scene = self._scene
        scene.mirror_watch.is_exempt = True  # Kafka may have what the replica never got
        port = scene.postgres.port
        scene.postgres.stop("immediate")
        assert self._look.one("SELECT pg_promote()")
        self._look.close()
        self._server.stop()
        scene.lost_since = time.monotonic()
        scene.at_end.enter_context(PostgresServer(directory=self._directory, port=port, durability="none"))

"""A copy of the whole database cluster, and the way back to it."""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path
from typing import Literal

from offsetstore.local.postgres.binaries import find_binaries, unprivileged_account
from offsetstore.local.postgres.server import PostgresServer
from tests.faults.chaos.harness.scene import Scene

How = Literal["hot", "cold"]


class Backup:
    """Of the scene's server, as it is when this is made.

    :param how: ``hot``: pg_basebackup while the server works; ``cold``: it is stopped for a copy of its files.
    """

    def __init__(self, scene: Scene, how: How) -> None:
        self._scene = scene
        self._copy: Path = scene.postgres.directory / "backup"
        shutil.rmtree(self._copy, ignore_errors=True)
        if how == "hot":
            base_backup(scene.postgres, self._copy)
        else:
            scene.postgres.stop()
            self._copy_files(scene.postgres.data, self._copy)
            scene.postgres.start()

    def restore(self) -> None:
        """Crash the server, put the copy in its place, and start it. What was committed since is gone."""
        scene = self._scene
        scene.mirror_watch.is_exempt = True  # Kafka has what the database has no longer
        scene.postgres.stop("immediate")
        shutil.rmtree(scene.postgres.data)
        self._copy.rename(scene.postgres.data)
        scene.lost_since = time.monotonic()
        scene.postgres.start()

    @staticmethod
    def _copy_files(source: Path, target: Path) -> None:
        # With their owner: the server refuses files that are not its account's.
        subprocess.run(["cp", "-a", str(source), str(target)], check=True)


def base_backup(server: PostgresServer, target: Path, *options: str) -> None:
    """Copy the server's files with pg_basebackup while it works.

    :param options: further ones of the program's.
    """
    account = unprivileged_account()
    program = find_binaries().reachable_by(account, home=server.directory).program("pg_basebackup")
    where = ["-d", server.url, "-D", str(target)]
    done = subprocess.run(
        [program, *where, "--checkpoint=fast", "--wal-method=stream", "--no-sync", *options],
        cwd=server.directory,
        capture_output=True,
        text=True,
        check=False,
        **account.popen_arguments,
    )
    assert done.returncode == 0, done.stderr

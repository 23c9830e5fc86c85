"""Another query, with a database and a group of its own, which is here for the checkpoint that it leaves."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import psycopg

from offsetstore.testing.fixtures import copy_database
from tests.faults.chaos.harness.scene import Scene
from tests.faults.chaos.harness.tables import DDL


def run_other(scene: Scene, batches: int, **settings: Any) -> dict[int, int]:
    """Let it write so many batches, and return where it has got to."""
    with _database(scene) as url:
        own: dict[str, Any] = {"group": f"{scene.group}-other", "url": url, "mirror_every": None}
        job = scene.start(**{**own, "records_per_trigger": 30, **settings})
        job.wait_for("done", batches, timeout=90)
        job.stop()
        # The run's own account is of the run's own database.
        scene.jobs.remove(job)
        with psycopg.connect(url) as connection:
            return dict(connection.execute("SELECT partition, next_offset FROM kafka_partitions").fetchall())


@contextmanager
def _database(scene: Scene) -> Generator[str]:
    name = f"other_{uuid4().hex[:12]}"
    url = copy_database(scene.postgres, name, template=scene.template)
    try:
        with psycopg.connect(url) as connection:
            connection.execute(DDL.encode())
        yield url
    finally:
        scene.postgres.drop_database(name)

"""The job's connections, as the database's server sees them."""

from __future__ import annotations

from dataclasses import dataclass

from offsetstore.store.identity import name_prefix
from tests.faults.chaos.harness.scene import Scene
from tests.support.waiting import wait_until

# A claim's own transactions have two parts after the prefix, those of batches and tasks three (`Transaction`).
_OPEN = """
SELECT pid, application_name, state, coalesce(wait_event_type, ''), left(query, 60) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND xact_start IS NOT NULL
    AND application_name LIKE '{prefix}%:%:%' ORDER BY xact_start
"""


@dataclass(frozen=True, slots=True)
class Backend:
    """One server process in a transaction of the job. ``waits_for`` is ``Lock`` where it waits for one."""

    pid: int
    name: str
    state: str
    waits_for: str
    query: str

    def __str__(self) -> str:
        return f"backend {self.pid} ({self.state}: {' '.join(self.query.split())[:40]})"


def in_transaction(scene: Scene) -> list[Backend]:
    """Return those that have a batch's or a task's transaction open now."""
    return [Backend(*row) for row in scene.database.rows(_OPEN.format(prefix=name_prefix(scene.group)))]


def waiting_for_lock(scene: Scene, timeout: float = 60) -> Backend:
    """Wait until one waits for a lock, and return it."""
    return wait_until(
        lambda: next((one for one in in_transaction(scene) if one.waits_for == "Lock"), None), timeout=timeout
    )  # type: ignore[return-value]


def terminate_others(scene: Scene) -> int:
    """End all connections to the run's database but our own; return how many there were."""
    return len(
        scene.database.rows(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
        )
    )


def is_gone(scene: Scene, pid: int) -> bool:
    """Whether the server process has ended."""
    return not scene.database.rows(f"SELECT 1 FROM pg_stat_activity WHERE pid = {pid}")


def terminate(scene: Scene, backends: list[Backend]) -> None:
    """End these connections, and see them gone."""
    for one in backends:
        scene.database.rows(f"SELECT pg_terminate_backend({one.pid})")
    wait_until(lambda: all(is_gone(scene, one.pid) for one in backends))

"""`make chaos` is stopped and started again: what an earlier one has left is not in the way."""

from __future__ import annotations

from pathlib import Path

from tests.faults.chaos.harness.clusters import Clusters


def test_each_process_of_a_cluster_has_a_home_of_its_own(tmp_path: Path) -> None:
    homes = [Clusters(tmp_path).environment("cluster")["SPARK_HOME"] for _ in range(2)]

    assert len(set(homes)) == 2

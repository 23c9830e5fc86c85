"""A short part of `make chaos`, with fixed seeds, on the servers of the test run: what is done to a job from outside.

Kills at a point of the engine are in `tests.integration.processing.test_second_source`, a job that stands still while
another takes over in `tests.faults.interleavings`; a lost COMMIT in `tests.integration.store.test_unknown_commit`; a
database that fails while bad records are looked for in `…processing.test_recovery_on_postgres`, one that stops in
`…spark.test_health`; one that is restored and a topic that is recreated, in `…kafka.test_rewound` and
`…spark.test_recreated`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from offsetstore.local.kafka.server import KafkaBroker
from offsetstore.local.postgres.server import PostgresServer
from tests.faults.chaos.harness import process
from tests.faults.chaos.harness.clusters import Clusters
from tests.faults.chaos.harness.job import Way
from tests.faults.chaos.harness.registry import Fault, load
from tests.faults.chaos.harness.run import Stage
from tests.support import waiting
from tests.support.checkout import commit_of
from tests.support.waiting import PATIENCE


@pytest.fixture(scope="module", autouse=True)
def patience() -> Iterator[None]:
    """Other tests' Sparks and brokers run beside this. `make chaos` holds the limits; here they only end what hangs."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (waiting, process):
            patch.setattr(module, "PATIENCE", 3 * PATIENCE)
        yield


@pytest.fixture(scope="module")
def stage(
    tmp_path_factory: pytest.TempPathFactory,
    pytestconfig: pytest.Config,
    offsetstore_postgres: PostgresServer,
    offsetstore_kafka: KafkaBroker,
) -> Iterator[Stage]:
    directory = tmp_path_factory.mktemp("chaos")
    commit = commit_of(pytestconfig.rootpath)
    with Stage(directory, commit=commit, postgres=offsetstore_postgres, kafka=offsetstore_kafka) as stage:
        yield stage


def test_what_is_produced_lands_once_though_the_job_is_killed_at_random(stage: Stage) -> None:
    run(stage, "killed-at-random", "batch", 3)


@pytest.mark.behaviour("HAND-1", "HAND-2", "HAND-5", "HAND-7", "HAND-9")
def test_a_handler_whose_job_is_killed_calls_again_for_one_micro_batch_at_most(stage: Stage) -> None:
    """What else holds for calls is in `tests.faults.chaos.harness.calls.wrong`."""
    run(stage, "handlers-killed-at-half", "partition", 1)


def run(stage: Stage, name: str, way: Way, seed: int) -> None:
    result = stage.run(load()[name], way, seed)

    assert result.violations == []
    assert result.evidence
    assert result.looks > 10


def test_a_fault_that_does_not_happen_fails_its_run(stage: Stage) -> None:
    def nothing(scene: object) -> None:
        """Nothing is done."""

    idle = Fault("idle", "none", "nothing", "nothing", ("batch",), "", 1, 1, nothing)

    assert stage.run(idle, "batch", 0).violations == ["there is no evidence that the fault happened"]


def test_each_process_of_a_cluster_has_a_home_of_its_own(tmp_path: Path) -> None:
    homes = [Clusters(tmp_path).environment("cluster")["SPARK_HOME"] for _ in range(2)]

    assert len(set(homes)) == 2

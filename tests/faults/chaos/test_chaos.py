"""One run of `make chaos` with a fixed seed, on the servers of the test run: a kill of a job, from outside.

Kills at a point of the engine are in
`tests.integration.processing.test_second_source`, a job that stands still while another takes over in
`tests.faults.interleavings`; a lost COMMIT in `tests.integration.store.test_unknown_commit`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from offsetstore.local.kafka import KafkaBroker
from offsetstore.local.postgres import PostgresServer
from tests.faults.chaos.harness import process
from tests.faults.chaos.harness.registry import Fault, load
from tests.faults.chaos.harness.run import Stage
from tests.support import waiting
from tests.support.waiting import PATIENCE


@pytest.mark.behaviour("HAND-1", "HAND-2", "HAND-5", "HAND-7", "HAND-9")
def test_what_is_produced_lands_once_though_a_job_with_a_handler_is_killed_among_its_calls(
    tmp_path: Path,
    offsetstore_postgres: PostgresServer,
    offsetstore_kafka: KafkaBroker,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What holds for calls is in `tests.faults.chaos.harness.calls.wrong`; a run whose fault does not happen fails."""
    for module in (waiting, process):
        # Other tests' Sparks and brokers run beside this: here the limits only end what hangs.
        monkeypatch.setattr(module, "PATIENCE", 3 * PATIENCE)
    idle = Fault("idle", "none", "nothing", "nothing", ("batch",), "", 1, 1, lambda _: None)
    with Stage(tmp_path, commit="", postgres=offsetstore_postgres, kafka=offsetstore_kafka) as stage:
        killed = stage.run(load()["handlers-killed-at-half"], "batch", 0)
        nothing = stage.run(idle, "batch", 0)

    assert killed.violations == []
    assert killed.looks > 10
    assert nothing.violations == ["there is no evidence that the fault happened"]

"""An operator moves the stored offsets back; the job dies again and again on its way."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, cast

import psycopg

from tests.faults.chaos.harness.process import Target
from tests.faults.chaos.harness.registry import fault
from tests.faults.chaos.harness.scene import Scene
from tests.support.waiting import wait_until

_HOLD: Final = "SELECT FROM consumer_groups WHERE consumer_group = %s FOR UPDATE"
_WAITS: Final = """
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND wait_event_type = 'Lock' AND application_name LIKE 'offsetstore:%:admin'
"""
_CLI: Final = "from offsetstore.cli.main import main; main()"
_TWICE: Final = """
SELECT count(*) FROM (SELECT seq FROM landed GROUP BY seq HAVING count(*) <> CASE WHEN seq <= {last} THEN 2 ELSE 1 END)
"""


@fault(
    row="reset backwards, job restarted three times",
    must="replayed once, and it sticks",
    variants=("stopped", "forced"),
    seeds=6,
)
def reset_backwards(scene: Scene) -> None:
    """`offsetstore reset --to-earliest`, of a job that was stopped, or with --force of one that runs; the job is then
    killed three times, at any moment."""
    scene.allow("reset")
    scene.produce(200)
    job = scene.start()
    scene.caught_up()
    before = scene.stored()
    last = scene.ledger.count
    # From here on, Kafka has more than the store, until the mirror has followed.
    scene.mirror_watch.is_exempt = True
    if scene.variant == "forced":
        scene.expect("StaleClaim")
        told = _reset(scene, "--force")
        assert "Fenced the live job" in told, told
        scene.produce(1)
        scene.expect_error(job, "StaleClaim")
    else:
        job.stop()
        told = _reset(scene)
    assert set(scene.stored().values()) == {0}
    scene.fired(f"reset from {before} to the beginning: {told.splitlines()[-1]}")
    for _ in range(3):
        victim = scene.start(records_per_trigger=scene.random.choice([20, 40]))
        count = scene.random.randint(0, 2)
        victim.wait_for("done", count) if count else victim.wait_for(scene.random.choice(["claimed", "begun"]))
        target = cast("Target", scene.random.choice(["python", "jvm", "both"]))
        victim.kill(target)
        scene.fired(f"{target} of job {victim.pid} was killed after {victim.batches_done} batches, at {scene.stored()}")
        victim.close()
    scene.produce(50)
    with scene.supervise():
        scene.caught_up()
    wrong = scene.database.one(_TWICE.format(last=last))
    assert not wrong, f"{wrong} records are not there twice (before the reset) or once (after it)"
    resets = scene.database.rows("SELECT partition, count(*) FROM offset_history WHERE event = 'reset' GROUP BY 1")
    assert sorted(resets) == [(partition, 1) for partition in range(scene.partitions)]
    assert not scene.database.one("SELECT count(*) FROM kafka_partitions WHERE pinned")
    scene.mirror_watch.is_exempt = False


@fault(row="reset against a running job", must="printed = recorded = done; nothing else is read again")
def reset_meanwhile(scene: Scene) -> None:
    """`offsetstore reset --shift-by --force` of a job that runs, which has made its plan and is then held up on its way
    to the locks (by a transaction that holds the group's row), until the job has advanced."""
    scene.allow("reset")
    scene.expect("StaleClaim")
    scene.produce(200)
    job = scene.start()
    scene.caught_up()
    planned = scene.stored()
    back = scene.random.randint(1, min(planned.values()))
    # From here on, Kafka has more than the store, until the mirror has followed.
    scene.mirror_watch.is_exempt = True
    with psycopg.connect(scene.url) as holding, ThreadPoolExecutor(1) as pool:
        holding.execute(_HOLD, (scene.group,))
        resetting = pool.submit(_reset, scene, "--force", "--format", "json", target=("--shift-by", str(-back)))
        wait_until(lambda: scene.database.one(_WAITS), timeout=60)
        scene.produce(60)
        scene.caught_up()
        holding.rollback()
        told = json.loads(resetting.result(120))
    printed = {one["partition"]: (one["stored"], one["new"]) for one in told["partitions"]}
    recorded = {
        partition: (from_, to)
        for partition, from_, to in scene.database.rows(
            "SELECT partition, from_offset, to_offset FROM offset_history WHERE event = 'reset'"
        )
    }
    done = scene.stored()
    assert printed == recorded, f"printed {printed}, recorded {recorded}"
    assert {partition: to for partition, (_, to) in printed.items()} == done, f"printed {printed}, done {done}"
    assert all(to == from_ - back for from_, to in printed.values()), printed
    assert told["fenced"]["epoch"] == job.epoch, told
    scene.fired(f"planned from {planned}, back by {back} from {printed}")
    assert any(printed[partition][0] > offset for partition, offset in planned.items()), "no advance in between"
    scene.produce(1)
    scene.expect_error(job, "StaleClaim")
    with scene.supervise():
        scene.caught_up()
    scene.mirror_watch.is_exempt = False


def _reset(scene: Scene, *more: str, target: Sequence[str] = ("--to-earliest",)) -> str:
    arguments = ["reset", "-g", scene.group, "-t", scene.topic, *target, "-b", scene.servers, "--execute"]
    done = subprocess.run(
        [sys.executable, "-c", _CLI, *arguments, "--reason", "the rates were wrong", *more],
        env={**os.environ, "OFFSETSTORE_URL": scene.url},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, f"exit code {done.returncode}: {done.stdout}{done.stderr}"
    return done.stdout.strip()

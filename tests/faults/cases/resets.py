"""An operator moves the stored offsets back; the job dies again and again on its way."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, Final, cast

from tests.faults.harness.registry import fault

if TYPE_CHECKING:
    from tests.faults.harness.process import Target
    from tests.faults.harness.scene import Scene

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
        assert "live is fenced" in told, told
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


def _reset(scene: Scene, *more: str) -> str:
    arguments = ["reset", "-g", scene.group, "-t", scene.topic, "--to-earliest", "-b", scene.servers, "--execute"]
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

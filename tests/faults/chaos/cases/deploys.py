"""Five deploys migrate at once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

from offsetstore.postgres.migrate import downgrade
from offsetstore.postgres.schema import HEAD
from offsetstore.postgres.url import make_engine
from tests.faults.chaos.harness.registry import fault
from tests.faults.chaos.harness.scene import Scene
from tests.faults.chaos.harness.tables import TRIGGER

ROW: Final = "five deploys at once"
MUST: Final = "one migrates, all succeed, job lives"
DEPLOYS: Final = 5
_SECONDS: Final = 120

# The harness' own trigger has to be there before the first job is: in the migration's own transaction.
_WITH_THE_TABLE: Final = f"""
CREATE FUNCTION log_from_the_start() RETURNS event_trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM pg_event_trigger_ddl_commands() WHERE object_identity = 'public.kafka_partitions') THEN
        {TRIGGER};
    END IF;
END $$;
CREATE EVENT TRIGGER log_from_the_start ON ddl_command_end WHEN TAG IN ('CREATE TABLE')
    EXECUTE FUNCTION log_from_the_start();
"""


@fault(row=ROW, must=MUST, seeds=3)
def deploys_at_head(scene: Scene) -> None:
    """`offsetstore migrate` five times at once, with the tables at head and a job running."""
    with scene.supervise() as supervisor:
        job = supervisor.job
        with scene.producing(rate=100):
            job.wait_for("done", scene.random.randint(1, 4))
            said = _migrate_at_once(scene)
            job.wait_for("done", job.batches_done + 2)
        assert all("already" in one for one in said), said
        scene.fired(f"{DEPLOYS} x offsetstore migrate while job {job.pid} ran, each: {said[0]}")
        scene.caught_up()
        assert supervisor.jobs == [job], "the job was to live on"


@fault(row=ROW, must=MUST, seeds=3)
def deploys_from_nothing(scene: Scene) -> None:
    """`offsetstore migrate` five times at once, without any of our tables, and a job that is started again and again
    until they are there."""
    scene.expect("SchemaMissing")
    engine = make_engine(scene.url)
    with engine.begin() as connection:
        downgrade(connection)
    engine.dispose()
    scene.database.execute(_WITH_THE_TABLE)
    scene.produce(200)
    with scene.supervise() as supervisor:
        waiting = supervisor.job
        scene.expect_error(waiting, "SchemaMissing")
        said = _migrate_at_once(scene)
        scene.caught_up()
        did = [one for one in said if one.startswith("Migrated from no tables")]
        assert len(did) == 1, said
        assert sum("already" in one for one in said) == DEPLOYS - 1, said
        scene.fired(f"{DEPLOYS} x offsetstore migrate; one: {did[0]} {len(supervisor.jobs) - 1} starts were refused")


def _migrate_at_once(scene: Scene) -> list[str]:
    """Return what each of them said; all of them have succeeded."""
    command = [str(Path(sys.executable).with_name("offsetstore")), "migrate", "--url", scene.url]
    deploys = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for _ in range(DEPLOYS)
    ]
    said = [one.communicate(timeout=_SECONDS)[0].strip() for one in deploys]
    assert [one.returncode for one in deploys] == [0] * DEPLOYS, said
    assert all(f"revision {HEAD}" in one for one in said), said
    return said

"""What the database stands on: its disk, its tables, its migrations."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from offsetstore.local.postgres import PostgresServer, temporary_directory, unprivileged_account
from offsetstore.postgres.migrate import downgrade
from offsetstore.postgres.schema import HEAD
from tests.faults.chaos.harness.registry import fault
from tests.faults.chaos.harness.scene import Job, Scene
from tests.faults.chaos.harness.tables import TRIGGER, migrate
from tests.support.waiting import wait_until

ROW: Final = "disk full"
MUST: Final = "loud, recovers when there is room, no record blamed"

_SETTINGS: Final = {"max_wal_size": "32MB", "min_wal_size": "32MB", "autovacuum": "off"}

_MEGABYTE = 1 << 20


class SmallDisk:
    """Mounted at ``path``, which is the database's account's own."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._ballast = path / "ballast"

    @property
    def free(self) -> int:
        found = os.statvfs(self.path)
        return found.f_bavail * found.f_frsize

    def fill(self) -> None:
        with self._ballast.open("ab", buffering=0) as file:
            for size in (_MEGABYTE, 4096, 1):
                try:
                    while file.write(bytes(size)) == size:
                        pass
                except OSError:  # no room for so much
                    continue

    def make_room(self) -> None:
        self._ballast.unlink(missing_ok=True)


@contextmanager
def small_disk(megabytes: int) -> Generator[SmallDisk]:
    account = unprivileged_account()
    path = temporary_directory(account, prefix="offsetstore-small-disk-")
    try:
        options = f"size={megabytes}m,mode=0700,uid={account.uid or os.getuid()},gid={account.gid or os.getgid()}"
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "offsetstore-small-disk", str(path)], check=True)
        try:
            yield SmallDisk(path)
        finally:
            # Lazily, should a process that dies have a file open.
            subprocess.run(["umount", "-l", str(path)], check=True)
    finally:
        path.rmdir()


@fault(row=ROW, must=MUST, seeds=6)
def disk_full(scene: Scene) -> None:
    """PostgreSQL on a tmpfs of its own, which is filled while the job runs: it ends, and each start after it, until
    there is room again."""
    disk = scene.at_end.enter_context(small_disk(192))
    directory = disk.path / "server"
    server = PostgresServer(directory=directory, durability="none", settings=_SETTINGS)
    scene.use_postgres(scene.at_end.enter_context(server))
    scene.expect("StoreUnavailable", "TransactionLost")
    scene.produce(300)
    with scene.supervise() as supervisor:
        job = supervisor.job
        job.wait_for("done", scene.random.randint(1, 4))
        before = scene.stored()
        disk.fill()
        scene.produce(100 * scene.random.randint(1, 4))
        job.wait_for("failed")
        assert job.error is not None
        scene.fired(f"{disk.free} bytes free, stored {before}: {job.error.class_name}: {job.error.text[:300]}")
        refused = server.log.read_text(errors="replace").count("No space left on device")
        disk.make_room()
        if server.pid is None:  # where there is no room for its own log of changes, the server itself gives up
            server.start()
        wait_until(lambda: supervisor.job is not job)
        scene.fired(
            f"{refused} times 'No space left on device' in the server's log; {len(supervisor.jobs)} jobs so far"
        )
        scene.caught_up()


# -- a table that loses its rows, or commits them apart


@dataclass(frozen=True, slots=True)
class Unsafe:
    """One kind of target.

    :param make: what turns the table into one.
    :param named: how the error names it.
    :param cure: what makes it safe again.
    :param rewrites: whether that writes the table anew: to a snapshot from before it, its rows are not there then, so
        that it is done while there are none.
    """

    make: str
    named: str
    cure: str
    rewrites: bool = True


# As the sessions of an application may have one; here each connection of the job, and none that looks on.
_HIDDEN: Final = """
CREATE FUNCTION hide_landed() RETURNS event_trigger LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('application_name') = 'job' THEN
        CREATE TEMPORARY TABLE landed (topic text, partition int, "offset" bigint, seq bigint, key text, amount bigint);
    END IF;
END $$;
CREATE EVENT TRIGGER hide_landed ON login EXECUTE FUNCTION hide_landed()
"""
_PARTITIONED: Final = """
ALTER TABLE landed RENAME TO landed_here;
CREATE TABLE landed (LIKE landed_here) PARTITION BY LIST (key);
ALTER TABLE landed ATTACH PARTITION landed_here DEFAULT;
"""

KINDS: Final[Mapping[str, Unsafe]] = {
    "unlogged": Unsafe(
        "ALTER TABLE landed SET UNLOGGED",
        "landed is UNLOGGED",
        "ALTER TABLE landed SET LOGGED",
    ),
    "unlogged-upsert": Unsafe(
        "ALTER TABLE sums SET UNLOGGED",
        "sums is UNLOGGED",
        "ALTER TABLE sums SET LOGGED",
    ),
    "unlogged-partition": Unsafe(
        f"{_PARTITIONED} CREATE UNLOGGED TABLE landed_late PARTITION OF landed FOR VALUES IN ('late')",
        "landed_late",
        "ALTER TABLE landed_late SET LOGGED",
        rewrites=False,
    ),
    "foreign-partition": Unsafe(
        f"{_PARTITIONED} CREATE EXTENSION file_fdw; CREATE SERVER far FOREIGN DATA WRAPPER file_fdw;"
        "CREATE FOREIGN TABLE landed_far PARTITION OF landed FOR VALUES IN ('far') SERVER far"
        " OPTIONS (filename '/dev/null')",
        "landed_far",
        "ALTER TABLE landed DETACH PARTITION landed_far",
        rewrites=False,
    ),
    # A sink that has found the table keeps to it: there is nothing to hide from a job that runs.
    "temporary": Unsafe(_HIDDEN, "landed is temporary", "DROP EVENT TRIGGER hide_landed"),
}


@fault(
    row="target that does not survive a crash",
    must="refused by name, before a byte, the offsets unmoved; when it is safe the job goes on, and all is there once",
    variants=tuple(KINDS),
)
def unsafe_target(scene: Scene) -> None:
    """The results' table is UNLOGGED, hidden by a temporary one, or has a partition that is UNLOGGED or foreign: from
    the beginning, with a crash of the server after the refusal, or from some moment of a running job on."""
    kind = KINDS[scene.variant]
    scene.produce(scene.random.randint(100, 300))
    is_running = not kind.rewrites and scene.random.random() < 0.5
    job: Job | None = None
    url = f"{scene.url}?application_name=job"
    if is_running:
        job = scene.start(url=url)
        job.wait_for("done", scene.random.randint(1, 2))
    scene.database.execute(kind.make)
    before = scene.stored()
    scene.produce(80)
    for _ in range(scene.random.randint(1, 2)):
        job = job or scene.start(url=url)
        report = scene.expect_error(job, "UnsafeTarget")
        assert kind.named in report.text, report.text
        scene.fired(f"job {job.pid} was refused {report.found} at {before}")
        job.finish()
        job = None
        stored = {partition: offset for partition, offset in scene.stored().items() if offset}
        assert stored == {partition: offset for partition, offset in before.items() if offset}
    if not is_running:
        assert scene.database.rows("SELECT FROM public.landed") == []
        crashed = scene.postgres.pid
        scene.postgres.stop("immediate")
        scene.postgres.start()
        scene.fired(f"PostgreSQL {crashed} was stopped (immediate)")
    scene.database.execute(kind.cure)
    scene.catch_up(50, url=url)


# -- five deploys migrate at once

DEPLOY_ROW: Final = "five deploys at once"
DEPLOY_MUST: Final = "one migrates, all succeed, job lives"
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


@fault(row=DEPLOY_ROW, must=DEPLOY_MUST, seeds=3)
def deploys_at_head(scene: Scene) -> None:
    """`offsetstore migrate` five times at once, with the tables at head and a job running."""
    with scene.living() as job:
        with scene.producing(rate=100):
            job.wait_for("done", scene.random.randint(1, 4))
            said = _migrate_at_once(scene)
            job.wait_for("done", job.batches_done + 2)
        assert all("already" in one for one in said), said
        scene.fired(f"{DEPLOYS} x offsetstore migrate while job {job.pid} ran, each: {said[0]}")


@fault(row=DEPLOY_ROW, must=DEPLOY_MUST, seeds=3)
def deploys_from_nothing(scene: Scene) -> None:
    """`offsetstore migrate` five times at once, without any of our tables, and a job that is started again and again
    until they are there."""
    scene.expect("SchemaMissing")
    migrate(scene.url, downgrade)
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
    command = [str(Path(sys.executable).with_name("offsetstore")), "migrate", "--url", scene.url]
    deploys = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for _ in range(DEPLOYS)
    ]
    said = [one.communicate(timeout=_SECONDS)[0].strip() for one in deploys]
    assert [one.returncode for one in deploys] == [0] * DEPLOYS, said
    assert all(f"revision {HEAD}" in one for one in said), said
    return said

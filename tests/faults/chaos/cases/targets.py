"""The results' table is one that loses its rows, or commits them apart, and the offsets would stay."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tests.faults.chaos.harness.registry import fault
from tests.faults.chaos.harness.scene import Job, Scene


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
        job.wait_for("ended")
        job.close()
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
    with scene.supervise(url=url):
        scene.produce(50)
        scene.caught_up()

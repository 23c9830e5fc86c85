"""Records that the tables refuse, scattered among good ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.faults.harness.registry import fault
from tests.faults.means.poison import KINDS, SECRET, scatter

if TYPE_CHECKING:
    from tests.faults.harness.errors import Report
    from tests.faults.harness.scene import Job, Scene


@fault(
    row="poison records",
    must="the job ends with an error that names the record, of whose batch or partition nothing is written",
    variants=tuple(KINDS),
    seeds=6,
)
def poison(scene: Scene) -> None:
    """Broken JSON, a NUL, values that are too large, violated constraints, also deferred ones, scattered among good
    records; a job that is started again meets the same one; with another transform, or without the constraint, it goes
    on."""
    kind = KINDS[scene.variant]
    scene.database.execute(kind.rule)
    scene.expect("RowsRefused")
    size = scene.random.choice([30, 60, 120])
    scene.produce(scene.random.randrange(100))
    bad = scatter(scene, kind, good=200, bad=scene.random.randint(1, 4))
    for _ in range(scene.random.randint(1, 2)):
        job = scene.start(records_per_trigger=size)
        report = scene.expect_error(job, "RowsRefused", timeout=120)
        scene.fired(f"of the poisonous records {sorted(bad)}, job {job.pid} met {report.found}")
        _check(scene, job, report, bad)
        job.wait_for("ended")
        job.close()
    scene.produce(50)
    if kind.cure is not None:
        scene.database.execute(kind.cure)
    function = "digested_rows" if scene.way == "partition" else "digested_outputs"
    changed = {} if kind.cure else {"transform": f"tests.faults.means.poison:{function}"}
    with scene.supervise(records_per_trigger=size, **changed):
        scene.caught_up()


def _check(scene: Scene, job: Job, report: Report, bad: set[str]) -> None:
    named = next((one for one in bad if f"the record {one}" in (report.found or "")), None)
    assert named is not None, f"it does not name the record: {report.text}"
    place, _, offset = named.rpartition("@")
    assert report.topic_partition == place
    assert SECRET not in report.text + report.spark, "it tells what is in the record"
    ranges = job.told("begun")[-1].what["ranges"]
    begin, until = ranges[place]
    assert begin <= int(offset) < until, f"{named} is not in {ranges}"
    stored = {f"{scene.topic}-{partition}": at for partition, at in scene.stored().items()}
    assert stored[place] == begin, f"{stored} though {named} was refused in {ranges}"
    if scene.way != "partition":
        assert all(stored[tp] == at for tp, (at, _) in ranges.items()), f"{stored}, and the batch was {ranges}"

"""Records that the tables refuse, scattered among good ones."""

from __future__ import annotations

import shlex
import time
from typing import Final

from tests.faults.chaos.harness.errors import Report
from tests.faults.chaos.harness.registry import fault
from tests.faults.chaos.harness.scene import Job, Scene
from tests.faults.chaos.means.commands import offsetstore
from tests.faults.chaos.means.poison import KINDS, SECRET, scatter
from tests.support.waiting import wait_until

SEARCHING: Final = "looking for the refused record"


@fault(
    row="poison records",
    must="the job ends with an error that names the record; of its batch or partition all before it is stored, and "
    "nothing else",
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
    changed = {} if kind.cure else {"transform": f"tests.faults.chaos.means.poison:{function}"}
    with scene.supervise(records_per_trigger=size, **changed):
        scene.caught_up()


def _check(scene: Scene, job: Job, report: Report, bad: set[str]) -> None:
    named = next((one for one in bad if f"refused at record {one}" in (report.found or "")), None)
    assert named is not None, f"it does not name the record: {report.text}"
    place, _, offset = named.rpartition("@")
    assert report.topic_partition == place
    assert SECRET not in report.text + report.spark, "it tells what is in the record"
    ranges = job.told("begun")[-1].what["ranges"]
    begin, until = ranges[place]
    assert begin <= int(offset) < until, f"{named} is not in {ranges}"
    stored = {f"{scene.topic}-{partition}": at for partition, at in scene.stored().items()}
    assert stored[place] == int(offset), f"{stored} though {named} was refused in {ranges}"
    if scene.way != "partition":
        expected = {tp: until if tp < place else begin for tp, (begin, until) in ranges.items() if tp != place}
        assert {tp: stored[tp] for tp in expected} == expected, f"{stored}, and the batch was {ranges}"


@fault(
    row="a refused record passed over by reset",
    must="the error names the record and gives the command; after it all other records are there, once",
    variants=("check", "deferred", "nul"),
)
def passed_over(scene: Scene) -> None:
    """Records that the tables refuse, scattered among good ones; after each error its own command is run, and the job
    is started again."""
    kind = KINDS[scene.variant]
    scene.database.execute(kind.rule)
    scene.expect("RowsRefused")
    scene.allow("reset")
    bad = scatter(scene, kind, good=200, bad=scene.random.randint(1, 3))
    size = scene.random.choice([30, 60, 120])
    for _ in bad:
        job = scene.start(records_per_trigger=size)
        report = scene.expect_error(job, "RowsRefused", timeout=120)
        _check(scene, job, report, bad)
        job.wait_for("ended")
        job.close()
        _, _, command = report.next_step.partition("offsetstore ")
        told = offsetstore(scene, *shlex.split(command))
        scene.fired(f"job {job.pid} met {report.found}; {told.splitlines()[-1]}")
    scene.produce(50)
    with scene.supervise(records_per_trigger=size):
        scene.caught_up()
    keys = scene.database.rows("SELECT count(*) FROM landed WHERE key LIKE '%canary%'")
    assert keys == [(0,)], "a refused record is in the results"


@fault(
    row="a refusal that does not recur",
    must="all records are there, once; no record is named",
    variants=("at once", "later"),
)
def not_recurring(scene: Scene) -> None:
    """A record's parent is missing, and another session inserts it when the search for the record has begun: at its
    first part, or while it goes on."""
    scene.database.execute(KINDS["deferred"].rule.replace("DEFERRABLE INITIALLY DEFERRED", ""))
    before = scatter(scene, KINDS["deferred"], good=200, bad=scene.random.randint(1, 3))
    settings = {"records_per_trigger": scene.random.choice([60, 240])}
    job = scene.start(**settings)
    wait_until(lambda: f"{SEARCHING} among {scene.topic}" in job.process.end_of_log, timeout=60)
    if scene.variant == "later":
        time.sleep(scene.random.random())  # any moment will do
    scene.database.execute(f"INSERT INTO known SELECT 'k77 {SECRET}'")
    scene.fired(f"the parent of {sorted(before)} was inserted when the search had begun")
    scene.produce(50)
    scene.expect("RowsRefused")  # it may have ended before: then the next start has nothing to refuse
    wait_until(lambda: job.has_ended or _is_caught_up(scene), timeout=60)
    if job.error is not None:
        scene.fired(f"the search had ended before: {job.error.found}")
    job.stop()
    with scene.supervise(**settings):
        scene.caught_up()


def _is_caught_up(scene: Scene) -> bool:
    return scene.stored() == scene.ends()

"""Jobs that keep dead letters break in the middle of it: discovery, letters, attempts, replays."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable
from itertools import chain
from typing import Any, Final

from offsetstore.runtime.failpoints import POINTS
from tests.faults.chaos.harness.errors import Report
from tests.faults.chaos.harness.registry import fault
from tests.faults.chaos.harness.scene import Scene
from tests.faults.chaos.means.breaking import (
    MODES,
    in_transaction,
    kill_at,
    kill_at_random,
    stop_database_at,
    take_over,
    terminate_at,
    wait_until_stopped,
)
from tests.faults.chaos.means.commands import offsetstore
from tests.faults.chaos.means.letters import (
    CURABLE,
    KINDS,
    MENDED,
    REJECTED,
    SECRET,
    check_letters,
    cure,
    digested_rows,
    prepare,
    request,
    scatter,
    scatter_bad,
    states,
    wait_for_states,
)
from tests.support.background import repeating
from tests.support.waiting import wait_until

ROW: Final = "dead letters in play"
MUST: Final = "each record in the results or in the letters, once"
_HIGH: Final = 1_000
REPLAYED: Final = "each letter in the results once, and replayed"
INNOCENT: Final = "neither a letter nor a failed attempt of a record that is good"

REPLAY_ALONE: Final = ("letters_replayed",)
EVERYWHERE: Final = tuple(
    point
    for point in POINTS
    if point not in REPLAY_ALONE and not point.startswith("outbox_")  # a relay's
)
"""Also points that are added later: one that a job with bad records does not reach fails its run."""

SEARCHES: Final = tuple(point for point in POINTS if point in {"in_discovery", "letters_written", "failures_written"})
IN_TRANSACTION: Final = tuple(point for point in SEARCHES if point != "failures_written")
"""Attempts are committed when that point is reached."""
IN_REPLAY: Final = (
    "after_lock",
    "in_copy",
    "in_discovery",
    "letters_replayed",
    "before_advance",
    "before_commit",
    "commit_sent",
    "after_commit",
)


@fault(row=ROW, must=MUST, variants=EVERYWHERE, seeds=6)
def letters_killed_at(scene: Scene) -> None:
    """Bad records of six kinds among good ones, with dead_letters=: Python, Java or both get SIGKILL while the job
    stands still at a named point."""
    nth = 1 if scene.variant == "in_claim" else scene.random.randint(1, 3)
    settings = _with_bad_records(scene, scene.variant)
    kill_at(scene, scene.variant, nth, lambda: scatter_bad(scene, good=95, bad=5), **settings)
    check_letters(scene)


@fault(row=ROW, must=MUST, seeds=30)
def letters_killed_at_random(scene: Scene) -> None:
    """The same, twice at random moments, while good and bad records keep coming."""
    settings = prepare(scene)
    scatter_bad(scene, good=140, bad=10)
    with repeating(lambda: scatter_bad(scene, good=28, bad=2), every=1), scene.supervise(**settings) as supervisor:
        kill_at_random(scene, supervisor, batches=3, within=1.5)
    scene.catch_up(records_per_trigger=300, **settings)
    check_letters(scene)


@fault(row=ROW, must=INNOCENT, variants=tuple(f"{mode} {point}" for mode in MODES for point in SEARCHES), seeds=3)
def letters_database_stopped(scene: Scene) -> None:
    """pg_ctl stop -m fast or immediate and start, while a job with bad records stands still in discovery, or when it
    has written letters or attempts; it goes on while the server is down, or when it is up again."""
    mode, _, point = scene.variant.partition(" ")
    settings = _searching(scene, point)
    stop_database_at(scene, mode, lambda: scatter_bad(scene, good=95, bad=5), **settings)
    check_letters(scene)


@fault(row=ROW, must=INNOCENT, variants=IN_TRANSACTION, seeds=6)
def letters_backend_terminated(scene: Scene) -> None:
    """pg_terminate_backend (a SIGTERM) for the backends that are in a transaction of a job with bad records, which
    stands still in discovery, or when it has written letters."""
    terminate_at(scene, lambda: scatter_bad(scene, good=95, bad=5), **_searching(scene, scene.variant))
    check_letters(scene)


@fault(row=ROW, must=f"StaleClaim for the first; {MUST}", variants=SEARCHES, seeds=6)
def letters_frozen_at(scene: Scene) -> None:
    """The first driver gets SIGSTOP in discovery, or when it has written letters or attempts, with Java and all
    workers; a second one claims and runs; the first gets SIGCONT."""
    settings = _searching(scene, scene.variant)
    first = scene.start(**settings)
    letters = settings["dead_letters"]
    take_over(scene, first, wait_until_stopped(first), may_commit=False, dead_letters=letters)
    check_letters(scene)


def _with_bad_records(scene: Scene, point: str) -> dict[str, Any]:
    """Append records, and return the settings of a job that comes to this point."""
    settings = prepare(scene)
    if point == "failures_written":
        settings["dead_letters"]["max_retries"] = 2
    scatter_bad(scene, good=280, bad=20)
    return settings


def _searching(scene: Scene, point: str) -> dict[str, Any]:
    """Append records, and return the settings of a job that stops itself at this point."""
    settings = _with_bad_records(scene, point)
    nth = scene.random.randint(1, 12) if point == "in_discovery" else scene.random.randint(1, 2)
    return {"failpoint": f"{point}:{nth}:stop", **settings}


@fault(row=ROW, must=REPLAYED, variants=IN_REPLAY, seeds=6)
def replay_killed_at(scene: Scene) -> None:
    """Letters are requested of a job that has read all else, and some of them are still bad: Python, Java or both get
    SIGKILL while a replay stands still at a named point."""
    settings, replayed = _requested(scene)
    kill_at(scene, scene.variant, 1, replayed, **settings)
    check_letters(scene, replays=1)


@fault(row=ROW, must=REPLAYED, variants=("in_discovery", "letters_replayed"), seeds=6)
def replay_frozen_at(scene: Scene) -> None:
    """The first driver gets SIGSTOP in a replay, with Java and all workers; a second one claims and runs; the first
    gets SIGCONT."""
    settings, replayed = _requested(scene)
    first = scene.start(failpoint=f"{scene.variant}:1:stop", **settings)
    # All that is new is in one batch.
    take_over(scene, first, wait_until_stopped(first), may_commit=False, batches=1, **settings)
    replayed()
    check_letters(scene, replays=1)


@fault(row=ROW, must=REPLAYED, variants=MODES, seeds=4)
def replay_database_stopped(scene: Scene) -> None:
    """pg_ctl stop -m fast or immediate and start, while a replay stands still in discovery, or before its COMMIT."""
    settings, replayed = _requested(scene)
    point = ("in_discovery", "letters_replayed", "before_commit", "commit_sent")[scene.seed % 4]
    stop_database_at(scene, scene.variant, replayed, failpoint=f"{point}:1:stop", **settings)
    check_letters(scene, replays=1)


def _requested(scene: Scene) -> tuple[dict[str, Any], Callable[[], None]]:
    """Have letters made, cure some of them, and request all.

    :return: the settings of the job that replays them, and what waits until it has replayed those that are cured.
    """
    settings = prepare(scene)
    scatter_bad(scene, good=160, bad=40, kinds=CURABLE)
    job = scene.start(records_per_trigger=100, **settings)
    scene.caught_up(timeout=90)
    job.stop()
    left = scene.random.choice(["check", "deferred"])
    cure(scene, *(kind for kind in CURABLE if kind != left))
    entries = [bad.entry for bad in chain.from_iterable(one.values() for one in scene.ledger.bad.values())]
    refused = sum(SECRET in one.key if left == "deferred" else (one.amount or 0) >= _HIGH for one in entries)
    assert request(scene) == len(entries)

    def replayed() -> None:
        scene.produce(60)
        wait_for_states(scene, {"replayed": len(entries) - refused, "dead": refused})

    return settings | MENDED, replayed


@fault(row=ROW, must=REPLAYED, seeds=15)
def replay_killed_at_random(scene: Scene) -> None:
    """A hundred letters are requested little by little, while the job runs and while it is down, and other records keep
    coming: Python, Java or both get SIGKILL three times, at a random moment after the job has begun to look for
    letters, or in a transaction."""
    _replayed_and_killed(scene, letters=100, kills=3)


@fault(row=ROW, must=REPLAYED, seeds=2)
def a_thousand_replayed(scene: Scene) -> None:
    """The same with a thousand letters, and SIGKILL ten times."""
    _replayed_and_killed(scene, letters=1_000, kills=10)


def _replayed_and_killed(scene: Scene, *, letters: int, kills: int) -> None:
    settings = prepare(scene)
    # Most are rejected: discovery is not what this is about.
    scatter_bad(scene, good=2 * letters, bad=letters, kinds=(*CURABLE, *[REJECTED] * 8))
    with scene.supervise(records_per_trigger=max(100, letters), **settings):
        scene.caught_up(timeout=240)
    cure(scene, *CURABLE)
    settings |= MENDED
    portion = letters // (2 * kills + 1)
    with scene.producing(rate=20), scene.supervise(**settings) as supervisor:
        for _ in range(kills):
            victim = supervisor.job
            victim.wait_for("claimed", timeout=90)
            request(scene, limit=portion)
            victim.wait_for("begun", timeout=90)  # before it writes a batch, it looks for letters
            if scene.random.random() < 0.5:
                time.sleep(scene.random.uniform(0, 4))
            else:
                wait_until(lambda: in_transaction(scene), timeout=30)
            seen = f"{len(in_transaction(scene))} transactions open, letters {states(scene)}"
            supervisor.kill(seen=seen, meanwhile=lambda: request(scene, limit=portion))
        request(scene)
        wait_for_states(scene, {"replayed": letters}, timeout=120)
    scene.catch_up(records_per_trigger=300, **settings)
    check_letters(scene)


# -- records that the tables refuse, without letters

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
    bad = scatter(scene, [kind], good=200, bad=scene.random.randint(1, 4))
    for _ in range(scene.random.randint(1, 2)):
        _refused(scene, bad, size)
    scene.produce(50)
    if kind.cure is not None:
        scene.database.execute(kind.cure)
    changed = {} if kind.cure else {"transform": f"{digested_rows.__module__}:{digested_rows.__name__}"}
    scene.catch_up(records_per_trigger=size, **changed)


def _refused(scene: Scene, bad: set[tuple[str, int, int]], size: int) -> Report:
    """See a job meet one of the bad records, and store what is before it."""
    job = scene.start(records_per_trigger=size)
    report = scene.expect_error(job, "RowsRefused", timeout=120)
    scene.fired(f"of the poisonous records {sorted(bad)}, job {job.pid} met {report.found}")
    named = [one for one in bad if f"refused at record {one[0]}-{one[1]}@{one[2]}" in (report.found or "")]
    assert named, f"it does not name the record: {report.text}"
    place, offset = f"{named[0][0]}-{named[0][1]}", named[0][2]
    assert report.topic_partition == place
    assert SECRET not in report.text + report.spark, "it tells what is in the record"
    ranges = job.told("begun")[-1].what["ranges"]
    begin, until = ranges[place]
    assert begin <= offset < until, f"{named} is not in {ranges}"
    stored = {f"{scene.topic}-{partition}": at for partition, at in scene.stored().items()}
    assert stored[place] == offset, f"{stored} though {named} was refused in {ranges}"
    if scene.way != "partition":
        expected = {tp: until if tp < place else begin for tp, (begin, until) in ranges.items() if tp != place}
        assert {tp: stored[tp] for tp in expected} == expected, f"{stored}, and the batch was {ranges}"
    job.finish()
    return report


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
    bad = scatter(scene, [kind], good=200, bad=scene.random.randint(1, 3))
    size = scene.random.choice([30, 60, 120])
    for _ in bad:
        _, _, command = _refused(scene, bad, size).next_step.partition("offsetstore ")
        scene.fired(offsetstore(scene, *shlex.split(command)).splitlines()[-1])
    scene.catch_up(50, records_per_trigger=size)
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
    before = scatter(scene, [KINDS["deferred"]], good=200, bad=scene.random.randint(1, 3))
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
    scene.catch_up(**settings)


def _is_caught_up(scene: Scene) -> bool:
    return scene.stored() == scene.ends()

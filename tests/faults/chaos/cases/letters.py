"""Jobs that keep dead letters break in the middle of it: discovery, letters, attempts, replays."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import chain
from typing import Any, Final, cast

from offsetstore.local.postgres.server import StopMode
from offsetstore.protocol.failpoints import POINTS
from tests.faults.chaos.cases.database import MODES
from tests.faults.chaos.cases.drivers import TARGETS
from tests.faults.chaos.cases.two_drivers import take_over
from tests.faults.chaos.harness.registry import fault
from tests.faults.chaos.harness.scene import Scene
from tests.faults.chaos.means.backends import in_transaction, terminate
from tests.faults.chaos.means.freezing import stands
from tests.faults.chaos.means.held import held
from tests.faults.chaos.means.letters import (
    BAD,
    CURABLE,
    REJECTED,
    check_letters,
    cure,
    mended,
    prepare,
    request,
    scatter_bad,
    states,
    wait_for_states,
)
from tests.faults.chaos.means.poison import SECRET
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


@fault(row=ROW, must=MUST, name="letters-killed-at", variants=EVERYWHERE, seeds=6)
def letters_killed_at(scene: Scene) -> None:
    """Bad records of six kinds among good ones, with dead_letters=: Python, Java or both get SIGKILL while the job
    stands still at a named point."""
    _killed_at(scene, scene.variant, 1 if scene.variant == "in_claim" else scene.random.randint(1, 3))


def _killed_at(scene: Scene, point: str, nth: int, kinds: Sequence[str] = tuple(BAD)) -> None:
    target = TARGETS[(scene.seed // len(scene.fault.ways) + scene.seed) % len(TARGETS)]
    settings = prepare(scene)
    if point == "failures_written":
        settings["dead_letters"]["max_retries"] = 2
    scatter_bad(scene, good=280, bad=20, kinds=kinds)
    with scene.supervise(failpoint=f"{point}:{nth}:hang", **settings) as supervisor:
        victim = supervisor.job
        reached = victim.wait_for("reached", timeout=90)
        seen = f"stored {scene.stored()}, letters {states(scene)}"
        supervisor.settings["records_per_trigger"] = 150
        victim.kill(target)
        scene.fired(
            f"{target} of job {victim.pid} got SIGKILL at {point}:{nth} (process {reached.what['pid']}), {seen}"
        )
        supervisor.next_job(victim)
        scatter_bad(scene, good=95, bad=5)
        scene.caught_up()
    check_letters(scene)


@fault(row=ROW, must=MUST, seeds=30)
def letters_killed_at_random(scene: Scene) -> None:
    """The same, twice at random moments, while good and bad records keep coming."""
    settings = prepare(scene)
    scatter_bad(scene, good=140, bad=10)
    with repeating(lambda: scatter_bad(scene, good=28, bad=2), every=1), scene.supervise(**settings) as supervisor:
        for _ in range(2):
            victim = supervisor.job
            victim.wait_for("begun", scene.random.randint(1, 3))
            time.sleep(scene.random.uniform(0, 1.5))
            target = scene.random.choice(TARGETS)
            seen = f"{len(victim.told('begun')) - victim.batches_done} batches under way, letters {states(scene)}"
            victim.kill(target)
            scene.fired(f"{target} of job {victim.pid} got SIGKILL, {seen}")
            supervisor.next_job(victim)
    with scene.supervise(records_per_trigger=300, **settings):
        scene.caught_up()
    check_letters(scene)


@fault(row=ROW, must=INNOCENT, variants=tuple(f"{mode} {point}" for mode in MODES for point in SEARCHES), seeds=3)
def letters_database_stopped(scene: Scene) -> None:
    """pg_ctl stop -m fast or immediate and start, while a job with bad records stands still in discovery, or when it
    has written letters or attempts; it goes on while the server is down, or when it is up again."""
    mode, _, point = scene.variant.partition(" ")
    settings = _searching(scene, point)
    with scene.supervise(**settings) as supervisor:
        victim = supervisor.job
        with held(victim) as where:
            before = scene.postgres.pid
            scene.postgres.stop(cast("StopMode", mode))
            goes_on_first = scene.random.random() < 0.5
            if not goes_on_first:
                scene.postgres.start()
        if goes_on_first:
            time.sleep(scene.random.uniform(0, 1))
            scene.postgres.start()
        assert scene.postgres.pid not in {None, before}
        scene.fired(
            f"PostgreSQL {before} was stopped ({mode}) with {where}, "
            f"which went on {'before' if goes_on_first else 'after'} the start of {scene.postgres.pid}"
        )
        scatter_bad(scene, good=95, bad=5)
        scene.caught_up()
        assert supervisor.jobs == [victim], "the job was to live on"
    check_letters(scene)


@fault(row=ROW, must=INNOCENT, variants=IN_TRANSACTION, seeds=6)
def letters_backend_terminated(scene: Scene) -> None:
    """pg_terminate_backend (a SIGTERM) for the backends that are in a transaction of a job with bad records, which
    stands still in discovery, or when it has written letters."""
    settings = _searching(scene, scene.variant)
    with scene.supervise(**settings) as supervisor:
        victim = supervisor.job
        with held(victim) as where:
            backends = in_transaction(scene)
            assert backends, "there was no transaction to end"
            terminate(scene, backends)
        scene.fired(f"{where}: {', '.join(map(str, backends))} terminated")
        scatter_bad(scene, good=95, bad=5)
        scene.caught_up()
        assert supervisor.jobs == [victim], "the job was to live on"
    check_letters(scene)


@fault(row=ROW, must=f"StaleClaim for the first; {MUST}", variants=SEARCHES, seeds=6)
def letters_frozen_at(scene: Scene) -> None:
    """The first driver gets SIGSTOP in discovery, or when it has written letters or attempts, with Java and all
    workers; a second one claims and runs; the first gets SIGCONT."""
    settings = _searching(scene, scene.variant)
    first = scene.start(**settings)
    reached = first.wait_for("reached", timeout=90)
    wait_until(lambda: stands(reached.what["pid"]))
    take_over(
        scene,
        first,
        f"process {reached.what['pid']} at {scene.variant}",
        may_commit=False,
        dead_letters=settings["dead_letters"],
    )
    check_letters(scene)


def _searching(scene: Scene, point: str) -> dict[str, Any]:
    """Append records, and return the settings of a job that stops itself at this point."""
    settings = prepare(scene)
    if point == "failures_written":
        settings["dead_letters"]["max_retries"] = 2
    scatter_bad(scene, good=280, bad=20)
    nth = scene.random.randint(1, 12) if point == "in_discovery" else scene.random.randint(1, 2)
    return {"failpoint": f"{point}:{nth}:stop", **settings}


@fault(row=ROW, must=REPLAYED, variants=IN_REPLAY, seeds=6)
def replay_killed_at(scene: Scene) -> None:
    """Letters are requested of a job that has read all else, and some of them are still bad: Python, Java or both get
    SIGKILL while a replay stands still at a named point."""
    settings, good, bad = _requested(scene)
    target = TARGETS[(scene.seed // len(scene.fault.ways) + scene.seed) % len(TARGETS)]
    with scene.supervise(failpoint=f"{scene.variant}:1:hang", **settings) as supervisor:
        victim = supervisor.job
        victim.wait_for("reached", timeout=90)
        seen = states(scene)
        victim.kill(target)
        scene.fired(f"{target} of job {victim.pid} got SIGKILL at {scene.variant} of a replay, letters {seen}")
        supervisor.next_job(victim)
        scene.produce(60)
        wait_for_states(scene, {"replayed": good, "dead": bad})
        scene.caught_up()
    check_letters(scene, replays=1)


@fault(row=ROW, must=REPLAYED, variants=("in_discovery", "letters_replayed"), seeds=6)
def replay_frozen_at(scene: Scene) -> None:
    """The first driver gets SIGSTOP in a replay, with Java and all workers; a second one claims and runs; the first
    gets SIGCONT."""
    settings, good, bad = _requested(scene)
    first = scene.start(failpoint=f"{scene.variant}:1:stop", **settings)
    reached = first.wait_for("reached", timeout=90)
    wait_until(lambda: stands(reached.what["pid"]))
    seen = f"process {reached.what['pid']} at {scene.variant}"
    take_over(scene, first, seen, may_commit=False, batches=1, **settings)  # all that is new is in one batch
    wait_for_states(scene, {"replayed": good, "dead": bad})
    check_letters(scene, replays=1)


@fault(row=ROW, must=REPLAYED, variants=MODES, seeds=4)
def replay_database_stopped(scene: Scene) -> None:
    """pg_ctl stop -m fast or immediate and start, while a replay stands still in discovery, or before its COMMIT."""
    settings, good, bad = _requested(scene)
    point = ("in_discovery", "letters_replayed", "before_commit", "commit_sent")[scene.seed % 4]
    with scene.supervise(failpoint=f"{point}:1:stop", **settings) as supervisor:
        victim = supervisor.job
        with held(victim) as where:
            scene.postgres.stop(cast("StopMode", scene.variant))
            time.sleep(scene.random.uniform(0, 1))
            scene.postgres.start()
        scene.fired(f"PostgreSQL was stopped ({scene.variant}) with {where}, in a replay")
        scene.produce(60)
        wait_for_states(scene, {"replayed": good, "dead": bad})
        scene.caught_up()
        assert supervisor.jobs == [victim], "the job was to live on"
    check_letters(scene, replays=1)


def _requested(scene: Scene) -> tuple[dict[str, Any], int, int]:
    """Have letters made, cure some of them, and request all.

    :return: the settings of the job that replays them, how many can be written now, and how many can't.
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
    return {**settings, "transform": mended(scene)}, len(entries) - refused, refused


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
    settings["transform"] = mended(scene)
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
            target = scene.random.choice(TARGETS)
            seen, open_ones = states(scene), in_transaction(scene)
            victim.kill(target)
            scene.fired(f"{target} of job {victim.pid} got SIGKILL, {len(open_ones)} transactions open, letters {seen}")
            request(scene, limit=portion)
            supervisor.next_job(victim)
        request(scene)
        wait_for_states(scene, {"replayed": letters}, timeout=120)
    with scene.supervise(records_per_trigger=300, **settings):
        scene.caught_up()
    check_letters(scene)

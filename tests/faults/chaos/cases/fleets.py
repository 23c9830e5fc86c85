"""A fleet of consumers: members die, are frozen, leave, join and are replaced, and a claim fences all of them."""

from __future__ import annotations

import os
import shlex
import signal
import time
from contextlib import suppress
from typing import Final

from offsetstore import Broker, OffsetStore, TopicPartition
from offsetstore.errors import StaleClaim
from tests.faults.chaos.harness.registry import fault
from tests.faults.chaos.harness.scene import Scene, Violation
from tests.faults.chaos.means.breaking import drawn, stands
from tests.faults.chaos.means.commands import offsetstore
from tests.faults.chaos.means.letters import DEADLY, SECRET, scatter
from tests.faults.chaos.means.members import SESSION_TIMEOUT, Members, deadly, longest_wait, write_by_claim
from tests.support.consuming import Consuming
from tests.support.waiting import wait_until

ROW: Final = "a fleet"
MUST: Final = "exact; no partition without an owner for longer than the timeouts"

POINTS: Final = (
    "after_lock",
    "in_copy",
    "before_advance",
    "before_commit",
    "commit_sent",
    "after_commit",
    "before_lock",
)
"""Where a member has records; each is reached again and again."""

ENDS: Final = ("StaleClaim", "CommitUnknown")
"""A claim, or a fleet that is founded anew; and who is frozen at COMMIT and finds that a claim has gone on."""

SKIP: Final = "To skip only this record, once all consumers are stopped: offsetstore "
AT_LENGTH: Final = "at-length"
_EVERY: Final = 10.0
"""Seconds from one event to the next, at length."""


@fault(row=ROW, must=MUST, ways=("batch",), partitions=12, seeds=12)
@fault(row=ROW, must=MUST, ways=("batch",), partitions=12, seeds=1, variants=(AT_LENGTH,))
def members_killed_at_random(scene: Scene) -> None:
    """Three members share 12 partitions while records keep coming: one gets SIGKILL at a point of a transaction or at a
    random moment, or all do; one is frozen and thawed, or stopped; a fourth joins and leaves; all are replaced one by
    one; a claim fences them, writes, and is fenced by them. 5 of these, or at length 60 in ten minutes."""
    is_long = scene.variant == AT_LENGTH
    count = 60 if is_long else 5
    with scene.producing(), Members(scene) as members:
        for one in members.kept:
            one.wait_until_begun()
        began = time.monotonic()
        for number, event in enumerate(drawn(scene, _EVENTS, count), 1):
            scene.fired(event(scene, members))
            until = began + number * _EVERY if is_long else time.monotonic() + scene.random.uniform(0, 2)
            time.sleep(max(0.0, until - time.monotonic()))
        lasted = time.monotonic() - began
        wait = longest_wait(scene)
        scene.fired(
            f"{count} events in {lasted:.0f} s, {len(members.processes)} processes; a partition waited for {wait:.1f} s"
        )
        for one in members.kept:
            one.wait_until_begun()
        scene.produce(120)
    with Members(scene) as last:
        scene.caught_up()
    for some in (members, last):
        scene.told += some.told()
        scene.noted += [f"a member has ended with {end}" for end in some.unexpected(ENDS)]


@fault(
    row="a record that kills its process",
    must="the supervisor names the record, once it was handled alone, and the command; after it all other records are "
    "there, once, and nothing of the one",
    ways=("batch",),
    variants=("transform", "handler"),
)
def record_that_kills(scene: Scene) -> None:
    """Records at which the user's function gets SIGSEGV, scattered among good ones, in two or three supervised
    processes, one of which may get SIGKILL meanwhile; each time the command that the supervisor prints is run, and all
    is started again."""
    scene.allow("reset")
    bad = scatter(scene, [DEADLY], good=200, bad=scene.random.randint(1, 2))
    given = {"bootstrap": scene.servers, "topic": scene.topic, "group": scene.group, "word": SECRET}
    given |= {"how": scene.variant, "rows": scene.random.choice([20, 200])}
    scene.directory.mkdir(parents=True, exist_ok=True)
    count, log = scene.random.choice(["2", "3"]), scene.directory / "consume.log"
    app = f"{deadly.__module__}:{deadly.__name__}"

    def consuming() -> Consuming:
        return Consuming("--processes", count, url=scene.url, given=given, log=log, app=app)

    for _ in bad:
        scene.fired(_skip_one(scene, consuming(), bad))
    scene.produce(50)
    with consuming() as last:
        scene.caught_up()
        assert last.end() == 0, last.said
        assert "SIGSEGV" not in last.said
    assert "ProcessDied" in offsetstore(scene, "errors", "-g", scene.group)
    keys = scene.database.rows("SELECT count(*) FROM landed WHERE key LIKE '%canary%'")
    assert keys == [(0,)], "a record that was skipped is in the results"


def _skip_one(scene: Scene, consuming: Consuming, bad: set[tuple[str, int, int]]) -> str:
    with consuming:
        if scene.random.random() < 0.5:
            wait_until(lambda: consuming.children, timeout=60)
            os.kill(consuming.children[-1], signal.SIGKILL)
        wait_until(lambda: SKIP in consuming.said, timeout=120)
        consuming.end()
        where, _, command = next(line for line in consuming.said.splitlines() if SKIP in line).partition(SKIP)
    [place] = [one for one in bad if f" {one[0]}-{one[1]} [{one[2]}, " in where]
    told: list[str] = []

    def is_done() -> bool:  # once the dead processes don't count as live
        with suppress(AssertionError):
            told.append(offsetstore(scene, *shlex.split(command)))
        return bool(told)

    wait_until(is_done, timeout=60)
    return f"the supervisor named {place}; {told[0].splitlines()[-1]}"


def _at_a_point(scene: Scene, members: Members) -> str:
    point = scene.random.choice(POINTS)
    nth = scene.random.randint(1, 4)
    victim = scene.random.choice(members.kept).replace(failpoint=f"{point}:{nth}")
    wait_until(lambda: victim.exit_status is not None, timeout=120)
    return f"member {victim.pid} got SIGKILL at {point}:{nth}"


def _at_random(scene: Scene, members: Members) -> str:
    one = scene.random.choice(members.kept)
    one.wait_until_begun()
    one.delay = scene.random.uniform(0, 3)
    return f"member {one.kill()} got SIGKILL"


def _all(scene: Scene, members: Members) -> str:
    for one in members.kept:
        one.delay = scene.random.uniform(0, 2)
    return f"members {[one.kill() for one in members.kept]} got SIGKILL"


def _frozen(scene: Scene, members: Members) -> str:
    one = scene.random.choice(members.kept)
    if scene.random.random() < 0.5:
        point = f"{scene.random.choice(POINTS)}:{scene.random.randint(1, 4)}"
        victim = one.replace(failpoint=f"{point}:stop")
    else:
        point = "a random moment"
        victim = one.wait_until_begun()
        os.kill(victim.pid, signal.SIGSTOP)
    wait_until(lambda: stands(victim.pid), timeout=120)
    seconds = scene.random.choice([scene.random.uniform(0, SESSION_TIMEOUT), 1.7 * SESSION_TIMEOUT])
    time.sleep(seconds)
    os.kill(victim.pid, signal.SIGCONT)
    return f"member {victim.pid} was frozen at {point} for {seconds:.1f} s"


def _stopped(scene: Scene, members: Members) -> str:
    one = scene.random.choice(members.kept)
    victim = one.wait_until_begun()
    one.delay = scene.random.uniform(0, 3)
    one.stop(again=True)
    return f"member {victim.pid} got SIGTERM"


def _joined(scene: Scene, members: Members) -> str:
    one = members.another()
    one.begin()
    victim = one.wait_until_begun()
    time.sleep(scene.random.uniform(0, 3))
    if scene.random.random() < 0.5:
        one.stop()
        return f"a fourth member, {victim.pid}, has come and got SIGTERM"
    one.let_go()
    one.kill()
    return f"a fourth member, {victim.pid}, has come and got SIGKILL"


def _replaced(scene: Scene, members: Members) -> str:
    del scene
    for one in members.kept:
        one.wait_until_begun()  # before that, SIGTERM ends a process as it ends any
        one.stop(again=True)
        one.wait_until_begun()
    return "all members were replaced one by one"


def _claimed(scene: Scene, members: Members) -> str:
    for one in members.kept:
        one.wait_until_begun()
        one.let_go()
    victims = [one.process for one in members.kept]
    broker = Broker({"bootstrap.servers": scene.servers})
    with OffsetStore.connect(scene.url) as store:
        claim = store.claim(scene.group, broker, topics=[scene.topic], mirror_every=0.3)
        assert claim.starting is not None
        starts: dict[TopicPartition, int] = dict(claim.starting.offsets)
        written = sum(write_by_claim(scene, store, claim, starts) for _ in range(2))
        wait_until(lambda: all(one.exit_status is not None for one in victims), timeout=60)
        told = f"a claim has fenced {[one.pid for one in victims]}, and written {written} records"
        if scene.random.random() < 0.5:
            claim.close()
            for one in members.kept:
                one.begin()
            return f"{told}; then it was closed"
        members.takeover = "fence"
        for one in members.kept:
            one.begin()
        for one in members.kept:
            one.wait_until_begun()
        members.takeover = "refuse"
        try:
            late = write_by_claim(scene, store, claim, starts)
        except StaleClaim:
            return f"{told}; then members have fenced it"
        finally:
            claim.close()
        raise Violation(f"{told}; fenced by members, it has written {late} more")


_EVENTS: Final = (*[_at_a_point] * 3, *[_at_random] * 2, _all, *[_frozen] * 2, _stopped, _joined, _replaced, _claimed)

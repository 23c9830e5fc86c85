"""``make soak``: two jobs for half an hour, one random fault every few seconds, and what is left of memory at the end.

Both jobs read Kafka into one PostgreSQL. The *survivor* is never killed: its process meets restarts of the database
and of the broker, terminated backends, lost COMMITs and locks, and its job is started again in the same process when it
ends with an error. So what it leaks would add up: its memory and connections at the end are held against those after
five minutes. The *victim* is killed, stopped and fenced as well.
"""

from __future__ import annotations

import json
import random
import statistics
import time
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import psycopg

from tests.faults.chaos.harness.job import Way
from tests.faults.chaos.harness.registry import Fault
from tests.faults.chaos.harness.run import Stage
from tests.faults.chaos.harness.scene import Scene, Supervisor
from tests.faults.chaos.means.breaking import terminate_others
from tests.support.checkout import commit_of
from tests.support.proxy import CommitProxy, Lost

_ROOT = Path(__file__).parents[4]
_TOLERANCE = 0.10
_SETTLED = 300.0
"""Seconds after which memory is measured for the first time."""

_MEASURED = 60.0
"""Seconds over which a measurement is taken: the middle of several, since a garbage collector has its own times."""

_ONE_A_START = ("Python's threads", "Python's open files")
"""py4j keeps one of each for the thread of each query that has run."""

_NOT_HELD = ("Java's threads", "Java's open files")
"""Spark's own pools are as large as the most that it has had to do."""

_RATE = 40
_PAUSES = (2.0, 6.0)
_ERRORS = (
    "StoreUnavailable", "TransactionLost", "CommitUnknown", "LockTimeout", "BrokerUnavailable", "StaleClaim",
    "StreamingQueryException", "TopicMissing",
)  # fmt: skip


@dataclass
class Soak:
    """One soak.

    ``measured`` holds what the survivor's process and the database use, by name, after five minutes and at the end;
    ``started`` how often its job had been started by then.
    """

    stage: Stage
    seed: int
    seconds: float
    say: Callable[[str], None]
    faults: list[str] = field(default_factory=list[str])
    measured: list[dict[str, float]] = field(default_factory=list[dict[str, float]])
    started: list[int] = field(default_factory=list[int])

    def run(self) -> dict[str, Any]:
        self.stage.pool.most_work = 10_000
        dice = random.Random(self.seed)  # noqa: S311 - to be repeated
        begin = time.monotonic()
        violations: list[str] = []
        with ExitStack() as stack:
            survivor = stack.enter_context(self._scene("survivor", "batch"))
            victim = stack.enter_context(self._scene("victim", "partition"))
            proxy = stack.enter_context(CommitProxy(survivor.url))
            try:
                patient = {"records_per_trigger": 120, "timeouts": {"lock": 3.0}}
                with (
                    survivor.producing(_RATE),
                    victim.producing(_RATE),
                    survivor.supervise(url=proxy.url, **patient) as ours,
                    victim.supervise(**patient) as theirs,
                ):
                    self._break(dice, begin, ours, theirs, proxy)
                for scene in (survivor, victim):
                    scene.produce(100)
                with survivor.supervise(records_per_trigger=600), victim.supervise(records_per_trigger=600):
                    survivor.caught_up(120)
                    victim.caught_up(120)
            except AssertionError as error:
                violations.append(f"{type(error).__name__}: {error}\n{traceback.format_exc(limit=-6)}")
            for scene in (survivor, victim):
                scene.fired(f"{len(self.faults)} faults")
                violations += scene.verify()
            violations += self._grown()
        return {
            "fault": "soak",
            "seed": self.seed,
            "commit": self.stage.commit,
            "minutes": round((time.monotonic() - begin) / 60, 1),
            "faults": {name: self.faults.count(name) for name in sorted(set(self.faults))},
            "records": survivor.ledger.count + victim.ledger.count,
            "looks": survivor.observer.count + victim.observer.count,
            "starts": {"survivor": len(survivor.jobs), "victim": len(victim.jobs)},
            "measured": self.measured,
            "violations": violations,
        }

    def _scene(self, name: str, way: Way) -> Scene:
        fault = Fault(f"soak-{name}", "soak", "random faults", "all", (way,), "", 3, 1, lambda _: None)
        scene = self.stage.scene(fault, way, self.seed)
        scene.expect(*_ERRORS)
        return scene

    def _break(
        self, dice: random.Random, begin: float, ours: Supervisor, theirs: Supervisor, proxy: CommitProxy
    ) -> None:
        survivor, victim = ours.scene, theirs.scene
        for one in (ours, theirs):
            one.job.wait_for("done", timeout=120)
        faults: dict[str, Callable[[], object]] = {
            "database stopped fast": lambda: survivor.postgres.restart("fast"),
            "database crashed": lambda: survivor.postgres.restart("immediate"),
            "backends terminated": lambda: terminate_others(survivor),
            "COMMIT lost": lambda: _lose(proxy, Lost.COMMIT),
            "answer to COMMIT lost": lambda: _lose(proxy, Lost.ANSWER),
            "rows locked": lambda: _lock(survivor, dice.uniform(0.5, 4)),
            "broker killed": lambda: _restart_broker(survivor),
            "driver killed": theirs.kill,
            "driver stopped": lambda: _freeze(theirs, dice.uniform(0.5, 3)),
            "driver fenced": lambda: _fence(victim),
        }
        weights = [2, 2, 6, 6, 6, 6, 1, 3, 4, 3]
        while (passed := time.monotonic() - begin) < self.seconds:
            if not self.measured and passed > _SETTLED:
                self.measured.append(self._measure(ours))
            [name] = dice.choices(list(faults), weights)
            faults[name]()
            self.faults.append(name)
            behind = sum(survivor.ends().values()) - sum(survivor.stored().values())
            self.say(f"{passed:5.0f} s  {name}; the survivor has {behind} records to go, start {len(ours.jobs)}")
            time.sleep(dice.uniform(*_PAUSES))
        self.measured.append(self._measure(ours))

    def _measure(self, supervisor: Supervisor) -> dict[str, float]:
        """What the survivor uses: the middle of several looks, each after a garbage collection."""
        found: list[dict[str, float]] = []
        deadline = time.monotonic() + _MEASURED
        while time.monotonic() < deadline:
            job = supervisor.job
            job.wait_for("done", job.batches_done + 1)
            found.append({name: float(value) for name, value in job.measure().items()})
            time.sleep(3)
        middle = {name: statistics.median(one[name] for one in found) for name in found[0]}
        self.started.append(len(supervisor.jobs))
        self.say(f"        the survivor uses {middle}")
        return middle

    def _grown(self) -> list[str]:
        if len(self.measured) < 2:
            return ["memory was not measured twice"]
        first, last = self.measured[0], self.measured[-1]
        starts = self.started[-1] - self.started[0]
        allowed = {
            name: before * (1 + _TOLERANCE) + (starts if name in _ONE_A_START else 0)
            for name, before in first.items()
            if name not in _NOT_HELD
        }
        return [
            f"{name} grew from {first[name]:.0f} to {last[name]:.0f}"
            for name, most in allowed.items()
            if last[name] > most + 1e-9
        ]


def _lose(proxy: CommitProxy, lost: Lost) -> None:
    with proxy.losing(lost) as fired:
        assert fired.wait(60), "no COMMIT came by"


def _lock(scene: Scene, seconds: float) -> None:
    with psycopg.connect(scene.url) as connection:
        connection.execute("SET lock_timeout = '10s'")
        connection.execute("SELECT 1 FROM kafka_partitions WHERE partition = 1 FOR UPDATE")
        time.sleep(seconds)
        connection.rollback()


def _restart_broker(scene: Scene) -> None:
    scene.kafka.kill()
    scene.kafka.start()


def _freeze(supervisor: Supervisor, seconds: float) -> None:
    victim = supervisor.job
    if not victim.has_ended:
        victim.freeze()
        time.sleep(seconds)
        victim.thaw()


def _fence(scene: Scene) -> None:
    other = scene.start()
    other.wait_for("claimed")
    other.stop()


@click.command()
@click.option("--minutes", default=35.0, show_default=True, help="How long faults are made.")
@click.option("--seed", default=1, show_default=True)
@click.option("--output", type=click.Path(file_okay=False, path_type=Path), default=_ROOT / "build" / "chaos")
@click.pass_context
def soak(context: click.Context, *, minutes: float, seed: int, output: Path) -> None:
    """Run two jobs under random faults. One JSON line goes to OUTPUT/soaks.jsonl; exit code 1 if it fails."""
    output.mkdir(parents=True, exist_ok=True)
    with Stage(output / "soak", commit=commit_of(_ROOT)) as stage:
        line = Soak(stage, seed, minutes * 60, click.echo).run()
    with (output / "soaks.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")
    click.echo(json.dumps(line, indent=2))
    context.exit(1 if line["violations"] else 0)


if __name__ == "__main__":
    soak()

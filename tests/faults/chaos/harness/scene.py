"""One run of one fault: a topic, a database and a group of its own, and what a fault may do with them."""

from __future__ import annotations

import random
import re
import signal
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event as Flag
from threading import Thread
from typing import Any, Self
from uuid import uuid4

from offsetstore.errors import OffsetStoreError
from offsetstore.kafka import admin
from offsetstore.local.kafka import KafkaBroker
from offsetstore.local.postgres import PostgresServer
from offsetstore.testing.fixtures import copy_database
from offsetstore.testing.job_process import OutputLine
from tests.faults.chaos.harness.clusters import Kind
from tests.faults.chaos.harness.errors import Report
from tests.faults.chaos.harness.expected import Stretch
from tests.faults.chaos.harness.job import Way, Work
from tests.faults.chaos.harness.ledger import Ledger
from tests.faults.chaos.harness.mirrored import MirrorWatch, watermarks
from tests.faults.chaos.harness.observer import Observer
from tests.faults.chaos.harness.process import TARGETS, JobPool, JobProcess, Target
from tests.faults.chaos.harness.registry import Fault
from tests.faults.chaos.harness.tables import DDL, TRIGGER, migrate
from tests.faults.chaos.harness.verifier import Told, Verifier
from tests.support.background import repeating
from tests.support.postgres import Database
from tests.support.waiting import wait_until

RATE = 60
"""Records a second of `Scene.producing`: about what a job writes that is disturbed all the time."""

RECOVERY = 60.0
"""I8: within so many seconds after the fault is gone the job has caught up."""

_PAUSE = 0.2


class Violation(AssertionError):
    """An invariant that the run itself saw violated."""


class Job:
    """One piece of work of one process: from its claim to its end."""

    def __init__(self, scene: Scene, process: JobProcess, work: Work) -> None:
        self.work = work
        self.process = process
        self.pid, self.jvm = process.pid, process.jvm
        self.was_killed = False
        self._scene = scene
        self._since = len(process.events)
        self._until: int | None = None
        self._frozen = False
        process.send(work)

    @property
    def events(self) -> list[OutputLine]:
        return self.process.events[self._since : self._until]

    def wait_for(self, kind: str, count: int = 1, timeout: float = 60) -> OutputLine:
        """Wait for the ``count``th event of a kind: claimed, begun, done, reached, failed, ended."""
        return self.process.wait_for(kind, count=count, since=self._since, timeout=timeout)

    def told(self, kind: str) -> list[OutputLine]:
        return [event for event in self.events if event.kind == kind]

    @property
    def batches_done(self) -> int:
        return len(self.told("done"))

    @property
    def under_way(self) -> int:
        return len(self.told("begun")) - self.batches_done

    @property
    def claim_id(self) -> str:
        return str(self.wait_for("claimed").what["claim_id"])

    @property
    def epoch(self) -> int:
        return int(self.wait_for("claimed").what["epoch"])

    @property
    def error(self) -> Report | None:
        failed = self.told("failed")
        return Report(**failed[0].what) if failed else None

    def tells_of_the_kill(self, event: OutputLine) -> bool:
        """Whether one half of it tells that the other is gone, which says nothing of a transaction under way."""
        return event.kind == "failed" and self.was_killed and not event.what["ours"]

    @property
    def has_ended(self) -> bool:
        return self._until is not None or bool(self.told("ended")) or not self.process.is_alive

    def measure(self) -> dict[str, int]:
        count = len(self.told("measured"))
        self.process.ask("measure")
        return self.wait_for("measured", count + 1).what["uses"]

    def kill(self, target: Target) -> None:
        self.was_killed = True
        self.process.signal(target, signal.SIGKILL)

    def freeze(self) -> None:
        """Stop both processes as they stand; their connections stay open."""
        self._frozen = True
        self.process.signal("both", signal.SIGSTOP)

    def thaw(self) -> None:
        self._frozen = False
        self.process.signal("both", signal.SIGCONT)

    def stop(self) -> None:
        if not self.has_ended:
            self.process.ask("stop")
            self.wait_for("ended")
        self.close()

    def finish(self) -> None:
        """Wait until it has ended by itself."""
        self.wait_for("ended")
        self.close()

    def close(self) -> None:
        """Give the process back, or end it if it can't be used again."""
        if self._until is not None:
            return
        self._until = len(self.process.events)
        if self._frozen:
            self.thaw()
        # One with a failpoint has counted, here and in its workers.
        if any(event.kind == "ended" for event in self.process.events[self._since :]) and not self.work.failpoint:
            self._scene.pool.give_back(self.process)
        else:
            self._scene.pool.discard(self.process)
            self._until = len(self.process.events)


class Supervisor:
    """Starts the job again whenever it has ended, as a process manager would; a context manager."""

    def __init__(self, scene: Scene, settings: dict[str, Any]) -> None:
        self.settings = settings
        self.jobs: list[Job] = []
        self.scene = scene
        self._leaving = Flag()
        self._failure: BaseException | None = None
        self._thread = Thread(target=self._watch, daemon=True)

    @property
    def job(self) -> Job:
        wait_until(lambda: self.jobs or self._failure, timeout=120)
        if self._failure is not None:
            raise self._failure
        return self.jobs[-1]

    def next_job(self, after: Job) -> Job:
        wait_until(lambda: self.jobs and self.jobs[-1] is not after)
        return self.jobs[-1]

    def kill(self, target: Target | None = None, seen: str = "", meanwhile: Callable[[], object] = lambda: None) -> Job:
        """Kill the job that runs, Python, Java or both by chance; return the next one."""
        victim, target = self.job, target or self.scene.random.choice(TARGETS)
        seen = seen or f"{victim.under_way} batches under way"
        at = self.scene.stored()
        victim.kill(target)
        self.scene.fired(f"{target} of job {victim.pid} got SIGKILL, {seen}, stored {at}")
        meanwhile()
        return self.next_job(victim)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._leaving.set()
        self._thread.join(180)
        assert not self._thread.is_alive(), "the supervisor hangs"
        if kind is None and self._failure is not None:
            raise self._failure
        if kind is None and self.jobs:
            self.jobs[-1].stop()

    def _watch(self) -> None:
        try:
            while not self._leaving.is_set():
                job = self.scene.start(**self.settings)
                self.jobs.append(job)
                # A failpoint is for the first job: those after it shall come through.
                self.settings.pop("failpoint", None)
                while not job.has_ended and not self._leaving.wait(0.02):
                    pass
                if job.has_ended:
                    job.close()
                    self._leaving.wait(_PAUSE)
        except BaseException as error:  # noqa: BLE001 - it is raised where the block is left
            self._failure = error


@dataclass
class Scene:
    """A context manager; see the cases for how it is used.

    ``told`` is what others than jobs have told (members of a fleet), ``noted`` are violations that the fault itself has
    seen, to be told with those that `verify` finds.
    """

    fault: Fault
    way: Way
    seed: int
    postgres: PostgresServer
    kafka: KafkaBroker
    pool: JobPool
    template: str
    directory: Path
    evidence: list[str] = field(default_factory=list[str])
    recovery: float | None = None
    jobs: list[Job] = field(default_factory=list[Job])
    before: Sequence[Stretch] = ()
    lost_since: float = 0.0
    told: list[Told] = field(default_factory=list[Told])
    noted: list[str] = field(default_factory=list[str])
    _expected: set[str] = field(default_factory=set[str])
    _allowed: set[str] = field(default_factory=set[str])
    _look: Database | None = None

    def __post_init__(self) -> None:
        name = uuid4().hex[:12]
        self.random = random.Random(f"{self.fault.name} {self.way} {self.seed}")  # noqa: S311 - to be repeated
        self.variant = self.fault.variant
        self.partitions = self.fault.partitions
        self.topic, self.group = f"payments-{name}", f"billing-{name}"
        self.topics = [self.topic]
        self.directory.mkdir(parents=True, exist_ok=True)
        self.checkpoints = str(self.directory / "checkpoints")
        self._database_name = f"fault_{name}"
        self.servers = self.kafka.bootstrap_servers
        self.url = copy_database(self.postgres, self._database_name, template=self.template)
        admin.create_topic(self.servers, self.topic, partitions=self.partitions)
        self.ledger = Ledger(self.servers, random.Random(self.random.random()))  # noqa: S311 - the same
        self.at_end = ExitStack()
        self._stage_postgres = self.postgres
        self._prepare()

    # -- what a fault may use

    @property
    def database(self) -> Database:
        """The run's database, seen from outside; connected anew where the server has been away."""
        if self._look is None or not self._look.is_connected:
            self._look = Database(self.url)
        return self._look

    def use_postgres(self, server: PostgresServer) -> None:
        """Do all that follows on another server, where nothing is yet; before the first job. Its end is the fault's."""
        self._stop_watching()
        self.database.close()
        self._look = None
        self.postgres = server
        self.url = server.create_database(self._database_name)
        migrate(self.url)
        self._prepare()
        self._watch()

    def use_kafka(self, servers: str) -> None:
        """Do all that follows with another cluster, which has the topic; before anything was produced."""
        self.servers = self.ledger.servers = servers
        self.mirror_watch.__exit__()
        self.mirror_watch = MirrorWatch(self)
        self.mirror_watch.__enter__()

    def produce(self, count: int = 150, *, partition: int | None = None, topic: str | None = None) -> None:
        self.ledger.produce(topic or self.topic, count, partitions=self.partitions, partition=partition)

    def producing(self, rate: int = RATE) -> AbstractContextManager[None]:
        """Append records in the background until the block is left."""
        return repeating(lambda: self.produce(max(1, rate // 10)), every=0.1)

    def start(self, **settings: Any) -> Job:
        """Start one job; the settings are `Work`'s, and those not given are the run's.

        Beside them ``kind``, of its process; see `tests.faults.chaos.harness.clusters`.
        """
        kind: Kind = settings.pop("kind", "local")
        given: dict[str, Any] = {
            "url": self.url,
            "servers": self.servers,
            "topics": self.topics,
            "group": self.group,
            "base": self.checkpoints,
            "way": self.way,
        }
        work = Work(**{**given, **settings})
        job = Job(self, self.pool.take(fresh=work.failpoint is not None, kind=kind), work)
        self.jobs.append(job)
        return job

    def supervise(self, **settings: Any) -> Supervisor:
        """Start the job again and again, until the block is left; then the last one is stopped in order."""
        return Supervisor(self, dict(settings))

    @contextmanager
    def living(self, **settings: Any) -> Generator[Job]:
        """A job that lives on to the end of the block, and catches up there; a supervisor would start another one.

        Beside the settings ``within``, for `caught_up`.
        """
        within = settings.pop("within", RECOVERY)
        with self.supervise(**settings) as supervisor:
            yield supervisor.job
            self.caught_up(within)
            assert len(supervisor.jobs) == 1, "the job was to live on"

    def catch_up(self, count: int = 0, /, **settings: Any) -> None:
        """Append records, and see one more job read all there is; it is stopped in order.

        Beside the settings ``to``: returns other offsets than the logs' ends.
        """
        to: Callable[[], Mapping[int, int]] | None = settings.pop("to", None)
        with self.supervise(**settings):
            self.produce(count)
            self.caught_up(to=None if to is None else to())

    def run_once(self, count: int, /, **settings: Any) -> dict[int, int]:
        """Append records, and let a job read them and end in order; return what is stored."""
        self.produce(count)
        job = self.start(**settings)
        self.caught_up()
        job.stop()
        return self.stored()

    def kill(self, job: Job, target: Target | None = None) -> None:
        """Kill a job that nobody supervises, Python, Java or both by chance."""
        target = target or self.random.choice(TARGETS)
        job.kill(target)
        job.close()
        self.fired(f"{target} of job {job.pid} got SIGKILL after {job.batches_done} batches, stored {self.stored()}")

    def refused(self, *class_names: str, **settings: Any) -> Report:
        """See a start end with one of these errors and leave the offsets as they are; give its process back."""
        before = self.stored()
        job = self.start(**settings)
        report = self.expect_error(job, *class_names, timeout=120)
        job.finish()
        assert self.stored() == before, f"it has written: {report.text}"
        self.fired(f"job {job.pid} was refused at {before}: {report.text}")
        return report

    def stored(self, topic: str | None = None) -> dict[int, int]:
        return stored_in(self.database, self.group, topic or self.topic)

    def ends(self, topic: str | None = None, **settings: Any) -> dict[int, int]:
        return {number: high for number, (_, high) in watermarks(self.servers, topic or self.topic, **settings).items()}

    def caught_up(self, timeout: float = RECOVERY, *, to: Mapping[int, int] | None = None) -> None:
        """Wait until all that Kafka has is stored (I8); the most seconds that it took are kept.

        :param to: other offsets than the logs' ends.
        """
        begin = time.monotonic()
        wanted = {name: dict(to) if to is not None and name == self.topic else self.ends(name) for name in self.topics}

        def is_there() -> bool:
            with suppress(Exception):
                return all(self.stored(name) == ends for name, ends in wanted.items())
            return False

        try:
            wait_until(is_there, timeout=timeout)
        except AssertionError:
            errors = [f"{job.error.class_name}: {job.error.text[:600]}" for job in self.jobs if job.error]
            alive = [job.pid for job in self.jobs if not job.has_ended]
            last = self.jobs[-1].process.end_of_log[-1500:] if self.jobs else ""
            raise Violation(
                f"I8: not caught up within {timeout:.0f} s: stored {self.stored()}, wanted {wanted}; "
                f"jobs running {alive}; errors {errors[-3:]}\n{last}"
            ) from None
        self.recovery = max(self.recovery or 0.0, time.monotonic() - begin)

    def fired(self, evidence: str) -> None:
        self.evidence.append(evidence)

    def expect(self, *class_names: str) -> None:
        """Say which errors this fault may lead to."""
        self._expected |= set(class_names)

    def expect_error(self, job: Job, *class_names: str, timeout: float = 60) -> Report:
        """Wait until the job fails, with just this error, or one of these."""
        self.expect(*class_names)
        job.wait_for("failed", timeout=timeout)
        report = job.error
        assert report is not None
        if report.class_name not in class_names:
            raise Violation(
                f"the job failed with {report.class_name} instead of {' or '.join(class_names)}: {report.text}"
            )
        return report

    def allow(self, *events: str) -> None:
        """Say which decisions this fault may leave in the history."""
        self._allowed |= set(events)

    # -- begin and end

    def __enter__(self) -> Self:
        self._watch()
        return self

    def _prepare(self) -> None:
        """Make the results' tables and the log of moves, to be watched."""
        self.database.execute(DDL)
        self.database.execute(TRIGGER)
        self.observer, self.mirror_watch = Observer(self.url), MirrorWatch(self)

    def _watch(self) -> None:
        self.observer.__enter__()
        self.mirror_watch.__enter__()

    def verify(self) -> list[str]:
        for job in self.jobs:
            if not job.has_ended:
                job.stop()
        wait_until(lambda: self.observer.looks and self.observer.looks[-1].last > time.monotonic() - 1)
        seen = time.monotonic()
        wait_until(lambda: self.observer.looks[-1].last > seen)
        self.mirror_watch.look()
        self._stop_watching()
        told = [*self.told, *(Told(job.work.group, job.work.way, _own(job)) for job in self.jobs)]
        watched, allowed = self.observer.looks, self._allowed
        verifier = Verifier(self.ledger, self.database, watched, told, allowed, self.before, self.lost_since)
        violations = [*self.noted, *verifier.verify(), *self._errors()]
        violations += [f"I7: {one}" for one in self.mirror_watch.ahead[:3]]
        return violations if self.evidence else [*violations, "there is no evidence that the fault happened"]

    def _errors(self) -> list[str]:
        found: list[str] = []
        for job in self.jobs:
            for event in job.told("failed"):
                report = Report(**event.what)
                if job.tells_of_the_kill(event) or (job.was_killed and _is_of_java(report)):
                    continue  # a half of it has lost the other
                if report.class_name not in self._expected:
                    found.append(f"unexpected {report.class_name}: {report.text[:1500]}")
                elif lacks := report.lacks(self.topics):
                    found.append(f"{report.class_name} does not say {' or '.join(lacks)}: {report.text[:400]}")
        return found

    def _stop_watching(self) -> None:
        self.observer.__exit__()
        self.mirror_watch.__exit__()

    def __exit__(self, *_: object) -> None:
        self._stop_watching()
        for job in self.jobs:
            job.close()
        self.ledger.close()
        self.at_end.close()
        if self._look is not None:
            with suppress(Exception):
                self._look.close()
        if self._stage_postgres.pid is None:
            self._stage_postgres.start()
        self._stage_postgres.drop_database(self._database_name)
        self.kafka.start()
        for topic in self.topics:
            with suppress(OffsetStoreError):
                admin.delete_topic(self.kafka.bootstrap_servers, topic)


def stored_in(database: Database, group: str, topic: str) -> dict[int, int]:
    found = database.rows("SELECT consumer_group, topic, partition, next_offset FROM kafka_partitions")
    return {partition: offset for g, t, partition, offset in found if (g, t) == (group, topic)}


def _own(job: Job) -> list[OutputLine]:
    return [event for event in job.events if not job.tells_of_the_kill(event)]


def _is_of_java(report: Report) -> bool:
    """Whether it is the sink's word for a Java that does not answer."""
    return report.class_name == "SinkError" and bool(
        re.search(r"Py4J|Connection\w+Error|BrokenPipe", report.found or "")
    )

"""Each mistake of the table, and all that is printed then."""

from __future__ import annotations

import gc
import logging
import os
import re
import runpy
import shlex
import signal
import sys
import time
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from socket import socketpair
from typing import TypeAlias, TypeVar
from uuid import uuid4

import click
import psutil
import psycopg
import pytest
from click.testing import CliRunner

from offsetstore import OffsetStore
from offsetstore.cli.commands import cli
from offsetstore.cli.consume_process import ConsumerProcess, Told, Watched, run_told
from offsetstore.kafka import admin
from offsetstore.local.kafka import KafkaBroker
from offsetstore.local.servers import free_port
from offsetstore.monitoring.page import Page
from offsetstore.postgres.grants import grant_runtime
from offsetstore.testing import StaticBroker
from offsetstore.testing.fixtures import NewTopic
from offsetstore.testing.job_process import JobProcess
from offsetstore.text import ERROR_LINES
from tests.integration.mistakes.table import (
    COMMANDS,
    CONSUMERS,
    CONSUMERS_ON_KAFKA,
    INTERRUPTED,
    JOBS,
    ON_KAFKA,
    Command,
    Consuming,
    Edited,
    Job,
    Mistake,
)
from tests.support.examples import environment_of_spark
from tests.support.modules import forgotten
from tests.support.readme import FILES
from tests.support.waiting import wait_until

COMMAND_SECONDS = 10.0  # whoever makes a mistake waits no longer for its answer
SECONDS = 180.0  # a job starts a Spark of its own
_M = TypeVar("_M", bound=Mistake)
Printed: TypeAlias = Callable[[], str]


def each(mistakes: Sequence[_M]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    marked = [pytest.param(one, id=one.name, marks=pytest.mark.behaviour("DX-9", *one.behaviours)) for one in mistakes]
    return pytest.mark.parametrize("mistake", marked)


class Names:
    """What the words in braces stand for."""

    def __init__(self, url: str, **others: str) -> None:
        self.role = f"role_{uuid4().hex[:8]}"
        at = {"url": url, "role_url": url.replace("//postgres@", f"//{self.role}@"), "database": url.rpartition("/")[2]}
        job = "; ".join(grant_runtime(self.role, schema="public"))
        self._names = {"role": self.role, "dead": f"127.0.0.1:{free_port()}", "job": job, **at, **others}

    def add(self, **others: str) -> None:
        self._names |= others

    def in_(self, text: str) -> str:
        return re.sub(r"\{(\w+)\}", lambda found: self._names.get(found[1], found[0]), text)

    @contextmanager
    def prepared(self, mistake: Mistake, *, has_job: bool) -> Generator[None]:
        """Run what comes before, as the owner of the tables.

        :param has_job: whether a live job has claimed ``billing``; for a command, on a broker of its own.
        """
        with psycopg.connect(self._names["url"], autocommit=True) as owner, ExitStack() as live:
            owner.execute(f"CREATE ROLE {self.role} LOGIN".encode())
            owner.execute(self.in_(mistake.before).encode())
            if has_job:
                store = live.enter_context(OffsetStore.connect(self._names["url"]))
                broker = StaticBroker.with_topics({"payments": 1}) if isinstance(mistake, Command) else None
                live.enter_context(store.claim("billing", broker, topics=["payments"], mirror_every=None))
            yield
            live.close()
            owner.execute(f"DROP OWNED BY {self.role}; DROP ROLE {self.role}".encode())


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str]) -> Iterator[Printed]:
    """All that goes to standard error, with what is logged, as in a process that sets up no logging."""
    log = logging.getLogger("offsetstore")
    assert logging.lastResort is not None
    log.addHandler(logging.lastResort)
    yield lambda: capsys.readouterr().err
    log.removeHandler(logging.lastResort)


def check(mistake: Mistake, names: Names, code: object, text: str) -> None:
    expected, lines = mistake.ends
    assert code == expected, text
    assert len(text.splitlines()) <= min(lines, ERROR_LINES), text
    assert re.search(".*".join(map(re.escape, names.in_(mistake.told).split(" ... "))), text, re.DOTALL), text
    assert "Traceback" not in text
    assert "canary" not in text
    for command in re.findall(r"`(offsetstore [^`]*)`", text):
        expect_valid(shlex.split(command)[1:])


def expect_valid(words: list[str]) -> None:
    """Expect that a command could be run as it is printed: it is parsed, with the variables of README's first steps.

    :raises click.UsageError: it can't be.
    """
    with CliRunner(env={"OFFSETSTORE_URL": "postgresql://x", "OFFSETSTORE_BOOTSTRAP_SERVERS": "x:1"}).isolation():
        command: click.Command = cli
        context = None
        while isinstance(command, click.Group):
            context = command.make_context(command.name, words, parent=context)
            _, found, words = command.resolve_command(context, [*context._protected_args, *context.args])
            assert found is not None
            command = found
        command.make_context(command.name, words, parent=context)


# -- commands


def run(command: Command, names: Names) -> tuple[int, str]:
    environment = {"OFFSETSTORE_URL": None if command.url is None else names.in_(command.url)}
    started = time.monotonic()
    result = CliRunner(env=environment).invoke(cli, shlex.split(names.in_(command.line)), prog_name="offsetstore")
    assert time.monotonic() - started < COMMAND_SECONDS
    return result.exit_code, result.output


@each(COMMANDS)
def test_a_command(mistake: Command, request: pytest.FixtureRequest) -> None:
    url: str = request.getfixturevalue(f"offsetstore_{'empty_' if mistake.prepared == 'nothing' else ''}database")
    names = Names(url)
    if mistake.lacks:
        with forgotten("offsetstore.cli.dashboard", "offsetstore.monitoring.dashboard", lacking=mistake.lacks):
            code, text = run(mistake, names)
        check(mistake, names, code, text)
        return
    with names.prepared(mistake, has_job=mistake.prepared == "group"):
        check(mistake, names, *run(mistake, names))


@each(ON_KAFKA)
def test_a_command_that_asks_kafka(
    mistake: Command, offsetstore_database: str, offsetstore_kafka: KafkaBroker, offsetstore_topic: NewTopic
) -> None:
    servers = {"kafka": offsetstore_kafka.bootstrap_servers, "sasl": offsetstore_kafka.sasl_bootstrap_servers}
    names = Names(offsetstore_database, topic=offsetstore_topic(1), group="billing", **servers)
    with names.prepared(mistake, has_job=False):
        check(mistake, names, *run(mistake, names))


# -- README's code


@pytest.fixture
def project(offsetstore_database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Names:
    """A directory for README's code, with its variables. No broker answers."""
    names = Names(offsetstore_database, topic="payments")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "billing_app", raising=False)
    monkeypatch.setenv("OFFSETSTORE_URL", offsetstore_database)
    monkeypatch.setenv("OFFSETSTORE_BOOTSTRAP_SERVERS", names.in_("{dead}"))
    monkeypatch.setenv("CHECKPOINTS", str(tmp_path / "checkpoints"))
    return names


@pytest.fixture
def on_kafka(
    project: Names, offsetstore_kafka: KafkaBroker, offsetstore_topic: NewTopic, monkeypatch: pytest.MonkeyPatch
) -> Names:
    """The same, with a broker and a topic."""
    monkeypatch.setenv("OFFSETSTORE_BOOTSTRAP_SERVERS", offsetstore_kafka.bootstrap_servers)
    project.add(topic=offsetstore_topic(1))
    return project


def produce(mistake: Edited, names: Names) -> None:
    records = [admin.NewRecord(value, key=b"ada") for value in mistake.records]
    admin.produce(os.environ["OFFSETSTORE_BOOTSTRAP_SERVERS"], names.in_("{topic}"), records)


def write(name: str, mistake: Edited, names: Names) -> Path:
    """Write one of README's files, with the test's topic and the edits."""
    code = FILES[name]
    of_topic = [(f'{where}"payments"', f'{where}"{{topic}}"') for where in ('"subscribe": ', "topics=[")]
    for old, new in [*(pair for pair in of_topic if pair[0] in code), *mistake.edits]:
        assert code.count(old) == 1, old
        code = code.replace(old, new)
    Path(name).write_text(names.in_(code), encoding="utf-8")
    return Path(name)


def consume(mistake: Consuming, names: Names, printed: Printed) -> None:
    """Run it as `offsetstore consume` does in each of its processes."""
    write("billing_app.py", mistake, names)
    before = signal.getsignal(signal.SIGTERM)
    page, (ours, theirs) = Page.make(), socketpair()
    with names.prepared(mistake, has_job=mistake.has_job), ours, Connection(theirs.detach()) as reports:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)  # README leaves its store to the end of the process
            told = Told(mistake.function, 0, 1, is_static=False, has_metrics=False)
            end = run_told(told, ConsumerProcess(told, reports, watched := Watched(page)), watched)
            gc.collect()
        check(mistake, names, end.code, printed())
    page.close()
    signal.signal(signal.SIGTERM, before)


@each(CONSUMERS)
def test_a_consumer(mistake: Consuming, project: Names, printed: Printed) -> None:
    consume(mistake, project, printed)


@each(CONSUMERS_ON_KAFKA)
def test_a_consumer_on_kafka(mistake: Consuming, on_kafka: Names, printed: Printed) -> None:
    produce(mistake, on_kafka)
    consume(mistake, on_kafka, printed)


@each(JOBS)
@pytest.mark.usefixtures("offsetstore_spark")
def test_a_job(mistake: Job, on_kafka: Names, printed: Printed) -> None:
    script = write("job.py", mistake, on_kafka)
    produce(mistake, on_kafka)
    with on_kafka.prepared(mistake, has_job=mistake.has_job):
        code: object = 0
        try:
            runpy.run_path(str(script), run_name="__main__")
        except SystemExit as ended:
            code = ended.code
        check(mistake, on_kafka, code, printed())


@each(INTERRUPTED)
def test_a_job_that_is_interrupted(mistake: Job, project: Names) -> None:
    """Whole, in a process of its own: with what Java writes."""
    script = write("job.py", mistake, project)
    with JobProcess([script], Path("log"), environment=environment_of_spark()) as job:
        wait_until(lambda: has_begun(job, mistake.once), timeout=SECONDS)
        os.killpg(job.pid, signal.SIGINT)  # as a terminal does it
        wait_until(lambda: job.exit_status is not None, timeout=SECONDS)
        job.finish_reading()
        check(mistake, project, job.exit_status, Path("log").read_text(encoding="utf-8"))


def has_begun(job: JobProcess, what: str) -> bool:
    assert job.exit_status is None, job.end_of_log
    if what != "java":
        return Path(what).exists()
    for child in psutil.Process(job.pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # it may have ended meanwhile
            if child.name() == what:
                return True
    return False


def test_there_are_forty() -> None:
    names = [one.name for one in (*COMMANDS, *ON_KAFKA, *CONSUMERS, *CONSUMERS_ON_KAFKA, *JOBS, *INTERRUPTED)]
    assert len(names) == len({*names}) >= 40

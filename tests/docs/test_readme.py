"""README's first steps run as they are pasted, on a real Kafka, Spark and PostgreSQL; and how its job ends."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path

import pytest
from sqlalchemy import BigInteger, Column, MetaData, Table

from offsetstore import OffsetRange, OffsetStore, TopicPartition
from offsetstore.errors import ExitCode
from offsetstore.kafka import admin
from offsetstore.local import stack
from offsetstore.local.kafka import KafkaBroker
from offsetstore.local.spark import quick_conf, spark_conf
from offsetstore.testing.fixtures import NewTopic
from offsetstore.testing.job_process import JobProcess
from tests.support.examples import environment_of_spark
from tests.support.postgres import Database
from tests.support.readme import BLOCKS, FILES, README
from tests.support.waiting import wait_until

PARTS = README.parent / "docs" / "parts.md"
P0 = TopicPartition("events", 0)
EVENTS = Table("events", MetaData(), Column("offset", BigInteger))
SECONDS = 180  # the job starts a Spark of its own


# ``offsetstore``, whose stack is a directory of this test's, with the jars and class archives that are there.
COMMAND = """\
import os, pathlib
from offsetstore.cli.main import main
from offsetstore.local import stack
stack._home = lambda: pathlib.Path(os.environ["STACK"])
main()
"""


class Shell:
    """Into which blocks are pasted, one after the other.

    :param directory: its working directory.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        (directory / "bin").mkdir()
        (command := directory / "bin" / "offsetstore").write_text(f"#!{sys.executable}\n{COMMAND}", encoding="utf-8")
        command.chmod(0o755)
        quick = [word for name, value in quick_conf(spark_conf()).items() for word in ("--conf", f"{name}={value}")]
        self._environment = {
            **os.environ,
            "PATH": os.pathsep.join([str(command.parent), str(Path(sys.executable).parent), os.environ["PATH"]]),
            "PYTHONPATH": str(README.parent),
            "PYSPARK_SUBMIT_ARGS": f"{shlex.join(quick)} pyspark-shell",
            "CHECKPOINTS": str(directory / "checkpoints"),
            "STACK": str(directory / "stack"),
        }
        for name in ("OFFSETSTORE_URL", "OFFSETSTORE_BOOTSTRAP_SERVERS"):
            self._environment.pop(name, None)

    @property
    def url(self) -> str:
        """Of the database, once the shell has it."""
        return self._environment["OFFSETSTORE_URL"]

    def paste(self, text: str) -> str:
        """Run it to its end, which must be a good one, keep its variables, and return what it printed."""
        done = subprocess.run(
            ["bash", "-ec", f"{text}\nenv -0 > variables"],
            cwd=self.directory,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=SECONDS,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        variables = (self.directory / "variables").read_text(encoding="utf-8").split("\0")
        self._environment = dict(variable.split("=", 1) for variable in variables if variable)
        return done.stdout

    def paste_and_interrupt(self, block: str, when: Callable[[JobProcess], bool]) -> int:
        """Run a block whose last command runs until Ctrl-C, which follows the condition; return its exit code."""
        *lines, last = block.splitlines()
        self.paste("\n".join(lines))
        command, *arguments = shlex.split(last)
        script = self.directory / "bin" / command
        log = self.directory / f"{arguments[0]}.log"
        with JobProcess([script, *arguments], log, environment=self._environment, cwd=self.directory) as job:
            wait_until(lambda: when(job), timeout=SECONDS)
            os.killpg(job.pid, signal.SIGINT)  # as a terminal does it
            return end_of(job)


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shell]:
    monkeypatch.setattr(stack, "_home", lambda: tmp_path / "stack")
    yield Shell(tmp_path)
    stack.down(delete_data=True)


@pytest.mark.behaviour("CONS-1", "CONS-8")
def test_the_first_steps_run_as_they_are_pasted(shell: Shell) -> None:
    first, prepare, job, look, consumer, last = BLOCKS
    *install, up, migrate = first.splitlines()
    assert install == [
        "python3 -m venv build/first && . build/first/bin/activate",
        "pip install '.[local]'",
        "cd build/first",
    ]

    shell.paste(f"{up}\n{migrate}")
    shell.paste(prepare)
    database = Database(shell.url)
    assert shell.paste_and_interrupt(job, lambda job: landed(job, database, 2)) == ExitCode.INTERRUPTED
    rows, status = shell.paste(look).split("Group billing")
    assert sorted(rows.splitlines()) == ["('ana', Decimal('12.50'))", "('bo', Decimal('3.00'))"]
    assert "Lag 0 in 3 partitions." in status
    assert shell.paste_and_interrupt(consumer, lambda job: landed(job, database, 3)) == ExitCode.OK
    assert "('cleo', Decimal('7.25'))" in shell.paste(look)
    assert database.one("SELECT sum(amount) FROM payments") == Decimal("22.75")
    database.close()
    assert shell.paste(last) == "PostgreSQL stopped.\nKafka stopped.\n"


@pytest.fixture
def database(offsetstore_database: str) -> Iterator[Database]:
    database = Database(offsetstore_database)
    yield database
    database.close()


def addresses(database: Database, servers: str) -> dict[str, str]:
    return {"OFFSETSTORE_URL": database.url, "OFFSETSTORE_BOOTSTRAP_SERVERS": servers}


def landed(job: JobProcess, database: Database, rows: int) -> bool:
    assert job.exit_status is None, job.end_of_log
    return database.one("SELECT count(*) FROM payments") == rows


def end_of(job: JobProcess) -> int:
    """Wait until it has ended, and return its exit status."""
    wait_until(lambda: job.exit_status is not None, timeout=SECONDS)
    job.finish_reading()
    assert job.exit_status is not None
    return job.exit_status


@pytest.mark.behaviour("DX-1")
def test_the_example_lands_what_kafka_has_and_a_record_that_cant_be_computed_ends_it_in_a_few_lines(
    offsetstore_kafka: KafkaBroker, offsetstore_topic: NewTopic, database: Database, tmp_path: Path
) -> None:
    """Spark computes the record in a task, which Java and Python log with all of their stacks."""
    database.execute("CREATE TABLE payments (payer text, amount numeric(12,2))")
    topic, servers = offsetstore_topic(1), offsetstore_kafka.bootstrap_servers
    admin.produce(servers, topic, [admin.NewRecord(b"1.50", b"ada"), admin.NewRecord(b"2.25", b"bob")])
    assert FILES["job.py"].count('"subscribe": "payments"') == 1
    code = FILES["job.py"].replace('"subscribe": "payments"', f'"subscribe": "{topic}"')
    (script := tmp_path / "job.py").write_text(code, encoding="utf-8")
    environment = {
        **addresses(database, servers),
        **environment_of_spark(),
        "CHECKPOINTS": str(tmp_path / "checkpoints"),
    }
    with JobProcess([script], tmp_path / "log", environment=environment, cwd=README.parent) as job:
        wait_until(lambda: landed(job, database, 2), timeout=SECONDS)
        admin.produce(servers, topic, [admin.NewRecord(b"3.00", b"cleo"), admin.NewRecord(b"a lot", b"dan")])
        assert end_of(job) == 5, job.end_of_log

    rows = database.rows("SELECT payer, amount::text FROM payments ORDER BY payer")
    assert rows == [("ada", "1.50"), ("bob", "2.25"), ("cleo", "3.00")]
    assert database.one("SELECT next_offset FROM kafka_partitions WHERE consumer_group = 'billing'") == 3
    said = job.log.read_text(encoding="utf-8")
    told = said[said.index("Error: ") :]
    assert told.startswith(f"Error: {topic}-0: ")
    assert "next step:" in told
    assert f"-t {topic}:0 --from-offset 3 --to-offset 4" in told
    assert len(said.splitlines()) <= 15, said
    assert "a lot" not in said  # whatever wrote it


@pytest.mark.behaviour("TX-5")
def test_the_transaction_without_spark_writes_what_a_replay_leaves_and_no_more(database: Database) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", PARTS.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    [example] = [block for block in blocks if "def work(tx)" in block]
    database.execute('CREATE TABLE events ("offset" bigint NOT NULL)')
    with OffsetStore.connect(database.url) as store:
        earlier = store.claim("audit", topics=["events"])
        with store.transaction(earlier) as tx:  # an earlier run of the job got as far as 60
            tx.advance({P0: tx.lock({P0: OffsetRange(40, 60)})[P0].remaining})
        names = {"store": store, "events": EVENTS, "records": [{"offset": number} for number in range(40, 80)]}
        exec(compile(example, str(PARTS), "exec"), names)  # noqa: S102 - the page's own words
        assert database.column('SELECT "offset" FROM events ORDER BY 1') == list(range(60, 80))
        assert store.offsets("audit")[P0].next_offset == 80
        assert store.metadata("audit")[P0] == {"trace": "7f3a"}

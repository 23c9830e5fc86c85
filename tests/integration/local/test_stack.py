"""``offsetstore local up``, ``status``, ``submit`` and ``down``; what starts something is a process of its own."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import psycopg
import pytest
from click.testing import CliRunner

from offsetstore.cli.local import local
from offsetstore.kafka.admin import NewRecord, create_topic, produce
from offsetstore.local import stack
from offsetstore.local.servers import is_process_of
from offsetstore.local.spark import quick_conf, spark_conf
from offsetstore.local.stack import ServiceStatus
from offsetstore.postgres.migrate import upgrade
from offsetstore.postgres.url import make_engine
from tests.support.postgres import Database
from tests.support.waiting import wait_until


@pytest.fixture
def _own_stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """In a directory of this test's, with the jars and class archives that are there; no stack is left at the end."""
    monkeypatch.setenv("STACK", str(tmp_path / "stack"))
    monkeypatch.setattr(stack, "_home", lambda: tmp_path / "stack")
    yield
    stack.down(delete_data=True)


MAIN = """
import os, pathlib
from offsetstore.cli.local import local
from offsetstore.local import stack
stack._home = lambda: pathlib.Path(os.environ["STACK"])
local()
"""
LOCAL = [sys.executable, "-c", MAIN]
EXACTLY_ONCE = Path(__file__).parents[3] / "examples" / "exactly_once_job.py"
SECONDS = 180  # the job starts a Spark of its own


def run(*arguments: str) -> tuple[int, str]:
    """In this process: for what starts no server."""
    done = CliRunner().invoke(local, arguments)
    return done.exit_code, done.output


@pytest.mark.usefixtures("_own_stack")
def test_servers_outlive_the_command_keep_their_data_and_a_job_runs_on_them_until_it_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluated = subprocess.run(
        ["sh", "-c", 'eval "$("$@")" && echo "$OFFSETSTORE_URL $OFFSETSTORE_BOOTSTRAP_SERVERS"', "sh", *LOCAL, "up"],
        capture_output=True,
        text=True,
        check=False,
    )
    postgres, kafka = running = stack.status()
    assert evaluated.stdout == f"{postgres.address} {kafka.address}\n", evaluated.stderr
    assert evaluated.stderr.count("running") == 2
    assert password(postgres) not in evaluated.stderr
    assert [service.running for service in running] == [True, True]
    with psycopg.connect(postgres.address) as connection:
        connection.execute("CREATE TABLE t AS SELECT 1 AS x")
    create_topic(kafka.address, "t")

    code, said = run("status")
    assert (code, said.count("running")) == (0, 2), said
    assert password(postgres) not in said
    assert run("up")[0] == 0
    assert stack.status() == running  # nothing was started twice

    assert run("down") == (0, "PostgreSQL stopped.\nKafka stopped.\n")
    assert [is_process_of(service.pid or 0, service.directory) for service in running] == [False, False]
    assert run("status")[0] == 1

    subprocess.run([*LOCAL, "up"], capture_output=True, check=True)
    assert [service.address for service in stack.status()] == [postgres.address, kafka.address]
    with psycopg.connect(postgres.address) as connection:
        assert connection.execute("SELECT x FROM t").fetchall() == [(1,)]
    monkeypatch.delenv("OFFSETSTORE_BOOTSTRAP_SERVERS", raising=False)
    url, servers = postgres.address, kafka.address
    engine = make_engine(url)
    with engine.begin() as connection:
        upgrade(connection)
    engine.dispose()
    database = Database(url)
    database.execute("CREATE TABLE payments (payer text, amount numeric(12, 2))")
    create_topic(servers, "payments")
    produce(servers, "payments", [NewRecord(b"1.50", key=b"ada"), NewRecord(b"2.25", key=b"bob")])
    quick = [word for name, value in quick_conf(spark_conf()).items() for word in ("--conf", f"{name}={value}")]
    # A session of its own has the processes of the job, and those alone, whatever groups they form.
    with (tmp_path / "log").open("wb") as log:
        job = subprocess.Popen(
            [*LOCAL, "submit", str(EXACTLY_ONCE)],
            env={
                **os.environ,
                "DATABASE": url,
                "CHECKPOINTS": str(tmp_path / "checkpoints"),
                "PYSPARK_SUBMIT_ARGS": f"{shlex.join(quick)} pyspark-shell",
            },
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def landed() -> bool:
        assert job.poll() is None, (tmp_path / "log").read_text(encoding="utf-8")[-4000:]
        return database.column("SELECT amount::text FROM payments ORDER BY 1") == ["1.50", "2.25"]

    try:
        wait_until(landed, timeout=SECONDS)
        assert len(processes_of_session(job.pid)) > 1

        job.terminate()

        assert job.wait(SECONDS) == 0, "job() stops it between two batches"
        wait_until(lambda: not processes_of_session(job.pid))
    finally:
        for pid in processes_of_session(job.pid):
            os.kill(pid, signal.SIGKILL)
        job.wait()
        database.close()

    assert run("down", "--delete-data")[0] == 0
    assert [service.directory.exists() for service in running] == [False, False]
    assert "There is no local stack" in run("status")[1]


def processes_of_session(session: int) -> list[int]:
    found: list[int] = []
    for pid in psutil.pids():
        try:
            if os.getsid(pid) == session:
                found.append(pid)
        except ProcessLookupError:
            continue
    return found


def password(postgres: ServiceStatus) -> str:
    return postgres.address.split(":")[2].split("@")[0]

"""What a job is given by `offsetstore local submit`, and what is left of the command when the job runs."""

from __future__ import annotations

import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from offsetstore.errors import ConfigurationError
from offsetstore.local import spark
from offsetstore.local.jars import pyspark_directories
from offsetstore.local.java import Java
from offsetstore.local.spark import job_environment
from offsetstore.local.stack import ServiceStatus

Start = Callable[..., subprocess.Popen[str]]

ROOT = Path(__file__).parents[3]
URL, SERVERS = "postgresql://job:secret@127.0.0.1:5432/offsetstore", "127.0.0.1:9092"
CONF = {"spark.jars": "/a jar/k.jar,/p.jar", "spark.driver.extraJavaOptions": '"-Dlog=/l.properties"'}
OPTIONS = [word for name, value in CONF.items() for word in ("--conf", f"{name}={value}")]

# The command in a process of its own, with a stack and a Spark that are made up.
COMMAND = f"""
import sys
from pathlib import Path
from offsetstore.local import spark, stack
from tests.unit.local.test_submit import CONF, service
stack.status = lambda: [service("PostgreSQL", {URL!r}), service("Kafka", {SERVERS!r})]
spark.spark_conf = lambda: CONF
spark.spark_environment = dict
home = Path(sys.argv.pop(1))
spark.pyspark_directories = lambda: [home]
from offsetstore.cli.main import main
sys.argv[1:1] = ["local", "submit"]
main()
"""


def service(name: str, address: str, *, running: bool = True) -> ServiceStatus:
    return ServiceStatus(name, running=running, address=address, pid=1 if running else None, directory=Path("/data"))


def stack(*, kafka: bool = True) -> list[ServiceStatus]:
    return [service("PostgreSQL", URL), service("Kafka", SERVERS, running=kafka)]


@pytest.fixture
def _spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark, "spark_conf", lambda: CONF)
    monkeypatch.setattr(spark, "find_java", lambda: Java(Path("/jre/bin/java"), 17))


@pytest.mark.usefixtures("_spark")
def test_the_job_has_the_stacks_addresses_and_jars_and_this_python() -> None:
    job = job_environment(stack(), {"HOME": "/home/job", "JAVA_HOME": "/java8", "SPARK_HOME": "/other"})
    assert (job["OFFSETSTORE_URL"], job["OFFSETSTORE_BOOTSTRAP_SERVERS"]) == (URL, SERVERS)
    assert (job["PYSPARK_PYTHON"], job["PYSPARK_DRIVER_PYTHON"]) == (sys.executable, sys.executable)
    assert (job["JAVA_HOME"], job["SPARK_HOME"]) == ("/jre", str(pyspark_directories()[0]))
    assert (job["HOME"], job["PYTHONUNBUFFERED"]) == ("/home/job", "1")
    assert shlex.split(job["PYSPARK_SUBMIT_ARGS"]) == [*OPTIONS, "pyspark-shell"]


@pytest.mark.usefixtures("_spark")
def test_what_the_user_has_set_stays_and_their_options_come_last() -> None:
    theirs = {"OFFSETSTORE_URL": "postgresql://other", "OFFSETSTORE_BOOTSTRAP_SERVERS": "other:9092"}
    job = job_environment(stack(), {**theirs, "PYSPARK_SUBMIT_ARGS": "--conf spark.ui.enabled=true pyspark-shell"})
    assert {name: job[name] for name in theirs} == theirs
    assert shlex.split(job["PYSPARK_SUBMIT_ARGS"]) == [*OPTIONS, "--conf", "spark.ui.enabled=true", "pyspark-shell"]


@pytest.mark.parametrize(
    ("services", "found"), [([], "no local stack"), (stack(kafka=False), "Kafka: stopped")], ids=["none", "stopped"]
)
def test_without_a_running_stack_the_way_out_is_named(services: list[ServiceStatus], found: str) -> None:
    with pytest.raises(ConfigurationError, match="the local stack is not running") as raised:
        job_environment(services, {})
    assert raised.value.found == found
    assert "`offsetstore local up`" in raised.value.next_step


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start the command with a job of these lines, and a spark-submit that writes down its command line."""
    program = tmp_path / "bin" / "spark-submit"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {tmp_path}/said\nexit 3\n')
    program.chmod(0o755)
    started: list[subprocess.Popen[str]] = []

    def start(lines: str, *arguments: str) -> subprocess.Popen[str]:
        job = tmp_path / "job.py"
        job.write_text(lines)
        command = [sys.executable, "-c", COMMAND, str(tmp_path), str(job), *arguments]
        started.append(subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_the_jobs_session_starts_spark_submit_with_the_options_and_the_rest_is_the_jobs(
    start: Start, tmp_path: Path
) -> None:
    """Its arguments, its output and its exit code."""
    job = start(
        "import sys\n"
        "from pyspark.errors import PySparkRuntimeError\n"
        "from pyspark.java_gateway import launch_gateway\n"
        "try: launch_gateway()\n"
        "except PySparkRuntimeError as error: print(error.getCondition(), sys.argv[1:])\n"
        "sys.exit(7)\n",
        *("--help", "a b", "--", "-x"),
    )
    assert job.communicate(timeout=60)[0] == "JAVA_GATEWAY_EXITED ['--help', 'a b', '--', '-x']\n"
    assert job.returncode == 7
    assert (tmp_path / "said").read_text().splitlines() == [*OPTIONS, "pyspark-shell"]


def test_a_signal_to_the_command_reaches_the_job(start: Start) -> None:
    job = start(
        "import signal, sys, time\n"
        f"signal.signal({int(signal.SIGTERM)}, lambda *_: sys.exit(9))\n"
        "print('ready')\n"
        "while True: time.sleep(0.1)\n"  # signal.pause() would miss a signal that comes before it
    )
    assert job.stdout is not None
    assert job.stdout.readline() == "ready\n"
    job.send_signal(signal.SIGTERM)
    job.communicate(timeout=60)
    assert job.returncode == 9

"""The health of real jobs that are broken in every way: a process, its Java, its database and its Kafka."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import psycopg
import pytest

from offsetstore import Broker, OffsetStore
from offsetstore.errors import ExitCode
from offsetstore.kafka import admin
from offsetstore.local.kafka.server import KafkaBroker
from offsetstore.local.postgres.server import PostgresServer
from offsetstore.local.spark.jars import pyspark_directories
from offsetstore.local.spark.launch import spark_environment
from offsetstore.monitoring.supervision import LOOKS
from offsetstore.testing.fixtures import NewTopic
from offsetstore.testing.job_process import JobProcess, parse_event
from tests.support.examples import spark_options
from tests.support.monitored_job import LIMITS
from tests.support.signals import stopped
from tests.support.transforms import EVENTS
from tests.support.waiting import wait_until

pytestmark = pytest.mark.behaviour("OPS-4")

ROOT = Path(__file__).parents[3]
LATE = 40
"""Seconds by which a code may come later than its limit."""


class Probe:
    """Asks a job's probes."""

    def __init__(self, port: int) -> None:
        self._port = port

    def ask(self, path: str, timeout: float = 30) -> tuple[int, list[str]]:
        """The status, and the codes."""
        try:
            with urlopen(f"http://127.0.0.1:{self._port}{path}", timeout=timeout) as answer:
                return answer.status, json.load(answer)["codes"]
        except HTTPError as refused:
            with refused:
                return refused.code, json.load(refused)["codes"]

    def wait_for(self, code: str, limit: float) -> tuple[int, int]:
        """Wait until it is the first code; return what both probes then answer."""
        wait_until(lambda: self.ask("/livez")[1][:1] == [code], timeout=limit + LATE)
        return self.ask("/livez")[0], self.ask("/readyz")[0]

    def wait_until_well(self) -> None:
        wait_until(lambda: self.ask("/readyz") == (200, []), timeout=60)

    @contextmanager
    def always_live(self) -> Generator[list[int]]:
        """Ask all the time; the job must be live each time."""
        seen: list[int] = []
        is_over = threading.Event()

        def look() -> None:
            while not is_over.wait(0.1):
                seen.append(self.ask("/livez")[0])

        thread = threading.Thread(target=look)
        thread.start()
        try:
            yield seen
        finally:
            is_over.set()
            thread.join()
        assert set(seen) == {200}


def test_each_state_has_its_code_in_time_and_no_outage_ends_a_job(
    private_postgres: PostgresServer,
    offsetstore_kafka: KafkaBroker,
    offsetstore_topic: NewTopic,
    offsetstore_group: str,
    tmp_path: Path,
) -> None:
    postgres, kafka, topic = private_postgres, offsetstore_kafka, offsetstore_topic(1)
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute(EVENTS.encode())

    def produce(value: str) -> None:
        admin.produce(kafka.bootstrap_servers, topic, [admin.Record(value.encode(), None, 0)])

    arguments = [postgres.url, kafka.bootstrap_servers, topic, offsetstore_group, str(tmp_path / "checkpoints")]
    with JobProcess(["-m", "tests.support.monitored_job", *arguments], tmp_path / "log", cwd=ROOT) as job:
        probe = Probe(job.wait_for("ready", timeout=240).what["port"])
        probe.wait_until_well()

        with probe.always_live() as seen:
            time.sleep(LIMITS.polling + 2)  # idle, without having had a record
            probe.wait_until_well()
            wait_until(lambda: len(seen) > LIMITS.polling)
        produce("first")  # takes longest: Spark compiles what later batches have
        job.wait_for("done", timeout=120)
        probe.wait_until_well()
        with probe.always_live():
            postgres.stop("immediate")
            produce("a")  # its batch can't be written
            assert probe.wait_for("database-unreachable", LIMITS.unreachable) == (200, 503)
            kafka.stop()  # it is asked once the database answers
            time.sleep(max(LIMITS.batch, LIMITS.polling) + 2)
            postgres.start()
            wait_until(lambda: probe.ask("/readyz")[1][:1] == ["kafka-unreachable"], timeout=60)
            kafka.start()
            job.wait_for("done", count=2, timeout=120)
            probe.wait_until_well()

        with stopped(job.jvm):
            assert probe.wait_for("jvm-gone", LIMITS.jvm) == (500, 503)
        probe.wait_until_well()
        time.sleep(2 * LIMITS.jvm / LOOKS)  # until a look has seen a trigger: the last one was before the stop

        with stopped(job.pid), pytest.raises(TimeoutError):
            probe.ask("/livez", timeout=LIMITS.jvm + 2)
        assert probe.ask("/livez")[0] == 200

        job.write("in_copy:hang")
        produce("c")
        job.wait_for("reached", timeout=60)
        assert probe.wait_for("batch-too-long", LIMITS.batch) == (500, 503)

        os.kill(job.jvm, signal.SIGKILL)
        wait_until(lambda: "jvm-gone" in probe.ask("/livez")[1], timeout=LIMITS.jvm + LATE)

        with OffsetStore.connect(postgres.url) as store:
            broker = Broker({"bootstrap.servers": kafka.bootstrap_servers})
            store.claim(offsetstore_group, broker, topics=[topic], mirror_every=None)
            assert probe.wait_for("claim-lost", 5) == (500, 503)
            broker.close()


def submit(*arguments: str, directory: Path, url: str, failpoint: str) -> subprocess.Popen[str]:
    environment = {
        **os.environ,
        "OFFSETSTORE_FAILPOINT": failpoint,
        **spark_environment(),
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
    }
    program = ROOT / "tests" / "support" / "monitored_job.py"
    with (directory / f"{arguments[2]}.log").open("w") as log:
        return subprocess.Popen(
            [pyspark_directories()[0] / "bin" / "spark-submit", *spark_options(), program, url, *arguments],
            cwd=directory,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,
        )


def wait_for_ready(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if (event := parse_event(line)) and event.kind == "ready":
            return
    raise AssertionError("the job ended before it was ready")


def test_the_exit_codes_of_spark_submit(
    offsetstore_database: str, offsetstore_kafka: KafkaBroker, offsetstore_topic: NewTopic, tmp_path: Path
) -> None:
    with psycopg.connect(offsetstore_database, autocommit=True) as connection:
        connection.execute(EVENTS.encode())
    topics = {name: offsetstore_topic(1) for name in ("fenced", "dead", "stopped")}
    jobs: dict[str, subprocess.Popen[str]] = {}
    printed: dict[str, str] = {}

    def produce(name: str) -> None:
        admin.produce(offsetstore_kafka.bootstrap_servers, topics[name], [admin.Record(b"a", None, 0)])

    try:
        for name, topic in topics.items():
            how = ("--end", "--on-dead") if name == "dead" else ("--end",)
            arguments = (offsetstore_kafka.bootstrap_servers, topic, name, str(tmp_path / "checkpoints"), *how)
            failpoint = "in_copy:hang" if name == "dead" else ""
            jobs[name] = submit(*arguments, directory=tmp_path, url=offsetstore_database, failpoint=failpoint)
        for job in jobs.values():
            wait_for_ready(job)
        with OffsetStore.connect(offsetstore_database) as store:
            store.claim("fenced", topics=[topics["fenced"]])
            for name in ("fenced", "dead"):
                produce(name)
            jobs["stopped"].send_signal(signal.SIGTERM)
            ends = {name: job.wait(300) for name, job in jobs.items()}
    finally:
        for name, job in jobs.items():
            if job.poll() is None:
                os.killpg(job.pid, signal.SIGKILL)
            printed[name], _ = job.communicate()
    assert ends == {
        "fenced": ExitCode.FENCED,
        "dead": ExitCode.DEAD,
        "stopped": 128 + signal.SIGTERM,
    }
    assert "batch-too-long: dead: the batch has been in flight" in printed["dead"]
    assert "in _fire" in printed["dead"], "the stack of the thread that hangs"

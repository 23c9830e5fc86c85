"""The health of real jobs that are broken in every way: a process, its Java, its database and its Kafka."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import psycopg
import pytest

from offsetstore import Broker, OffsetStore
from offsetstore.kafka import admin
from offsetstore.local.kafka import KafkaBroker
from offsetstore.local.postgres import PostgresServer
from offsetstore.testing.fixtures import NewTopic
from offsetstore.testing.job_process import JobProcess
from tests.support.background import repeating
from tests.support.monitored_job import LIMITS
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

    def must_be_live(self) -> None:
        assert self.ask("/livez")[0] == 200


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
        admin.produce(kafka.bootstrap_servers, topic, [admin.NewRecord(value.encode(), key=None, partition=0)])

    arguments = [postgres.url, kafka.bootstrap_servers, topic, offsetstore_group, str(tmp_path / "checkpoints")]
    with JobProcess(["-m", "tests.support.monitored_job", *arguments], tmp_path / "log", cwd=ROOT) as job:
        probe = Probe(job.wait_for("ready", timeout=240).what["port"])
        probe.wait_until_well()

        produce("first")  # takes longest: Spark compiles what later batches have
        job.wait_for("done", timeout=120)
        probe.wait_until_well()
        with repeating(probe.must_be_live, every=0.1):
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

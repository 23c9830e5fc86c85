"""The demo itself, on fewer flights: servers, jobs and kills are real."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from offsetstore import Broker, OffsetStore
from offsetstore.cli.demo import demo
from offsetstore.demo.day_totals import TOPIC as DAY_TOTALS
from offsetstore.demo.day_totals import create_day_totals, verify_events
from offsetstore.demo.flights import Ledger, produce_flights, read_flights
from offsetstore.demo.job import make_sink
from offsetstore.demo.job_settings import GROUP, TOPIC, URL, JobSettings
from offsetstore.demo.kills import CONSUMER_POINTS, CONSUMER_TARGETS, POISON_POINTS
from offsetstore.demo.poison import records_of
from offsetstore.demo.relaying import POINTS as RELAY_POINTS
from offsetstore.demo.tables import OURS, Findings, connected, verify
from offsetstore.kafka.admin import delete_topic
from offsetstore.local.free_ports import answers
from offsetstore.local.kafka.server import KafkaBroker
from offsetstore.local.servers import is_process_of
from offsetstore.postgres.url import SCHEMA_VARIABLE
from offsetstore.spark import tuned

# A shell that starts the tests in the background makes them ignore SIGINT, and their children with them.
HEED = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
COMMAND = [sys.executable, "-c", f"{HEED}; from offsetstore.cli.main import main; main()", "demo"]


@pytest.mark.parametrize("way", [{"outbox": True}, {"atomicity": "partition"}], ids=str)
def test_its_job_lands_each_flight_and_each_sum_once(
    offsetstore_spark: SparkSession,
    offsetstore_kafka: KafkaBroker,
    offsetstore_database: str,
    tmp_path: Path,
    way: dict[str, Any],
) -> None:
    servers = offsetstore_kafka.bootstrap_servers
    settings = JobSettings(offsetstore_database, servers, tmp_path, 500, **way)
    ledger = Ledger()
    produce_flights(settings.bootstrap_servers, records_of(read_flights(2000), {}, ledger))
    with connected(settings.url) as connection:
        OURS.create(connection)
        create_day_totals(connection)
    broker = Broker.from_spark(settings.kafka_options())
    with OffsetStore.connect(settings.url) as store:
        claim = store.claim(GROUP, broker)
        query = (
            offsetstore_spark.readStream.format("kafka")
            .options(**tuned(offsetstore_spark, settings.kafka_options()))
            .option("startingOffsets", claim.starting_offsets)
            .load()
            .writeStream.foreachBatch(make_sink(claim, settings))
            .option("checkpointLocation", claim.checkpoint(str(tmp_path)))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    broker.close()
    delete_topic(settings.bootstrap_servers, TOPIC)

    assert verify(settings.url, OURS, ledger) == Findings(stored=2000, missing=0, duplicated=0, wrong_aggregates=0)
    with connected(settings.url) as connection:
        put = connection.exec_driver_sql("SELECT key, value FROM outbox WHERE topic = %s ORDER BY id", (DAY_TOTALS,))
        events = verify_events(settings.url, [(key, value) for key, value in put], ledger)
    assert events.exact is settings.outbox
    assert (events.read >= len(ledger.days)) is settings.outbox


def test_the_consumer_lands_each_flight_and_the_relay_produces_each_total_while_both_are_killed(tmp_path: Path) -> None:
    arguments = ["--consumer", "--outbox", "--flights", "5000", "--output", str(tmp_path)]
    done = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=580, check=False)
    assert done.returncode == 0, done.stdout + done.stderr

    report = json.loads((tmp_path / "report.json").read_text())
    ours = report["offsetstore"]
    assert (report["produced"], ours["stored"], report["looks_apart"]) == (5_000, 5_000, 0)
    assert {ours[name] for name in ("missing", "duplicated", "wrong_aggregates")} == {0}
    assert {ours["events"][name] for name in ("missing", "duplicated", "wrong_totals")} == {0}
    assert ours["events"]["read"] >= 20
    assert sorted(ours["relay_kills"]) == sorted(RELAY_POINTS)

    kills = [kill for kill in report["kills"] if kill["in_batch"]]
    assert {kill["point"] for kill in kills} == set(CONSUMER_POINTS)
    assert {kill["target"] for kill in kills} == set(CONSUMER_TARGETS)
    assert {kill["exit_status"] for kill in kills} == {-9}
    assert [kill["pid"] for kill in kills if still_runs(kill["pid"])] == []


def still_runs(pid: int) -> bool:
    """Whether one of the demo's processes runs; by now the number may be another process's."""
    return is_process_of(pid, Path("offsetstore.demo"))


@pytest.mark.behaviour("DLQ-1")
def test_broken_flights_are_dead_letters_and_all_others_land_while_the_job_is_killed(tmp_path: Path) -> None:
    points = POISON_POINTS[-2:]  # with all six, a start of Spark for each; the other four are those of every demo
    changed = {"POISON_POINTS": points, "LEAST_KILLS": len(points), "BATCHES": 6, "LEAST_BATCHES": 6}
    few = "from offsetstore.demo import kills, run, supervise; kills._BATCHES = (1, 2); supervise._JVM_SECONDS = 60.0; "
    few += "".join(f"run.{name} = {one!r}; " for name, one in changed.items())
    command = [*COMMAND[:2], few + COMMAND[2], *COMMAND[3:]]
    arguments = ["--flights", "1000", "--poison", "12", "--output", str(tmp_path)]
    own = {**os.environ, SCHEMA_VARIABLE: "jobs"}  # of the user's store: the demo's has none
    done = subprocess.run([*command, *arguments], env=own, capture_output=True, text=True, timeout=580, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1,000 flights = 988 landed + 12 dead letters, none twice" in done.stdout

    report = json.loads((tmp_path / "report.json").read_text())
    ours = report["offsetstore"]
    assert (report["produced"], ours["stored"], ours["letters"]) == (1_000, 988, 12)
    assert {ours[name] for name in ("missing", "duplicated", "wrong_letters", "wrong_aggregates")} == {0}
    assert report["looks_apart"] == 0
    assert ours["batches"] >= 6

    kills = [kill for kill in report["kills"] if kill["in_batch"]]
    assert {kill["exit_status"] for kill in kills} == {-9}
    assert {kill["point"] for kill in kills} == set(points)
    assert {kill["target"] for kill in kills} == {"process group", "Python alone"}
    for kill in kills:
        assert sum(until - first for first, until in kill["range"].values()) > 0
        assert not kill["jvm_ended_by_demo"]

    assert "<svg" in (tmp_path / "report.html").read_text()
    assert [kill["pid"] for kill in kills if still_runs(kill["pid"])] == []


@pytest.mark.parametrize(
    "with_",
    [
        ["--poison", "101"],
        ["--poison", "10", "--only", "at_least_once"],
        ["--poison", "10", "--atomicity", "partition"],
        ["--consumer", "--poison", "10"],
        ["--consumer", "--only", "at_least_once"],
        ["--outbox", "--atomicity", "partition"],
    ],
)
def test_options_that_do_not_go_together_are_refused_at_once(tmp_path: Path, with_: list[str]) -> None:
    done = CliRunner().invoke(demo, ["--flights", "1000", *with_, "--output", str(tmp_path / "out")])
    assert done.exit_code == 2
    assert f"Error: {with_[0]}" in done.output
    assert not (tmp_path / "out").exists()


def test_an_interrupted_demo_leaves_nothing_running(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "offsetstore-1.log"
    with subprocess.Popen([*COMMAND, "--flights", "20000", "--output", str(tmp_path)]) as process:
        job = wait_for_spark(process, log)
        started = psutil.Process(process.pid).children(recursive=True)
        database = urlsplit(psutil.Process(job).environ()[URL]).port
        assert database is not None
        assert answers(database)

        process.send_signal(signal.SIGINT)
        assert process.wait(120) == 130

    assert len(started) >= 3  # Kafka, the job's Python, its Java
    assert psutil.wait_procs(started, timeout=60)[1] == []
    assert not answers(database)


def wait_for_spark(process: subprocess.Popen[bytes], log: Path) -> int:
    """Wait until the job tells that Spark runs; return the job's own process."""
    deadline = time.monotonic() + 200
    while not (log.exists() and (found := re.search(r'"jvm": (\d+)', log.read_text()))):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    parent = psutil.Process(int(found[1])).parent()
    assert parent is not None
    return parent.pid

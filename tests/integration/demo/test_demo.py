"""The demo itself, on fewer flights: servers, jobs and kills are real."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeAlias
from urllib.parse import urlsplit

import psutil
import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from offsetstore import Broker, OffsetStore
from offsetstore.cli.demo import demo
from offsetstore.demo import kills, relaying, run, supervise
from offsetstore.demo.day_totals import TOPIC as DAY_TOTALS
from offsetstore.demo.day_totals import create_day_totals, verify_events
from offsetstore.demo.flights import Ledger, produce_flights, read_flights
from offsetstore.demo.job import make_sink
from offsetstore.demo.job_settings import GROUP, TOPIC, URL, JobSettings
from offsetstore.demo.kills import CONSUMER_TARGETS, POISON_POINTS, RANDOM, TARGETS
from offsetstore.demo.poison import records_of
from offsetstore.demo.relaying import POINTS as RELAY_POINTS
from offsetstore.demo.tables import OURS, Findings, connected, verify
from offsetstore.errors import BrokerRefused
from offsetstore.kafka.admin import delete_topic
from offsetstore.local.free_ports import answers
from offsetstore.local.kafka.server import KafkaBroker
from offsetstore.local.servers import is_process_of
from offsetstore.postgres.url import SCHEMA_VARIABLE
from offsetstore.spark import tuned

# A shell that starts the tests in the background makes them ignore SIGINT, and their children with them.
HEED = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
COMMAND = [sys.executable, "-c", f"{HEED}; from offsetstore.cli.main import main; main()", "demo"]


Demo: TypeAlias = Callable[..., tuple[dict[str, Any], str]]


@pytest.fixture
def run_here(
    offsetstore_kafka: KafkaBroker, offsetstore_empty_database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Demo]:
    """Run the demo to its end in this process, on the servers of the test run; get its report, and what it printed."""

    def broker(**_: object) -> AbstractContextManager[KafkaBroker]:
        return nullcontext(offsetstore_kafka)

    monkeypatch.setattr(run, "PostgresServer", lambda: nullcontext(SimpleNamespace(url=offsetstore_empty_database)))
    monkeypatch.setattr(run, "KafkaBroker", broker)
    at_sigterm = signal.getsignal(signal.SIGTERM)  # the command replaces it

    def run_to_the_end(*arguments: str) -> tuple[dict[str, Any], str]:
        done = CliRunner().invoke(demo, [*arguments, "--output", str(tmp_path)])
        assert done.exit_code == 0, done.output
        return json.loads((tmp_path / "report.json").read_text()), done.output

    yield run_to_the_end
    signal.signal(signal.SIGTERM, at_sigterm)
    for topic in (TOPIC, DAY_TOTALS):
        with suppress(BrokerRefused):  # a demo without --outbox has no such topic
            delete_topic(offsetstore_kafka.bootstrap_servers, topic)


def test_its_job_lands_each_flight_and_each_sum_once(
    offsetstore_spark: SparkSession, offsetstore_kafka: KafkaBroker, offsetstore_database: str, tmp_path: Path
) -> None:
    settings = JobSettings(offsetstore_database, offsetstore_kafka.bootstrap_servers, tmp_path, 300, outbox=True)
    ledger = Ledger()
    produce_flights(settings.bootstrap_servers, records_of(read_flights(600), {}, ledger))
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

    assert verify(settings.url, OURS, ledger) == Findings(stored=600, missing=0, duplicated=0, wrong_aggregates=0)
    with connected(settings.url) as connection:
        put = connection.exec_driver_sql("SELECT key, value FROM outbox WHERE topic = %s ORDER BY id", (DAY_TOTALS,))
        events = verify_events(settings.url, [(key, value) for key, value in put], ledger)
    assert events.exact
    assert events.read >= len(ledger.days)


def test_the_consumer_lands_each_flight_and_the_relay_produces_each_total_while_both_are_killed(
    run_here: Demo, monkeypatch: pytest.MonkeyPatch
) -> None:
    # In the order of this seed; what the first kill leaves in the outbox is there for the second, however late that is.
    relay_points = {point: RELAY_POINTS[point] for point in ("outbox_produced", "outbox_sent")}
    monkeypatch.setattr(relaying, "POINTS", relay_points)
    monkeypatch.setattr(relaying, "_BATCHES", (1, 1))
    monkeypatch.setattr(run, "LEAST_RELAY_KILLS", len(relay_points))
    points = ("in_copy", RANDOM)
    monkeypatch.setattr(run, "CONSUMER_POINTS", points)
    monkeypatch.setattr(run, "LEAST_KILLS", len(points))
    monkeypatch.setattr(kills, "_BATCHES", (2, 2))

    report, _ = run_here("--consumer", "--outbox", "--flights", "1000", "--seed", "26")

    ours = report["offsetstore"]
    assert (report["produced"], ours["stored"], report["looks_apart"]) == (1_000, 1_000, 0)
    assert {ours[name] for name in ("missing", "duplicated", "wrong_aggregates")} == {0}
    assert {ours["events"][name] for name in ("missing", "duplicated", "wrong_totals")} == {0}
    assert ours["events"]["read"] >= 20
    assert sorted(ours["relay_kills"]) == sorted(relay_points)
    check_kills(report, points, CONSUMER_TARGETS)


def check_kills(report: dict[str, Any], points: Collection[str], targets: Collection[str]) -> list[dict[str, Any]]:
    """Each process was ended by its kill, and left nothing running; return the kills that met a batch."""
    found = [kill for kill in report["kills"] if kill["in_batch"]]
    assert {kill["point"] for kill in found} == set(points)
    assert {kill["target"] for kill in found} == set(targets)
    assert {kill["exit_status"] for kill in found} == {-9}
    assert [kill["pid"] for kill in found if still_runs(kill["pid"])] == []
    return found


def still_runs(pid: int) -> bool:
    """Whether one of the demo's processes runs; by now the number may be another process's."""
    return is_process_of(pid, Path("offsetstore.demo"))


@pytest.mark.behaviour("DLQ-1")
def test_broken_flights_are_dead_letters_and_all_others_land_while_the_job_is_killed(
    run_here: Demo, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    points = POISON_POINTS[-2:]  # with all six, a start of Spark for each; the other four are those of every demo
    monkeypatch.setattr(run, "POISON_POINTS", points)
    monkeypatch.setattr(run, "LEAST_KILLS", len(points))
    monkeypatch.setattr(run, "BATCHES", 3)
    monkeypatch.setattr(run, "LEAST_BATCHES", 3)
    monkeypatch.setattr(kills, "_BATCHES", (1, 1))
    monkeypatch.setattr(supervise, "_JVM_SECONDS", 60.0)
    monkeypatch.setenv(SCHEMA_VARIABLE, "jobs")  # of the user's store: the demo's has none

    report, output = run_here("--flights", "1000", "--poison", "4")

    assert "1,000 flights = 996 landed + 4 dead letters, none twice" in output
    ours = report["offsetstore"]
    assert (report["produced"], ours["stored"], ours["letters"]) == (1_000, 996, 4)
    assert {ours[name] for name in ("missing", "duplicated", "wrong_letters", "wrong_aggregates")} == {0}
    assert report["looks_apart"] == 0
    assert ours["batches"] >= 5
    for kill in check_kills(report, points, TARGETS):
        assert sum(until - first for first, until in kill["range"].values()) > 0
        assert not kill["jvm_ended_by_demo"]
    assert "<svg" in (tmp_path / "report.html").read_text()


def test_options_that_do_not_go_together_are_refused_at_once(tmp_path: Path) -> None:
    for with_ in (
        ["--poison", "101"],
        ["--poison", "10", "--only", "at_least_once"],
        ["--poison", "10", "--atomicity", "partition"],
        ["--consumer", "--poison", "10"],
        ["--consumer", "--only", "at_least_once"],
        ["--outbox", "--atomicity", "partition"],
    ):
        done = CliRunner().invoke(demo, ["--flights", "1000", *with_, "--output", str(tmp_path / "out")])
        assert done.exit_code == 2
        assert f"Error: {with_[0]}" in done.output
        assert not (tmp_path / "out").exists()


def test_an_interrupted_demo_leaves_nothing_running(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "offsetstore-1.log"
    with subprocess.Popen([*COMMAND, "--flights", "1000", "--output", str(tmp_path)]) as process:
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

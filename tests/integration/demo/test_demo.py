"""The demo itself, on fewer flights: servers, jobs and kills are real."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeAlias
from urllib.parse import urlsplit
from urllib.request import urlopen

import psutil
import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from offsetstore import OffsetStore
from offsetstore.cli.demo import demo
from offsetstore.demo import at_least_once, job, kills, run
from offsetstore.demo.flights import TOPIC, Ledger, produce_flights, read_flights, records_of
from offsetstore.demo.job_settings import URL, JobSettings
from offsetstore.demo.kills import POISON_POINTS, Kill
from offsetstore.demo.tables import OURS, THEIRS, Findings, connected, verify
from offsetstore.kafka.admin import delete_topic
from offsetstore.local.kafka import KafkaBroker
from offsetstore.local.servers import answers, is_process_of
from offsetstore.postgres.url import SCHEMA_VARIABLE

COMMAND = [sys.executable, "-c", "from offsetstore.cli.main import main; main()", "demo"]


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
    delete_topic(offsetstore_kafka.bootstrap_servers, TOPIC)


def test_both_jobs_land_each_flight_and_each_sum_once_if_nobody_kills_them(
    offsetstore_spark: SparkSession, offsetstore_kafka: KafkaBroker, offsetstore_database: str, tmp_path: Path
) -> None:
    settings = JobSettings(offsetstore_database, offsetstore_kafka.bootstrap_servers, tmp_path, 300)
    ledger = Ledger()
    produce_flights(settings.bootstrap_servers, records_of(read_flights(600), {}, ledger))
    for one, tables in ((job, OURS), (at_least_once, THEIRS)):
        with connected(settings.url) as connection:
            tables.create(connection)
        one.run(offsetstore_spark, settings)
        assert verify(settings.url, tables, ledger) == Findings(600, missing=0, duplicated=0, wrong_aggregates=0)
    delete_topic(settings.bootstrap_servers, TOPIC)


@pytest.mark.behaviour("DLQ-1")
def test_broken_flights_are_dead_letters_and_all_others_land_while_the_job_is_killed(
    run_here: Demo, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It is killed once, and not six times: each is a start of Spark. `make chaos` kills a job at every point."""

    def once(_: int, points: Sequence[str]) -> list[Kill]:
        assert set(POISON_POINTS) < set(points)
        return [Kill("letters_written", "Python alone", 1, 0.5)]

    monkeypatch.setattr(run, "plan", once)
    monkeypatch.setattr(run, "LEAST_KILLS", 1)
    monkeypatch.setattr(run, "BATCHES", 3)
    monkeypatch.setattr(run, "LEAST_BATCHES", 3)
    monkeypatch.setattr(kills, "_JVM_SECONDS", 60.0)
    monkeypatch.setenv(SCHEMA_VARIABLE, "jobs")  # of the user's store: the demo's has none

    report, output = run_here("--flights", "1000", "--poison", "4")

    assert "1,000 flights = 996 landed + 4 dead letters, none twice" in output
    ours = report["offsetstore"]
    assert (report["produced"], ours["stored"], ours["letters"]) == (1_000, 996, 4)
    assert {ours[name] for name in ("missing", "duplicated", "wrong_letters", "wrong_aggregates")} == {0}
    assert report["looks_apart"] == 0
    assert ours["runs"] == 2
    assert ours["batches"] >= 4
    [kill] = report["kills"]
    assert (kill["point"], kill["target"], kill["exit_status"]) == ("letters_written", "Python alone", -9)
    assert kill["in_batch"]
    assert sum(until - first for first, until in kill["range"].values()) > 0
    assert not kill["jvm_ended_by_demo"]
    assert not is_process_of(kill["pid"], Path("offsetstore.demo"))
    assert "<svg" in (tmp_path / "report.html").read_text()


def test_options_that_do_not_go_together_are_refused_at_once(tmp_path: Path) -> None:
    for with_ in (["--poison", "101"], ["--poison", "10", "--only", "at_least_once"]):
        done = CliRunner().invoke(demo, ["--flights", "1000", *with_, "--output", str(tmp_path / "out")])
        assert done.exit_code == 2
        assert "Error: --poison" in done.output
        assert not (tmp_path / "out").exists()


def test_the_dashboard_shows_the_groups_while_the_jobs_run(
    offsetstore_database: str, offsetstore_kafka: KafkaBroker
) -> None:
    with OffsetStore.connect(offsetstore_database) as store:
        store.claim("flights", topics=[TOPIC]).close()
    with (
        run.serve_dashboard(offsetstore_database, offsetstore_kafka.bootstrap_servers) as address,
        urlopen(address, timeout=60) as answer,  # noqa: S310 - our own page
    ):
        assert (answer.status, b"flights" in answer.read()) == (200, True)


def test_an_interrupted_demo_leaves_nothing_running(tmp_path: Path) -> None:
    with subprocess.Popen([*COMMAND, "--flights", "1000", "--output", str(tmp_path)]) as process:
        database = urlsplit(wait_for_job(process).environ()[URL]).port
        assert database is not None
        assert answers(database)
        started = psutil.Process(process.pid).children(recursive=True)

        process.send_signal(signal.SIGINT)
        assert process.wait(120) == 130

    assert len(started) >= 2  # Kafka and the job, whose Java may not run yet
    assert psutil.wait_procs(started, timeout=60)[1] == []
    assert not answers(database)


def wait_for_job(process: subprocess.Popen[bytes]) -> psutil.Process:
    """Wait until the job has been started, and return its process."""
    deadline = time.monotonic() + 200
    while time.monotonic() < deadline:
        assert process.poll() is None
        for child in psutil.Process(process.pid).children():
            with suppress(psutil.NoSuchProcess):
                if job.__name__ in child.cmdline():
                    return child
        time.sleep(0.05)
    raise AssertionError("no job was started")

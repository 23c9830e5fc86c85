"""A real Prometheus with the rules scrapes a real exporter and real jobs, through a pause, a deploy and a stall."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from offsetstore import OffsetStore
from offsetstore.kafka import admin
from offsetstore.local.kafka import KafkaBroker
from offsetstore.testing.fixtures import NewTopic
from offsetstore.testing.job_process import JobProcess
from tests.support import prometheus
from tests.support.background import repeating
from tests.support.postgres import Database
from tests.support.prometheus import Prometheus
from tests.support.queries import ALERTS, OF_SUPERVISORS, OURS, PANELS, RULES, of_alert, of_panel
from tests.support.signals import stopped
from tests.support.transforms import EVENTS
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.behaviour("OPS-13", "OPS-5"), pytest.mark.needs_program("prometheus")]

ROOT: Final = Path(__file__).parents[3]
MINUTE: Final = 1
"""Seconds that a minute of the rules lasts here: where others work too, a deploy takes some, and is no stall."""
STALLED: Final = 15 * MINUTE
"""Seconds after which Stalled fires, here."""

# The first batch fails once, as one whose statement is cancelled does.
CONFLICT: Final = """
CREATE SEQUENCE attempts;
CREATE FUNCTION conflict() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    IF nextval('attempts') = 1 THEN PERFORM pg_cancel_backend(pg_backend_pid()), pg_sleep(60); END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER conflict BEFORE INSERT ON events FOR EACH ROW EXECUTE FUNCTION conflict();
"""

SETTINGS: Final = {
    "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
    "rule_files": ["rules.yml"],
    "scrape_configs": [
        {"job_name": name, "file_sd_configs": [{"files": [f"{name}.json"], "refresh_interval": "1s"}]}
        for name in ("exporter", "drivers")
    ],
}

ELSEWHERE = {"offsetstore_relay_state", *OF_SUPERVISORS}
"""What a consumer's process without an outbox has not; each is read from a page in a test of its own."""


def faster(query: str) -> str:
    """The same query, or duration, where a minute lasts `MINUTE`; a number of three digits is one of seconds."""
    unit = {"s": 1, "m": 60, "h": 3600, "d": 86400}
    query = re.sub(r"\b\d{3,}\b", lambda found: str(int(found[0]) * MINUTE / 60), query)
    return re.sub(
        r"\b(\d+)([smhd])\b", lambda found: f"{int(found[1]) * unit[found[2]] * 1000 * MINUTE // 60}ms", query
    )


def faster_rules() -> dict[str, Any]:
    """The rules that are shipped, but for their times."""

    def rule(shipped: dict[str, Any]) -> dict[str, Any]:
        return {**shipped, **{name: faster(shipped[name]) for name in ("expr", "for") if name in shipped}}

    return {"groups": [{**group, "rules": [*map(rule, group["rules"])]} for group in RULES["groups"]]}


def as_grafana_sends(query: str, group: str) -> str:
    """With a group chosen and a scrape a second; a day lasts 20 of them."""
    query = query.replace("$consumergroup", group).replace("$__rate_interval", "4s")
    return query.replace("offset 1d", "offset 20s")


@dataclass(frozen=True)
class Scene:
    """Prometheus, the exporter, and the jobs of two groups, whose topic gets records all the time."""

    server: Prometheus
    directory: Path
    arguments: list[str]
    stack: ExitStack

    def job(self, name: str, group: str, *how: str) -> JobProcess:
        """Start a consumer."""
        command = ["-m", "tests.support.monitored_consumer", *self.arguments, group, *how]
        return self.stack.enter_context(JobProcess(command, self.directory / f"{name}.log", cwd=ROOT))

    def scrape(self, *jobs: JobProcess) -> None:
        """Have Prometheus scrape these jobs, and no others."""
        ports = [job.wait_for("ready", timeout=240).what["port"] for job in jobs]
        write_targets(self.directory / "drivers.json", *ports)

    def wait_for(self, query: str) -> None:
        """Wait until the query has a result."""
        wait_until(lambda: self.server.now(query), timeout=180)


def write_targets(file: Path, *ports: int) -> None:
    targets = [f"127.0.0.1:{port}" for port in ports]
    file.with_suffix(".new").write_text(json.dumps([{"targets": targets}]), encoding="utf-8")
    file.with_suffix(".new").rename(file)


@pytest.fixture
def scene(
    offsetstore_database: str,
    offsetstore_kafka: KafkaBroker,
    offsetstore_topic: NewTopic,
    tmp_path: Path,
) -> Iterator[Scene]:
    url, servers, topic = offsetstore_database, offsetstore_kafka.bootstrap_servers, offsetstore_topic(1)
    with ExitStack() as stack:
        command = ["-c", "from offsetstore.cli.main import main; main()", "exporter", "-b", servers]
        log = tmp_path / "exporter.log"
        address = {"OFFSETSTORE_URL": url}
        stack.enter_context(JobProcess([*command, "--port", "0", "--interval", "1"], log, environment=address))
        wait_until(log.exists)
        found = wait_until(lambda: re.search(r"http://127.0.0.1:(\d+)", log.read_text()), timeout=60)
        assert found is not None
        write_targets(tmp_path / "exporter.json", int(found[1]))
        (tmp_path / "rules.yml").write_text(yaml.safe_dump(faster_rules()), encoding="utf-8")
        server = stack.enter_context(prometheus.running(tmp_path, SETTINGS))
        stack.enter_context(repeating(lambda: produce(servers, topic), every=0.5))
        yield Scene(server, tmp_path, [url, servers, topic], stack)


def produce(servers: str, topic: str) -> None:
    records = [admin.NewRecord(b"a", key=key, partition=0) for key in (None, b"dropped")]
    admin.produce(servers, topic, records)


def test_a_pause_and_a_deploy_fire_nothing_a_stall_does_and_every_name_and_panel_has_data(
    scene: Scene, offsetstore_database: str, offsetstore_group: str
) -> None:
    server, group, paused_group = scene.server, offsetstore_group, f"{offsetstore_group}-paused"
    with closing(Database(offsetstore_database)) as database:
        database.execute(EVENTS)
        database.execute(CONFLICT)
    began = time.time()
    first = scene.job("first", group)
    first.wait_for("done", timeout=240)
    paused, second = scene.job("paused", paused_group), scene.job("second", group, "--wait")
    scene.scrape(first, paused)
    paused.wait_for("done", timeout=240)
    scene.wait_for("count_over_time(offsetstore_retries_total[4s]) > 2")
    wait_until(lambda: server.now("ALERTS") == [], timeout=180)  # the first start may raise some, and there is only one
    calm = time.time()

    with OffsetStore.connect(offsetstore_database) as store:
        store.pause(paused_group, reason="a test")
        second.wait_for("waiting", timeout=240)
        os.kill(first.pid, signal.SIGTERM)
        wait_until(lambda: first.exit_status is not None, timeout=180)
        assert first.exit_status == 0, first.end_of_log
        second.write("")
        scene.scrape(second, paused)
        second.wait_for("done", timeout=240)
        waits = f"{5 * MINUTE + 1}s"  # what a rule waits `for`, and more
        scene.wait_for(f"min_over_time(offsetstore_group_claim_epoch{{consumergroup='{group}'}}[{waits}]) == 2")
        end_of_calm = time.time()

        stalled = 'ALERTS{alertname="Stalled", alertstate="firing"}'
        with stopped(second.pid):
            scene.wait_for(stalled)
            [alert] = [one for one in server.get("alerts")["alerts"] if one["labels"]["alertname"] == "Stalled"]
            assert alert["annotations"]["summary"] == f"{group} makes no progress"
            is_late = f"time() - offsetstore_group_last_advance_timestamp_seconds > {STALLED + 3}"
            lags = f"kafka_consumergroup_lag_sum{{consumergroup='{paused_group}'}} > 0"
            scene.wait_for(f"{is_late} and ignoring (topic) {lags}")
            store.resume(paused_group, reason="a test")
        paused.wait_for("done", since=len(paused.events), timeout=240)
    wait_until(lambda: server.now(stalled) == [], timeout=180)

    second.write("in_copy:raise")
    scene.wait_for("count_over_time(offsetstore_errors_total[4s]) > 2")
    ended = time.time()

    assert server.between('ALERTS{alertstate="firing"}', calm, end_of_calm) == []
    of_paused = f'ALERTS{{alertstate="firing", consumergroup="{paused_group}"}}'
    assert server.between(of_paused, calm, ended) == []
    rules = [rule for one in server.get("rules")["groups"] for rule in one["rules"]]
    assert [rule["health"] for rule in rules] == ["ok"] * len(ALERTS)
    failures = re.findall(r"^prometheus_rule_evaluation_failures_total{.*} (.*)$", server.own_metrics, re.MULTILINE)
    assert set(failures) == {"0"}
    assert server.get("label/consumergroup/values", match="offsetstore_group_live") == [group, paused_group]
    wrong = without_a_series(server, group) + without_data(server, group, began, ended)
    assert wrong == [], "\n".join(wrong)
    assert scraped(server) == {name: labels for name, labels in OURS.items() if name not in ELSEWHERE}


def without_a_series(server: Prometheus, group: str) -> list[str]:
    """Where the board and the rules name a metric, a label or a label's value that was never scraped."""
    wrong: list[str] = []
    for query in [*map(of_alert, ALERTS), *(query for panel in PANELS for query in of_panel(panel))]:
        found = [server.series(as_grafana_sends(selector, group)) for selector in query.selectors]
        labels = {label for series in found for one in series for label in one}
        absent = [selector for selector, series in zip(query.selectors, found, strict=True) if not series]
        if not ELSEWHERE.isdisjoint(query.selectors.values()):
            continue
        wrong += [f"{query.where}: {name}" for name in (*absent, *sorted(query.labels - labels))]
    return wrong


def without_data(server: Prometheus, group: str, began: float, ended: float) -> list[str]:
    """The panels' queries that had no result at any time, or one without a label that its legend shows."""
    wrong: list[str] = []
    for query in [query for panel in PANELS for query in of_panel(panel)]:
        series = server.between(as_grafana_sends(query.expression, group), began, ended)
        told = [one["metric"] for one in series if any(math.isfinite(float(value)) for _, value in one["values"])]
        if not any(query.shown <= metric.keys() for metric in told):
            wrong.append(f"{query.where}: {query.expression}")
    return wrong


def scraped(server: Prometheus) -> dict[str, set[str]]:
    """Our metrics, with their own labels."""
    names = [one for one in server.get("label/__name__/values") if one.startswith(("offsetstore_", "kafka_"))]
    return {
        name: {label for one in server.series(name) for label in one} - {"__name__", "instance", "job"}
        for name in names
        if not name.endswith("_created")
    }

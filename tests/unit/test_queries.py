"""The board and the alerts: whole, and about metrics and labels that exist."""

from __future__ import annotations

import json
import re
from importlib.resources import files
from pathlib import Path
from typing import Any

import promql_parser as promql
import pytest
import yaml

from offsetstore.monitoring import exporter
from offsetstore.monitoring.exposition import Gauge
from tests.support.grafana_board import BOARD, text

pytestmark = pytest.mark.behaviour("OPS-13")

DOCS = Path(__file__).parents[2] / "docs"
RULES = yaml.safe_load((files("offsetstore") / "assets" / "prometheus" / "offsetstore.rules.yml").read_text("utf-8"))
ALERTS: list[dict[str, Any]] = [rule for group in RULES["groups"] for rule in group["rules"]]
PANELS: list[dict[str, Any]] = [one for one in json.loads(text())["panels"] if one["type"] != "row"]

OF_EXPORTER = {one.name: set(one.labels) for one in vars(exporter).values() if isinstance(one, Gauge)}
OF_PROMETHEUS = {"ALERTS": {"alertname", "alertstate", "consumergroup"}}


def of_driver() -> dict[str, set[str]]:
    """The metrics of docs/metrics.md with their labels, as they are scraped."""
    rows = re.findall(r"^\| `(\w+)` \|(.*?)\| (.*?) \|$", (DOCS / "metrics.md").read_text("utf-8"), re.MULTILINE)
    found: dict[str, set[str]] = {}
    for name, labels, what in rows:
        own = {"consumergroup", *re.findall(r"`(\w+)`", labels)}
        kind = what.partition(":")[0]
        for suffix in {"histogram": ("_bucket", "_sum", "_count"), "summary": ("_sum", "_count")}.get(kind, ("",)):
            found[name + suffix] = own | ({"le"} if suffix == "_bucket" else set[str]())
    return found


METRICS = of_driver() | OF_EXPORTER | OF_PROMETHEUS


def used(query: str) -> tuple[set[str], set[str]]:
    """The metrics and the labels that a query names."""
    nodes: list[Any] = []

    def keep(node: promql.Expr) -> bool:
        nodes.append(node)
        return True

    promql.walk(promql.parse(query.replace("$__rate_interval", "5m")), keep)
    metrics: set[str] = set()
    labels: set[str] = set()
    for node in nodes:
        if isinstance(node, promql.VectorSelector):
            assert node.name
            metrics.add(node.name)
            labels |= {matcher.name for matcher in node.matchers.matchers}
        elif isinstance(node, promql.AggregateExpr) and node.modifier:
            labels |= set(node.modifier.labels)
        elif isinstance(node, promql.BinaryExpr) and node.modifier and node.modifier.matching:
            labels |= set(node.modifier.matching.labels)
    return metrics, labels


def unknown(query: str, shown: set[str]) -> set[str]:
    """What a query, or the text about its result, names and does not exist."""
    metrics, labels = used(query)
    known = {label for name in metrics & METRICS.keys() for label in METRICS[name]}
    return (metrics - METRICS.keys()) | ((labels | shown) - known)


def test_a_name_that_does_not_exist_is_found() -> None:
    assert unknown("rate(offsetstore_batch_total[5m])", set()) == {"offsetstore_batch_total"}
    assert unknown('sum by (group) (offsetstore_group_live{cluster="a"})', {"topic"}) == {"group", "cluster", "topic"}
    assert unknown("offsetstore_claim_held and on (pod) offsetstore_group_live", set()) == {"pod"}
    assert unknown("sum by (le) (rate(offsetstore_batch_duration_seconds_bucket[5m]))", {"consumergroup"}) == set()


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_each_panel_is_whole_and_about_metrics_that_exist(panel: dict[str, Any]) -> None:
    assert panel["title"]
    assert panel["description"]
    assert panel["fieldConfig"]["defaults"]["unit"]
    assert panel["targets"]
    datasources = [panel["datasource"], *(one["datasource"] for one in panel["targets"])]
    assert {one["uid"] for one in datasources} == {"${datasource}"}
    for target in panel["targets"]:
        assert unknown(target["expr"], set(re.findall(r"{{(\w+)}}", target["legendFormat"]))) == set()
        metrics, _ = used(target["expr"])
        if all("consumergroup" in METRICS[name] for name in metrics):
            assert 'consumergroup=~"$consumergroup"' in target["expr"]


def test_the_board_has_its_variables_and_nothing_overlaps() -> None:
    board = json.loads(text())
    assert [one["name"] for one in board["templating"]["list"]] == ["datasource", "consumergroup"]
    assert [one["title"] for one in board["panels"] if one["type"] == "row"]
    places = [one["gridPos"] for one in board["panels"]]
    cells = [(x, y) for p in places for x in range(p["x"], p["x"] + p["w"]) for y in range(p["y"], p["y"] + p["h"])]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24
    assert len({one["id"] for one in board["panels"]}) == len(board["panels"])


def test_the_board_is_up_to_date() -> None:
    assert BOARD.read_text(encoding="utf-8") == text(), "run `make board`"


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])
def test_each_alert_is_about_metrics_that_exist_and_says_what_to_do(rule: dict[str, Any]) -> None:
    texts = rule["annotations"]
    assert texts.keys() == {"summary", "description", "runbook_url"}
    assert unknown(rule["expr"], set(re.findall(r"\$labels\.(\w+)", str(texts)))) == set()
    assert rule["labels"]["severity"] in {"warning", "critical"}
    assert texts["runbook_url"] == f"docs/runbook.md#{rule['alert'].lower()}"

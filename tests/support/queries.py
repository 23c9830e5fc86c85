"""The alerts, the board's panels, the metrics that the pages name, and what a query is about."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

import promql_parser as promql
import yaml

from offsetstore.monitoring import exporter
from offsetstore.monitoring.exporter import Gauge
from offsetstore.monitoring.whole import FAILURES, READY
from tests.support.grafana_board import text

RULES: Final[dict[str, Any]] = yaml.safe_load(
    (files("offsetstore") / "assets" / "prometheus" / "offsetstore.rules.yml").read_text("utf-8")
)
ALERTS: Final[list[dict[str, Any]]] = [rule for group in RULES["groups"] for rule in group["rules"]]
PANELS: Final[list[dict[str, Any]]] = [one for one in json.loads(text())["panels"] if one["type"] != "row"]

_DOCS: Final = Path(__file__).parents[2] / "docs"


def _of_driver() -> dict[str, set[str]]:
    """The metrics of docs/metrics.md with their labels, as they are scraped."""
    rows = re.findall(r"^\| `(\w+)` \|(.*?)\| (.*?) \|$", (_DOCS / "metrics.md").read_text("utf-8"), re.MULTILINE)
    found: dict[str, set[str]] = {}
    for name, labels, what in rows:
        own = {"consumergroup", *re.findall(r"`(\w+)`", labels)}
        kind = what.partition(":")[0]
        for suffix in {"histogram": ("_bucket", "_sum", "_count"), "summary": ("_sum", "_count")}.get(kind, ("",)):
            found[name + suffix] = own | ({"le"} if suffix == "_bucket" else set[str]())
    return found


OURS: Final = _of_driver() | {one.name: set(one.labels) for one in vars(exporter).values() if isinstance(one, Gauge)}
"""The labels of each metric of the drivers and of the exporter."""

OF_SUPERVISORS: Final[dict[str, set[str]]] = {f"{FAILURES}_total": {"instance"}, READY: set()}
"""Those of `offsetstore consume --port`, which its processes don't have."""

METRICS: Final = OURS | OF_SUPERVISORS | {"ALERTS": {"alertname", "alertstate", "consumergroup"}}
"""And of Prometheus's own that the board shows."""


@dataclass(frozen=True, slots=True)
class Query:
    """A query of the board or of a rule.

    :param where: the panel's title, or the alert.
    :param shown: the labels that the text about its result names.
    """

    where: str
    expression: str
    shown: frozenset[str]

    @property
    def selectors(self) -> dict[str, str]:
        """The metrics, each with what is asked of its labels, as PromQL has it; its name by that."""
        found = [one for one in self._nodes if isinstance(one, promql.VectorSelector)]
        return {one.prettify().partition(" offset ")[0]: one.name or "" for one in found}

    @property
    def labels(self) -> set[str]:
        """The labels that it or the text about its result names."""
        labels = set(self.shown)
        for node in self._nodes:
            if isinstance(node, promql.VectorSelector):
                labels |= {matcher.name for matcher in node.matchers.matchers}
            elif isinstance(node, promql.AggregateExpr) and node.modifier:
                labels |= set(node.modifier.labels)
            elif isinstance(node, promql.BinaryExpr) and node.modifier and node.modifier.matching:
                labels |= set(node.modifier.matching.labels)
        return labels

    def unknown(self, known: Mapping[str, set[str]]) -> set[str]:
        """The metrics and labels that it names and do not exist; ``known`` is the labels of each metric."""
        metrics = set(self.selectors.values())
        labels = {label for name in metrics & known.keys() for label in known[name]}
        return (metrics - known.keys()) | (self.labels - labels)

    @property
    def _nodes(self) -> list[promql.Expr]:
        nodes: list[promql.Expr] = []

        def keep(node: promql.Expr) -> bool:
            nodes.append(node)
            return True

        promql.walk(promql.parse(self.expression.replace("$__rate_interval", "5m")), keep)
        return nodes


def of_panel(panel: Mapping[str, Any]) -> list[Query]:
    """The queries of a panel."""
    return [
        Query(panel["title"], one["expr"], frozenset(re.findall(r"{{(\w+)}}", one["legendFormat"])))
        for one in panel["targets"]
    ]


def of_alert(rule: Mapping[str, Any]) -> Query:
    """The query of a rule."""
    return Query(rule["alert"], rule["expr"], frozenset(re.findall(r"\$labels\.(\w+)", str(rule["annotations"]))))

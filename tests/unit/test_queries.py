"""The board and the alerts: whole, and about metrics and labels that exist."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.grafana_board import BOARD, text
from tests.support.queries import ALERTS, METRICS, PANELS, Query, of_alert, of_panel

pytestmark = pytest.mark.behaviour("OPS-13")


def unknown(query: str, *shown: str) -> set[str]:
    return Query("", query, frozenset(shown)).unknown(METRICS)


def test_a_name_that_does_not_exist_is_found() -> None:
    assert unknown("rate(offsetstore_batch_total[5m])") == {"offsetstore_batch_total"}
    assert unknown('sum by (group) (offsetstore_group_live{cluster="a"})', "topic") == {"group", "cluster", "topic"}
    assert unknown("offsetstore_claim_held and on (pod) offsetstore_group_live") == {"pod"}
    assert unknown("sum by (le) (rate(offsetstore_batch_duration_seconds_bucket[5m]))", "consumergroup") == set()


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_each_panel_is_whole_and_about_metrics_that_exist(panel: dict[str, Any]) -> None:
    assert all((panel["title"], panel["description"], panel["fieldConfig"]["defaults"]["unit"], panel["targets"]))
    datasources = [panel["datasource"], *(one["datasource"] for one in panel["targets"])]
    assert {one["uid"] for one in datasources} == {"${datasource}"}
    for query in of_panel(panel):
        assert query.unknown(METRICS) == set()
        if all("consumergroup" in METRICS[name] for name in query.selectors.values()):
            assert 'consumergroup=~"$consumergroup"' in query.expression


def test_the_board_is_up_to_date_and_nothing_overlaps() -> None:
    assert BOARD.read_text(encoding="utf-8") == text(), "run `make board`"
    board = json.loads(text())
    assert [one["name"] for one in board["templating"]["list"]] == ["datasource", "consumergroup"]
    assert [one["title"] for one in board["panels"] if one["type"] == "row"]
    places = [one["gridPos"] for one in board["panels"]]
    cells = [(x, y) for p in places for x in range(p["x"], p["x"] + p["w"]) for y in range(p["y"], p["y"] + p["h"])]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24
    assert len({one["id"] for one in board["panels"]}) == len(board["panels"])


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])
def test_each_alert_is_about_metrics_that_exist_and_says_what_to_do(rule: dict[str, Any]) -> None:
    texts = rule["annotations"]
    assert texts.keys() == {"summary", "description", "runbook_url"}
    assert of_alert(rule).unknown(METRICS) == set()
    assert rule["labels"]["severity"] in {"warning", "critical"}
    assert texts["runbook_url"] == f"docs/runbook.md#{rule['alert'].lower()}"

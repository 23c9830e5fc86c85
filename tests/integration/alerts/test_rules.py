"""The rules for alerts in Prometheus's own unit tests; each scenario is in a file beside this one."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.prometheus import find_promtool

RULES = Path(__file__).parents[3] / "offsetstore" / "assets" / "prometheus" / "offsetstore.rules.yml"
SCENARIOS = {path.stem: path for path in Path(__file__).parent.glob("*.yml")}

pytestmark = pytest.mark.behaviour("OPS-13")


def promtool(*arguments: str) -> str:
    program = find_promtool()
    assert program is not None
    done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.needs_program("promtool")
@pytest.mark.parametrize("name", sorted(SCENARIOS))
def test_each_rule_fires_when_it_should_and_only_then(name: str) -> None:
    assert "SUCCESS" in promtool("test", "rules", str(SCENARIOS[name]))


@pytest.mark.needs_program("promtool")
def test_prometheus_takes_the_rules_with_their_texts() -> None:
    assert "22 rules found" in promtool("check", "rules", str(RULES))


def test_each_rule_has_a_scenario_in_which_it_fires() -> None:
    groups: list[dict[str, Any]] = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    fires = " ".join(
        one["labels"] + test["expr"]
        for file in SCENARIOS.values()
        for scenario in yaml.safe_load(file.read_text(encoding="utf-8"))["tests"]
        for test in scenario["promql_expr_test"]
        for one in test["exp_samples"]
    )
    names = [rule["alert"] for group in groups for rule in group["rules"]]
    assert [name for name in names if f'alertname="{name}"' not in fires] == []

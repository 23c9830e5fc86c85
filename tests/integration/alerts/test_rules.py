"""The rules for alerts in Prometheus's own unit tests; each scenario is in a file beside this one."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.prometheus import find_promtool

RULES = Path(__file__).parents[3] / "offsetstore" / "assets" / "prometheus" / "offsetstore.rules.yml"
GROUPS: list[dict[str, Any]] = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
SCENARIOS = {path.stem: path for path in Path(__file__).parent.glob("*.yml")}

pytestmark = pytest.mark.behaviour("OPS-13")


def group_of(scenarios: str) -> str:
    """The group of rules that a file of scenarios is about: progress and progress-retention are about one."""
    return f"offsetstore-{scenarios.partition('-')[0]}"


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


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: group["name"])
def test_each_rule_of_a_group_has_a_scenario_in_which_it_fires(group: dict[str, Any]) -> None:
    expected = [
        one["labels"] + test["expr"]
        for name, file in SCENARIOS.items()
        if group_of(name) == group["name"]
        for scenario in yaml.safe_load(file.read_text(encoding="utf-8"))["tests"]
        for test in scenario["promql_expr_test"]
        for one in test["exp_samples"]
    ]
    names = [rule["alert"] for rule in group["rules"]]
    assert [name for name in names if not any(f'alertname="{name}"' in one for one in expected)] == []


def test_there_is_a_file_of_scenarios_for_each_group() -> None:
    assert {group_of(name) for name in SCENARIOS} == {group["name"] for group in GROUPS}

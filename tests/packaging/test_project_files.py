"""What contributors and GitHub read, held against the Makefile and the tree."""

from __future__ import annotations

import re
import tomllib
from typing import Any

import pytest
import yaml

from offsetstore.local.java import OLDEST_JAVA
from tests.packaging.building import ROOT

GITHUB = ROOT / ".github"
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
TARGETS = set(re.findall(r"^([a-z0-9-]+):", MAKEFILE, re.MULTILINE))
WORKFLOW: dict[Any, Any] = yaml.safe_load((GITHUB / "workflows/test.yml").read_text(encoding="utf-8"))
JOB: dict[str, Any] = WORKFLOW["jobs"]["test"]
STEPS: list[dict[str, Any]] = JOB["steps"]
PAGES = ["CONTRIBUTING.md", "SECURITY.md", "CODE_OF_CONDUCT.md", ".github/pull_request_template.md"]
FORMS = sorted(file.name for file in (GITHUB / "ISSUE_TEMPLATE").glob("*.yml") if file.name != "config.yml")


def settings_of(action: str) -> dict[str, Any]:
    [step] = [step for step in STEPS if step.get("uses", "").startswith(f"actions/{action}@")]
    return step["with"]


@pytest.mark.parametrize("page", PAGES)
def test_each_make_that_a_page_names_is_a_target(page: str) -> None:
    named = set(re.findall(r"(?:`|^\$ )make ([a-z0-9-]+)", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE))
    assert named - TARGETS == set()
    assert page != "CONTRIBUTING.md" or {"setup", "check", "lint", "test", "behaviours", "mutants"} <= named


@pytest.mark.parametrize("page", PAGES)
def test_each_path_that_a_page_names_is_there(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    paths = re.findall(r"`((?:offsetstore|tests|docs|migrations)/[\w./-]*)`", text)
    paths += re.findall(r"\]\((?!https:|\.\./)([^)#]+)\)", text)
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_the_folders_are_those_of_the_package_that_have_tests() -> None:
    rows = re.findall(r"^\| (`.*?) \| .*`tests/", CONTRIBUTING, re.MULTILINE)
    folders = [folder for row in rows for folder in re.findall(r"`([\w./]+)`", row)]
    assert "protocol" in folders
    assert [name for name in folders if not (ROOT / "offsetstore" / name).exists() and name != "migrations/"] == []


def test_the_minutes_of_a_whole_run_are_the_makefile_s() -> None:
    [minutes] = re.findall(r"--minutes=(\d+)", MAKEFILE)
    assert re.search(rf"^\| `make test` \|.*\| {minutes} minutes ", CONTRIBUTING, re.MULTILINE)


def test_the_mutant_and_the_test_that_are_shown_as_examples_are_there() -> None:
    [mutant] = re.findall(r"-m tests\.mutants ([\w-]+)`", CONTRIBUTING)
    assert any(f"[{mutant}]" in file.read_text(encoding="utf-8") for file in (ROOT / "tests/mutants").glob("*.toml"))
    [behaviour] = re.findall(r'behaviour\("([A-Z]+-\d+)"\)', CONTRIBUTING)
    areas = tomllib.loads((ROOT / "docs/behaviours.toml").read_text(encoding="utf-8")).values()
    assert any(behaviour in area for area in areas)


def test_the_workflow_runs_the_tests_and_the_demo_and_may_only_read() -> None:
    assert [step["run"] for step in STEPS if "run" in step] == ["make test", "make demo"]
    assert {"test", "demo"} <= TARGETS
    assert WORKFLOW["permissions"] == {"contents": "read"}
    assert "permissions" not in JOB
    assert JOB["timeout-minutes"] <= 90
    assert "pull_request" in WORKFLOW[True]  # YAML 1.1 reads `on` as true; pull_request_target would run with rights


def test_each_action_is_github_s_own_and_pinned_by_its_major_version() -> None:
    used = [step["uses"] for step in STEPS if "uses" in step]
    assert len(used) == 4
    assert [action for action in used if not re.fullmatch(r"actions/[a-z-]+@v\d+", action)] == []


def test_the_workflow_s_pythons_and_its_java_are_those_that_the_package_supports() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for version in JOB["strategy"]["matrix"]["python"]:
        assert f"Programming Language :: Python :: {version}" in project["classifiers"]
    assert f">={JOB['strategy']['matrix']['python'][0]}" == project["requires-python"]
    assert settings_of("setup-python")["python-version"] == "${{ matrix.python }}"
    assert JOB["env"] == {"PYTHON": "python${{ matrix.python }}"}
    assert re.search(r"^PYTHON \?=$", MAKEFILE, re.MULTILINE)  # which the environment's overrules
    assert settings_of("setup-java")["java-version"] == str(OLDEST_JAVA)


def test_what_is_downloaded_is_kept_under_a_key_of_files_that_are_there() -> None:
    assert settings_of("setup-python")["cache"] == "pip"
    assert settings_of("cache")["path"] == "~/.cache/offsetstore"
    keys = [settings_of("setup-python")["cache-dependency-path"], *re.findall(r"'(.+?)'", settings_of("cache")["key"])]
    assert [key for key in keys if not (ROOT / key).is_file()] == []
    assert len(keys) == 3
    assert settings_of("checkout")["fetch-depth"] == 0


@pytest.mark.parametrize("name", FORMS)
def test_a_form_is_one_that_github_accepts(name: str) -> None:
    form: dict[str, Any] = yaml.safe_load((GITHUB / "ISSUE_TEMPLATE" / name).read_text(encoding="utf-8"))
    assert form["name"]
    assert form["description"]
    fields = [field for field in form["body"] if field["type"] != "markdown"]
    assert {field["type"] for field in fields} <= {"checkboxes", "dropdown", "input", "textarea"}
    assert all(field["attributes"]["label"] for field in fields)
    assert len({field["id"] for field in fields}) == len(fields)
    assert any(field.get("validations", {}).get("required") for field in fields)


def test_a_bug_comes_with_versions_and_status_and_a_word_about_secrets() -> None:
    assert FORMS == ["bug.yml", "idea.yml"]
    text = (GITHUB / "ISSUE_TEMPLATE/bug.yml").read_text(encoding="utf-8")
    for needed in ("offsetstore --version", "offsetstore status", "passwords"):
        assert needed in text
    config = yaml.safe_load((GITHUB / "ISSUE_TEMPLATE/config.yml").read_text(encoding="utf-8"))
    assert config == {"blank_issues_enabled": False}

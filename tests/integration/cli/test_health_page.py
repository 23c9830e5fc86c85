"""docs/health.md and docs/supervise.md: their code and commands run, and their tables are complete."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from offsetstore import OffsetStore
from offsetstore.errors import ExitCode, StaleClaim
from offsetstore.monitoring import Code, Limits
from tests.integration.cli.conftest import DOCS, Here, blocks, words

PAGE = (DOCS / "health.md").read_text(encoding="utf-8")
ENDING = (DOCS / "supervise.md").read_text(encoding="utf-8")
PYTHON = [text for _, text in blocks("health.md", "python")]
[(_, CONSOLE)] = blocks("health.md", "console")
[(_, END)] = blocks("supervise.md", "python")
[(_, FILES)] = blocks("supervise.md", "console")


@pytest.mark.behaviour("OPS-4")
def test_its_job_that_waits_for_the_database_does_so_for_ten_minutes(offsetstore_database: str) -> None:
    names: dict[str, Any] = {"url": offsetstore_database}
    [block] = [one for one in PYTHON if "Retries(" in one]
    exec(block, names)  # noqa: S102 - the page's own words
    with names["store"] as store:
        retries = store.retries
        waits = [retries.wait(attempt) for attempt in range(1, retries.attempts)]
        assert 570 < sum(waits) < 720
        assert store.timeouts.commit == 600


@pytest.mark.behaviour("OPS-4")
def test_its_monitoring_is_asked_by_its_commands(
    here: Here, billing: str, servers: str, offsetstore_database: str
) -> None:
    names: dict[str, Any] = {"OffsetStore": OffsetStore, "url": offsetstore_database}
    exec(PYTHON[0].replace("9464", "0"), names)  # noqa: S102 - the page's own words
    port, printed = str(names["monitoring"].port), ""
    with names["monitoring"], names["store"] as store, store.claim(billing, topics=["payments"]):
        commands = CONSOLE.replace("localhost:9092", servers).replace("9464", port)
        for line in commands.splitlines():
            printed += here(*words(line.replace("-g billing", f"-g {billing}")))
    ready = "The job is live and ready.\n"
    well = f"Group {billing} is well.\n"
    assert re.sub(r"\d+s behind", "0s behind", printed) == f"{ready}{ready}{well}{well}Lag 21, 0s behind.\n"


def test_its_job_ends_with_the_code_of_its_error() -> None:
    class Store:
        @staticmethod
        def connect(url: str, observers: list[object]) -> None:
            raise StaleClaim(f"{url}, {observers}")

    with pytest.raises(SystemExit) as ended:
        exec(f"import offsetstore.spark\n{END}", {"OffsetStore": Store, "url": "x", "monitoring": None})  # noqa: S102
    assert ended.value.code == ExitCode.FENCED


def rows_of(page: str) -> list[list[str]]:
    return [line.strip("|").split("|") for line in page.splitlines() if line.startswith("|")]


def test_its_tables_have_each_code_limit_and_exit_code_of_a_job_and_the_files_that_it_names_exist() -> None:
    rows = rows_of(PAGE)
    first = [row[0].strip().strip("`") for row in rows]
    assert [name for name in dict.fromkeys(first) if name in list(Code)] == list(Code)
    limits = {row[0].strip().strip("`"): row[1].strip() for row in rows}
    for field in fields(Limits):
        assert limits[field.name] == ("none" if field.default is None else f"{field.default:g}")
    codes = [row[0].strip() for row in rows_of(ENDING)]
    told = {int(code) for name in codes for code in re.findall(r"^\d+(?=,|$)|(?<=, )\d+$", name)}
    assert told == set(ExitCode) - {ExitCode.INTERRUPTED, ExitCode.UNREAD}
    named = re.findall(r"\]\(([^)#:]+)\)", PAGE + ENDING)
    assert len(named) > 6
    assert [name for name in named if not (DOCS / name).exists()] == []


def test_its_commands_write_the_files_that_it_lists(
    here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for line in FILES.splitlines():
        here(*words(line))
    listed = re.findall(r"^\| \[([\w.-]+)\]", ENDING, re.MULTILINE)
    assert len(listed) > 6
    assert {file.name for file in tmp_path.rglob("*") if file.is_file()} >= {*listed}

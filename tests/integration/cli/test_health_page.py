"""docs/health.md: its code and its commands run, and its tables are complete."""

from __future__ import annotations

import re
import shlex
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from offsetstore import OffsetStore
from offsetstore.errors import ExitCode, StaleClaim
from offsetstore.monitoring import Code, Limits
from tests.integration.cli.conftest import Run

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "health.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


@pytest.mark.behaviour("OPS-4")
def test_its_job_that_waits_for_the_database_does_so_for_ten_minutes(offsetstore_database: str) -> None:
    names: dict[str, Any] = {"url": offsetstore_database}
    [block] = [one for one in blocks("python") if "Retries(" in one]
    exec(block, names)  # noqa: S102 - the page's own words
    with names["store"] as store:
        retries = store.retries
        waits = [retries.wait(attempt) for attempt in range(1, retries.attempts)]
        assert 570 < sum(waits) < 720
        assert store.timeouts.commit == 600


@pytest.mark.behaviour("OPS-4")
def test_its_monitoring_is_asked_by_its_commands(
    run: Run, billing: str, offsetstore_kafka: Any, offsetstore_database: str
) -> None:
    names: dict[str, Any] = {"OffsetStore": OffsetStore, "url": offsetstore_database}
    exec(blocks("python")[0].replace("9464", "0"), names)  # noqa: S102 - the page's own words
    port, printed = str(names["monitoring"].port), ""
    with names["monitoring"], names["store"] as store, store.claim(billing, topics=["payments"]):
        for line in blocks("console")[0].splitlines():
            words = line.replace("9464", port).replace("-g billing", f"-g {billing}")
            words = words.replace("localhost:9092", offsetstore_kafka.bootstrap_servers)
            prompt, command, *arguments = shlex.split(words)
            assert (prompt, command) == ("$", "offsetstore")
            result = run(*arguments, url=offsetstore_database)
            assert result.exit_code == 0, result.output
            printed += result.stdout
    ready = "The job is live and ready.\n"
    well = f"Group {billing} is well.\n"
    assert re.sub(r"\d+s behind", "0s behind", printed) == f"{ready}{ready}{well}{well}Lag 21, 0s behind.\n"


def test_its_job_ends_with_the_code_of_its_error() -> None:
    class Store:
        @staticmethod
        def connect(url: str, observers: list[object]) -> None:
            raise StaleClaim(f"{url}, {observers}")

    [block] = [one for one in blocks("python") if "offsetstore.spark.job()" in one]
    with pytest.raises(SystemExit) as ended:
        exec(f"import offsetstore.spark\n{block}", {"OffsetStore": Store, "url": "x", "monitoring": None})  # noqa: S102
    assert ended.value.code == ExitCode.FENCED


def test_its_tables_have_each_code_each_limit_and_each_exit_code_of_a_job() -> None:
    rows = [line.strip("|").split("|") for line in PAGE.splitlines() if line.startswith("|")]
    first = [row[0].strip().strip("`") for row in rows]
    assert [name for name in dict.fromkeys(first) if name in list(Code)] == list(Code)
    limits = {row[0].strip().strip("`"): row[1].strip() for row in rows}
    for field in fields(Limits):
        assert limits[field.name] == ("none" if field.default is None else f"{field.default:g}")
    told = {int(code) for name in first for code in re.findall(r"^\d+(?=,|$)|(?<=, )\d+$", name)}
    assert told == set(ExitCode) - {ExitCode.INTERRUPTED, ExitCode.UNREAD}


def test_the_files_that_it_names_exist() -> None:
    named = re.findall(r"\]\(([^)#:]+)\)", PAGE)
    assert len(named) > 6
    assert [name for name in named if not (ROOT / "docs" / name).exists()] == []

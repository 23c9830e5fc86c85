"""A pytest plugin for a run in a mutant's tree: checks that the tree is what is tested, and writes down why it fails.

``pytest -p tests.mutants.watch --first-failure=FILE``. The file has the first failure, as `running` reads it; there is
none where nothing failed.
"""

from __future__ import annotations

import json
from collections.abc import Generator
from pathlib import Path
from typing import cast

import pytest

import offsetstore


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--first-failure", metavar="FILE", help="write down the first failure")


def pytest_configure(config: pytest.Config) -> None:
    place = Path(offsetstore.__file__).parent
    if place != config.rootpath / "offsetstore":
        raise pytest.UsageError(f"the tests would import {place}, which is not of {config.rootpath}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed and call.excinfo is not None:
        _write(item.config, item.nodeid, call.when, call.excinfo.value)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    if report.failed:
        _write(collector.config, collector.nodeid, "collect", RuntimeError(report.longreprtext))
    return report


def _write(config: pytest.Config, test: str, when: str, error: BaseException) -> None:
    name: str | None = config.getoption("--first-failure")
    if name is None or Path(name).exists():
        return
    first = error
    while isinstance(first, BaseExceptionGroup):  # of several, as Hypothesis may find
        first = cast("BaseException", first.exceptions[0])
    kinds = [f"{kind.__module__}.{kind.__qualname__}" for kind in type(first).__mro__]
    found = {"test": test, "when": when, "kinds": kinds, "text": str(first)}
    Path(name).write_text(json.dumps(found), encoding="utf-8")

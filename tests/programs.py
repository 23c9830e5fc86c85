"""A pytest plugin: tests marked ``needs_program`` are left out where the program can't be had, and the run says so.

So are those that need the checkout's ``history``, which a shallow clone lacks.

With OFFSETSTORE_EVERY_TEST=1, as in `.ci/run`, they are run, and fail.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, Final

import pytest

from tests.support.checkout import has_history
from tests.support.chromium import find_axe, find_chromium
from tests.support.prometheus import find_prometheus, find_promtool

VARIABLE: Final = "OFFSETSTORE_EVERY_TEST"
FINDERS: Final[Mapping[str, Callable[[], object]]] = {
    "chromium": lambda: find_axe() and find_chromium(),  # no page is tested without axe-core
    "history": lambda: has_history() or None,
    "prometheus": find_prometheus,
    "promtool": find_promtool,
}

_LEFT_OUT: Final = pytest.StashKey[dict[str, int]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_LEFT_OUT] = {}


@pytest.hookimpl(trylast=True)  # after -k and -m: what is not run needs no download
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("collectonly") or os.environ.get(VARIABLE):
        return
    needed = {item: mark.args[0] for item in items if (mark := item.get_closest_marker("needs_program"))}
    missing = {name for name in set(needed.values()) if FINDERS[name]() is None}
    left_out = [item for item, name in needed.items() if name in missing]
    if not left_out:
        return
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]
    config.stash[_LEFT_OUT] = {name: list(needed.values()).count(name) for name in missing}


def pytest_sessionfinish(session: pytest.Session) -> None:
    """In a worker of xdist: tell the process that writes the summary."""
    if (told := getattr(session.config, "workeroutput", None)) is not None:
        told["left_out"] = session.config.stash[_LEFT_OUT]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """In the process that writes the summary, when a worker of xdist has ended; all have left out the same."""
    node.config.stash[_LEFT_OUT].update(getattr(node, "workeroutput", {}).get("left_out", {}))


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for name, count in sorted(config.stash[_LEFT_OUT].items()):
        terminalreporter.section("NOT EVERY TEST WAS RUN", red=True, bold=True)
        terminalreporter.line(f"Left out: {count}, for lack of {name}, which is not here and can't be downloaded.")

"""A pytest plugin: which test proves which line of docs/behaviours.toml, and on which real services.

It reads marks and fixture names of the collected tests, nothing is run. ``pytest --collect-only --behaviours=FILE``
writes the table; a mark with an id that docs/behaviours.toml doesn't have stops every run.
"""

from __future__ import annotations

import tomllib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

TEXTS = Path(__file__).parents[1] / "docs" / "behaviours.toml"

# A test uses a service if one of these is among its fixtures, directly or through others.
SERVICES = {
    "offsetstore_postgres": "PostgreSQL",
    "offsetstore_database": "PostgreSQL",
    "offsetstore_kafka": "Kafka",
    "offsetstore_topic": "Kafka",
    "secured_kafka": "Kafka",
    "offsetstore_spark": "Spark",
    "job_environment": "Spark",
}

INTRODUCTION = """\
# Behaviours and their tests

Made by `make behaviours` from [behaviours.toml](behaviours.toml) and the tests' marks; a test fails when it is out of
date. *Real services* are those that run while the test runs: none is replaced by a double. A test of the
contract is listed once, with the classes that run it; a class stands for all of its tests.
"""


@dataclass(frozen=True, slots=True)
class Proof:
    """One test of one behaviour; parameters of a test are folded into one.

    ``runs`` are the classes that inherit the test from another module. ``test`` is the class where that has the mark.
    """

    behaviour: str
    test: str
    services: frozenset[str]
    runs: tuple[str, ...] = ()


def read_texts(path: Path = TEXTS) -> dict[str, dict[str, str]]:
    """Read the areas in their order, each with its ids and lines."""
    return tomllib.loads(path.read_text(encoding="utf-8"))


def collect_proofs(items: Iterable[pytest.Item]) -> list[Proof]:
    """Read the marks of all collected tests, sorted by test.

    :raises pytest.UsageError: a mark without ids, or with one that is not in docs/behaviours.toml.
    """
    known = {identifier for area in read_texts().values() for identifier in area}
    services: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    runs: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    for item in items:
        fixtures: Sequence[str] = getattr(item, "fixturenames", ())
        for node, mark in item.iter_markers_with_node("behaviour"):
            if not mark.args or not known.issuperset(mark.args):
                raise pytest.UsageError(f"{item.nodeid}: behaviour{mark.args} is not in {TEXTS.name}")
            test, run = _test_and_run(item) if node is item else (node.nodeid, None)
            for identifier in mark.args:
                services[identifier, test].update(SERVICES[name] for name in fixtures if name in SERVICES)
                runs[identifier, test].update([run] if run else [])
    return [
        Proof(*key, frozenset(found), tuple(sorted(runs[key])))
        for key, found in sorted(services.items(), key=lambda entry: entry[0][1])
    ]


def _test_and_run(item: pytest.Item) -> tuple[str, str | None]:
    """Where the test is written; and the class that runs it, if it inherits the test from another module."""
    if isinstance(item, pytest.Function) and item.cls and item.module:
        for parent in item.cls.__mro__:
            if item.originalname in vars(parent) and parent.__module__ != item.module.__name__:
                file = f"{parent.__module__.replace('.', '/')}.py"
                return f"{file}::{parent.__name__}::{item.originalname}", item.cls.__name__
    return item.nodeid.partition("[")[0], None


def render(texts: Mapping[str, Mapping[str, str]], proofs: Iterable[Proof]) -> str:
    """Write the page: a table for each area, then what no test proves yet."""
    by_behaviour: defaultdict[str, list[Proof]] = defaultdict(list)
    for proof in proofs:
        by_behaviour[proof.behaviour].append(proof)
    lines = [INTRODUCTION]
    for area, behaviours in texts.items():
        proven = [identifier for identifier in behaviours if identifier in by_behaviour]
        if not proven:
            continue
        lines += [f"## {area}", "", "| id | behaviour | tests | real services |", "|---|---|---|---|"]
        for identifier in proven:
            text = behaviours[identifier].replace("|", "\\|")
            head = f"{identifier} | {text}"
            for proof in by_behaviour[identifier]:
                runs = " in " + ", ".join(f"`{run}`" for run in proof.runs) if proof.runs else ""
                lines.append(f"| {head} | `{proof.test}`{runs} | {', '.join(sorted(proof.services)) or 'none'} |")
                head = " | "
        lines.append("")
    missing = [
        f"- {identifier}: {text}"
        for behaviours in texts.values()
        for identifier, text in behaviours.items()
        if identifier not in by_behaviour
    ]
    if missing:
        lines += ["## Not yet proven", "", *missing, ""]
    return "\n".join(lines)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--behaviours", metavar="FILE", help="write the table of behaviours and their tests")


def pytest_collection_finish(session: pytest.Session) -> None:
    proofs = collect_proofs(session.items)
    target: str | None = session.config.getoption("--behaviours")
    if target is not None:
        Path(target).write_text(render(read_texts(), proofs), encoding="utf-8")

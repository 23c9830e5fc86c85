"""Tests run in a tree of their own, and what their failure is worth: is a mutant caught, and by what?"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.mutants.catalogue import Mutant
from tests.mutants.edits import mutated
from tests.mutants.trees import BUILD, copy_tree

_SAID: Final = ("builtins.AssertionError", "builtins.Failed", "psycopg.Error", "sqlalchemy.exc.DBAPIError")
"""What a failure must be: an assertion, "DID NOT RAISE", an error of the database (a deadlock), or one of our own."""

_OURS: Final = "offsetstore."
_HUNG: Final = "Timeout ("


@dataclass(frozen=True, slots=True)
class Failure:
    """The first test that failed, and when, with what; ``kinds`` are the error's class and its bases."""

    test: str
    when: str
    kinds: tuple[str, ...]
    text: str

    @property
    def error(self) -> str:
        """The class, without its module."""
        return self.kinds[0].rpartition(".")[2]

    @property
    def is_said_by_a_test(self) -> bool:
        """Whether a test has noticed what is wrong, rather than stumbled over code that does not run."""
        known = any(kind in _SAID or kind.startswith(_OURS) for kind in self.kinds)
        return self.when == "call" and known and not self.text.startswith(_HUNG)


@dataclass(frozen=True, slots=True)
class Run:
    """How it ended: pytest's exit code, the first failure if a test failed, and where the output is."""

    code: int
    failure: Failure | None
    seconds: float
    log: Path


def run_tests(tree: Path, tests: Sequence[str]) -> Run:
    """Run the tests of a tree with this interpreter, until the first one fails."""
    BUILD.mkdir(parents=True, exist_ok=True)
    log, found = BUILD / f"{tree.name}.log", BUILD / f"{tree.name}.json"
    found.unlink(missing_ok=True)
    watch = ("-p", "tests.mutants.watch", f"--first-failure={found}")
    command = [sys.executable, "-m", "pytest", "-x", "-q", *watch, *tests]
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    began = time.monotonic()
    with log.open("wb") as output:
        done = subprocess.run(command, cwd=tree, env=environment, stdout=output, stderr=subprocess.STDOUT, check=False)
    failure = None
    if found.exists():
        raw = json.loads(found.read_text(encoding="utf-8"))
        failure = Failure(raw["test"], raw["when"], tuple(raw["kinds"]), raw["text"])
    return Run(done.returncode, failure, time.monotonic() - began, log)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a mutant. ``test`` and ``error`` say what caught it, or why that does not count."""

    name: str
    test: str
    error: str
    seconds: float
    is_caught: bool = False


def run_unmutated(mutants: Iterable[Mutant]) -> Run:
    """Run all tests of the mutants in a copy that has none: if they fail there, their failing means nothing."""
    tests = sorted({test for mutant in mutants for test in mutant.tests})
    tree = copy_tree("unmutated")
    run = run_tests(tree, tests)
    if run.code == 0:
        shutil.rmtree(tree)
    return run


def judge(mutant: Mutant) -> Verdict:
    """Make the mutant and run its tests; its tree stays where it is not caught."""
    tree = copy_tree(mutant.name)
    for file, source in mutated(mutant.changes).items():
        (tree / file).write_text(source, encoding="utf-8")
    run = run_tests(tree, mutant.tests)
    verdict = _verdict(mutant.name, run)
    if verdict.is_caught:
        shutil.rmtree(tree)
    return verdict


def _verdict(name: str, run: Run) -> Verdict:
    failure = run.failure
    if run.code == 0:
        return Verdict(name, "-", "no test noticed", run.seconds)
    if failure is None:
        return Verdict(name, "-", f"pytest ended with {run.code}, see {run.log}", run.seconds)
    if not failure.is_said_by_a_test:
        where = f"{failure.error} in {failure.when}, which is no verdict, see {run.log}"
        return Verdict(name, failure.test, where, run.seconds)
    return Verdict(name, failure.test, failure.error, run.seconds, is_caught=True)

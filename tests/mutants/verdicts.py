"""Is a named mutant caught, and by what?"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from dataclasses import dataclass

from tests.mutants.edits import mutated
from tests.mutants.mutant import Mutant
from tests.mutants.running import Run, run_tests
from tests.mutants.trees import copy_tree


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

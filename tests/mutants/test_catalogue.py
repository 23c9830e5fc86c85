"""The catalogue of mutants is held against the tree, so that it can't rot between two runs of ``make mutants``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutants.catalogue import FILES, MUTANTS, Change, Mutant
from tests.mutants.edits import mutated
from tests.mutants.mutation import Mutation, explained
from tests.mutants.running import Failure
from tests.mutants.trees import ROOT


def test_each_mutant_has_a_name_of_its_own_which_can_be_a_directory_and_all_tables_are_read() -> None:
    assert {path.stem for path in (ROOT / "tests/mutants").glob("*.toml")} == {*FILES, "equivalent"}
    names = [mutant.name for mutant in MUTANTS]
    assert len(set(names)) == len(names)
    assert all(name.replace("-", "").isalnum() and name == name.lower() for name in names)
    assert not {"mutmut", "unmutated"} & set(names)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_what_a_mutant_edits_is_there_once_and_what_comes_out_is_other_python(mutant: Mutant) -> None:
    for changes in {mutant.changes, *((change,) for change in mutant.changes)}:
        assert mutated(changes)


def test_pytest_collects_the_tests_of_all_mutants(request: pytest.FixtureRequest) -> None:
    assert [mutant.name for mutant in MUTANTS if not mutant.tests] == []
    tests = sorted({test for mutant in MUTANTS for test in mutant.tests})
    collected = {node.nodeid for item in request.session.items for node in item.listchain()}
    collected |= {item.nodeid.partition("[")[0] for item in request.session.items}
    if collected.issuperset(tests):
        return  # a whole run has collected every test already
    command = [sys.executable, "-m", "pytest", "--collect-only", "-qq", *tests]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_mutation_that_is_explained_is_of_a_line_that_is_there() -> None:
    for mutation, reason in explained().items():
        assert mutation.old in (ROOT / mutation.file).read_text(encoding="utf-8")
        assert mutation == Mutation(mutation.file, mutation.old.strip(), mutation.new.strip())
        assert len(reason) > 20, "say why"


CODE = """\
QUERY = f'''
SELECT {1} FOR UPDATE
'''


class Job:
    def run(self):
        if self.is_due:  # a comment
            call(
                1, 2,
                name="a job",
            )
        raise Late
"""
CALL = CODE[CODE.index("call(") : CODE.index("        raise")]
WHOLE, MADE = f"if self.is_due:  # a comment\n            {CALL}", "call(1, 2, name='a job')"


@pytest.fixture
def package(tmp_path: Path) -> Path:
    files = {"spark/job.py": CODE, "store/job.py": "def run(): call(call())", "runs.py": "def run(): pass"}
    for name, code in files.items():
        file = tmp_path / "offsetstore" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(code, encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize(
    ("change", "before", "after"),
    [
        (Change("Job.run", "self.is_due", "True"), "self.is_due", "(True)"),
        (Change("Job.run", "call(1, ..., **...)", "call(..., **...)"), CALL, "(call(2, name='a job')\n\n\n)\n"),
        (Change("Job.run", "if self.is_due: ...", "if a: ..."), WHOLE, f"if a:\n            {MADE}\n\n\n\n"),
        (Change("Job.run", "if self.is_due: ...", "..."), WHOLE, f"{MADE}\n\n\n\n\n"),
        (Change("Job.run", "raise Late", ""), "raise Late", ""),
        (
            Change("QUERY", " FOR UPDATE", "", in_text=True),
            "f'''\nSELECT {1} FOR UPDATE\n'''",
            "(f'\\nSELECT {1}\\n'\n\n)",
        ),
    ],
)
def test_an_edit_leaves_all_else_where_it_is(package: Path, change: Change, before: str, after: str) -> None:
    assert mutated([change], package) == {"offsetstore/spark/job.py": CODE.replace(before, after)}


@pytest.mark.parametrize(
    ("where", "old", "said"),
    [
        ("run", "call()", "2 files, not in one: offsetstore/runs.py, offsetstore/store/job.py"),
        ("gone", "call()", "0 files"),
        ("store:run", "call(...)", "2 times, not once"),
        ("runs:run", "call(...)", "0 times"),
        ("store:run", "call(call())", "stays as it is"),
    ],
)
def test_an_edit_that_does_not_fit_or_changes_nothing_is_refused(
    package: Path, where: str, old: str, said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        mutated([Change(where, old, "call((call()))")], package)


@pytest.mark.parametrize(
    ("when", "kind", "text", "counts"),
    [
        ("call", "builtins.AssertionError", "assert [1] == []", True),
        ("call", "builtins.Failed", "DID NOT RAISE <class 'StaleClaim'>", True),
        ("call", "offsetstore.errors.StaleClaim", "claimed, reset or renamed", True),
        ("call", "builtins.Failed", "Timeout (>180.0s) from pytest-timeout.", False),
        ("call", "builtins.NameError", "name 'x' is not defined", False),
        ("call", "builtins.TypeError", "'NoneType' object is not iterable", False),
        ("setup", "builtins.AssertionError", "the server did not start", False),
        ("collect", "builtins.RuntimeError", "ImportError", False),
    ],
)
def test_a_failure_counts_if_a_test_has_noticed_and_not_if_the_code_does_not_run(
    when: str, kind: str, text: str, *, counts: bool
) -> None:
    assert Failure("test", when, (kind, "builtins.Exception"), text).is_said_by_a_test is counts

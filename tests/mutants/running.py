"""Tests run in a tree of their own, and what their failure is worth."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.mutants.trees import BUILD

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
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-x",
        "-q",
        "-p",
        "tests.mutants.watch",
        f"--first-failure={found}",
        *tests,
    ]
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    began = time.monotonic()
    with log.open("wb") as output:
        done = subprocess.run(command, cwd=tree, env=environment, stdout=output, stderr=subprocess.STDOUT, check=False)
    failure = None
    if found.exists():
        raw = json.loads(found.read_text(encoding="utf-8"))
        failure = Failure(raw["test"], raw["when"], tuple(raw["kinds"]), raw["text"])
    return Run(done.returncode, failure, time.monotonic() - began, log)

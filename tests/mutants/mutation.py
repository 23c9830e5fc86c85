"""The mutation tool, over what decides: `protocol.replay`, `protocol.resolver` and `store.transaction`.

It is set in pyproject.toml, ``[tool.mutmut]``. Whatever no test kills has to be in ``equivalent.toml``, with the reason
why no test could; what is there and does not come any more has to go.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.mutants.trees import BUILD, copy_tree

EXPLAINED: Final = Path(__file__).with_name("equivalent.toml")
_KILLED: Final = "killed"


@dataclass(frozen=True, slots=True)
class Mutation:
    """One line, or several, of a file, before and after; without the spaces around."""

    file: str
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class MutationRun:
    """What came of it; ``problems`` are lines for people, each a reason to fail."""

    summary: str
    problems: tuple[str, ...]


def explained() -> dict[Mutation, str]:
    """Read the mutations that change nothing, each with the reason."""
    entries = tomllib.loads(EXPLAINED.read_text(encoding="utf-8"))["equivalent"]
    return {Mutation(entry["file"], entry["old"], entry["new"]): entry["reason"] for entry in entries}


def mutate() -> MutationRun:
    """Run the tool in a tree of its own, and judge what got away."""
    tree = copy_tree("mutmut")
    began = time.monotonic()
    log = BUILD / "mutmut.log"
    workers = str(os.cpu_count() or 1)
    with log.open("wb") as output:
        done = _mutmut(tree, "run", "--max-children", workers, stdout=output.fileno())
    status = dict(_results(tree))
    if done.returncode != 0 or not status:
        return MutationRun("The mutation tool did not run.", (f"It ended with {done.returncode}, see {log}",))
    reasons = explained()
    left = {name: _shown(tree, name) for name, ended in status.items() if ended != _KILLED}
    unexplained = [name for name, mutation in left.items() if mutation not in reasons]
    problems = [f"GOT AWAY: {name} ({status[name]}): {left[name]}" for name in unexplained]
    stale = reasons.keys() - set(left.values())
    problems += [f"{EXPLAINED.name} explains what does not come any more: {mutation}" for mutation in stale]
    # A mutation that changes nothing is no mutant, and not counted as one.
    real = len(status) - (len(left) - len(unexplained))
    killed = len(status) - len(left)
    summary = (
        f"mutmut: {killed} of {real} mutants of replay.py, resolver.py and transaction.py were killed, "
        f"{100 * killed / real:.1f} %; "
        f"{len(status) - real} more are explained as equivalent ({time.monotonic() - began:.0f} s)."
    )
    return MutationRun(summary, tuple(problems))


def _mutmut(tree: Path, *arguments: str, stdout: int) -> subprocess.CompletedProcess[str]:
    environment = {
        name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "HYPOTHESIS_PROFILE"}
    }
    return subprocess.run(
        [sys.executable, "-m", "mutmut", *arguments],
        cwd=tree,
        env=environment,
        stdout=stdout,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


def _results(tree: Path) -> list[tuple[str, str]]:
    """Ask for each mutant's name and how it ended."""
    lines = _mutmut(tree, "results", "--all", "true", stdout=subprocess.PIPE).stdout.splitlines()
    pairs = [line.strip().split(": ", 1) for line in lines if "__mutmut_" in line]
    return [(name, ended) for name, ended in pairs]


def _shown(tree: Path, name: str) -> Mutation:
    """Ask what a mutant has changed: a diff of one file."""
    lines = _mutmut(tree, "show", name, stdout=subprocess.PIPE).stdout.splitlines()
    file = next((line.removeprefix("--- ") for line in lines if line.startswith("--- ")), "")
    old = [line[1:].strip() for line in lines if line.startswith("-") and not line.startswith("--- ")]
    new = [line[1:].strip() for line in lines if line.startswith("+") and not line.startswith("+++ ")]
    return Mutation(file, "\n".join(old), "\n".join(new))

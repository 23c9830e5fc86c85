"""Copies of the checkout, as far as tests need it, into which mutants are put."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.mutants.mutant import Change

ROOT: Final = Path(__file__).parents[2]
BUILD: Final = ROOT / "build" / "mutants"

_PARTS: Final = ("offsetstore", "migrations", "tests", "docs", "pyproject.toml")
_LEFT_OUT: Final = shutil.ignore_patterns("__pycache__", ".*")


def copy_tree(name: str) -> Path:
    """Make ``build/mutants/<name>`` anew, and return it."""
    target = BUILD / name
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    for part in _PARTS:
        source = ROOT / part
        if source.is_dir():
            shutil.copytree(source, target / part, ignore=_LEFT_OUT)
        else:
            shutil.copy(source, target / part)
    return target


def apply(changes: Iterable[Change], tree: Path) -> None:
    """Put a mutant's changes in.

    :raises ValueError: a text is not there exactly once.
    :raises SyntaxError: what comes out is no Python, so that any test would fail.
    """
    for change in changes:
        file = tree / change.file
        before = file.read_text(encoding="utf-8")
        if before.count(change.old) != 1:
            raise ValueError(f"{change.file} has this {before.count(change.old)} times, not once:\n{change.old}")
        after = before.replace(change.old, change.new)
        compile(after, change.file, "exec")
        file.write_text(after, encoding="utf-8")

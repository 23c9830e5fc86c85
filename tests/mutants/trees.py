"""Copies of the checkout, as far as tests need it, into which mutants are put."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

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

"""Builds and installs: from a copy, so that the checkout stays clean, and as a user would."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
REQUIREMENTS = ROOT / "requirements"
SOURCES = (
    "pyproject.toml",
    "setup.py",
    "README.md",
    "LICENSE",
    "CHANGELOG.md",
    "MANIFEST.in",
    "offsetstore",
    "migrations",
    "examples",
)
TIMEOUT = 300  # seconds, for a command that may have to download


@dataclass(frozen=True, slots=True)
class Distributions:
    """What ``python -m build`` makes: the sdist from the checkout, the wheel from the sdist."""

    sdist: Path
    wheel: Path


def run(*command: str | Path, cwd: Path | None = None) -> str:
    """Run a command without the checkout on its path and return what it printed; what it said if it failed."""
    environment = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "OFFSETSTORE_URL"}}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=TIMEOUT,
    )
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout}"
    return done.stdout


def copy(names: Iterable[str], source: Path) -> None:
    """Copy files and directories of the checkout, without caches, to a new directory."""
    source.mkdir()
    for name in names:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, source / name)


def build(source: Path, out: Path) -> Distributions:
    """Copy what a release is made of to ``source`` and build it into ``out``, unless that has been done."""
    if not out.exists():
        copy(SOURCES, source)
        run(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, source)
    (sdist,), (wheel,) = out.glob("*.tar.gz"), out.glob("*.whl")
    return Distributions(sdist, wheel)


def entries(file: Path) -> list[str]:
    """Read a file of requirements, one string for each, hashes included."""
    return file.read_text(encoding="utf-8").replace("\\\n", " ").splitlines()


def pins(file: Path) -> dict[str, str]:
    """Read the version of each package in it."""
    return {entry.partition("==")[0]: entry.partition("==")[2].split()[0] for entry in entries(file)}

"""The checkout that the tests run in."""

from __future__ import annotations

import subprocess
from importlib.metadata import version
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def commit_of(checkout: Path) -> str:
    """The checkout's commit, with a mark where it was changed."""
    ask = ["git", "-C", str(checkout), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        return subprocess.run(ask, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):  # a release's sources have no history
        return f"offsetstore {version('offsetstore')}"

"""The checkout that the tests run in."""

from __future__ import annotations

import subprocess
from importlib.metadata import version
from pathlib import Path

# Tests run the code of this commit, which is older than all others that they name.
_OLDEST = "c8d9c61c8d8bbf80fb51de3afedd27bfc755e159"


def has_history() -> bool:
    """Whether this checkout has the commits that tests name; a shallow clone may not, and a release's sources don't."""
    ask = ["git", "-C", str(Path(__file__).parent), "cat-file", "-e", f"{_OLDEST}^{{tree}}"]
    try:
        return subprocess.run(ask, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def commit_of(checkout: Path) -> str:
    """The checkout's commit, with a mark where it was changed."""
    ask = ["git", "-C", str(checkout), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        return subprocess.run(ask, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):  # a release's sources have no history
        return f"offsetstore {version('offsetstore')}"

"""Prometheus's ``promtool``: the system's, or the one in Debian's package, which needs no installation."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from offsetstore.local.cache import cache_directory, locked

_SECONDS = 300


def find_promtool() -> Path | None:
    """Return the system's, else the one in the cache; get it from apt first. ``None`` if neither can be had."""
    if system := shutil.which("promtool"):
        return Path(system)
    target = cache_directory() / "prometheus" / "promtool"
    with locked(target.parent / "lock"):
        if not target.exists():
            _download(target)
    return target if target.exists() else None


def _download(target: Path) -> None:
    with tempfile.TemporaryDirectory(dir=target.parent) as name:
        directory = Path(name)
        directory.chmod(0o755)  # apt gives up root's rights to download
        try:
            # With lists of its own: the system's may be missing or old, and only root may renew them.
            (directory / "lists" / "partial").mkdir(parents=True)
            (directory / "cache" / "archives" / "partial").mkdir(parents=True)
            own = [f"-oDir::State::Lists={directory / 'lists'}", f"-oDir::Cache={directory / 'cache'}"]
            _run(directory, "apt-get", *own, "update")
            _run(directory, "apt-get", *own, "download", "prometheus")
            _run(directory, "dpkg-deb", "--extract", str(next(directory.glob("*.deb"))), "unpacked")
        except (OSError, subprocess.SubprocessError, StopIteration):
            return
        (directory / "unpacked" / "usr" / "bin" / "promtool").rename(target)


def _run(directory: Path, *command: str) -> None:
    subprocess.run(command, cwd=directory, check=True, capture_output=True, timeout=_SECONDS)

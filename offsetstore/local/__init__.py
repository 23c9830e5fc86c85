"""PostgreSQL, Kafka and Spark on one machine, without Docker: from packages, which are cached."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path


def cache_directory() -> Path:
    """Return the directory of downloads and state; it may not exist yet.

    It is ``OFFSETSTORE_CACHE``, else ``offsetstore`` in the user's cache directory (XDG).
    """
    if chosen := os.environ.get("OFFSETSTORE_CACHE"):
        return Path(chosen).expanduser().resolve()
    parent = os.environ.get("XDG_CACHE_HOME")
    return (Path(parent) if parent else Path.home() / ".cache") / "offsetstore"


@contextmanager
def locked(path: Path) -> Generator[None]:
    """Hold a file's lock, one process at a time. The system releases it even if the process is killed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield

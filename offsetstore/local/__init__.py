"""PostgreSQL, Kafka and Spark on one machine, without Docker: from packages, which are cached."""

from __future__ import annotations

import fcntl
import os
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

Notice: TypeAlias = Callable[[str], None]


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


@contextmanager
def notices(given: Notice | None) -> Generator[Notice]:
    """Yield a function that shows notices: ``given``, or one that prints. At a terminal, each replaces the last."""
    from rich.console import Console  # noqa: PLC0415 - jobs whose jars are there need none
    from rich.markup import escape  # noqa: PLC0415

    console = Console(stderr=True)
    if given is not None or not console.is_terminal:
        yield given or (lambda text: print(text, file=sys.stderr, flush=True))  # noqa: T201 - this is the output
        return
    with console.status("") as status:
        yield lambda text: status.update(escape(text))

"""The end of a server's log, for an error message."""

from __future__ import annotations

from pathlib import Path


def tail(path: Path, *, lines: int = 20) -> str:
    """Return the last lines; an empty text if there is no file."""
    try:
        text = path.read_text(errors="replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-lines:])

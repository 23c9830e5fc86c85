"""How names, counts and times are written for people, at a terminal and on a page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from datetime import timedelta

NOTHING: Final = "-"


def visible(value: object) -> str:
    """Return the text with control characters and marks of direction escaped, and ``-`` for ``None``."""
    if value is None:
        return NOTHING
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in str(value))


def counted(number: int, noun: str) -> str:
    """``1 partition``, ``2 partitions``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def short(time: timedelta) -> str:
    """A time: ``5s``, ``3h``."""
    seconds = int(time.total_seconds())
    for unit, length in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length}{unit}"
    return f"{seconds}s"

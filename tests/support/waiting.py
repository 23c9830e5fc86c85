"""Wait for a condition instead of sleeping for a guess."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

_T = TypeVar("_T")


def wait_until(condition: Callable[[], _T], *, timeout: float = 20.0) -> _T:
    """Return the condition's first true value.

    :raises AssertionError: it stays false for ``timeout`` seconds.
    """
    deadline = time.monotonic() + timeout
    while not (value := condition()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)
    return value

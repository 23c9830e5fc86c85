"""Wait for a condition instead of sleeping for a guess."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Final, TypeVar

PATIENCE: Final = float(os.environ.get("OFFSETSTORE_TEST_PATIENCE", "1"))
"""Time limits are multiplied by it: for a machine that has much else to do."""

_T = TypeVar("_T")


def wait_until(condition: Callable[[], _T], *, timeout: float = 60.0) -> _T:
    """Return the condition's first true value.

    :raises AssertionError: it stays false for ``timeout`` seconds, times `PATIENCE`.
    """
    deadline = time.monotonic() + timeout * PATIENCE
    while not (value := condition()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)
    return value


def time_with(sleep: Callable[[float], object]) -> SimpleNamespace:
    """The module `time` with another ``sleep``, for one module to have: other threads sleep as before (py4j's do)."""
    return SimpleNamespace(**{**vars(time), "sleep": sleep})

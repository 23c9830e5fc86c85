"""A terminal of 80 columns, whose user wants no colours."""

from __future__ import annotations

import io
import re
from collections.abc import Generator
from contextlib import contextmanager, redirect_stderr, redirect_stdout

import pytest


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True

    @property
    def lines(self) -> list[str]:
        """What is on it, without the codes for bold and dim."""
        return re.sub(r"\x1b\[[0-9;]*m", "", self.getvalue()).splitlines()


@contextmanager
def terminal(monkeypatch: pytest.MonkeyPatch) -> Generator[Screen]:
    """Show both streams on it."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("NO_COLOR", "1")
    screen = Screen()
    with redirect_stdout(screen), redirect_stderr(screen):
        yield screen

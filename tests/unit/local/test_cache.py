"""Where downloads are kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from offsetstore.local.cache import cache_directory


def test_the_user_chooses_else_the_platform_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    monkeypatch.delenv("OFFSETSTORE_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache_directory() == Path("/home/somebody/.cache/offsetstore")
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/cache/somebody")
    assert cache_directory() == Path("/var/cache/somebody/offsetstore")
    monkeypatch.setenv("OFFSETSTORE_CACHE", "~/elsewhere")
    assert cache_directory() == Path("/home/somebody/elsewhere")

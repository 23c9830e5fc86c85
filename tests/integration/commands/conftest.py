from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import pytest
from click.testing import CliRunner, Result

from offsetstore import OffsetStore
from offsetstore.cli import options
from offsetstore.cli.commands import cli
from offsetstore.testing import StaticBroker


@pytest.fixture
def broker() -> StaticBroker:
    """Three partitions of `payments`, with offsets 0 to 9."""
    return StaticBroker.with_topics({"payments": 3}, end=10)


@pytest.fixture
def run(store: OffsetStore, broker: StaticBroker, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Call the command line with `store` as its database, and `broker` as what ``-b`` names."""

    @contextmanager
    def open_store(*_: Any, **__: Any) -> Generator[OffsetStore]:
        yield store

    def make_broker(*_: Any) -> StaticBroker:
        return broker

    monkeypatch.setattr(options, "open_store", open_store)
    monkeypatch.setattr(options, "make_broker", make_broker)
    without = {"OFFSETSTORE_URL": None, "OFFSETSTORE_BOOTSTRAP_SERVERS": None}
    return lambda *arguments: CliRunner(env=without).invoke(cli, arguments, prog_name="offsetstore")

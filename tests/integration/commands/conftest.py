from __future__ import annotations

import json
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import pytest
from click.testing import CliRunner, Result

from offsetstore import OffsetStore
from offsetstore.cli import options
from offsetstore.cli.commands import cli
from offsetstore.testing import StaticBroker


class Run:
    """Calls the command line with `store` as its database, and `broker` as what ``-b`` names."""

    def __call__(self, *arguments: str) -> Result:
        """Return its exit code and what it printed."""
        without = {"OFFSETSTORE_URL": None, "OFFSETSTORE_BOOTSTRAP_SERVERS": None}
        return CliRunner(env=without).invoke(cli, arguments, prog_name="offsetstore")

    def lines(self, *arguments: str) -> list[str]:
        """Return the lines of a command that succeeds."""
        result = self(*arguments)
        assert result.exit_code == 0, result.output
        return result.stdout.splitlines()

    def json(self, *arguments: str) -> Any:
        """Return the document of a command that succeeds."""
        return json.loads("\n".join(self.lines(*arguments, "--format", "json")))

    def fail(self, code: int, *arguments: str) -> str:
        """Return what a command that fails tells of its error, without its lines' ends; it prints nothing else."""
        result = self(*arguments)
        assert (result.exit_code, result.stdout) == (code, ""), result.output
        return " ".join(result.stderr.split())


@pytest.fixture
def broker() -> StaticBroker:
    """Three partitions of `payments`, with offsets 0 to 9."""
    return StaticBroker.with_topics({"payments": 3}, end=10)


@pytest.fixture
def run(store: OffsetStore, broker: StaticBroker, monkeypatch: pytest.MonkeyPatch) -> Run:
    @contextmanager
    def open_store(*_: Any, **__: Any) -> Generator[OffsetStore]:
        yield store

    def make_broker(*_: Any) -> StaticBroker:
        return broker

    monkeypatch.setattr(options, "open_store", open_store)
    monkeypatch.setattr(options, "make_broker", make_broker)
    return Run()

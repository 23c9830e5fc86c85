from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from offsetstore.cli.commands import cli
from offsetstore.local import stack
from offsetstore.local.stack import ServiceStatus


def test_at_80_columns_neither_the_url_nor_the_path_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    host = f"127.0.0.1:5432/{'sales' * 20}"
    directory = Path("/caches") / ("deep" * 30)
    service = ServiceStatus(
        "PostgreSQL", running=True, address=f"postgresql://job:canary@{host}", pid=77, directory=directory
    )
    monkeypatch.setattr(stack, "status", lambda: [service])
    result = CliRunner(env={"COLUMNS": "80"}).invoke(cli, ["local", "status"])
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        "PostgreSQL: running, pid 77",
        f"  postgresql://job@{host}",
        f"  {directory}",
    ]
